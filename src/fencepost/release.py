"""Releasing a start that did not execute, so that its key can be started again."""

from __future__ import annotations

from fencepost import errors, journal, limits, reservation, snapshot
from fencepost.identifiers import Principal, mint_token
from fencepost.ownership import fact_statement
from fencepost.reservation import Reservation, ReservationState
from fencepost.runs import Outcome, Owner, Run
from fencepost.storage import writes
from fencepost.storage.d1 import Database, Result
from fencepost.storage.sql import NOW_MS, Statement

# Decides: the owner still holds the run under a lease that has not ended, the history ends
# where it was read, and the reservation is this run's and started.
_RELEASE_RUN = f"""
UPDATE fencepost_runs SET status = 'pending',
  owner_host_id = NULL, owner_pid = NULL, owner_nonce = NULL,
  heartbeat_at_ms = NULL, lease_expires_at_ms = NULL,
  claim_host_id = NULL, claim_pid = NULL, claim_nonce = NULL, claimed_at_ms = NULL,
  claim_heartbeat_at_ms = NULL,
  head_sequence = ?7, head_hash = ?8, write_token = ?3,
  updated_at_ms = MAX(updated_at_ms, COALESCE(?10, {NOW_MS}))
WHERE run_id = ?2 AND status = 'running'
  AND owner_host_id = ?4 AND owner_pid = ?5 AND owner_nonce = ?6
  AND lease_expires_at_ms >= COALESCE(?10, {NOW_MS})
  AND head_sequence = ?7 - 1 AND head_hash = ?9
  AND EXISTS (SELECT 1 FROM fencepost_reservations
    WHERE key = ?1 AND run_id = ?2 AND state = 'started' AND joined = 0)
RETURNING run_id
"""


async def find(
    db: Database, key: str, viewer: Principal | None, now_ms: int | None = None
) -> tuple[Reservation, Run | None]:
    """The reservation of a key and its run. Raises NotFound, also for another principal's."""
    try:
        results = await db.read(
            [reservation.read_statement(key), snapshot.read_by_key(key, now_ms)]
        )
    except errors.MissingTable:
        raise _not_found() from None
    return found_start(results, viewer)


def found_start(results: list[Result], viewer: Principal | None) -> tuple[Reservation, Run | None]:
    held_rows, run_rows = results[0].rows, results[1].rows
    if not held_rows:
        raise _not_found()
    held = Reservation.from_row(held_rows[0])
    if viewer is not None and held.owner != viewer:
        raise _not_found()
    return held, Run.from_row(run_rows[0]) if run_rows else None


def _not_found() -> errors.NotFound:
    return errors.NotFound("There is no such start.", code="START_NOT_FOUND")


async def release(
    db: Database,
    key: str,
    viewer: Principal | None,
    owner: Owner,
    now_ms: int | None = None,
) -> tuple[Outcome, Reservation, Run | None]:
    """Give a start back that did not execute: reserved again, attempt + 1, the run pending.

    Only `owner`, while it holds the lease, can say so; the fence does not gate it. Two round
    trips. Losses: fence_lost, snapshot_changed. Raises NotFound. Not guaranteed: that the work
    really did not happen; that is the owner's word.
    """
    for _ in range(limits.RACE_ATTEMPTS_MAX):
        held, run = await find(db, key, viewer, now_ms)
        if loss := _loss(held, run, owner):
            return loss, held, run
        assert run is not None
        written = await writes.write(db, _write(held, run, owner, now_ms))
        if written.won:
            held, run = found_start(written.reads, viewer)
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
    who = owner.columns
    values = (held.key, run.run_id, token, *who)
    chain = (event.sequence, event.hash, run.head.hash, now_ms)
    statements = [
        Statement(_RELEASE_RUN, (*values, *chain)),
        reservation.release_statement(held.key, run.run_id, token),
        journal.append_statement(run.run_id, token, event),
        fact_statement(run.run_id, token, "released", owner, None),
    ]
    reads = [reservation.read_statement(held.key), snapshot.read_by_key(held.key, now_ms)]
    return writes.Write(statements, reads, writes.run_receipt(run.run_id, token, event.sequence))
