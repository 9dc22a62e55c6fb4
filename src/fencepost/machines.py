"""State machines as data: the states of a run's own work, beside the run's status.

A run may name a machine at its start. It then moves only along that machine's table. To add a
machine, add its table to MACHINES; no other module changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from fencepost.runs import MachineState, RunStatus
from fencepost.storage.sql import json_text


class Machine(NamedTuple):
    """`moves`: for each state, the states that may follow it. `ends`: for each final state, the
    status in which the run ends. `coded`: the states that may have a code (a reason).
    """

    name: str
    initial: str
    moves: Mapping[str, frozenset[str]]
    ends: Mapping[str, RunStatus]
    coded: frozenset[str] = frozenset()


class Move(NamedTuple):
    """A step of a run's machine: the state that it goes to, and a code (the reason) or None."""

    to: str
    code: str | None = None

    def as_json(self) -> dict[str, str]:
        code = {} if self.code is None else {"code": self.code}
        return {"to": self.to, **code}


def _table(text: str) -> dict[str, frozenset[str]]:
    """Reads lines of `state: next next …`; a state without its own line has no next."""
    lines = [line.split(":") for line in text.strip().splitlines()]
    moves = {state.strip(): frozenset(following.split()) for state, following in lines}
    reached = frozenset().union(*moves.values())
    return {**moves, **{state: frozenset() for state in reached - moves.keys()}}


# The delivery machine of docs/states.md.
_DELIVERY = Machine(
    name="delivery",
    initial="created",
    moves=_table("""
created: validating-delivery paused discarded rejected
validating-delivery: ready paused approval-needed discarded rejected
ready: queued running paused discarded rejected
queued: connecting running paused discarded
connecting: running retryable paused discarded
running: validating verifying queued retryable paused approval-needed change-verifying discarded
validating: running verifying retryable paused approval-needed discarded
verifying: running retryable paused approval-needed change-verifying discarded
retryable: queued connecting running paused discarded
paused: paused validating-delivery ready queued connecting running approval-needed recovering \
completed discarded rejected
approval-needed: validating-delivery paused discarded rejected
change-verifying: running retryable paused approval-needed ready-to-apply discarded
ready-to-apply: applying paused discarded
applying: recovering completed
recovering: applying paused completed discarded rejected
"""),
    ends={
        "completed": RunStatus.COMPLETED,
        "discarded": RunStatus.CANCELLED,
        "rejected": RunStatus.FAILED,
    },
    coded=frozenset({"paused"}),
)


def registry(machines: Iterable[Machine]) -> dict[str, Machine]:
    """The machines by name.

    Raises ValueError for an invalid table, and for two machines that end a run with different
    statuses in a state of the same name. A transition with an expected head does not read the run
    first, so the name of the state alone must give the status.
    """
    found: dict[str, Machine] = {}
    for machine in machines:
        known = machine.moves.keys()
        if machine.name in found or not {machine.initial, *machine.ends, *machine.coded} <= known:
            raise ValueError(f"the machine {machine.name!r} has two tables, or an unknown state")
        if any(not following <= known for following in machine.moves.values()):
            raise ValueError(f"the machine {machine.name!r} moves to an unknown state")
        for other in found.values():
            if any(other.ends.get(s) != machine.ends.get(s) for s in known & other.moves.keys()):
                raise ValueError(f"{machine.name!r} and {other.name!r} end one state differently")
        found[machine.name] = machine
    return found


MACHINES = registry([_DELIVERY])

STATES = frozenset(state for machine in MACHINES.values() for state in machine.moves)
CODED = frozenset(state for machine in MACHINES.values() for state in machine.coded)
ENDS = {state: end for machine in MACHINES.values() for state, end in machine.ends.items()}


def start_of(name: str | None) -> tuple[str | None, str | None]:
    """The machine of a new run and its first state; (None, None) without one."""
    return (None, None) if name is None else (name, MACHINES[name].initial)


def admitting(to: RunStatus, move: Move | None) -> frozenset[tuple[str, str]] | None:
    """The pairs (machine, state) from which a transition is legal; None if every one is.

    A move must be in the machine's table. A run can be completed only when its machine has ended,
    by this move or before. Every other status is allowed when the machine does not move.
    """
    if move is not None:
        return frozenset(
            (machine.name, state)
            for machine in MACHINES.values()
            for state, following in machine.moves.items()
            if move.to in following and (to is not RunStatus.COMPLETED or move.to in machine.ends)
        )
    if to is RunStatus.COMPLETED:
        return frozenset((m.name, state) for m in MACHINES.values() for state in m.ends)
    return None


def admitting_json(to: RunStatus, move: Move | None) -> str | None:
    """`admitting` as JSON, a list of "machine state", which the UPDATE compares with."""
    admitted = admitting(to, move)
    return None if admitted is None else json_text(sorted(" ".join(pair) for pair in admitted))


def admits(at: MachineState | None, to: RunStatus, move: Move | None) -> bool:
    """Whether a run whose machine is `at` may make this transition; the same rule as in SQL."""
    if at is None:
        return move is None
    admitted = admitting(to, move)
    return admitted is None or (at.name, at.state) in admitted
