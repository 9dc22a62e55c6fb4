"""Operations: acquiring a step of a run, renewing its lease, ending it, reading it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from fencepost import errors, journal, leases, limits, operations
from fencepost.http import outcomes, queries, serialize
from fencepost.http.exchange import Reply, Request, Route
from fencepost.http.forms import Form, Member, Parser
from fencepost.http.values import (
    ANYTHING,
    BOOLEAN,
    BY_OWNER,
    GENERATION,
    OWNER_FIELD,
    integer,
    one_of,
    stored_json,
)
from fencepost.leases import StepResult
from fencepost.operations import LOSSES, Operation, Step, StepOutcome
from fencepost.problems import PROBLEMS
from fencepost.runs import Owner

if TYPE_CHECKING:
    from fencepost.http import representations as shown

# --- Forms -------------------------------------------------------------------------------


class AcquireBody(NamedTuple):
    owner: Owner
    generation: int | None
    ttl_ms: int
    fingerprint: str
    preempt: bool
    exclusive: bool
    if_lapsed: str


def _acquire(
    owner: Owner,
    generation: int | None,
    ttl_ms: int,
    payload: str | None,
    preempt: bool,
    exclusive: bool,
    if_lapsed: str,
) -> AcquireBody:
    fingerprint = payload or journal.digest(None)
    return AcquireBody(owner, generation, ttl_ms, fingerprint, preempt, exclusive, if_lapsed)


_BY = {"owner": BY_OWNER, "generation": GENERATION}
_TTL_MS = Member(
    integer(1, limits.OPERATION_TTL_MS_MAX), about="How long the lease holds, in milliseconds."
)
_TOKEN = Member(OWNER_FIELD, about="The token of the lease.")

ACQUIRE = Form(
    "AcquireRequest",
    _acquire,
    {
        **_BY,
        "ttl_ms": _TTL_MS,
        "payload": Member(
            Parser(lambda value, name: journal.digest(value), {"$ref": ANYTHING}),
            None,
            "What the step does; omitted, it is null. Another payload is another operation.",
        ),
        "preempt": Member(BOOLEAN, False, "Take the lease over while it holds."),
        "exclusive": Member(
            BOOLEAN, False, "Lose, where the lease would be shared; with `preempt` it never is."
        ),
        "if_lapsed": Member(
            one_of("take", "refuse"),
            "take",
            "Where the last lease ended without a word of its holder: take the step, or refuse.",
        ),
    },
)


class HeldBody(NamedTuple):
    """The body of the holder of a lease. `outcome` is JSON text."""

    owner: Owner
    generation: int | None
    token: str
    ttl_ms: int = 0
    outcome: str = ""


_HOLDER = {**_BY, "token": _TOKEN}
HELD = Form("HeldRequest", HeldBody, _HOLDER)
RENEW = Form("RenewRequest", HeldBody, {**_HOLDER, "ttl_ms": _TTL_MS})
COMMIT = Form(
    "CommitRequest",
    HeldBody,
    {**_HOLDER, "outcome": Member(stored_json(limits.RESULT_BYTES_MAX))},
)

# --- Handlers ----------------------------------------------------------------------------


async def post_acquire(request: Request, body: AcquireBody) -> Reply[shown.StepAnswerJson]:
    """Lease an operation, or read its committed outcome."""
    result = await leases.acquire(
        request.db,
        _step(request, body),
        body.fingerprint,
        body.ttl_ms,
        preempt=body.preempt,
        exclusive=body.exclusive,
        take_lapsed=body.if_lapsed == "take",
    )
    return _reply(request, result)


async def post_renew(request: Request, body: HeldBody) -> Reply[shown.StepAnswerJson]:
    """Let the lease hold for `ttl_ms` milliseconds from now; it never gets shorter."""
    step = _step(request, body)
    return _reply(request, await leases.renew(request.db, step, body.token, body.ttl_ms))


async def post_assert(request: Request, body: HeldBody) -> Reply[shown.StepAnswerJson]:
    """Check that the lease holds."""
    step = _step(request, body)
    return _reply(request, await leases.assert_held(request.db, step, body.token))


async def post_commit(request: Request, body: HeldBody) -> Reply[shown.StepAnswerJson]:
    """Store the outcome, which is kept as long as the run, and end the lease."""
    step = _step(request, body)
    return _reply(request, await leases.commit(request.db, step, body.token, body.outcome))


async def post_conclude(request: Request, body: HeldBody) -> Reply[shown.StepAnswerJson]:
    """Store the outcome of a step whose lease lapsed, by the token of that lease."""
    step = _step(request, body)
    return _reply(request, await leases.conclude(request.db, step, body.token, body.outcome))


async def post_interrupt(request: Request, body: HeldBody) -> Reply[shown.StepAnswerJson]:
    """End the lease without an outcome; the operation can be acquired again."""
    step = _step(request, body)
    return _reply(request, await leases.interrupt(request.db, step, body.token))


async def get_operation(request: Request, _: None) -> Reply[shown.SeenOperationJson]:
    """Read an operation and its lease."""
    run_id, id = request.params["run_id"], request.params["op"].lower()
    found = await operations.read(request.db, run_id, request.viewer, id)
    body: shown.SeenOperationJson = {
        "operation": serialize.seen_operation_json(found),
        "lease": None if found.lapsed else _lease_json(found),
    }
    return Reply(200, body, run_id=run_id)


def _step(request: Request, body: AcquireBody | HeldBody) -> Step:
    """The step that the path and the owner name."""
    params = request.params
    id = params["op"].lower()
    return Step(params["run_id"], request.viewer, body.owner, id, body.generation)


def _lease_json(operation: Operation) -> shown.LeaseJson | None:
    """The lease of a running operation; else None."""
    if operation.lease_expires_at_ms is None:
        return None
    return {"token": operation.lease_token, "expires_at_ms": operation.lease_expires_at_ms}


# Those that end a lease stay won when the operation has been leased again meanwhile: that lease is
# not the caller's.
_ENDS = {StepOutcome.COMMITTED, StepOutcome.CONCLUDED, StepOutcome.INTERRUPTED}


def _reply(request: Request, result: StepResult) -> Reply[shown.StepAnswerJson]:
    outcome, found, _ = result
    if outcome in LOSSES or found is None:
        raise _loss(result)
    ended = outcome in _ENDS
    body: shown.StepAnswerJson = {
        "outcome": outcome,
        "operation": (serialize.seen_operation_json if ended else serialize.operation_json)(found),
        "lease": None if ended else _lease_json(found),
    }
    replayed = {"Idempotent-Replayed": "true"} if outcome is StepOutcome.REPLAYED else {}
    return Reply(200, body, replayed, run_id=found.run_id)


def _loss(result: StepResult) -> errors.Conflict:
    """The 409 of a loss, with the outcome, and the operation without its lease's token."""
    outcome, found, beaten_by = result
    code, retry_after_s = outcome.upper(), None
    if outcome is StepOutcome.OPERATION_ALREADY_RUNNING and found and found.lease_expires_at_ms:
        retry_after_s = outcomes.seconds_until(found.lease_expires_at_ms, found.now_ms)
    members: dict[str, Any] = {} if beaten_by is None else {"beaten_by": beaten_by._asdict()}
    if outcome is StepOutcome.STEP_UNRESOLVED and found:
        members["lapsed"] = {"token": found.lease_token, "generation": found.generation}
    return errors.Conflict(
        PROBLEMS[code].meaning,
        code=code,
        retry_after_s=retry_after_s,
        outcome=outcome,
        operation=found and serialize.seen_operation_json(found),
        **members,
    )


# --- Routes ------------------------------------------------------------------------------

_OPERATION = "/v1/runs/{run_id}/operations/{op}"
_FENCED = ("FENCE_LOST", "LEASE_FENCED")

ROUTES: tuple[Route[Any], ...] = (
    Route(
        method="POST",
        pattern=f"{_OPERATION}/acquire",
        scopes=("work",),
        handler=post_acquire,
        takes=ACQUIRE,
        headers=(queries.REQUEST_KEY,),
        problems=(
            "FENCE_LOST",
            "OPERATION_CONFLICT",
            "STEP_UNRESOLVED",
            "OPERATION_ALREADY_RUNNING",
            "OVERTAKEN",
            "CONTENDED",
        ),
        response_headers=("Idempotent-Replayed",),
    ),
    Route(
        method="POST",
        pattern=f"{_OPERATION}/renew",
        scopes=("work",),
        handler=post_renew,
        takes=RENEW,
        problems=(*_FENCED, "CONTENDED"),
    ),
    Route(
        method="POST",
        pattern=f"{_OPERATION}/assert",
        scopes=("work",),
        handler=post_assert,
        takes=HELD,
        problems=_FENCED,
    ),
    Route(
        method="POST",
        pattern=f"{_OPERATION}/commit",
        scopes=("work",),
        handler=post_commit,
        takes=COMMIT,
        headers=(queries.REQUEST_KEY,),
        problems=(*_FENCED, "CONTENDED"),
    ),
    Route(
        method="POST",
        pattern=f"{_OPERATION}/conclude",
        scopes=("work",),
        handler=post_conclude,
        takes=COMMIT,
        headers=(queries.REQUEST_KEY,),
        problems=_FENCED,
    ),
    Route(
        method="POST",
        pattern=f"{_OPERATION}/interrupt",
        scopes=("work",),
        handler=post_interrupt,
        takes=HELD,
        headers=(queries.REQUEST_KEY,),
        problems=(*_FENCED, "CONTENDED"),
    ),
    Route(
        method="GET",
        pattern=_OPERATION,
        scopes=("read",),
        handler=get_operation,
        takes=queries.NO_QUERY,
    ),
)
