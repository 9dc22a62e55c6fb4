"""Leases of operations: acquire, renew, commit, conclude, interrupt, assert.

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
from collections.abc import Callable
from typing import NamedTuple

from fencepost import errors, fence, journal, operations, requests
from fencepost.identifiers import mint_token
from fencepost.journal import Head
from fencepost.operations import (
    WON,
    Cause,
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
  cause = CASE WHEN :lease_token IS NULL THEN 'lapse' ELSE 'holder' END,
  write_token = :token, updated_at_ms = MAX(updated_at_ms, COALESCE(:now_ms, {NOW_MS}))
WHERE run_id = :run_id AND operation_id = :operation_id AND {_OURS} AND state = 'running'
  AND CASE WHEN :lease_token IS NULL THEN NOT {_HOLDS}
    ELSE lease_token = :lease_token AND {_HOLDS} END
  AND EXISTS (SELECT 1 FROM fencepost_runs
    WHERE run_id = :run_id AND head_sequence = :sequence - 1 AND head_hash = :prior_hash)
  AND {requests.UNUSED}
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
    db: Database, step: Step, lease_token: str | None, head: Head, token: str, now_ms: int | None
) -> list[Statement]:
    """Make an operation interrupted, with its event. No other statements do.

    With a `lease_token` its holder asks for it; without one its lease is over.
    """
    cause = Cause.LAPSE if lease_token is None else Cause.HOLDER
    payload = {"operation": step.id, "cause": str(cause)}
    event = journal.next_event(head, "operation-interrupted", payload)
    write: dict[str, Parameter] = {"token": token, "sequence": event.sequence, "now_ms": now_ms}
    lease = {"lease_token": lease_token, "prior_hash": head.hash}
    place = {"run_id": step.run_id, "operation_id": step.id}
    return [
        Statement(_INTERRUPT, **step.params, **write, **lease, **requests.params(db)),
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
    statements = _interruption_statements(db, step, lease_token, head, token, now_ms)
    receipt = operations.event_receipt(step, token, head.sequence + 1)
    asked = lease_token is not None
    records = _records(db, step, token, StepOutcome.INTERRUPTED) if asked else []
    write = StepWrite(statements, receipt, could_win, token=token, records=records)
    return await operations.verb(db, step, write, now_ms)


def _records(db: Database, step: Step, token: str, won: StepOutcome) -> list[Statement]:
    return requests.of_step(db, step.run_id, step.id, token, won)


async def _lost(
    db: Database, step: Step, back: ReadBack, won: StepOutcome, now_ms: int | None
) -> StepResult:
    """Why a verb with a token lost; an operation that lapsed is marked interrupted first. `won` if
    the same keyed request has had its effect meanwhile.

    That takes one more round trip, because the event needs the head of the run's history, and one
    more each time that another event gets there first. Raises Fenced; NotFound to the run's owner
    where there is no operation; Unavailable when the last attempt to mark it lost too.
    """

    async def attempt() -> StepResult | None:
        nonlocal back
        if _to_be_marked(step, back):
            back = await _try_to_interrupt(db, step, None, back.run.head, now_ms)
            if db.replay:
                return StepResult(won, back.operation)
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
        if back.won:
            return StepResult(StepOutcome.INTERRUPTED, back.operation)
        if not (back.require_ours(step) and back.holds(token)):
            return await _lost(db, step, back, StepOutcome.INTERRUPTED, now_ms)
        back = await _try_to_interrupt(db, step, token, back.run.head, now_ms)
        return StepResult(StepOutcome.INTERRUPTED, back.operation) if back.won else None

    return await races.until_decided(db, attempt)


# --- Acquiring ---------------------------------------------------------------------------

# Decides: the owner asks, and the operation is new; or has this payload and is interrupted, or is
# running under a lease that holds and is to be preempted (`:preempt`). A lapsed one must be marked
# interrupted before, and is taken only if the caller says so (`:take_lapsed`).
_ACQUIRE = f"""
INSERT INTO fencepost_operations (run_id, operation_id, kind, payload_fingerprint, state,
  lease_token, generation, lease_expires_at_ms, write_token, created_at_ms, updated_at_ms)
SELECT run_id, :operation_id, 'lease', :payload_fingerprint, 'running',
  :token, generation, COALESCE(:now_ms, {NOW_MS}) + :ttl_ms, :token,
  COALESCE(:now_ms, {NOW_MS}), COALESCE(:now_ms, {NOW_MS})
FROM fencepost_runs WHERE {_RUN_IS_OURS} AND {requests.UNUSED}
ON CONFLICT (run_id, operation_id) DO UPDATE SET state = 'running', cause = NULL,
  lease_token = excluded.lease_token, generation = excluded.generation,
  lease_expires_at_ms = excluded.lease_expires_at_ms,
  write_token = excluded.write_token, updated_at_ms = MAX(updated_at_ms, excluded.updated_at_ms)
WHERE payload_fingerprint = excluded.payload_fingerprint
  AND ((state = 'interrupted' AND (:take_lapsed = 1 OR cause <> 'lapse'))
    OR (state = 'running' AND :preempt = 1 AND {_HOLDS}))
{WON}
"""


class _Wish(NamedTuple):
    """What an acquisition asks for."""

    payload_fingerprint: str
    ttl_ms: int
    preempt: bool
    exclusive: bool
    take_lapsed: bool

    @property
    def params(self) -> dict[str, Parameter]:
        return {
            "payload_fingerprint": self.payload_fingerprint,
            "ttl_ms": self.ttl_ms,
            "preempt": int(self.preempt),
            "take_lapsed": int(self.take_lapsed),
        }

    def settled(self, found: Operation | None) -> StepOutcome | None:
        """What it comes to without a new lease; None if one is to be had."""
        if found is None:
            return None
        to_be_marked = found.lapsed and self.take_lapsed
        if found.payload_fingerprint != self.payload_fingerprint and not to_be_marked:
            return StepOutcome.OPERATION_CONFLICT
        if found.unresolved:
            return None if self.take_lapsed else StepOutcome.STEP_UNRESOLVED
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
    take_lapsed: bool = True,
    now_ms: int | None = None,
) -> StepResult:
    """Lease an operation for `ttl_ms` milliseconds from now, or read its committed outcome.

    One round trip; more when a lapsed lease must be marked interrupted first. Wins: acquired (a
    new token); shared (the lease that holds, unchanged); replayed (the committed outcome).
    Losses, in order: fence_lost, operation_conflict (another payload), step_unresolved (without
    `take_lapsed`, if the last lease lapsed), operation_already_running (with `exclusive`);
    overtaken, for a keyed request whose lease is over. Raises NotFound, Fenced and Unavailable.
    """
    wish = _Wish(payload_fingerprint, ttl_ms, preempt, exclusive, take_lapsed)
    lapsed_at: Head | None = None

    async def attempt() -> StepResult | None:
        nonlocal lapsed_at
        token = mint_token()
        write = _acquisition(db, step, wish, token, lapsed_at, now_ms)
        back = await operations.verb(db, step, write, now_ms)
        found = back.operation
        if db.request and back.won and not back.won_just_now:
            return _acquired_before(step, back, token)
        if back.won_just_now or back.holds(token):
            return StepResult(StepOutcome.ACQUIRED, found)
        if not back.require_ours(step):
            return StepResult(StepOutcome.FENCE_LOST, found, back.taken_by)
        if outcome := wish.settled(found):
            return StepResult(outcome, found)
        lapsed_at = back.run.head if found is not None and found.lapsed else None
        return None

    return await races.until_decided(db, attempt)


def _acquired_before(step: Step, back: ReadBack, token: str) -> StepResult:
    """A keyed request is told what it acquired only while that very lease holds."""
    holds = back.holds(back.rows[0].get("lease_token", token)) and back.is_ours(step)
    outcome = StepOutcome.ACQUIRED if holds else StepOutcome.OVERTAKEN
    return StepResult(outcome, back.operation, back.taken_by)


def _acquisition(
    db: Database,
    step: Step,
    wish: _Wish,
    token: str,
    lapsed_at: Head | None,
    now_ms: int | None,
) -> StepWrite:
    """One attempt; with `lapsed_at`, the head of the history, it marks a lapsed lease first."""

    def could_win(back: ReadBack) -> bool:
        lapsed = back.operation is not None and back.operation.lapsed
        return wish.settled(back.operation) is None and (not lapsed or back.run.head == lapsed_at)

    asked = {**step.params, **wish.params, **requests.params(db)}
    acquire = Statement(_ACQUIRE, **asked, token=token, now_ms=now_ms)
    marking = []
    if lapsed_at is not None:
        marking = _interruption_statements(db, step, None, lapsed_at, mint_token(), now_ms)
    receipt = operations.lease_receipt(step, token)
    records = _records(db, step, token, StepOutcome.ACQUIRED)
    return StepWrite([*marking, acquire], receipt, could_win, len(marking), token, records)


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
    asked: dict[str, Parameter] = {"lease_token": token, "now_ms": now_ms, "ttl_ms": ttl_ms}
    how = (_RENEW, StepOutcome.RENEWED)
    back = await _write(db, step, how, asked, lambda back: back.holds(token), now_ms)
    if back.won_just_now or (back.won and back.holds(token)):
        return StepResult(StepOutcome.RENEWED, back.operation)
    return await _lost(db, step, back, StepOutcome.RENEWED, now_ms)


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
WHERE {_HELD} AND {requests.UNUSED}
{WON}
"""


async def commit(
    db: Database, step: Step, token: str, outcome_json: str, *, now_ms: int | None = None
) -> StepResult:
    """Store the outcome and end the lease. One round trip. The outcome cannot be changed later.

    A retry with the same token and an outcome that is equal as JSON gets `committed` again.
    Losses, in order: fence_lost, lease_fenced. Raises NotFound and Fenced.
    """
    return await _store(db, step, (_COMMIT, StepOutcome.COMMITTED), token, outcome_json, now_ms)


# Decides: the owner asks, and this was the last lease: it is over, and its holder did not say what
# became of the step.
_CONCLUDE = f"""
UPDATE fencepost_operations SET state = 'committed', outcome = :outcome,
  lease_expires_at_ms = NULL, cause = NULL,
  generation = (SELECT generation FROM fencepost_runs WHERE run_id = :run_id),
  write_token = :token, updated_at_ms = MAX(updated_at_ms, COALESCE(:now_ms, {NOW_MS}))
WHERE run_id = :run_id AND operation_id = :operation_id AND {_OURS} AND lease_token = :lease_token
  AND ((state = 'running' AND NOT {_HOLDS}) OR cause = 'lapse') AND {requests.UNUSED}
{WON}
"""


async def conclude(
    db: Database, step: Step, token: str, outcome_json: str, *, now_ms: int | None = None
) -> StepResult:
    """Store the outcome of a step whose lease lapsed, by the token of that lease. One round trip.

    For an owner that has found out what became of it. A retry with an equal outcome gets
    `concluded` again. Losses, in order: fence_lost, lease_fenced (the lease holds, is not the last
    one, or was ended by its holder). Raises NotFound and Fenced.
    """
    return await _store(db, step, (_CONCLUDE, StepOutcome.CONCLUDED), token, outcome_json, now_ms)


async def _store(
    db: Database,
    step: Step,
    how: tuple[str, StepOutcome],
    lease_token: str,
    outcome_json: str,
    now_ms: int | None,
) -> StepResult:
    """Store an outcome by `how`: the statement that decides, and its win."""
    sql, won = how
    concludes = won is StepOutcome.CONCLUDED

    def could_win(back: ReadBack) -> bool:
        found = back.operation
        if concludes:
            return found is not None and found.unresolved and found.lease_token == lease_token
        return back.holds(lease_token)

    asked: dict[str, Parameter] = {"lease_token": lease_token, "now_ms": now_ms}
    asked["outcome"] = outcome_json
    back = await _write(db, step, (sql, won), asked, could_win, now_ms)
    if back.won:
        return StepResult(won, back.operation)
    result = _loss(step, back) if concludes else await _lost(db, step, back, won, now_ms)
    found = result.operation
    same = found is not None and found.lease_token == lease_token
    if result.outcome is StepOutcome.LEASE_FENCED and same:
        assert found is not None
        if _equal_as_json(found.outcome_json, outcome_json):
            return StepResult(won, found)
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


async def _write(
    db: Database,
    step: Step,
    how: tuple[str, StepOutcome],
    asked: dict[str, Parameter],
    could_win: Callable[[ReadBack], bool],
    now_ms: int | None,
) -> ReadBack:
    """One conditional UPDATE of an operation, recorded if it was asked with a key."""
    sql, won = how
    token = mint_token()
    keyed = requests.params(db) if won is not StepOutcome.RENEWED else {}
    statements = [Statement(sql, **step.params, **asked, **keyed, token=token)]
    records = _records(db, step, token, won) if keyed else []
    receipt = operations.write_receipt(step, token)
    write = StepWrite(statements, receipt, could_win, token=token, records=records)
    return await operations.verb(db, step, write, now_ms)
