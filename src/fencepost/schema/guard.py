"""The schema guard: a database of another shape is refused whole; nothing is ever repaired.

An isolate looks at the stored shape before its first write, in one read, and remembers only
that it is the present one; after that the guard costs nothing. It looks again after D1 missed a
table or a column. Only a start and a fence transition call `ensure`, which creates what is
missing and moves earlier shapes forward.

Not guaranteed: a database that somebody alters under a running isolate is noticed only when a
statement fails of it, or by the next isolate.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from fencepost import errors
from fencepost.schema import ddl, migrations, tables
from fencepost.schema.ddl import Difference
from fencepost.schema.migrations import DDL, INDEXES, Earlier
from fencepost.storage.d1 import Database, Result
from fencepost.storage.sql import Statement

# The text that D1 keeps of all that belongs to our tables; without text: made by a constraint.
_READ_SHAPE = """
SELECT type, lower(name) AS name, lower(tbl_name) AS tbl_name, sql FROM sqlite_master
WHERE (name LIKE 'fencepost!_%' ESCAPE '!' OR tbl_name LIKE 'fencepost!_%' ESCAPE '!')
  AND type IN ('table', 'view', 'index') AND sql IS NOT NULL
"""


class Shape(NamedTuple):
    """What is stored, judged: what was never ours, what once was, and what is not there."""

    foreign: list[Difference]
    outdated: list[tuple[Earlier, str, Difference]]
    lacking: list[str]

    @property
    def current(self) -> bool:
        return not (self.foreign or self.outdated or self.lacking)

    def require_ours(self) -> None:
        """Raises SchemaMismatch for what was never a shape of ours."""
        for difference in self.foreign:
            raise errors.SchemaMismatch(*difference)

    def require_current(self) -> None:
        """Raises SchemaMismatch, or SchemaBehind for what `ensure` would bring forward."""
        self.require_ours()
        self.require_not_outdated()
        for name in self.lacking:
            raise errors.SchemaBehind(_table_of(name), None, "missing")

    def require_not_outdated(self) -> None:
        """Raises SchemaBehind for a table of an earlier shape."""
        for _, _, difference in self.outdated:
            raise errors.SchemaBehind(*difference)


def _table_of(name: str) -> str:
    return name if name in DDL else ddl.tokens(INDEXES[name])[4]


def judge(result: Result) -> Shape:
    """The stored shape from what _READ_SHAPE returned."""
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
    """Ours must be as we know it, or go with a table that is rebuilt. Of the others only a
    unique one matters: it refuses rows.
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


class Guard:
    """The memory of an isolate about one database; one trip until the schema is found current."""

    def __init__(self) -> None:
        self.trusted = False

    async def look(self, db: Database, creating: bool) -> bool:
        """What `Database` asks before a write: whether to trust the schema from now on.

        Raises SchemaMismatch for a foreign shape, SchemaBehind for an earlier one and, if the
        writer is one that creates tables, for an incomplete one. Other writers may go on
        without the tables that they do not need.
        """
        found = await inspect(db)
        found.require_ours()
        if creating:
            found.require_current()
        found.require_not_outdated()
        return found.current


async def explain(db: Database, failure: errors.FencepostError) -> errors.FencepostError:
    """The mismatch behind a column that is not there; the failure itself if there is none."""
    try:
        (await inspect(db)).require_current()
    except errors.FencepostError as found:
        return found if isinstance(found, errors.SchemaMismatch) else failure
    return failure


async def ensure(db: Database) -> None:
    """Bring earlier shapes forward and create what is missing, in one transaction.

    Raises SchemaMismatch, and writes nothing, when any table has a shape that is not known.
    Does not touch what is as it should be.
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
        # Somebody else may have migrated it first; then there is nothing left to do.
        after = await inspect(db)
        if not after.current:
            raise
    after.require_current()
    db.trust_schema(True)
