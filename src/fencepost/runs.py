"""The run row and its rules, and the values that the verbs on a run take and return."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, NamedTuple

from fencepost.identifiers import Principal, Target
from fencepost.journal import Head
from fencepost.storage.rows import Rules, all_or_none, check_row, whole

TABLE = "fencepost_runs"


class RunStatus(StrEnum):
    PENDING = "pending"
    RUNNING = "running"
    SUSPENDED = "suspended"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


TERMINAL = frozenset({RunStatus.COMPLETED, RunStatus.FAILED, RunStatus.CANCELLED})


class Outcome(StrEnum):
    """The result of a verb on a run: first the wins, then the losses."""

    CLAIMED = "claimed"
    ACTIVATED = "activated"
    OWNED = "owned"
    RENEWED = "renewed"
    RECONFIRMED = "reconfirmed"
    STOLEN = "stolen"
    ABANDONED = "abandoned"
    RECOVERED = "recovered"
    TRANSITIONED = "transitioned"
    RELEASED = "released"
    RESOLVED = "resolved"
    APPENDED = "appended"
    BOUND = "bound"
    CANCEL_REQUESTED = "cancel_requested"
    CANCEL_ACKNOWLEDGED = "cancel_acknowledged"
    REPLAYED = "replayed"

    CLAIM_LOST = "claim_lost"
    CLAIM_CHANGED = "claim_changed"
    CLAIM_FRESH = "claim_fresh"
    ALREADY_CLAIMED = "already_claimed"
    HEARTBEAT_FRESH = "heartbeat_fresh"
    SNAPSHOT_CHANGED = "snapshot_changed"
    EVIDENCE_REQUIRED = "evidence_required"
    LIVENESS_UNCONFIRMED = "liveness_unconfirmed"
    FENCE_LOST = "fence_lost"
    GUARD_FAILED = "guard_failed"
    HEAD_CHANGED = "head_changed"
    OVERTAKEN = "overtaken"
    LEASE_LAPSED = "lease_lapsed"
    WORK_RECORDED = "work_recorded"
    KEY_JOINED = "key_joined"
    ILLEGAL_TRANSITION = "illegal_transition"
    DELIVERY_REVISION_CONFLICT = "delivery_revision_conflict"
    TERMINAL = "terminal"
    RUN_ENDED = "run_ended"
    ALREADY_REQUESTED = "already_requested"
    CANCEL_NOT_REQUESTED = "cancel_not_requested"
    CHANGE_BINDING_NOT_ALLOWED = "change_binding_not_allowed"
    CHANGE_RUN_ALREADY_EXISTS = "change_run_already_exists"


LOSSES = frozenset(
    {
        Outcome.CLAIM_LOST,
        Outcome.CLAIM_CHANGED,
        Outcome.CLAIM_FRESH,
        Outcome.ALREADY_CLAIMED,
        Outcome.HEARTBEAT_FRESH,
        Outcome.SNAPSHOT_CHANGED,
        Outcome.EVIDENCE_REQUIRED,
        Outcome.LIVENESS_UNCONFIRMED,
        Outcome.FENCE_LOST,
        Outcome.GUARD_FAILED,
        Outcome.HEAD_CHANGED,
        Outcome.ILLEGAL_TRANSITION,
        Outcome.DELIVERY_REVISION_CONFLICT,
        Outcome.OVERTAKEN,
        Outcome.LEASE_LAPSED,
        Outcome.WORK_RECORDED,
        Outcome.KEY_JOINED,
        Outcome.TERMINAL,
        Outcome.RUN_ENDED,
        Outcome.ALREADY_REQUESTED,
        Outcome.CANCEL_NOT_REQUESTED,
        Outcome.CHANGE_BINDING_NOT_ALLOWED,
        Outcome.CHANGE_RUN_ALREADY_EXISTS,
    }
)


class Owner(NamedTuple):
    """The process that executes a run."""

    host_id: str
    pid: int
    nonce: str

    @property
    def params(self) -> dict[str, str | int]:
        """`:host_id`, `:pid` and `:nonce` of a statement."""
        return self._asdict()


class Lineage(NamedTuple):
    """The rounds of one logical run."""

    id: str
    round: int


class MachineState(NamedTuple):
    """The state of the machine that a run names, and the code (the reason), if any."""

    name: str
    state: str
    code: str | None


class Claim(NamedTuple):
    """A tentative hold on a run. `activate` turns it into an ownership."""

    owner: Owner
    claimed_at_ms: int


class Grant(NamedTuple):
    """What a grant gave: the generation of an ownership, or, of a claim, when it was made."""

    generation: int | None
    claimed_at_ms: int | None = None


class Beaten(NamedTuple):
    """What stands in a verb's way: the run's last ownership fact, or the last event.

    An event has no generation.
    """

    type: str
    generation: int | None
    sequence: int
    at_ms: int


class VerbResult(NamedTuple):
    """What became of a verb, and the run afterwards.

    `beaten_by`: what beat a verb that lost, or what has taken the run from the caller since a verb
    that won. `granted`: what the verb granted, also if that is over (overtaken, lease_lapsed).
    `claim_cleared`: the verb lost, and yet removed the caller's claim.
    """

    outcome: Outcome
    run: Run
    beaten_by: Beaten | None = None
    granted: Grant | None = None
    claim_cleared: bool = False


class Run(NamedTuple):
    """A row of fencepost_runs. Times are milliseconds of the database's clock.

    `state_json` and `result_json` are None where they were not read, as in lists. `now_ms` is the
    time at which the row was read.
    """

    run_id: str
    principal: Principal
    target: Target
    status: RunStatus
    owner: Owner | None
    generation: int
    heartbeat_at_ms: int | None
    lease_ms: int
    lease_expires_at_ms: int | None
    claim: Claim | None
    cancel_requested_at_ms: int | None
    cancel_acknowledged_at_ms: int | None
    parent_run_id: str | None
    lineage: Lineage | None
    machine: MachineState | None
    head: Head
    write_token: str
    updated_at_ms: int
    created_at_ms: int
    started_at_ms: int | None
    finished_at_ms: int | None
    traceparent: str | None
    state_json: str | None
    result_json: str | None
    now_ms: int

    @property
    def ended(self) -> bool:
        return self.status in TERMINAL

    @property
    def claim_is_fresh(self) -> bool:
        """A claim is as long fresh as a lease: for `lease_ms` from when it was made."""
        return self.claim is not None and self.now_ms <= self.claim.claimed_at_ms + self.lease_ms

    def held_by(self, owner: Owner, generation: int | None) -> bool:
        """Whether this process holds the run, and in this generation if one is given."""
        return self.owner == owner and generation in (None, self.generation)

    @property
    def lease_is_fresh(self) -> bool:
        """Whether the lease has not ended. One that ends in this millisecond has not."""
        return self.lease_expires_at_ms is not None and self.now_ms <= self.lease_expires_at_ms

    @classmethod
    def from_row(cls, row: dict[str, Any]) -> Run:
        """The run of a row. Raises RowCorrupt for a row that breaks a rule; none is repaired."""
        check_row(TABLE, _RULES, row)
        owner, claimant, lineage = _owner(row, "owner"), _owner(row, "claim"), row["lineage_id"]
        return cls(
            run_id=row["run_id"],
            principal=Principal(row["principal_kind"], row["principal_id"]),
            target=Target(row["target_kind"], row["target_id"], row["thread_id"]),
            status=RunStatus(row["status"]),
            owner=owner,
            claim=None if claimant is None else Claim(claimant, row["claimed_at_ms"]),
            lineage=None if lineage is None else Lineage(lineage, row["lineage_round"]),
            machine=_machine(row),
            head=Head(row["head_sequence"], row["head_hash"]),
            state_json=row.get("state"),
            result_json=row.get("result"),
            **{name: row[name] for name in _PLAIN},
        )


_PLAIN = (
    "generation",
    "heartbeat_at_ms",
    "lease_ms",
    "lease_expires_at_ms",
    "cancel_requested_at_ms",
    "cancel_acknowledged_at_ms",
    "parent_run_id",
    "write_token",
    "updated_at_ms",
    "created_at_ms",
    "started_at_ms",
    "finished_at_ms",
    "traceparent",
    "now_ms",
)


def _owner(row: dict[str, Any], role: str) -> Owner | None:
    host_id = row[f"{role}_host_id"]
    return None if host_id is None else Owner(host_id, row[f"{role}_pid"], row[f"{role}_nonce"])


def _machine(row: dict[str, Any]) -> MachineState | None:
    name = row["machine"]
    if name is None:
        return None
    return MachineState(name, row["machine_state"], row["machine_code"])


_STATUSES = frozenset(RunStatus)


_RULES: Rules = (
    ("status is known", lambda row: row["status"] in _STATUSES),
    (
        "numbers are whole and within ±(2^53−1)",
        whole(
            "generation",
            "heartbeat_at_ms",
            "lease_ms",
            "lease_expires_at_ms",
            "owner_pid",
            "claim_pid",
            "claimed_at_ms",
            "cancel_requested_at_ms",
            "cancel_acknowledged_at_ms",
            "lineage_round",
            "head_sequence",
            "created_at_ms",
            "started_at_ms",
            "finished_at_ms",
            null=True,
        ),
    ),
    (
        "an owner is whole and has a heartbeat and a lease",
        all_or_none(
            "owner_host_id", "owner_pid", "owner_nonce", "heartbeat_at_ms", "lease_expires_at_ms"
        ),
    ),
    (
        "a running run, and no other, has an owner",
        lambda row: (row["status"] == "running") == (row["owner_host_id"] is not None),
    ),
    (
        "a claim is whole or absent",
        all_or_none("claim_host_id", "claim_pid", "claim_nonce", "claimed_at_ms"),
    ),
    ("a lineage has an id and a round", all_or_none("lineage_id", "lineage_round")),
    ("a machine has a name and a state", all_or_none("machine", "machine_state")),
    (
        "only a machine has a code",
        lambda row: row["machine_code"] is None or row["machine"] is not None,
    ),
    (
        "a run that ended, and no other, has an end",
        lambda row: (row["status"] in TERMINAL) == (row["finished_at_ms"] is not None),
    ),
    ("a trace context is text", lambda row: isinstance(row["traceparent"], str | None)),
    ("a run has a state", lambda row: row.get("state", "") is not None or bool(row.get("bare"))),
)
