"""One small function a route: parse, call the noun, shape the answer."""

from __future__ import annotations

import json
import math
from typing import Any

import fencepost
from fencepost import auth, errors, fence, limits, ownership, release, snapshot, starts, wire
from fencepost.decision import Decision, Seen
from fencepost.exchange import Reply, Request
from fencepost.runs import WINNERS, Outcome, Run, RunStatus

# --- Starts ------------------------------------------------------------------------------


async def post_start(request: Request) -> Reply:
    key = wire.idempotency_key(request.headers.get("idempotency-key"))
    start = wire.start(key, request.sender, await _body(request))
    wait_s = wire.preferred_wait_s(request.headers.get("prefer"))
    decision, seen = await starts.start(request.db, start, wait_s=wait_s)
    reply = _start_reply(decision, seen)
    if wait_s:
        reply.headers["Preference-Applied"] = f"wait={wait_s}"
    return reply


def _start_reply(decision: Decision, seen: Seen) -> Reply:
    if decision is Decision.STARTED:
        reply = _start_body("started", seen)
        reply.status = 201 if seen.created else 200
        return reply
    if decision is Decision.REPLAYED:
        reply = _start_body("replayed", seen)
        reply.headers["Idempotent-Replayed"] = "true"
        return reply
    raise _start_refusal(decision, seen)


def _start_body(outcome: str, seen: Seen) -> Reply:
    held, run = seen.reservation, seen.run
    assert held is not None
    assert run is not None
    body = {
        "outcome": outcome,
        "reservation": wire.encode_reservation(held),
        "run": wire.encode_run(run),
    }
    headers = {"Location": f"/v1/runs/{run.run_id}"}
    return Reply(200, body, headers, run_id=run.run_id)


def _start_refusal(decision: Decision, seen: Seen) -> errors.FencepostError:
    """The answer to a start that neither started nor replayed (design 6)."""
    held, run = seen.reservation, seen.run
    if decision is Decision.FENCED:
        return seen.fence.refusal()
    if decision is Decision.RESERVED:
        return errors.Unavailable("Others keep winning the race for this key; send it again.")
    assert held is not None
    if decision is Decision.OWNER_MISMATCH:
        return errors.Conflict(
            "This key belongs to another principal.",
            status=403,
            code="START_OWNER_MISMATCH",
            title="The key is not yours",
            retry=errors.Retry.NEW_KEY,
        )
    if decision is Decision.TARGET_MISMATCH:
        return errors.Conflict(
            "This key was used for another target. That start is unharmed.",
            status=422,
            code="START_TARGET_MISMATCH",
            title="The key names another start",
            retry=errors.Retry.NEW_KEY,
            target=held.target.as_json(),
        )
    if decision is Decision.INPUT_MISMATCH:
        return errors.Conflict(
            "This key was used with another input or lineage. That start is unharmed.",
            status=422,
            code="START_INPUT_MISMATCH",
            title="The key names another start",
            retry=errors.Retry.NEW_KEY,
        )
    if decision is Decision.ALREADY_SETTLED:
        return errors.Conflict(
            "The run of this key has ended and its record was purged; it will not run again.",
            code="START_ALREADY_SETTLED",
            title="The key is spent",
            run_id=held.run_id,
        )
    if decision is Decision.PENDING and run is not None:
        return _pending(run)
    return errors.Conflict(
        "The run was started and may have executed, and nobody is executing it now. It is not "
        "run again by itself: its history is at /v1/runs/{run_id}/events; another process may "
        "take it over with POST /v1/runs/{run_id}/own and evidence; an operator may settle "
        "what happened with POST /v1/starts/{key}/resolve. The same key answers then.",
        code="START_UNRESOLVABLE",
        title="The run was abandoned",
        retry=errors.Retry.SAME_KEY,
        run_id=held.run_id,
        attempt=held.attempt,
    )


def _pending(run: Run) -> errors.Conflict:
    assert run.lease_expires_at_ms is not None
    left_s = math.ceil((run.lease_expires_at_ms - run.now_ms) / 1000)
    return errors.Conflict(
        "The run of this key is being executed. Send the same key again later, or with "
        "Prefer: wait=N to be answered when it ends.",
        code="START_PENDING",
        title="The run is being executed",
        retry=errors.Retry.SAME_KEY,
        retry_after_s=max(1, min(left_s, limits.PENDING_RETRY_AFTER_S)),
        run_id=run.run_id,
        pending_since_ms=run.started_at_ms,
    )


async def get_start(request: Request) -> Reply:
    held, run = await release.find(request.db, request.params["key"], request.viewer)
    body = {
        "reservation": wire.encode_reservation(held),
        "run": run and wire.encode_run(run),
    }
    return Reply(200, body, run_id=held.run_id)


async def post_release(request: Request) -> Reply:
    body = await _body(request)
    owner = body.take("owner", wire.owner)
    body.done()
    key, viewer = request.params["key"], request.viewer
    outcome, held, run = await release.release(request.db, key, viewer, owner)
    if outcome is not Outcome.RELEASED:
        raise _loss(outcome, run)
    shape = {
        "outcome": outcome,
        "reservation": wire.encode_reservation(held),
        "run": run and wire.encode_run(run),
    }
    return Reply(200, shape, run_id=held.run_id)


# --- Runs --------------------------------------------------------------------------------


async def get_run(request: Request) -> Reply:
    wait_s = wire.query_integer(request.query, "wait", 0, 0, limits.WAIT_S_MAX)
    run = await snapshot.wait_for_end(request.db, request.params["run_id"], request.viewer, wait_s)
    return Reply(200, wire.encode_run(run), run_id=run.run_id)


async def list_runs(request: Request) -> Reply:
    query = request.query
    limit = wire.query_integer(query, "limit", limits.PAGE_ITEMS_DEFAULT, 1, limits.PAGE_ITEMS_MAX)
    status = query.get("status")
    if status is not None and status not in frozenset(RunStatus):
        raise errors.InvalidRequest(f"Query parameter status is one of {', '.join(RunStatus)}.")
    after: Any = wire.cursor(query.get("cursor"), 3)
    runs = await snapshot.page(
        request.db, request.viewer, RunStatus(status) if status else None, after, limit
    )
    last = runs[-1] if len(runs) == limit else None
    position = last and json.dumps([*last.principal, last.run_id], separators=(",", ":"))
    items = [wire.encode_run(run, content=False) for run in runs]
    return Reply(200, {"items": items, "cursor": position})


async def post_own(request: Request) -> Reply:
    body = await _body(request)
    owner = body.take("owner", wire.owner)
    lease_ms = body.take("lease_ms", wire.lease_ms, None)
    evidence = body.take("evidence", wire.evidence, None)
    body.done()
    return _verb_reply(
        *await ownership.own(
            request.db,
            request.params["run_id"],
            request.viewer,
            owner,
            lease_ms=lease_ms,
            evidence=evidence,
        )
    )


async def post_heartbeat(request: Request) -> Reply:
    body = await _body(request)
    owner = body.take("owner", wire.owner)
    lease_ms = body.take("lease_ms", wire.lease_ms, None)
    body.done()
    run_id = request.params["run_id"]
    return _verb_reply(
        *await ownership.heartbeat(request.db, run_id, request.viewer, owner, lease_ms=lease_ms)
    )


async def post_transition(request: Request) -> Reply:
    change = wire.transition(await _body(request))
    run_id = request.params["run_id"]
    return _verb_reply(*await snapshot.transition(request.db, run_id, request.viewer, change))


def _verb_reply(outcome: Outcome, run: Run) -> Reply:
    if outcome not in WINNERS:
        raise _loss(outcome, run)
    body = {"outcome": outcome, "run": wire.encode_run(run)}
    return Reply(200, body, run_id=run.run_id)


_LOSSES = {
    Outcome.ALREADY_CLAIMED: "Somebody else has claimed this run.",
    Outcome.HEARTBEAT_FRESH: "The run's owner is alive: its lease has not ended.",
    Outcome.SNAPSHOT_CHANGED: "The run is not, or no longer, in a state that admits this.",
    Outcome.EVIDENCE_REQUIRED: "The run belongs to an owner; say why it is believed dead.",
    Outcome.FENCE_LOST: "This owner does not hold the run; it must stop working on it.",
    Outcome.GUARD_FAILED: "The guard on the cancel request does not hold.",
    Outcome.HEAD_CHANGED: "The run's history does not end where this request expects.",
}
# Losing these may pass: the same request can win later.
_PASSING = frozenset({Outcome.ALREADY_CLAIMED, Outcome.HEARTBEAT_FRESH})


def _loss(outcome: Outcome, run: Run | None) -> errors.Conflict:
    """A verb that lost: 409, the outcome named, the run without state and result."""
    return errors.Conflict(
        f"{_LOSSES[outcome]} Nothing was written.",
        code=outcome.upper(),
        title="The verb lost",
        retry=errors.Retry.SAME_KEY if outcome in _PASSING else errors.Retry.NEVER,
        outcome=outcome,
        run=run and wire.encode_run(run, content=False),
    )


# --- The deployment ----------------------------------------------------------------------


async def get_fence(request: Request) -> Reply:
    gate = await fence.read(request.db)
    body: dict[str, Any] = {"state": gate.state, "revision": gate.revision}
    if "operate" in request.scopes:
        body["proof_key"] = gate.proof_key
    body |= {"proof_run_id": gate.proof_run_id, "updated_at_ms": gate.updated_at_ms}
    return Reply(200, body)


async def get_health(request: Request) -> Reply:
    """Without a token and without D1; `?deep=1` reads the fence, with scope `read`."""
    body = {"status": "ok", "version": fencepost.__version__}
    if request.query.get("deep") == "1":
        auth.admit(request, ("read",))
        body["fence"] = (await fence.read(request.db)).state
    return Reply(200, body)


async def _body(request: Request) -> wire.Body:
    return wire.parse_body(await request.read_body())
