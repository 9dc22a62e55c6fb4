"""Checks that the database kept all that answers told the clients, while the Worker is down."""

from __future__ import annotations

import itertools
import json
import sqlite3
from collections import Counter
from collections.abc import Iterator
from typing import Any

from soak.client_knowledge import ENDED, ClientKnowledge, KnownRun


def _by_run(db: sqlite3.Connection, sql: str) -> dict[str, list[sqlite3.Row]]:
    rows = db.execute(sql + " ORDER BY run_id").fetchall()
    return {id: list(group) for id, group in itertools.groupby(rows, lambda row: row["run_id"])}


def _present(
    db: sqlite3.Connection, knowledge: ClientKnowledge, sql: str
) -> Iterator[tuple[str, KnownRun, list[sqlite3.Row]]]:
    """Each run that was told of, with its rows; without those that a purge has taken."""
    rows = _by_run(db, sql)
    there = {run_id for (run_id,) in db.execute("SELECT run_id FROM fencepost_runs")}
    for run_id, told in knowledge.runs.items():
        if run_id in there:
            yield run_id, told, rows.get(run_id, [])


def runs_are_kept(db: sqlite3.Connection, knowledge: ClientKnowledge) -> Iterator[str]:
    """Every run that was told of is there, unless it had ended long ago and was purged."""
    there = {run_id for (run_id,) in db.execute("SELECT run_id FROM fencepost_runs")}
    for run_id, told in knowledge.runs.items():
        if run_id not in there and told.heads and not told.backdated:
            yield f"{run_id} is gone"


_KEYS = "SELECT key, run_id, attempt, state, outcome FROM fencepost_reservations"


def keys_are_kept(db: sqlite3.Connection, knowledge: ClientKnowledge) -> Iterator[str]:
    """Every key that was told of means its run, in no earlier attempt, settled if it was."""
    held = {row["key"]: row for row in db.execute(_KEYS)}
    for key, told in knowledge.keys.items():
        if told.run_id is None:
            continue
        last, row = told.attempts[-1], held.get(key)
        if row is None or row["run_id"] != told.run_id:
            yield f"{key} meant {told.run_id} and means {row and row['run_id']}"
        elif row["attempt"] < max([last.generation, *told.executors]):
            yield f"{key}: attempt {row['attempt']}, and {last.generation} was told"
        elif last.ended and (row["state"], row["outcome"]) != ("terminal", told.outcome):
            yield f"{key}: {row['state']} {row['outcome']}, and terminal {told.outcome} was told"


_EVENTS = "SELECT run_id, sequence, type, payload, hash FROM fencepost_events"


def events_are_kept(db: sqlite3.Connection, knowledge: ClientKnowledge) -> Iterator[str]:
    """Every head and every event that was told of is in its place, to the letter of its hash."""
    for run_id, told, rows in _present(db, knowledge, _EVENTS):
        stored = {row["sequence"]: row for row in rows}
        for sequence, hash in told.heads.items():
            if sequence not in stored or stored[sequence]["hash"] != hash:
                yield f"{run_id}: the head {sequence} that was told is not there"
        for sequence, event in told.events.items():
            row = stored.get(sequence)
            if row is None or (row["hash"], row["type"]) != (event["hash"], event["type"]):
                yield f"{run_id}: the event {sequence} that was told is not there"
            elif json.loads(row["payload"]) != event["payload"]:
                yield f"{run_id}: the event {sequence} has another payload"


def keyed_events_are_appended_once(
    db: sqlite3.Connection, knowledge: ClientKnowledge
) -> Iterator[str]:
    """An event that was sent with a key is there once, however often it was sent."""
    for run_id, told, rows in _present(db, knowledge, _EVENTS):
        noted = Counter(
            json.loads(row["payload"]).get("n") for row in rows if row["type"] == "noted"
        )
        for note in told.keyed_notes:
            if noted[note] != 1:
                yield f"{run_id}: the event {note} is there {noted[note]} times"


_ENDS = """
SELECT run_id, status, generation, cancel_requested_at_ms, cancel_acknowledged_at_ms, state, result
FROM fencepost_runs JOIN fencepost_snapshots USING (run_id)
"""


def ends_are_kept(db: sqlite3.Connection, knowledge: ClientKnowledge) -> Iterator[str]:
    """A run that was told to have ended has that status, state and result; cancels stay too."""
    for run_id, told, rows in _present(db, knowledge, _ENDS):
        if not rows:
            yield f"{run_id}: no state"
            continue
        [row] = rows
        stored: dict[str, Any] = {name: row[name] for name in ("status", "generation")}
        stored |= {n: row[n] and json.loads(row[n]) for n in ("state", "result")}
        for name, value in told.end.items():
            if name in stored and stored[name] != value:
                yield f"{run_id}: {name} is {stored[name]!r}, and {value!r} was told"
        if row["generation"] < told.reached[-1].generation:
            yield f"{run_id}: generation {row['generation']} is lower than was told"
        if told.reached[-1].ended and row["status"] not in ENDED:
            yield f"{run_id}: {row['status']}, and its end was told"
        for name, at_ms in told.cancel.items():
            if row[name] is None or (row[name] != at_ms and not told.backdated):
                yield f"{run_id}: {name} is {row[name]}, and {at_ms} was told"


_OUTCOMES = "SELECT run_id, operation_id, state, outcome FROM fencepost_operations"


def outcomes_are_kept(db: sqlite3.Connection, knowledge: ClientKnowledge) -> Iterator[str]:
    """An operation whose commit was told is committed, with that outcome."""
    for run_id, told, rows in _present(db, knowledge, _OUTCOMES):
        stored = {row["operation_id"]: row for row in rows}
        for id, (_, outcome) in told.outcomes.items():
            row = stored.get(id)
            if row is None or row["state"] != "committed" or json.loads(row["outcome"]) != outcome:
                yield f"{run_id}: operation {id} is not committed with {outcome!r}"


_BINDINGS = "SELECT run_id, gate, revision, receipt_hash FROM fencepost_bindings"


def bindings_are_kept(db: sqlite3.Connection, knowledge: ClientKnowledge) -> Iterator[str]:
    """A delivery binding that was told of is bound."""
    for run_id, told, rows in _present(db, knowledge, _BINDINGS):
        stored = {(row["gate"], row["revision"]): row["receipt_hash"] for row in rows}
        for place, binding in told.bindings.items():
            if stored.get(place) != binding["receipt_hash"]:
                yield f"{run_id}: binding {place} is {stored.get(place)}"


_THEFTS = """
SELECT run_id, generation, at_ms FROM fencepost_ownership WHERE type = 'stolen'
"""


def no_lease_was_cut_short(db: sqlite3.Connection, knowledge: ClientKnowledge) -> Iterator[str]:
    """A run was stolen only when the lease that its owner had been told by then had ended.

    A heartbeat after a theft undoes it, so only those before the theft count.
    """
    for run_id, told, thefts in _present(db, knowledge, _THEFTS):
        for theft in thefts if not told.backdated else []:
            for lease in told.leases.get(theft["generation"], ()):
                if lease.heartbeat_at_ms < theft["at_ms"] <= lease.expires_at_ms:
                    yield f"{run_id}: stolen at {theft['at_ms']}, within {lease}"


_ACTIVATED = """
SELECT run_id, generation, owner_host_id, owner_pid, owner_nonce
FROM fencepost_ownership WHERE type = 'activated'
"""


def owners_are_kept(db: sqlite3.Connection, knowledge: ClientKnowledge) -> Iterator[str]:
    """The owner that was told of a generation is the one whose activation is on record."""
    for run_id, told, rows in _present(db, knowledge, _ACTIVATED):
        stored = {row["generation"]: tuple(row)[2:] for row in rows}
        for generation, owner in told.owners.items():
            if stored.get(generation) != owner:
                yield f"{run_id}: generation {generation} is {stored.get(generation)}, not {owner}"


def nobody_held_what_it_was_not_granted(
    db: sqlite3.Connection, knowledge: ClientKnowledge
) -> Iterator[str]:
    """Whoever was told that it holds, or acted in, a generation is the one who was granted it."""
    for run_id, told, rows in _present(db, knowledge, _ACTIVATED):
        stored = {row["generation"]: tuple(row)[2:] for row in rows}
        for generation, owner in told.held.items():
            if stored.get(generation) != owner:
                granted = stored.get(generation)
                yield f"{run_id}: {owner} held generation {generation}, granted to {granted}"


INVARIANTS = (
    runs_are_kept,
    keys_are_kept,
    events_are_kept,
    keyed_events_are_appended_once,
    ends_are_kept,
    outcomes_are_kept,
    bindings_are_kept,
    no_lease_was_cut_short,
    owners_are_kept,
    nobody_held_what_it_was_not_granted,
)
