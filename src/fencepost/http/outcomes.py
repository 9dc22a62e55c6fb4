"""The replies and errors for the decisions of a start and the outcomes of verbs."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

from fencepost import limits, retention, settings
from fencepost.decision import Attempt, Decision, Exit, Seen, exits
from fencepost.errors import Conflict, FencepostError
from fencepost.http import serialize
from fencepost.http.exchange import Reply, Request
from fencepost.problems import PROBLEMS, Retry
from fencepost.reservation import Reservation
from fencepost.runs import LOSSES, Beaten, Grant, Outcome, Run, VerbResult

if TYPE_CHECKING:
    from fencepost.http import representations as shown

# --- Starts ------------------------------------------------------------------------------


def start_reply(
    request: Request, attempt: Attempt, decision: Decision, seen: Seen
) -> Reply[shown.StartAnswerJson]:
    """201 for a new start, 200 for a retry by the same owner or a replay; raises the refusals."""
    if decision is Decision.STARTED:
        reply = _start_body(request, "started", seen)
        reply.status = 201 if seen.created else 200
        return reply
    if decision is Decision.REPLAYED:
        reply = _start_body(request, "replayed", seen)
        reply.headers["Idempotent-Replayed"] = "true"
        return reply
    if decision is Decision.FENCED:
        raise _fenced(attempt, seen)
    if decision is Decision.LOOKUP_CONFLICT:
        raise Conflict(
            "The names of this subject belong to different runs. Nothing was written.",
            code="RUN_LOOKUP_CONFLICT",
        )
    assert seen.reservation is not None
    if decision is Decision.PENDING:
        raise _pending(seen.reservation, seen.run)
    if decision is Decision.UNRESOLVABLE:
        raise _unresolvable(seen.reservation, exits(attempt, seen))
    if decision is Decision.ALREADY_SETTLED:
        raise _already_settled(request, seen.reservation)
    raise _REFUSALS[decision](seen.reservation)


def _fenced(attempt: Attempt, seen: Seen) -> FencepostError:
    refusal = seen.gate.refusal()
    if seen.reservation is None and seen.gate.admits_start(attempt.key, attempt.principal):
        refusal.detail = (
            "The subject of this start has a run already. The proof of a deployment makes a run of "
            "its own: send this key without a subject, or with a new one. Nothing was written."
        )
    return refusal


def _kept_ms(request: Request) -> tuple[int, int] | None:
    """How long a run is kept after its end, and a key after its run; None if for good."""
    try:
        kept = settings.retention(request.setting)
    except ValueError:  # then nothing is purged
        return None
    return kept.run_days * retention.DAY_MS, max(kept.key_days, kept.run_days) * retention.DAY_MS


def _replays(request: Request, run: Run) -> shown.ReplaysJson | None:
    """How long the key replays; None while the run has not ended, or if nothing is ever purged."""
    if run.finished_at_ms is None or (kept := _kept_ms(request)) is None:
        return None
    run_until_ms = run.finished_at_ms + kept[0]
    return {"run_until_ms": run_until_ms, "key_until_ms": run_until_ms + kept[1]}


def _start_body(
    request: Request, outcome: Literal["started", "replayed"], seen: Seen
) -> Reply[shown.StartAnswerJson]:
    held, run = seen.reservation, seen.run
    assert held is not None
    assert run is not None
    body: shown.StartAnswerJson = {
        "outcome": outcome,
        "reservation": serialize.reservation_json(held),
        "run": serialize.run_json(run),
        "replays": _replays(request, run),
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
        code="START_SUBJECT_MISMATCH",
    )


def _already_settled(request: Request, held: Reservation) -> FencepostError:
    kept = _kept_ms(request)
    return Conflict(
        "The run of this key has ended and was purged. The key starts nothing until it is purged, "
        "too: `key_until_ms` at the earliest.",
        code="START_ALREADY_SETTLED",
        run_id=held.run_id,
        key_until_ms=None if kept is None else held.updated_at_ms + kept[1],
    )


# How each exit is described, and where it is.
_EXITS = {
    Exit.OWN: (
        "A process may own it, with evidence that its owner is dead if it has another one",
        "runs/{run}/own",
    ),
    Exit.HEARTBEAT: (
        "Its owner, the caller, may go on by a heartbeat in its generation",
        "runs/{run}/heartbeat",
    ),
    Exit.RECOVER: (
        "A process may remove the claim that stands on it, with evidence that the claimant is dead",
        "runs/{run}/recover",
    ),
    Exit.ABANDON: ("Its claimant, the caller, may remove its claim", "runs/{run}/abandon"),
    Exit.RESOLVE: ("An operator may say what happened", "starts/{key}/resolve"),
}


def _unresolvable(held: Reservation, open_exits: list[Exit]) -> FencepostError:
    """Names the exits that work now, and no others."""
    paths = {
        way: "/v1/" + _EXITS[way][1].format(run=held.run_id, key=held.key) for way in open_exits
    }
    ways = " ".join(f"{_EXITS[way][0]}: POST {path}." for way, path in paths.items())
    return Conflict(
        "The run was started and may have executed, and nobody is executing it now. It is not run "
        f"again by itself. {ways} The start as it is: GET /v1/starts/{held.key}. The same key "
        "answers again once the run is owned or settled.",
        code="START_UNRESOLVABLE",
        retry_after_s=limits.PENDING_RETRY_AFTER_S,
        run_id=held.run_id,
        attempt=held.attempt,
        exits=[{"verb": way, "path": path} for way, path in paths.items()],
    )


_REFUSALS: dict[Decision, Callable[[Reservation], FencepostError]] = {
    Decision.OWNER_MISMATCH: _owner_mismatch,
    Decision.TARGET_MISMATCH: _target_mismatch,
    Decision.INPUT_MISMATCH: _input_mismatch,
    Decision.SUBJECT_MISMATCH: _subject_mismatch,
}


def _pending(held: Reservation, run: Run | None) -> Conflict:
    """Somebody executes the run, or is about to; or it was released while the request waited."""
    claim = run and run.claim
    return Conflict(
        "The run of this key is being executed, or was until now. Send the same key again later, "
        "or with Prefer: wait=N to be answered when it ends.",
        code="START_PENDING",
        retry_after_s=_retry_after_s(run),
        run_id=held.run_id,
        pending_since_ms=claim.claimed_at_ms if claim else run and run.started_at_ms,
    )


def settled_reply(
    request: Request, outcome: Outcome, held: Reservation, run: Run | None
) -> Reply[shown.SettledJson]:
    """The reply for a start that was released or resolved."""
    body: shown.SettledJson = {
        "outcome": outcome,
        "reservation": serialize.reservation_json(held),
        "run": None if run is None else run_json(request, run),
    }
    return Reply(200, body, run_id=held.run_id)


# --- Verbs on a run ----------------------------------------------------------------------


def run_json(
    request: Request, run: Run, *, as_owner: bool = True
) -> shown.RunJson | shown.RunSummaryJson:
    """The run that a verb answers with.

    State and result go out with scope `read`, and to the owner whose verb won (`as_owner`), while
    it holds the run or was the last to write to it. A replay shows the run as it is now, which
    another process may hold: no owner's nonce but the caller's.
    """
    db, owner = request.db, request.owner
    wrote = db.won_token if db.replay is None else db.replay.write_token
    mine = owner is not None and as_owner and (run.owner == owner or run.write_token == wrote)
    shape = (
        serialize.run_json(run)
        if mine or "read" in request.scopes
        else serialize.run_json(run, content=False)
    )
    return shape if db.replay is None else serialize.without_nonces(shape, owner)


# Wins of processes that do not own the run by them.
_CLAIMANTS = frozenset({Outcome.CLAIMED, Outcome.STOLEN, Outcome.ABANDONED, Outcome.RECOVERED})


def verb_reply(request: Request, result: VerbResult) -> Reply[shown.VerbAnswerJson]:
    """A verb that won. Raises the losses."""
    if result.outcome in LOSSES:
        raise loss(request, result)
    run = result.run
    shape = run_json(request, run, as_owner=result.outcome not in _CLAIMANTS)
    body: shown.VerbAnswerJson = {"outcome": result.outcome, "run": shape}
    if result.granted is not None:
        body["granted"] = _granted_json(result.granted)
    if result.beaten_by is not None:
        body["beaten_by"] = _beaten_json(result.beaten_by)
    return Reply(200, body, run_id=run.run_id)


def _granted_json(granted: Grant) -> shown.GrantedJson:
    return {"generation": granted.generation, "claimed_at_ms": granted.claimed_at_ms}


def loss(request: Request, result: VerbResult, **members: Any) -> Conflict:
    """A verb that lost: 409, the outcome named, the run without state and result, what beat it."""
    if result.beaten_by is not None:
        members["beaten_by"] = _beaten_json(result.beaten_by)
    if result.granted is not None:
        members["granted"] = _granted_json(result.granted)
    written = "The claim was removed." if result.claim_cleared else None
    return _conflict(request, result.outcome, result.run, written, members)


def start_loss(request: Request, outcome: Outcome, run: Run | None, **members: Any) -> Conflict:
    """A release or a resolution that lost."""
    return _conflict(request, outcome, run, None, members)


# Losses of a verb that had an effect first: the grant that is over.
_HAD_WON = {Outcome.OVERTAKEN, Outcome.LEASE_LAPSED}


def _conflict(
    request: Request,
    outcome: Outcome,
    run: Run | None,
    written: str | None,
    members: dict[str, Any],
) -> Conflict:
    code = outcome.upper()
    shape = None if run is None else serialize.run_json(run, content=False)
    if shape is not None and request.db.replay:
        shape = serialize.without_nonces(shape, request.owner)
    said = written or ("" if outcome in _HAD_WON else "Nothing was written.")
    return Conflict(
        f"{PROBLEMS[code].meaning} {said}".rstrip(),
        code=code,
        retry_after_s=_retry_after_s(run) if PROBLEMS[code].retry is Retry.SAME_KEY else None,
        outcome=outcome,
        run=shape,
        **members,
    )


def _retry_after_s(run: Run | None) -> int:
    """Seconds until what is in the way may be over: a lease, or a claim."""
    claim = run and run.claim
    ends = [run.lease_expires_at_ms] if run and run.lease_expires_at_ms is not None else []
    ends += [claim.claimed_at_ms + run.lease_ms] if run and claim else []
    return seconds_until(max(ends), run.now_ms) if run and ends else 1


def seconds_until(ends_at_ms: int, now_ms: int) -> int:
    """For `Retry-After`: whole seconds until then, from 1 to limits.PENDING_RETRY_AFTER_S."""
    return max(1, min(math.ceil((ends_at_ms - now_ms) / 1000), limits.PENDING_RETRY_AFTER_S))


def _beaten_json(beaten: Beaten) -> shown.BeatenJson:
    return {
        "type": beaten.type,
        "generation": beaten.generation,
        "sequence": beaten.sequence,
        "at_ms": beaten.at_ms,
    }
