"""Releasing a start that did not execute, so that its key can be started again.

Only work that was never begun is given back. The process that this attempt's start granted may
say so, in that very generation, and only while the attempt has recorded nothing: no event, no
checkpoint, no step, no suspension, no acknowledged cancel. A process that has taken the run over
can never release it: it cannot know what its predecessor did. Then a person resolves the start.
"""

from __future__ import annotations

from fencepost import journal, requests, reservation, snapshot
from fencepost.identifiers import Principal, mint_token
from fencepost.ownership import HELD_BY, claim_ended_statement, fact_statement, holder
from fencepost.reservation import Reservation, ReservationState
from fencepost.runs import Outcome, Owner, Run, RunStatus
from fencepost.storage import races, writes
from fencepost.storage.d1 import Database
from fencepost.storage.sql import NOW_MS, Statement

# The attempt has recorded nothing: this generation was granted by the start whose nonce the
# reservation carries, its own event is still the last, no step was leased in it, and it did not
# acknowledge a cancel.
_NOTHING_RECORDED = """EXISTS (SELECT 1 FROM fencepost_ownership AS fact
    WHERE fact.run_id = :run_id AND fact.type = 'activated'
      AND fact.generation = fencepost_runs.generation AND fact.write_token = :claim_nonce)
  AND EXISTS (SELECT 1 FROM fencepost_events AS last
    WHERE last.run_id = :run_id AND last.sequence = head_sequence
      AND last.type IN ('run-created', 'run-restarted'))
  AND NOT EXISTS (SELECT 1 FROM fencepost_operations AS step
    WHERE step.run_id = :run_id AND step.generation = fencepost_runs.generation)
  AND NOT EXISTS (SELECT 1 FROM fencepost_ownership AS fact
    WHERE fact.run_id = :run_id AND fact.type = 'cancel-acknowledged'
      AND fact.generation = fencepost_runs.generation)"""

# Decides: the owner holds the run under a lease that has not ended, the reservation is started,
# names this run and is of the attempt that was read, and that attempt has recorded nothing. A run
# whose cancel was requested meanwhile ends: `:to` says so, and must be what the row says.
_RELEASE_RUN = f"""
UPDATE fencepost_runs SET status = :to,
  owner_host_id = NULL, owner_pid = NULL, owner_nonce = NULL,
  heartbeat_at_ms = NULL, lease_expires_at_ms = NULL,
  claim_host_id = NULL, claim_pid = NULL, claim_nonce = NULL, claimed_at_ms = NULL,
  claim_heartbeat_at_ms = NULL,
  finished_at_ms =
    CASE :to WHEN 'cancelled' THEN MAX(updated_at_ms, COALESCE(:now_ms, {NOW_MS})) END,
  head_sequence = :sequence, head_hash = :hash, write_token = :token,
  updated_at_ms = MAX(updated_at_ms, COALESCE(:now_ms, {NOW_MS}))
WHERE run_id = :run_id AND status = 'running' AND {HELD_BY}
  AND lease_expires_at_ms >= COALESCE(:now_ms, {NOW_MS})
  AND head_sequence = :sequence - 1 AND head_hash = :prior_hash
  AND (cancel_requested_at_ms IS NULL) = (:to = 'pending')
  AND EXISTS (SELECT 1 FROM fencepost_reservations WHERE key = :key AND run_id = :run_id
    AND state = 'started' AND claim_nonce = :claim_nonce AND joined = 0)
  AND {_NOTHING_RECORDED} AND {requests.UNUSED}
RETURNING run_id
"""

# Decides: started → reserved with the next attempt. Guarded by the token of the run's release.
_RELEASE_RESERVATION = """
UPDATE fencepost_reservations
SET state = 'reserved', claim_nonce = NULL, attempt = attempt + 1,
  updated_at_ms = MAX(updated_at_ms + 1,
    (SELECT updated_at_ms FROM fencepost_runs WHERE run_id = :run_id))
WHERE key = :key AND run_id = :run_id AND state = 'started' AND joined = 0
  AND EXISTS (SELECT 1 FROM fencepost_runs WHERE run_id = :run_id AND write_token = :token)
RETURNING run_id
"""


Released = tuple[Outcome, Reservation, Run | None]


async def release(
    db: Database,
    key: str,
    viewer: Principal | None,
    owner: Owner,
    *,
    generation: int | None = None,
    now_ms: int | None = None,
) -> Released:
    """Release a start that did not execute: the key is reserved again, the run is pending.

    The attempt counts up by one. A run whose cancel was requested ends instead, and settles the
    key. The fence does not gate it. Losses, in order: fence_lost (or its lease ended), key_joined,
    snapshot_changed (not started), work_recorded. Raises NotFound, and Unavailable (races).
    Not guaranteed: that the work did not happen. The owner says so, and nothing checks it.
    """
    look = reservation.find_statements(key, viewer, now_ms)

    async def attempt() -> Released | None:
        results = await reservation.read_for_request(db, look)
        held, run = reservation.found(results, viewer)
        if requests.replayed(db, results):
            return Outcome.RELEASED, held, run
        if loss := _loss(held, run, owner, generation):
            return loss, held, run
        assert run is not None
        token, seen = mint_token(), (run.head, run.cancel_requested_at_ms)
        intent = _write(db, held, run, owner, generation, token, now_ms)
        records = requests.of_run(db, run.run_id, token, Outcome.RELEASED)
        written = await requests.write(db, intent, (token,), records)
        held, run = reservation.found(written.reads, viewer)
        if written.won:
            return Outcome.RELEASED, held, run
        if loss := _loss(held, run, owner, generation):
            return loss, held, run
        assert run is not None
        same = (run.head, run.cancel_requested_at_ms) == seen
        return (Outcome.WORK_RECORDED, held, run) if same else None

    return await races.until_decided(db, attempt)


def _loss(
    held: Reservation, run: Run | None, owner: Owner, generation: int | None
) -> Outcome | None:
    if run is None or not run.held_by(owner, generation) or not run.lease_is_fresh:
        return Outcome.FENCE_LOST
    if held.joined:
        return Outcome.KEY_JOINED
    return None if held.state is ReservationState.STARTED else Outcome.SNAPSHOT_CHANGED


def _write(
    db: Database,
    held: Reservation,
    run: Run,
    owner: Owner,
    generation: int | None,
    token: str,
    now_ms: int | None,
) -> writes.Write:
    key, run_id = held.key, run.run_id
    cancelled = run.cancel_requested_at_ms is not None
    to = RunStatus.CANCELLED if cancelled else RunStatus.PENDING
    payload = {"attempt": held.attempt, **({"to": str(to)} if cancelled else {})}
    event = journal.next_event(run.head, "run-released", payload)
    asked = {**holder(owner, generation), **event.params, **requests.params(db), "to": to}
    asked |= {"key": key, "claim_nonce": held.claim_nonce}
    statements = [
        Statement(_RELEASE_RUN, run_id=run_id, token=token, **asked, now_ms=now_ms),
        Statement(_RELEASE_RESERVATION, key=key, run_id=run_id, token=token)
        if not cancelled
        else reservation.settle_statement(run_id, token, to),
        journal.append_statement(run_id, token, event),
        claim_ended_statement(run_id, token, "released"),
        fact_statement(run_id, token, "released", owner, None),
    ]
    return writes.Write(
        statements,
        reservation.find_statements(key, held.principal, now_ms),
        snapshot.write_receipt(run_id, token, event.sequence),
        could_win=lambda reads: any(
            Run.from_row(row).held_by(owner, generation) for row in reads[1].rows
        ),
    )
