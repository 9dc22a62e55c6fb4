"""Transitions: the owner of a run checkpoints it, suspends it, ends it, or moves its machine."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

from fencepost import fence, journal, machines, requests, reservation
from fencepost.identifiers import Principal, mint_token
from fencepost.journal import Event, Head
from fencepost.machines import Move
from fencepost.ownership import HELD_BY, claim_ended_statement, fact_statement, holder
from fencepost.runs import TERMINAL, Outcome, Owner, Run, RunStatus, VerbResult
from fencepost.snapshot import VISIBLE, head_of, scope, verb, write_receipt
from fencepost.storage import races
from fencepost.storage.d1 import Database
from fencepost.storage.sql import NOW_MS, Parameter, Statement


class Transition(NamedTuple):
    """The transition that an owner asks for. `state_json` None keeps the stored state.

    `result_json` belongs to an end. `cancel_requested` is a guard: the transition happens only
    if a cancel request is absent, or present. `move` moves the machine that the run names; its
    code stays until the next move. With a `generation` the owner must hold the run in it.
    `head_hint` is where the history may end: it saves a read, and never loses.
    """

    owner: Owner
    to: RunStatus
    state_json: str | None = None
    result_json: str | None = None
    cancel_requested: Literal["absent", "present"] | None = None
    expected_head: Head | None = None
    move: Move | None = None
    generation: int | None = None
    head_hint: Head | None = None

    def params(self) -> dict[str, Parameter]:
        """Values that the UPDATE of the run row binds."""
        state, code = (None, None) if self.move is None else self.move
        return {
            **holder(self.owner, self.generation),
            "to": self.to,
            "cancel_requested": self.cancel_requested,
            "admitting": machines.admitting_json(self.to, self.move),
            "machine_state": state,
            "machine_code": code,
        }

    def event(self, head: Head) -> Event:
        """The event that records it, with the SHA-256 of state and result."""
        payload: dict[str, Any] = {"from": "running", "to": str(self.to)}
        if self.move is not None:
            payload["machine"] = self.move.as_json()
        for name, text in (("state", self.state_json), ("result", self.result_json)):
            if text is not None:
                payload[f"{name}_sha256"] = journal.sha256(text)
        return journal.next_event(head, "state-transitioned", payload)


# Decides: the run is running; this owner holds it; its history ends at the expected event; the
# guard on cancellation holds; the run's machine, if any, admits the move, and has ended if the run
# is to be completed; and the fence admits existing work.
_TRANSITION = f"""
UPDATE fencepost_runs SET
  status = :to,
  owner_host_id = CASE WHEN :to = 'running' THEN owner_host_id END,
  owner_pid = CASE WHEN :to = 'running' THEN owner_pid END,
  owner_nonce = CASE WHEN :to = 'running' THEN owner_nonce END,
  heartbeat_at_ms = CASE WHEN :to = 'running' THEN heartbeat_at_ms END,
  lease_expires_at_ms = CASE WHEN :to = 'running' THEN lease_expires_at_ms END,
  claim_host_id = CASE WHEN :to = 'running' THEN claim_host_id END,
  claim_pid = CASE WHEN :to = 'running' THEN claim_pid END,
  claim_nonce = CASE WHEN :to = 'running' THEN claim_nonce END,
  claimed_at_ms = CASE WHEN :to = 'running' THEN claimed_at_ms END,
  claim_heartbeat_at_ms = CASE WHEN :to = 'running' THEN claim_heartbeat_at_ms END,
  finished_at_ms = CASE WHEN :to IN ('completed', 'failed', 'cancelled')
    THEN MAX(COALESCE(:now_ms, {NOW_MS}), updated_at_ms) END,
  machine_state = COALESCE(:machine_state, machine_state),
  machine_code = CASE WHEN :machine_state IS NULL THEN machine_code ELSE :machine_code END,
  head_sequence = :sequence, head_hash = :hash, write_token = :token,
  updated_at_ms = MAX(COALESCE(:now_ms, {NOW_MS}), updated_at_ms)
WHERE run_id = :run_id AND {VISIBLE}
  AND status = 'running' AND {HELD_BY}
  AND head_sequence = :sequence - 1 AND head_hash = :prior_hash
  AND (:cancel_requested IS NULL
    OR (:cancel_requested = 'present') = (cancel_requested_at_ms IS NOT NULL))
  AND (machine IS NOT NULL OR :machine_state IS NULL)
  AND (machine IS NULL OR :admitting IS NULL
    OR machine || ' ' || machine_state IN (SELECT value FROM json_each(:admitting)))
  AND {fence.admits_existing_run_sql(":run_id")} AND {requests.UNUSED}
RETURNING run_id
"""

# Decides nothing: guarded by the token of the transition.
_WRITE_SNAPSHOT = """
UPDATE fencepost_snapshots SET state = COALESCE(:state, state), result = COALESCE(:result, result)
WHERE run_id = :run_id
  AND EXISTS (SELECT 1 FROM fencepost_runs WHERE run_id = :run_id AND write_token = :token)
"""


def transition_statements(
    db: Database,
    run_id: str,
    viewer: Principal | None,
    change: Transition,
    head: Head,
    token: str,
    now_ms: int | None,
) -> list[Statement]:
    """The whole transition, as one batch. The first statement returns a row if it won.

    None at GENESIS, where no run is: the batch then only reads.
    """
    if head is journal.GENESIS:
        return []
    event = change.event(head)
    write: dict[str, Parameter] = {"run_id": run_id, "token": token}
    asked = {**scope(viewer), **change.params(), "now_ms": now_ms, **requests.params(db)}
    statements = [
        Statement(_TRANSITION, **write, **event.params, **asked),
        journal.append_statement(run_id, token, event),
    ]
    if change.state_json is not None or change.result_json is not None:
        texts = {"state": change.state_json, "result": change.result_json}
        statements.append(Statement(_WRITE_SNAPSHOT, **write, **texts))
    if change.to is not RunStatus.RUNNING:
        statements.append(claim_ended_statement(run_id, token, "released"))
        statements.append(fact_statement(run_id, token, "released", change.owner, None))
    if change.to in TERMINAL:
        statements.append(reservation.settle_statement(run_id, token, change.to))
    return statements


async def transition(
    db: Database,
    run_id: str,
    viewer: Principal | None,
    change: Transition,
    now_ms: int | None = None,
) -> VerbResult:
    """Move a run that `change.owner` holds.

    One round trip with the head given or hinted, two without. Leaving `running` ends the
    ownership; an end settles the run's reservations. An end that this owner has written before, and
    that is the last event, is `transitioned` again. Losses, in order: fence_lost, guard_failed,
    head_changed (against an expected head), illegal_transition. Raises NotFound and Fenced, and
    Unavailable after a lost race without an expected head.
    """
    head = change.expected_head or change.head_hint or await head_of(db, run_id, viewer)

    async def attempt() -> VerbResult | None:
        nonlocal head
        result = await _attempt(db, run_id, viewer, change, head, now_ms)
        head = result.run.head
        raced = result.outcome is Outcome.HEAD_CHANGED and change.expected_head is None
        return None if raced else result

    result = await races.until_decided(db, attempt)
    if result.outcome is Outcome.FENCE_LOST and await _ended_so_before(db, result.run, change):
        db.won_token = result.run.write_token
        return VerbResult(Outcome.TRANSITIONED, result.run)
    return result


# Decides nothing: the last event of a run, if it is the end that this owner wrote. (A claim that
# ends in the same batch has a fact too, which has the time of the claim.)
_OWN_END = f"""
SELECT last.prior_hash FROM fencepost_events AS last
WHERE run_id = :run_id AND sequence = :sequence AND EXISTS (
  SELECT 1 FROM fencepost_ownership AS fact
  WHERE fact.run_id = :run_id AND fact.write_token = last.write_token AND type = 'released'
    AND granted_at_ms IS NULL AND {HELD_BY})
"""


async def _ended_so_before(db: Database, run: Run, change: Transition) -> bool:
    """Whether this very owner has ended the run so: the same event, at the same head."""
    if not run.ended or run.status is not change.to:
        return False
    who = {"run_id": run.run_id, **holder(change.owner, change.generation)}
    [last] = await db.read([Statement(_OWN_END, **who, sequence=run.head.sequence)])
    if not last.rows:
        return False
    before = Head(run.head.sequence - 1, last.rows[0]["prior_hash"])
    return change.event(before).head == run.head and change.expected_head in (None, before)


async def _attempt(
    db: Database,
    run_id: str,
    viewer: Principal | None,
    change: Transition,
    head: Head,
    now_ms: int | None,
) -> VerbResult:
    token = mint_token()
    back = await verb(
        db,
        transition_statements(db, run_id, viewer, change, head, token, now_ms),
        token,
        run_id,
        viewer,
        now_ms,
        receipt=write_receipt(run_id, token, head.sequence + 1),
        records=requests.of_run(db, run_id, token, Outcome.TRANSITIONED),
        could_win=lambda run: run.held_by(change.owner, change.generation) and run.head == head,
    )
    if back.won:
        return back.effect(Outcome.TRANSITIONED, change.owner)
    back.require_existing_run()
    return back.lost(_transition_loss(back.run, change))


def _transition_loss(run: Run, change: Transition) -> Outcome:
    if not run.held_by(change.owner, change.generation):
        return Outcome.FENCE_LOST
    requested = run.cancel_requested_at_ms is not None
    if change.cancel_requested and (change.cancel_requested == "present") != requested:
        return Outcome.GUARD_FAILED
    legal = machines.admits(run.machine, change.to, change.move)
    if not legal and change.expected_head in (None, run.head):
        return Outcome.ILLEGAL_TRANSITION
    return Outcome.HEAD_CHANGED
