"""Which answer a start gets, from what one transaction read. Plain values; no I/O."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, NamedTuple

from fencepost import errors, journal, limits
from fencepost.fence import Fence, FenceState
from fencepost.identifiers import Principal, Target
from fencepost.reservation import Match, Reservation, ReservationState
from fencepost.runs import Lineage, Owner, Run, RunStatus
from fencepost.subjects import Subject


class Attempt(NamedTuple):
    """One request to start the run that its key names.

    `run_id` is made for this attempt, and used only if the key is new. `input_json` becomes the
    run's first state, so that a later owner finds it. `owner` is the process that will execute the
    run. `lease_ms` is in milliseconds. `machine` is a name in `machines.MACHINES`. `traceparent` is
    the trace context of the request. Neither is compared with the reservation: a retry that names
    another machine is answered all the same.
    """

    key: str
    principal: Principal
    target: Target
    fingerprint: str
    run_id: str
    input_json: str
    owner: Owner
    lease_ms: int = limits.LEASE_MS_DEFAULT
    parent_run_id: str | None = None
    lineage: Lineage | None = None
    subject: Subject | None = None
    machine: str | None = None
    traceparent: str | None = None


def fingerprint(target: Target, input: Any, lineage: Lineage | None) -> str:
    """SHA-256 (hex) over RFC 8785 canonical JSON of `{target, input, lineage}`.

    An omitted input is null; 12345 and 12345.0 are the same number. Raises ValueError for
    what canonical JSON cannot express.
    """
    round = None if lineage is None else {"id": lineage.id, "round": lineage.round}
    return journal.digest({"target": target.as_json(), "input": input, "lineage": round})


class Decision(StrEnum):
    """The answer to a start. `decide` says which one applies."""

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
    # Not an answer: the key is reserved and not started. A second batch starts it.
    RESERVED = "reserved"


class Seen(NamedTuple):
    """What a start read, all in one transaction. `created`: this request made the run.

    A fence that cannot be read is kept as the error that says so: only what it gates needs it.
    """

    fence: Fence | errors.FenceUnreadable
    reservation: Reservation | None
    run: Run | None
    created: bool

    @property
    def gate(self) -> Fence:
        """The fence. Raises FenceUnreadable."""
        if isinstance(self.fence, errors.FenceUnreadable):
            raise self.fence
        return self.fence


def decide(attempt: Attempt, seen: Seen) -> Decision:
    """The decision table, from top to bottom. The first line that fits is the answer.

    The order is part of the contract (docs/states.md). Raises FenceUnreadable where the answer
    depends on the fence.
    """
    held, run = seen.reservation, seen.run
    if held is None:
        admitted = seen.gate.admits_start(attempt.key, attempt.principal)
        proving = seen.gate.state is FenceState.PROOF_ONLY
        conflict = admitted and attempt.subject and not proving
        return Decision.LOOKUP_CONFLICT if conflict else Decision.FENCED
    mismatch = _MISMATCHES.get(held.match(attempt.principal, attempt.target, attempt.fingerprint))
    if mismatch is not None:
        return mismatch
    if held.subject_sha256 != (attempt.subject and attempt.subject.digest):
        return Decision.SUBJECT_MISMATCH
    if run is None:
        return _without_run(held, seen)
    return Decision.REPLAYED if held.joined else _with_run(attempt, held, run, seen)


def _with_run(attempt: Attempt, held: Reservation, run: Run, seen: Seen) -> Decision:
    if run.owner == attempt.owner and run.lease_is_fresh:
        admitted = seen.created or seen.gate.admits_existing_run(run.run_id)
        return Decision.STARTED if admitted else Decision.FENCED
    if run.ended or run.status is RunStatus.SUSPENDED:
        return Decision.REPLAYED
    if run.lease_is_fresh or run.claim_is_fresh:
        return Decision.PENDING
    if run.status is RunStatus.RUNNING or run.claim is not None:
        return Decision.UNRESOLVABLE
    # It waits for a start. A cancel that was requested has ended it, but in rows of old builds.
    waits = held.state is ReservationState.RESERVED and run.cancel_requested_at_ms is None
    return _reserved(held, seen) if waits else Decision.UNRESOLVABLE


_MISMATCHES = {
    Match.OWNER_MISMATCH: Decision.OWNER_MISMATCH,
    Match.TARGET_MISMATCH: Decision.TARGET_MISMATCH,
    Match.INPUT_MISMATCH: Decision.INPUT_MISMATCH,
}


def _without_run(held: Reservation, seen: Seen) -> Decision:
    """The run was purged after its end, or never started, or its start made no run."""
    if held.state is ReservationState.TERMINAL:
        return Decision.ALREADY_SETTLED
    if held.state is ReservationState.RESERVED:
        return _reserved(held, seen)
    return Decision.UNRESOLVABLE


def _reserved(held: Reservation, seen: Seen) -> Decision:
    admitted = seen.gate.admits_start(held.key, held.principal, held.run_id)
    return Decision.RESERVED if admitted else Decision.FENCED


class Exit(StrEnum):
    """A verb that gets a start out of UNRESOLVABLE."""

    OWN = "own"
    HEARTBEAT = "heartbeat"
    RECOVER = "recover"
    ABANDON = "abandon"
    RESOLVE = "resolve"


def exits(attempt: Attempt, seen: Seen) -> list[Exit]:
    """The verbs that would work now, of those that get this start out of UNRESOLVABLE.

    `own` takes evidence if the run has an owner who is not the caller; the owner itself may also
    send a `heartbeat`. `recover` takes evidence; the claimant itself may `abandon` its claim.
    `resolve` is an operator's.
    """
    run = seen.run
    admitted = isinstance(seen.fence, Fence) and run and seen.fence.admits_existing_run(run.run_id)
    if run is None or not admitted:
        return [Exit.RESOLVE]
    mine = [Exit.HEARTBEAT] if run.owner == attempt.owner else []
    if run.claim is None:
        return [Exit.OWN, *mine, Exit.RESOLVE]
    claims = run.claim.owner == attempt.owner
    return [Exit.ABANDON if claims else Exit.RECOVER, *mine, Exit.RESOLVE]
