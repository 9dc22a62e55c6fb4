"""Runs: reading, owning, claiming, transitions, cancelling, and lineages."""

from __future__ import annotations

from operator import itemgetter
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from fencepost import (
    cancellation,
    claims,
    errors,
    limits,
    lineage,
    machines,
    ownership,
    snapshot,
    transition,
)
from fencepost.http import outcomes, pages, queries, serialize
from fencepost.http.exchange import Reply, Request, Route
from fencepost.http.forms import Form, Member, Parser
from fencepost.http.queries import Page
from fencepost.http.values import (
    BY_OWNER,
    CLAIMED_AT_MS,
    COUNT,
    EXPECTED_HEAD,
    GENERATION,
    HEAD_HINT,
    IDENTIFIER,
    LEASE_MS,
    OWNER,
    RESULT,
    one_of,
    stored_json,
)
from fencepost.identifiers import Principal
from fencepost.journal import Head
from fencepost.machines import Move
from fencepost.ownership import EVIDENCE_KINDS, Evidence, Fact
from fencepost.runs import TERMINAL, Outcome, Owner, RunStatus
from fencepost.storage.d1 import Database
from fencepost.transition import Transition

if TYPE_CHECKING:
    from fencepost.http import representations as shown

# --- Queries -----------------------------------------------------------------------------


class RunsPage(NamedTuple):
    """A page as `queries.Page`; with a status, only the runs with this status."""

    limit: int
    cursor: Any
    status: RunStatus | None


def _status(text: str, name: str) -> RunStatus:
    if text not in frozenset(RunStatus):
        raise ValueError(f"Query parameter {name} is one of {', '.join(RunStatus)}.")
    return RunStatus(text)


RUNS = Form(
    "",
    RunsPage,
    {
        "limit": queries.LIMIT,
        "cursor": Member(queries.cursor((queries.TEXT, queries.TEXT, queries.TEXT)), None),
        "status": Member(Parser(_status, {"type": "string", "enum": list(RunStatus)}), None),
    },
)

WAIT_S = Form(
    "",
    lambda wait: int(wait),
    {
        "wait": Member(
            queries.query_integer(0, limits.WAIT_S_MAX),
            0,
            "Seconds to wait for the end of the run.",
        )
    },
)

AFTER_ROUND = queries.page((queries.POSITION, queries.TEXT))

# --- Bodies ------------------------------------------------------------------------------

EVIDENCE = Form(
    "Evidence",
    Evidence,
    {
        "kind": Member(one_of(*EVIDENCE_KINDS)),
        "expected_owner": Member(OWNER),
        "expected_heartbeat_at_ms": Member(
            COUNT, None, "The heartbeat that was looked at; given, it must still be the run's."
        ),
    },
    about="Why the present owner is believed dead. For same-host-pid-dead its host must be the "
    "sender's; for cross-host-unreachable-stale it must be another host.",
)


class VerbBody(NamedTuple):
    """The owner who asks, and the other members of a verb's body."""

    owner: Owner
    generation: int | None = None
    claimed_at_ms: int | None = None
    lease_ms: int | None = None
    evidence: Evidence | None = None
    expected_status: RunStatus | None = None


_LEASE = Member(LEASE_MS, None, "Becomes the run's own; omitted, the run's own is kept.")
_EVIDENCE = Member(EVIDENCE, None)

_EXPECTED_STATUS = Member(
    Parser(
        lambda value, name: RunStatus(one_of(*RunStatus).read(value, name)),
        one_of(*RunStatus).schema,
    ),
    None,
    "The status that was looked at; given, it must still be the run's.",
)

BY_GENERATION = Form("OwnerRequest", VerbBody, {"owner": BY_OWNER, "generation": GENERATION})
HEARTBEAT = Form(
    "HeartbeatRequest",
    VerbBody,
    {"owner": BY_OWNER, "generation": GENERATION, "lease_ms": _LEASE},
)
CLAIM = Form(
    "ClaimRequest",
    VerbBody,
    {"owner": BY_OWNER, "lease_ms": _LEASE, "expected_status": _EXPECTED_STATUS},
)
BY_CLAIM = Form("ClaimantRequest", VerbBody, {"owner": BY_OWNER, "claimed_at_ms": CLAIMED_AT_MS})
STEAL = Form("StealRequest", VerbBody, {"owner": BY_OWNER, "evidence": _EVIDENCE})
RECOVER = Form(
    "RecoverRequest",
    VerbBody,
    {"owner": BY_OWNER, "evidence": _EVIDENCE, "claimed_at_ms": CLAIMED_AT_MS},
)
OWN = Form(
    "OwnRequest",
    VerbBody,
    {
        "owner": BY_OWNER,
        "lease_ms": _LEASE,
        "evidence": _EVIDENCE,
        "expected_status": _EXPECTED_STATUS,
    },
)
NOTHING: Form[None] = Form("EmptyRequest", lambda: None, {}, about="An empty object.")

_GUARD: Form[Literal["absent", "present"] | None] = Form(
    "Guard",
    lambda cancel_requested: cancel_requested,
    {"cancel_requested": Member(one_of("absent", "present"), None)},
    about="The transition happens only if a cancel request is absent, or present.",
)


def _transition(
    machine: str | None,
    code: str | None,
    to: str | None,
    owner: Owner,
    state: str | None,
    result: str | None,
    guard: Literal["absent", "present"] | None,
    expected_head: Head | None,
    generation: int | None,
    head_hint: Head | None,
) -> Transition:
    status, move = _movement(machine, code, to)
    if result is not None and status not in TERMINAL:
        raise errors.InvalidRequest("A 'result' is only for completed, failed or cancelled.")
    return Transition(
        owner, status, state, result, guard, expected_head, move, generation, head_hint
    )


def _movement(state: str | None, code: str | None, to: str | None) -> tuple[RunStatus, Move | None]:
    """The status and the move that `to`, or `machine` (with its `code`), or both ask for.

    With `machine` alone the run stays running, or ends in the status of that final state.
    """
    if code is not None and state not in machines.CODED:
        coded = ", ".join(sorted(machines.CODED))
        raise errors.InvalidRequest(f"A 'code' is only for a 'machine' of {coded}.")
    if state is None:
        if to is None:
            raise errors.InvalidRequest("The body lacks the member 'to'.")
        return RunStatus(to), None
    end = machines.ENDS.get(state)
    status = RunStatus(to or end or RunStatus.RUNNING)
    if status is RunStatus.COMPLETED and end is None:
        raise errors.InvalidRequest("A run is completed with a 'machine' that has ended.")
    return status, Move(state, code)


_STATES = sorted(machines.STATES)
_ENDED = {"machine": {"enum": sorted(machines.ENDS)}}

TRANSITION = Form(
    "TransitionRequest",
    _transition,
    {
        "machine": Member(one_of(*_STATES), None, "The state that the run's machine moves to."),
        "code": Member(IDENTIFIER, None, "Why the machine is there."),
        "to": Member(
            one_of(*(status for status in RunStatus if status is not RunStatus.PENDING)),
            None,
            "Omitted, `machine` says it.",
        ),
        "owner": BY_OWNER,
        "generation": GENERATION,
        "state": Member(stored_json(limits.STATE_BYTES_MAX), None, "Omitted, it stays."),
        "result": RESULT,
        "guard": Member(_GUARD, None),
        "expected_head": EXPECTED_HEAD,
        "head_hint": HEAD_HINT,
    },
    {
        "allOf": [
            {
                "anyOf": [
                    {"properties": {"machine": False, "code": False}, "required": ["to"]},
                    {"properties": {"code": False}, "required": ["machine"]},
                    {
                        "properties": {"machine": {"enum": sorted(machines.CODED)}},
                        "required": ["machine"],
                    },
                ]
            },
            {
                "anyOf": [
                    {"properties": {"result": False}},
                    {"properties": {"to": {"enum": sorted(TERMINAL)}}, "required": ["to"]},
                    {"properties": {**_ENDED, "to": False}, "required": ["machine"]},
                ]
            },
            {
                "anyOf": [
                    {"properties": {"machine": False}},
                    {"properties": {"to": {"not": {"const": "completed"}}}},
                    {"properties": _ENDED, "required": ["machine"]},
                ]
            },
        ]
    },
    "`to`, or `machine`, or both. A `result` belongs to an end, a `code` to a machine that says "
    "why; a run is completed with a machine that has ended.",
)

# --- Reading -----------------------------------------------------------------------------


async def get_run(request: Request, wait_s: int) -> Reply[shown.RunJson]:
    """Read a run, with state and result; with `Prefer: wait=N`, wait for its end."""
    run_id, viewer = request.params["run_id"], request.viewer
    run = await snapshot.wait_for_end(request.db, run_id, viewer, wait_s, request.gone)
    return Reply(200, serialize.run_json(run), run_id=run.run_id)


async def list_runs(
    request: Request, page: RunsPage
) -> Reply[shown.RowsJson[shown.RunSummaryJson]]:
    """List the runs that the caller may see, oldest first."""
    runs = await snapshot.page(request.db, request.viewer, page.status, page.cursor, page.limit)
    keys = itemgetter("principal_kind", "principal_id", "run_id")
    return pages.reply(page.limit, runs, serialize.run_summary_json, keys)


async def list_ownership(request: Request, page: Page) -> Reply[shown.RowsJson[shown.FactJson]]:
    """List who owned a run, and when."""
    run_id, viewer = request.params["run_id"], request.viewer
    [after] = page.cursor or (0,)
    facts = await ownership.facts(request.db, run_id, viewer, after, page.limit)
    return pages.reply(page.limit, facts, _fact_json, lambda row: (row["sequence"],))


def _fact_json(fact: Fact) -> shown.FactJson:
    return {
        "sequence": fact.sequence,
        "type": fact.type,
        "owner": None if fact.owner is None else serialize.owner_json(fact.owner),
        "principal": None if fact.principal is None else _principal_json(fact.principal),
        "generation": fact.generation,
        "granted_at_ms": fact.granted_at_ms,
        "at_ms": fact.at_ms,
    }


def _principal_json(principal: Principal) -> shown.PrincipalJson:
    return {"kind": principal.kind, "id": principal.id}


async def get_lineage(request: Request, page: Page) -> Reply[shown.RowsJson[shown.RunSummaryJson]]:
    """List the rounds of a run's lineage."""
    run_id, viewer = request.params["run_id"], request.viewer
    runs = await lineage.page(request.db, run_id, viewer, page.cursor, page.limit)
    return pages.reply(
        page.limit, runs, serialize.run_summary_json, itemgetter("position", "run_id")
    )


async def get_latest(request: Request, _: None) -> Reply[shown.RunJson]:
    """Read the last round of a run's lineage."""
    run = await lineage.latest(request.db, request.params["run_id"], request.viewer)
    return Reply(200, serialize.run_json(run), run_id=run.run_id)


# --- Owning ------------------------------------------------------------------------------


def _by_owner(request: Request, body: VerbBody) -> tuple[Database, str, Principal | None, Owner]:
    """The first arguments of every verb that an owner sends."""
    return request.db, request.params["run_id"], request.viewer, body.owner


async def post_own(request: Request, body: VerbBody) -> Reply[shown.VerbAnswerJson]:
    """Own a run that waits for an owner, or, with evidence, one whose lease lapsed."""
    return outcomes.verb_reply(
        request,
        await ownership.own(
            *_by_owner(request, body),
            lease_ms=body.lease_ms,
            evidence=body.evidence,
            expected_status=body.expected_status,
        ),
    )


async def post_heartbeat(request: Request, body: VerbBody) -> Reply[shown.VerbAnswerJson]:
    """Renew the lease of a run that the caller owns."""
    return outcomes.verb_reply(
        request,
        await ownership.heartbeat(
            *_by_owner(request, body), generation=body.generation, lease_ms=body.lease_ms
        ),
    )


async def post_reconfirm(request: Request, body: VerbBody) -> Reply[shown.VerbAnswerJson]:
    """Renew the lease, and learn whether the caller still owns the run."""
    return outcomes.verb_reply(
        request, await ownership.reconfirm(*_by_owner(request, body), generation=body.generation)
    )


async def post_claim(request: Request, body: VerbBody) -> Reply[shown.VerbAnswerJson]:
    """Claim a run that waits for an owner; `activate` then makes the caller its owner."""
    return outcomes.verb_reply(
        request,
        await claims.claim(
            *_by_owner(request, body),
            lease_ms=body.lease_ms,
            expected_status=body.expected_status,
        ),
    )


async def post_activate(request: Request, body: VerbBody) -> Reply[shown.VerbAnswerJson]:
    """Turn the caller's claim into the ownership of the run."""
    return outcomes.verb_reply(
        request, await claims.activate(*_by_owner(request, body), claimed_at_ms=body.claimed_at_ms)
    )


async def post_steal(request: Request, body: VerbBody) -> Reply[shown.VerbAnswerJson]:
    """Claim a running run whose owner is believed dead."""
    return outcomes.verb_reply(
        request, await claims.steal(*_by_owner(request, body), body.evidence)
    )


async def post_abandon(request: Request, body: VerbBody) -> Reply[shown.VerbAnswerJson]:
    """Remove the caller's claim."""
    return outcomes.verb_reply(
        request, await claims.abandon(*_by_owner(request, body), claimed_at_ms=body.claimed_at_ms)
    )


async def post_recover(request: Request, body: VerbBody) -> Reply[shown.VerbAnswerJson]:
    """Remove the claim of a claimant that is believed dead."""
    return outcomes.verb_reply(
        request,
        await claims.recover(
            *_by_owner(request, body), body.evidence, claimed_at_ms=body.claimed_at_ms
        ),
    )


# --- Moving and cancelling ---------------------------------------------------------------


async def post_transition(request: Request, change: Transition) -> Reply[shown.VerbAnswerJson]:
    """Checkpoint, suspend or end a run that the caller owns, or move its machine."""
    run_id = request.params["run_id"]
    result = await transition.transition(request.db, run_id, request.viewer, change)
    if result.outcome is Outcome.ILLEGAL_TRANSITION:
        machine = result.run.machine
        to = change.to if change.move is None else change.move.to
        move = {"from_state": machine and machine.state, "to_state": to}
        raise outcomes.loss(request, result, **move)
    return outcomes.verb_reply(request, result)


async def post_cancel(request: Request, _: None) -> Reply[shown.VerbAnswerJson]:
    """Request the cancel of a run, once. It ends a run that waits and that nobody claims."""
    where = (request.db, request.params["run_id"], request.viewer, request.sender)
    return outcomes.verb_reply(request, await cancellation.cancel(*where))


async def post_acknowledge_cancel(request: Request, body: VerbBody) -> Reply[shown.VerbAnswerJson]:
    """Record that the owner has seen the cancel request."""
    return outcomes.verb_reply(
        request,
        await cancellation.acknowledge(*_by_owner(request, body), generation=body.generation),
    )


async def post_cancel_lineage(request: Request, _: None) -> Reply[shown.VerbAnswerJson]:
    """Request the cancel of every round that has not ended; answers the last that it asked."""
    where = (request.db, request.params["run_id"], request.viewer, request.sender)
    return outcomes.verb_reply(request, await cancellation.cancel_lineage(*where))


# --- Routes ------------------------------------------------------------------------------

_RUN = "/v1/runs/{run_id}"
_TAKEN = ("ALREADY_CLAIMED", "HEARTBEAT_FRESH", "SNAPSHOT_CHANGED")

ROUTES: tuple[Route[Any], ...] = (
    Route(method="GET", pattern="/v1/runs", scopes=("read",), handler=list_runs, takes=RUNS),
    Route(
        method="GET",
        pattern=_RUN,
        scopes=("read",),
        handler=get_run,
        takes=WAIT_S,
        problems=("TOO_MANY_WAITERS",),
    ),
    Route(
        method="GET",
        pattern=f"{_RUN}/ownership",
        scopes=("read",),
        handler=list_ownership,
        takes=queries.AFTER_SEQUENCE,
    ),
    Route(
        method="GET",
        pattern=f"{_RUN}/lineage",
        scopes=("read",),
        handler=get_lineage,
        takes=AFTER_ROUND,
    ),
    Route(
        method="GET",
        pattern=f"{_RUN}/latest",
        scopes=("read",),
        handler=get_latest,
        takes=queries.NO_QUERY,
    ),
    Route(
        method="POST",
        pattern=f"{_RUN}/claim",
        scopes=("work",),
        handler=post_claim,
        takes=CLAIM,
        headers=(queries.REQUEST_KEY,),
        problems=(*_TAKEN, "OVERTAKEN"),
    ),
    Route(
        method="POST",
        pattern=f"{_RUN}/activate",
        scopes=("work",),
        handler=post_activate,
        takes=BY_CLAIM,
        headers=(queries.REQUEST_KEY,),
        problems=("LEASE_LAPSED", "OVERTAKEN", "CLAIM_LOST", "SNAPSHOT_CHANGED"),
    ),
    Route(
        method="POST",
        pattern=f"{_RUN}/own",
        scopes=("work",),
        handler=post_own,
        takes=OWN,
        headers=(queries.REQUEST_KEY,),
        problems=(*_TAKEN, "LEASE_LAPSED", "OVERTAKEN", "EVIDENCE_REQUIRED"),
    ),
    Route(
        method="POST",
        pattern=f"{_RUN}/heartbeat",
        scopes=("work",),
        handler=post_heartbeat,
        takes=HEARTBEAT,
        problems=("FENCE_LOST",),
    ),
    Route(
        method="POST",
        pattern=f"{_RUN}/reconfirm",
        scopes=("work",),
        handler=post_reconfirm,
        takes=BY_GENERATION,
        problems=("FENCE_LOST",),
    ),
    Route(
        method="POST",
        pattern=f"{_RUN}/steal",
        scopes=("work",),
        handler=post_steal,
        takes=STEAL,
        headers=(queries.REQUEST_KEY,),
        problems=(*_TAKEN, "OVERTAKEN", "LIVENESS_UNCONFIRMED"),
    ),
    Route(
        method="POST",
        pattern=f"{_RUN}/abandon",
        scopes=("work",),
        handler=post_abandon,
        takes=BY_CLAIM,
        headers=(queries.REQUEST_KEY,),
        problems=("CLAIM_LOST", "CONTENDED"),
    ),
    Route(
        method="POST",
        pattern=f"{_RUN}/recover",
        scopes=("work",),
        handler=post_recover,
        takes=RECOVER,
        headers=(queries.REQUEST_KEY,),
        problems=("LIVENESS_UNCONFIRMED", "CLAIM_CHANGED", "CLAIM_FRESH", "CONTENDED"),
    ),
    Route(
        method="POST",
        pattern=f"{_RUN}/transition",
        scopes=("work",),
        handler=post_transition,
        takes=TRANSITION,
        headers=(queries.REQUEST_KEY,),
        problems=("FENCE_LOST", "GUARD_FAILED", "HEAD_CHANGED", "ILLEGAL_TRANSITION", "CONTENDED"),
    ),
    Route(
        method="POST",
        pattern=f"{_RUN}/cancel",
        scopes=("start", "operate"),
        handler=post_cancel,
        takes=NOTHING,
        headers=(queries.REQUEST_KEY,),
        problems=("CONTENDED", "TERMINAL", "ALREADY_REQUESTED", "EXECUTION_FENCE_UNREADABLE"),
    ),
    Route(
        method="POST",
        pattern=f"{_RUN}/acknowledge-cancel",
        scopes=("work",),
        handler=post_acknowledge_cancel,
        takes=BY_GENERATION,
        headers=(queries.REQUEST_KEY,),
        problems=("FENCE_LOST", "CANCEL_NOT_REQUESTED"),
    ),
    Route(
        method="POST",
        pattern=f"{_RUN}/lineage/cancel",
        scopes=("start", "operate"),
        handler=post_cancel_lineage,
        takes=NOTHING,
        headers=(queries.REQUEST_KEY,),
        problems=("CONTENDED", "TERMINAL", "ALREADY_REQUESTED", "EXECUTION_FENCE_UNREADABLE"),
    ),
)
