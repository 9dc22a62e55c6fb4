"""A database whose reply is lost once, with whatever happens in the window before anyone knows."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import httpx

from fencepost import errors
from fencepost.storage.d1 import Result
from fencepost.storage.sql import Statement
from helpers import BridgeDatabase

Window = Callable[[], Awaitable[object]]


class Losing(BridgeDatabase):
    """Loses the reply to its first batch that writes.

    `landed`: the batch was executed before its reply was lost. `window` happens after that, and
    before the loss is known.
    """

    def __init__(self, http: httpx.AsyncClient, window: Window, *, landed: bool = True) -> None:
        super().__init__(http)
        self._window: Window | None = window
        self._landed = landed

    async def batch(self, statements: Sequence[Statement]) -> list[Result]:
        window = self._window
        if window is None or all(each.sql.lstrip().startswith("SELECT") for each in statements):
            return await super().batch(statements)
        self._window = None
        if self._landed:
            await super().batch(statements)
        await window()
        raise errors.Unknown("D1_ERROR: Network connection lost.")
