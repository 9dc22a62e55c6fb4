"""What a start means, given what one transaction saw: pure values and one table."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, NamedTuple

from fencepost import journal, limits
from fencepost.fence import Fence
from fencepost.identifiers import Principal, Target
from fencepost.reservation import Intent, Match, Reservation, ReservationState
from fencepost.runs import Lineage, Owner, Run, RunStatus
from fencepost.subjects import Subject


class Start(NamedTuple):
    """What a caller asks to be started exactly once.

    `input_json` becomes the run's first state, so that whoever takes the run over finds it.
    `machine` is a name in `machines.MACHINES`. It is no part of what the key means: a retry that
    names another replays.
    """

    key: str
    principal: Principal
    target: Target
    fingerprint: str
    input_json: str
    owner: Owner
    lease_ms: int = limits.LEASE_MS_DEFAULT
    parent_run_id: str | None = None
    lineage: Lineage | None = None
    subject: Subject | None = None
    machine: str | None = None


def fingerprint(target: Target, input: Any, lineage: Lineage | None) -> str:
    """SHA-256 (hex) over RFC 8785 canonical JSON of `{target, input, lineage}`.

    An omitted input is null; 12345 and 12345.0 are the same number. Raises ValueError for
    what canonical JSON cannot express.
    """
    round = None if lineage is None else {"id": lineage.id, "round": lineage.round}
    return journal.digest({"target": target.as_json(), "input": input, "lineage": round})


class Decision(StrEnum):
    """What a start comes to. The order of `decide` is the contract (design 6)."""

    OWNER_MISMATCH = "owner_mismatch"
    TARGET_MISMATCH = "target_mismatch"
    INPUT_MISMATCH = "input_mismatch"
    SUBJECT_MISMATCH = "subject_mismatch"
    LOOKUP_CONFLICT = "lookup_conflict"
    FENCED = "fenced"
    STARTED = "started"
    REPLAYED = "replayed"
    ALREADY_SETTLED = "already_settled"
    PENDING = "pending"
    UNRESOLVABLE = "unresolvable"
    # Not an answer: the reservation waits for a start, which a second batch claims.
    RESERVED = "reserved"


class Seen(NamedTuple):
    """What a start found, all from one transaction; `created` if this very request won."""

    fence: Fence
    reservation: Reservation | None
    run: Run | None
    created: bool


def decide(start: Start, intent: Intent, seen: Seen) -> Decision:
    """The decision table of design 6, from top to bottom."""
    held, run = seen.reservation, seen.run
    if held is None:
        admitted = seen.fence.admits_start(start.key)
        return Decision.LOOKUP_CONFLICT if admitted and start.subject else Decision.FENCED
    mismatch = _MISMATCHES.get(held.match(intent))
    if mismatch is not None:
        return mismatch
    if held.subject_sha256 != (start.subject and start.subject.digest):
        return Decision.SUBJECT_MISMATCH
    if held.joined and run is not None:
        return Decision.REPLAYED
    if run is None:
        return _without_run(intent, held, seen.fence)
    if run.status is RunStatus.RUNNING and run.owner == start.owner:
        admitted = seen.created or seen.fence.admits_existing_run(run.run_id)
        return Decision.STARTED if admitted else Decision.FENCED
    if run.ended or run.status is RunStatus.SUSPENDED:
        return Decision.REPLAYED
    if run.status is RunStatus.RUNNING:
        return Decision.PENDING if run.lease_is_fresh else Decision.UNRESOLVABLE
    if held.state is ReservationState.RESERVED:
        return _reserved(intent, held, seen.fence)
    return Decision.UNRESOLVABLE


_MISMATCHES = {
    Match.OWNER_MISMATCH: Decision.OWNER_MISMATCH,
    Match.TARGET_MISMATCH: Decision.TARGET_MISMATCH,
    Match.INPUT_MISMATCH: Decision.INPUT_MISMATCH,
}


def _without_run(intent: Intent, held: Reservation, gate: Fence) -> Decision:
    """Settled and purged; or never started; or claimed by somebody who made no run."""
    if held.state is ReservationState.TERMINAL:
        return Decision.ALREADY_SETTLED
    if held.state is ReservationState.RESERVED:
        return _reserved(intent, held, gate)
    return Decision.UNRESOLVABLE


def _reserved(intent: Intent, held: Reservation, gate: Fence) -> Decision:
    admitted = gate.admits_start(intent.key, held.run_id)
    return Decision.RESERVED if admitted else Decision.FENCED
