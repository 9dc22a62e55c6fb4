"""The route table: every method and path, who may use it, and the function that answers it."""

from __future__ import annotations

import functools
import json
from typing import Any

from fencepost.http import administration as admin
from fencepost.http import bodies, handlers, queries
from fencepost.http import delivery_handlers as deliveries
from fencepost.http import history_handlers as history
from fencepost.http import operation_handlers as operations
from fencepost.http.exchange import Reply, Request
from fencepost.http.route import Route


async def get_openapi(request: Request, _: None) -> Reply[str]:
    """This document."""
    return Reply(200, openapi_text())


async def get_docs(request: Request, _: None) -> Reply[str]:
    """This document, as a page that needs no network."""
    from fencepost.http import docs_page

    headers = {"Content-Security-Policy": docs_page.POLICY}
    return Reply(200, docs_html(), headers, "text/html; charset=utf-8")


@functools.cache
def openapi_text() -> str:
    """The API document, made at first use."""
    from fencepost.http import openapi

    return openapi.as_text(ROUTES)


@functools.cache
def docs_html() -> str:
    """The API document as a page."""
    from fencepost.http import docs_page

    return docs_page.as_html(json.loads(openapi_text()))


_START, _WORK, _READ, _OPERATE = ("start",), ("work",), ("read",), ("operate",)
_CANCEL = ("start", "operate")
_UNREADABLE = "EXECUTION_FENCE_UNREADABLE"
_TAKEN = ("ALREADY_CLAIMED", "HEARTBEAT_FRESH", "SNAPSHOT_CHANGED")
_LOST, _FENCED = ("FENCE_LOST",), ("FENCE_LOST", "LEASE_FENCED")
_KEY, _RUN = "/v1/starts/{key}", "/v1/runs/{run_id}"
_OP = f"{_RUN}/operations/{{op}}"

_STARTS = (
    Route(
        "POST",
        "/v1/starts",
        _START,
        handlers.post_start,
        bodies.START,
        (
            *("IDEMPOTENCY_KEY_MISSING", "IDEMPOTENCY_KEY_INVALID", "START_OWNER_MISMATCH"),
            *("START_TARGET_MISMATCH", "START_INPUT_MISMATCH", "OPERATION_ID_CONFLICT"),
            *("RUN_LOOKUP_CONFLICT", "START_PENDING", "START_UNRESOLVABLE"),
            *("START_ALREADY_SETTLED", "CONTENDED", "EXECUTION_FENCED", _UNREADABLE),
        ),
        (queries.IDEMPOTENCY_KEY, queries.PREFER_WAIT),
        (200, 201),
        ("Location", "Idempotent-Replayed", "Preference-Applied"),
    ),
    Route("GET", _KEY, _START, handlers.get_start, queries.NO_QUERY),
    Route(
        "POST",
        f"{_KEY}/release",
        _START,
        handlers.post_release,
        bodies.BY_OWNER,
        ("FENCE_LOST", "SNAPSHOT_CHANGED"),
    ),
    Route(
        "POST",
        f"{_KEY}/resolve",
        _OPERATE,
        admin.post_resolve,
        bodies.RESOLUTION,
        ("ATTEMPT_CHANGED", "HEARTBEAT_FRESH", "SNAPSHOT_CHANGED"),
    ),
)

_RUNS = (
    Route("GET", "/v1/runs", _READ, handlers.list_runs, queries.RUNS),
    Route("GET", _RUN, _READ, handlers.get_run, queries.WAIT_S),
    Route("GET", f"{_RUN}/ownership", _READ, handlers.list_ownership, queries.AFTER_SEQUENCE),
    Route("GET", f"{_RUN}/lineage", _READ, handlers.get_lineage, handlers.AFTER_ROUND),
    Route("GET", f"{_RUN}/latest", _READ, handlers.get_latest, queries.NO_QUERY),
    Route("GET", f"{_RUN}/events", _READ, history.list_events, queries.AFTER_SEQUENCE),
    Route(
        "POST",
        f"{_RUN}/events",
        _WORK,
        history.post_event,
        history.EVENT,
        ("FENCE_LOST", "HEAD_CHANGED", "CONTENDED"),
    ),
    Route(
        "POST",
        f"{_RUN}/bind-change",
        _WORK,
        history.post_bind_change,
        history.BIND_CHANGE,
        (
            *("FENCE_LOST", "CHANGE_BINDING_NOT_ALLOWED", "CHANGE_RUN_ALREADY_EXISTS"),
            "CONTENDED",
        ),
    ),
    Route("GET", f"{_RUN}/integrity", _READ, history.get_integrity, queries.NO_QUERY),
    Route("POST", f"{_RUN}/claim", _WORK, handlers.post_claim, bodies.WITH_LEASE, _TAKEN),
    Route(
        "POST",
        f"{_RUN}/activate",
        _WORK,
        handlers.post_activate,
        bodies.BY_OWNER,
        ("CLAIM_LOST", "SNAPSHOT_CHANGED"),
    ),
    Route(
        "POST", f"{_RUN}/own", _WORK, handlers.post_own, bodies.OWN, (*_TAKEN, "EVIDENCE_REQUIRED")
    ),
    Route("POST", f"{_RUN}/heartbeat", _WORK, handlers.post_heartbeat, bodies.WITH_LEASE, _LOST),
    Route("POST", f"{_RUN}/reconfirm", _WORK, handlers.post_reconfirm, bodies.BY_OWNER, _LOST),
    Route(
        "POST",
        f"{_RUN}/steal",
        _WORK,
        handlers.post_steal,
        bodies.WITH_EVIDENCE,
        (*_TAKEN, "LIVENESS_UNCONFIRMED"),
    ),
    Route(
        "POST", f"{_RUN}/abandon", _WORK, handlers.post_abandon, bodies.BY_OWNER, ("CLAIM_LOST",)
    ),
    Route(
        "POST",
        f"{_RUN}/recover",
        _WORK,
        handlers.post_recover,
        bodies.WITH_EVIDENCE,
        ("LIVENESS_UNCONFIRMED", "CLAIM_CHANGED", "CLAIM_FRESH"),
    ),
    Route(
        "POST",
        f"{_RUN}/transition",
        _WORK,
        handlers.post_transition,
        bodies.TRANSITION,
        (
            *("FENCE_LOST", "GUARD_FAILED", "HEAD_CHANGED", "ILLEGAL_TRANSITION"),
            "CONTENDED",
        ),
    ),
    Route(
        "POST",
        f"{_RUN}/cancel",
        _CANCEL,
        handlers.post_cancel,
        bodies.NOTHING,
        ("TERMINAL", "ALREADY_REQUESTED", _UNREADABLE),
    ),
    Route(
        "POST",
        f"{_RUN}/acknowledge-cancel",
        _WORK,
        handlers.post_acknowledge_cancel,
        bodies.BY_OWNER,
        ("FENCE_LOST", "CANCEL_NOT_REQUESTED", "ALREADY_ACKNOWLEDGED"),
    ),
    Route(
        "POST",
        f"{_RUN}/lineage/cancel",
        _CANCEL,
        handlers.post_cancel_lineage,
        bodies.NOTHING,
        ("TERMINAL", "ALREADY_REQUESTED"),
    ),
    Route("GET", f"{_RUN}/bindings", _READ, deliveries.list_bindings, deliveries.AFTER_PLACE),
    Route(
        "POST",
        f"{_RUN}/bindings",
        _WORK,
        deliveries.post_bindings,
        deliveries.BINDINGS,
        ("FENCE_LOST", "DELIVERY_REVISION_CONFLICT", "HEAD_CHANGED"),
        gives=("Idempotent-Replayed",),
    ),
)

_OPERATIONS = (
    Route(
        "POST",
        f"{_OP}/acquire",
        _WORK,
        operations.post_acquire,
        operations.ACQUIRE,
        ("FENCE_LOST", "OPERATION_CONFLICT", "OPERATION_ALREADY_RUNNING"),
        gives=("Idempotent-Replayed",),
    ),
    Route("POST", f"{_OP}/renew", _WORK, operations.post_renew, operations.RENEW, _FENCED),
    Route("POST", f"{_OP}/assert", _WORK, operations.post_assert, operations.HELD, _FENCED),
    Route("POST", f"{_OP}/commit", _WORK, operations.post_commit, operations.COMMIT, _FENCED),
    Route(
        "POST",
        f"{_OP}/interrupt",
        _WORK,
        operations.post_interrupt,
        operations.HELD,
        ("FENCE_LOST", "LEASE_FENCED", "CONTENDED"),
    ),
    Route("GET", _OP, _READ, operations.get_operation, queries.NO_QUERY),
)

_DEPLOYMENT = (
    Route("GET", "/v1/fence", _READ, admin.get_fence, queries.NO_QUERY, (_UNREADABLE,)),
    Route(
        "POST",
        "/v1/fence/transitions",
        _OPERATE,
        admin.post_fence_transition,
        bodies.FENCE_TRANSITION,
        ("IDEMPOTENCY_KEY_INVALID", "FENCE_CAS_CONFLICT", "IDEMPOTENCY_KEY_REUSED", _UNREADABLE),
        (queries.COMMAND_KEY,),
    ),
    Route("GET", "/v1/inventory", _OPERATE, admin.get_inventory, queries.NO_QUERY),
    Route(
        "GET", "/v1/inventory/{category}", _OPERATE, admin.get_inventory_category, admin.IN_CATEGORY
    ),
    Route("POST", "/v1/retention/purge", _OPERATE, admin.post_purge, bodies.PURGE),
    Route("GET", "/v1/audit", _OPERATE, admin.list_audit, queries.AFTER_SEQUENCE),
    Route(
        "GET",
        "/v1/health",
        (),
        handlers.get_health,
        queries.DEEP,
        ("UNAUTHORIZED", "SCOPE_MISSING", "AUTH_UNCONFIGURED", _UNREADABLE),
    ),
    Route(
        "GET",
        "/docs/errors",
        (),
        handlers.get_error_docs,
        queries.NO_QUERY,
        media="text/markdown; charset=utf-8",
    ),
    Route("GET", "/openapi.json", (), get_openapi, queries.NO_QUERY),
    Route(
        "GET",
        "/docs",
        (),
        get_docs,
        queries.NO_QUERY,
        gives=("Content-Security-Policy",),
        media="text/html; charset=utf-8",
    ),
)

# The type checker has looked at each with its own type; from here on it is any.
ROUTES: tuple[Route[Any], ...] = (*_STARTS, *_RUNS, *_OPERATIONS, *_DEPLOYMENT)
