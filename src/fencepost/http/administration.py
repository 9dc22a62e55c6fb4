"""The routes of operators: the fence, resolving, inventory, purge, audit."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fencepost import audit, errors, fence, inventory, resolve, retention
from fencepost.http import outcomes, queries, serialize
from fencepost.http.exchange import Reply, Request
from fencepost.http.queries import Page
from fencepost.resolve import Resolution
from fencepost.runs import Outcome
from fencepost.storage.d1 import Reader

if TYPE_CHECKING:
    from fencepost.http import operator_representations as operators
    from fencepost.http import representations as shown


async def get_fence(request: Request, _: None) -> Reply[operators.Fence]:
    """The fence."""
    gate = await fence.read(request.db)
    return Reply(200, serialize.fence_json(gate, secrets="operate" in request.scopes))


async def post_fence_transition(
    request: Request, command: fence.Transition
) -> Reply[operators.Fence]:
    """Move the fence, if it is where the command expects it."""
    command = command._replace(key=queries.COMMAND_KEY.of(request))
    moved, gate = await fence.transition(request.db, request.sender, command)
    return outcomes.fence_reply(moved, gate)


async def post_resolve(request: Request, resolution: Resolution) -> Reply[shown.Settled]:
    """Settle what happened to an abandoned start."""
    outcome, held, run = await resolve.resolve(
        request.db, request.params["key"], request.sender, resolution
    )
    if outcome is not Outcome.RESOLVED:
        raise outcomes.loss(outcome, run)
    return outcomes.settled_reply(outcome, held, run)


async def get_inventory(request: Request, _: None) -> Reply[shown.Items[operators.Work]]:
    """How much work each category holds."""
    found = await inventory.counts(Reader(request.db))
    items: list[operators.Work] = [
        {
            "category": name,
            "kind": inventory.CATEGORIES[name].kind,
            "count": counted.number,
            "more": counted.more,
        }
        for name, counted in found.items()
    ]
    return Reply(200, {"items": items, "cursor": None})


# A cursor of each length that a category has.
IN_CATEGORY = queries.page(
    *{
        len(category.keys): (queries.TEXT,) * len(category.keys)
        for category in inventory.CATEGORIES.values()
    }.values()
)


async def get_inventory_category(request: Request, asked: Page) -> Reply[operators.InventoryPage]:
    """The work of one category that a drain waits for."""
    category = inventory.CATEGORIES.get(request.params["category"])
    if category is None:
        names = ", ".join(inventory.CATEGORIES)
        raise errors.NotFound(f"There is no such category; there are: {names}.")
    if asked.cursor is not None and len(asked.cursor) != len(category.keys):
        raise errors.InvalidRequest("Query parameter cursor is not one that this list gave out.")
    page = await inventory.page(Reader(request.db), category, asked.cursor, asked.limit)
    shape: operators.InventoryPage = {
        "items": page.items,
        "cursor": queries.cursor_text(page.cursor),
    }
    if page.counted is not None:
        shape["count"], shape["more"] = page.counted
    return Reply(200, shape)


async def post_purge(request: Request, limit: int) -> Reply[operators.Purged]:
    """Delete what is past its retention, by hand."""
    kept = queries.retention(request.setting)
    purged = await retention.purge(request.db, request.sender, kept, limit)
    runs, reservations, more = purged
    return Reply(200, {"runs": runs, "reservations": reservations, "more": more})


async def list_audit(request: Request, page: Page) -> Reply[shown.Items[operators.Entry]]:
    """Who did what, and why, in order."""
    [after] = page.cursor or (0,)
    entries = await audit.page(request.db, after, page.limit)
    items = [serialize.audit_json(entry) for entry in entries]
    cursor = queries.next_cursor(page, entries, lambda entry: (str(entry.sequence),))
    return Reply(200, {"items": items, "cursor": cursor})
