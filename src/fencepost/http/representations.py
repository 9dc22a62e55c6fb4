"""The JSON of every answer, as types: what the API document shows and the type checker proves.

Nothing here exists at run time until the document is asked for: others import this module for
their annotations alone. In an `Annotated`, a parser or form says what JSON Schema to show.
"""

from __future__ import annotations

from typing import Annotated, Any, Generic, Literal, NotRequired, TypedDict, TypeVar

from fencepost import operations, runs
from fencepost.bindings import GATES
from fencepost.http import nouns
from fencepost.http.forms import COUNT, HASH, IDENTIFIER, POSITIVE, Parser, one_of
from fencepost.identifiers import OPERATION_ID_PATTERN, PrincipalKind
from fencepost.operations import OperationState
from fencepost.ownership import FACTS
from fencepost.reservation import ReservationState
from fencepost.runs import RunStatus

Count = Annotated[int, COUNT]
# Milliseconds since 1970 by the database's clock.
Ms = Annotated[int, COUNT]
Hash = Annotated[str, HASH]
Identifier = Annotated[str, IDENTIFIER]
Win = Annotated[runs.Outcome, one_of(*(won for won in runs.Outcome if won not in runs.LOSSES))]
StepWin = Annotated[
    operations.Outcome,
    one_of(*(won for won in operations.Outcome if won not in operations.LOSSES)),
]
T = TypeVar("T")


class Items(TypedDict, Generic[T]):
    """A page of a list. `cursor` asks for the next one; null when this is the last."""

    items: list[T]
    cursor: str | None


# --- Runs --------------------------------------------------------------------------------


class OwnerMembers(TypedDict):
    host_id: str
    pid: int
    nonce: str


class TargetMembers(TypedDict):
    kind: str
    id: str
    thread_id: NotRequired[str]


class LineageMembers(TypedDict):
    id: str
    round: int


class HeadMembers(TypedDict):
    sequence: int
    hash: str


Head = Annotated[HeadMembers, nouns.HEAD]
Owner = Annotated[OwnerMembers, nouns.OWNER]
Target = Annotated[TargetMembers, nouns.TARGET]
Lineage = Annotated[LineageMembers, nouns.LINEAGE]


class Claim(TypedDict):
    """A tentative hold on a run that its claimant has not activated yet."""

    owner: Owner
    claimed_at_ms: Ms


class Machine(TypedDict):
    """Where the machine that a run names stands, and the code that says why, if there is one.
    It may be the machine of another build.
    """

    name: Identifier
    state: Identifier
    code: NotRequired[Identifier]


class RunSummary(TypedDict):
    """A run without its state and result, as lists and losses show it."""

    run_id: Identifier
    status: RunStatus
    target: Target
    owner: Owner | None
    generation: Count
    heartbeat_at_ms: Ms | None
    lease_expires_at_ms: Ms | None
    claim: Claim | None
    created_at_ms: Ms
    started_at_ms: Ms | None
    finished_at_ms: Ms | None
    cancel_requested_at_ms: Ms | None
    cancel_acknowledged_at_ms: Ms | None
    parent_run_id: Identifier | None
    lineage: Lineage | None
    head: Head
    machine: Machine | None


class Run(RunSummary):
    """One execution of a target. `generation` is its fencing token: pass it on to what it calls."""

    state: Any
    result: Any


class VerbAnswer(TypedDict):
    """A verb that won, and the run afterwards."""

    outcome: Win
    run: Run


class Fact(TypedDict):
    """Something that became of the ownership of a run."""

    sequence: Count
    type: Annotated[str, one_of(*FACTS)]
    owner: Owner
    generation: Count
    granted_at_ms: Ms | None
    at_ms: Ms


# --- Starts ------------------------------------------------------------------------------


class Principal(TypedDict):
    kind: Annotated[str, one_of(*PrincipalKind)]
    id: str


class Reservation(TypedDict):
    """Which run a key means."""

    key: Identifier
    owner: Principal
    target: Target
    run_id: Identifier
    state: ReservationState
    attempt: Annotated[int, POSITIVE]
    outcome: str | None
    created_at_ms: Ms
    updated_at_ms: Ms


class StartAnswer(TypedDict):
    """`started`: execute it now. `replayed`: this is what became of it."""

    outcome: Literal["started", "replayed"]
    reservation: Reservation
    run: Run


class SeenStart(TypedDict):
    reservation: Reservation
    run: Run | None


class Settled(TypedDict):
    """A start that was released or resolved."""

    outcome: Win
    reservation: Reservation
    run: Run | None


# --- History -----------------------------------------------------------------------------


class Event(TypedDict):
    """`hash` is SHA-256 over RFC 8785 JSON of sequence, type, payload and prior_hash. As it is
    stored, also where somebody has altered it.
    """

    sequence: int
    type: str
    payload: Any
    prior_hash: str
    hash: str
    created_at_ms: int


class Appended(TypedDict):
    outcome: Win
    event: Event
    run: Run


class Broken(TypedDict):
    """Where a history first breaks, and the rule; without a sequence it is the run row."""

    sequence: Count | None
    rule: str


class Integrity(TypedDict):
    intact: bool
    events: Count
    head: Head
    first_broken: Broken | None


class Binding(TypedDict):
    gate: Annotated[str, one_of(*GATES)]
    revision: Annotated[int, POSITIVE]
    receipt_hash: Hash
    approval_proof: dict[str, Any] | None
    created_at_ms: Ms | None


class Bound(TypedDict):
    """`bound`, or `replayed` where all of them were bound before."""

    outcome: Win
    bindings: list[Binding]
    run: Run


# --- Operations --------------------------------------------------------------------------

OPERATION_ID: Parser[str] = Parser(
    lambda value, name: str(value), {"type": "string", "pattern": f"^{OPERATION_ID_PATTERN}$"}
)
Shown = Annotated[str, one_of(*OperationState, "lapsed")]


class Operation(TypedDict):
    """A step of a run. `outcome` is null also while there is none: `state` says which."""

    id: Annotated[str, OPERATION_ID]
    kind: str
    state: Shown
    outcome: Any
    payload_fingerprint: Hash


class Lease(TypedDict):
    token: str
    expires_at_ms: Ms | None


class StepAnswer(TypedDict):
    """A verb on an operation that won, the operation afterwards, and the lease, if it runs."""

    outcome: StepWin
    operation: Operation
    lease: Lease | None


class SeenOperation(TypedDict):
    operation: Operation
    lease: Lease | None
