"""Statements: SQL with named parameters, compiled once a text.

`:run_id` in a text is bound by the keyword `run_id`. D1 itself knows parameters by number alone, so
the names become `?1`, `?2`, … in the order in which they first appear.
"""

from __future__ import annotations

import functools
import operator
import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

from fencepost import limits

Parameter = str | int | float | None

# The database's own clock, in milliseconds. Constant within a statement, but it advances
# between the statements of a batch: stamp once, in the first row written, and read it there.
NOW_MS = "CAST(ROUND(unixepoch('subsec') * 1000) AS INTEGER)"


class Statement:
    """One SQL statement with a value for each name in it.

    Raises ValueError at once for a name without a value, and for a value without a name: a
    statement that is short of one would otherwise bind NULL, or another's value.
    `sql` is what D1 is given, `params` are its values in order.
    """

    __slots__ = ("params", "sql")

    def __init__(
        self, text: str, params: tuple[Parameter, ...] | None = None, /, **values: Parameter
    ) -> None:
        if params is not None:  # TEMPORARY
            self.sql, self.params = text, params
            return
        compiled = _compiled(text)
        if len(values) != len(compiled.names):
            raise _mismatch(compiled.names, values)
        self.sql = compiled.sql
        try:
            self.params = compiled.take(values)
        except KeyError:
            raise _mismatch(compiled.names, values) from None

    def __repr__(self) -> str:
        return f"Statement({self.sql!r}, {len(self.params)} values)"


class _Compiled(NamedTuple):
    """`take` puts the values of a mapping in the order of `names`."""

    sql: str
    names: tuple[str, ...]
    take: Callable[[Mapping[str, Parameter]], tuple[Parameter, ...]]


# A text in quotes and a comment are passed over: a colon in them is no parameter.
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
    """`itemgetter` gives a tuple for two names or more only."""
    if len(names) > 1:
        return operator.itemgetter(*names)
    return lambda values: tuple(values[name] for name in names)


def _mismatch(names: tuple[str, ...], values: Mapping[str, Parameter]) -> ValueError:
    lacking = ", ".join(f":{name}" for name in names if name not in values)
    extra = ", ".join(name for name in values if name not in names)
    said = [f"no value for {lacking}"] * bool(lacking) + [f"no parameter for {extra}"] * bool(extra)
    return ValueError(f"a statement has {' and '.join(said)}")
