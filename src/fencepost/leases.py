"""Leases of operations: acquire, renew, commit, interrupt, assert.

Only the present owner of a run can do these to its operations. A lease holds up to and including
the millisecond of its end, and no longer than the generation of the run in which it was granted:
when the run is granted anew, or leaves `running`, the leases of its steps are over. A committed
outcome is kept as long as the run: the same operation with the same payload replays it, and is
never leased again.

After a lost reply `acquired` and `renewed` are answered only while that lease holds: they say what
the caller may do now. `committed` and `interrupted` stay true, whatever came after.

Not guaranteed: that a step is executed once. A process that shares a lease, preempts it, or
acquires it after it lapsed may execute the step while the former holder still does. Use leases
only for steps that may be repeated. The token protects the commit, not the work.
"""

from __future__ import annotations

import json
from typing import NamedTuple

from fencepost import errors, fence, journal, operations
from fencepost.identifiers import mint_token
from fencepost.journal import Head
from fencepost.operations import (
    WON,
    Operation,
    OperationState,
    ReadBack,
    Step,
    StepOutcome,
    StepWrite,
)
from fencepost.ownership import HELD_BY
from fencepost.runs import Beaten
from fencepost.snapshot import VISIBLE
from fencepost.storage import races
from fencepost.storage.d1 import Database
from fencepost.storage.sql import NOW_MS, Parameter, Statement


class StepResult(NamedTuple):
    """What became of a verb, and the operation afterwards.

    `beaten_by`: what took the run from a verb that lost it.
    """

    outcome: StepOutcome
    operation: Operation | None
    beaten_by: Beaten | None = None


# The condition of every write here: the run is running, whoever asks holds it, and the fence
# admits existing work.
_RUN_IS_OURS = f"""run_id = :run_id AND {VISIBLE} AND status = 'running' AND {HELD_BY}
  AND {fence.admits_existing_run_sql(":run_id")}"""
_OURS = f"EXISTS (SELECT 1 FROM fencepost_runs WHERE {_RUN_IS_OURS})"

# Beside it: the lease of a running operation holds. As `not Operation.lapsed`.
_HOLDS = f"""(fencepost_operations.lease_expires_at_ms >= COALESCE(:now_ms, {NOW_MS})
    AND fencepost_operations.generation
      = (SELECT generation FROM fencepost_runs WHERE run_id = :run_id))"""


# --- Interrupting ------------------------------------------------------------------------

# Decides: the owner asks; the lease is over or, with a `:lease_token`, holds under that token;
# and the run's history has no later event.
_INTERRUPT = f"""
UPDATE fencepost_operations SET state = 'interrupted', lease_expires_at_ms = NULL,
  write_token = :token, updated_at_ms = MAX(updated_at_ms, COALESCE(:now_ms, {NOW_MS}))
WHERE run_id = :run_id AND operation_id = :operation_id AND {_OURS} AND state = 'running'
  AND CASE WHEN :lease_token IS NULL THEN NOT {_HOLDS}
    ELSE lease_token = :lease_token AND {_HOLDS} END
  AND EXISTS (SELECT 1 FROM fencepost_runs
    WHERE run_id = :run_id AND head_sequence = :sequence - 1 AND head_hash = :prior_hash)
{WON}
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

    With a `lease_token` its holder asks for it; without one its lease is over.
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


async def _try_to_interrupt(
    db: Database, step: Step, lease_token: str | None, head: Head, now_ms: int | None
) -> ReadBack:
    """One attempt; it loses if another event follows `head`."""

    def could_win(back: ReadBack) -> bool:
        found = back.operation
        if found is None or back.run.head != head:
            return False
        return found.lapsed if lease_token is None else found.held_under(lease_token)

    token = mint_token()
    statements = _interruption_statements(step, lease_token, head, token, now_ms)
    receipt = operations.event_receipt(step, token, head.sequence + 1)
    return await operations.verb(db, step, StepWrite(statements, receipt, could_win), now_ms)


async def _lost(db: Database, step: Step, back: ReadBack, now_ms: int | None) -> StepResult:
    """Why a verb with a token lost; an operation that lapsed is marked interrupted first.

    That takes one more round trip, because the event needs the head of the run's history, and one
    more each time that another event gets there first. Raises Fenced; NotFound to the run's owner
    where there is no operation; Unavailable when the last attempt to mark it lost too.
    """

    async def attempt() -> StepResult | None:
        nonlocal back
        if _to_be_marked(step, back):
            back = await _try_to_interrupt(db, step, None, back.run.head, now_ms)
        return None if _to_be_marked(step, back) else _loss(step, back)

    return await races.until_decided(db, attempt)


def _loss(step: Step, back: ReadBack) -> StepResult:
    if not back.require_ours(step):
        return StepResult(StepOutcome.FENCE_LOST, back.operation, back.taken_by)
    if back.operation is None:
        raise operations.not_found()
    return StepResult(StepOutcome.LEASE_FENCED, back.operation)


def _to_be_marked(step: Step, back: ReadBack) -> bool:
    lapsed = back.operation is not None and back.operation.lapsed
    return lapsed and back.require_ours(step)


async def interrupt(
    db: Database, step: Step, token: str, *, now_ms: int | None = None
) -> StepResult:
    """End the lease without an outcome. The operation can be acquired again. Two round trips.

    Losses, in order: fence_lost, lease_fenced. Raises NotFound, Fenced, and Unavailable after a
    lost race.
    """
    back = await operations.verb(db, step, None, now_ms)

    async def attempt() -> StepResult | None:
        nonlocal back
        if not (back.require_ours(step) and back.holds(token)):
            return await _lost(db, step, back, now_ms)
        back = await _try_to_interrupt(db, step, token, back.run.head, now_ms)
        return StepResult(StepOutcome.INTERRUPTED, back.operation) if back.won else None

    return await races.until_decided(db, attempt)


# --- Acquiring ---------------------------------------------------------------------------

# Decides: the owner asks, and the operation is new; or has this payload and is interrupted, or is
# running under a lease that holds and is to be preempted (`:preempt`). A lapsed one must be marked
# interrupted before.
_ACQUIRE = f"""
INSERT INTO fencepost_operations (run_id, operation_id, kind, payload_fingerprint, state,
  lease_token, generation, lease_expires_at_ms, write_token, created_at_ms, updated_at_ms)
SELECT run_id, :operation_id, 'lease', :payload_fingerprint, 'running',
  :token, generation, COALESCE(:now_ms, {NOW_MS}) + :ttl_ms, :token,
  COALESCE(:now_ms, {NOW_MS}), COALESCE(:now_ms, {NOW_MS})
FROM fencepost_runs WHERE {_RUN_IS_OURS}
ON CONFLICT (run_id, operation_id) DO UPDATE SET state = 'running',
  lease_token = excluded.lease_token, generation = excluded.generation,
  lease_expires_at_ms = excluded.lease_expires_at_ms,
  write_token = excluded.write_token, updated_at_ms = MAX(updated_at_ms, excluded.updated_at_ms)
WHERE payload_fingerprint = excluded.payload_fingerprint
  AND (state = 'interrupted' OR (state = 'running' AND :preempt = 1 AND {_HOLDS}))
{WON}
"""


class _Wish(NamedTuple):
    """What an acquisition asks for."""

    payload_fingerprint: str
    ttl_ms: int
    preempt: bool
    exclusive: bool

    @property
    def params(self) -> dict[str, Parameter]:
        return {
            "payload_fingerprint": self.payload_fingerprint,
            "ttl_ms": self.ttl_ms,
            "preempt": int(self.preempt),
        }

    def settled(self, found: Operation | None) -> StepOutcome | None:
        """What it comes to without a new lease; None if one is to be had."""
        if found is None or found.lapsed:
            return None
        if found.payload_fingerprint != self.payload_fingerprint:
            return StepOutcome.OPERATION_CONFLICT
        if found.state is OperationState.COMMITTED:
            return StepOutcome.REPLAYED
        if self.preempt or found.state is OperationState.INTERRUPTED:
            return None
        return StepOutcome.OPERATION_ALREADY_RUNNING if self.exclusive else StepOutcome.SHARED


async def acquire(
    db: Database,
    step: Step,
    payload_fingerprint: str,
    ttl_ms: int,
    *,
    preempt: bool = False,
    exclusive: bool = False,
    now_ms: int | None = None,
) -> StepResult:
    """Lease an operation for `ttl_ms` milliseconds from now, or read its committed outcome.

    One round trip; more when a lapsed lease must be marked interrupted first. Wins: acquired (a
    new token); shared (the lease that holds, unchanged); replayed (the committed outcome).
    Losses, in order: fence_lost, operation_conflict (another payload), operation_already_running
    (with `exclusive`). Raises NotFound and Fenced, and Unavailable when others got in between
    each time.
    """

    wish = _Wish(payload_fingerprint, ttl_ms, preempt, exclusive)
    lapsed_at: Head | None = None

    async def attempt() -> StepResult | None:
        nonlocal lapsed_at
        token = mint_token()
        write = _acquisition(step, wish, token, lapsed_at, now_ms)
        back = await operations.verb(db, step, write, now_ms)
        found = back.operation
        if back.won_just_now or back.holds(token):
            return StepResult(StepOutcome.ACQUIRED, found)
        if not back.require_ours(step):
            return StepResult(StepOutcome.FENCE_LOST, found, back.taken_by)
        if outcome := wish.settled(found):
            return StepResult(outcome, found)
        lapsed_at = back.run.head if found is not None and found.lapsed else None
        return None

    return await races.until_decided(db, attempt)


def _acquisition(
    step: Step, wish: _Wish, token: str, lapsed_at: Head | None, now_ms: int | None
) -> StepWrite:
    """One attempt; with `lapsed_at`, the head of the history, it marks a lapsed lease first."""

    def could_win(back: ReadBack) -> bool:
        lapsed = back.operation is not None and back.operation.lapsed
        return wish.settled(back.operation) is None and (not lapsed or back.run.head == lapsed_at)

    acquire = Statement(_ACQUIRE, **step.params, **wish.params, token=token, now_ms=now_ms)
    marking = (
        _interruption_statements(step, None, lapsed_at, mint_token(), now_ms) if lapsed_at else []
    )
    statements = [*marking, acquire]
    return StepWrite(statements, operations.lease_receipt(step, token), could_win, len(marking))


# --- Holding -----------------------------------------------------------------------------

# The condition of the verbs with a token: the owner asks, and the lease holds under that token.
_HELD = f"""run_id = :run_id AND operation_id = :operation_id AND {_OURS} AND state = 'running'
  AND lease_token = :lease_token AND {_HOLDS}"""

# Decides: the lease holds. Its end never moves backwards.
_RENEW = f"""
UPDATE fencepost_operations SET
  lease_expires_at_ms = MAX(lease_expires_at_ms, COALESCE(:now_ms, {NOW_MS}) + :ttl_ms),
  write_token = :token, updated_at_ms = MAX(updated_at_ms, COALESCE(:now_ms, {NOW_MS}))
WHERE {_HELD}
{WON}
"""


async def renew(
    db: Database, step: Step, token: str, ttl_ms: int, *, now_ms: int | None = None
) -> StepResult:
    """Let the lease hold for `ttl_ms` milliseconds from now; never shorter than before.

    One round trip. Losses, in order: fence_lost, lease_fenced. Raises NotFound and Fenced.
    """
    back = await _under_lease(db, step, _RENEW, token, now_ms, ttl_ms=ttl_ms)
    if back.won_just_now or (back.won and back.holds(token)):
        return StepResult(StepOutcome.RENEWED, back.operation)
    return await _lost(db, step, back, now_ms)


async def assert_held(
    db: Database, step: Step, token: str, *, now_ms: int | None = None
) -> StepResult:
    """Whether the lease holds when it is read. Writes nothing. One round trip.

    Losses, in order: fence_lost, lease_fenced. Raises NotFound and Fenced.
    """
    back = await operations.verb(db, step, None, now_ms)
    if back.require_ours(step) and back.holds(token):
        return StepResult(StepOutcome.ASSERTED, back.operation)
    return _loss(step, back)


# Decides: the lease holds. Ends it.
_COMMIT = f"""
UPDATE fencepost_operations SET state = 'committed', outcome = :outcome, lease_expires_at_ms = NULL,
  write_token = :token, updated_at_ms = MAX(updated_at_ms, COALESCE(:now_ms, {NOW_MS}))
WHERE {_HELD}
{WON}
"""


async def commit(
    db: Database, step: Step, token: str, outcome_json: str, *, now_ms: int | None = None
) -> StepResult:
    """Store the outcome and end the lease. One round trip. The outcome cannot be changed later.

    A retry with the same token and an outcome that is equal as JSON gets `committed` again.
    Losses, in order: fence_lost, lease_fenced. Raises NotFound and Fenced.
    """
    back = await _under_lease(db, step, _COMMIT, token, now_ms, outcome=outcome_json)
    if back.won:
        return StepResult(StepOutcome.COMMITTED, back.operation)
    result = await _lost(db, step, back, now_ms)
    found = result.operation
    if (
        result.outcome is StepOutcome.LEASE_FENCED
        and found is not None
        and found.lease_token == token
        and _equal_as_json(found.outcome_json, outcome_json)
    ):
        return StepResult(StepOutcome.COMMITTED, found)
    return result


def _equal_as_json(stored: str | None, text: str) -> bool:
    """Whether an outcome, if one is stored, is the JSON value of a text."""
    if stored is None or stored == text:
        return stored == text
    try:
        value = json.loads(stored)
    except (ValueError, RecursionError):
        raise errors.RowCorrupt(operations.TABLE, "outcome is JSON") from None
    return journal.canonical(value) == journal.canonical(json.loads(text))


async def _under_lease(
    db: Database, step: Step, sql: str, lease_token: str, now_ms: int | None, **more: Parameter
) -> ReadBack:
    """A write under a lease."""
    token = mint_token()
    lease: dict[str, Parameter] = {"lease_token": lease_token, "now_ms": now_ms, **more}
    statements = [Statement(sql, **step.params, **lease, token=token)]
    receipt = operations.write_receipt(step, token)
    write = StepWrite(statements, receipt, lambda back: back.holds(lease_token))
    return await operations.verb(db, step, write, now_ms)
