"""Races: a write that another one got ahead of is tried again until it decides.

Every loop of the product is this one. It ends with a decision or with CONTENDED, and in no other
way: what runs out can not be taken for an ordinary answer.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from fencepost import errors, limits
from fencepost.storage.d1 import Database

T = TypeVar("T")

# The verbs of this isolate that lost a race and try again. They pause in proportion: when all try
# at once, nearly all lose, and keep the isolate busy with it.
_racing = 0


async def until_decided(db: Database, attempt: Callable[[], Awaitable[T | None]]) -> T:
    """The result of the first attempt that decides; None means that another write came first.

    A loser is told what it lost to, so it tries once more at once. If that loses too, it pauses for
    a random part of a time that doubles with each pause (full jitter), and that is no shorter than
    the other losers of this isolate need one after the other; and begins again: the first
    attempt after a pause mostly learns what is new, the second one decides. Raises Unavailable
    (CONTENDED) when limits.RACE_MS are over, or limits.RACE_STATEMENTS_MAX statements were sent.
    Not guaranteed: that the first to come is the first to win.
    """
    global _racing
    ends = time.monotonic() + limits.RACE_MS / 1000
    pause_ms, paused = float(limits.RACE_PAUSE_MS_MIN), 0
    try:
        for rested in itertools.cycle([True, False]):
            decided = await attempt()
            if decided is not None:
                return decided
            longest_ms = max(pause_ms, (_racing - paused) * limits.RACE_PAUSE_MS_EACH)
            most_ms = min(longest_ms, limits.RACE_PAUSE_MS_MAX)
            pause_s = 0 if rested else most_ms / 1000 * _random()
            out_of_time = time.monotonic() + pause_s > ends
            if out_of_time or db.statements_sent >= limits.RACE_STATEMENTS_MAX:
                break
            if not rested:
                _racing, paused = _racing + (not paused), 1
                await _pause(pause_s)
                pause_ms = 2 * pause_ms
    finally:
        _racing -= paused
    raise contended()


async def _pause(pause_s: float) -> None:
    await asyncio.sleep(pause_s)


def _random() -> float:
    """From 0 to 1. Drawn at the call: nothing may draw at import (a snapshot would keep it)."""
    return int.from_bytes(os.urandom(2), "big") / 0xFFFF


def contended() -> errors.Unavailable:
    """The error of a race that ran out of time: nothing was written, send the request again."""
    return errors.Unavailable(
        "Other requests kept writing first. Nothing was written; send it again.",
        retry_after_s=1,
    )
