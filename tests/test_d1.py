"""The D1 boundary: what is refused before it is sent, what comes back, what a failure means."""

from __future__ import annotations

from typing import Any

import pytest

from fencepost import errors, limits
from fencepost.d1 import Database, Statement
from helpers import BridgeDatabase, D1Failure, Sql, new_key

pytestmark = pytest.mark.anyio
SAFE = limits.INTEGER_MAX


# --- Refused before anything is sent -------------------------------------------------------

ECHO = "SELECT ?1 AS value"


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
        await db.batch([Statement("SELECT 1"), Statement(ECHO, (value,))])
    assert (db.statements, db.round_trips) == ([], 0)


@pytest.mark.parametrize(
    "value",
    [None, 0, SAFE, -SAFE, 0.5, -0.25, 1e308, "", "é\U0001f600", "line\nbreak", "x" * 1_000_000],
    ids=lambda value: ascii(value)[:20],
)
async def test_any_other_value_comes_back_as_it_went(db: BridgeDatabase, value: Any) -> None:
    [result] = await db.batch([Statement(ECHO, (value,))])
    assert result.rows == [{"value": value}]


async def test_100_parameters_are_sent_and_101_are_not(db: BridgeDatabase) -> None:
    def total(count: int) -> Statement:
        values = ", ".join(f"(?{number})" for number in range(1, count + 1))
        sql = f"WITH item (n) AS (VALUES {values}) SELECT SUM(n) AS total FROM item"
        return Statement(sql, tuple(range(1, count + 1)))

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
    insert = Statement(f"INSERT INTO {table} (n, t) VALUES (?1, ?2) RETURNING *", (None, None))
    select = Statement(f"SELECT COUNT(*) AS n FROM {table} WHERE n IS ?1 AND t IS NULL", (None,))
    inserted, found = await db.batch([insert, select])
    assert inserted.rows == [{"id": 1, "n": None, "r": None, "t": None}]
    assert found.rows == [{"n": 1}]


async def test_integers_of_a_strict_table_come_back_as_integers(
    db: BridgeDatabase, table: str
) -> None:
    # Bound numbers arrive as REAL: an expression shows it, an INTEGER column takes it back.
    insert = Statement(f"INSERT INTO {table} (n, t) VALUES (?1, ?1) RETURNING n, t", (SAFE,))
    types = Statement(f"SELECT typeof(n) AS column_type, typeof(?1) AS bound FROM {table}", (1,))
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
    ("text", "params"),
    [
        ("INSERT INTO {table} (id, n) VALUES (1, 'text')", ()),
        ("INSERT INTO {table} (n) VALUES (?1)", (0.5,)),
        ("INSERT INTO {table} (id) VALUES (1), (1)", ()),
    ],
)
async def test_a_strict_column_takes_no_other_type(
    db: BridgeDatabase, table: str, text: str, params: tuple[Any, ...]
) -> None:
    with pytest.raises(errors.ConstraintFailed):
        await db.batch([Statement(text.format(table=table), params)])


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


# --- What a failure means ------------------------------------------------------------------


class Failing(Database):
    """The product's `Database` over a binding whose every batch fails in the same way."""

    def __init__(self, failure: BaseException) -> None:
        super().__init__(None)
        self.failure = failure

    async def _send(self, statements: Any) -> str:
        raise self.failure


async def outcome(message: str, *causes: str) -> errors.StorageError:
    with pytest.raises(errors.StorageError) as failure:
        await Failing(D1Failure(message, causes)).batch([Statement("SELECT 1")])
    return failure.value


UNKNOWN = [
    "D1 DB reset because its code was updated.",
    "Internal error while starting up D1 DB storage caused object to be reset.",
    "Network connection lost.",
    "Internal error in D1 DB storage caused object to be reset.",
    "Can't read from request stream because client disconnected.",
    "D1 DB storage operation exceeded timeout which caused object to be reset.",
    "D1 DB's isolate exceeded its memory limit and was reset.",
    "D1 DB exceeded its CPU time limit and was reset.",
    "Some words that nobody wrote down yet.",
    "internal error; reference = abc",
    "",
]
REFUSED = [
    "Cannot resolve D1 DB due to transient issue on remote node.",
    "D1 DB is overloaded. Requests queued for too long.",
    "D1 DB is overloaded. Too many requests queued.",
    "too many SQL variables at offset 400: SQLITE_ERROR",
    "statement too long: SQLITE_TOOBIG",
    'near "SELEC": syntax error at offset 0: SQLITE_ERROR',
    "not authorized: SQLITE_AUTH",
]
MISSING_COLUMNS = [
    "no such column: nothing at offset 7: SQLITE_ERROR",
    "no such column: t.nothing: SQLITE_ERROR",
    "table t has no column named nothing at offset 15: SQLITE_ERROR",
]
CONSTRAINTS = [
    "UNIQUE constraint failed: t.k: SQLITE_CONSTRAINT (extended: SQLITE_CONSTRAINT_UNIQUE)",
    "CHECK constraint failed: n > 0: SQLITE_CONSTRAINT (extended: SQLITE_CONSTRAINT_CHECK)",
    "NOT NULL constraint failed: t.n: SQLITE_CONSTRAINT (extended: SQLITE_CONSTRAINT_NOTNULL)",
    "FENCE_LOST: SQLITE_CONSTRAINT (extended: SQLITE_CONSTRAINT_TRIGGER)",
    "UNIQUE constraint failed: t.k: SQLITE_CONSTRAINT",
]


@pytest.mark.parametrize(
    ("text", "kind"),
    [(text, errors.Unknown) for text in UNKNOWN]
    + [(text, errors.Refused) for text in REFUSED]
    + [(text, errors.ConstraintFailed) for text in CONSTRAINTS]
    + [("no such table: nope: SQLITE_ERROR", errors.MissingTable)]
    + [(text, errors.MissingColumn) for text in MISSING_COLUMNS],
)
async def test_each_documented_failure_has_its_class(
    text: str, kind: type[errors.StorageError]
) -> None:
    # With D1's prefix over a bare cause, as it really looks; and alone, as a session gives it.
    assert type(await outcome(f"D1_ERROR: {text}", text)) is kind
    assert type(await outcome(f"D1_ERROR: {text}")) is kind
    assert type(await outcome(text)) is kind


@pytest.mark.parametrize(
    "text",
    [
        "D1_TYPE_ERROR: Type 'undefined' not supported for value 'undefined'",
        "D1_TYPE_ERROR: Type 'bigint' not supported for value '9007199254740993'",
        "D1_COLUMN_NOTFOUND: Column not found (nothing)",
        "D1_EXEC_ERROR: Error in line 1: SELEC: syntax error",
    ],
)
async def test_an_error_at_binding_never_reached_the_database(text: str) -> None:
    assert type(await outcome(text)) is errors.Refused


@pytest.mark.parametrize(
    "text",
    [
        "D1_ERROR: Network connection lost. (no such table: t: SQLITE_ERROR)",
        "D1_ERROR: Network connection lost; UNIQUE: SQLITE_CONSTRAINT, maybe",
        "D1 DB is overloaded. Requests queued for too long. Network connection lost.",
        "Error: D1_TYPE_ERROR: quoted",
        "D1_ERRORS: no such table: t",
    ],
)
async def test_a_text_that_only_mentions_a_documented_one_is_unknown(text: str) -> None:
    assert type(await outcome(text)) is errors.Unknown


MISSING = "no such table: fencepost_runs: SQLITE_ERROR"


async def test_a_missing_table_is_believed_at_the_root_of_the_causes() -> None:
    failure = await outcome("the batch failed", f"D1_ERROR: {MISSING}", MISSING)
    assert isinstance(failure, errors.MissingTable)
    assert failure.table == "fencepost_runs"


@pytest.mark.parametrize(
    "chain",
    [
        (f"D1_ERROR: {MISSING}", "database is locked"),
        (f"D1_ERROR: {MISSING}", MISSING, "Network connection lost."),
        ("wrapped", f"D1_ERROR: {MISSING}", "database is locked"),
        # Deeper than anybody looks: the root is not known.
        (*["wrapped"] * 7, MISSING, "database is locked"),
        (*["wrapped"] * 7, MISSING, *["wrapped"] * 20, "database is locked"),
    ],
    ids=["outermost", "over a lost connection", "in the middle", "eighth", "eighth of many"],
)
async def test_further_out_it_is_a_quotation_and_no_absence(chain: tuple[str, ...]) -> None:
    assert not isinstance(await outcome(*chain), errors.MissingTable)


async def test_a_lost_connection_at_the_root_is_no_refusal() -> None:
    failure = await outcome(f"D1_ERROR: {MISSING}", "Network connection lost.")
    assert type(failure) is errors.Unknown


async def test_causes_that_go_in_a_circle_come_to_an_end() -> None:
    first, second = D1Failure("first"), D1Failure("Network connection lost.")
    first.cause, second.cause = second, first
    with pytest.raises(errors.Unknown):
        await Failing(first).batch([Statement("SELECT 1")])


async def test_a_failure_that_is_no_javascript_error_is_unknown() -> None:
    with pytest.raises(errors.Unknown):
        await Failing(RuntimeError("D1_ERROR: something else")).batch([Statement("SELECT 1")])


async def test_no_answer_repeats_what_d1_said() -> None:
    for text in (MISSING, *UNKNOWN[:2], *REFUSED[-2:], *CONSTRAINTS[:1]):
        failure = await outcome(f"D1_ERROR: {text}", text)
        assert text not in failure.detail
        assert failure.members == {}
