"""The route table: every method and path, who may use it, and the function that answers it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import NamedTuple

from fencepost import administration, delivery_handlers, handlers, history_handlers
from fencepost import operation_handlers as operations
from fencepost.exchange import Reply, Request

Handler = Callable[[Request], Awaitable[Reply]]


class Route(NamedTuple):
    """`scopes`: any one of them admits; none means that no token is needed."""

    method: str
    pattern: str
    scopes: tuple[str, ...]
    handler: Handler


ROUTES = (
    Route("POST", "/v1/starts", ("start",), handlers.post_start),
    Route("GET", "/v1/starts/{key}", ("start",), handlers.get_start),
    Route("POST", "/v1/starts/{key}/release", ("start",), handlers.post_release),
    Route("POST", "/v1/starts/{key}/resolve", ("operate",), administration.post_resolve),
    Route("GET", "/v1/runs", ("read",), handlers.list_runs),
    Route("GET", "/v1/runs/{run_id}", ("read",), handlers.get_run),
    Route("GET", "/v1/runs/{run_id}/ownership", ("read",), handlers.list_ownership),
    Route("GET", "/v1/runs/{run_id}/lineage", ("read",), handlers.get_lineage),
    Route("GET", "/v1/runs/{run_id}/latest", ("read",), handlers.get_latest),
    Route("GET", "/v1/runs/{run_id}/events", ("read",), history_handlers.list_events),
    Route("POST", "/v1/runs/{run_id}/events", ("work",), history_handlers.post_event),
    Route("POST", "/v1/runs/{run_id}/bind-change", ("work",), history_handlers.post_bind_change),
    Route("GET", "/v1/runs/{run_id}/integrity", ("read",), history_handlers.get_integrity),
    Route("POST", "/v1/runs/{run_id}/claim", ("work",), handlers.post_claim),
    Route("POST", "/v1/runs/{run_id}/activate", ("work",), handlers.post_activate),
    Route("POST", "/v1/runs/{run_id}/own", ("work",), handlers.post_own),
    Route("POST", "/v1/runs/{run_id}/heartbeat", ("work",), handlers.post_heartbeat),
    Route("POST", "/v1/runs/{run_id}/reconfirm", ("work",), handlers.post_reconfirm),
    Route("POST", "/v1/runs/{run_id}/steal", ("work",), handlers.post_steal),
    Route("POST", "/v1/runs/{run_id}/abandon", ("work",), handlers.post_abandon),
    Route("POST", "/v1/runs/{run_id}/recover", ("work",), handlers.post_recover),
    Route("POST", "/v1/runs/{run_id}/transition", ("work",), handlers.post_transition),
    Route("POST", "/v1/runs/{run_id}/cancel", ("start", "operate"), handlers.post_cancel),
    Route(
        "POST", "/v1/runs/{run_id}/acknowledge-cancel", ("work",), handlers.post_acknowledge_cancel
    ),
    Route(
        "POST",
        "/v1/runs/{run_id}/lineage/cancel",
        ("start", "operate"),
        handlers.post_cancel_lineage,
    ),
    Route("GET", "/v1/runs/{run_id}/bindings", ("read",), delivery_handlers.list_bindings),
    Route("POST", "/v1/runs/{run_id}/bindings", ("work",), delivery_handlers.post_bindings),
    Route(
        "POST",
        "/v1/runs/{run_id}/operations/{op}/acquire",
        ("work",),
        operations.post_acquire,
    ),
    Route(
        "POST",
        "/v1/runs/{run_id}/operations/{op}/renew",
        ("work",),
        operations.post_renew,
    ),
    Route(
        "POST",
        "/v1/runs/{run_id}/operations/{op}/assert",
        ("work",),
        operations.post_assert,
    ),
    Route(
        "POST",
        "/v1/runs/{run_id}/operations/{op}/commit",
        ("work",),
        operations.post_commit,
    ),
    Route(
        "POST",
        "/v1/runs/{run_id}/operations/{op}/interrupt",
        ("work",),
        operations.post_interrupt,
    ),
    Route("GET", "/v1/runs/{run_id}/operations/{op}", ("read",), operations.get_operation),
    Route("GET", "/v1/fence", ("read",), administration.get_fence),
    Route("POST", "/v1/fence/transitions", ("operate",), administration.post_fence_transition),
    Route("GET", "/v1/inventory", ("operate",), administration.get_inventory),
    Route("GET", "/v1/inventory/{category}", ("operate",), administration.get_inventory_category),
    Route("POST", "/v1/retention/purge", ("operate",), administration.post_purge),
    Route("GET", "/v1/audit", ("operate",), administration.list_audit),
    Route("GET", "/v1/health", (), handlers.get_health),
    Route("GET", "/docs/errors", (), handlers.get_error_docs),
)
