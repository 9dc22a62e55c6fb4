"""Resolving a start that nobody executes: an operator says whether it executed.

Every unsettled key can be resolved that no live owner holds: its run was abandoned, or is
suspended, or waits, or was never made. The operator answers for the truth of it; who, when, what
and why go into the audit in the same batch. Afterwards the key replays, starts again as the next
attempt, or is settled without having executed.

The operator looks first (`look`), and `seen` names what was there: the reservation's last write
and attempt, the run's last write, and the last write of each of its steps. Any write since makes
the decision lose.
"""

from __future__ import annotations

import base64
import hashlib
from enum import StrEnum
from typing import NamedTuple

from fencepost import audit, errors, journal, requests, reservation, snapshot
from fencepost.identifiers import Principal, mint_token
from fencepost.ownership import claim_ended_statement, fact_statement
from fencepost.reservation import Reservation, ReservationState
from fencepost.runs import Outcome, Run, RunStatus
from fencepost.storage import writes
from fencepost.storage.d1 import Database, Result
from fencepost.storage.sql import NOW_MS, Parameter, Statement


class Verdict(StrEnum):
    """What an operator found out.

    `executed`: the work happened. `not_executed`: it did not, and may be started again.
    `cancelled`: it did not, and is not to be.
    """

    EXECUTED = "executed"
    NOT_EXECUTED = "not_executed"
    CANCELLED = "cancelled"


class Resolution(NamedTuple):
    """What the operator says. `seen` is that of the look; `result_json` belongs to `executed`."""

    decision: Verdict
    seen: str
    note: str
    result_json: str | None = None


# --- Looking -----------------------------------------------------------------------------

# The tokens of the last write of each step, in the order of the steps.
_STEPS = """(SELECT group_concat(write_token) FROM (SELECT write_token FROM fencepost_operations
    WHERE run_id = {run_id} ORDER BY run_id, operation_id))"""

# Whoever asks may see the start; of another's nothing more is read.
_MINE = """(:viewer_kind IS NULL
    OR (held.owner_kind = :viewer_kind AND held.owner_id = :viewer_id))"""

_READ_STEPS = f"""
SELECT CASE WHEN {_MINE} THEN {_STEPS.format(run_id="held.run_id")} END AS tokens
FROM fencepost_reservations AS held WHERE key = :key
"""

# Another key means the run of this one: the one that started it.
_STARTER_UNSETTLED = f"""
SELECT starter.key FROM fencepost_reservations AS held
CROSS JOIN fencepost_reservations AS starter ON starter.run_id = held.run_id
WHERE held.key = :key AND held.joined = 1 AND {_MINE}
  AND starter.joined = 0 AND starter.state <> 'terminal'
"""
_STARTER_SETTLED = _STARTER_UNSETTLED.replace("<>", "=")


class Look(NamedTuple):
    """A start as it is: its reservation and run, and what names their last writes."""

    held: Reservation
    run: Run | None
    steps: str | None
    starter: str | None

    @property
    def seen(self) -> str:
        """Names this look, opaquely: 43 characters. Any write to the start makes another one."""
        held, run = self.held, self.run
        names = [held.state, held.attempt, held.claim_nonce, held.updated_at_ms]
        names += [run and run.write_token, self.steps]
        digest = hashlib.sha256(journal.canonical(names)).digest()
        return base64.urlsafe_b64encode(digest).decode().rstrip("=")


def _look_statements(key: str, viewer: Principal | None, now_ms: int | None) -> list[Statement]:
    whose = {"key": key, **snapshot.scope(viewer)}
    return [
        *reservation.find_statements(key, viewer, now_ms),
        Statement(_READ_STEPS, **whose),
        Statement(_STARTER_UNSETTLED, **whose),
        Statement(_STARTER_SETTLED, **whose),
    ]


def _look(results: list[Result], viewer: Principal | None) -> Look:
    held, run = reservation.found(results, viewer)
    starters = [row["key"] for result in results[3:5] for row in result.rows]
    tokens = results[2].rows[0]["tokens"]
    return Look(held, run, tokens, next(iter(starters), None))


async def look(db: Database, key: str, viewer: Principal | None, now_ms: int | None = None) -> Look:
    """The start of a key. Raises NotFound, also for another principal's. Writes nothing."""
    results = await reservation.read_for_request(db, _look_statements(key, viewer, now_ms))
    return _look(results, viewer)


# --- Deciding ----------------------------------------------------------------------------

# Decides: the key is unsettled and started its run itself; nothing of it was written since the
# look (the reservation's write and attempt, the run's token, those of its steps); and nobody
# holds the run live: no owner under a lease that has not ended, no claim younger than that.
_AUDIT_RESOLVE = f"""
INSERT {audit.INTO}
SELECT 'resolve', :principal_kind, :principal_id, held.key, :note,
  json_object('state', held.state, 'attempt', held.attempt, 'run_id', held.run_id,
    'status', run.status, 'generation', run.generation),
  json_object('decision', :decision), :token,
  MAX(COALESCE(:now_ms, {NOW_MS}), held.updated_at_ms + 1, COALESCE(run.updated_at_ms, 0))
FROM fencepost_reservations AS held LEFT JOIN fencepost_runs AS run USING (run_id)
WHERE held.key = :key AND held.state <> 'terminal' AND held.joined = 0
  AND held.attempt = :attempt AND held.claim_nonce IS :claim_nonce
  AND held.updated_at_ms = :reserved_at_ms
  AND run.write_token IS :run_token
  AND {_STEPS.format(run_id=":run_id")} IS :steps
  AND (run.status IS NULL OR run.status IN ('pending', 'suspended')
    OR run.finished_at_ms IS NOT NULL
    OR (run.status = 'running' AND run.lease_expires_at_ms < COALESCE(:now_ms, {NOW_MS})))
  AND (run.claimed_at_ms IS NULL
    OR run.claimed_at_ms + run.lease_ms < COALESCE(:now_ms, {NOW_MS}))
  AND {requests.UNUSED}
RETURNING sequence
"""

# The rest decides nothing: guarded by the audit row. `:outcome` is NULL where the key is to be
# started again.
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

_RESOLVE_RUN = f"""
UPDATE fencepost_runs SET status = :to,
  owner_host_id = NULL, owner_pid = NULL, owner_nonce = NULL,
  heartbeat_at_ms = NULL, lease_expires_at_ms = NULL,
  claim_host_id = NULL, claim_pid = NULL, claim_nonce = NULL, claimed_at_ms = NULL,
  claim_heartbeat_at_ms = NULL,
  finished_at_ms = CASE WHEN :to <> 'pending' THEN {audit.LAST_AT_MS} END,
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
) -> tuple[Outcome, Look]:
    """Settle a start that nobody executes. Two round trips; the fence does not gate it.

    `executed`: the key is settled and the run completed, with the result if given.
    `not_executed`: reserved again, attempt + 1, the run pending; a run whose cancel was requested
    ends instead. `cancelled`: the key is settled and the run ends. A key whose run has ended is
    settled as the run was, whatever the decision. Losses, in order: key_joined
    (`Look.starter` is the key to resolve), snapshot_changed (something was written since the
    look, or the key is settled), heartbeat_fresh (the owner is alive), claim_fresh. Raises
    NotFound, and InvalidRequest for a result without a run that it could end with.
    """
    results = await reservation.read_for_request(db, _look_statements(key, None, now_ms))
    found = _look(results, None)
    if requests.replayed(db, results):
        return Outcome.RESOLVED, found
    if loss := _loss(found, resolution.seen):
        return loss, found
    over = found.run is None or found.run.ended
    if over and resolution.result_json is not None:
        raise errors.InvalidRequest(
            "A 'result' needs a run that has not ended; this start has none. Nothing was written."
        )
    token = mint_token()
    intent = _write(db, found, operator, resolution, token, now_ms)
    records = requests.of_audited(db, token, Outcome.RESOLVED)
    written = await requests.write(db, intent, (token,), records)
    after = _look(written.reads, None)
    if written.won:
        return Outcome.RESOLVED, after
    # Nothing was in the way but a lease or a claim: it ended between the write and this reading.
    return _loss(after, resolution.seen) or Outcome.HEARTBEAT_FRESH, after


def _loss(found: Look, seen: str) -> Outcome | None:
    held, run = found.held, found.run
    if held.joined:
        return Outcome.KEY_JOINED
    if found.seen != seen or held.state is ReservationState.TERMINAL:
        return Outcome.SNAPSHOT_CHANGED
    if run is not None and run.status is RunStatus.RUNNING and run.lease_is_fresh:
        return Outcome.HEARTBEAT_FRESH
    if run is not None and run.claim_is_fresh:
        return Outcome.CLAIM_FRESH
    return None


def _ends(run: Run | None, decision: Verdict) -> RunStatus:
    """The status of the run afterwards. One that has ended stays as it is."""
    if run is not None and run.ended:
        return run.status
    if decision is Verdict.EXECUTED:
        return RunStatus.COMPLETED
    requested = run is not None and run.cancel_requested_at_ms is not None
    cancelled = decision is Verdict.CANCELLED or requested
    return RunStatus.CANCELLED if cancelled else RunStatus.PENDING


def _write(
    db: Database,
    found: Look,
    operator: Principal,
    resolution: Resolution,
    token: str,
    now_ms: int | None,
) -> writes.Write:
    held, run = found.held, found.run
    key, decision = held.key, resolution.decision
    to = _ends(run, decision)
    ended = run is not None and run.ended
    outcome = None if to is RunStatus.PENDING else decision.value
    if to is RunStatus.CANCELLED or ended:
        outcome = str(to)
    seen: dict[str, Parameter] = {
        "attempt": held.attempt,
        "claim_nonce": held.claim_nonce,
        "reserved_at_ms": held.updated_at_ms,
        "run_token": run and run.write_token,
        "steps": found.steps,
    }
    who = {"principal_kind": operator.kind, "principal_id": operator.id}
    said = {"note": resolution.note, "decision": decision, "token": token, "now_ms": now_ms}
    keyed = requests.params(db)
    statements = [
        Statement(_AUDIT_RESOLVE, key=key, run_id=held.run_id, **who, **said, **seen, **keyed),
        Statement(_RESOLVE_RESERVATION, key=key, outcome=outcome, token=token),
        Statement(_SETTLE_OTHERS, key=key, run_id=held.run_id, outcome=outcome, token=token),
        *(_run_statements(run, to, held.attempt, resolution, token) if run and not ended else []),
    ]
    return writes.Write(
        statements,
        _look_statements(key, None, now_ms),
        audit.receipt(token),
        could_win=lambda reads: _look(reads, None).seen == found.seen,
    )


def _run_statements(
    run: Run, to: RunStatus, attempt: int, resolution: Resolution, token: str
) -> list[Statement]:
    payload = {"decision": str(resolution.decision), "attempt": attempt, "to": str(to)}
    if resolution.result_json is not None:
        payload["result_sha256"] = journal.sha256(resolution.result_json)
    event = journal.next_event(run.head, "run-resolved", payload)
    moved: dict[str, Parameter] = {"sequence": event.sequence, "hash": event.hash}
    statements = [
        Statement(_RESOLVE_RUN, run_id=run.run_id, token=token, to=to, **moved),
        claim_ended_statement(run.run_id, token, "expired"),
        journal.append_statement(run.run_id, token, event),
    ]
    if run.owner is not None:
        statements.append(fact_statement(run.run_id, token, "expired", run.owner, None))
    if (result_json := resolution.result_json) is not None:
        result = Statement(_RESOLVE_RESULT, run_id=run.run_id, token=token, result_json=result_json)
        statements.append(result)
    return statements
