"""Copies of rows: a table in pages, as one deployment gives it and another one takes it.

A page holds rows in the order of the table's key, each with its digest. It is taken as a whole, in
one transaction, and only behind the row that came before it: so a copy has no gaps, and goes on
where it stopped. Digests say that rows are alike; they do not say who made them.

    digest of a row     SHA-256 of the JSON array of its values
    of rows after it    SHA-256 of the digest before and the digest of the row, from that of the
                        table's name and columns on

The audit is numbered by each deployment on its own. Its rows are known by the deployment that wrote
them and their number there (`origin`, `origin_sequence`).
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Sequence
from typing import NamedTuple

from fencepost import errors, limits
from fencepost.journal import sha256
from fencepost.storage.d1 import Database
from fencepost.storage.rows import Row
from fencepost.storage.sql import Statement, json_text

# Every table but the fence and the transfer itself, which each deployment has of its own.
TABLES = (
    "reservations",
    "runs",
    "snapshots",
    "events",
    "ownership",
    "subjects",
    "bindings",
    "operations",
    "audit",
    "requests",
)

Value = str | int | None
Key = tuple[Value, ...]


class TableCopied(NamedTuple):
    """A table: its full name, its key, and the columns that are copied."""

    table: str
    keys: tuple[str, ...]
    columns: tuple[str, ...]
    integers: frozenset[str]

    @property
    def positions(self) -> list[int]:
        return [self.columns.index(key) for key in self.keys]

    def key_of(self, values: Sequence[Value]) -> Key:
        return tuple(values[position] for position in self.positions)

    def read_key(self, texts: Sequence[str] | None) -> Key | None:
        """The key that a cursor holds. Raises ValueError."""
        if texts is None:
            return None
        pairs = zip(self.keys, texts, strict=True)
        return tuple(int(text) if key in self.integers else text for key, text in pairs)


@functools.cache
def shape(name: str) -> TableCopied:
    """The table of this name, without its prefix, as this build creates it."""
    from fencepost.schema import ddl, migrations

    table = f"fencepost_{name}"
    parts = ddl.table(migrations.DDL[table])
    assert parts is not None
    integers = frozenset(column for column, words in parts.columns.items() if "integer" in words)
    if name == "audit":
        columns = tuple(column for column in parts.columns if column != "sequence")
        return TableCopied(table, ("origin", "origin_sequence"), columns, integers)
    inline = [column for column, words in parts.columns.items() if "primary" in words]
    apart = [words for words in parts.constraints if words[0] == "primary"]
    keys = tuple(inline or (word for word in apart[0][3:] if word in parts.columns))
    return TableCopied(table, keys, tuple(parts.columns), integers)


# --- Digests -----------------------------------------------------------------------------


def row_digest(values: Sequence[Value]) -> str:
    """Of a text that is not well-formed it is the digest of what D1 gives for it."""
    return hashlib.sha256(json_text(list(values)).encode(errors="surrogatepass")).hexdigest()


class Sum(NamedTuple):
    """The rows of a table as far as they are added up: how many, their digest, the last key."""

    rows: int
    digest: str
    last: Key | None = None

    def plus(self, digests: Sequence[str], last: Key | None) -> Sum:
        digest = self.digest
        for each in digests:
            digest = hashlib.sha256(f"{digest}{each}".encode()).hexdigest()
        return Sum(self.rows + len(digests), digest, last)


def nothing(name: str) -> Sum:
    """The sum of no rows."""
    return Sum(0, sha256(json_text([name, *shape(name).columns])))


# --- Giving ------------------------------------------------------------------------------

# At most `:limit` rows after a key; and of these only as many, but at least one, as have
# `:bytes_max` bytes. Lengths are read without the texts.
_PAGE = """
SELECT row.*, there FROM (
  SELECT {keys}, bytes, SUM(bytes) OVER (ORDER BY {keys}) AS total, COUNT(*) OVER () AS there
  FROM (SELECT {keys}, {octets} AS bytes FROM {table} WHERE ({keys}) > ({after})
    ORDER BY {keys} LIMIT :limit)) AS page
CROSS JOIN {table} AS row USING ({keys})
WHERE total <= :bytes_max OR total = bytes
"""

# `:origin` and `:origin_sequence` name the row before; it was written here if `:origin` is `:here`.
# `:brought`: only rows that a move has brought.
_AFTER_ENTRY = """COALESCE(
  (SELECT sequence FROM fencepost_audit WHERE origin = :origin AND origin_sequence = :number),
  CASE WHEN :origin = :here THEN :number END, 0)"""
_PAGE_OF_AUDIT = f"""
SELECT {{columns}}, sequence, COALESCE(row.origin, :here) AS origin,
  COALESCE(row.origin_sequence, sequence) AS origin_sequence, there FROM (
  SELECT sequence, bytes, SUM(bytes) OVER (ORDER BY sequence) AS total, COUNT(*) OVER () AS there
  FROM (SELECT sequence, {{octets}} AS bytes FROM fencepost_audit
    WHERE sequence > {_AFTER_ENTRY} AND (:brought = 0 OR origin IS NOT NULL)
    ORDER BY sequence LIMIT :limit)) AS page
CROSS JOIN fencepost_audit AS row USING (sequence)
WHERE total <= :bytes_max OR total = bytes
"""


class View(NamedTuple):
    """Which rows are given: those of deployment `here`; of the audit with `brought` only those
    that a move has brought.
    """

    here: str
    brought: bool


class RowsPage(NamedTuple):
    """Rows of a table behind the row `after`, in the order of `columns`. `more`: it is not the
    last page.
    """

    name: str
    after: Key | None
    rows: list[list[Value]]
    more: bool

    @property
    def last(self) -> Key | None:
        return shape(self.name).key_of(self.rows[-1]) if self.rows else self.after

    def sum(self, start: Sum) -> Sum:
        return start.plus([row_digest(row) for row in self.rows], self.last)


def page_statement(name: str, view: View, after: Key | None, rows_max: int) -> Statement:
    """The SELECT of a page, for `page_of`."""
    of = shape(name)
    size: dict[str, Value] = {"limit": rows_max, "bytes_max": limits.TRANSFER_PAGE_BYTES}
    if name == "audit":
        origin, number = after or ("", 0)
        columns = ", ".join(column for column in of.columns if column not in of.keys)
        sql = _PAGE_OF_AUDIT.format(columns=columns, octets=_octets(of))
        who: dict[str, Value] = {"here": view.here, "brought": int(view.brought)}
        return Statement(sql, origin=origin, number=number, **who, **size)
    sql = _PAGE.format(
        table=of.table,
        keys=", ".join(of.keys),
        octets=_octets(of),
        after=", ".join(f":{key}" for key in of.keys),
    )
    return Statement(sql, **_place(of, after), **size)


def _octets(of: TableCopied) -> str:
    return " + ".join(f"COALESCE(octet_length({column}), 0)" for column in of.columns)


def _place(of: TableCopied, after: Key | None) -> dict[str, Value]:
    """The values of a key; without one, those before the first."""
    first = tuple(-1 if key in of.integers else "" for key in of.keys)
    return dict(zip(of.keys, after or first, strict=True))


def page_of(name: str, after: Key | None, rows: Sequence[Row], rows_max: int) -> RowsPage:
    """The page that `page_statement` has read."""
    of = shape(name)
    order = ("sequence",) if name == "audit" else of.keys
    rows = sorted(rows, key=lambda row: tuple(row[key] for key in order))
    more = bool(rows) and not len(rows) == rows[0]["there"] < rows_max
    return RowsPage(name, after, [[row[column] for column in of.columns] for row in rows], more)


async def page(db: Database, name: str, view: View, after: Key | None) -> RowsPage:
    rows_max = limits.TRANSFER_PAGE_ROWS
    [found] = await db.read([page_statement(name, view, after, rows_max)])
    return page_of(name, after, found.rows, rows_max)


async def add_up(db: Database, view: View, sums: dict[str, Sum]) -> str | None:
    """Go on adding up the tables, within the pages that one request may read.

    `sums` has those that were begun. Returns the table at which it stopped; None if it is done.
    """
    begun = [name for name in TABLES if name in sums]
    at = begun[-1] if begun else TABLES[0]
    pages = 0
    for name in TABLES[TABLES.index(at) :]:
        total, more = sums.get(name, nothing(name)), True
        while more:
            if pages == limits.TRANSFER_PAGES:
                return name
            read = await page(db, name, view, total.last)
            total, more, pages = read.sum(total), read.more, pages + 1
            sums[name] = total
    return None


# --- Taking ------------------------------------------------------------------------------

_INSERT = "INSERT INTO {table} ({columns}) VALUES ({values}) ON CONFLICT DO NOTHING"

# What stands here between the row before the page and its last row.
_STANDS = (
    "SELECT * FROM {table} WHERE ({keys}) > ({after}) AND ({keys}) <= ({last}) ORDER BY {keys}"
)
_STANDS_IN_AUDIT = f"""
SELECT * FROM fencepost_audit WHERE origin IS NOT NULL AND sequence > {_AFTER_ENTRY}
  AND sequence <= COALESCE((SELECT sequence FROM fencepost_audit
    WHERE origin = :last_origin AND origin_sequence = :last_number), 0)
ORDER BY sequence
"""
_IS_THERE = "EXISTS (SELECT 1 FROM {table} WHERE ({keys}) = ({after}))"


def follows(page: RowsPage) -> tuple[str, dict[str, Value]]:
    """SQL that is true if the row before the page stands here, and its values."""
    if page.after is None:
        return "TRUE", {}
    of = shape(page.name)
    names = [f"before_{key}" for key in of.keys]
    after = ", ".join(f":{name}" for name in names)
    sql = _IS_THERE.format(table=of.table, keys=", ".join(of.keys), after=after)
    return sql, dict(zip(names, page.after, strict=True))


def insert_statements(page: RowsPage) -> list[Statement]:
    """Insert the rows that are absent."""
    of = shape(page.name)
    values = ", ".join(f":{column}" for column in of.columns)
    sql = _INSERT.format(table=of.table, columns=", ".join(of.columns), values=values)
    return [Statement(sql, **dict(zip(of.columns, row, strict=True))) for row in page.rows]


def stands_statement(page: RowsPage) -> Statement:
    """The SELECT of what stands in the place of the page, for `require_same`."""
    of, last = shape(page.name), page.last
    assert last is not None
    if page.name == "audit":
        origin, number = page.after or ("", 0)
        ends = {"last_origin": last[0], "last_number": last[1]}
        return Statement(_STANDS_IN_AUDIT, origin=origin, number=number, here="", **ends)
    sql = _STANDS.format(
        table=of.table,
        keys=", ".join(of.keys),
        after=", ".join(f":{key}" for key in of.keys),
        last=", ".join(f":last_{key}" for key in of.keys),
    )
    ends = {f"last_{key}": value for key, value in zip(of.keys, last, strict=True)}
    return Statement(sql, **_place(of, page.after), **ends)


def require_same(page: RowsPage, stored: Sequence[Row]) -> None:
    """Raises Conflict (TRANSFER_ROW_REFUSED) unless just the rows of the page stand here."""
    of = shape(page.name)
    stand = {of.key_of(row): row for row in ([row[c] for c in of.columns] for row in stored)}
    for row in page.rows:
        if stand.pop(of.key_of(row), None) != row:
            raise refused(page.name, of.key_of(row), "differs")
    for key in stand:
        raise refused(page.name, key, "unexpected")


_WHY = {
    "changed": "It is not as its digest says. Nothing was written.",
    "differs": "Another row with this key stands here. It was left as it is.",
    "unexpected": "It stands here, and the sealed deployment has no such row.",
    "invalid": "The table does not take it. Nothing was written.",
}


def refused(name: str, key: Key, reason: str) -> errors.Conflict:
    """The error for a row that was not taken; it names the row, and shows nothing else of it."""
    of = shape(name)
    return errors.Conflict(
        f"A row of {name} was not taken. {_WHY[reason]}",
        code="TRANSFER_ROW_REFUSED",
        table=name,
        row=dict(zip(of.keys, key, strict=True)),
        reason=reason,
    )
