"""A database of many reservations and runs, written straight into the file of the local D1.

Rows are as starts, transitions and grants leave them: CHECKs hold, hashes are real. Of every ten
runs two are running, each with an operation, and two each suspended, failed, completed and
cancelled; half of them are one principal's. Most belong to a lineage of a few rounds. A tenth of
the size each: the rounds of one lineage, the audit, and the events, bindings and facts of one run.
"""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from bench.measure import START, owner
from fencepost import journal
from fencepost.http.strictjson import dumps
from fencepost.identifiers import Target, slot
from fencepost.journal import GENESIS, Event, Head
from fencepost.schema import tables

MINE = "seeder"
STATUSES = ("running", "suspended", "failed", "completed", "cancelled")
LEASE_MS = 3_600_000
LONG_RUN = "run_long"
LONG_LINEAGE = "lineage-long"
RECEIPT = "ab" * 32
NONCE = "00" * 16
OWNER = tuple(owner("seed").values())

STATE_JSON = dumps(START["input"])
TARGET = Target(START["target"]["kind"], START["target"]["id"])
Rows = Iterator[tuple[Any, ...]]


class Seed(NamedTuple):
    """What stands in a database of `size` runs, all of it written at `at_ms`."""

    size: int
    at_ms: int

    @property
    def long(self) -> int:
        """How many there are of what grows with the size."""
        return self.size // 10

    @property
    def middle(self) -> int:
        """A running run of MINE, with at least five more of each status behind it."""
        return self.size // 20 * 10 - 10

    def run_id(self, number: int) -> str:
        """As long as one that is minted, and in the order of the numbers."""
        at_ms = self.at_ms - self.size + number
        return f"run_{at_ms:012x}{number:020x}~{slot(self.key(number))}"

    def key(self, number: int) -> str:
        return f"seed-{number:08d}"

    def principal(self, number: int) -> tuple[str, str]:
        return "service", MINE if number % 2 == 0 else f"other-{number % 10}"

    def status(self, number: int) -> str:
        return STATUSES[number // 2 % 5]

    def lineage(self, number: int) -> tuple[str, int]:
        if number % 10 == 0:
            return LONG_LINEAGE, number // 10
        return f"lineage-{number // 20}-{number % 2}", number // 2 % 10

    def fingerprint(self, number: int) -> str:
        """That of START in this lineage."""
        id, round = self.lineage(number)
        return journal.sha256(_FINGERPRINTED.replace("@id", id).replace('"@round"', str(round)))


# Canonical JSON as templates: of millions of values it would take minutes.
_FINGERPRINTED = journal.canonical(
    {
        "target": TARGET.as_json(),
        "input": START["input"],
        "lineage": {"id": "@id", "round": "@round"},
    }
).decode()
_CREATED = journal.canonical(
    {
        "run_id": "@run_id",
        "target": TARGET.as_json(),
        "fingerprint": "@fingerprint",
        "principal": {"kind": "service", "id": "@principal"},
        "lineage": "@lineage",
        "parent_run_id": None,
        "subject": None,
        "state_sha256": journal.sha256(STATE_JSON),
    }
).decode()


def write(file: Path, seed: Seed) -> None:
    """Fill the tables that a first start has created in `file`, which nobody has open."""
    with sqlite3.connect(file, isolation_level=None) as database:
        # Faster, and safe: a seeding that is interrupted is done again from nothing.
        for pragma in ("journal_mode = DELETE", "synchronous = OFF", "cache_size = -500000"):
            database.execute(f"PRAGMA {pragma}")
        indexes = [ddl for ddl in tables.STATEMENTS if ddl.startswith("CREATE INDEX")]
        for ddl in indexes:
            database.execute(f"DROP INDEX {ddl.split()[5]}")
        database.execute("BEGIN")
        for table, rows in _TABLES.items():
            unchecked = "ON" if table in _UNCHECKED else "OFF"
            database.execute(f"PRAGMA ignore_check_constraints = {unchecked}")
            _insert(database, f"fencepost_{table}", rows(seed))
        for ddl in indexes:
            database.execute(ddl)
        database.execute("COMMIT")
        database.execute("PRAGMA journal_mode = WAL")
    database.close()


def _insert(database: sqlite3.Connection, table: str, rows: Rows) -> None:
    columns = database.execute(f"SELECT COUNT(*) FROM pragma_table_info('{table}')").fetchone()[0]
    marks = ", ".join("?" * columns)
    database.executemany(f"INSERT INTO {table} VALUES ({marks})", rows)


# Where JSON may be NULL: json_valid(NULL) was false, not NULL, in SQLite before 3.41.
_UNCHECKED = {"snapshots", "bindings", "operations", "audit"}


# --- Rows, in the order of the columns -----------------------------------------------------


def _reservations(seed: Seed) -> Rows:
    at_ms = seed.at_ms
    for n in range(seed.size):
        status = seed.status(n)
        over = status in STATUSES[2:]
        state = ("terminal", 1, NONCE, status) if over else ("started", 1, NONCE, None)
        what = (*seed.principal(n), *TARGET, seed.fingerprint(n), seed.run_id(n))
        yield (seed.key(n), *what, *state, at_ms, at_ms, 0, None, 0)


def _runs(seed: Seed) -> Rows:
    for n in range(seed.size):
        head = _events_of(seed, n)[-1].head
        yield _run(seed, seed.run_id(n), seed.principal(n), seed.status(n), head, seed.lineage(n))
    head = _long_history(seed)[-1].head
    yield _run(seed, LONG_RUN, ("service", MINE), "running", head, (None, None))


def _run(
    seed: Seed,
    run_id: str,
    principal: tuple[str, str],
    status: str,
    head: Head,
    lineage: tuple[str | None, int | None],
) -> tuple[Any, ...]:
    at_ms = seed.at_ms
    held = status == "running"
    lease = (at_ms, LEASE_MS, at_ms + LEASE_MS) if held else (None, LEASE_MS, None)
    finished_at_ms = at_ms if status in STATUSES[2:] else None
    return (
        *(run_id, *principal, *TARGET, status),
        *(*(OWNER if held else (None, None, None)), 1, *lease),
        *(None,) * 5,  # the claim
        *(None, None, None, *lineage, None, None, None),  # cancels, parent, lineage, machine
        *(head.sequence, head.hash, NONCE, at_ms, at_ms, at_ms, finished_at_ms, None),
    )


def _snapshots(seed: Seed) -> Rows:
    for n in range(seed.size):
        yield seed.run_id(n), STATE_JSON, "42" if seed.status(n) == "completed" else None
    yield LONG_RUN, STATE_JSON, None


def _events_of(seed: Seed, n: int) -> list[Event]:
    lineage, round = seed.lineage(n)
    payload = (
        _CREATED.replace("@run_id", seed.run_id(n))
        .replace("@fingerprint", seed.fingerprint(n))
        .replace("@principal", seed.principal(n)[1])
        .replace('"@lineage"', f'{{"id":"{lineage}","round":{round}}}')
    )
    created = _chained(GENESIS, "run-created", payload)
    status = seed.status(n)
    if status == "running":
        return [created]
    result = f'"result_sha256":"{journal.sha256("42")}",' if status == "completed" else ""
    moved = f'{{"from":"running",{result}"to":"{status}"}}'
    return [created, _chained(created.head, "state-transitioned", moved)]


def _chained(head: Head, type: str, payload: str) -> Event:
    sequence, prior = head.sequence + 1, head.hash
    text = f'{{"payload":{payload},"prior_hash":"{prior}","sequence":{sequence},"type":"{type}"}}'
    return Event(sequence, type, payload, prior, hashlib.sha256(text.encode()).hexdigest())


def _long_history(seed: Seed) -> list[Event]:
    payload = _CREATED.replace("@run_id", LONG_RUN).replace("@principal", MINE)
    payload = payload.replace("@fingerprint", "0" * 64).replace('"@lineage"', "null")
    events = [_chained(GENESIS, "run-created", payload)]
    for revision in range(1, seed.long + 1):
        bound = f'{{"gate":"a","receipt_hash":"{RECEIPT}","revision":{revision}}}'
        events.append(_chained(events[-1].head, "delivery-bound", bound))
    return events


def _events(seed: Seed) -> Rows:
    for n in range(seed.size):
        yield from _event_rows(seed, seed.run_id(n), _events_of(seed, n))
    yield from _event_rows(seed, LONG_RUN, _long_history(seed))


def _event_rows(seed: Seed, run_id: str, events: list[Event]) -> Rows:
    for event in events:
        chain = (event.type, event.payload_json, event.prior_hash, event.hash)
        yield (run_id, event.sequence, *chain, NONCE, seed.at_ms)


def _ownership(seed: Seed) -> Rows:
    at_ms = seed.at_ms
    for n in range(seed.size):
        yield (seed.run_id(n), 1, "activated", *OWNER, 1, at_ms, NONCE, at_ms, *(None, None))
        if seed.status(n) != "running":
            yield (seed.run_id(n), 2, "released", *OWNER, 1, None, NONCE, at_ms, *(None, None))
    for sequence in range(1, seed.long + 1):
        type = "activated" if sequence % 2 else "released"
        about = (sequence, type, *OWNER, (sequence + 1) // 2, at_ms, NONCE, at_ms)
        yield (LONG_RUN, *about, *(None, None))


def _subjects(seed: Seed) -> Rows:
    for n in range(0, seed.size, 10):
        yield "service", MINE, "delivery", f"change:seed-{n:08d}", seed.run_id(n)


def _bindings(seed: Seed) -> Rows:
    for revision in range(1, seed.long + 1):
        yield LONG_RUN, revision, "a", RECEIPT, None, seed.at_ms


def _operations(seed: Seed) -> Rows:
    at_ms = seed.at_ms
    for n in range(seed.size):
        if seed.status(n) == "running":
            lease = ("running", NONCE, 1, at_ms + LEASE_MS)
            times = (at_ms, at_ms)
            yield (seed.run_id(n), "step", "lease", "0" * 64, *lease, None, None, NONCE, *times)


def _audit(seed: Seed) -> Rows:
    for sequence in range(1, seed.long + 1):
        what = ("cancel", "service", MINE, seed.run_id(sequence), None, None, None)
        yield (sequence, *what, NONCE, seed.at_ms, *(None, None))


_TABLES: dict[str, Callable[[Seed], Rows]] = {
    "reservations": _reservations,
    "runs": _runs,
    "snapshots": _snapshots,
    "events": _events,
    "ownership": _ownership,
    "subjects": _subjects,
    "bindings": _bindings,
    "operations": _operations,
    "audit": _audit,
}
