"""History: listing a run's events, appending one, binding a change, checking integrity."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from fencepost import errors, events, journal, limits, receipts, subjects
from fencepost.events import Append, Stored
from fencepost.http import outcomes, pages, queries, serialize
from fencepost.http.exchange import Reply, Request, Route
from fencepost.http.forms import Form, Member, Parser
from fencepost.http.queries import Page
from fencepost.http.values import (
    BY_OWNER,
    CHANGE,
    EXPECTED_HEAD,
    GENERATION,
    HASH,
    HEAD_HINT,
    IDENTIFIER,
    OWNER,
    integer,
    stored_json,
    too_large,
)
from fencepost.journal import Head
from fencepost.runs import Owner

if TYPE_CHECKING:
    from fencepost.http import representations as shown

# --- Forms -------------------------------------------------------------------------------


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
            about="Not a type that only the service itself appends.",
        ),
        "payload": Member(Parser(_payload, stored_json(limits.PAYLOAD_BYTES_MAX).schema), {}),
        "owner": Member(OWNER, None, "Named, it must hold the run."),
        "expected_head": EXPECTED_HEAD,
        "generation": GENERATION,
        "head_hint": HEAD_HINT,
    },
)


class BindChangeBody(NamedTuple):
    owner: Owner
    generation: int | None
    change: str
    head_hint: Head | None


BIND_CHANGE = Form(
    "BindChangeRequest",
    BindChangeBody,
    {
        "owner": BY_OWNER,
        "generation": GENERATION,
        "change": Member(CHANGE),
        "head_hint": HEAD_HINT,
    },
)


class Given(NamedTuple):
    """A head that a client was told, with its receipt."""

    head: Head
    receipt: str


def _given(sequence: int, hash: str, receipt: str) -> Given:
    return Given(Head(sequence, hash), receipt)


RECEIPT = Form(
    "ReceiptRequest",
    _given,
    {
        "sequence": Member(integer(1, limits.INTEGER_MAX)),
        "hash": Member(HASH),
        "receipt": Member(HASH),
    },
    about="A head, as it was given out.",
)

# --- Handlers ----------------------------------------------------------------------------


async def list_events(request: Request, page: Page) -> Reply[shown.RowsJson[shown.EventJson]]:
    """List the events of a run, in order."""
    [after] = page.cursor or (0,)
    run_id, items, more = request.params["run_id"], pages.Items(page.limit), True
    while more and items.room:
        _, found, more = await events.page(request.db, run_id, request.viewer, after, items.room)
        items.take(found, _event_json)
        after = items.last["sequence"] if items.last else after
    return items.reply(lambda row: (row["sequence"],), more)


def _event_json(stored: Stored) -> shown.EventJson:
    event = stored.event
    return {
        "sequence": event.sequence,
        "type": event.type,
        "payload": serialize.stored("payload", event.payload_json, "fencepost_events"),
        "prior_hash": event.prior_hash,
        "hash": event.hash,
        "created_at_ms": stored.created_at_ms,
    }


async def post_event(request: Request, addition: Append) -> Reply[shown.AppendedJson]:
    """Append an event to the history of a run."""
    try:
        result, stored = await events.append(
            request.db, request.params["run_id"], request.viewer, addition
        )
    except errors.Unknown as unknown:
        if addition.expected_head is None and request.db.request is None:
            unknown.detail = _UNKNOWN_WITHOUT_HEAD
        raise
    if stored is None:
        raise outcomes.loss(request, result)
    body: shown.AppendedJson = {
        "outcome": result.outcome,
        "event": _event_json(stored),
        "run": outcomes.run_json(request, result.run),
    }
    return Reply(200, body, run_id=result.run.run_id)


_UNKNOWN_WITHOUT_HEAD = (
    "The database's reply was lost, so the event may or may not have been appended. Sent again "
    "without an `expected_head` it is appended once more: read the events of the run first. An "
    "Idempotency-Key would have made it safe to send again."
)


async def post_bind_change(request: Request, body: BindChangeBody) -> Reply[shown.VerbAnswerJson]:
    """Bind a change to a design run that was started by a provisional name."""
    run_id = request.params["run_id"]
    return outcomes.verb_reply(
        request,
        await subjects.bind_change(
            request.db,
            run_id,
            request.viewer,
            body.owner,
            body.change,
            generation=body.generation,
            head_hint=body.head_hint,
        ),
    )


async def get_integrity(request: Request, _: None) -> Reply[shown.IntegrityJson]:
    """Check the history of a run: compute every hash again, and compare it with the run."""
    found = await events.integrity(request.db, request.params["run_id"], request.viewer)
    body: shown.IntegrityJson = {
        "intact": found.intact,
        "events": found.events,
        "head": serialize.head_json(request.params["run_id"], found.head),
        "first_broken": None,
    }
    if found.rule is not None:
        body["first_broken"] = {"sequence": found.sequence, "rule": found.rule}
    return Reply(200, body)


async def post_verify_receipt(request: Request, given: Given) -> Reply[shown.VerifiedJson]:
    """Check the receipt of a head: was it given out, and does the history still have it."""
    run_id = request.params["run_id"]
    run, kept = await events.has(request.db, run_id, request.viewer, given.head)
    valid = receipts.given.is_valid(run_id, given.head, given.receipt)
    head = serialize.head_json(run_id, run.head)
    return Reply(200, {"valid": valid, "kept": kept, "head": head}, run_id=run_id)


# --- Routes ------------------------------------------------------------------------------

_RUN = "/v1/runs/{run_id}"

ROUTES: tuple[Route[Any], ...] = (
    Route(
        method="GET",
        pattern=f"{_RUN}/events",
        scopes=("read",),
        handler=list_events,
        takes=queries.AFTER_SEQUENCE,
    ),
    Route(
        method="POST",
        pattern=f"{_RUN}/events",
        scopes=("work",),
        handler=post_event,
        takes=EVENT,
        headers=(queries.REQUEST_KEY,),
        problems=("RUN_ENDED", "FENCE_LOST", "HEAD_CHANGED", "CONTENDED"),
    ),
    Route(
        method="POST",
        pattern=f"{_RUN}/bind-change",
        scopes=("work",),
        handler=post_bind_change,
        takes=BIND_CHANGE,
        headers=(queries.REQUEST_KEY,),
        problems=(
            "FENCE_LOST",
            "CHANGE_BINDING_NOT_ALLOWED",
            "CHANGE_RUN_ALREADY_EXISTS",
            "CONTENDED",
        ),
    ),
    Route(
        method="GET",
        pattern=f"{_RUN}/integrity",
        scopes=("read",),
        handler=get_integrity,
        takes=queries.NO_QUERY,
    ),
    Route(
        method="POST",
        pattern=f"{_RUN}/receipts/verify",
        scopes=("read",),
        handler=post_verify_receipt,
        takes=RECEIPT,
        problems=("RECEIPTS_UNCONFIGURED",),
    ),
)
