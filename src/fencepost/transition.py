"""Moving a run along its life: the owner checkpoints it, suspends it, ends it."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from fencepost import fence, journal, limits, machines, reservation
from fencepost.fence import Fence
from fencepost.identifiers import Principal, mint_token
from fencepost.journal import Event, Head
from fencepost.machines import Move
from fencepost.ownership import fact_statement
from fencepost.runs import TERMINAL, Outcome, Owner, Run, RunStatus
from fencepost.snapshot import VISIBLE, contended, read, scope, verb
from fencepost.storage.d1 import Database
from fencepost.storage.sql import NOW_MS, Statement


class Transition(NamedTuple):
    """What an owner asks of its run. JSON texts of None leave what is stored.

    `result_json` belongs to an end. `cancel_requested` is a guard: the transition happens only
    if a cancel request is absent, or present. `move` moves the machine that the run names; its
    code stays until the next move.
    """

    owner: Owner
    to: RunStatus
    state_json: str | None = None
    result_json: str | None = None
    cancel_requested: Literal["absent", "present"] | None = None
    expected_head: Head | None = None
    move: Move | None = None

    def event(self, head: Head) -> Event:
        """The event that records it; state and result by digest."""
        payload: dict[str, Any] = {"from": "running", "to": str(self.to)}
        if self.move is not None:
            payload["machine"] = self.move.as_json()
        for name, text in (("state", self.state_json), ("result", self.result_json)):
            if text is not None:
                payload[f"{name}_sha256"] = journal.sha256(text)
        return journal.next_event(head, "state-transitioned", payload)


# Decides: the run is running, this owner holds it, its history ends where the caller thinks,
# the guard on cancellation holds, the run's machine (if it names one) admits the move, or has
# ended when the run is to be completed, and the fence admits existing work.
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
  claim_heartbeat_at_ms = CASE WHEN ?4 = 'running' THEN claim_heartbeat_at_ms END,
  finished_at_ms = CASE WHEN ?4 IN ('completed', 'failed', 'cancelled')
    THEN MAX(COALESCE(?13, {NOW_MS}), updated_at_ms) END,
  machine_state = COALESCE(?15, machine_state),
  machine_code = CASE WHEN ?15 IS NULL THEN machine_code ELSE ?16 END,
  head_sequence = ?10, head_hash = ?11, write_token = ?12,
  updated_at_ms = MAX(COALESCE(?13, {NOW_MS}), updated_at_ms)
WHERE run_id = ?1 AND {VISIBLE}
  AND status = 'running' AND owner_host_id = ?5 AND owner_pid = ?6 AND owner_nonce = ?7
  AND head_sequence = ?10 - 1 AND head_hash = ?8
  AND (?9 IS NULL OR (?9 = 'present') = (cancel_requested_at_ms IS NOT NULL))
  AND (machine IS NOT NULL OR ?15 IS NULL)
  AND (machine IS NULL OR ?14 IS NULL
    OR machine || ' ' || machine_state IN (SELECT value FROM json_each(?14)))
  AND {fence.admits_existing_run_sql("?1")}
RETURNING run_id
"""

# Decides nothing: guarded by the token of the transition.
_WRITE_SNAPSHOT = """
UPDATE fencepost_snapshots SET state = COALESCE(?3, state), result = COALESCE(?4, result)
WHERE run_id = ?1
  AND EXISTS (SELECT 1 FROM fencepost_runs WHERE run_id = ?1 AND write_token = ?2)
"""


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
    who = owner.columns
    values = (run_id, *scope(viewer), change.to, *who, head.hash, change.cancel_requested)
    move = (None, None) if change.move is None else (change.move.to, change.move.code)
    machine = (machines.admitting_json(change.to, change.move), *move)
    statements = [
        Statement(_TRANSITION, (*values, event.sequence, event.hash, token, now_ms, *machine)),
        journal.append_statement(run_id, token, event),
    ]
    if change.state_json is not None or change.result_json is not None:
        texts = (change.state_json, change.result_json)
        statements.append(Statement(_WRITE_SNAPSHOT, (run_id, token, *texts)))
    if change.to is not RunStatus.RUNNING:
        statements.append(fact_statement(run_id, token, "released", owner, None))
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
    in order: fence_lost, guard_failed, head_changed (against an expected head),
    illegal_transition. Raises NotFound and Fenced.
    """
    if change.expected_head is not None:
        return await _attempt(db, run_id, viewer, change, change.expected_head, now_ms)
    run = await read(db, run_id, viewer)
    for _ in range(limits.RACE_ATTEMPTS_MAX):
        outcome, run = await _attempt(db, run_id, viewer, change, run.head, now_ms)
        if outcome is not Outcome.HEAD_CHANGED:
            return outcome, run
    raise contended()


async def _attempt(
    db: Database,
    run_id: str,
    viewer: Principal | None,
    change: Transition,
    head: Head,
    now_ms: int | None,
) -> tuple[Outcome, Run]:
    token = mint_token()
    statements = transition_statements(run_id, viewer, change, head, token, now_ms)
    sequence = head.sequence + 1
    won, run, gate = await verb(db, statements, token, run_id, viewer, now_ms, sequence)
    if won:
        return Outcome.TRANSITIONED, run
    return _transition_loss(run, gate, change), run


def _transition_loss(run: Run, gate: Fence, change: Transition) -> Outcome:
    gate.require_existing_run(run.run_id)
    if run.owner != change.owner:
        return Outcome.FENCE_LOST
    requested = run.cancel_requested_at_ms is not None
    if change.cancel_requested and (change.cancel_requested == "present") != requested:
        return Outcome.GUARD_FAILED
    legal = machines.admits(run.machine, change.to, change.move)
    if not legal and change.expected_head in (None, run.head):
        return Outcome.ILLEGAL_TRANSITION
    return Outcome.HEAD_CHANGED
