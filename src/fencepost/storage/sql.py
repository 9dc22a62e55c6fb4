"""Statements: SQL with named parameters. Each text is compiled once.

The keyword `run_id` gives the value of `:run_id`. D1 knows numbered parameters only, so the names
become `?1`, `?2`, … in the order in which they first appear.
"""

from __future__ import annotations

import functools
import json
import operator
import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

from fencepost import limits

Parameter = str | int | float | None

# The text of a JSON value for a statement. Never escaped to ASCII, which would make a text of
# other characters up to three times as long.
json_text = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode

# The database's clock, in milliseconds. It is constant within a statement and advances between
# the statements of a batch: write it once, in the first row, and read it from there.
NOW_MS = "CAST(ROUND(unixepoch('subsec') * 1000) AS INTEGER)"


class Statement:
    """One SQL statement with a value for each name in it.

    Raises ValueError for a name without a value and for a value without a name. Without this check
    a missing value would be bound as NULL, or as the value of another name.
    `sql` is the text for D1, `params` are its values in order.
    """

    __slots__ = ("params", "sql")

    def __init__(self, text: str, /, **values: Parameter) -> None:
        compiled = _compiled(text)
        if len(values) != len(compiled.names):
            raise _mismatch(compiled.names, values)
        self.sql = compiled.sql
        try:
            self.params = compiled.take(values)
        except KeyError:
            raise _mismatch(compiled.names, values) from None

    def within(self, before: str, after: str) -> Statement:
        """This statement between two texts, with the same values."""
        outer = Statement("SELECT 1")
        outer.sql, outer.params = f"{before}{self.sql.strip()}{after}", self.params
        return outer

    def replacing(self, pattern: re.Pattern[str], text: str) -> Statement:
        """This statement with another text wherever the pattern is, and the same values."""
        other = Statement("SELECT 1")
        other.sql, other.params = pattern.sub(text, self.sql), self.params
        return other

    def __repr__(self) -> str:
        return f"Statement({self.sql!r}, {len(self.params)} values)"


class _Compiled(NamedTuple):
    """`take` puts the values of a mapping in the order of `names`."""

    sql: str
    names: tuple[str, ...]
    take: Callable[[Mapping[str, Parameter]], tuple[Parameter, ...]]


# Skips texts in quotes and comments: a colon in them begins no parameter.
_NAME = re.compile(r"'(?:[^']|'')*'|\"[^\"]*\"|--[^\n]*|/\*.*?\*/|:([a-z_][a-z0-9_]*)", re.DOTALL)


@functools.lru_cache(limits.PREPARED_MAX)
def _compiled(text: str) -> _Compiled:
    numbers: dict[str, int] = {}

    def numbered(match: re.Match[str]) -> str:
        name = match[1]
        return match[0] if name is None else f"?{numbers.setdefault(name, len(numbers) + 1)}"

    sql = _NAME.sub(numbered, text)
    names = tuple(numbers)
    return _Compiled(sql, names, _taker(names))


def _taker(names: tuple[str, ...]) -> Callable[[Mapping[str, Parameter]], tuple[Parameter, ...]]:
    """`itemgetter` returns a tuple only for two names or more."""
    if len(names) > 1:
        return operator.itemgetter(*names)
    return lambda values: tuple(values[name] for name in names)


def _mismatch(names: tuple[str, ...], values: Mapping[str, Parameter]) -> ValueError:
    lacking = ", ".join(f":{name}" for name in names if name not in values)
    extra = ", ".join(name for name in values if name not in names)
    said = [f"no value for {lacking}"] * bool(lacking) + [f"no parameter for {extra}"] * bool(extra)
    return ValueError(f"a statement has {' and '.join(said)}")
