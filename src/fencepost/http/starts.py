"""Starts: starting a run by its key, reading a start, releasing it, resolving it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from fencepost import errors, limits, machines, release, resolve, starts
from fencepost.decision import Attempt, fingerprint
from fencepost.http import outcomes, queries, serialize
from fencepost.http.exchange import Reply, Request, Route
from fencepost.http.forms import Form, Member, Parser
from fencepost.http.values import (
    ANYTHING,
    BY_OWNER,
    CHANGE,
    GENERATION,
    IDENTIFIER,
    LEASE_MS,
    LINEAGE,
    NOTE,
    OWNER,
    RESULT,
    SEEN,
    TARGET,
    one_of,
    stored_json,
)
from fencepost.identifiers import Principal, Target, mint_run_id, mint_token
from fencepost.resolve import Resolution, Verdict
from fencepost.runs import Lineage, Outcome, Owner
from fencepost.subjects import DESIGN, Subject

if TYPE_CHECKING:
    from fencepost.http import representations as shown

# --- Forms -------------------------------------------------------------------------------


def _aliases(value: Any, name: str) -> tuple[str, ...]:
    if not isinstance(value, list) or len(value) > limits.ALIASES_MAX:
        raise ValueError(f"{name!r} is a list of at most {limits.ALIASES_MAX} names.")
    return tuple(CHANGE.read(alias, name) for alias in value)


def _subject(
    stage: str, change: str | None, provisional: str | None, aliases: tuple[str, ...]
) -> Subject:
    if (change is None) == (provisional is None):
        raise ValueError("A subject has either a 'change' or a 'provisional' name.")
    if provisional is None and aliases:
        raise ValueError("'aliases' belong to a 'provisional' name.")
    if provisional is not None and stage != DESIGN:
        raise ValueError("A 'provisional' name belongs to the stage 'design'.")
    return Subject(stage, change, provisional, aliases)


SUBJECT = Form(
    "Subject",
    _subject,
    {
        "stage": Member(CHANGE),
        "change": Member(CHANGE, None),
        "provisional": Member(CHANGE, None),
        "aliases": Member(
            Parser(_aliases, {"type": "array", "items": CHANGE, "maxItems": limits.ALIASES_MAX}),
            (),
        ),
    },
    {
        "anyOf": [
            {
                "properties": {"provisional": False, "aliases": {"maxItems": 0}},
                "required": ["change"],
            },
            {
                "properties": {"stage": {"const": DESIGN}, "change": False},
                "required": ["provisional"],
            },
        ]
    },
    "What a run is about: a change in a stage, or, in the stage design, a provisional name with "
    "others that it goes by.",
)

_INPUT = stored_json(limits.STATE_BYTES_MAX)


class StartBody(NamedTuple):
    """The body of a start."""

    target: Target
    input: Any
    owner: Owner | None
    lease_ms: int
    parent_run_id: str | None
    lineage: Lineage | None
    machine: str | None
    subject: Subject | None

    def attempt(self, key: str, principal: Principal, traceparent: str | None = None) -> Attempt:
        """The attempt of `principal` under `key`. Without an owner in the body, one is made.

        Its nonce is random, so that no other process can act as this owner.
        """
        return Attempt(
            key=key,
            principal=principal,
            target=self.target,
            fingerprint=fingerprint(self.target, self.input, self.lineage),
            run_id=mint_run_id(key),
            input_json=_INPUT.read(self.input, "input"),
            owner=self.owner or Owner("fencepost", 0, mint_token()),
            lease_ms=self.lease_ms,
            parent_run_id=self.parent_run_id,
            lineage=self.lineage,
            subject=self.subject,
            machine=self.machine,
            traceparent=traceparent,
        )


START = Form(
    "StartRequest",
    StartBody,
    {
        "target": Member(TARGET),
        "input": Member(
            Parser(ANYTHING.read, _INPUT.schema, takes_null=True),
            None,
            "Becomes the first `state` of the run.",
        ),
        "owner": Member(OWNER, None, "Send your own: its nonce makes your retry converge."),
        "lease_ms": Member(LEASE_MS, limits.LEASE_MS_DEFAULT),
        "parent_run_id": Member(IDENTIFIER, None),
        "lineage": Member(LINEAGE, None),
        "machine": Member(one_of(*machines.MACHINES), None, "The machine that the run follows."),
        "subject": Member(
            SUBJECT, None, "A subject that has a run already is answered with that run."
        ),
    },
)


class ReleaseBody(NamedTuple):
    owner: Owner
    generation: int | None


RELEASE = Form("ReleaseRequest", ReleaseBody, {"owner": BY_OWNER, "generation": GENERATION})


def _resolution(decision: str, seen: str, note: str, result: str | None) -> Resolution:
    verdict = Verdict(decision)
    if result is not None and verdict is not Verdict.EXECUTED:
        raise errors.InvalidRequest("A 'result' belongs to the decision 'executed'.")
    return Resolution(verdict, seen, note, result)


RESOLUTION = Form(
    "ResolveRequest",
    _resolution,
    {
        "decision": Member(one_of(*Verdict)),
        "seen": Member(
            SEEN, about="What was looked at: `seen` of the start. Any write since loses."
        ),
        "note": Member(NOTE, about="Why; for the audit."),
        "result": RESULT,
    },
    {
        "anyOf": [
            {"properties": {"decision": {"const": "executed"}}},
            {"properties": {"result": False}},
        ]
    },
    "A `result` belongs to the decision `executed`.",
)

# --- Handlers ----------------------------------------------------------------------------


async def post_start(request: Request, body: StartBody) -> Reply[shown.StartAnswerJson]:
    """Start the run that the key names, or answer with the run that it already has."""
    wait_s = queries.PREFER_WAIT.of(request)
    key, trace = queries.IDEMPOTENCY_KEY.of(request), queries.TRACEPARENT.of(request)
    attempt = body.attempt(key, request.sender, trace)
    try:
        decision, seen = await starts.start(request.db, attempt, wait_s=wait_s, gone=request.gone)
    except errors.Unknown as unknown:
        if body.owner is None:
            unknown.detail = _UNKNOWN_WITHOUT_OWNER
        raise
    reply = outcomes.start_reply(request, attempt, decision, seen)
    joined = seen.reservation is not None and seen.reservation.joined
    if wait_s and not joined:  # a key that joined a run is answered at once
        reply.headers["Preference-Applied"] = f"wait={wait_s}"
    return reply


_UNKNOWN_WITHOUT_OWNER = (
    "The database's reply was lost, so the run may have started, under an owner that nobody knows. "
    "The same key starts nothing twice, but it may answer START_PENDING and then "
    "START_UNRESOLVABLE. A start that sends its own owner converges on its run."
)


async def get_start(request: Request, _: None) -> Reply[shown.SeenStartJson]:
    """The reservation of a key and its run; and `seen`, which a resolution names."""
    found = await resolve.look(request.db, request.params["key"], request.viewer)
    held, run = found.held, found.run
    body: shown.SeenStartJson = {
        "reservation": serialize.reservation_json(held),
        "run": None if run is None else outcomes.run_json(request, run),
        "seen": found.seen,
    }
    return Reply(200, body, run_id=held.run_id)


async def post_release(request: Request, body: ReleaseBody) -> Reply[shown.SettledJson]:
    """Release a start that did not execute: its key can be started again."""
    key, viewer = request.params["key"], request.viewer
    outcome, held, run = await release.release(
        request.db, key, viewer, body.owner, generation=body.generation
    )
    if outcome is not Outcome.RELEASED:
        raise outcomes.start_loss(request, outcome, run)
    return outcomes.settled_reply(request, outcome, held, run)


async def post_resolve(request: Request, resolution: Resolution) -> Reply[shown.SettledJson]:
    """Settle a start that nobody executes: say whether it executed."""
    outcome, found = await resolve.resolve(
        request.db, request.params["key"], request.sender, resolution
    )
    if outcome is not Outcome.RESOLVED:
        starter = {} if found.starter is None else {"key": found.starter}
        raise outcomes.start_loss(request, outcome, found.run, **starter)
    return outcomes.settled_reply(request, outcome, found.held, found.run)


# --- Routes ------------------------------------------------------------------------------

_KEY = "/v1/starts/{key}"

ROUTES: tuple[Route[Any], ...] = (
    Route(
        method="POST",
        pattern="/v1/starts",
        scopes=("start",),
        handler=post_start,
        takes=START,
        headers=(queries.IDEMPOTENCY_KEY, queries.PREFER_WAIT, queries.TRACEPARENT),
        statuses=(200, 201),
        response_headers=("Location", "Idempotent-Replayed", "Preference-Applied"),
        problems=(
            "IDEMPOTENCY_KEY_MISSING",
            "IDEMPOTENCY_KEY_INVALID",
            "START_OWNER_MISMATCH",
            "START_TARGET_MISMATCH",
            "START_INPUT_MISMATCH",
            "START_SUBJECT_MISMATCH",
            "RUN_LOOKUP_CONFLICT",
            "START_PENDING",
            "START_UNRESOLVABLE",
            "START_ALREADY_SETTLED",
            "CONTENDED",
            "TOO_MANY_WAITERS",
            "EXECUTION_FENCED",
            "EXECUTION_FENCE_UNREADABLE",
        ),
    ),
    Route(
        method="GET",
        pattern=_KEY,
        scopes=("start", "operate"),
        handler=get_start,
        takes=queries.NO_QUERY,
    ),
    Route(
        method="POST",
        pattern=f"{_KEY}/release",
        scopes=("start",),
        handler=post_release,
        takes=RELEASE,
        headers=(queries.REQUEST_KEY,),
        problems=("FENCE_LOST", "KEY_JOINED", "SNAPSHOT_CHANGED", "WORK_RECORDED", "CONTENDED"),
    ),
    Route(
        method="POST",
        pattern=f"{_KEY}/resolve",
        scopes=("operate",),
        handler=post_resolve,
        takes=RESOLUTION,
        headers=(queries.REQUEST_KEY,),
        problems=("KEY_JOINED", "HEARTBEAT_FRESH", "CLAIM_FRESH", "SNAPSHOT_CHANGED"),
    ),
)
