"""Compares a stored table, by the SQL text that D1 keeps of it, with the table of this build.

The text holds types, NOT NULL, CHECKs, keys, STRICT and WITHOUT ROWID. Comments, white space,
letter case and quotation marks around names are ignored. Not compared: triggers, views, and tables
that this build does not know.
"""

from __future__ import annotations

import functools
import hashlib
import re
from typing import NamedTuple

_TOKEN = re.compile(
    r"--[^\n]*|/\*.*?\*/|\s+"  # left out
    r"|('(?:[^']|'')*')"  # a text, kept as it is
    r'|"([^"]*)"|`([^`]*)`|\[([^\]]*)\]'  # a quoted name
    r"|(\w+|<>|<=|>=|==|!=|\|\||.)",
    re.DOTALL,
)
_CONSTRAINTS = frozenset({"check", "primary", "unique", "foreign", "constraint"})
# An unknown column at the end of a table may have none of these. With one, it could refuse our
# rows, or hold a rule of a newer build that this build would break.
_BINDING = _CONSTRAINTS | {"not", "references", "generated", "as"}

Tokens = tuple[str, ...]


class Difference(NamedTuple):
    """The first thing that differs from this build's table. Never holds SQL."""

    table: str
    column: str | None
    what: str


class Table(NamedTuple):
    """The parts of a table's definition."""

    columns: dict[str, Tokens]
    constraints: tuple[Tokens, ...]
    options: frozenset[Tokens]


def tokens(sql: str) -> Tokens:
    """The words of a DDL statement, without comments and white space."""
    found = []
    for match in _TOKEN.finditer(sql):
        text, *names, word = match.groups()
        name = next((name for name in names if name is not None), word)
        if text is not None or name is not None:
            found.append(text if text is not None else name.lower())
    unique = int(found[1:2] == ["unique"])
    if found[2 + unique : 5 + unique] == ["if", "not", "exists"]:
        del found[2 + unique : 5 + unique]
    return tuple(found)


def digest(sql: str) -> str:
    """SHA-256 (hex) of the words of a DDL statement: the name of a shape."""
    return hashlib.sha256(" ".join(tokens(sql)).encode()).hexdigest()


@functools.lru_cache(64)
def table(sql: str) -> Table | None:
    """The parts of a table's DDL; None for what is not an ordinary table."""
    words = tokens(sql)
    if words[:2] != ("create", "table") or words[3:4] != ("(",):
        return None
    parts, options = _split(words[4:])
    columns = {part[0]: part for part in parts if part and part[0] not in _CONSTRAINTS}
    constraints = tuple(part for part in parts if part and part[0] in _CONSTRAINTS)
    return Table(columns, constraints, frozenset(option for option in options if option))


def _split(words: Tokens) -> tuple[list[Tokens], list[Tokens]]:
    """The parts between the commas: inside the outer parentheses, and after them."""
    inside: list[Tokens] = [()]
    after: list[Tokens] = [()]
    depth, parts = 1, inside
    for word in words:
        depth += (word == "(") - (word == ")")
        if depth == 0 and parts is inside:
            parts = after
        elif word == "," and depth == (1 if parts is inside else 0):
            parts.append(())
        else:
            parts[-1] += (word,)
    return inside, after


def compare(name: str, ours: str, stored: str) -> Difference | None:
    """The first difference of a stored table from ours; columns before constraints."""
    expected, found = table(ours), table(stored)
    assert expected is not None
    if found is None:
        return Difference(name, None, "not an ordinary table")
    for column, definition in expected.columns.items():
        if column not in found.columns:
            return Difference(name, column, "missing")
        if found.columns[column] != definition:
            return Difference(name, column, _what(definition, found.columns[column]))
    if list(found.columns)[: len(expected.columns)] != list(expected.columns):
        return Difference(name, _misplaced(expected, found), "order")
    return _compare_rest(name, expected, found)


def _compare_rest(name: str, expected: Table, found: Table) -> Difference | None:
    for column in list(found.columns)[len(expected.columns) :]:
        if not _BINDING.isdisjoint(found.columns[column]):
            return Difference(name, column, "unknown, and not merely nullable")
    ours, theirs = sorted(expected.constraints), sorted(found.constraints)
    if ours != theirs:
        odd = next(c for c in [*ours, *theirs] if ours.count(c) != theirs.count(c))
        named = next((word for word in odd if word in found.columns), None)
        return Difference(name, named, _constraint(odd))
    for option in sorted(expected.options ^ found.options):
        return Difference(name, None, " ".join(option).upper() if option in _OPTIONS else "options")
    return None


_OPTIONS = frozenset({("strict",), ("without", "rowid")})


def _misplaced(expected: Table, found: Table) -> str:
    pairs = zip(expected.columns, found.columns, strict=False)
    return next(theirs for ours, theirs in pairs if ours != theirs)


def _what(ours: Tokens, theirs: Tokens) -> str:
    """Which property of a column differs."""
    if ours[1:2] != theirs[1:2]:
        return "type"
    for words in (("not", "null"), ("primary", "key"), ("unique",), ("references",), ("default",)):
        if _holds(ours, words) != _holds(theirs, words):
            return " ".join(words).upper()
    return "CHECK" if "check" in ours + theirs else "definition"


def _holds(definition: Tokens, words: Tokens) -> bool:
    """Whether a column has a property, outside parentheses."""
    outside, depth = [], 0
    for word in definition:
        depth += (word == "(") - (word == ")")
        if depth == 0:
            outside.append(word)
    return f" {' '.join(words)} " in f" {' '.join(outside)} "


def _constraint(definition: Tokens) -> str:
    for word, what in (("check", "CHECK"), ("primary", "PRIMARY KEY"), ("unique", "UNIQUE")):
        if word in definition[:3]:
            return what
    return "FOREIGN KEY" if "foreign" in definition[:3] else "constraint"
