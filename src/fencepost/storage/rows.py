"""Rows as they come out of the database, and checking them against the rules of a table."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from operator import itemgetter
from typing import Any, Generic, NamedTuple, TypeVar

from fencepost import errors, limits

Row = dict[str, Any]
T = TypeVar("T")
Rules = tuple[tuple[str, Callable[[Row], bool]], ...]


def check_row(table: str, rules: Rules, row: Row) -> None:
    """Check a row. Raises RowCorrupt, which names the first broken rule; a row is never repaired.

    Raises ColumnAbsent when a column is missing, as in `SELECT *` of a table of another shape.
    """
    for rule, holds in rules:
        try:
            sound = holds(row)
        except KeyError as absent:
            raise errors.ColumnAbsent(table, absent.args[0], "missing") from None
        except (TypeError, AttributeError, ValueError):
            sound = False
        if not sound:
            raise errors.RowCorrupt(table, rule)


class Corrupt(NamedTuple):
    """What is known of a row that breaks a rule."""

    table: str
    rule: str


class Listed(NamedTuple, Generic[T]):
    """A row of a list, and what it holds."""

    row: Row
    value: T | Corrupt


def listed(rows: Iterable[Row], from_row: Callable[[Row], T]) -> list[Listed[T]]:
    """What the rows hold. One that breaks a rule does not keep the others from being read."""
    found: list[Listed[T]] = []
    for row in rows:
        try:
            found.append(Listed(row, from_row(row)))
        except errors.RowCorrupt as broken:
            found.append(Listed(row, Corrupt(broken.members["table"], broken.members["rule"])))
    return found


def _columns(names: tuple[str, ...]) -> Callable[[Row], tuple[Any, ...]]:
    """A function that gives the values of these columns as a tuple."""
    if len(names) == 1:
        return lambda row: (row[names[0]],)
    return itemgetter(*names)


def whole(*names: str, null: bool = False) -> Callable[[Row], bool]:
    """A rule: the columns are integers from 0 to 2^53−1. With `null` they may be NULL."""
    columns, types = _columns(names), {int, type(None)} if null else {int}

    def holds(row: Row) -> bool:
        values = columns(row)
        numbers = [value for value in values if value is not None]
        return (
            types.issuperset(map(type, values))
            and min(numbers, default=0) >= 0
            and max(numbers, default=0) <= limits.INTEGER_MAX
        )

    return holds


def is_json_object(text: str) -> bool:
    """For a rule: the text is JSON, of an object."""
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


def all_or_none(*names: str) -> Callable[[Row], bool]:
    """A rule: the columns are all NULL, or none of them is."""
    columns = _columns(names)

    def holds(row: Row) -> bool:
        values = columns(row)
        return values.count(None) in (0, len(values))

    return holds
