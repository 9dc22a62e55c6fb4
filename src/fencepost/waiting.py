"""Waiting: how a request that waits for the end of a run pauses between two looks at it.

The deadline is wall time. The more requests wait in this isolate, the longer each pauses, so that
all together load it no more than few do, and the more their last looks are spread.

A request whose client has hung up is cut off by the runtime, and never resumes: it counts as one
that waits only until it should have looked again. Not guaranteed: that the runtime notices. The
local one does when the connection is reset; otherwise the wait ends at its deadline.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from fencepost import errors, limits

# The requests that wait in this isolate, and when each looks again (as `time.monotonic` has it).
_looks_at: dict[int, float] = {}


class Patience:
    """The pauses of one request, until `ends` (of `time.monotonic`) or its caller is gone."""

    def __init__(self, ends: float, gone: Callable[[], bool]) -> None:
        self._ends = ends
        self._gone = gone
        self._pauses_s = iter(limits.WAIT_PAUSES_S)
        self._pause_s = 0.0
        # How long the answer takes: all who wait are answered one after the other.
        self.answer_s = limits.WAIT_PAUSE_S_EACH

    async def pause(self) -> bool:
        """Sleep for the next pause. False, at once, when the time is over.

        The last look is so much before the end that all who wait can be answered until then.
        """
        now = time.monotonic()
        left_s = self._ends - now
        if left_s <= 0 or self._gone():
            return False
        self._pause_s = next(self._pauses_s, self._pause_s)
        waiting = len(_looks_at)
        pause_s = max(self._pause_s, waiting * limits.WAIT_PAUSE_S_EACH)
        pause_s *= 0.75 + _random() / 2
        answers_s = min(left_s, waiting * self.answer_s)
        if pause_s >= left_s - answers_s:
            pause_s, self._ends = left_s - answers_s * _random(), 0.0
        _looks_at[id(self)] = now + pause_s
        await asyncio.sleep(pause_s)
        return not self._gone()


def _random() -> float:
    """From 0 to 1, so that those who came together do not look together."""
    return int.from_bytes(os.urandom(2), "big") / 0xFFFF


def _forget_the_lost(now: float) -> None:
    """Those who should have looked again a while ago never will."""
    for lost in [key for key, at in _looks_at.items() if at + limits.WAIT_LATE_S < now]:
        del _looks_at[lost]


@contextmanager
def patience(wait_s: float, gone: Callable[[], bool]) -> Iterator[Patience]:
    """For a request that waits up to `wait_s` seconds; without any it does not count as one.

    Raises TooManyWaiters if limits.WAITERS_MAX wait already.
    """
    now = time.monotonic()
    patience = Patience(now + wait_s, gone)
    if wait_s > 0:
        if len(_looks_at) >= limits.WAITERS_MAX:
            _forget_the_lost(now)
        if len(_looks_at) >= limits.WAITERS_MAX:
            raise errors.TooManyWaiters(
                f"{limits.WAITERS_MAX} requests wait here already, so this one may not. Nothing "
                "was written; send it again, or without Prefer: wait.",
                retry_after_s=1,
            )
        _looks_at[id(patience)] = now
    try:
        yield patience
    finally:
        _looks_at.pop(id(patience), None)
