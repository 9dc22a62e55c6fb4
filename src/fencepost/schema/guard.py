"""The schema guard: refuses to write to a database of an unknown shape. It repairs nothing.

An isolate checks the stored shape before its first write, in one read. Once it has found the
present shape it checks no more, until D1 reports a missing table or column. Only a start and a
fence transition call `ensure`, which creates what is missing and migrates earlier shapes.

Not guaranteed: that a running isolate notices a change to the tables. It does when a statement
fails because of it; the next isolate does before its first write.
"""

from __future__ import annotations

from typing import Any, NamedTuple

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
    [result] = await db.read([Statement(_READ_SHAPE)])
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


async def ensure(db: Database) -> None:
    """Migrate earlier shapes and create what is missing, in one transaction.

    Raises SchemaMismatch, and writes nothing, when any table has an unknown shape. Tables of the
    present shape are not touched.
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
        results = await db.batch_unguarded([*moves, *creates, Statement(_READ_SHAPE)])
        after = judge(results[-1])
    except (errors.Refused, errors.MissingTable):
        # Another request may have migrated it first. Then nothing is left to do.
        after = await inspect(db)
        if not after.current:
            raise
    after.require_current()
