"""The routes of a run's history: what they take, and what they answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from fencepost import events, journal, limits, subjects
from fencepost.events import Append
from fencepost.http import bodies, nouns, outcomes, queries, serialize
from fencepost.http.exchange import Reply, Request
from fencepost.http.forms import IDENTIFIER, Form, Member, Parser, stored_json, too_large
from fencepost.http.queries import Page
from fencepost.runs import LOSSES, Owner

if TYPE_CHECKING:
    from fencepost.http import representations as shown


async def list_events(request: Request, page: Page) -> Reply[shown.Items[shown.Event]]:
    """The events of a run, in order."""
    [after] = page.cursor or (0,)
    run, found = await events.page(
        request.db, request.params["run_id"], request.viewer, after, page.limit
    )
    items = [serialize.event_json(stored.event, stored.created_at_ms) for stored in found]
    cursor = queries.next_cursor(page, found, lambda stored: (str(stored.event.sequence),))
    return Reply(200, {"items": items, "cursor": cursor}, run_id=run.run_id)


def _type(value: Any, name: str) -> str:
    type = IDENTIFIER.read(value, name)
    if type in journal.PRODUCT_TYPES:
        raise ValueError(f"{name!r} is one that only the service itself appends.")
    return type


def _payload(value: Any, name: str) -> Any:
    if len(journal.canonical(value)) > limits.PAYLOAD_BYTES_MAX:
        raise too_large(name, limits.PAYLOAD_BYTES_MAX)
    return value


EVENT = Form(
    "EventRequest",
    Append,
    {
        "type": Member(
            Parser(_type, {**IDENTIFIER.schema, "not": {"enum": sorted(journal.PRODUCT_TYPES)}}),
            about="Not one that only the service itself appends.",
        ),
        "payload": Member(Parser(_payload, stored_json(limits.PAYLOAD_BYTES_MAX).schema), {}),
        "owner": Member(nouns.OWNER, None, "Named, it must hold the run."),
        "expected_head": bodies.EXPECTED_HEAD,
    },
)


class ChangeOf(NamedTuple):
    owner: Owner
    change: str


BIND_CHANGE = Form(
    "BindChangeRequest", ChangeOf, {"owner": bodies.OWNER, "change": Member(nouns.CHANGE)}
)


async def post_event(request: Request, addition: Append) -> Reply[shown.Appended]:
    """Add an event of one's own."""
    outcome, run, event = await events.append(
        request.db, request.params["run_id"], request.viewer, addition
    )
    if event is None or outcome in LOSSES:
        raise outcomes.loss(outcome, run)
    shape: shown.Appended = {
        "outcome": outcome,
        "event": serialize.event_json(event, run.updated_at_ms),
        "run": serialize.run_json(run),
    }
    return Reply(200, shape, run_id=run.run_id)


async def post_bind_change(request: Request, asked: ChangeOf) -> Reply[shown.VerbAnswer]:
    """Give a provisional design run the change that it turned out to be."""
    run_id = request.params["run_id"]
    return outcomes.verb_reply(
        *await subjects.bind_change(request.db, run_id, request.viewer, asked.owner, asked.change)
    )


async def get_integrity(request: Request, _: None) -> Reply[shown.Integrity]:
    """Whether anybody has altered the history: every hash is computed again."""
    found = await events.integrity(request.db, request.params["run_id"], request.viewer)
    shape: shown.Integrity = {
        "intact": found.intact,
        "events": found.events,
        "head": {"sequence": found.head.sequence, "hash": found.head.hash},
        "first_broken": None,
    }
    if found.rule is not None:
        shape["first_broken"] = {"sequence": found.sequence, "rule": found.rule}
    return Reply(200, shape)
