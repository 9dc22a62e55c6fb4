"""Checks every answer against all answers before it, and adds it to what is known."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from soak import answer_invariants
from soak.client_knowledge import ClientKnowledge, Json, KnownKey, KnownRun, Owner, Reached
from soak.requests_and_answers import Answer, Request, an_answer_is_documented

SHOWN_MAX = 20


class Findings:
    """Violations: counted by invariant, the first few said at once."""

    def __init__(self, say: Callable[[str], None] = print) -> None:
        self.counts: Counter[str] = Counter()
        self._say = say

    def add(self, invariant: str, text: str | None) -> None:
        """`text` None: the invariant holds."""
        if text is not None:
            self.counts[invariant] += 1
            if self.counts.total() <= SHOWN_MAX:
                self._say(f"VIOLATION {invariant}: {text}")


class AnswerChecker:
    """Checks every answer once, before its client gets it."""

    def __init__(self, knowledge: ClientKnowledge, findings: Findings) -> None:
        self.knowledge = knowledge
        self.findings = findings

    def answered(self, request: Request, answer: Answer) -> None:
        now = self.knowledge.tick()
        self._hold(an_answer_is_documented, request, answer, about=request)
        if answer.run is not None:
            self.saw_run(answer.run, answer.sent, now)
        if not isinstance(answer.body, dict):
            return
        if request.path == "/v1/starts":
            self._saw_start(request, answer)
        if "reservation" in answer.body:
            self._saw_reservation(answer.body["reservation"], answer.sent, now)
        if request.run_id is not None:
            self._saw_of_a_run(request.run_id, request, answer, now)
        if answer.won and request.verb == "transitions":
            self._saw_fence(answer.body)
        if answer.won and request.work:
            self._saw_work_under_the_fence(request, answer)

    def saw_again(self, request: Request, first: Answer, again: Answer) -> None:
        """A keyed request that had won, and was sent once more."""
        retry = answer_invariants.a_retry_is_answered_as_the_first
        self._hold(retry, first.body, again.body, again.status, about=request)

    def saw_run(self, run: Json, sent: int, now: int) -> None:
        told = self.knowledge.run(run["run_id"])
        for invariant in answer_invariants.OF_A_RUN:
            self._hold(invariant, told, run, sent, about=run["run_id"])
        told.note(run, now)

    def _hold(self, invariant: Callable[..., str | None], *args: Any, about: Any = "") -> None:
        text = invariant(*args)
        self.findings.add(invariant.__name__, text and f"{about}: {text}")

    def _saw_start(self, request: Request, answer: Answer) -> None:
        assert request.key is not None
        told, body = self.knowledge.key(request.key), answer.body
        run_id = body["run"]["run_id"] if answer.won else body.get("run_id")
        if run_id is not None:
            self._key_means(request.key, told, run_id)
        if not answer.won:
            return
        self._hold(
            answer_invariants.only_an_owner_is_told_to_execute,
            request.owner,
            body,
            about=request.key,
        )
        if answer.status == 201:
            attempt, run = body["reservation"]["attempt"], body["run"]
            owner = request.owner or tuple(run["owner"].values())
            execution = answer_invariants.one_execution_an_attempt
            self._hold(execution, told, attempt, owner, about=request.key)
            told.executors.setdefault(attempt, owner)
        if body["outcome"] == "started" and request.owner is not None:
            self._saw_holder(self.knowledge.run(run_id), request, request.owner, answer)

    def _key_means(self, key: str, told: KnownKey, run_id: str) -> None:
        self._hold(answer_invariants.one_run_a_key, told, run_id, about=key)
        told.run_id = run_id

    def _saw_reservation(self, held: Json, sent: int, now: int) -> None:
        key = held["key"]
        told = self.knowledge.key(key)
        self._key_means(key, told, held["run_id"])
        self._hold(
            answer_invariants.attempts_only_rise_and_the_end_is_kept, told, held, sent, about=key
        )
        last, settled = told.attempts[-1], held["state"] == "terminal"
        known = Reached(now, max(last.generation, held["attempt"]), 0, last.ended or settled)
        if known[1:] != last[1:]:
            told.attempts.append(known)
        if settled:
            told.outcome = held["outcome"]

    def _saw_of_a_run(self, run_id: str, request: Request, answer: Answer, now: int) -> None:
        told, body = self.knowledge.run(run_id), answer.body
        operation = body.get("operation")
        if operation is not None:
            committed = answer_invariants.a_committed_outcome_stays
            self._hold(committed, told, operation, answer.sent, about=run_id)
            if operation["state"] == "committed":
                told.outcomes.setdefault(operation["id"], (now, operation["outcome"]))
        if not answer.won:
            return
        if body.get("outcome") == "acquired" and request.operation is not None:
            place = (request.operation, body["lease"]["token"])
            acquired = answer_invariants.a_token_is_acquired_once
            self._hold(acquired, told, *place, request.owner, about=run_id)
            told.tokens.setdefault(place, request.owner or ("", 0, ""))
        if body.get("outcome") == "appended":
            told.events[body["event"]["sequence"]] = body["event"]
            if request.key is not None and "n" in body["event"]["payload"]:
                told.keyed_notes.add(body["event"]["payload"]["n"])
        if "intact" in body:
            self._hold(answer_invariants.a_history_is_intact, body, about=run_id)
        for binding in body.get("bindings", ()):
            self._hold(answer_invariants.a_binding_is_never_changed, told, binding, about=run_id)
            told.bindings[binding["gate"], binding["revision"]] = binding
        if request.owner is not None:
            self._saw_holder(told, request, request.owner, answer)

    def _saw_holder(self, told: KnownRun, request: Request, owner: Owner, answer: Answer) -> None:
        """A verb that won, by a process that says who it is."""
        run, about = answer.run, request.path
        if run is not None:
            grant = answer_invariants.a_grant_names_its_owner
            self._hold(grant, owner, answer.outcome, run, about=about)
            passed = answer_invariants.whoever_lost_the_run_since_is_told
            self._hold(passed, owner, request.verb, answer.body, about=about)
        generations = set() if request.generation is None else {request.generation}
        if run is not None and answer.outcome in answer_invariants.HOLDING:
            generations.add(run["generation"])
        for generation in generations:
            holds = answer_invariants.a_generation_is_held_by_whom_it_was_granted
            self._hold(holds, told, generation, owner, about=about)
            told.held.setdefault(generation, owner)

    def _saw_fence(self, fence: Json) -> None:
        known = self.knowledge.fence.setdefault(fence["revision"], fence["state"])
        if known != fence["state"]:
            text = f"revision {fence['revision']}: {known} and {fence['state']}"
            self.findings.add("a_revision_of_the_fence_has_one_state", text)

    def _saw_work_under_the_fence(self, request: Request, answer: Answer) -> None:
        closed, work = self.knowledge.closed, request.work
        replayed = answer.replayed or answer.outcome == "replayed"
        if closed is None or answer.sent < closed.since or replayed:
            return
        if work == "start" and answer.status == 200:
            work = "run"  # the owner's own retry
        run_id = request.run_id or (answer.run and answer.run["run_id"])
        admitted = answer_invariants.a_closed_fence_admits_nothing
        self._hold(admitted, closed, work, request.key, run_id, about=request.verb)
