"""The routes of operations: acquire, renew, assert, commit, interrupt, and looking at one."""

from __future__ import annotations

import math
from typing import Any

from fencepost import body as bodies
from fencepost import errors, journal, leases, limits, nouns, operations, shapes
from fencepost.body import Body, boolean, integer, owner_field, stored_json
from fencepost.exchange import Reply, Request
from fencepost.operations import LOSSES, Operation, Outcome, Step
from fencepost.problems import PROBLEMS

_ttl_ms = integer(1, limits.OPERATION_TTL_MS_MAX)


async def post_acquire(request: Request) -> Reply:
    step, members = await _step(request)
    ttl_ms = members.take("ttl_ms", _ttl_ms)
    fingerprint = members.take("payload", _fingerprint, None) or journal.digest(None)
    preempt = members.take("preempt", boolean, False)
    exclusive = members.take("exclusive", boolean, False)
    members.done()
    if preempt and exclusive:
        raise errors.InvalidRequest("'preempt' and 'exclusive' do not go together.")
    return _reply(
        *await leases.acquire(
            request.db, step, fingerprint, ttl_ms, preempt=preempt, exclusive=exclusive
        ),
        step,
    )


async def post_renew(request: Request) -> Reply:
    step, members = await _step(request)
    token, ttl_ms = members.take("token", owner_field), members.take("ttl_ms", _ttl_ms)
    members.done()
    return _reply(*await leases.renew(request.db, step, token, ttl_ms), step)


async def post_assert(request: Request) -> Reply:
    step, members = await _step(request)
    token = members.take("token", owner_field)
    members.done()
    return _reply(*await leases.assert_held(request.db, step, token), step)


async def post_commit(request: Request) -> Reply:
    step, members = await _step(request)
    token = members.take("token", owner_field)
    outcome_json = members.take("outcome", stored_json(limits.RESULT_BYTES_MAX))
    members.done()
    return _reply(*await leases.commit(request.db, step, token, outcome_json), step)


async def post_interrupt(request: Request) -> Reply:
    step, members = await _step(request)
    token = members.take("token", owner_field)
    members.done()
    return _reply(*await leases.interrupt(request.db, step, token), step)


async def get_operation(request: Request) -> Reply:
    run_id, id = request.params["run_id"], request.params["op"].lower()
    found = await operations.read(request.db, run_id, request.viewer, id)
    lease = None if found.lapsed else shapes.lease_json(found)
    shape = {"operation": shapes.seen_operation_json(found), "lease": lease}
    return Reply(200, shape, run_id=run_id)


async def _step(request: Request) -> tuple[Step, Body]:
    """Whose step it is, and what is left of the body."""
    members = bodies.parse(await request.read_body())
    owner = members.take("owner", nouns.owner)
    params = request.params
    return Step(params["run_id"], request.viewer, owner, params["op"].lower()), members


def _fingerprint(value: Any, name: str) -> str:
    return journal.digest(value)


def _reply(outcome: Outcome, found: Operation | None, step: Step) -> Reply:
    if outcome in LOSSES or found is None:
        raise _loss(outcome, found)
    shape = {
        "outcome": outcome,
        "operation": shapes.operation_json(found),
        "lease": shapes.lease_json(found),
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
        operation=found and shapes.seen_operation_json(found),
    )
