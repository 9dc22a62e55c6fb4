"""Runs as they are stored: reading, listing, waiting for, and moving them along their life.

The row itself is defined in `runs`; who may own one, and for how long, is `ownership`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Literal

from fencepost import errors, fence, journal, limits, reservation
from fencepost.d1 import NOW_MS, Database, Result, Statement
from fencepost.fence import Fence
from fencepost.identifiers import Principal, mint_token
from fencepost.journal import Event, Head
from fencepost.runs import TERMINAL, Outcome, Owner, Run, RunStatus

# A principal sees its own runs; with NULL (scope `operate`) all of them.
VISIBLE = "(?2 IS NULL OR (principal_kind = ?2 AND principal_id = ?3))"

_READ = f"""
SELECT fencepost_runs.*, state, result, {NOW_MS} AS now_ms
FROM fencepost_runs LEFT JOIN fencepost_snapshots USING (run_id)
WHERE run_id = ?1 AND {VISIBLE}
"""


def read_statement(run_id: str, viewer: Principal | None) -> Statement:
    """One row or none, for `Run.from_row`. `viewer` None sees every principal's runs."""
    return Statement(_READ, (run_id, *scope(viewer)))


def scope(viewer: Principal | None) -> tuple[str | None, str | None]:
    return (None, None) if viewer is None else (viewer.kind, viewer.id)


# Shows the run of a key; the reservation itself says who may see it.
_READ_BY_KEY = f"""
SELECT run.*, content.state, content.result, {NOW_MS} AS now_ms
FROM fencepost_reservations JOIN fencepost_runs AS run USING (run_id)
  LEFT JOIN fencepost_snapshots AS content USING (run_id)
WHERE key = ?1
"""


def read_by_key(key: str) -> Statement:
    """The run that a key means, of whatever principal: one row or none, for `Run.from_row`."""
    return Statement(_READ_BY_KEY, (key,))


async def read(db: Database, run_id: str, viewer: Principal | None) -> Run:
    """The run with state and result. Raises NotFound, also for another principal's run."""
    try:
        [result] = await db.read([read_statement(run_id, viewer)])
    except errors.MissingTable:
        raise not_found() from None
    return found(result)


def found(result: Result) -> Run:
    """The run in what a read statement returned, or NotFound."""
    if not result.rows:
        raise not_found()
    return Run.from_row(result.rows[0])


def not_found() -> errors.NotFound:
    return errors.NotFound("There is no such run.", code="RUN_NOT_FOUND")


async def wait_for_end(db: Database, run_id: str, viewer: Principal | None, wait_s: float) -> Run:
    """The run once it ended, or as it is after `wait_s` seconds."""
    run = await read(db, run_id, viewer)
    async for _ in pauses(wait_s):
        if run.ended:
            break
        run = await read(db, run_id, viewer)
    return run


async def pauses(total_s: float) -> AsyncIterator[None]:
    """Ever longer pauses (limits.WAIT_PAUSES_S) that add up to `total_s` seconds."""
    step = 0
    while total_s > 0:
        pause_s = min(limits.WAIT_PAUSES_S[min(step, len(limits.WAIT_PAUSES_S) - 1)], total_s)
        await asyncio.sleep(pause_s)
        total_s -= pause_s
        step += 1
        yield


_PAGE = f"""
SELECT fencepost_runs.*, {NOW_MS} AS now_ms FROM fencepost_runs
WHERE run_id > ?1 ORDER BY run_id LIMIT ?2
"""
_PAGE_OF_PRINCIPAL = f"""
SELECT fencepost_runs.*, {NOW_MS} AS now_ms FROM fencepost_runs
WHERE run_id > ?1 AND principal_kind = ?3 AND principal_id = ?4 ORDER BY run_id LIMIT ?2
"""
_PAGE_BY_STATUS = f"""
SELECT fencepost_runs.*, {NOW_MS} AS now_ms FROM fencepost_runs
WHERE status = ?1 AND (principal_kind, principal_id, run_id) > (?2, ?3, ?4)
ORDER BY principal_kind, principal_id, run_id LIMIT ?5
"""
_PAGE_OF_PRINCIPAL_BY_STATUS = f"""
SELECT fencepost_runs.*, {NOW_MS} AS now_ms FROM fencepost_runs
WHERE status = ?1 AND principal_kind = ?2 AND principal_id = ?3 AND run_id > ?4
ORDER BY run_id LIMIT ?5
"""


async def page(
    db: Database,
    viewer: Principal | None,
    status: RunStatus | None,
    after: tuple[str, str, str] | None,
    limit: int,
) -> list[Run]:
    """Runs without state and result, oldest first; of all principals and one status: grouped
    by principal. `after` is (principal kind, principal id, run id) of the last run seen.

    A keyset page: runs that come or go meanwhile move no other run. Not a point in time.
    """
    kind, id, run_id = after or ("", "", "")
    if status is not None:
        own = (viewer.kind, viewer.id) if viewer else (kind, id)
        sql = _PAGE_OF_PRINCIPAL_BY_STATUS if viewer else _PAGE_BY_STATUS
        statement = Statement(sql, (status, *own, run_id, limit))
    elif viewer is not None:
        statement = Statement(_PAGE_OF_PRINCIPAL, (run_id, limit, *viewer))
    else:
        statement = Statement(_PAGE, (run_id, limit))
    try:
        [result] = await db.read([statement])
    except errors.MissingTable:
        return []
    return [Run.from_row(row) for row in result.rows]


# --- Moving a run along ------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Transition:
    """What an owner asks of its run. JSON texts of None leave what is stored.

    `result_json` belongs to an end. `cancel_requested` is a guard: the transition happens only
    if a cancel request is absent, or present.
    """

    owner: Owner
    to: RunStatus
    state_json: str | None = None
    result_json: str | None = None
    cancel_requested: Literal["absent", "present"] | None = None
    expected_head: Head | None = None

    def event(self, head: Head) -> Event:
        """The event that records it; state and result by digest."""
        payload = {"from": "running", "to": str(self.to)}
        for name, text in (("state", self.state_json), ("result", self.result_json)):
            if text is not None:
                payload[f"{name}_sha256"] = journal.sha256(text)
        return journal.next_event(head, "state-transitioned", payload)


# Decides: the run is running, this owner holds it, its history ends where the caller thinks,
# the guard on cancellation holds, and the fence admits existing work.
_TRANSITION = f"""
UPDATE fencepost_runs SET
  status = ?4,
  owner_host_id = CASE WHEN ?4 = 'running' THEN owner_host_id END,
  owner_pid = CASE WHEN ?4 = 'running' THEN owner_pid END,
  owner_nonce = CASE WHEN ?4 = 'running' THEN owner_nonce END,
  heartbeat_at_ms = CASE WHEN ?4 = 'running' THEN heartbeat_at_ms END,
  lease_expires_at_ms = CASE WHEN ?4 = 'running' THEN lease_expires_at_ms END,
  claim_host_id = CASE WHEN ?4 = 'running' THEN claim_host_id END,
  claim_pid = CASE WHEN ?4 = 'running' THEN claim_pid END,
  claim_nonce = CASE WHEN ?4 = 'running' THEN claim_nonce END,
  claimed_at_ms = CASE WHEN ?4 = 'running' THEN claimed_at_ms END,
  finished_at_ms = CASE WHEN ?4 IN ('completed', 'failed', 'cancelled')
    THEN MAX(COALESCE(?13, {NOW_MS}), updated_at_ms) END,
  head_sequence = ?10, head_hash = ?11, write_token = ?12,
  updated_at_ms = MAX(COALESCE(?13, {NOW_MS}), updated_at_ms)
WHERE run_id = ?1 AND {VISIBLE}
  AND status = 'running' AND owner_host_id = ?5 AND owner_pid = ?6 AND owner_nonce = ?7
  AND head_sequence = ?10 - 1 AND head_hash = ?8
  AND (?9 IS NULL OR (?9 = 'present') = (cancel_requested_at_ms IS NOT NULL))
  AND {fence.admits_existing_run_sql("?1")}
RETURNING run_id
"""

# Decides nothing: guarded by the token of the transition.
_WRITE_SNAPSHOT = """
UPDATE fencepost_snapshots SET state = COALESCE(?3, state), result = COALESCE(?4, result)
WHERE run_id = ?1
  AND EXISTS (SELECT 1 FROM fencepost_runs WHERE run_id = ?1 AND write_token = ?2)
"""

# The owner let go: guarded by the token of the write that left `running`.
_RELEASED = """
INSERT INTO fencepost_ownership (run_id, sequence, type, owner_host_id, owner_pid, owner_nonce,
  generation, granted_at_ms, write_token, at_ms)
SELECT run_id,
  1 + COALESCE((SELECT MAX(sequence) FROM fencepost_ownership WHERE run_id = ?1), 0),
  'released', ?3, ?4, ?5, generation, NULL, ?2, updated_at_ms
FROM fencepost_runs WHERE run_id = ?1 AND write_token = ?2
"""


def released_statement(run_id: str, token: str, owner: Owner) -> Statement:
    """The ownership fact of an owner that let go of its run."""
    return Statement(_RELEASED, (run_id, token, owner.host_id, owner.pid, owner.nonce))


def transition_statements(
    run_id: str,
    viewer: Principal | None,
    change: Transition,
    head: Head,
    token: str,
    now_ms: int | None,
) -> list[Statement]:
    """The transition and all that goes with it; the first returns one row if it won."""
    owner, event = change.owner, change.event(head)
    who = (owner.host_id, owner.pid, owner.nonce)
    values = (run_id, *scope(viewer), change.to, *who, head.hash, change.cancel_requested)
    statements = [
        Statement(_TRANSITION, (*values, event.sequence, event.hash, token, now_ms)),
        journal.append_statement(run_id, token, event),
    ]
    if change.state_json is not None or change.result_json is not None:
        texts = (change.state_json, change.result_json)
        statements.append(Statement(_WRITE_SNAPSHOT, (run_id, token, *texts)))
    if change.to is not RunStatus.RUNNING:
        statements.append(released_statement(run_id, token, owner))
    if change.to in TERMINAL:
        statements.append(reservation.settle_statement(run_id, token, change.to))
    return statements


async def transition(
    db: Database,
    run_id: str,
    viewer: Principal | None,
    change: Transition,
    now_ms: int | None = None,
) -> tuple[Outcome, Run]:
    """Move a run that `change.owner` holds. One round trip with an expected head, two without.

    Leaving `running` lets go of the ownership; an end settles the run's reservations. Losses,
    in order: fence_lost, guard_failed, head_changed. Raises NotFound and Fenced.
    """
    if change.expected_head is not None:
        return await _attempt(db, run_id, viewer, change, change.expected_head, now_ms)
    run = await read(db, run_id, viewer)
    for _ in range(limits.RACE_ATTEMPTS_MAX):
        outcome, run = await _attempt(db, run_id, viewer, change, run.head, now_ms)
        if outcome is not Outcome.HEAD_CHANGED:
            break
    return outcome, run


async def _attempt(
    db: Database,
    run_id: str,
    viewer: Principal | None,
    change: Transition,
    head: Head,
    now_ms: int | None,
) -> tuple[Outcome, Run]:
    statements = transition_statements(run_id, viewer, change, head, mint_token(), now_ms)
    won, run, gate = await verb(db, statements, run_id, viewer)
    if won:
        return Outcome.TRANSITIONED, run
    return _transition_loss(run, gate, change), run


def _transition_loss(run: Run, gate: Fence, change: Transition) -> Outcome:
    if not gate.admits_existing_run(run.run_id):
        raise gate.refusal()
    if run.owner != change.owner:
        return Outcome.FENCE_LOST
    requested = run.cancel_requested_at_ms is not None
    if change.cancel_requested and (change.cancel_requested == "present") != requested:
        return Outcome.GUARD_FAILED
    return Outcome.HEAD_CHANGED


async def verb(
    db: Database, statements: list[Statement], run_id: str, viewer: Principal | None
) -> tuple[bool, Run, Fence]:
    """Run a verb's statements and read run and fence back, in one batch.

    Whether the first statement returned a row, the run afterwards, and the fence. Raises
    NotFound when the run is not there, or is another principal's.
    """
    reads = [read_statement(run_id, viewer), fence.read_statement()]
    try:
        results = await db.batch([*statements, *reads])
    except errors.MissingTable:
        raise not_found() from None
    run = found(results[-2])
    return bool(results[0].rows), run, Fence.from_rows(results[-1].rows)
