"""What must hold of every answer, given all answers before it. Each returns what breaks it.

Nothing here asks the product: an invariant compares words of its answers with earlier words.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from soak.client_knowledge import (
    ENDED,
    Closed,
    Json,
    KnownKey,
    KnownRun,
    Owner,
    cancel_of,
    owner_of,
    the_end,
)

# --- Of a run ----------------------------------------------------------------------------


def a_generation_has_one_owner(told: KnownRun, run: Json, sent: int) -> str | None:
    """A generation of a run has one owner, in every answer."""
    generation, owner = run["generation"], owner_of(run["owner"])
    first = told.owners.get(generation)
    if owner is None or first in (None, owner):
        return None
    return f"generation {generation} belongs to {first} and to {owner}"


def generations_only_rise(told: KnownRun, run: Json, sent: int) -> str | None:
    """A generation that was told is never followed by a lower one."""
    known, seen = told.by(sent).generation, run["generation"]
    return f"generation {seen} after {known}" if seen < known else None


def a_history_is_one_line(told: KnownRun, run: Json, sent: int) -> str | None:
    """There is one hash for each sequence, and no answer goes back to an earlier head."""
    sequence, hash = run["head"]["sequence"], run["head"]["hash"]
    other, known = told.heads.get(sequence, hash), told.by(sent).sequence
    if other != hash:
        return f"two events at sequence {sequence}: {other} and {hash}"
    return f"head {sequence} after {known}" if sequence < known else None


def a_run_that_ended_stays_as_it_ended(told: KnownRun, run: Json, sent: int) -> str | None:
    """Status, state, result, machine and generation of an end never change; replays repeat it."""
    if run["status"] not in ENDED:
        return f"{run['status']} after {told.end}" if told.by(sent).ended else None
    changed = {
        name: (told.end[name], value)
        for name, value in the_end(run).items()
        if name in told.end and told.end[name] != value
    }
    return f"the end changed: {changed}" if changed else None


def a_cancel_is_asked_and_acknowledged_once(told: KnownRun, run: Json, sent: int) -> str | None:
    """The first time of each is kept."""
    for name, at_ms in cancel_of(run).items():
        if told.cancel.get(name, at_ms) != at_ms and not told.backdated:
            return f"{name} was {told.cancel[name]} and is {at_ms}"
    return None


OF_A_RUN = (
    a_generation_has_one_owner,
    generations_only_rise,
    a_history_is_one_line,
    a_run_that_ended_stays_as_it_ended,
    a_cancel_is_asked_and_acknowledged_once,
)

# --- Of a key ----------------------------------------------------------------------------


def one_run_a_key(told: KnownKey, run_id: str) -> str | None:
    """A key means one run, whoever asks and whenever."""
    return None if told.run_id in (None, run_id) else f"means {told.run_id} and {run_id}"


def one_execution_an_attempt(told: KnownKey, attempt: int, owner: Owner) -> str | None:
    """No two owners are told to execute the same attempt of a start."""
    first = told.executors.get(attempt, owner)
    return None if first == owner else f"attempt {attempt} was given to {first} and to {owner}"


def attempts_only_rise_and_the_end_is_kept(told: KnownKey, held: Json, sent: int) -> str | None:
    """The attempt of a reservation never falls; what was settled stays so, with its outcome."""
    known, settled = told.by(sent), held["state"] == "terminal"
    if held["attempt"] < known.generation:
        return f"attempt {held['attempt']} after {known.generation}"
    if known.ended and not settled:
        return f"{held['state']} after terminal"
    if settled and told.outcome not in (None, held["outcome"]):
        return f"the outcome was {told.outcome} and is {held['outcome']}"
    return None


# --- Of one answer -----------------------------------------------------------------------


def only_an_owner_is_told_to_execute(asked: Owner | None, answer: Json) -> str | None:
    """A process that gets `started` is the owner of the running run in the answer."""
    run = answer["run"]
    owner = owner_of(run["owner"])
    if answer["outcome"] != "started" or (run["status"] == "running" and owner == (asked or owner)):
        return None
    return f"{asked} was told to execute the {run['status']} run of {owner}"


# Who is told one of these holds the run that comes with it, in its generation.
HOLDING = ("started", "owned", "activated", "renewed", "reconfirmed")
# Verbs of a holder whose effect stays, whoever holds the run afterwards.
_EFFECTS = ("transition", "acknowledge-cancel", "events", "bindings", "bind-change")


def a_grant_names_its_owner(asked: Owner, outcome: str, run: Json) -> str | None:
    """A process that is told it owns or claims a run is the owner or claimant of the run that comes
    with it, also when the reply of the database was lost and others may have come.
    """
    if outcome in HOLDING:
        holder = owner_of(run["owner"])
    elif outcome in ("claimed", "stolen"):
        holder = owner_of(run["claim"] and run["claim"]["owner"])
    else:
        return None
    return None if holder == asked else f"{asked} was told {outcome}, and the holder is {holder}"


def a_generation_is_held_by_whom_it_was_granted(
    told: KnownRun, generation: int, asked: Owner
) -> str | None:
    """Nobody is told that it holds, or acts in, a generation that is another process's."""
    known = {told.owners.get(generation, asked), told.held.get(generation, asked)}
    return None if known == {asked} else f"generation {generation} is of {known}, not of {asked}"


def whoever_lost_the_run_since_is_told(asked: Owner, verb: str, answer: Json) -> str | None:
    """An effect that comes with a run of another process says what took it; no other does."""
    taken = answer["run"]["owner"] is not None and owner_of(answer["run"]["owner"]) != asked
    if verb not in _EFFECTS or taken == ("beaten_by" in answer):
        return None
    return f"{verb} of {asked}: run of {answer['run']['owner']}, {answer.get('beaten_by')}"


def a_closed_fence_admits_nothing(
    closed: Closed, work: str, key: str | None, run_id: str | None
) -> str | None:
    """The fence admitted no `start` and no work of a `run` that its state forbids.

    For a request that was sent after the fence was known to be closed, and answered before it
    was told to move. The proof start and its run are the exception of proof-only.
    """
    if closed.state == "open" or (closed.state == "draining" and work == "run"):
        return None
    proof = key is not None and key == closed.proof_key
    if closed.state == "proof-only" and (proof or run_id == closed.proof_run_id is not None):
        return None
    return f"{closed.state} admitted a {work}: key {key}, run {run_id}"


def a_committed_outcome_stays(told: KnownRun, operation: Json, sent: int) -> str | None:
    """An operation that was committed is never anything else again."""
    at, outcome = told.outcomes.get(operation["id"], (sent, None))
    if at < sent and (operation["state"], operation["outcome"]) != ("committed", outcome):
        return f"operation {operation['id']}: committed {outcome!r}, now {operation}"
    if at > sent and operation["state"] == "committed" and operation["outcome"] != outcome:
        return f"operation {operation['id']}: committed {outcome!r} and {operation['outcome']!r}"
    return None


def a_token_is_acquired_once(told: KnownRun, id: str, token: str, owner: Owner) -> str | None:
    """A token that was `acquired` is new: nobody else has acquired it (it may be shared)."""
    first = told.tokens.get((id, token), owner)
    return None if first == owner else f"the token of operation {id} has {first} and {owner}"


def a_binding_is_never_changed(told: KnownRun, binding: Json) -> str | None:
    """What was bound at a gate in a revision is what is bound there."""
    known = told.bindings.get((binding["gate"], binding["revision"]), binding)
    same = all(known[name] == binding[name] for name in ("receipt_hash", "approval_proof"))
    return None if same else f"{known} became {binding}"


def a_retry_is_answered_as_the_first(first: Json, again: Json, status: int) -> str | None:
    """The same keyed request, sent again after it had won: the same outcome and event; or that what
    it granted is over.
    """
    over = status == 409 and again.get("code") in ("OVERTAKEN", "LEASE_LAPSED")
    if over and first["outcome"] in ("owned", "activated", "claimed", "stolen", "acquired"):
        return None
    same = all(first.get(name) == again.get(name) for name in ("outcome", "event", "granted"))
    return None if status == 200 and same else f"{first} and then {status} {again}"


def each_generation_is_activated_once(facts: Iterable[Json]) -> str | None:
    """The activations of a run carry the generations 1, 2, 3, …, each once and in this order."""
    given = [fact["generation"] for fact in facts if fact["type"] == "activated"]
    return None if given == list(range(1, len(given) + 1)) else f"activated as {given}"


def a_list_holds_what_stays(known: set[str], items: list[Json]) -> str | None:
    """Pages, one after the other, show nothing twice and all that was there before the first."""
    shown = [item["run_id"] for item in items]
    if len(shown) != len(set(shown)):
        return f"shown twice: {sorted({id for id in shown if shown.count(id) > 1})[:3]}"
    missing = known - set(shown)
    return f"{len(missing)} are missing: {sorted(missing)[:3]}" if missing else None


def a_history_is_intact(integrity: Json) -> str | None:
    """The service itself finds no history that was altered."""
    broken: Any = integrity["first_broken"]
    return None if integrity["intact"] and broken is None else f"broken: {broken}"
