"""Leases: who executes an operation now, and what became of it (contracts 4).

Only the run's present owner drives its operations. A lease holds up to and including the
millisecond in which it ends. A committed outcome is never erased and never leased again: the
same operation with the same payload replays it.

Not guaranteed: that a step is executed once. Whoever shares a lease, preempts it or acquires it
after it lapsed may execute the step again, while the former holder still does. Lease only what
may be repeated; the token fences the commit, not the work.
"""

from __future__ import annotations

from fencepost import fence, journal, limits, operations
from fencepost.identifiers import mint_token
from fencepost.journal import Head
from fencepost.operations import Operation, OperationState, Outcome, Seen, Step
from fencepost.snapshot import VISIBLE, contended
from fencepost.storage.d1 import Database
from fencepost.storage.sql import NOW_MS, Statement

# What every write asks first: the run is running, this very owner holds it, and the fence
# admits existing work.
_OURS = f"""EXISTS (SELECT 1 FROM fencepost_runs WHERE run_id = ?1 AND {VISIBLE}
    AND status = 'running'
    AND owner_host_id = ?4 AND owner_pid = ?5 AND owner_nonce = ?6)
  AND {fence.admits_existing_run_sql("?1")}"""

# Decides: the owner asks, the lease has lapsed, or (?8 is a token) holds under that token, and
# the run's history ends where it was read.
_INTERRUPT = f"""
UPDATE fencepost_operations SET state = 'interrupted', lease_expires_at_ms = NULL,
  write_token = ?9, updated_at_ms = MAX(updated_at_ms, COALESCE(?10, {NOW_MS}))
WHERE run_id = ?1 AND operation_id = ?7 AND {_OURS} AND state = 'running'
  AND CASE WHEN ?8 IS NULL THEN lease_expires_at_ms < COALESCE(?10, {NOW_MS})
    ELSE lease_token = ?8 AND lease_expires_at_ms >= COALESCE(?10, {NOW_MS}) END
  AND EXISTS (SELECT 1 FROM fencepost_runs
    WHERE run_id = ?1 AND head_sequence = ?11 AND head_hash = ?12)
"""

# Decides nothing: guarded by the token of the interruption, which it carries on to the event.
_INTERRUPT_HEAD = f"""
UPDATE fencepost_runs SET head_sequence = ?4, head_hash = ?5, write_token = ?3,
  updated_at_ms = MAX(updated_at_ms, COALESCE(?6, {NOW_MS}))
WHERE run_id = ?1 AND EXISTS (SELECT 1 FROM fencepost_operations
  WHERE run_id = ?1 AND operation_id = ?2 AND write_token = ?3)
"""


def _interruption_statements(
    step: Step, lease_token: str | None, head: Head, token: str, now_ms: int | None
) -> list[Statement]:
    """The one way in which an operation becomes interrupted, with its event: at its holder's
    word, or, without a `lease_token`, because its lease lapsed.
    """
    event = journal.next_event(head, "operation-interrupted", {"operation": step.id})
    values = (*step.params, lease_token, token, now_ms, head.sequence, head.hash)
    chain = (event.sequence, event.hash, now_ms)
    return [
        Statement(_INTERRUPT, values),
        Statement(_INTERRUPT_HEAD, (step.run_id, step.id, token, *chain)),
        journal.append_statement(step.run_id, token, event),
    ]


async def _mark_lapsed(
    db: Database,
    step: Step,
    seen: Seen,
    then: list[Statement],
    token: str | None,
    now_ms: int | None,
) -> Seen:
    """Mark a lapsed lease interrupted, and go on with `then`, which write `token`.

    One more round trip, since the event is chained to the run's head; once more for each lost
    race for the head.
    """
    for _ in range(limits.RACE_ATTEMPTS_MAX):
        if not (seen.operation and seen.operation.lapsed and seen.require_ours(step)):
            break
        marked = mint_token()
        statements = _interruption_statements(step, None, seen.run.head, marked, now_ms)
        seen = await operations.verb(db, step, [*statements, *then], token or marked, now_ms)
    return seen


# Decides: the owner asks, and the operation is new, or has this payload and is interrupted, or
# runs and is to be preempted (?12). A lease that lapsed must be marked interrupted before.
_ACQUIRE = f"""
INSERT INTO fencepost_operations (run_id, operation_id, kind, payload_fingerprint, state,
  lease_token, lease_expires_at_ms, write_token, created_at_ms, updated_at_ms)
SELECT ?1, ?7, 'lease', ?8, 'running', ?9, COALESCE(?11, {NOW_MS}) + ?10, ?9,
  COALESCE(?11, {NOW_MS}), COALESCE(?11, {NOW_MS})
WHERE {_OURS}
ON CONFLICT (run_id, operation_id) DO UPDATE SET state = 'running',
  lease_token = excluded.lease_token, lease_expires_at_ms = excluded.lease_expires_at_ms,
  write_token = excluded.write_token, updated_at_ms = MAX(updated_at_ms, excluded.updated_at_ms)
WHERE payload_fingerprint = excluded.payload_fingerprint
  AND (state = 'interrupted'
    OR (state = 'running' AND ?12 = 1
      AND fencepost_operations.lease_expires_at_ms >= COALESCE(?11, {NOW_MS})))
"""


async def acquire(
    db: Database,
    step: Step,
    payload_fingerprint: str,
    ttl_ms: int,
    *,
    preempt: bool = False,
    exclusive: bool = False,
    now_ms: int | None = None,
) -> tuple[Outcome, Operation | None]:
    """Lease an operation, for `ttl_ms` from now on, or learn its outcome. One round trip; two
    when a lease lapsed, which is marked interrupted first.

    acquired: a new token. shared: the lease that holds, untouched, its end too. replayed: the
    committed outcome. Losses, in order: fence_lost, operation_conflict (another payload),
    operation_already_running (`exclusive`). Raises NotFound and Fenced.
    """
    token = mint_token()
    lease = (payload_fingerprint, token, ttl_ms, now_ms, int(preempt))
    acquire = [Statement(_ACQUIRE, (*step.params, *lease))]
    seen = await operations.verb(db, step, acquire, token, now_ms)
    seen = await _mark_lapsed(db, step, seen, acquire, token, now_ms)
    operation = seen.operation
    if operation is not None and operation.write_token == token:
        return Outcome.ACQUIRED, operation
    if not seen.require_ours(step) or operation is None:
        return Outcome.FENCE_LOST, operation
    if operation.payload_fingerprint != payload_fingerprint:
        return Outcome.OPERATION_CONFLICT, operation
    if operation.state is OperationState.COMMITTED:
        return Outcome.REPLAYED, operation
    return (Outcome.OPERATION_ALREADY_RUNNING if exclusive else Outcome.SHARED), operation


# What the verbs with a token ask: the owner asks, and the lease holds under that token.
_HELD = f"""run_id = ?1 AND operation_id = ?7 AND {_OURS} AND state = 'running'
  AND lease_token = ?8 AND lease_expires_at_ms >= COALESCE(?10, {NOW_MS})"""

# Decides: the lease holds. Its end never moves backwards.
_RENEW = f"""
UPDATE fencepost_operations SET
  lease_expires_at_ms = MAX(lease_expires_at_ms, COALESCE(?10, {NOW_MS}) + ?11),
  write_token = ?9, updated_at_ms = MAX(updated_at_ms, COALESCE(?10, {NOW_MS}))
WHERE {_HELD}
"""


async def renew(
    db: Database, step: Step, token: str, ttl_ms: int, *, now_ms: int | None = None
) -> tuple[Outcome, Operation | None]:
    """Let the lease hold for `ttl_ms` from now on, or as long as before. One round trip.

    Losses, in order: fence_lost, lease_fenced. Raises NotFound and Fenced.
    """
    return await _with_token(db, step, _RENEW, Outcome.RENEWED, token, ttl_ms, now_ms)


# Decides: the lease holds. Ends it.
_COMMIT = f"""
UPDATE fencepost_operations SET state = 'committed', outcome = ?11, lease_expires_at_ms = NULL,
  write_token = ?9, updated_at_ms = MAX(updated_at_ms, COALESCE(?10, {NOW_MS}))
WHERE {_HELD}
"""


async def commit(
    db: Database, step: Step, token: str, outcome_json: str, *, now_ms: int | None = None
) -> tuple[Outcome, Operation | None]:
    """Store the outcome, for ever, and end the lease. One round trip.

    A retry with the same token and outcome is answered `committed` again. Losses, in order:
    fence_lost, lease_fenced. Raises NotFound and Fenced.
    """
    outcome, found = await _with_token(
        db, step, _COMMIT, Outcome.COMMITTED, token, outcome_json, now_ms
    )
    if (
        outcome is Outcome.LEASE_FENCED
        and found is not None
        and (found.lease_token, found.outcome_json) == (token, outcome_json)
    ):
        return Outcome.COMMITTED, found
    return outcome, found


async def interrupt(
    db: Database, step: Step, token: str, *, now_ms: int | None = None
) -> tuple[Outcome, Operation | None]:
    """End the lease without an outcome: whoever acquires next begins anew. Two round trips.

    Losses, in order: fence_lost, lease_fenced. Raises NotFound and Fenced, and Unavailable when
    the race for the head of the run's history was lost too often.
    """
    seen = await operations.verb(db, step, [], "", now_ms)
    for _ in range(limits.RACE_ATTEMPTS_MAX):
        loss, found = _loss(step, seen), seen.operation
        if loss is not Outcome.LEASE_FENCED or found is None or not found.held_under(token):
            await _mark_lapsed(db, step, seen, [], None, now_ms)
            return loss, found
        written = mint_token()
        statements = _interruption_statements(step, token, seen.run.head, written, now_ms)
        seen = await operations.verb(db, step, statements, written, now_ms)
        if seen.operation is not None and seen.operation.write_token == written:
            return Outcome.INTERRUPTED, seen.operation
    raise contended()


async def assert_held(
    db: Database, step: Step, token: str, *, now_ms: int | None = None
) -> tuple[Outcome, Operation | None]:
    """Whether the lease holds, at the moment of the reading. Writes nothing. One round trip.

    Losses, in order: fence_lost, lease_fenced. Raises NotFound and Fenced.
    """
    seen = await operations.verb(db, step, [], "", now_ms)
    loss, found = _loss(step, seen), seen.operation
    if loss is Outcome.LEASE_FENCED and found is not None and found.held_under(token):
        return Outcome.ASSERTED, found
    return loss, found


async def _with_token(
    db: Database,
    step: Step,
    sql: str,
    won: Outcome,
    token: str,
    value: str | int,
    now_ms: int | None,
) -> tuple[Outcome, Operation | None]:
    """A write under a lease; one that lapsed is marked interrupted, by a second batch."""
    written = mint_token()
    statements = [Statement(sql, (*step.params, token, written, now_ms, value))]
    seen = await operations.verb(db, step, statements, written, now_ms)
    if seen.operation is not None and seen.operation.write_token == written:
        return won, seen.operation
    seen = await _mark_lapsed(db, step, seen, [], None, now_ms)
    return _loss(step, seen), seen.operation


def _loss(step: Step, seen: Seen) -> Outcome:
    """Why a verb with a token did not win. Raises Fenced, and NotFound to the run's owner."""
    if not seen.require_ours(step):
        return Outcome.FENCE_LOST
    if seen.operation is None:
        raise operations.not_found()
    return Outcome.LEASE_FENCED
