"""Releasing a start that did not execute, so that its key can be started again."""

from __future__ import annotations

from fencepost import journal, limits, reservation, snapshot
from fencepost.identifiers import Principal, mint_token
from fencepost.ownership import fact_statement
from fencepost.reservation import Reservation, ReservationState
from fencepost.runs import Outcome, Owner, Run
from fencepost.storage import writes
from fencepost.storage.d1 import Database
from fencepost.storage.sql import NOW_MS, Statement

# Decides: the owner holds the run under a lease that has not ended, the history has no later
# event, and the reservation is started and names this run.
_RELEASE_RUN = f"""
UPDATE fencepost_runs SET status = 'pending',
  owner_host_id = NULL, owner_pid = NULL, owner_nonce = NULL,
  heartbeat_at_ms = NULL, lease_expires_at_ms = NULL,
  claim_host_id = NULL, claim_pid = NULL, claim_nonce = NULL, claimed_at_ms = NULL,
  claim_heartbeat_at_ms = NULL,
  head_sequence = :sequence, head_hash = :hash, write_token = :token,
  updated_at_ms = MAX(updated_at_ms, COALESCE(:now_ms, {NOW_MS}))
WHERE run_id = :run_id AND status = 'running'
  AND owner_host_id = :host_id AND owner_pid = :pid AND owner_nonce = :nonce
  AND lease_expires_at_ms >= COALESCE(:now_ms, {NOW_MS})
  AND head_sequence = :sequence - 1 AND head_hash = :prior_hash
  AND EXISTS (SELECT 1 FROM fencepost_reservations
    WHERE key = :key AND run_id = :run_id AND state = 'started' AND joined = 0)
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


async def release(
    db: Database,
    key: str,
    viewer: Principal | None,
    owner: Owner,
    now_ms: int | None = None,
) -> tuple[Outcome, Reservation, Run | None]:
    """Release a start that did not execute: the key is reserved again, the run is pending.

    The attempt counts up by one. Only `owner` can release, while its lease holds; the fence does
    not gate it. Two round trips. Losses: fence_lost, snapshot_changed. Raises NotFound.
    Not guaranteed: that the work did not happen. The owner says so, and nothing checks it.
    """
    for _ in range(limits.RACE_ATTEMPTS_MAX):
        held, run = await reservation.find(db, key, viewer, now_ms)
        if loss := _loss(held, run, owner):
            return loss, held, run
        assert run is not None
        written = await writes.write(db, _write(held, run, owner, now_ms))
        if written.won:
            held, run = reservation.found(written.reads, viewer)
            return Outcome.RELEASED, held, run
    return Outcome.SNAPSHOT_CHANGED, held, run


def _loss(held: Reservation, run: Run | None, owner: Owner) -> Outcome | None:
    if run is None or run.owner != owner or not run.lease_is_fresh:
        return Outcome.FENCE_LOST
    if held.state is not ReservationState.STARTED or held.joined:
        return Outcome.SNAPSHOT_CHANGED
    return None


def _write(held: Reservation, run: Run, owner: Owner, now_ms: int | None) -> writes.Write:
    token = mint_token()
    event = journal.next_event(run.head, "run-released", {"attempt": held.attempt})
    statements = [
        Statement(
            _RELEASE_RUN,
            key=held.key,
            run_id=run.run_id,
            token=token,
            **owner.params,
            sequence=event.sequence,
            hash=event.hash,
            prior_hash=run.head.hash,
            now_ms=now_ms,
        ),
        Statement(_RELEASE_RESERVATION, key=held.key, run_id=run.run_id, token=token),
        journal.append_statement(run.run_id, token, event),
        fact_statement(run.run_id, token, "released", owner, None),
    ]
    reads = reservation.find_statements(held.key, now_ms)
    return writes.Write(statements, reads, snapshot.receipt(run.run_id, token, event.sequence))
