"""One small function a route: ask the noun, shape the answer. Bodies and queries come in read."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import fencepost
from fencepost import (
    cancellation,
    claims,
    fence,
    lineage,
    ownership,
    problems,
    release,
    snapshot,
    starts,
    transition,
)
from fencepost.decision import Start
from fencepost.http import auth, outcomes, queries, serialize
from fencepost.http.bodies import Verb
from fencepost.http.exchange import Reply, Request
from fencepost.http.queries import Page
from fencepost.identifiers import Principal
from fencepost.runs import Outcome, Owner, Run
from fencepost.storage.d1 import Database
from fencepost.transition import Transition

if TYPE_CHECKING:
    from fencepost.http import operator_representations as operators
    from fencepost.http import representations as shown

# --- Starts ------------------------------------------------------------------------------


async def post_start(request: Request, asked: partial[Start]) -> Reply[shown.StartAnswer]:
    """Start the run that the key means, or say what became of it."""
    key = queries.IDEMPOTENCY_KEY.of(request)
    wait_s = queries.PREFER_WAIT.of(request)
    start = asked(key=key, principal=request.sender)
    decision, seen = await starts.start(request.db, start, wait_s=wait_s)
    reply = outcomes.start_reply(decision, seen)
    if wait_s:
        reply.headers["Preference-Applied"] = f"wait={wait_s}"
    return reply


async def get_start(request: Request, _: None) -> Reply[shown.SeenStart]:
    """The reservation of a key and its run."""
    held, run = await release.find(request.db, request.params["key"], request.viewer)
    shape: shown.SeenStart = {
        "reservation": serialize.reservation_json(held),
        "run": None if run is None else serialize.run_json(run),
    }
    return Reply(200, shape, run_id=held.run_id)


async def post_release(request: Request, asked: Verb) -> Reply[shown.Settled]:
    """Give a start back that did not execute: its key can be started again."""
    key, viewer = request.params["key"], request.viewer
    outcome, held, run = await release.release(request.db, key, viewer, asked.owner)
    if outcome is not Outcome.RELEASED:
        raise outcomes.loss(outcome, run)
    return outcomes.settled_reply(outcome, held, run)


# --- Runs --------------------------------------------------------------------------------


async def get_run(request: Request, wait_s: int) -> Reply[shown.Run]:
    """A run, with state and result; with `wait`, once it ended."""
    run = await snapshot.wait_for_end(request.db, request.params["run_id"], request.viewer, wait_s)
    return Reply(200, serialize.run_json(run), run_id=run.run_id)


async def list_runs(request: Request, page: queries.Runs) -> Reply[shown.Items[shown.RunSummary]]:
    """The runs that the caller may see, oldest first."""
    runs = await snapshot.page(request.db, request.viewer, page.status, page.cursor, page.limit)
    cursor = queries.next_cursor(page, runs, lambda run: (*run.principal, run.run_id))
    return _page(runs, cursor)


def _page(runs: list[Run], cursor: str | None) -> Reply[shown.Items[shown.RunSummary]]:
    items = [serialize.run_json(run, content=False) for run in runs]
    return Reply(200, {"items": items, "cursor": cursor})


Where = tuple[Database, str, Principal | None, Owner]


def _where(request: Request, asked: Verb) -> Where:
    """What every verb of an owner takes first."""
    return request.db, request.params["run_id"], request.viewer, asked.owner


async def post_own(request: Request, asked: Verb) -> Reply[shown.VerbAnswer]:
    """Own a run that waits for an owner, or, with evidence, one whose lease lapsed."""
    _, lease_ms, evidence = asked
    return outcomes.verb_reply(
        *await ownership.own(*_where(request, asked), lease_ms=lease_ms, evidence=evidence)
    )


async def post_heartbeat(request: Request, asked: Verb) -> Reply[shown.VerbAnswer]:
    """Renew the lease."""
    return outcomes.verb_reply(
        *await ownership.heartbeat(*_where(request, asked), lease_ms=asked.lease_ms)
    )


async def post_reconfirm(request: Request, asked: Verb) -> Reply[shown.VerbAnswer]:
    """Renew the lease, by a process that is not sure whether it still holds the run."""
    return outcomes.verb_reply(*await ownership.reconfirm(*_where(request, asked)))


async def post_claim(request: Request, asked: Verb) -> Reply[shown.VerbAnswer]:
    """Hold a run that waits for an owner, for `activate`."""
    return outcomes.verb_reply(
        *await claims.claim(*_where(request, asked), lease_ms=asked.lease_ms)
    )


async def post_activate(request: Request, asked: Verb) -> Reply[shown.VerbAnswer]:
    """Turn one's claim into the ownership of the run."""
    return outcomes.verb_reply(*await claims.activate(*_where(request, asked)))


async def post_steal(request: Request, asked: Verb) -> Reply[shown.VerbAnswer]:
    """Claim a run from an owner that is believed dead."""
    return outcomes.verb_reply(*await claims.steal(*_where(request, asked), asked.evidence))


async def post_abandon(request: Request, asked: Verb) -> Reply[shown.VerbAnswer]:
    """Let go of one's claim."""
    return outcomes.verb_reply(*await claims.abandon(*_where(request, asked)))


async def post_recover(request: Request, asked: Verb) -> Reply[shown.VerbAnswer]:
    """Clear the claim of a claimant that is believed dead."""
    return outcomes.verb_reply(*await claims.recover(*_where(request, asked), asked.evidence))


async def post_acknowledge_cancel(request: Request, asked: Verb) -> Reply[shown.VerbAnswer]:
    """The owner has seen the request for a cancel."""
    return outcomes.verb_reply(*await cancellation.acknowledge(*_where(request, asked)))


async def post_cancel(request: Request, _: None) -> Reply[shown.VerbAnswer]:
    """Request the cancel of a run, once."""
    where = (request.db, request.params["run_id"], request.viewer, request.sender)
    return outcomes.verb_reply(*await cancellation.cancel(*where))


async def post_cancel_lineage(request: Request, _: None) -> Reply[shown.VerbAnswer]:
    """Request the cancel of every round that has not ended; answers the last round."""
    where = (request.db, request.params["run_id"], request.viewer, request.sender)
    return outcomes.verb_reply(*await cancellation.cancel_lineage(*where))


AFTER_ROUND = queries.page((queries.POSITION, queries.TEXT))


async def get_lineage(request: Request, page: Page) -> Reply[shown.Items[shown.RunSummary]]:
    """The rounds of one logical run."""
    run_id, viewer = request.params["run_id"], request.viewer
    runs = await lineage.page(request.db, run_id, viewer, page.cursor, page.limit)
    return _page(runs, queries.next_cursor(page, runs, _round))


def _round(run: Run) -> tuple[str, str]:
    """A run without a lineage comes before the first round."""
    return str(run.lineage.round if run.lineage else -1), run.run_id


async def get_latest(request: Request, _: None) -> Reply[shown.Run]:
    """The last round of a run's lineage."""
    run = await lineage.latest(request.db, request.params["run_id"], request.viewer)
    return Reply(200, serialize.run_json(run), run_id=run.run_id)


async def list_ownership(request: Request, page: Page) -> Reply[shown.Items[shown.Fact]]:
    """Who owned a run, and when."""
    run_id, viewer = request.params["run_id"], request.viewer
    [after] = page.cursor or (0,)
    facts = await ownership.facts(request.db, run_id, viewer, after, page.limit)
    items = [serialize.fact_json(fact) for fact in facts]
    cursor = queries.next_cursor(page, facts, lambda fact: (str(fact.sequence),))
    return Reply(200, {"items": items, "cursor": cursor})


async def post_transition(request: Request, change: Transition) -> Reply[shown.VerbAnswer]:
    """Checkpoint, suspend or end a run that the caller owns; move its machine."""
    run_id = request.params["run_id"]
    outcome, run = await transition.transition(request.db, run_id, request.viewer, change)
    return outcomes.transition_reply(outcome, run, change)


# --- The deployment ----------------------------------------------------------------------


async def get_health(request: Request, deep: bool) -> Reply[operators.Health]:
    """Without a token and without D1; `?deep=1` reads the fence, with scope `read`."""
    shape: operators.Health = {"status": "ok", "version": fencepost.__version__}
    if deep:
        auth.admit(request, ("read",))
        shape["fence"] = (await fence.read(request.db)).state
    return Reply(200, shape)


async def get_error_docs(request: Request, _: None) -> Reply[str]:
    """The problem codes, as Markdown."""
    return Reply(200, problems.as_markdown(), content_type="text/markdown; charset=utf-8")
