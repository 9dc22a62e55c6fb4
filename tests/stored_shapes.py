"""Databases of every shape that there was, and the tables of the one that is there."""

from __future__ import annotations

from pathlib import Path

from fencepost.schema import migrations
from helpers import Sql

DUMPS = {
    path.stem: path.read_text()
    for path in sorted(Path(__file__).with_name("schemas").glob("*.sql"))
}
EARLIER = tuple(migrations.MIGRATIONS)


def stored_tables(sql: Sql) -> dict[str, str]:
    found = sql(
        "SELECT name, sql FROM sqlite_master WHERE type = 'table' AND name LIKE 'fencepost%'"
    )
    return {row["name"]: row["sql"] for row in found}


def drop_all(sql: Sql) -> None:
    sql.batch([(f"DROP TABLE {name}", ()) for name in stored_tables(sql)] or [("SELECT 1", ())])
