"""The deployment: fence, inventory, purge, audit, health, and the service's documents."""

from __future__ import annotations

from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import fencepost
from fencepost import (
    audit,
    errors,
    fence,
    inventory,
    limits,
    marks,
    metrics,
    problems,
    retention,
    settings,
    transfer,
)
from fencepost.audit import Entry
from fencepost.fence import OPERATED, Fence, FenceCommand, FenceOutcome, FenceState
from fencepost.http import auth, pages, queries, serialize
from fencepost.http.exchange import Reply, Request, Route
from fencepost.http.forms import Form, Member, Parser
from fencepost.http.queries import Page
from fencepost.http.values import COUNT, IDENTIFIER, PRINCIPAL, integer, one_of
from fencepost.identifiers import Principal
from fencepost.inventory import Owed
from fencepost.marks import Mark
from fencepost.operations import Operation
from fencepost.reservation import Reservation
from fencepost.storage.d1 import Reader

if TYPE_CHECKING:
    from fencepost.http import representations as shown

# --- Forms -------------------------------------------------------------------------------


def _fence_transition(
    expected: str,
    next: str,
    revision: int | None,
    proof_key: str | None,
    proof_principal: Principal | None,
) -> FenceCommand:
    to = FenceState(next)
    if (to is FenceState.PROOF_ONLY) != (proof_key is not None):
        raise errors.InvalidRequest("A 'proof_key' is only for 'next' = 'proof-only'.")
    if proof_principal is not None and proof_key is None:
        raise errors.InvalidRequest("A 'proof_principal' belongs to a 'proof_key'.")
    return FenceCommand(FenceState(expected), to, revision, proof_key, proof_principal)


FENCE_TRANSITION = Form(
    "FenceTransitionRequest",
    _fence_transition,
    {
        "expected": Member(one_of(*OPERATED)),
        "next": Member(one_of(*OPERATED)),
        "revision": Member(COUNT, None, "The revision that the fence must have."),
        "proof_key": Member(IDENTIFIER, None, "The key of the start that proves."),
        "proof_principal": Member(
            PRINCIPAL, None, "Whose start it is; omitted, the first one to use the key."
        ),
    },
    {
        "anyOf": [
            {"properties": {"next": {"const": "proof-only"}}, "required": ["proof_key"]},
            {
                "properties": {
                    "next": {"not": {"const": "proof-only"}},
                    "proof_key": False,
                    "proof_principal": False,
                }
            },
        ]
    },
    "`proof_key` and `proof_principal` belong to `next` = `proof-only` alone.",
)

PURGE: Form[int] = Form(
    "PurgeRequest",
    lambda limit: int(limit),
    {"limit": Member(integer(1, limits.PURGE_ROWS_MAX), limits.PURGE_ROWS_DEFAULT)},
)


class _Look(NamedTuple):
    deep: bool
    since: Mark | None


def _mark(text: Any, name: str) -> Mark:
    try:
        return Mark.of(text)
    except ValueError:
        raise ValueError(f"Query parameter {name} is a mark that deep health gave out.") from None


DEEP = Form(
    "",
    _Look,
    {
        "deep": Member(
            Parser(lambda text, name: text == "1", {"type": "string"}),
            False,
            "`1` also looks at the schema and reads the fence, which takes a token with scope "
            "`read`.",
        ),
        "since": Member(
            Parser(_mark, {"type": "string", "pattern": r"^[0-9]{1,16}\.[0-9]{1,16}$"}),
            None,
            "The `mark` of an earlier answer: `went_back` says what is behind it.",
        ),
    },
)

# A cursor shape for each number of keys that a category has.
IN_CATEGORY = queries.page(
    *{
        len(category.keys): (queries.TEXT,) * len(category.keys)
        for category in inventory.CATEGORIES.values()
    }.values()
)

# --- The fence ---------------------------------------------------------------------------


async def get_fence(request: Request, _: None) -> Reply[shown.FenceJson]:
    """Read the fence."""
    gate = await fence.read(request.db)
    return Reply(200, _fence_json(gate, secrets="operate" in request.scopes))


async def post_fence_transition(request: Request, command: FenceCommand) -> Reply[shown.FenceJson]:
    """Move the fence to another state, if it is in the expected state."""
    outcome, gate = await transfer.transition(request.db, request.sender, command)
    if outcome is FenceOutcome.MOVED:
        return Reply(200, _fence_json(gate, secrets=True))
    raise errors.Conflict(
        f"The fence is {gate.state} at revision {gate.revision}. Nothing was written.",
        code="FENCE_CAS_CONFLICT",
        state=gate.state,
        revision=gate.revision,
    )


def _fence_json(gate: Fence, *, secrets: bool) -> shown.FenceJson:
    """The fence. Only with `secrets` (scope `operate`) it has the proof, and `last_admitted`."""
    body: shown.FenceJson = {
        "state": gate.state,
        "revision": gate.revision,
        "updated_at_ms": gate.updated_at_ms,
    }
    if gate.moved_to is not None:
        body["moved_to"] = gate.moved_to
    if secrets:
        who = gate.proof_principal
        body |= {
            "proof_key": gate.proof_key,
            "proof_principal": None if who is None else {"kind": who.kind, "id": who.id},
            "proof_run_id": gate.proof_run_id,
            "last_admitted_revision": gate.last_admitted_revision,
        }
    return body


# --- Inventory, purge, audit -------------------------------------------------------------


async def get_inventory(request: Request, _: None) -> Reply[shown.ItemsJson[shown.WorkJson]]:
    """Count the work that a drain must wait for, by category."""
    found = await inventory.counts(Reader(request.db))
    items: list[shown.WorkJson] = [
        {
            "category": name,
            "kind": inventory.CATEGORIES[name].kind,
            "count": counted.number,
            "more": counted.more,
        }
        for name, counted in found.items()
    ]
    return Reply(200, {"items": items, "cursor": None})


async def get_inventory_category(request: Request, asked: Page) -> Reply[shown.InventoryPageJson]:
    """List the work of one category that a drain must wait for."""
    category = inventory.CATEGORIES.get(request.params["category"])
    if category is None:
        names = ", ".join(inventory.CATEGORIES)
        raise errors.NotFound(f"There is no such category; there are: {names}.")
    if asked.cursor is not None and len(asked.cursor) != len(category.keys):
        raise errors.InvalidRequest("Query parameter cursor is not a cursor of this list.")
    page = await inventory.page(Reader(request.db), category, asked.cursor, asked.limit)
    first = page.counted
    counted = {} if first is None else {"count": first.number, "more": first.more}
    return pages.reply(asked.limit, page.items, _owed_json, itemgetter(*category.keys), **counted)


def _owed_json(item: Owed) -> Any:
    """A run, a reservation or an operation."""
    if isinstance(item, Reservation):
        return serialize.reservation_json(item)
    if isinstance(item, Operation):
        return {
            "run_id": item.run_id,
            **serialize.seen_operation_json(item),
            "lease_expires_at_ms": item.lease_expires_at_ms,
        }
    return serialize.run_json(item, content=False)


async def post_purge(request: Request, limit: int) -> Reply[shown.PurgedJson]:
    """Delete runs and keys that are past their retention."""
    kept = settings.retention(request.setting)
    purged = await retention.purge(request.db, request.sender, kept, limit)
    runs, reservations, more = purged
    return Reply(200, {"runs": runs, "reservations": reservations, "more": more})


async def list_audit(request: Request, page: Page) -> Reply[shown.RowsJson[shown.EntryJson]]:
    """List the audit: who did what, when and why."""
    [after] = page.cursor or (0,)
    entries = await audit.page(request.db, after, page.limit)
    return pages.reply(page.limit, entries, _entry_json, lambda row: (row["sequence"],))


def _entry_json(entry: Entry) -> shown.EntryJson:
    kind, id = entry.principal
    origin: shown.OriginJson | None = None
    if entry.origin is not None and entry.origin_sequence is not None:
        origin = {"deployment_id": entry.origin, "sequence": entry.origin_sequence}
    return {
        "action": entry.action,
        "principal": {"kind": kind, "id": id},
        "subject": entry.subject,
        "note": entry.note,
        "before": serialize.stored("before", entry.before_json, audit.TABLE),
        "after": serialize.stored("after", entry.after_json, audit.TABLE),
        "at_ms": entry.at_ms,
        "origin": origin,
    }


async def get_metrics(request: Request, _: None) -> Reply[str]:
    """Read what a monitor watches: the fence, runs, work, starts to resolve (OpenMetrics)."""
    return Reply(200, await metrics.read(Reader(request.db)), content_type=metrics.MEDIA)


# --- The service -------------------------------------------------------------------------


# The highest mark that this isolate has seen.
_highest = Mark(0, 0)


async def get_health(request: Request, asked: _Look) -> Reply[shown.HealthJson]:
    """Check the service, without a token and without D1; `?deep=1` looks at the database, too.

    `schema` other than `current`: writes are refused. `behind` or `empty`: the next start, or a
    fence transition, to the state that the fence has too, brings it forward. `foreign`: a table was
    altered; an operator must look. `went_back` names what is behind `since`, or behind what this
    isolate has seen: the database was restored to an earlier time, and has forgotten keys that
    were spent since.
    """
    global _highest
    body: shown.HealthJson = {"status": "ok", "version": fencepost.__version__}
    if asked.deep:
        auth.admit(request, ("read",))
        body["schema"] = await request.db.schema_state()
        gate, mark = await marks.read(request.db)
        _highest = _highest.with_both(mark)
        before = _highest if asked.since is None else _highest.with_both(asked.since)
        body |= {"fence": gate.state, "mark": mark.text, "went_back": mark.behind(before)}
    return Reply(200, body)


async def get_whoami(request: Request, _: None) -> Reply[shown.WhoamiJson]:
    """Read who the token says that the sender is, and what it may do."""
    kind, id = request.sender
    principal: shown.PrincipalJson = {"kind": kind, "id": id}
    return Reply(200, {"principal": principal, "scopes": sorted(request.scopes)})


async def get_error_docs(request: Request, _: None) -> Reply[str]:
    """Read the list of problem codes (Markdown)."""
    return Reply(200, problems.as_markdown(), content_type="text/markdown; charset=utf-8")


async def get_openapi(request: Request, _: None) -> Reply[str]:
    """Read this document (OpenAPI 3.1)."""
    from fencepost.http import openapi

    return Reply(200, openapi.text())


async def get_docs(request: Request, _: None) -> Reply[str]:
    """Read this document as an HTML page, which loads nothing else."""
    from fencepost.http import docs_page

    headers = {"Content-Security-Policy": docs_page.POLICY}
    return Reply(200, docs_page.text(), headers, "text/html; charset=utf-8")


# --- Routes ------------------------------------------------------------------------------

_UNREADABLE = "EXECUTION_FENCE_UNREADABLE"

ROUTES: tuple[Route[Any], ...] = (
    Route(
        method="GET",
        pattern="/v1/fence",
        scopes=("read",),
        handler=get_fence,
        takes=queries.NO_QUERY,
        problems=(_UNREADABLE,),
    ),
    Route(
        method="POST",
        pattern="/v1/fence/transitions",
        scopes=("operate",),
        handler=post_fence_transition,
        takes=FENCE_TRANSITION,
        headers=(queries.REQUEST_KEY,),
        problems=("FENCE_CAS_CONFLICT", "CONTENDED", _UNREADABLE),
    ),
    Route(
        method="GET",
        pattern="/v1/inventory",
        scopes=("operate",),
        handler=get_inventory,
        takes=queries.NO_QUERY,
    ),
    Route(
        method="GET",
        pattern="/v1/inventory/{category}",
        scopes=("operate",),
        handler=get_inventory_category,
        takes=IN_CATEGORY,
    ),
    Route(
        method="POST",
        pattern="/v1/retention/purge",
        scopes=("operate",),
        handler=post_purge,
        takes=PURGE,
        headers=(queries.REQUEST_KEY,),
    ),
    Route(
        method="GET",
        pattern="/v1/audit",
        scopes=("operate",),
        handler=list_audit,
        takes=queries.AFTER_SEQUENCE,
    ),
    Route(
        method="GET",
        pattern="/metrics",
        scopes=("operate",),
        handler=get_metrics,
        takes=queries.NO_QUERY,
        problems=(_UNREADABLE,),
        media=metrics.MEDIA,
    ),
    Route(
        method="GET",
        pattern="/v1/health",
        scopes=(),
        handler=get_health,
        takes=DEEP,
        problems=("UNAUTHORIZED", "SCOPE_MISSING", "AUTH_UNCONFIGURED", _UNREADABLE),
    ),
    Route(
        method="GET",
        pattern="/v1/whoami",
        scopes=("start", "work", "read", "operate"),
        handler=get_whoami,
        takes=queries.NO_QUERY,
    ),
    Route(
        method="GET",
        pattern="/docs/errors",
        scopes=(),
        handler=get_error_docs,
        takes=queries.NO_QUERY,
        media="text/markdown; charset=utf-8",
    ),
    Route(
        method="GET",
        pattern="/openapi.json",
        scopes=(),
        handler=get_openapi,
        takes=queries.NO_QUERY,
    ),
    Route(
        method="GET",
        pattern="/docs",
        scopes=(),
        handler=get_docs,
        takes=queries.NO_QUERY,
        response_headers=("Content-Security-Policy",),
        media="text/html; charset=utf-8",
    ),
)
