"""The answer of a list: it ends at its limit or at 4 MiB, and then has a cursor.

A row that breaks a rule does not take its page away: its item names the row and the rule.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

from fencepost import errors, limits
from fencepost.http import queries, strictjson
from fencepost.http.exchange import Reply
from fencepost.storage.rows import Corrupt, Listed, Row

T = TypeVar("T")

# What stands around the items: names, a cursor, a count.
_AROUND_BYTES = limits.CURSOR_CHARS_MAX + 256


class Items:
    """The items of one answer, each as the bytes of its JSON, so that its size is known."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.last: Row | None = None
        self.cut = False
        self._parts: list[bytes] = []
        self._bytes = _AROUND_BYTES

    @property
    def room(self) -> int:
        """How many items may follow."""
        return 0 if self.cut else self.limit - len(self._parts)

    def take(self, found: Iterable[Listed[T]], show: Callable[[T], Any]) -> None:
        """Add items up to the limits; at least one."""
        for one in found:
            part = strictjson.dumps(_shown(one, show)).encode()
            self._bytes += len(part) + 1
            if self._parts and self._bytes > limits.PAGE_BYTES_MAX:
                self.cut = True
                return
            self._parts.append(part)
            self.last = one.row

    def reply(
        self, keys: Callable[[Row], tuple[Any, ...]], more: bool, /, **members: Any
    ) -> Reply[Any]:
        """The page. `keys`: the cursor of a row; `more`: there may be items after those taken."""
        cursor = None
        if self.last is not None and (more or self.cut):
            cursor = queries.cursor_text(tuple(map(str, keys(self.last))))
        after = strictjson.dumps({"cursor": cursor, **members})[1:].encode()
        return Reply(200, b'{"items":[' + b",".join(self._parts) + b"]," + after)


def reply(
    limit: int,
    found: list[Listed[T]],
    show: Callable[[T], Any],
    keys: Callable[[Row], tuple[Any, ...]],
    **members: Any,
) -> Reply[Any]:
    """The page of what one read of at most `limit` rows has found."""
    items = Items(limit)
    items.take(found, show)
    return items.reply(keys, len(found) == limit, **members)


def _shown(one: Listed[T], show: Callable[[T], Any]) -> Any:
    if isinstance(one.value, Corrupt):
        return _corrupt_json(one.row, one.value)
    try:
        return show(one.value)
    except errors.RowCorrupt as broken:
        return _corrupt_json(one.row, Corrupt(broken.members["table"], broken.members["rule"]))


# The columns that name a row; nothing else of a corrupt one is shown.
_NAMES = ("run_id", "key", "operation_id", "sequence", "revision", "gate")


def _corrupt_json(row: Row, broken: Corrupt) -> Any:
    names = {name: row[name] for name in _NAMES if isinstance(row.get(name), str | int)}
    return {**names, "corrupt": {"table": broken.table, "rule": broken.rule}}
