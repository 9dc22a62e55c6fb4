"""One small function a route: parse, call the noun, shape the answer."""

from __future__ import annotations

from typing import Any

import fencepost
from fencepost import (
    answers,
    auth,
    body,
    cancellation,
    claims,
    errors,
    fence,
    limits,
    lineage,
    nouns,
    ownership,
    problems,
    release,
    shapes,
    snapshot,
    starts,
    transition,
    wire,
)
from fencepost.exchange import Reply, Request
from fencepost.runs import Outcome, RunStatus

# --- Starts ------------------------------------------------------------------------------


async def post_start(request: Request) -> Reply:
    key = wire.idempotency_key(request.header("idempotency-key"))
    start = wire.start(key, request.sender, await _body(request))
    wait_s = wire.preferred_wait_s(request.header("prefer"))
    decision, seen = await starts.start(request.db, start, wait_s=wait_s)
    reply = answers.start_reply(decision, seen)
    if wait_s:
        reply.headers["Preference-Applied"] = f"wait={wait_s}"
    return reply


async def get_start(request: Request) -> Reply:
    held, run = await release.find(request.db, request.params["key"], request.viewer)
    shape = {
        "reservation": shapes.reservation_json(held),
        "run": run and shapes.run_json(run),
    }
    return Reply(200, shape, run_id=held.run_id)


async def post_release(request: Request) -> Reply:
    members = await _body(request)
    owner = members.take("owner", nouns.owner)
    members.done()
    key, viewer = request.params["key"], request.viewer
    outcome, held, run = await release.release(request.db, key, viewer, owner)
    if outcome is not Outcome.RELEASED:
        raise answers.loss(outcome, run)
    return answers.settled_reply(outcome, held, run)


# --- Runs --------------------------------------------------------------------------------


async def get_run(request: Request) -> Reply:
    wait_s = wire.query_integer(request.query, "wait", 0, 0, limits.WAIT_S_MAX)
    run = await snapshot.wait_for_end(request.db, request.params["run_id"], request.viewer, wait_s)
    return Reply(200, shapes.run_json(run), run_id=run.run_id)


async def list_runs(request: Request) -> Reply:
    query = request.query
    limit = wire.page_limit(query)
    status = query.get("status")
    if status is not None and status not in frozenset(RunStatus):
        raise errors.InvalidRequest(f"Query parameter status is one of {', '.join(RunStatus)}.")
    after: Any = wire.cursor(query.get("cursor"), 3)
    runs = await snapshot.page(
        request.db, request.viewer, RunStatus(status) if status else None, after, limit
    )
    last = runs[-1] if len(runs) == limit else None
    position = None if last is None else (*last.principal, last.run_id)
    items = [shapes.run_json(run, content=False) for run in runs]
    return Reply(200, {"items": items, "cursor": wire.cursor_text(position)})


async def post_own(request: Request) -> Reply:
    taken = await wire.verb(request, lease=True, evidence=True)
    return answers.verb_reply(
        *await ownership.own(*taken.where, lease_ms=taken.lease_ms, evidence=taken.evidence)
    )


async def post_heartbeat(request: Request) -> Reply:
    taken = await wire.verb(request, lease=True)
    return answers.verb_reply(*await ownership.heartbeat(*taken.where, lease_ms=taken.lease_ms))


async def post_reconfirm(request: Request) -> Reply:
    taken = await wire.verb(request)
    return answers.verb_reply(*await ownership.reconfirm(*taken.where))


async def post_claim(request: Request) -> Reply:
    taken = await wire.verb(request, lease=True)
    return answers.verb_reply(*await claims.claim(*taken.where, lease_ms=taken.lease_ms))


async def post_activate(request: Request) -> Reply:
    taken = await wire.verb(request)
    return answers.verb_reply(*await claims.activate(*taken.where))


async def post_steal(request: Request) -> Reply:
    taken = await wire.verb(request, evidence=True)
    return answers.verb_reply(*await claims.steal(*taken.where, taken.evidence))


async def post_abandon(request: Request) -> Reply:
    taken = await wire.verb(request)
    return answers.verb_reply(*await claims.abandon(*taken.where))


async def post_recover(request: Request) -> Reply:
    taken = await wire.verb(request, evidence=True)
    return answers.verb_reply(*await claims.recover(*taken.where, taken.evidence))


async def post_acknowledge_cancel(request: Request) -> Reply:
    taken = await wire.verb(request)
    return answers.verb_reply(*await cancellation.acknowledge(*taken.where))


async def post_cancel(request: Request) -> Reply:
    (await _body(request)).done()
    where = (request.db, request.params["run_id"], request.viewer, request.sender)
    return answers.verb_reply(*await cancellation.cancel(*where))


async def post_cancel_lineage(request: Request) -> Reply:
    (await _body(request)).done()
    where = (request.db, request.params["run_id"], request.viewer, request.sender)
    return answers.verb_reply(*await cancellation.cancel_lineage(*where))


async def get_lineage(request: Request) -> Reply:
    limit = wire.page_limit(request.query)
    after = wire.cursor(request.query.get("cursor"), 2)
    position = None if after is None else (wire.position(after[0]), after[1])
    runs = await lineage.page(request.db, request.params["run_id"], request.viewer, position, limit)
    last = runs[-1] if len(runs) == limit else None
    round = last.lineage.round if last and last.lineage else -1
    keys = None if last is None else (str(round), last.run_id)
    items = [shapes.run_json(run, content=False) for run in runs]
    return Reply(200, {"items": items, "cursor": wire.cursor_text(keys)})


async def get_latest(request: Request) -> Reply:
    run = await lineage.latest(request.db, request.params["run_id"], request.viewer)
    return Reply(200, shapes.run_json(run), run_id=run.run_id)


async def list_ownership(request: Request) -> Reply:
    limit = wire.page_limit(request.query)
    after = wire.cursor(request.query.get("cursor"), 1)
    facts = await ownership.facts(
        request.db,
        request.params["run_id"],
        request.viewer,
        wire.position(after[0]) if after else 0,
        limit,
    )
    last = (str(facts[-1].sequence),) if len(facts) == limit else None
    items = [shapes.fact_json(fact) for fact in facts]
    return Reply(200, {"items": items, "cursor": wire.cursor_text(last)})


async def post_transition(request: Request) -> Reply:
    change = wire.transition(await _body(request))
    run_id = request.params["run_id"]
    outcome, run = await transition.transition(request.db, run_id, request.viewer, change)
    return answers.transition_reply(outcome, run, change)


# --- The deployment ----------------------------------------------------------------------


async def get_health(request: Request) -> Reply:
    """Without a token and without D1; `?deep=1` reads the fence, with scope `read`."""
    shape = {"status": "ok", "version": fencepost.__version__}
    if request.query.get("deep") == "1":
        auth.admit(request, ("read",))
        shape["fence"] = (await fence.read(request.db)).state
    return Reply(200, shape)


async def get_error_docs(request: Request) -> Reply:
    return Reply(200, problems.as_markdown(), content_type="text/markdown; charset=utf-8")


async def _body(request: Request) -> body.Body:
    return body.parse(await request.read_body())
