"""The routes of operations: acquire, renew, assert, commit, interrupt, and looking at one."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from fencepost import errors, journal, leases, limits, operations
from fencepost.http import bodies, serialize
from fencepost.http.exchange import Reply, Request
from fencepost.http.forms import (
    ANYTHING,
    BOOLEAN,
    OWNER_FIELD,
    Form,
    Member,
    Parser,
    integer,
    stored_json,
)
from fencepost.operations import LOSSES, Operation, Outcome, Step
from fencepost.problems import PROBLEMS
from fencepost.runs import Owner

if TYPE_CHECKING:
    from fencepost.http import representations as shown

# --- Operations --------------------------------------------------------------------------


class Acquire(NamedTuple):
    owner: Owner
    ttl_ms: int
    fingerprint: str
    preempt: bool
    exclusive: bool


def _acquire(
    owner: Owner, ttl_ms: int, payload: str | None, preempt: bool, exclusive: bool
) -> Acquire:
    if preempt and exclusive:
        raise errors.InvalidRequest("'preempt' and 'exclusive' do not go together.")
    return Acquire(owner, ttl_ms, payload or journal.digest(None), preempt, exclusive)


_TTL_MS = Member(integer(1, limits.OPERATION_TTL_MS_MAX), about="How long the lease holds.")
_TOKEN = Member(OWNER_FIELD, about="The token of the lease.")

ACQUIRE = Form(
    "AcquireRequest",
    _acquire,
    {
        "owner": bodies.OWNER,
        "ttl_ms": _TTL_MS,
        "payload": Member(
            Parser(lambda value, name: journal.digest(value), {"$ref": ANYTHING}),
            None,
            "What the step does; omitted, it is null. Another payload is another operation.",
        ),
        "preempt": Member(BOOLEAN, False, "Take the lease over while it holds."),
        "exclusive": Member(BOOLEAN, False, "Lose, where the lease would be shared."),
    },
    {
        "anyOf": [
            {"properties": {"preempt": {"const": False}}},
            {"properties": {"exclusive": {"const": False}}},
        ]
    },
    "`preempt` and `exclusive` do not go together.",
)


class Held(NamedTuple):
    """What the holder of a lease sends; `outcome` is JSON text."""

    owner: Owner
    token: str
    ttl_ms: int = 0
    outcome: str = ""


HELD = Form("HeldRequest", Held, {"owner": bodies.OWNER, "token": _TOKEN})
RENEW = Form("RenewRequest", Held, {"owner": bodies.OWNER, "token": _TOKEN, "ttl_ms": _TTL_MS})
COMMIT = Form(
    "CommitRequest",
    Held,
    {
        "owner": bodies.OWNER,
        "token": _TOKEN,
        "outcome": Member(stored_json(limits.RESULT_BYTES_MAX)),
    },
)

# --- Handlers ----------------------------------------------------------------------------


async def post_acquire(request: Request, asked: Acquire) -> Reply[shown.StepAnswer]:
    """Lease an operation, or learn its outcome."""
    step = _step(request, asked.owner)
    return _reply(
        *await leases.acquire(
            request.db,
            step,
            asked.fingerprint,
            asked.ttl_ms,
            preempt=asked.preempt,
            exclusive=asked.exclusive,
        ),
        step,
    )


async def post_renew(request: Request, asked: Held) -> Reply[shown.StepAnswer]:
    """Let the lease hold for `ttl_ms` from now on, or as long as before."""
    step = _step(request, asked.owner)
    return _reply(*await leases.renew(request.db, step, asked.token, asked.ttl_ms), step)


async def post_assert(request: Request, asked: Held) -> Reply[shown.StepAnswer]:
    """Whether the lease holds."""
    step = _step(request, asked.owner)
    return _reply(*await leases.assert_held(request.db, step, asked.token), step)


async def post_commit(request: Request, asked: Held) -> Reply[shown.StepAnswer]:
    """Store the outcome, for ever, and end the lease."""
    step = _step(request, asked.owner)
    return _reply(*await leases.commit(request.db, step, asked.token, asked.outcome), step)


async def post_interrupt(request: Request, asked: Held) -> Reply[shown.StepAnswer]:
    """End the lease without an outcome."""
    step = _step(request, asked.owner)
    return _reply(*await leases.interrupt(request.db, step, asked.token), step)


async def get_operation(request: Request, _: None) -> Reply[shown.SeenOperation]:
    """The operation and its lease."""
    run_id, id = request.params["run_id"], request.params["op"].lower()
    found = await operations.read(request.db, run_id, request.viewer, id)
    shape: shown.SeenOperation = {
        "operation": serialize.seen_operation_json(found),
        "lease": None if found.lapsed else serialize.lease_json(found),
    }
    return Reply(200, shape, run_id=run_id)


def _step(request: Request, owner: Owner) -> Step:
    """Whose step it is."""
    params = request.params
    return Step(params["run_id"], request.viewer, owner, params["op"].lower())


def _reply(outcome: Outcome, found: Operation | None, step: Step) -> Reply[shown.StepAnswer]:
    if outcome in LOSSES or found is None:
        raise _loss(outcome, found)
    shape: shown.StepAnswer = {
        "outcome": outcome,
        "operation": serialize.operation_json(found),
        "lease": serialize.lease_json(found),
    }
    replayed = {"Idempotent-Replayed": "true"} if outcome is Outcome.REPLAYED else {}
    return Reply(200, shape, replayed, run_id=step.run_id)


def _loss(outcome: Outcome, found: Operation | None) -> errors.Conflict:
    """A verb that lost: 409, the outcome named, the operation without its lease's token."""
    code, retry_after_s = outcome.upper(), None
    if outcome is Outcome.OPERATION_ALREADY_RUNNING and found and found.lease_expires_at_ms:
        left_s = math.ceil((found.lease_expires_at_ms - found.now_ms) / 1000)
        retry_after_s = max(1, min(left_s, limits.PENDING_RETRY_AFTER_S))
    return errors.Conflict(
        PROBLEMS[code].meaning,
        code=code,
        retry_after_s=retry_after_s,
        outcome=outcome,
        operation=found and serialize.seen_operation_json(found),
    )
