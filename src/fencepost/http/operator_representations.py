"""The JSON of the answers to operators, as types; see `representations`."""

from __future__ import annotations

from typing import Any, Literal, NotRequired, TypedDict

from fencepost.fence import FenceState
from fencepost.http.representations import (
    Count,
    Identifier,
    Ms,
    Operation,
    Principal,
    Reservation,
    RunSummary,
)


class Fence(TypedDict):
    """`proof_key` is for scope `operate` alone; `updated_at_ms` is null if never provisioned."""

    state: FenceState
    revision: Count
    proof_key: NotRequired[Identifier | None]
    proof_run_id: Identifier | None
    updated_at_ms: Ms | None


class Work(TypedDict):
    """How much work of a category there is: counted to 1,000, and `more` if there is more."""

    category: str
    kind: str
    count: Count
    more: bool


class OwedOperation(Operation):
    """An operation that runs, or whose lease lapsed."""

    run_id: Identifier
    lease_expires_at_ms: Ms | None


class Corrupt(TypedDict):
    """A row that breaks the named rule: it counts as work."""

    corrupt: str
    run_id: NotRequired[str]
    key: NotRequired[str]
    operation_id: NotRequired[str]


Owed = RunSummary | Reservation | OwedOperation | Corrupt


class InventoryPage(TypedDict):
    """`count` and `more`, of the whole category, are on the first page alone."""

    items: list[Owed]
    cursor: str | None
    count: NotRequired[Count]
    more: NotRequired[bool]


class Purged(TypedDict):
    """What a purge deleted; `more` if its limit kept it from finishing."""

    runs: Count
    reservations: Count
    more: bool


class Entry(TypedDict):
    """What somebody did, and why."""

    action: str
    principal: Principal
    subject: str
    note: str | None
    before: Any
    after: Any
    at_ms: Ms


class Health(TypedDict):
    """`fence` where it was asked for."""

    status: Literal["ok"]
    version: str
    fence: NotRequired[FenceState]
