"""All that the answers so far told the clients. Each new answer is compared with it.

Order is that of the clients: a tick when a request is sent, another when its answer is there. An
answer to a request that was sent after another answer had come must not know less than that one.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Any, NamedTuple

Json = dict[str, Any]
Owner = tuple[str, int, str]
ENDED = ("completed", "failed", "cancelled")


def owner_of(shape: Json | None) -> Owner | None:
    """None also for the owner in a replay, which shows no nonce but the caller's."""
    if shape is None or "nonce" not in shape:
        return None
    return shape["host_id"], shape["pid"], shape["nonce"]


class Reached(NamedTuple):
    """How far a run, or the attempts of a key, had come by the answer at the tick `at`."""

    at: int
    generation: int = 0
    sequence: int = 0
    ended: bool = False


class Lease(NamedTuple):
    heartbeat_at_ms: int
    expires_at_ms: int


@dataclass
class KnownRun:
    """Everything that was told of one run."""

    owners: dict[int, Owner] = field(default_factory=dict)  # by generation
    held: dict[int, Owner] = field(default_factory=dict)  # by generation: who was told to hold it
    leases: dict[int, list[Lease]] = field(default_factory=dict)  # by generation
    heads: dict[int, str] = field(default_factory=dict)  # hash by sequence
    reached: list[Reached] = field(default_factory=lambda: [Reached(-1)])
    end: Json = field(default_factory=dict)
    cancel: dict[str, int] = field(default_factory=dict)
    outcomes: dict[str, tuple[int, Any]] = field(default_factory=dict)  # tick, outcome by operation
    tokens: dict[tuple[str, str], Owner] = field(default_factory=dict)  # by operation and token
    bindings: dict[tuple[str, int], Json] = field(default_factory=dict)  # by gate and revision
    events: dict[int, Json] = field(default_factory=dict)  # by sequence
    keyed_notes: set[str] = field(default_factory=set)  # what keyed events say
    # Its times were moved into the past, so that a purge takes it (`backdating`).
    backdated: bool = False

    def by(self, sent: int) -> Reached:
        """What was known of it when a request was sent at the tick `sent`."""
        return next(known for known in reversed(self.reached) if known.at < sent)

    def note(self, run: Json, now: int) -> None:
        """Keep a RUN that an answer at the tick `now` held."""
        generation, owner, head = run["generation"], owner_of(run["owner"]), run["head"]
        if owner is not None:
            self.owners[generation] = owner
            lease = Lease(run["heartbeat_at_ms"], run["lease_expires_at_ms"])
            leases = self.leases.setdefault(generation, [])
            if lease not in leases[-3:]:
                leases.append(lease)
        self.heads[head["sequence"]] = head["hash"]
        last, ended = self.reached[-1], run["status"] in ENDED
        known = (
            max(last.generation, generation),
            max(last.sequence, head["sequence"]),
            last.ended or ended,
        )
        if known != last[1:]:
            self.reached.append(Reached(now, *known))
        if ended:
            self.end |= the_end(run)
        self.cancel |= cancel_of(run)


def the_end(run: Json) -> Json:
    """What must never change once a run has ended; lists leave out what runs hold."""
    names = ("status", "generation", "machine", "state", "result")
    return {name: run[name] for name in names if name in run}


def cancel_of(run: Json) -> dict[str, int]:
    names = ("cancel_requested_at_ms", "cancel_acknowledged_at_ms")
    return {name: run[name] for name in names if run[name] is not None}


@dataclass
class KnownKey:
    """Everything that was told of one key."""

    run_id: str | None = None
    # Who was told to execute an attempt, as the answer 201 says.
    executors: dict[int, Owner] = field(default_factory=dict)
    attempts: list[Reached] = field(default_factory=lambda: [Reached(-1)])
    outcome: str | None = None

    def by(self, sent: int) -> Reached:
        """`generation` stands for the attempt, `ended` for settled."""
        return next(known for known in reversed(self.attempts) if known.at < sent)


class Closed(NamedTuple):
    """The fence as its only operator knows it: from one answer until its next command."""

    state: str
    since: int
    proof_key: str | None
    proof_run_id: str | None


class ClientKnowledge:
    """Runs by id, keys, and the fence."""

    def __init__(self) -> None:
        self._ticks = itertools.count(1)
        self.runs: dict[str, KnownRun] = {}
        self.keys: dict[str, KnownKey] = {}
        # Revision to state; one operator moves it.
        self.fence: dict[int, str] = {}
        self.closed: Closed | None = None

    def tick(self) -> int:
        return next(self._ticks)

    def run(self, run_id: str) -> KnownRun:
        return self.runs.setdefault(run_id, KnownRun())

    def key(self, key: str) -> KnownKey:
        return self.keys.setdefault(key, KnownKey())
