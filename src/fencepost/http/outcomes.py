"""The replies and errors for the decisions of a start and the outcomes of verbs."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

from fencepost import errors, limits
from fencepost.decision import Decision, Seen
from fencepost.errors import Conflict, FencepostError
from fencepost.http import serialize
from fencepost.http.exchange import Reply
from fencepost.problems import PROBLEMS
from fencepost.reservation import Reservation
from fencepost.runs import LOSSES, Outcome, Run

if TYPE_CHECKING:
    from fencepost.http import representations as shown

# --- Starts ------------------------------------------------------------------------------


def start_reply(decision: Decision, seen: Seen) -> Reply[shown.StartAnswerJson]:
    """201 for a new start, 200 for a retry by the same owner or a replay; raises the refusals."""
    if decision is Decision.STARTED:
        reply = _start_body("started", seen)
        reply.status = 201 if seen.created else 200
        return reply
    if decision is Decision.REPLAYED:
        reply = _start_body("replayed", seen)
        reply.headers["Idempotent-Replayed"] = "true"
        return reply
    if decision is Decision.FENCED:
        raise seen.fence.refusal()
    if decision is Decision.RESERVED:
        raise errors.Unavailable("Other requests for this key came first. Nothing was written.")
    if decision is Decision.LOOKUP_CONFLICT:
        raise Conflict(
            "The names of this subject belong to different runs. Nothing was written.",
            code="RUN_LOOKUP_CONFLICT",
        )
    assert seen.reservation is not None
    if decision is Decision.PENDING:
        assert seen.run is not None
        raise _pending(seen.run)
    raise _REFUSALS[decision](seen.reservation)


def _start_body(
    outcome: Literal["started", "replayed"], seen: Seen
) -> Reply[shown.StartAnswerJson]:
    held, run = seen.reservation, seen.run
    assert held is not None
    assert run is not None
    body: shown.StartAnswerJson = {
        "outcome": outcome,
        "reservation": serialize.reservation_json(held),
        "run": serialize.run_json(run),
    }
    headers = {"Location": f"/v1/runs/{run.run_id}"}
    return Reply(200, body, headers, run_id=run.run_id)


def _owner_mismatch(held: Reservation) -> FencepostError:
    return Conflict(
        "This key belongs to another principal.",
        code="START_OWNER_MISMATCH",
    )


def _target_mismatch(held: Reservation) -> FencepostError:
    return Conflict(
        "This key was used for another target. Nothing was written.",
        code="START_TARGET_MISMATCH",
        target=serialize.target_json(held.target),
    )


def _input_mismatch(held: Reservation) -> FencepostError:
    return Conflict(
        "This key was used with another input or lineage. Nothing was written.",
        code="START_INPUT_MISMATCH",
    )


def _subject_mismatch(held: Reservation) -> FencepostError:
    return Conflict(
        "This key was used with another subject. Nothing was written.",
        code="OPERATION_ID_CONFLICT",
    )


def _already_settled(held: Reservation) -> FencepostError:
    return Conflict(
        "The run of this key has ended and was purged. It does not run again.",
        code="START_ALREADY_SETTLED",
        run_id=held.run_id,
    )


def _unresolvable(held: Reservation) -> FencepostError:
    return Conflict(
        "The run was started and may have executed. No owner holds a lease on it now. It does not "
        "start again by itself. Another process can own it, with "
        f"evidence that its owner is dead: POST /v1/runs/{held.run_id}/own. An operator can say "
        f"whether it executed: POST /v1/starts/{held.key}/resolve. Its state: GET "
        f"/v1/runs/{held.run_id}. Until then the key gets this answer.",
        code="START_UNRESOLVABLE",
        run_id=held.run_id,
        attempt=held.attempt,
    )


_REFUSALS: dict[Decision, Callable[[Reservation], FencepostError]] = {
    Decision.OWNER_MISMATCH: _owner_mismatch,
    Decision.TARGET_MISMATCH: _target_mismatch,
    Decision.INPUT_MISMATCH: _input_mismatch,
    Decision.SUBJECT_MISMATCH: _subject_mismatch,
    Decision.ALREADY_SETTLED: _already_settled,
    Decision.UNRESOLVABLE: _unresolvable,
}


def _pending(run: Run) -> Conflict:
    assert run.lease_expires_at_ms is not None
    left_s = math.ceil((run.lease_expires_at_ms - run.now_ms) / 1000)
    return Conflict(
        "The run of this key is being executed. Send the same key again later, or with "
        "Prefer: wait=N to be answered when it ends.",
        code="START_PENDING",
        retry_after_s=max(1, min(left_s, limits.PENDING_RETRY_AFTER_S)),
        run_id=run.run_id,
        pending_since_ms=run.started_at_ms,
    )


def settled_reply(outcome: Outcome, held: Reservation, run: Run | None) -> Reply[shown.SettledJson]:
    """The reply for a start that was released or resolved."""
    body: shown.SettledJson = {
        "outcome": outcome,
        "reservation": serialize.reservation_json(held),
        "run": None if run is None else serialize.run_json(run),
    }
    return Reply(200, body, run_id=held.run_id)


# --- Verbs on a run ----------------------------------------------------------------------


def verb_reply(outcome: Outcome, run: Run) -> Reply[shown.VerbAnswerJson]:
    if outcome in LOSSES:
        raise loss(outcome, run)
    body: shown.VerbAnswerJson = {"outcome": outcome, "run": serialize.run_json(run)}
    return Reply(200, body, run_id=run.run_id)


def loss(outcome: Outcome, run: Run | None, **members: Any) -> Conflict:
    """The 409 of a loss, with the outcome, and the run without state and result."""
    code = outcome.upper()
    return Conflict(
        f"{PROBLEMS[code].meaning} Nothing was written.",
        code=code,
        outcome=outcome,
        run=run and serialize.run_json(run, content=False),
        **members,
    )
