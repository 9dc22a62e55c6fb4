"""The D1 boundary: what is refused before it is sent, and what comes back."""

from __future__ import annotations

from typing import Any

import pytest

from fencepost import errors, limits
from fencepost.storage.sql import Statement
from helpers import BridgeDatabase, Sql, new_key

pytestmark = pytest.mark.anyio
SAFE = limits.INTEGER_MAX


# --- Refused before anything is sent -------------------------------------------------------

ECHO = "SELECT :value AS value"


@pytest.mark.parametrize(
    ("value", "why"),
    [
        (SAFE + 1, "beyond"),
        (-SAFE - 1, "beyond"),
        (10**30, "beyond"),
        (float("nan"), "finite"),
        (float("inf"), "finite"),
        (-float("inf"), "finite"),
        ("a\0b", "NUL"),
        ("\ud800", "surrogate"),
        ("a\udfffb", "surrogate"),
        (True, "bool"),
        (False, "bool"),
        (b"bytes", "bytes"),
        ([1], "list"),
        ({"a": 1}, "dict"),
        ("x" * (limits.VALUE_BYTES_MAX + 1), "longer"),
        ("é" * (limits.VALUE_BYTES_MAX // 2 + 1), "longer"),
    ],
    ids=lambda value: ascii(value)[:20],
)
async def test_a_value_that_d1_would_refuse_or_change_is_never_sent(
    db: BridgeDatabase, value: Any, why: str
) -> None:
    with pytest.raises(ValueError, match=why):
        await db.batch([Statement("SELECT 1"), Statement(ECHO, value=value)])
    assert (db.statements, db.round_trips) == ([], 0)


@pytest.mark.parametrize(
    "value",
    [None, 0, SAFE, -SAFE, 0.5, -0.25, 1e308, "", "é\U0001f600", "line\nbreak", "x" * 1_000_000],
    ids=lambda value: ascii(value)[:20],
)
async def test_a_value_that_d1_takes_comes_back_as_it_was_sent(
    db: BridgeDatabase, value: Any
) -> None:
    [result] = await db.batch([Statement(ECHO, value=value)])
    assert result.rows == [{"value": value}]


async def test_100_parameters_are_sent_and_101_are_not(db: BridgeDatabase) -> None:
    def total(count: int) -> Statement:
        values = {f"n{number}": number for number in range(1, count + 1)}
        places = ", ".join(f"(:{name})" for name in values)
        sql = f"WITH item (n) AS (VALUES {places}) SELECT SUM(n) AS total FROM item"
        return Statement(sql, **values)

    [result] = await db.batch([total(100)])
    assert result.rows == [{"total": 5050}]
    with pytest.raises(ValueError, match="101"):
        await db.batch([total(101)])
    assert len(db.statements) == 1


@pytest.mark.parametrize("letter", ["x", "é"])
async def test_sql_is_measured_in_bytes(db: BridgeDatabase, letter: str) -> None:
    bytes_each = len(letter.encode())
    room = limits.SQL_BYTES_MAX - len("SELECT '' AS a")
    await db.batch([Statement(f"SELECT '{letter * (room // bytes_each)}' AS a")])
    with pytest.raises(ValueError, match="longer"):
        await db.batch([Statement(f"SELECT '{letter * (room // bytes_each + 1)}' AS a")])
    assert len(db.statements) == 1


@pytest.mark.parametrize(
    "sql",
    [
        "INSERT INTO fencepost_fence DEFAULT VALUES",
        "UPDATE fencepost_runs SET generation = 0",
        "DELETE FROM fencepost_fence",
        "CREATE TABLE x (y)",
        "PRAGMA foreign_keys",
        "WITH one AS (SELECT 1) DELETE FROM fencepost_fence",
        "WITH one AS (SELECT 1)\nINSERT INTO fencepost_fence SELECT * FROM fencepost_fence",
        "",
    ],
)
async def test_a_read_holds_nothing_but_selects(db: BridgeDatabase, sql: str) -> None:
    with pytest.raises(ValueError):
        await db.read([Statement("SELECT 1"), Statement(sql)])
    assert db.statements == []


async def test_a_read_may_begin_with_white_space(db: BridgeDatabase) -> None:
    [result] = await db.read([Statement("\n SELECT 1 AS n")])
    assert result.rows == [{"n": 1}]


# --- What comes back from the real D1 ------------------------------------------------------


@pytest.fixture
def table(sql: Sql) -> Any:
    name = new_key("t").replace("-", "_")
    sql(f"CREATE TABLE {name} (id INTEGER PRIMARY KEY, n INTEGER, r REAL, t TEXT) STRICT")
    yield name
    sql(f"DROP TABLE {name}")


async def test_null_is_none_both_ways(db: BridgeDatabase, table: str) -> None:
    # cloudflare/workers-sdk #2745: None is not undefined, and not the text "null".
    insert = Statement(f"INSERT INTO {table} (n, t) VALUES (:n, :t) RETURNING *", n=None, t=None)
    select = Statement(f"SELECT COUNT(*) AS n FROM {table} WHERE n IS :n AND t IS NULL", n=None)
    inserted, found = await db.batch([insert, select])
    assert inserted.rows == [{"id": 1, "n": None, "r": None, "t": None}]
    assert found.rows == [{"n": 1}]


async def test_integers_of_a_strict_table_come_back_as_integers(
    db: BridgeDatabase, table: str
) -> None:
    # Bound numbers arrive as REAL: an expression shows it, an INTEGER column takes it back.
    insert = Statement(f"INSERT INTO {table} (n, t) VALUES (:n, :n) RETURNING n, t", n=SAFE)
    types = Statement(f"SELECT typeof(n) AS column_type, typeof(:n) AS bound FROM {table}", n=1)
    inserted, found = await db.batch([insert, types])
    assert type(inserted.rows[0]["n"]) is int
    assert inserted.rows[0]["n"] == SAFE
    assert found.rows == [{"column_type": "integer", "bound": "real"}]


async def test_trips_and_rows_add_up_over_the_batches(db: BridgeDatabase, table: str) -> None:
    insert = Statement(f"INSERT INTO {table} (n) VALUES (1), (2), (3)")
    [inserted] = await db.batch([insert])
    assert (db.round_trips, inserted.changes, inserted.rows_written) == (1, 3, 3)
    read = await db.batch([Statement(f"SELECT * FROM {table}"), Statement("SELECT 1")])
    assert db.round_trips == 2
    assert (db.rows_read, db.rows_written) == (
        sum(result.rows_read for result in read) + inserted.rows_read,
        3,
    )
    assert read[0].rows_read == 3
    assert db.elapsed_ms > 0


async def test_a_failed_batch_counts_as_a_trip_too(db: BridgeDatabase) -> None:
    with pytest.raises(errors.MissingTable):
        await db.batch([Statement("SELECT * FROM nowhere")])
    assert db.round_trips == 1


async def test_a_batch_whose_last_statement_fails_leaves_no_row(
    db: BridgeDatabase, table: str
) -> None:
    # cloudflare/miniflare #484
    valid = Statement(f"INSERT INTO {table} (id) VALUES (7)")
    with pytest.raises(errors.ConstraintFailed):
        await db.batch([valid, valid])
    assert (await db.read([Statement(f"SELECT * FROM {table}")]))[0].rows == []


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("INSERT INTO {table} (id, n) VALUES (1, 'text')", {}),
        ("INSERT INTO {table} (n) VALUES (:n)", {"n": 0.5}),
        ("INSERT INTO {table} (id) VALUES (1), (1)", {}),
    ],
)
async def test_a_strict_column_takes_no_other_type(
    db: BridgeDatabase, table: str, text: str, values: dict[str, float]
) -> None:
    with pytest.raises(errors.ConstraintFailed):
        await db.batch([Statement(text.format(table=table), **values)])


async def test_a_missing_table_is_named(db: BridgeDatabase) -> None:
    with pytest.raises(errors.MissingTable) as failure:
        await db.batch([Statement("SELECT 1"), Statement("SELECT * FROM nowhere_1")])
    assert failure.value.table == "nowhere_1"


@pytest.mark.parametrize(
    "sql",
    [
        "SELEC 1",
        "SELECT",
        "SELECT nothing FROM sqlite_master",
        "SELECT no_function(1)",
        "SELECT 'no such table: x: SQLITE_ERROR' FROM y WHERE",
    ],
)
async def test_a_statement_that_d1_does_not_take_is_refused(db: BridgeDatabase, sql: str) -> None:
    with pytest.raises(errors.Refused):
        await db.batch([Statement(sql)])


async def test_a_constant_of_the_sql_cannot_pose_as_another_failure(
    db: BridgeDatabase, table: str
) -> None:
    # The text of a failure can quote what a caller chose: a RAISE, a column name.
    name = '"no such table: x: SQLITE_ERROR"'
    with pytest.raises(errors.Refused):
        await db.batch([Statement(f"SELECT t.{name} FROM {table} AS t")])


async def test_a_read_that_fails_is_no_lost_write(db: BridgeDatabase) -> None:
    with pytest.raises(errors.StorageUnreadable):
        await db.read([Statement("SELECT no_function(1)")])
    with pytest.raises(errors.MissingTable):
        await db.read([Statement("SELECT * FROM nowhere")])
