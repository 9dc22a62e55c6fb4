"""A fence that cannot be read: reader and writer refuse alike, and nothing is written behind it."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from fencepost import errors, fence
from fencepost.fence import Fence
from fencepost.identifiers import Principal
from fencepost.storage.sql import Statement
from helpers import Client, Json, Sql
from test_fence_admission import ALWAYS, MATRIX, is_unsigned

# --- The SQL and the Python of it --------------------------------------------------------

_TABLE = "fencepost_fence"
_COLUMNS = ("id", "state", "revision", "proof_key", "proof_run_id", "updated_at_ms")
# Those of which nothing but the start of a proof depends: an earlier shape lacks them.
_LATER = ("proof_principal_kind", "proof_principal_id", "last_admitted_revision")
# Without types and CHECKs, so that it holds anything.
_LOOSE = [
    f"DROP TABLE IF EXISTS {_TABLE}",
    f"CREATE TABLE {_TABLE} ({', '.join(_COLUMNS + _LATER)})",
]

STATES = ["'open'", "'draining'", "'migration-locked'", "'proof-only'", "'half-open'", "'OPEN'"]
STATES += ["''", "NULL", "7", "x'6f70656e'"]
NAMES = ["NULL", "'k'", "'r'", "''", "5", "x'6b'"]
NUMBERS = ["0", "9007199254740991", "9007199254740992", "-1", "5.0", "0.5", "'5'", "'x'", "NULL"]
NUMBERS += ["9e999", "1e300", "9223372036854775807", "x'35'"]


def _row(
    state: str, revision: str = "3", key: str = "NULL", run: str = "NULL", at: str = "9"
) -> str:
    return f"('deployment', {state}, {revision}, {key}, {run}, {at}, NULL, NULL, NULL)"


def _fences() -> list[list[str]]:
    """The rows of many fences."""
    rows = [_row(s, key=k, run=r) for s, k, r in itertools.product(STATES, NAMES, NAMES)]
    for state, number in itertools.product(STATES[:2], NUMBERS):
        rows += [_row(state, revision=number), _row(state, at=number)]
    rows += [_row("'proof-only'", number, "'k'", "'r'") for number in NUMBERS]
    several = [[_row(one), _row(other)] for one, other in itertools.product(STATES[:4], repeat=2)]
    return [[], *([row] for row in rows), *several, [_row("'open'")] * 3]


KEYS = ["k", "r", "5", ""]
ALICE = Principal("service", "alice")
_BY_ALICE = fence.admits_start_sql(":key", ":run_id", "'service'", "'alice'")
_START = f"SELECT {_BY_ALICE} AS admitted"
_EXISTING = f"SELECT {fence.admits_existing_run_sql(':run_id')} AS admitted"
_ASKED = [Statement(_START, key=key, run_id=run) for key in KEYS for run in ("r", "other")]
_ASKED += [Statement(_EXISTING, run_id=run) for run in KEYS]


def _by_python(rows: list[Json]) -> list[bool]:
    try:
        gate = Fence.from_rows(rows)
    except errors.FenceUnreadable:
        return [False] * len(_ASKED)
    starts = [gate.admits_start(key, ALICE, run) for key in KEYS for run in ("r", "other")]
    return starts + [gate.admits_existing_run(run) for run in KEYS]


def _ask(sql: Sql, fences: list[list[str]]) -> list[tuple[list[Json], list[bool]]]:
    """For each fence its rows as they are read, and what the SQL admits. One round trip."""
    asked = [(each.sql, each.params) for each in _ASKED]
    each = len(asked) + 3
    batch: list[tuple[str, Any]] = []
    for rows in fences:
        put = f"INSERT INTO {_TABLE} VALUES {', '.join(rows)}" if rows else "SELECT 1"
        batch += [(f"DELETE FROM {_TABLE}", ()), (put, ())]
        batch += [(f"SELECT * FROM {_TABLE}", ()), *asked]
    results = [result["results"] for result in sql.batch(batch)]
    parts = [results[at : at + each] for at in range(0, len(results), each)]
    return [(part[2], [bool(answer[0]["admitted"]) for answer in part[3:]]) for part in parts]


def test_the_writer_admits_exactly_what_the_reader_admits(database: Sql) -> None:
    database.batch([(text, ()) for text in _LOOSE])
    fences, differ = _fences(), []
    for at in range(0, len(fences), 40):
        some = fences[at : at + 40]
        for rows, (read, by_sql) in zip(some, _ask(database, some), strict=True):
            if by_sql != _by_python(read):
                differ.append((rows, by_sql, _by_python(read)))
    assert differ == []


@pytest.mark.parametrize("column", _COLUMNS[1:])
def test_a_fence_row_without_a_column_admits_nothing(database: Sql, column: str) -> None:
    """Nor does a column of the same name in the statement around stand in for it."""
    columns = [name for name in _COLUMNS + _LATER if name != column]
    database.batch([(_LOOSE[0], ()), (f"CREATE TABLE {_TABLE} ({', '.join(columns)})", ())])
    values = {"id": "'deployment'", "state": "'open'", "revision": "1", "updated_at_ms": "1"}
    row = ", ".join(values.get(name, "NULL") for name in columns)
    database(f"INSERT INTO {_TABLE} VALUES ({row})")
    with pytest.raises(errors.FenceUnreadable):
        Fence.from_rows(database(f"SELECT * FROM {_TABLE}"))
    around = "(SELECT 'open' AS state, 1 AS revision, 1 AS updated_at_ms, NULL AS proof_key)"
    for asked in _ASKED:
        with pytest.raises(Exception, match="no such column"):
            database(f"{asked.sql} FROM {around}", *asked.params)


# --- Every route -------------------------------------------------------------------------

ODD = {
    "of an unknown state": [_row("'half-open'")],
    "two rows": [_row("'open'"), _row("'open'").replace("deployment", "other")],
    "a negative revision": [_row("'open'", "-5")],
    "a revision that is no number": [_row("'open'", "'x'")],
    "proof-only without a proof key": [_row("'proof-only'")],
    "open with a proof key": [_row("'open'", key="'k'")],
}
# Of the routes that pass the fence: those that show it, or move it, and so must read it.
ABOUT_IT = {("GET", "/v1/fence"), ("POST", "/v1/fence/transitions"), ("GET", "/v1/health")}


def _prepared(client: Client) -> Json:
    run = client.started()
    run["token"] = client.operation(run, "acquire", ttl_ms=60_000).json()["lease"]["token"]
    run["unbegun"] = client.started()
    return run


@pytest.mark.parametrize(
    "odd",
    [pytest.param(name, marks=[pytest.mark.soak] * (n > 1)) for n, name in enumerate(ODD)],
)
def test_nothing_is_written_behind_an_unreadable_fence(
    client: Client, database: Sql, odd: str
) -> None:
    routes = {route: send for route, (_, send) in MATRIX.items() if route[0] == "POST"}
    runs = {route: _prepared(client) for route in routes}
    database.lapse(runs["POST", "/v1/starts/{key}/resolve"]["run_id"])
    database.batch([(text, ()) for text in _LOOSE])
    database(f"INSERT INTO {_TABLE} VALUES {', '.join(ODD[odd])}")
    for route, send in routes.items():
        before = database.dump()
        answer = send(client, runs[route])
        passes = MATRIX[route][0] == ALWAYS and route not in ABOUT_IT
        if passes:
            assert is_unsigned(answer) or answer.status_code == 200, (route, answer.text)
        else:
            code = answer.json()["code"]
            assert (answer.status_code, code) == (503, "EXECUTION_FENCE_UNREADABLE"), route
            assert database.dump() == before, route


@pytest.mark.soak
@pytest.mark.parametrize("column", _COLUMNS[1:])
def test_a_fence_without_a_column_is_answered_with_503_and_nothing_is_written(
    client: Client, database: Sql, column: str
) -> None:
    gated = [route for route in MATRIX if MATRIX[route][0] != ALWAYS or route in ABOUT_IT]
    run, ended = _prepared(client), client.started()
    client.finish(ended, result=1).raise_for_status()
    columns = [name for name in _COLUMNS + _LATER if name != column]
    database.batch([(_LOOSE[0], ()), (f"CREATE TABLE {_TABLE} ({', '.join(columns)})", ())])
    row = {"id": "deployment", "state": "open", "revision": 1, "updated_at_ms": 1}
    marks = ", ".join(f"?{n}" for n in range(1, len(columns) + 1))
    database(f"INSERT INTO {_TABLE} VALUES ({marks})", *(row.get(name) for name in columns))
    before = database.dump()
    for route in gated:
        if route != ("GET", "/v1/health"):
            answer = MATRIX[route][1](client, run)
            assert answer.status_code == 503, (route, answer.text)
    assert database.dump() == before
    assert client.get(f"/v1/runs/{ended['run_id']}").json()["result"] == 1


def test_what_needs_no_start_is_answered_though_the_fence_lacks_a_column(
    client: Client, database: Sql
) -> None:
    run = client.started()
    client.finish(run, result=1).raise_for_status()
    columns = ", ".join(name for name in _COLUMNS + _LATER if name != "revision")
    database.batch([(_LOOSE[0], ()), (f"CREATE TABLE {_TABLE} ({columns})", ())])
    database(f"INSERT INTO {_TABLE} VALUES ('deployment', 'open', NULL, NULL, 1, NULL, NULL, NULL)")
    headers = {"X_Local_Isolate": "0"}
    replay = client.start(run["key"], None, **headers)
    assert (replay.status_code, replay.json()["outcome"]) == (200, "replayed")
