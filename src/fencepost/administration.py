"""The routes of operators: the fence, resolving, inventory, purge, audit."""

from __future__ import annotations

from typing import Any

from fencepost import (
    answers,
    audit,
    errors,
    fence,
    inventory,
    limits,
    resolve,
    retention,
    shapes,
    wire,
)
from fencepost import body as bodies
from fencepost.d1 import Reader
from fencepost.exchange import Reply, Request
from fencepost.runs import Outcome


async def get_fence(request: Request) -> Reply:
    gate = await fence.read(request.db)
    return Reply(200, shapes.fence_json(gate, secrets="operate" in request.scopes))


async def post_fence_transition(request: Request) -> Reply:
    header = request.header("idempotency-key")
    key = None if header is None else wire.idempotency_key(header)
    command = wire.fence_transition(key, bodies.parse(await request.read_body()))
    moved, gate = await fence.transition(request.db, request.sender, command)
    return answers.fence_reply(moved, gate)


async def post_resolve(request: Request) -> Reply:
    resolution = wire.resolution(bodies.parse(await request.read_body()))
    outcome, held, run = await resolve.resolve(
        request.db, request.params["key"], request.sender, resolution
    )
    if outcome is not Outcome.RESOLVED:
        raise answers.loss(outcome, run)
    return answers.settled_reply(outcome, held, run)


async def get_inventory(request: Request) -> Reply:
    found = await inventory.counts(Reader(request.db))
    items = [
        {"category": name, "kind": inventory.CATEGORIES[name].kind, "count": count}
        for name, count in found.items()
    ]
    return Reply(200, {"items": items, "cursor": None})


async def get_inventory_category(request: Request) -> Reply:
    category = inventory.CATEGORIES.get(request.params["category"])
    if category is None:
        names = ", ".join(inventory.CATEGORIES)
        raise errors.NotFound(f"There is no such category; there are: {names}.")
    after = wire.cursor(request.query.get("cursor"), len(category.keys))
    page = await inventory.page(Reader(request.db), category, after, wire.page_limit(request.query))
    shape: dict[str, Any] = {"items": page.items, "cursor": wire.cursor_text(page.cursor)}
    if page.count is not None:
        shape["count"] = page.count
    return Reply(200, shape)


async def post_purge(request: Request) -> Reply:
    members = bodies.parse(await request.read_body())
    limit = members.take(
        "limit", bodies.integer(1, limits.PURGE_ROWS_MAX), limits.PURGE_ROWS_DEFAULT
    )
    members.done()
    kept = wire.retention(request.setting)
    purged = await retention.purge(request.db, request.sender, kept, limit)
    return Reply(200, purged._asdict())


async def list_audit(request: Request) -> Reply:
    limit = wire.page_limit(request.query)
    after = wire.cursor(request.query.get("cursor"), 1)
    entries = await audit.page(request.db, wire.position(after[0]) if after else 0, limit)
    last = (str(entries[-1].sequence),) if len(entries) == limit else None
    items = [shapes.audit_json(entry) for entry in entries]
    return Reply(200, {"items": items, "cursor": wire.cursor_text(last)})
