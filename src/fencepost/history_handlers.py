"""The routes of a run's history."""

from __future__ import annotations

from typing import Any

from fencepost import answers, body, errors, events, journal, limits, nouns, shapes, subjects, wire
from fencepost.events import Append
from fencepost.exchange import Reply, Request
from fencepost.runs import LOSSES


async def list_events(request: Request) -> Reply:
    limit = wire.page_limit(request.query)
    after = wire.cursor(request.query.get("cursor"), 1)
    run, found = await events.page(
        request.db,
        request.params["run_id"],
        request.viewer,
        wire.position(after[0]) if after else 0,
        limit,
    )
    last = (str(found[-1].event.sequence),) if len(found) == limit else None
    items = [shapes.event_json(stored.event, stored.created_at_ms) for stored in found]
    return Reply(200, {"items": items, "cursor": wire.cursor_text(last)}, run_id=run.run_id)


async def post_event(request: Request) -> Reply:
    members = body.parse(await request.read_body())
    addition = Append(
        type=members.take("type", _type),
        payload=members.take("payload", _payload, {}),
        owner=members.take("owner", nouns.owner, None),
        expected_head=members.take("expected_head", nouns.head, None),
    )
    members.done()
    outcome, run, event = await events.append(
        request.db, request.params["run_id"], request.viewer, addition
    )
    if event is None or outcome in LOSSES:
        raise answers.loss(outcome, run)
    shape = {
        "outcome": outcome,
        "event": shapes.event_json(event, run.updated_at_ms),
        "run": shapes.run_json(run),
    }
    return Reply(200, shape, run_id=run.run_id)


async def post_bind_change(request: Request) -> Reply:
    members = body.parse(await request.read_body())
    owner = members.take("owner", nouns.owner)
    change = members.take("change", nouns.change)
    members.done()
    run_id = request.params["run_id"]
    return answers.verb_reply(
        *await subjects.bind_change(request.db, run_id, request.viewer, owner, change)
    )


async def get_integrity(request: Request) -> Reply:
    found = await events.integrity(request.db, request.params["run_id"], request.viewer)
    broken = None if found.intact else {"sequence": found.sequence, "rule": found.rule}
    shape = {
        "intact": found.intact,
        "events": found.events,
        "head": {"sequence": found.head.sequence, "hash": found.head.hash},
        "first_broken": broken,
    }
    return Reply(200, shape)


def _type(value: Any, name: str) -> str:
    type = body.identifier(value, name)
    if type in journal.PRODUCT_TYPES:
        raise ValueError(f"{name!r} is one that only the service itself appends.")
    return type


def _payload(value: Any, name: str) -> Any:
    if len(journal.canonical(value)) > limits.PAYLOAD_BYTES_MAX:
        raise errors.InvalidRequest(
            f"{name!r} is longer than {limits.PAYLOAD_BYTES_MAX} bytes. Nothing was written.",
            code="TOO_LARGE",
        )
    return value
