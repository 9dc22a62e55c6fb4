"""The schema guard: refuses to write to a database of an unknown shape. It repairs nothing.

An isolate checks the stored shape before its first write, in one read. Once it has found the
present shape it checks no more, until D1 reports a missing table or column. Only a start and a
fence transition call `ensure`, which creates what is missing and migrates earlier shapes.

Not guaranteed: that a running isolate notices a change to the tables. It does when a statement
fails because of it; the next isolate does before its first write.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from fencepost import errors
from fencepost.schema import ddl, migrations, tables
from fencepost.schema.ddl import Difference
from fencepost.schema.migrations import DDL, INDEXES, Earlier
from fencepost.storage.d1 import Database, Result
from fencepost.storage.sql import Statement

# The SQL text that D1 keeps of our tables and all that belongs to them. What a constraint made,
# as an index of a UNIQUE, has no text.
_READ_SHAPE = """
SELECT type, lower(name) AS name, lower(tbl_name) AS tbl_name, sql FROM sqlite_master
WHERE (name LIKE 'fencepost!_%' ESCAPE '!' OR tbl_name LIKE 'fencepost!_%' ESCAPE '!')
  AND type IN ('table', 'view', 'index') AND sql IS NOT NULL
"""


class Shape(NamedTuple):
    """What differs from this build: foreign shapes, earlier shapes, and what is missing."""

    foreign: list[Difference]
    outdated: list[tuple[Earlier, str, Difference]]
    lacking: list[str]

    @property
    def current(self) -> bool:
        return not (self.foreign or self.outdated or self.lacking)

    @property
    def state(self) -> Literal["current", "behind", "empty", "foreign"]:
        if self.foreign:
            return "foreign"
        if len(self.lacking) == len(DDL) + len(INDEXES):
            return "empty"
        return "current" if self.current else "behind"

    def require_ours(self) -> None:
        """Raises SchemaMismatch for a shape that no build of this product had."""
        for difference in self.foreign:
            raise errors.SchemaMismatch(*difference)

    def require_current(self) -> None:
        """Raises SchemaMismatch; SchemaBehind for what `ensure` would create or migrate."""
        self.require_ours()
        self.require_not_outdated()
        for name in self.lacking:
            raise errors.SchemaBehind(migrations.table_of(name), None, "missing")

    def require_not_outdated(self) -> None:
        """Raises SchemaBehind for a table of an earlier shape."""
        for _, _, difference in self.outdated:
            raise errors.SchemaBehind(*difference)


def judge(result: Result) -> Shape:
    """The differences in what _READ_SHAPE returned."""
    foreign, outdated = [], []
    rows = sorted(result.rows, key=lambda row: str(row["name"]))
    for row in rows:
        name, sql = row["name"], row["sql"]
        if name not in DDL or not (difference := ddl.compare(name, DDL[name], sql)):
            continue
        earlier = migrations.EARLIER.get(ddl.digest(sql))
        if earlier is None:
            foreign.append(difference)
        else:
            outdated.append((earlier, sql, difference))
    rebuilt = {earlier.table for earlier, _, _ in outdated}
    indexes = (row for row in rows if row["type"] == "index")
    foreign += [odd for row in indexes if (odd := _judge_index(row, rebuilt))]
    return Shape(foreign, outdated, migrations.lacking(row["name"] for row in rows))


def _judge_index(row: dict[str, Any], rebuilt: set[str]) -> Difference | None:
    """The difference of one index, if it matters.

    An index of ours must be as this build knows it, unless its table is rebuilt. Of foreign
    indexes only a unique one matters: it could refuse our rows.
    """
    name, table, sql = row["name"], row["tbl_name"], row["sql"]
    if name in INDEXES:
        same = table in rebuilt or ddl.tokens(INDEXES[name]) == ddl.tokens(sql)
        return None if same else Difference(table, None, f"index {name}")
    if table in DDL and ddl.tokens(sql)[1] == "unique":
        return Difference(table, _indexed(table, sql), "UNIQUE")
    return None


def _indexed(table: str, sql: str) -> str | None:
    """The first column of a foreign index."""
    known = migrations.columns_of(table)
    return next((word for word in ddl.tokens(sql)[5:] if word in known), None)


async def inspect(db: Database) -> Shape:
    """The stored shape; one round trip, which writes nothing."""
    try:
        [result] = await db.batch_unguarded([Statement(_READ_SHAPE)])
    except errors.StorageError as failure:
        raise errors.StorageUnreadable(failure.message) from failure
    return judge(result)


async def look(db: Database, creating: bool) -> bool:
    """Whether the schema is current. One round trip.

    Raises SchemaMismatch for a foreign shape and SchemaBehind for an earlier one. With `creating`
    (the caller creates tables) it raises SchemaBehind for missing tables too. Other callers may
    go on without tables that they do not need.
    """
    found = await inspect(db)
    found.require_ours()
    if creating:
        found.require_current()
    found.require_not_outdated()
    return found.current


async def explain(db: Database, failure: errors.FencepostError) -> errors.FencepostError:
    """The SchemaMismatch that caused a missing column; the failure itself if there is none."""
    try:
        (await inspect(db)).require_current()
    except errors.FencepostError as found:
        return found if isinstance(found, errors.SchemaMismatch) else failure
    return failure


_WRITES_FENCE = re.compile(r"\b(?:INTO|UPDATE)\s+fencepost_fence\b")
_READS_FENCE = re.compile(r"\bfencepost_fence\b")


def without_fence(
    missing: errors.MissingTable, statements: Sequence[Statement]
) -> list[Statement] | None:
    """The statements for a database without a fence table: they find no row, as it is open.

    If the table is there by then, they find a row that admits nothing; one more statement, the
    last, returns a row in that case. None if another table is missing, or if they write the fence.
    """
    fence = "fencepost_fence"
    if missing.table != fence or any(_WRITES_FENCE.search(each.sql) for each in statements):
        return None
    columns = ", ".join(f"NULL AS {column}" for column in migrations.columns_of(fence))
    absent = f"(SELECT {columns} FROM sqlite_master WHERE name = 'fencepost_' || 'fence')"
    there = Statement("SELECT 1 FROM sqlite_master WHERE name = 'fencepost_' || 'fence'")
    return [*(each.replacing(_READS_FENCE, absent) for each in statements), there]


async def absence(db: Database, missing: errors.MissingTable) -> errors.FencepostError | None:
    """The error for a missing table: MissingTable in a database that has none of ours.

    Otherwise SchemaBehind, as the table was dropped or is of a later build; or Refused, if it is
    none of ours. None if it is there by now: another request has made it. One round trip.
    """
    found = await inspect(db)
    if found.state == "empty":
        return missing
    if missing.table not in DDL:
        return errors.Refused(missing.message)
    lacking = {migrations.table_of(name) for name in found.lacking if name in DDL}
    behind = errors.SchemaBehind(missing.table, None, "missing")
    return behind if missing.table in lacking else None


# A seal is its triggers, which would be dropped with a table that is rebuilt. Fails by the marker.
_UNLESS_SEALED = """
SELECT CASE WHEN EXISTS (SELECT 1 FROM sqlite_master WHERE type = 'trigger'
  AND name LIKE 'fencepost!_sealed!_%' ESCAPE '!') THEN json_extract('{}', 'FENCEPOST_SEALED') END
"""


async def ensure(db: Database) -> None:
    """Migrate earlier shapes and create what is missing, in one transaction.

    Raises SchemaMismatch, and writes nothing, when any table has an unknown shape, or a row that
    its present shape refuses. Tables of the present shape are not touched. Raises Sealed for a
    deployment that moves, or has moved.
    """
    found = await inspect(db)
    found.require_ours()
    moves = [
        statement
        for earlier, stored, _ in found.outdated
        for statement in migrations.statements(earlier, stored)
    ]
    creates = [Statement(ddl) for ddl in tables.STATEMENTS]
    try:
        shaped = [Statement(_UNLESS_SEALED), *moves, *creates, Statement(_READ_SHAPE)]
        results = await db.batch_unguarded(shaped)
        after = judge(results[-1])
    except errors.ConstraintFailed as refused:
        raise await _row_refused(db, found, refused) from refused
    except (errors.Refused, errors.MissingTable):
        # Another request may have migrated it first. Then nothing is left to do.
        after = await inspect(db)
        if not after.current:
            raise
    after.require_current()


# Fails by its marker, so that nothing of its batch stays.
_TAKE_BACK = "SELECT json_extract('{}', 'FENCEPOST_TAKEN_BACK')"


async def _row_refused(
    db: Database, found: Shape, refused: errors.StorageError
) -> errors.FencepostError:
    """Which table has the row that its present shape refuses, and which migration it is.

    Each table is rebuilt alone, and taken back. A round trip a table.
    """
    shape = migrations.shape_of(earlier for earlier, _, _ in found.outdated)
    for earlier, stored, _ in found.outdated:
        try:
            rebuild = migrations.statements(earlier, stored)
            await db.batch_unguarded([*rebuild, Statement(_TAKE_BACK)])
        except errors.ConstraintFailed:
            difference = f"a row does not fit the present shape, in the migration from {shape}"
            return errors.SchemaMismatch(earlier.table, None, difference)
        except errors.StorageError:
            continue
    return refused
