"""The triggers of a seal: they refuse every write to a table, whoever sends it.

A batch that meets one fails as a whole with the marker FENCEPOST_SEALED (`errors.Sealed`). While
they stand no table is created or rebuilt (`guard.ensure`).
"""

from __future__ import annotations

from collections.abc import Sequence

from fencepost.schema import tables
from fencepost.storage.sql import Statement

# In one line: what splits SQL by itself, as tools around D1 do, often ends a trigger too early.
_CREATE = (
    "CREATE TRIGGER IF NOT EXISTS fencepost_sealed_{name}_{event} BEFORE {event} "
    "ON fencepost_{name} BEGIN SELECT RAISE(ABORT, 'FENCEPOST_SEALED'); END"
)
_DROP = "DROP TRIGGER IF EXISTS fencepost_sealed_{name}_{event}"
EVENTS = ("insert", "update", "delete")
ALL = tuple(name.removeprefix("fencepost_") for name in tables.TABLES)


def create(names: Sequence[str], events: Sequence[str] = EVENTS) -> list[Statement]:
    """Refuse these writes to these tables, which are named without their prefix."""
    pairs = [(name, event) for name in names for event in events]
    return [Statement(_CREATE.format(name=name, event=event)) for name, event in pairs]


def drop() -> list[Statement]:
    """Refuse nothing any more."""
    pairs = [(name, event) for name in ALL for event in EVENTS]
    return [Statement(_DROP.format(name=name, event=event)) for name, event in pairs]
