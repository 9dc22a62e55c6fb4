"""Waiting: how a request that waits for the end of a run pauses between two looks at it.

The deadline is wall time. The more requests wait in this isolate, the longer each pauses, so that
all together load it no more than few do.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from fencepost import errors, limits

# The requests that wait in this isolate.
_waiting = 0


class Patience:
    """The pauses of one request, until `ends` (of `time.monotonic`) or its caller is gone."""

    def __init__(self, ends: float, gone: Callable[[], bool]) -> None:
        self._ends = ends
        self._gone = gone
        self._pauses_s = iter(limits.WAIT_PAUSES_S)
        self._pause_s = 0.0

    async def pause(self) -> bool:
        """Sleep for the next pause. False, at once, when the time is over."""
        left_s = self._ends - time.monotonic()
        if left_s <= 0 or self._gone():
            return False
        self._pause_s = next(self._pauses_s, self._pause_s)
        longest_s = max(self._pause_s, _waiting * limits.WAIT_PAUSE_S_EACH)
        await asyncio.sleep(min(longest_s * (0.75 + _random() / 2), left_s))
        return not self._gone()


def _random() -> float:
    """From 0 to 1, so that those who came together do not look together."""
    return int.from_bytes(os.urandom(2), "big") / 0xFFFF


@contextmanager
def patience(wait_s: float, gone: Callable[[], bool]) -> Iterator[Patience]:
    """For a request that waits up to `wait_s` seconds; without any it does not count as one.

    Raises TooManyWaiters if limits.WAITERS_MAX wait already.
    """
    global _waiting
    if wait_s > 0 and _waiting >= limits.WAITERS_MAX:
        raise errors.TooManyWaiters(
            f"{limits.WAITERS_MAX} requests wait here already, so this one may not. Nothing was "
            "written; send it again, or without Prefer: wait.",
            retry_after_s=1,
        )
    counts = wait_s > 0
    _waiting += counts
    try:
        yield Patience(time.monotonic() + wait_s, gone)
    finally:
        _waiting -= counts
