"""What problem documents say beyond RFC 9457, by their code; for the API document alone."""

from __future__ import annotations

from typing import Annotated, Any, NotRequired, TypedDict

from fencepost import operations, runs
from fencepost.bindings import GATES
from fencepost.fence import FenceState
from fencepost.http.forms import POSITIVE, one_of
from fencepost.http.representations import Count, Identifier, Ms, Operation, RunSummary, Target


class RunLoss(TypedDict):
    """The run that the verb lost, as it is; null where there is none any more."""

    outcome: str
    run: RunSummary | None


class StepLoss(TypedDict):
    """The operation that the verb lost, as it is; null where there is none."""

    outcome: str
    operation: Operation | None


class AnyLoss(TypedDict):
    """Of a verb on a run, or of one on an operation."""

    outcome: str
    run: NotRequired[RunSummary | None]
    operation: NotRequired[Operation | None]


class DeliveryLoss(RunLoss):
    """What is bound already, in which revision of which gate."""

    gate: Annotated[str, one_of(*GATES)]
    revision: Annotated[int, POSITIVE]


# With a member that is no name in Python.
MoveLoss = TypedDict(
    "MoveLoss",
    {"outcome": str, "run": RunSummary | None, "from": str | None, "to": str},
)


class Reserved(TypedDict):
    target: Target


class Settled(TypedDict):
    run_id: Identifier


class Unresolvable(TypedDict):
    run_id: Identifier
    attempt: Annotated[int, POSITIVE]


class Pending(TypedDict):
    run_id: Identifier
    pending_since_ms: Ms | None


class Closed(TypedDict):
    state: FenceState


class Moved(TypedDict):
    state: FenceState
    revision: Count


class BrokenRow(TypedDict):
    table: str
    rule: str


class OtherShape(TypedDict):
    table: str
    column: str | None
    difference: str


class Allowed(TypedDict):
    allow: list[str]


EXTENSIONS: dict[str, Any] = {
    **{outcome.upper(): StepLoss for outcome in operations.LOSSES},
    **{outcome.upper(): RunLoss for outcome in runs.LOSSES},
    "FENCE_LOST": AnyLoss,
    "DELIVERY_REVISION_CONFLICT": DeliveryLoss,
    "ILLEGAL_TRANSITION": MoveLoss,
    "START_TARGET_MISMATCH": Reserved,
    "START_ALREADY_SETTLED": Settled,
    "START_UNRESOLVABLE": Unresolvable,
    "START_PENDING": Pending,
    "EXECUTION_FENCED": Closed,
    "FENCE_CAS_CONFLICT": Moved,
    "ROW_CORRUPT": BrokenRow,
    "SCHEMA_MISMATCH": OtherShape,
    "METHOD_NOT_ALLOWED": Allowed,
}
