"""Leases of operations: acquire, renew, commit, interrupt, assert.

Only the present owner of a run can do these to its operations. A lease holds up to and including
the millisecond of its end. A committed outcome is kept as long as the run: the same operation with
the same payload replays it, and is never leased again.

Not guaranteed: that a step is executed once. A process that shares a lease, preempts it, or
acquires it after it lapsed may execute the step while the former holder still does. Use leases
only for steps that may be repeated. The token protects the commit, not the work.
"""

from __future__ import annotations

from fencepost import fence, journal, limits, operations
from fencepost.identifiers import mint_token
from fencepost.journal import Head
from fencepost.operations import Operation, OperationState, ReadBack, Step, StepOutcome
from fencepost.snapshot import VISIBLE, contended
from fencepost.storage.d1 import Database
from fencepost.storage.sql import NOW_MS, Parameter, Statement

# The condition of every write here: the run is running, this owner holds it, and the fence admits
# existing work.
_OURS = f"""EXISTS (SELECT 1 FROM fencepost_runs WHERE run_id = :run_id AND {VISIBLE}
    AND status = 'running'
    AND owner_host_id = :host_id AND owner_pid = :pid AND owner_nonce = :nonce)
  AND {fence.admits_existing_run_sql(":run_id")}"""

# Decides: the owner asks; the lease has lapsed or, with a `:lease_token`, holds under that token;
# and the run's history has no later event.
_INTERRUPT = f"""
UPDATE fencepost_operations SET state = 'interrupted', lease_expires_at_ms = NULL,
  write_token = :token, updated_at_ms = MAX(updated_at_ms, COALESCE(:now_ms, {NOW_MS}))
WHERE run_id = :run_id AND operation_id = :operation_id AND {_OURS} AND state = 'running'
  AND CASE WHEN :lease_token IS NULL THEN lease_expires_at_ms < COALESCE(:now_ms, {NOW_MS})
    ELSE lease_token = :lease_token AND lease_expires_at_ms >= COALESCE(:now_ms, {NOW_MS}) END
  AND EXISTS (SELECT 1 FROM fencepost_runs
    WHERE run_id = :run_id AND head_sequence = :sequence - 1 AND head_hash = :prior_hash)
"""

# Decides nothing: guarded by the token of the interruption. It sets the same token for the event.
_INTERRUPT_HEAD = f"""
UPDATE fencepost_runs SET head_sequence = :sequence, head_hash = :hash, write_token = :token,
  updated_at_ms = MAX(updated_at_ms, COALESCE(:now_ms, {NOW_MS}))
WHERE run_id = :run_id AND EXISTS (SELECT 1 FROM fencepost_operations
  WHERE run_id = :run_id AND operation_id = :operation_id AND write_token = :token)
"""


def _interruption_statements(
    step: Step, lease_token: str | None, head: Head, token: str, now_ms: int | None
) -> list[Statement]:
    """Make an operation interrupted, with its event. No other statements do.

    With a `lease_token` its holder asks for it; without one its lease has lapsed.
    """
    event = journal.next_event(head, "operation-interrupted", {"operation": step.id})
    write: dict[str, Parameter] = {"token": token, "sequence": event.sequence, "now_ms": now_ms}
    lease = {"lease_token": lease_token, "prior_hash": head.hash}
    place = {"run_id": step.run_id, "operation_id": step.id}
    return [
        Statement(_INTERRUPT, **step.params, **write, **lease),
        Statement(_INTERRUPT_HEAD, **place, **write, hash=event.hash),
        journal.append_statement(step.run_id, token, event),
    ]


async def _mark_lapsed(
    db: Database,
    step: Step,
    back: ReadBack,
    then: list[Statement],
    token: str | None,
    now_ms: int | None,
) -> ReadBack:
    """Mark a lapsed operation interrupted, and then run `then`, which write `token`.

    One more round trip, because the event needs the head of the run's history; one more each
    time that another event gets there first.
    """
    for _ in range(limits.RACE_ATTEMPTS_MAX):
        if not (back.operation and back.operation.lapsed and back.require_ours(step)):
            break
        marked = mint_token()
        statements = _interruption_statements(step, None, back.run.head, marked, now_ms)
        back = await operations.verb(db, step, [*statements, *then], token or marked, now_ms)
    return back


# Decides: the owner asks, and the operation is new; or has this payload and is interrupted, or is
# running and to be preempted (`:preempt`). A lapsed one must be marked interrupted before.
_ACQUIRE = f"""
INSERT INTO fencepost_operations (run_id, operation_id, kind, payload_fingerprint, state,
  lease_token, lease_expires_at_ms, write_token, created_at_ms, updated_at_ms)
SELECT :run_id, :operation_id, 'lease', :payload_fingerprint, 'running',
  :token, COALESCE(:now_ms, {NOW_MS}) + :ttl_ms, :token,
  COALESCE(:now_ms, {NOW_MS}), COALESCE(:now_ms, {NOW_MS})
WHERE {_OURS}
ON CONFLICT (run_id, operation_id) DO UPDATE SET state = 'running',
  lease_token = excluded.lease_token, lease_expires_at_ms = excluded.lease_expires_at_ms,
  write_token = excluded.write_token, updated_at_ms = MAX(updated_at_ms, excluded.updated_at_ms)
WHERE payload_fingerprint = excluded.payload_fingerprint
  AND (state = 'interrupted'
    OR (state = 'running' AND :preempt = 1
      AND fencepost_operations.lease_expires_at_ms >= COALESCE(:now_ms, {NOW_MS})))
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
) -> tuple[StepOutcome, Operation | None]:
    """Lease an operation for `ttl_ms` milliseconds from now, or read its committed outcome.

    One round trip; more when a lapsed lease must be marked interrupted first. Wins: acquired (a
    new token); shared (the lease that holds, unchanged); replayed (the committed outcome).
    Losses, in order: fence_lost, operation_conflict (another payload), operation_already_running
    (with `exclusive`). Raises NotFound and Fenced.
    """
    token = mint_token()
    lease: dict[str, Parameter] = {"token": token, "ttl_ms": ttl_ms, "preempt": int(preempt)}
    lease |= {"payload_fingerprint": payload_fingerprint, "now_ms": now_ms}
    acquire = [Statement(_ACQUIRE, **step.params, **lease)]
    back = await operations.verb(db, step, acquire, token, now_ms)
    back = await _mark_lapsed(db, step, back, acquire, token, now_ms)
    operation = back.operation
    if operation is not None and operation.write_token == token:
        return StepOutcome.ACQUIRED, operation
    if not back.require_ours(step) or operation is None:
        return StepOutcome.FENCE_LOST, operation
    if operation.payload_fingerprint != payload_fingerprint:
        return StepOutcome.OPERATION_CONFLICT, operation
    if operation.state is OperationState.COMMITTED:
        return StepOutcome.REPLAYED, operation
    return (StepOutcome.OPERATION_ALREADY_RUNNING if exclusive else StepOutcome.SHARED), operation


# The condition of the verbs with a token: the owner asks, and the lease holds under that token.
_HELD = f"""run_id = :run_id AND operation_id = :operation_id AND {_OURS} AND state = 'running'
  AND lease_token = :lease_token AND lease_expires_at_ms >= COALESCE(:now_ms, {NOW_MS})"""

# Decides: the lease holds. Its end never moves backwards.
_RENEW = f"""
UPDATE fencepost_operations SET
  lease_expires_at_ms = MAX(lease_expires_at_ms, COALESCE(:now_ms, {NOW_MS}) + :ttl_ms),
  write_token = :token, updated_at_ms = MAX(updated_at_ms, COALESCE(:now_ms, {NOW_MS}))
WHERE {_HELD}
"""


async def renew(
    db: Database, step: Step, token: str, ttl_ms: int, *, now_ms: int | None = None
) -> tuple[StepOutcome, Operation | None]:
    """Let the lease hold for `ttl_ms` milliseconds from now; never shorter than before.

    One round trip. Losses, in order: fence_lost, lease_fenced. Raises NotFound and Fenced.
    """
    won = StepOutcome.RENEWED
    return await _with_token(db, step, _RENEW, won, now_ms, lease_token=token, ttl_ms=ttl_ms)


# Decides: the lease holds. Ends it.
_COMMIT = f"""
UPDATE fencepost_operations SET state = 'committed', outcome = :outcome, lease_expires_at_ms = NULL,
  write_token = :token, updated_at_ms = MAX(updated_at_ms, COALESCE(:now_ms, {NOW_MS}))
WHERE {_HELD}
"""


async def commit(
    db: Database, step: Step, token: str, outcome_json: str, *, now_ms: int | None = None
) -> tuple[StepOutcome, Operation | None]:
    """Store the outcome and end the lease. One round trip. The outcome cannot be changed later.

    A retry with the same token and outcome gets `committed` again. Losses, in order:
    fence_lost, lease_fenced. Raises NotFound and Fenced.
    """
    won = StepOutcome.COMMITTED
    outcome, found = await _with_token(
        db, step, _COMMIT, won, now_ms, lease_token=token, outcome=outcome_json
    )
    if (
        outcome is StepOutcome.LEASE_FENCED
        and found is not None
        and (found.lease_token, found.outcome_json) == (token, outcome_json)
    ):
        return StepOutcome.COMMITTED, found
    return outcome, found


async def interrupt(
    db: Database, step: Step, token: str, *, now_ms: int | None = None
) -> tuple[StepOutcome, Operation | None]:
    """End the lease without an outcome. The operation can be acquired again. Two round trips.

    Losses, in order: fence_lost, lease_fenced. Raises NotFound, Fenced, and Unavailable when
    other events got into the history first limits.RACE_ATTEMPTS_MAX times.
    """
    back = await operations.verb(db, step, [], "", now_ms)
    for _ in range(limits.RACE_ATTEMPTS_MAX):
        loss, found = _loss(step, back), back.operation
        if loss is not StepOutcome.LEASE_FENCED or found is None or not found.held_under(token):
            await _mark_lapsed(db, step, back, [], None, now_ms)
            return loss, found
        written = mint_token()
        statements = _interruption_statements(step, token, back.run.head, written, now_ms)
        back = await operations.verb(db, step, statements, written, now_ms)
        if back.operation is not None and back.operation.write_token == written:
            return StepOutcome.INTERRUPTED, back.operation
    raise contended()


async def assert_held(
    db: Database, step: Step, token: str, *, now_ms: int | None = None
) -> tuple[StepOutcome, Operation | None]:
    """Whether the lease holds when it is read. Writes nothing. One round trip.

    Losses, in order: fence_lost, lease_fenced. Raises NotFound and Fenced.
    """
    back = await operations.verb(db, step, [], "", now_ms)
    loss, found = _loss(step, back), back.operation
    if loss is StepOutcome.LEASE_FENCED and found is not None and found.held_under(token):
        return StepOutcome.ASSERTED, found
    return loss, found


async def _with_token(
    db: Database,
    step: Step,
    sql: str,
    won: StepOutcome,
    now_ms: int | None,
    **lease: Parameter,
) -> tuple[StepOutcome, Operation | None]:
    """A write under a lease. If the lease has lapsed, a second batch marks it interrupted."""
    written = mint_token()
    statements = [Statement(sql, **step.params, **lease, token=written, now_ms=now_ms)]
    back = await operations.verb(db, step, statements, written, now_ms)
    if back.operation is not None and back.operation.write_token == written:
        return won, back.operation
    back = await _mark_lapsed(db, step, back, [], None, now_ms)
    return _loss(step, back), back.operation


def _loss(step: Step, back: ReadBack) -> StepOutcome:
    """Why a verb with a token did not win. Raises Fenced, and NotFound to the run's owner."""
    if not back.require_ours(step):
        return StepOutcome.FENCE_LOST
    if back.operation is None:
        raise operations.not_found()
    return StepOutcome.LEASE_FENCED
