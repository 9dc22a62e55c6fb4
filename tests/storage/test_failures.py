"""What a failure of D1 means: whether the write ran, did not, or may have."""

from __future__ import annotations

from typing import Any

import pytest

from fencepost import errors
from fencepost.storage.d1 import Database
from fencepost.storage.sql import Statement
from helpers import D1Failure

pytestmark = pytest.mark.anyio


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
async def test_a_missing_table_named_above_the_root_of_the_causes_is_not_believed(
    chain: tuple[str, ...],
) -> None:
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
