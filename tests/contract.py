"""The contract as a model: one key, its run and its steps, under one fence, in plain Python.

Written from the rules (docs/states.md), not from the product's code. Every verb is a method that
takes effect at once, at `now`, and returns what it comes to. `tell` says what may be answered when
the rows are only read back later, after a reply that was lost. What the product mints (tokens) is a
`Symbol` here; the walk finds out which text stands for which symbol.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from fencepost.runs import Owner

ENDED = ("completed", "failed", "cancelled")
# Verbs that leave no trace which outlives the next write: after a lost reply they may be sent
# again, and are then answered as another request of the same caller.
COVERABLE = frozenset({"start", "heartbeat", "acquire", "renew"})
# Verbs that may mark a lapsed lease although they lose; then they look once more.
MARKING = frozenset({"commit", "interrupt"})
# Those that an `Idempotency-Key` does not name: a start has its own, a look writes nothing, and the
# others are safe to send again by nature.
UNKEYED = frozenset({"start", "look", "heartbeat", "renew", "assert_held"})
OF_THE_DEPLOYMENT = frozenset({"release", "resolve", "move_fence"})
WON = frozenset(
    (
        *("released", "resolved", "owned", "claimed", "stolen", "activated", "abandoned"),
        *("recovered", "transitioned", "appended", "cancel_requested", "cancel_acknowledged"),
        *("acquired", "committed", "interrupted", "moved"),
    )
)
CREATED_OR_RESTARTED = ("run-created", "run-restarted")


class Symbol(NamedTuple):
    """A text that the product mints."""

    number: int


NOBODYS = Symbol(-1)


class Grant(NamedTuple):
    """What a caller is told to have: a generation, a claim's time, a step's token, a look."""

    kind: Literal["generation", "claim", "lease", "look"]
    what: Any
    step: str | None = None


class Answer(NamedTuple):
    """`replayed`: of a keyed request that had its effect before."""

    outcome: str
    grant: Grant | None = None
    replayed: bool = False


class Evidence(NamedTuple):
    kind: str
    owner: Owner
    heartbeat: int | None = None

    def keeps_its_rule(self, who: Owner) -> bool:
        same_host = who.host_id == self.owner.host_id
        if self.kind == "same-host-pid-dead":
            return same_host
        return self.kind == "lease-expired" or not same_host


class Claim(NamedTuple):
    """`heartbeat`: that of the owner it was stolen from."""

    owner: Owner
    at: int
    heartbeat: int | None


class Fact(NamedTuple):
    type: str
    owner: Owner | None
    generation: int
    granted: int | None
    at: int


@dataclass
class Key:
    nonce: Symbol | None
    updated: int
    state: str = "started"
    attempt: int = 1
    outcome: str | None = None
    # What differs in it from the usual start: the owner (a principal), the target or the input.
    meaning: str | None = None


@dataclass
class Run:
    owner: Owner | None
    heartbeat: int | None
    lease_ms: int
    updated: int
    write: Symbol
    # The generation that the start of the present attempt granted.
    begun: int | None = 1
    status: str = "running"
    generation: int = 1
    claim: Claim | None = None
    requested: int | None = None
    acknowledged: int | None = None
    finished: int | None = None
    state: str = "null"
    result: str | None = None
    expires: int | None = None

    def fresh(self, now: int) -> bool:
        return self.expires is not None and now <= self.expires

    def stale(self, now: int) -> bool:
        return self.status == "running" and not self.fresh(now)

    def claim_fresh(self, now: int) -> bool:
        return self.claim is not None and now <= self.claim.at + self.lease_ms

    def held_by(self, who: Owner, generation: int | None) -> bool:
        return self.owner == who and generation in (None, self.generation)

    def claimed_by(self, who: Owner, at: int | None) -> bool:
        return self.claim is not None and self.claim.owner == who and at in (None, self.claim.at)

    def nobody(self) -> None:
        self.owner = self.heartbeat = self.expires = None


@dataclass
class Step:
    payload: str
    token: Symbol
    generation: int
    expires: int | None
    write: Symbol
    state: str = "running"
    outcome: str | None = None

    @property
    def row(self) -> list[Any]:
        lease = [self.token, self.generation, self.expires]
        return [self.state, self.payload, *lease, self.outcome, self.write]


@dataclass
class Contract:
    """The world of one key. The attribute `run_` is None until the first start."""

    fence: str = "open"
    revision: int = 1
    key: Key | None = None
    run_: Run | None = None
    steps: dict[str, Step] = field(default_factory=dict)
    facts: list[Fact] = field(default_factory=list)
    events: list[str] = field(default_factory=list)
    minted: int = 0
    # Who ended the run, in which generation, and how.
    ended_by: tuple[Any, ...] | None = None
    # What keyed requests came to.
    named: dict[int, Answer] = field(default_factory=dict)

    def copy(self) -> Contract:
        other = copy.copy(self)
        other.key, other.run_ = copy.copy(self.key), copy.copy(self.run_)
        other.steps = {name: copy.copy(step) for name, step in self.steps.items()}
        other.facts, other.events = list(self.facts), list(self.events)
        other.named = dict(self.named)
        return other

    def do(self, verb: str, now: int, args: dict[str, Any], key: int | None = None) -> Answer:
        """A request; with a key it has one effect, and is answered so ever after."""
        if key is not None and key in self.named:
            return self.named[key]._replace(replayed=True)
        method: Callable[..., Answer | str] = getattr(self, verb)
        minted = self.minted
        answer = method(now, **args)
        answer = Answer(answer) if isinstance(answer, str) else answer
        wrote = self.minted > minted or verb == "move_fence"
        cleared = verb == "activate" and answer.outcome == "snapshot_changed"
        if key is not None and wrote and (cleared or answer.outcome in WON):
            self.named[key] = answer
        return answer

    # --- What every verb uses ------------------------------------------------------------

    def mint(self) -> Symbol:
        self.minted += 1
        return Symbol(self.minted)

    @property
    def run(self) -> Run:
        assert self.run_ is not None
        return self.run_

    @property
    def admits_existing(self) -> bool:
        return self.fence in ("open", "draining")

    def refused(self) -> str | None:
        """Why no owner, claimant or caller may do anything to the run, whoever it is."""
        if not self.visible:
            return "not_found"
        return None if self.admits_existing else "fenced"

    @property
    def visible(self) -> bool:
        """Whether there is a run, and it belongs to the principal whose processes ask."""
        return self.key is not None and self.key.meaning != "owner"

    def wrote(self, now: int, later: int = 0) -> int:
        """A write to the run row; its time."""
        self.run.updated = max(now, self.run.updated + later)
        self.run.write = self.mint()
        return self.run.updated

    def note(self, type: str, who: Owner | None, granted: int | None = None) -> None:
        self.facts.append(Fact(type, who, self.run.generation, granted, self.run.updated))

    def end_claim(self, how: str) -> None:
        if (claim := self.run.claim) is not None:
            self.run.claim = None
            self.note(how, claim.owner, claim.at)

    def grant(self, who: Owner, at: int, lease_ms: int | None) -> Answer:
        run = self.run
        run.lease_ms = lease_ms or run.lease_ms
        run.status, run.owner, run.claim = "running", who, None
        run.generation += 1
        run.heartbeat, run.expires = at, at + run.lease_ms
        self.note("activated", who, at)
        return Answer("", Grant("generation", run.generation))

    def settle(self, outcome: str) -> None:
        key = self.key
        if key is not None and key.state != "terminal":
            key.state, key.outcome = "terminal", outcome
            key.updated = max(key.updated + 1, self.run.updated)

    def end(self, how: str) -> None:
        """The end of a run that is written already."""
        self.run.status, self.run.finished = how, self.run.updated
        self.settle(how)

    # --- Start, release, resolve ---------------------------------------------------------

    def table(self, now: int, who: Owner, foreign: str | None, created: bool) -> str:
        """The answer to a start, from the rows as they are; `free`: it may be granted."""
        if self.key is None:
            return "free" if self.fence == "open" else "fenced"
        for part in ("owner", "target", "input"):
            if (self.key.meaning == part) != (foreign == part):
                return f"{part}_mismatch"
        run = self.run
        if run.owner == who and run.fresh(now):
            return "started" if created or self.admits_existing else "fenced"
        if run.status in (*ENDED, "suspended"):
            return "replayed"
        if run.fresh(now) or run.claim_fresh(now):
            return "pending"
        if run.status == "running" or run.claim is not None:
            return "unresolvable"
        return "free" if self.fence == "open" else "fenced"

    def start(self, now: int, who: Owner, lease_ms: int, foreign: str | None) -> Answer:
        answer = self.table(now, who, foreign, created=False)
        if answer != "free":
            return Answer(answer)
        if self.key is None:
            token = self.mint()
            self.key = Key(token, now, meaning=foreign)
            self.run_ = Run(who, now, lease_ms, now, token, generation=0)
            self.grant(who, now, lease_ms)
            self.events.append("run-created")
        else:
            key, run = self.key, self.run
            key.state, key.updated = "started", max(now, key.updated + 1)
            at = self.wrote(key.updated)
            key.nonce = run.write
            self.grant(who, at, lease_ms)
            self.events.append("run-restarted")
            run.begun = run.generation
        return Answer("started", Grant("generation", self.run.generation))

    def recorded(self) -> bool:
        """Whether the attempt has recorded anything, or is not the one that its start granted."""
        run = self.run
        return (
            run.begun != run.generation
            or self.events[-1] not in CREATED_OR_RESTARTED
            or any(step.generation == run.generation for step in self.steps.values())
            or any(
                fact.type == "cancel-acknowledged" and fact.generation == run.generation
                for fact in self.facts
            )
        )

    def release(self, now: int, who: Owner, generation: int | None) -> str:
        if self.key is None or not self.visible:
            return "not_found"
        run, key = self.run, self.key
        if not run.held_by(who, generation) or not run.fresh(now):
            return "fence_lost"
        if key.state != "started":
            return "snapshot_changed"
        if self.recorded():
            return "work_recorded"
        self.wrote(now)
        self.end_claim("released")
        self.note("released", who)
        run.nobody()
        if run.requested is not None:
            self.events.append("run-released:cancelled")
            self.end("cancelled")
        else:
            self.events.append("run-released")
            self.wait_again(max(key.updated + 1, run.updated))
        return "released"

    def wait_again(self, at: int) -> None:
        assert self.key is not None
        self.run.status, self.run.begun = "pending", None
        self.key.state, self.key.nonce, self.key.updated = "reserved", None, at
        self.key.attempt += 1

    @property
    def seen(self) -> tuple[Any, ...]:
        """Names the start as it is: another one after every write to key, run or steps."""
        key, run = self.key, self.run
        assert key is not None
        writes = tuple(step.write for _, step in sorted(self.steps.items()))
        return (key.state, key.attempt, key.updated, run.write, writes)

    def look(self, now: int) -> Answer:
        if self.key is None:
            return Answer("not_found")
        return Answer("looked", Grant("look", self.seen))

    def resolve(self, now: int, decision: str, seen: Any, result: str | None) -> str:
        if self.key is None:
            return "not_found"
        run, key = self.run, self.key
        if self.seen != seen or key.state == "terminal":
            return "snapshot_changed"
        if run.fresh(now):
            return "heartbeat_fresh"
        if run.claim_fresh(now):
            return "claim_fresh"
        at = self.wrote(max(now, key.updated + 1))
        dead = run.owner
        self.end_claim("expired")
        if dead is not None:
            self.note("expired", dead)
        run.nobody()
        self.events.append(f"run-resolved:{decision}")
        run.result = result or run.result
        if decision == "not_executed" and run.requested is None:
            self.wait_again(at)
            return "resolved"
        self.end("completed" if decision == "executed" else "cancelled")
        key.updated = at
        key.outcome = "executed" if decision == "executed" else "cancelled"
        return "resolved"

    # --- Ownership and claims ------------------------------------------------------------

    def not_grantable(self, now: int) -> str:
        if self.run.claim is not None:
            return "already_claimed"
        return "heartbeat_fresh" if self.run.fresh(now) else "snapshot_changed"

    def own(
        self,
        now: int,
        who: Owner,
        evidence: Evidence | None,
        lease_ms: int | None,
        expected_status: str | None,
    ) -> Answer | str:
        if refused := self.refused():
            return refused
        run, before = self.run, self.run.owner
        if before == who and run.fresh(now):
            return Answer("owned", Grant("generation", run.generation))
        if run.claim is not None or not (run.stale(now) or run.status in ("pending", "suspended")):
            return self.not_grantable(now)
        if expected_status not in (None, run.status):
            return "snapshot_changed"
        if evidence is not None and evidence.heartbeat not in (None, run.heartbeat):
            return "snapshot_changed"
        if run.stale(now) and before != who:
            if evidence is None or (evidence.owner == before and not evidence.keeps_its_rule(who)):
                return "evidence_required"
            if evidence.owner != before:
                return "snapshot_changed"
        at = self.wrote(now)
        if before == who:
            self.note("released", who)
        self.note("claimed" if before in (None, who) else "stolen", who, at)
        return self.grant(who, at, lease_ms)._replace(outcome="owned")

    def claim(
        self, now: int, who: Owner, lease_ms: int | None, expected_status: str | None
    ) -> Answer | str:
        if refused := self.refused():
            return refused
        run = self.run
        if run.claim is not None or run.status not in ("pending", "suspended"):
            return self.not_grantable(now)
        if expected_status not in (None, run.status):
            return "snapshot_changed"
        run.lease_ms = lease_ms or run.lease_ms
        return self.claimed("claimed", who, now)

    def claimed(self, how: str, who: Owner, now: int) -> Answer:
        at = self.wrote(now, later=1)
        self.run.claim = Claim(who, at, self.run.heartbeat)
        self.note(how, who, at)
        return Answer(how, Grant("claim", at))

    def steal(self, now: int, who: Owner, evidence: Evidence) -> Answer | str:
        if refused := self.refused():
            return refused
        if not evidence.keeps_its_rule(who):
            return "liveness_unconfirmed"
        run = self.run
        expected = evidence.owner == run.owner and evidence.heartbeat in (None, run.heartbeat)
        if run.claim is not None or not run.stale(now) or not expected:
            return self.not_grantable(now)
        return self.claimed("stolen", who, now)

    def activate(self, now: int, who: Owner, claimed_at: int | None) -> Answer | str:
        if refused := self.refused():
            return refused
        run = self.run
        if run.claim is None or not run.claimed_by(who, claimed_at):
            if run.owner == who and run.fresh(now) and claimed_at in (None, self.granted_from()):
                return Answer("activated", Grant("generation", run.generation))
            return "claim_lost"
        at = self.wrote(now)
        if run.claim.heartbeat != run.heartbeat:
            self.end_claim("released")
            return "snapshot_changed"
        return self.grant(who, at, None)._replace(outcome="activated")

    def granted_from(self) -> int | None:
        """When the claim was made from which the run was granted."""
        types = [fact.type for fact in self.facts]
        granted = len(types) - 1 - types[::-1].index("activated")
        claims = [fact for fact in self.facts[:granted] if fact.type in ("claimed", "stolen")]
        return claims[-1].granted if claims else None

    def abandon(self, now: int, who: Owner, claimed_at: int | None) -> str:
        if refused := self.refused():
            return refused
        if not self.run.claimed_by(who, claimed_at):
            return "claim_lost"
        self.let_go("released", now)
        return "abandoned"

    def let_go(self, how: str, now: int) -> None:
        self.wrote(now)
        self.end_claim(how)
        if self.run.status == "pending" and self.run.requested is not None:
            self.events.append("state-transitioned:cancelled")
            self.end("cancelled")

    def recover(self, now: int, who: Owner, evidence: Evidence, claimed_at: int | None) -> str:
        if refused := self.refused():
            return refused
        if not evidence.keeps_its_rule(who):
            return "liveness_unconfirmed"
        if not self.run.claimed_by(evidence.owner, claimed_at):
            return "claim_changed"
        if self.run.claim_fresh(now):
            return "claim_fresh"
        self.let_go("expired", now)
        return "recovered"

    def heartbeat(self, now: int, who: Owner, generation: int | None, lease_ms: int | None) -> str:
        if refused := self.refused():
            return refused
        run = self.run
        if run.heartbeat is None or run.expires is None or not run.held_by(who, generation):
            return "fence_lost"
        self.wrote(now)
        run.lease_ms = lease_ms or run.lease_ms
        run.heartbeat = max(run.heartbeat, now)
        run.expires = max(run.expires, now + run.lease_ms)
        return "renewed"

    # --- Moving, adding, cancelling ------------------------------------------------------

    def transition(
        self,
        now: int,
        who: Owner,
        generation: int | None,
        to: str,
        guard: str | None,
        head: int | None,
        text: str | None,
    ) -> str:
        if refused := self.refused():
            return refused
        run = self.run
        if not run.held_by(who, generation):
            by, in_generation, *how = self.ended_by or (None, None)
            same = by == who and generation in (None, in_generation)
            before = len(self.events) - 1
            again = same and how == [to, text, before] and head in (None, before)
            return "transitioned" if again else "fence_lost"
        if guard is not None and (guard == "present") != (run.requested is not None):
            return "guard_failed"
        if head not in (None, len(self.events)):
            return "head_changed"
        self.wrote(now)
        if to in ENDED:
            self.ended_by = (who, run.generation, to, text, len(self.events))
        self.events.append(f"state-transitioned:{to}")
        if text is not None:
            run.state = text
            run.result = text if to in ENDED else run.result
        if to == "running":
            return "transitioned"
        self.end_claim("released")
        self.note("released", who)
        run.nobody()
        run.status = to
        if to in ENDED:
            self.end(to)
        return "transitioned"

    def append(self, now: int, who: Owner | None, generation: int | None, head: int | None) -> str:
        if refused := self.refused():
            return refused
        if who is None and self.run.status in ENDED:
            return "run_ended"
        if who is not None and not self.run.held_by(who, generation):
            return "fence_lost"
        if head not in (None, len(self.events)):
            return "head_changed"
        self.wrote(now)
        self.events.append("note")
        return "appended"

    def cancel(self, now: int, operator: bool) -> str:
        if self.run_ is None or not (operator or self.visible):
            return "not_found"
        run = self.run
        if run.status in ENDED:
            return "terminal"
        if run.requested is not None:
            return "already_requested"
        run.requested = self.wrote(now)
        self.note("cancel-requested", None)
        if run.status == "pending" and run.claim is None:
            self.events.append("state-transitioned:cancelled")
            self.end("cancelled")
        return "cancel_requested"

    def acknowledge(self, now: int, who: Owner, generation: int | None) -> str:
        if refused := self.refused():
            return refused
        run = self.run
        if not run.held_by(who, generation):
            return "fence_lost"
        if run.requested is None:
            return "cancel_not_requested"
        if run.acknowledged is not None:
            return "cancel_acknowledged"
        run.acknowledged = self.wrote(now)
        self.note("cancel-acknowledged", who)
        return "cancel_acknowledged"

    # --- Steps ---------------------------------------------------------------------------

    def not_ours(self, who: Owner, generation: int | None) -> str | None:
        if refused := self.refused():
            return refused
        return None if self.run.held_by(who, generation) else "fence_lost"

    def live(self, step: Step, now: int) -> bool:
        """Whether its lease holds."""
        if step.expires is None or self.run.status != "running":
            return False
        return now <= step.expires and step.generation == self.run.generation

    def interrupted(self, step: Step, now: int) -> None:
        self.wrote(now)
        self.events.append("operation-interrupted")
        step.state, step.expires, step.write = "interrupted", None, self.run.write

    def mark_lapsed(self, name: str, now: int) -> Step | None:
        """The step, after it was marked interrupted if its lease lapsed."""
        step = self.steps.get(name)
        if step is not None and step.state == "running" and not self.live(step, now):
            self.interrupted(step, now)
        return step

    def acquire(
        self,
        now: int,
        who: Owner,
        generation: int | None,
        name: str,
        payload: str,
        ttl: int,
        mode: str,
    ) -> Answer | str:
        if lost := self.not_ours(who, generation):
            return lost
        step = self.mark_lapsed(name, now)
        if step is not None and step.payload != payload:
            return "operation_conflict"
        if step is not None and step.state == "committed":
            return "replayed"
        if step is not None and step.state == "running" and mode != "preempt":
            shared = Answer("shared", Grant("lease", step.token, name))
            return "operation_already_running" if mode == "exclusive" else shared
        token = self.mint()
        self.steps[name] = Step(payload, token, self.run.generation, now + ttl, token)
        return Answer("acquired", Grant("lease", token, name))

    def with_lease(
        self, now: int, who: Owner, generation: int | None, name: str, token: Symbol
    ) -> Step | str:
        """The step, if its lease holds under this token; else the loss."""
        if lost := self.not_ours(who, generation):
            return lost
        step = self.mark_lapsed(name, now)
        if step is None:
            return "step_not_found"
        return step if step.state == "running" and step.token == token else "lease_fenced"

    def renew(
        self, now: int, who: Owner, generation: int | None, name: str, token: Symbol, ttl: int
    ) -> Answer | str:
        step = self.with_lease(now, who, generation, name, token)
        if isinstance(step, str):
            return step
        assert step.expires is not None
        step.expires, step.write = max(step.expires, now + ttl), self.mint()
        return Answer("renewed", Grant("lease", token, name))

    def assert_held(
        self, now: int, who: Owner, generation: int | None, name: str, token: Symbol
    ) -> str:
        """Writes nothing, so it asks a copy."""
        step = self.copy().with_lease(now, who, generation, name, token)
        return step if isinstance(step, str) else "asserted"

    def commit(
        self, now: int, who: Owner, generation: int | None, name: str, token: Symbol, outcome: str
    ) -> str:
        step = self.with_lease(now, who, generation, name, token)
        if isinstance(step, Step):
            step.state, step.outcome, step.expires = "committed", outcome, None
            step.write = self.mint()
            return "committed"
        found = self.steps.get(name)
        again = step == "lease_fenced" and found is not None and found.state == "committed"
        if again and found is not None and (found.token, found.outcome) == (token, outcome):
            return "committed"
        return step

    def interrupt(
        self, now: int, who: Owner, generation: int | None, name: str, token: Symbol
    ) -> str:
        step = self.with_lease(now, who, generation, name, token)
        if isinstance(step, str):
            return step
        self.interrupted(step, now)
        return "interrupted"

    # --- The fence -----------------------------------------------------------------------

    def move_fence(self, now: int, expected: str, next: str, revision: int | None) -> str:
        if expected != self.fence or revision not in (None, self.revision):
            return "conflict"
        self.fence, self.revision = next, self.revision + 1
        return "moved"

    # --- What may be told ----------------------------------------------------------------

    def tell(self, verb: str, now: int, args: dict[str, Any], answer: Answer) -> Answer | None:
        """What may be told of an effect, when these are the rows that are read back.

        None: nothing; the request must be answered as another one.
        """
        grant = answer.grant
        if verb == "start":
            told = self.table(now, args["who"], args["foreign"], created=grant is not None)
            granted = Grant("generation", self.run.generation) if told == "started" else None
            return None if told == "free" else Answer(told, granted)
        if grant is None or grant.kind == "look":
            return answer
        run, who = self.run, args["who"]
        if grant.kind == "generation":
            if not run.held_by(who, grant.what):
                return Answer("overtaken", grant)
            return answer if run.fresh(now) else Answer("lease_lapsed", grant)
        if grant.kind == "claim":
            return answer if run.claimed_by(who, grant.what) else Answer("overtaken", grant)
        step = self.steps.get(grant.step or "")
        holds = step is not None and step.token == grant.what and self.live(step, now)
        if answer.replayed and not holds:
            return Answer("overtaken")
        return answer if holds else None

    # --- The rows ------------------------------------------------------------------------

    def rows(self) -> dict[str, Any]:
        """What the database must show; as `STATE` in the walk reads it."""
        key, run = self.key, self.run_
        if key is None or run is None:
            rows = {"fence": [self.fence, self.revision], "key": None, "run": None}
            return rows | {name: [] for name in ("steps", "facts", "events")} | self.requests
        claim = [None] * 4 if run.claim is None else [*run.claim.owner, run.claim.at]
        lease = [run.heartbeat, run.lease_ms, run.expires]
        cancel = [run.requested, run.acknowledged]
        told = [run.updated, run.finished, len(self.events), run.state, run.result, run.write]
        owned = [*_names(run.owner), run.generation]
        return {
            "fence": [self.fence, self.revision],
            "key": [key.state, key.attempt, key.nonce, key.outcome, key.updated],
            "run": [run.status, *owned, *lease, *claim, *cancel, *told],
            "steps": [[name, *step.row] for name, step in sorted(self.steps.items())],
            "facts": [[each.type, *_names(each.owner), *each[2:]] for each in self.facts],
            "events": self.events,
            **self.requests,
        }

    @property
    def requests(self) -> dict[str, list[int]]:
        return {"requests": sorted(self.named)}


def _names(owner: Owner | None) -> list[Any]:
    return [None] * 3 if owner is None else list(owner)
