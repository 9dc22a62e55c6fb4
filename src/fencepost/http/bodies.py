"""Bodies of starts, of verbs on runs, and of operators: what each takes, and what is made of it.

Those of a run's history, deliveries and operations stand with their handlers.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Literal, NamedTuple

from fencepost import errors, fence, limits, machines
from fencepost.decision import Start, fingerprint
from fencepost.fence import FenceState
from fencepost.http import nouns
from fencepost.http.forms import (
    ANYTHING,
    COUNT,
    IDENTIFIER,
    LEASE_MS,
    NOTE,
    POSITIVE,
    Form,
    Member,
    Parser,
    integer,
    one_of,
    stored_json,
)
from fencepost.identifiers import Target, mint_token
from fencepost.journal import Head
from fencepost.machines import Move
from fencepost.ownership import Evidence
from fencepost.resolve import Resolution, Verdict
from fencepost.runs import TERMINAL, Lineage, Owner, RunStatus
from fencepost.subjects import Subject
from fencepost.transition import Transition

NOTHING: Form[None] = Form("EmptyRequest", lambda: None, {}, about="An empty object.")

OWNER = Member(nouns.OWNER)
EXPECTED_HEAD = Member(nouns.HEAD, None, "Where the run's history must end. One round trip less.")

# --- Starts ------------------------------------------------------------------------------

_INPUT = stored_json(limits.STATE_BYTES_MAX)


def _start(
    target: Target,
    input: Any,
    owner: Owner | None,
    lease_ms: int,
    parent_run_id: str | None,
    lineage: Lineage | None,
    machine: str | None,
    subject: Subject | None,
) -> partial[Start]:
    """A Start that lacks its `key` and `principal`. Without an owner, one is minted: nobody
    else knows it.
    """
    return partial(
        Start,
        target=target,
        fingerprint=fingerprint(target, input, lineage),
        input_json=_INPUT.read(input, "input"),
        owner=owner or Owner("fencepost", 0, mint_token()),
        lease_ms=lease_ms,
        parent_run_id=parent_run_id,
        lineage=lineage,
        subject=subject,
        machine=machine,
    )


_LEASE = Member(LEASE_MS, None, "Becomes the run's own; omitted, the run's own is kept.")

START = Form(
    "StartRequest",
    _start,
    {
        "target": Member(nouns.TARGET),
        "input": Member(
            Parser(ANYTHING.read, _INPUT.schema), None, "Becomes the first `state` of the run."
        ),
        "owner": Member(nouns.OWNER, None, "Send your own: its nonce makes your retry converge."),
        "lease_ms": Member(LEASE_MS, limits.LEASE_MS_DEFAULT),
        "parent_run_id": Member(IDENTIFIER, None),
        "lineage": Member(nouns.LINEAGE, None),
        "machine": Member(one_of(*machines.MACHINES), None, "The machine that the run follows."),
        "subject": Member(
            nouns.SUBJECT, None, "A subject that has a run already is answered with that run."
        ),
    },
)


def _resolution(decision: str, attempt: int, note: str, result: str | None) -> Resolution:
    verdict = Verdict(decision)
    if result is not None and verdict is not Verdict.EXECUTED:
        raise errors.InvalidRequest("A 'result' belongs to the decision 'executed'.")
    return Resolution(verdict, attempt, note, result)


_RESULT = Member(stored_json(limits.RESULT_BYTES_MAX), None)

RESOLUTION = Form(
    "ResolveRequest",
    _resolution,
    {
        "decision": Member(one_of(*Verdict)),
        "attempt": Member(POSITIVE, about="The attempt that was looked at."),
        "note": Member(NOTE, about="Why; for the audit."),
        "result": _RESULT,
    },
    {
        "anyOf": [
            {"properties": {"decision": {"const": "executed"}}},
            {"properties": {"result": False}},
        ]
    },
    "A `result` belongs to the decision `executed`.",
)

# --- Verbs on a run ----------------------------------------------------------------------


class Verb(NamedTuple):
    """Who asks, and what the verb takes besides."""

    owner: Owner
    lease_ms: int | None = None
    evidence: Evidence | None = None


_EVIDENCE = Member(nouns.EVIDENCE, None)

BY_OWNER = Form("OwnerRequest", Verb, {"owner": OWNER})
WITH_LEASE = Form("LeaseRequest", Verb, {"owner": OWNER, "lease_ms": _LEASE})
WITH_EVIDENCE = Form("EvidenceRequest", Verb, {"owner": OWNER, "evidence": _EVIDENCE})
OWN = Form("OwnRequest", Verb, {"owner": OWNER, "lease_ms": _LEASE, "evidence": _EVIDENCE})

_GUARD: Form[Literal["absent", "present"]] = Form(
    "Guard",
    lambda cancel_requested: cancel_requested,
    {"cancel_requested": Member(one_of("absent", "present"))},
    about="The transition happens only if a request for a cancel is absent, or present.",
)


def _transition(
    machine: str | None,
    code: str | None,
    to: str | None,
    owner: Owner,
    state: str | None,
    result: str | None,
    guard: Literal["absent", "present"] | None,
    expected_head: Head | None,
) -> Transition:
    status, move = _movement(machine, code, to)
    if result is not None and status not in TERMINAL:
        raise errors.InvalidRequest("A 'result' belongs to completed, failed or cancelled.")
    return Transition(owner, status, state, result, guard, expected_head, move)


def _movement(state: str | None, code: str | None, to: str | None) -> tuple[RunStatus, Move | None]:
    """Where a transition leads: `to`, or `machine` (with its `code`), or both.

    A `machine` alone keeps the run running, or ends it in the status that the state stands for.
    """
    if code is not None and state not in machines.CODED:
        coded = ", ".join(sorted(machines.CODED))
        raise errors.InvalidRequest(f"A 'code' belongs to a 'machine' of {coded}.")
    if state is None:
        if to is None:
            raise errors.InvalidRequest("The body lacks the member 'to'.")
        return RunStatus(to), None
    end = machines.ENDS.get(state)
    status = RunStatus(to or end or RunStatus.RUNNING)
    if status is RunStatus.COMPLETED and end is None:
        raise errors.InvalidRequest("A run is completed with a 'machine' that has ended.")
    return status, Move(state, code)


_STATES = sorted(machines.STATES)
_ENDED = {"machine": {"enum": sorted(machines.ENDS)}}

TRANSITION = Form(
    "TransitionRequest",
    _transition,
    {
        "machine": Member(one_of(*_STATES), None, "The state that the run's machine moves to."),
        "code": Member(IDENTIFIER, None, "Why the machine is there."),
        "to": Member(
            one_of(*(status for status in RunStatus if status is not RunStatus.PENDING)),
            None,
            "Omitted, `machine` says it.",
        ),
        "owner": OWNER,
        "state": Member(stored_json(limits.STATE_BYTES_MAX), None, "Omitted, it stays."),
        "result": _RESULT,
        "guard": Member(_GUARD, None),
        "expected_head": EXPECTED_HEAD,
    },
    {
        "allOf": [
            {
                "anyOf": [
                    {"properties": {"machine": False, "code": False}, "required": ["to"]},
                    {"properties": {"code": False}, "required": ["machine"]},
                    {
                        "properties": {"machine": {"enum": sorted(machines.CODED)}},
                        "required": ["machine"],
                    },
                ]
            },
            {
                "anyOf": [
                    {"properties": {"result": False}},
                    {"properties": {"to": {"enum": sorted(TERMINAL)}}, "required": ["to"]},
                    {"properties": {**_ENDED, "to": False}, "required": ["machine"]},
                ]
            },
            {
                "anyOf": [
                    {"properties": {"machine": False}},
                    {"properties": {"to": {"not": {"const": "completed"}}}},
                    {"properties": _ENDED, "required": ["machine"]},
                ]
            },
        ]
    },
    "`to`, or `machine`, or both. A `result` belongs to an end, a `code` to a machine that says "
    "why; a run is completed with a machine that has ended.",
)

# --- Operators ---------------------------------------------------------------------------


def _fence_transition(
    expected: str, next: str, revision: int | None, proof_key: str | None
) -> fence.Transition:
    to = FenceState(next)
    if (to is FenceState.PROOF_ONLY) != (proof_key is not None):
        raise errors.InvalidRequest("A 'proof_key' belongs to 'next' = 'proof-only' alone.")
    return fence.Transition(FenceState(expected), to, revision, proof_key)


FENCE_TRANSITION = Form(
    "FenceTransitionRequest",
    _fence_transition,
    {
        "expected": Member(one_of(*FenceState)),
        "next": Member(one_of(*FenceState)),
        "revision": Member(COUNT, None, "The revision that the fence must have."),
        "proof_key": Member(IDENTIFIER, None, "The key of the start that proves."),
    },
    {
        "anyOf": [
            {"properties": {"next": {"const": "proof-only"}}, "required": ["proof_key"]},
            {"properties": {"next": {"not": {"const": "proof-only"}}, "proof_key": False}},
        ]
    },
    "A `proof_key` belongs to `next` = `proof-only` alone.",
)

PURGE: Form[int] = Form(
    "PurgeRequest",
    lambda limit: int(limit),
    {"limit": Member(integer(1, limits.PURGE_ROWS_MAX), limits.PURGE_ROWS_DEFAULT)},
)
