"""The JSON of every answer, as types, for the type checker and for the API document.

Other modules import it for annotations only, so it is loaded only when the document is requested.
The JSON Schema of an `Annotated` type is that of its parser or form. The document shows the name
of a type without its ending `Json`.
"""

from __future__ import annotations

from typing import Annotated, Any, Generic, Literal, NotRequired, TypedDict, TypeVar

from fencepost import operations, runs
from fencepost.bindings import GATES
from fencepost.decision import Exit
from fencepost.fence import FenceState
from fencepost.http import values
from fencepost.http.values import (
    COUNT,
    HASH,
    IDENTIFIER,
    OPERATION_ID,
    POSITIVE,
    SEEN,
    TOKEN,
    one_of,
)
from fencepost.identifiers import PrincipalKind
from fencepost.operations import OperationState
from fencepost.ownership import FACTS
from fencepost.reservation import ReservationState
from fencepost.runs import RunStatus
from fencepost.transfer import Phase

Count = Annotated[int, COUNT]
# Milliseconds since 1970 by the database's clock.
Ms = Annotated[int, COUNT]
Hash = Annotated[str, HASH]
# 128 random bits (hex).
Token = Annotated[str, TOKEN]
Identifier = Annotated[str, IDENTIFIER]
Win = Annotated[runs.Outcome, one_of(*(won for won in runs.Outcome if won not in runs.LOSSES))]
StepWin = Annotated[
    operations.StepOutcome,
    one_of(*(won for won in operations.StepOutcome if won not in operations.LOSSES)),
]
T = TypeVar("T")


class ItemsJson(TypedDict, Generic[T]):
    """A page of a list. `cursor` is for the next page; null on the last page."""

    items: list[T]
    cursor: str | None


class BrokenRow(TypedDict):
    table: str
    rule: str


class CorruptJson(TypedDict):
    """A row that breaks a rule, by the columns that name it. In an inventory it counts as work."""

    corrupt: BrokenRow
    run_id: NotRequired[str]
    key: NotRequired[str]
    operation_id: NotRequired[str]
    sequence: NotRequired[int]
    revision: NotRequired[int]
    gate: NotRequired[str]


class RowsJson(TypedDict, Generic[T]):
    """A page of rows, of which one may be corrupt. It ends at its limit or at 4 MiB, and has one
    item at least. `cursor` is for the next page; null on the last page.
    """

    items: list[T | CorruptJson]
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
    receipt: NotRequired[str]


HeadJson = Annotated[HeadMembers, values.HEAD]
OwnerJson = Annotated[OwnerMembers, values.OWNER]
TargetJson = Annotated[TargetMembers, values.TARGET]
LineageJson = Annotated[LineageMembers, values.LINEAGE]


class HolderJson(TypedDict):
    """The process that holds a run, or claims it. A replayed answer shows no nonce but the
    caller's own.
    """

    host_id: Annotated[str, values.OWNER_FIELD]
    pid: Count
    nonce: NotRequired[Annotated[str, values.OWNER_FIELD]]


class ClaimJson(TypedDict):
    """A tentative hold on a run. `activate` turns it into an ownership."""

    owner: HolderJson
    claimed_at_ms: Ms


class MachineJson(TypedDict):
    """The state of the run's machine, and the code (the reason), if there is one. The machine may
    be one of another build.
    """

    name: Identifier
    state: Identifier
    code: NotRequired[Identifier]


class RunSummaryJson(TypedDict):
    """A run without its state and result, as in lists and refusals."""

    run_id: Identifier
    status: RunStatus
    target: TargetJson
    owner: HolderJson | None
    generation: Count
    heartbeat_at_ms: Ms | None
    lease_expires_at_ms: Ms | None
    claim: ClaimJson | None
    created_at_ms: Ms
    started_at_ms: Ms | None
    finished_at_ms: Ms | None
    cancel_requested_at_ms: Ms | None
    cancel_acknowledged_at_ms: Ms | None
    parent_run_id: Identifier | None
    lineage: LineageJson | None
    head: HeadJson
    machine: MachineJson | None
    # The trace context (W3C) of the request that started it.
    traceparent: str | None


class RunJson(RunSummaryJson):
    """One execution of a target. `generation` is its fencing token."""

    state: Any
    result: Any


# State and result are there only for whoever may read them.
AfterwardsJson = RunJson | RunSummaryJson


class BeatenJson(TypedDict):
    """What stands in a verb's way: the run's last ownership fact, or the last event, which has no
    generation.
    """

    type: str
    generation: Count | None
    sequence: Count
    at_ms: Ms


class GrantedJson(TypedDict):
    """What was granted: the generation of an ownership, or when a claim was made."""

    generation: Count | None
    claimed_at_ms: Ms | None


class VerbAnswerJson(TypedDict):
    """A verb that won, and the run afterwards. `granted`: the caller's generation, or claim.
    `beaten_by`: what has taken the run from the caller since; its generation is not the caller's.
    """

    outcome: Win
    run: AfterwardsJson
    granted: NotRequired[GrantedJson]
    beaten_by: NotRequired[BeatenJson]


class FactJson(TypedDict):
    """What became of the ownership of a run or of its cancel. A request for a cancel names the
    principal who made it, every other fact a process.
    """

    sequence: Count
    type: Annotated[str, one_of(*FACTS)]
    owner: OwnerJson | None
    principal: PrincipalJson | None
    generation: Count
    granted_at_ms: Ms | None
    at_ms: Ms


# --- Starts ------------------------------------------------------------------------------


class PrincipalJson(TypedDict):
    kind: Annotated[str, one_of(*PrincipalKind)]
    id: str


class ReservationJson(TypedDict):
    """Which run a key names. `joined`: it is the run of its subject, which another key started, and
    may have another target and input than this key's.
    """

    key: Identifier
    owner: PrincipalJson
    target: TargetJson
    run_id: Identifier
    joined: bool
    state: ReservationState
    attempt: Annotated[int, POSITIVE]
    outcome: str | None
    # The revision of the fence that admitted its last attempt; null if an old build did.
    admitted_revision: Count | None
    created_at_ms: Ms
    updated_at_ms: Ms


class ReplaysJson(TypedDict):
    """How long the key replays, once its run has ended; then the run may be purged.

    `key_until_ms`: until then the key starts nothing, for all that is known; the purge of the run
    may come later, and moves it.
    """

    run_until_ms: Ms
    key_until_ms: Ms


class StartAnswerJson(TypedDict):
    """`started`: execute the run now. `replayed`: the run that the key already has. `replays` is
    null until the run has ended.
    """

    outcome: Literal["started", "replayed"]
    reservation: ReservationJson
    run: RunJson
    replays: ReplaysJson | None


class SeenStartJson(TypedDict):
    """`seen` names this look, for a resolution: any write to the start makes another one."""

    reservation: ReservationJson
    run: RunJson | RunSummaryJson | None
    seen: Annotated[str, SEEN]


class SettledJson(TypedDict):
    """A start that was released or resolved."""

    outcome: Win
    reservation: ReservationJson
    run: RunJson | RunSummaryJson | None


# --- History -----------------------------------------------------------------------------


class EventJson(TypedDict):
    """`hash` is SHA-256 over RFC 8785 JSON of sequence, type, payload and prior_hash. The event is
    shown as it is stored, unchecked.
    """

    sequence: int
    type: str
    payload: Any
    prior_hash: str
    hash: str
    created_at_ms: int


class AppendedJson(TypedDict):
    outcome: Win
    event: EventJson
    run: AfterwardsJson


class BrokenJson(TypedDict):
    """The first rule that is broken, and at which event; without a sequence, by the run row."""

    sequence: Count | None
    rule: str


class IntegrityJson(TypedDict):
    intact: bool
    events: Count
    head: HeadJson
    first_broken: BrokenJson | None


class VerifiedJson(TypedDict):
    """`valid`: this deployment gave the receipt out. `kept`: the event at its sequence has its hash
    now. A receipt that is valid and not kept proves that the history was replaced.
    """

    valid: bool
    kept: bool
    head: HeadJson


class BindingJson(TypedDict):
    gate: Annotated[str, one_of(*GATES)]
    revision: Annotated[int, POSITIVE]
    receipt_hash: Hash
    approval_proof: dict[str, Any] | None
    created_at_ms: Ms | None


class BoundJson(TypedDict):
    """`bound`, or `replayed` if all of them were bound before."""

    outcome: Win
    bindings: list[BindingJson]
    run: AfterwardsJson


# --- Operations --------------------------------------------------------------------------

Shown = Annotated[str, one_of(*OperationState, "lapsed")]


class OperationJson(TypedDict):
    """A step of a run. `outcome` is null until `state` is `committed`, and may be null then too."""

    id: Annotated[str, OPERATION_ID]
    kind: str
    state: Shown
    outcome: Any
    # Why an interrupted one is.
    cause: operations.Cause | None
    payload_fingerprint: Hash


class LeaseJson(TypedDict):
    token: str
    expires_at_ms: Ms | None


class StepAnswerJson(TypedDict):
    """The outcome of a verb, the operation afterwards, and the lease of a running operation."""

    outcome: StepWin
    operation: OperationJson
    lease: LeaseJson | None


class SeenOperationJson(TypedDict):
    operation: OperationJson
    lease: LeaseJson | None


# --- Operators ---------------------------------------------------------------------------


class FenceJson(TypedDict):
    """`updated_at_ms` is null if never provisioned. The rest is for scope `operate` alone.

    `last_admitted_revision`: no run was started under a later revision. `moved_to`: where to go,
    once it is sealed.
    """

    state: FenceState
    revision: Count
    proof_key: NotRequired[Identifier | None]
    proof_principal: NotRequired[PrincipalJson | None]
    proof_run_id: NotRequired[Identifier | None]
    last_admitted_revision: NotRequired[Count | None]
    updated_at_ms: Ms | None
    moved_to: NotRequired[str]


class WorkJson(TypedDict):
    """How much work a category has: counted up to 1,000; `more` if there is more."""

    category: str
    kind: str
    count: Count
    more: bool


class OwedOperationJson(OperationJson):
    """An operation that is running, or whose lease has lapsed."""

    run_id: Identifier
    lease_expires_at_ms: Ms | None


Owed = RunSummaryJson | ReservationJson | OwedOperationJson | CorruptJson


class InventoryPageJson(TypedDict):
    """`count` and `more` are of the whole category, and on the first page only."""

    items: list[Owed]
    cursor: str | None
    count: NotRequired[Count]
    more: NotRequired[bool]


class PurgedJson(TypedDict):
    """How much a purge deleted; `more` if it stopped at its limit."""

    runs: Count
    reservations: Count
    more: bool


class OriginJson(TypedDict):
    """The deployment that wrote an entry, and its number there."""

    deployment_id: Token
    sequence: Count


class EntryJson(TypedDict):
    """An act of an operator, and the reason. `origin`: where a move has brought it from."""

    action: str
    principal: PrincipalJson
    subject: str
    note: str | None
    before: Any
    after: Any
    at_ms: Ms
    origin: OriginJson | None


class SumJson(TypedDict):
    """How many rows a table has, and the digest of all of them."""

    rows: Count
    digest: Hash


class ManifestJson(TypedDict):
    reservations: SumJson
    runs: SumJson
    snapshots: SumJson
    events: SumJson
    ownership: SumJson
    subjects: SumJson
    bindings: SumJson
    operations: SumJson
    audit: SumJson
    requests: SumJson


class ImportedJson(TypedDict):
    """Up to where a target has taken a table: the `cursor` for its next page."""

    table: str
    cursor: str | None


class TransferJson(TypedDict):
    """Where a deployment stands in a move. `deployment_id`: its own, if a move has named it.

    Of a source: whom it is `sealed_for`, and with the phase `sealed` the `manifest` of its rows.
    `seal` is the secret that goes with them; keep it as a token. Of a target: `imported`.
    `receipt` says to the holder of the seal that this target is void.
    """

    phase: Phase
    state: FenceState
    revision: Count
    last_admitted_revision: Count | None
    deployment_id: Token | None
    target_id: Token | None
    moved_to: str | None
    seal: Hash | None
    manifest: ManifestJson | None
    imported: list[ImportedJson] | None
    receipt: Hash | None


class RowJson(TypedDict):
    """The values of a row in the order of `columns`, and SHA-256 of their JSON array."""

    digest: Hash
    values: list[str | int | None]


class RowsPageJson(TypedDict):
    """A page of a table, as a `POST` to the target's route of that table takes it.

    `after` is the key of the row before it. `digest` is that of its rows, one after the other.
    """

    table: str
    target_id: Token | None
    seal: Hash | None
    columns: list[str]
    after: list[str | int | None] | None
    rows: list[RowJson]
    digest: Hash
    cursor: str | None


class TakenJson(TypedDict):
    """How many rows a page had, and how many of them were not there yet."""

    rows: Count
    inserted: Count


class WhoamiJson(TypedDict):
    """Who the token says that the sender is, and what it may do."""

    principal: PrincipalJson
    scopes: list[str]


class HealthJson(TypedDict):
    """All but `status` and `version` is there only with `?deep=1`. `mark`: how far the deployment
    has come, for `since`; `went_back`: what is behind an earlier mark.
    """

    status: Literal["ok"]
    version: str
    schema: NotRequired[Literal["current", "behind", "empty", "foreign"]]
    fence: NotRequired[FenceState]
    mark: NotRequired[str]
    went_back: NotRequired[list[Literal["fence", "audit"]]]


# --- Problem documents -------------------------------------------------------------------
# The members of a code beyond RFC 9457.


class RunLoss(TypedDict):
    """The present run; null if there is none any more."""

    outcome: str
    run: RunSummaryJson | None
    beaten_by: NotRequired[BeatenJson]


class GrantLoss(RunLoss):
    """A grant that the caller had, and has no more."""

    granted: GrantedJson


class JoinedLoss(RunLoss):
    """`key` is the one that started the run."""

    key: NotRequired[Identifier]


class StepLoss(TypedDict):
    """The present operation; null if there is none."""

    outcome: str
    operation: OperationJson | None


class AnyLoss(TypedDict):
    """Of a verb on a run, or on an operation."""

    outcome: str
    run: NotRequired[RunSummaryJson | None]
    operation: NotRequired[OperationJson | None]
    beaten_by: NotRequired[BeatenJson]


class AnyGrantLoss(AnyLoss):
    """A grant of a run that the caller had, and has no more; or a lease of an operation."""

    granted: NotRequired[GrantedJson]


class LapsedJson(TypedDict):
    """The last lease of an operation, which is over. Its token is good only to conclude."""

    token: str
    generation: Count


class UnresolvedStep(StepLoss):
    lapsed: LapsedJson


class DeliveryLoss(RunLoss):
    """The binding that is stored for this gate and revision."""

    gate: Annotated[str, one_of(*GATES)]
    revision: Annotated[int, POSITIVE]


class MoveLoss(RunLoss):
    """The states of the machine between which there is no move. Null: the run has no machine."""

    from_state: str | None
    to_state: str


class OtherTarget(TypedDict):
    target: TargetJson


class Spent(TypedDict):
    """`key_until_ms`: when the key may be purged, and be new again; null if never."""

    run_id: Identifier
    key_until_ms: Ms | None


class ExitJson(TypedDict):
    """A verb that would work now, and its path."""

    verb: Annotated[str, one_of(*Exit)]
    path: str


class UnresolvableStart(TypedDict):
    run_id: Identifier
    attempt: Annotated[int, POSITIVE]
    exits: list[ExitJson]


class PendingStart(TypedDict):
    run_id: Identifier
    pending_since_ms: Ms | None


class FenceClosed(TypedDict):
    state: FenceState


class FenceMoved(TypedDict):
    state: FenceState
    revision: Count


class MovedTo(TypedDict):
    moved_to: str | None


class TransferRefused(TypedDict):
    reason: str
    phase: Phase


class RowRefused(TypedDict):
    table: str
    row: dict[str, Any]
    reason: Literal["changed", "differs", "unexpected", "invalid"]


class TableDiffers(TypedDict):
    """How many rows the table has here, and how many where it was sealed."""

    table: str
    rows: Count
    sealed_rows: Count


class OtherShape(TypedDict):
    table: str
    column: str | None
    difference: str


class Allowed(TypedDict):
    allow: list[str]


PROBLEM_MEMBERS: dict[str, Any] = {
    **{outcome.upper(): StepLoss for outcome in operations.LOSSES},
    **{outcome.upper(): RunLoss for outcome in runs.LOSSES},
    "FENCE_LOST": AnyLoss,
    "OVERTAKEN": AnyGrantLoss,
    "STEP_UNRESOLVED": UnresolvedStep,
    "LEASE_LAPSED": GrantLoss,
    "KEY_JOINED": JoinedLoss,
    "DELIVERY_REVISION_CONFLICT": DeliveryLoss,
    "ILLEGAL_TRANSITION": MoveLoss,
    "START_TARGET_MISMATCH": OtherTarget,
    "START_ALREADY_SETTLED": Spent,
    "START_UNRESOLVABLE": UnresolvableStart,
    "START_PENDING": PendingStart,
    "EXECUTION_FENCED": FenceClosed,
    "DEPLOYMENT_MOVED": MovedTo,
    "TRANSFER_REFUSED": TransferRefused,
    "TRANSFER_ROW_REFUSED": RowRefused,
    "TRANSFER_DIFFERS": TableDiffers,
    "FENCE_CAS_CONFLICT": FenceMoved,
    "ROW_CORRUPT": BrokenRow,
    "SCHEMA_MISMATCH": OtherShape,
    "METHOD_NOT_ALLOWED": Allowed,
}
