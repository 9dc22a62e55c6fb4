"""The decision table of a start, row by row, over everything that a start can see.

The table below is written from the design, not from the code: each row is a sentence, who it
is about, and the answer; the first row that fits is the answer.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from fencepost.decision import Attempt, Decision, Seen, decide
from fencepost.fence import Fence, FenceState
from fencepost.identifiers import Principal, Target
from fencepost.journal import Head
from fencepost.reservation import Reservation, ReservationState
from fencepost.runs import Claim, Owner, Run, RunStatus

ALICE, BOB = Principal("service", "alice"), Principal("service", "bob")
CHARGE, REFUND = Target("workflow", "charge"), Target("workflow", "refund")
MINE = Owner("host", 7, "my-nonce")
# Processes that are nearly me: only the whole owner counts.
OTHERS = (
    Owner("host", 7, "other-nonce"),
    Owner("elsewhere", 7, "my-nonce"),
    Owner("host", 8, "my-nonce"),
)
KEY, RUN_ID, NOW = "order-42", "run-1", 1_000_000

# name: (state, proof key, proof run)
FENCES = {
    "open": (FenceState.OPEN, None, None),
    "draining": (FenceState.DRAINING, None, None),
    "migration-locked": (FenceState.MIGRATION_LOCKED, None, None),
    "proof of this key, not run yet": (FenceState.PROOF_ONLY, KEY, None),
    "proof of this run": (FenceState.PROOF_ONLY, KEY, RUN_ID),
    "proof of another run of this key": (FenceState.PROOF_ONLY, KEY, "run-0"),
    "proof of another key": (FenceState.PROOF_ONLY, "other", None),
}
ADMITS_THIS_START = {"open", "proof of this key, not run yet", "proof of this run"}
ADMITS_THIS_RUN = {"open", "draining", "proof of this run"}

ENDED = {"completed", "failed", "cancelled"}


@dataclass(frozen=True)
class Case:
    """One thing that a start can see. `holder` and `lease` are about a running run only; a `claim`
    stands on a run that has not ended. `cancel`: one was requested of a run that waits, as builds
    of old left it; now a request ends such a run.
    """

    reservation: str  # none, reserved, started, terminal
    mismatch: str  # "", or what differs: owner, target, input, or several
    run: str  # none, or a status
    holder: str  # "", mine, other
    lease: str  # "", fresh, lapsed
    claim: str  # "", fresh, old
    cancel: bool
    fence: str


def cases() -> Iterator[Case]:
    mismatches = ("", "owner", "target", "input", "owner target input", "target input")
    claims = ("", "fresh", "old")
    running = itertools.product(["running"], ["mine", "other"], ["fresh", "lapsed"], claims)
    waiting = itertools.product(["pending", "suspended"], [""], [""], claims)
    over = [(status, "", "", "") for status in ("none", *ENDED)]
    runs = [(*run, False) for run in (*running, *waiting, *over)]
    runs += [("pending", "", "", claim, True) for claim in claims]
    for fence in FENCES:
        yield Case("none", "", "none", "", "", "", False, fence)
    for state, mismatch, run, fence in itertools.product(
        ReservationState, mismatches, runs, FENCES
    ):
        yield Case(str(state), mismatch, *run, fence)


Row = tuple[str, Callable[[Case], bool], Decision]
TABLE: tuple[Row, ...] = (
    ("no row, the fence does not admit", lambda c: c.reservation == "none", Decision.FENCED),
    (
        "the reservation's owner is someone else",
        lambda c: "owner" in c.mismatch,
        Decision.OWNER_MISMATCH,
    ),
    ("the target differs", lambda c: "target" in c.mismatch, Decision.TARGET_MISMATCH),
    ("the fingerprint differs", lambda c: "input" in c.mismatch, Decision.INPUT_MISMATCH),
    (
        "my owner nonce holds the run under a fresh lease, and the fence admits it",
        lambda c: (c.holder, c.lease) == ("mine", "fresh") and c.fence in ADMITS_THIS_RUN,
        Decision.STARTED,
    ),
    (
        "my owner nonce holds the run under a fresh lease, and the fence no longer admits it",
        lambda c: (c.holder, c.lease) == ("mine", "fresh"),
        Decision.FENCED,
    ),
    (
        "the run ended or is suspended",
        lambda c: c.run in ENDED | {"suspended"},
        Decision.REPLAYED,
    ),
    (
        "the run was purged, the reservation is terminal",
        lambda c: (c.run, c.reservation) == ("none", "terminal"),
        Decision.ALREADY_SETTLED,
    ),
    (
        "the run is running under a fresh lease",
        lambda c: (c.run, c.lease) == ("running", "fresh"),
        Decision.PENDING,
    ),
    (
        "somebody claimed the run not long ago",
        lambda c: c.claim == "fresh",
        Decision.PENDING,
    ),
    (
        "the run is running under a lapsed lease, whoever its owner is",
        lambda c: (c.run, c.lease) == ("running", "lapsed"),
        Decision.UNRESOLVABLE,
    ),
    (
        "an old claim stands on the run",
        lambda c: c.claim == "old",
        Decision.UNRESOLVABLE,
    ),
    (
        "the cancel of the run was requested",
        lambda c: c.cancel,
        Decision.UNRESOLVABLE,
    ),
    (
        "reserved or released, nothing runs, and the fence admits the start",
        lambda c: c.reservation == "reserved" and c.fence in ADMITS_THIS_START,
        Decision.RESERVED,
    ),
    (
        "reserved or released, nothing runs, and the fence does not admit the start",
        lambda c: c.reservation == "reserved",
        Decision.FENCED,
    ),
    (
        "started, may have executed, and nobody is executing it",
        lambda c: True,
        Decision.UNRESOLVABLE,
    ),
)
CASES = tuple(cases())


def decided(case: Case, other: Owner = OTHERS[0]) -> Decision:
    attempt = Attempt(KEY, ALICE, CHARGE, "f" * 64, "run-never-used", "null", MINE)
    state, proof_key, proof_run = FENCES[case.fence]
    fence = Fence(state, 1, proof_key, proof_run, NOW)
    seen = Seen(fence, a_reservation(case), a_run(case, other), created=False)
    return decide(attempt, seen)


def a_reservation(case: Case) -> Reservation | None:
    if case.reservation == "none":
        return None
    return Reservation(
        key=KEY,
        principal=BOB if "owner" in case.mismatch else ALICE,
        target=REFUND if "target" in case.mismatch else CHARGE,
        fingerprint=("e" if "input" in case.mismatch else "f") * 64,
        run_id=RUN_ID,
        state=ReservationState(case.reservation),
        attempt=1,
        claim_nonce=None if case.reservation == "reserved" else "claim",
        outcome=None,
        created_at_ms=1,
        updated_at_ms=1,
    )


def a_run(case: Case, other: Owner) -> Run | None:
    if case.run == "none":
        return None
    running = case.run == "running"
    return Run(
        run_id=RUN_ID,
        principal=ALICE,
        target=CHARGE,
        status=RunStatus(case.run),
        owner={"mine": MINE, "other": other}.get(case.holder),
        generation=1,
        heartbeat_at_ms=NOW - 30_000 if running else None,
        lease_ms=30_000,
        # A lease that ends now is fresh; one that ended a millisecond ago has lapsed.
        lease_expires_at_ms={"fresh": NOW, "lapsed": NOW - 1}.get(case.lease),
        # A claim that is as old as the lease is long is fresh; a millisecond older it is not.
        claim=Claim(other, {"fresh": NOW - 30_000, "old": NOW - 30_001}[case.claim])
        if case.claim
        else None,
        cancel_requested_at_ms=1 if case.cancel else None,
        cancel_acknowledged_at_ms=None,
        parent_run_id=None,
        lineage=None,
        machine=None,
        head=Head(1, "a" * 64),
        write_token="token",  # noqa: S106
        updated_at_ms=1,
        created_at_ms=1,
        started_at_ms=1,
        finished_at_ms=NOW if case.run in ENDED else None,
        traceparent=None,
        state_json="null",
        result_json=None,
        now_ms=NOW,
    )


@pytest.mark.parametrize("number", range(len(TABLE)), ids=[row[0] for row in TABLE])
def test_the_first_row_that_fits_is_the_answer(number: int) -> None:
    _, fits, answer = TABLE[number]
    mine = [
        case for case in CASES if fits(case) and not any(row[1](case) for row in TABLE[:number])
    ]
    assert mine, "no case reaches this row"
    wrong = {case: found for case in mine if (found := decided(case)) is not answer}
    assert wrong == {}


@pytest.mark.parametrize("other", OTHERS, ids=str)
def test_nobody_is_told_to_execute_what_another_process_holds(other: Owner) -> None:
    for case in CASES:
        if decided(case, other) is Decision.STARTED:
            assert (case.run, case.holder, case.lease) == ("running", "mine", "fresh"), case


def test_a_foreign_owner_learns_nothing_but_that_the_key_is_not_theirs() -> None:
    foreign = [case for case in CASES if "owner" in case.mismatch]
    assert {decided(case) for case in foreign} == {Decision.OWNER_MISMATCH}


def test_a_key_whose_run_began_is_never_given_out_to_be_started_again() -> None:
    for case in CASES:
        if decided(case) is Decision.RESERVED:
            assert case.reservation == "reserved", case
            assert case.run in ("none", "pending"), case
            assert (case.claim, case.cancel) == ("", False), case


def test_a_closed_fence_hides_no_result_and_no_mismatch() -> None:
    for case in CASES:
        if case.run in ENDED or case.mismatch:
            open_too = Case(**{**vars(case), "fence": "open"})
            assert decided(case) is decided(open_too)


def test_whoever_created_the_run_in_this_very_request_starts_it() -> None:
    for fence in ADMITS_THIS_START:
        case = Case("started", "", "running", "mine", "fresh", "", False, fence)
        attempt = Attempt(KEY, ALICE, CHARGE, "f" * 64, RUN_ID, "null", MINE)
        state, proof_key, proof_run = FENCES[fence]
        gate = Fence(state, 1, proof_key, proof_run, NOW)
        seen = Seen(gate, a_reservation(case), a_run(case, OTHERS[0]), created=True)
        assert decide(attempt, seen) is Decision.STARTED
