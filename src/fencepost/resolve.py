"""Resolving an abandoned start: an operator says whether it executed.

A start is abandoned if its run is running and the lease has ended, or if its run never had an
owner. Nothing checks what the operator says. Who, when, what and why are audited in the same batch.
Afterwards the key replays, or can be started again as the next attempt.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from fencepost import audit, journal, limits, reservation
from fencepost.identifiers import Principal, mint_token
from fencepost.reservation import Reservation, ReservationState
from fencepost.runs import Outcome, Run, RunStatus
from fencepost.storage import writes
from fencepost.storage.d1 import Database
from fencepost.storage.sql import NOW_MS, Statement


class Verdict(StrEnum):
    EXECUTED = "executed"
    NOT_EXECUTED = "not_executed"


class Resolution(NamedTuple):
    """What the operator says. `result_json` is only for `executed`."""

    decision: Verdict
    attempt: int
    note: str
    result_json: str | None = None

    @property
    def outcome(self) -> str | None:
        return str(self.decision) if self.decision is Verdict.EXECUTED else None


# Decides: the reservation is started, in this attempt; its run is abandoned (no run, never owned,
# or its lease has ended); and the history has no later event.
_AUDIT_RESOLVE = f"""
INSERT {audit.INTO}
SELECT 'resolve', :principal_kind, :principal_id, held.key, :note,
  json_object('state', held.state, 'attempt', held.attempt, 'run_id', held.run_id,
    'status', run.status, 'generation', run.generation),
  json_object('decision', :decision), :token,
  MAX(COALESCE(:now_ms, {NOW_MS}), held.updated_at_ms + 1, COALESCE(run.updated_at_ms, 0))
FROM fencepost_reservations AS held LEFT JOIN fencepost_runs AS run USING (run_id)
WHERE held.key = :key AND held.state = 'started' AND held.attempt = :attempt AND held.joined = 0
  AND (run.status IS NULL OR run.status = 'pending'
    OR (run.status = 'running' AND run.lease_expires_at_ms < COALESCE(:now_ms, {NOW_MS})))
  AND run.head_sequence IS :prior_sequence AND run.head_hash IS :prior_hash
RETURNING sequence
"""

# The statements below decide nothing: guarded by the audit row.
_RESOLVE_RESERVATION = f"""
UPDATE fencepost_reservations SET
  state = CASE WHEN :outcome IS NULL THEN 'reserved' ELSE 'terminal' END,
  claim_nonce = CASE WHEN :outcome IS NULL THEN NULL ELSE claim_nonce END,
  attempt = CASE WHEN :outcome IS NULL THEN attempt + 1 ELSE attempt END,
  outcome = :outcome, updated_at_ms = {audit.LAST_AT_MS}
WHERE key = :key AND {audit.last_is(":token")}
"""

# Other keys of the same run are settled with it.
_SETTLE_OTHERS = f"""
UPDATE fencepost_reservations SET state = 'terminal', outcome = :outcome,
  updated_at_ms = MAX(updated_at_ms, {audit.LAST_AT_MS})
WHERE run_id = :run_id AND key <> :key AND state <> 'terminal' AND :outcome IS NOT NULL
  AND {audit.last_is(":token")}
"""

# Records the owner whose lease ended. No row if the run was never owned.
_EXPIRED = f"""
INSERT INTO fencepost_ownership (run_id, sequence, type, owner_host_id, owner_pid, owner_nonce,
  generation, granted_at_ms, write_token, at_ms)
SELECT run_id,
  1 + COALESCE((SELECT MAX(sequence) FROM fencepost_ownership WHERE run_id = :run_id), 0),
  'expired', owner_host_id, owner_pid, owner_nonce, generation, NULL, :token, {audit.LAST_AT_MS}
FROM fencepost_runs
WHERE run_id = :run_id AND owner_host_id IS NOT NULL AND {audit.last_is(":token")}
"""

_RESOLVE_RUN = f"""
UPDATE fencepost_runs SET
  status = CASE WHEN :outcome IS NULL THEN 'pending' ELSE 'completed' END,
  owner_host_id = NULL, owner_pid = NULL, owner_nonce = NULL,
  heartbeat_at_ms = NULL, lease_expires_at_ms = NULL,
  claim_host_id = NULL, claim_pid = NULL, claim_nonce = NULL, claimed_at_ms = NULL,
  claim_heartbeat_at_ms = NULL,
  finished_at_ms = CASE WHEN :outcome IS NOT NULL THEN {audit.LAST_AT_MS} END,
  head_sequence = :sequence, head_hash = :hash, write_token = :token,
  updated_at_ms = {audit.LAST_AT_MS}
WHERE run_id = :run_id AND {audit.last_is(":token")}
"""

_RESOLVE_RESULT = f"""
UPDATE fencepost_snapshots SET result = :result_json
WHERE run_id = :run_id AND {audit.last_is(":token")}
"""


async def resolve(
    db: Database,
    key: str,
    operator: Principal,
    resolution: Resolution,
    now_ms: int | None = None,
) -> tuple[Outcome, Reservation, Run | None]:
    """Resolve an abandoned start. Two round trips. The fence does not gate it.

    `executed`: the reservation becomes terminal and the run completed, with the result if given.
    `not_executed`: the key is reserved again, the attempt counts up by one, the run is pending.
    Losses, in order: attempt_changed (another operator, or the owner, was first), heartbeat_fresh
    (the owner's lease holds), snapshot_changed. Raises NotFound.
    """
    for _ in range(limits.RACE_ATTEMPTS_MAX):
        held, run = await reservation.find(db, key, None, now_ms)
        written = await writes.write(db, _write(held, run, operator, resolution, now_ms))
        before, (held, run) = run, reservation.found(written.reads, None)
        if written.won:
            return Outcome.RESOLVED, held, run
        if run == before or run is None or before is None or run.head == before.head:
            break
    return _loss(held, run, resolution), held, run


def _loss(held: Reservation, run: Run | None, resolution: Resolution) -> Outcome:
    if held.state is not ReservationState.STARTED or held.attempt != resolution.attempt:
        return Outcome.ATTEMPT_CHANGED
    if run is not None and run.status is RunStatus.RUNNING and run.lease_is_fresh:
        return Outcome.HEARTBEAT_FRESH
    return Outcome.SNAPSHOT_CHANGED


def _write(
    held: Reservation,
    run: Run | None,
    operator: Principal,
    resolution: Resolution,
    now_ms: int | None,
) -> writes.Write:
    token, key, outcome = mint_token(), held.key, resolution.outcome
    statements = [
        Statement(
            _AUDIT_RESOLVE,
            principal_kind=operator.kind,
            principal_id=operator.id,
            note=resolution.note,
            decision=resolution.decision,
            token=token,
            now_ms=now_ms,
            key=key,
            attempt=resolution.attempt,
            prior_sequence=None if run is None else run.head.sequence,
            prior_hash=None if run is None else run.head.hash,
        ),
        Statement(_RESOLVE_RESERVATION, key=key, outcome=outcome, token=token),
        Statement(_SETTLE_OTHERS, key=key, run_id=held.run_id, outcome=outcome, token=token),
        *([] if run is None else _run_statements(run, resolution, token)),
    ]
    reads = reservation.find_statements(key, now_ms)
    return writes.Write(statements, reads, audit.receipt(token))


def _run_statements(run: Run, resolution: Resolution, token: str) -> list[Statement]:
    payload = {"decision": str(resolution.decision), "attempt": resolution.attempt}
    if resolution.result_json is not None:
        payload["result_sha256"] = journal.sha256(resolution.result_json)
    event = journal.next_event(run.head, "run-resolved", payload)
    statements = [
        Statement(_EXPIRED, run_id=run.run_id, token=token),
        Statement(
            _RESOLVE_RUN,
            run_id=run.run_id,
            token=token,
            sequence=event.sequence,
            hash=event.hash,
            outcome=resolution.outcome,
        ),
        journal.append_statement(run.run_id, token, event),
    ]
    if (result_json := resolution.result_json) is not None:
        result = Statement(_RESOLVE_RESULT, run_id=run.run_id, token=token, result_json=result_json)
        statements.append(result)
    return statements
