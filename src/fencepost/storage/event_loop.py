"""Requests without idle turns of the event loop.

A turn of Pyodide's loop is a timer of JavaScript. It takes one before a task's first step, one
between a promise that is kept and the step that awaits it, and one to count each task and each
future. Here a task begins when it is made, and goes on when the promise calls back.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context
from functools import partial
from typing import Any


class Arrival:
    """A Future-like object (`asyncio.isfuture`) that one task awaits, and that a promise settles.

    It steps the task within `set_result` or `set_exception`, which are therefore for callbacks
    of JavaScript alone: no task may run then, and nothing may follow. It cannot be cancelled; a
    task that is, ends when the promise is settled. Pyodide asks `done` before it settles.
    """

    __slots__ = ("_asyncio_future_blocking", "_error", "_loop", "_settled", "_value", "_waiting")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._asyncio_future_blocking = self._settled = False
        self._value: Any = None
        self._error: BaseException | None = None
        self._waiting: tuple[Callable[[Arrival], object], Context] | None = None

    def __await__(self) -> Generator[Arrival, None, Any]:
        if not self._settled:
            self._asyncio_future_blocking = True
            yield self
        return self.result()

    def get_loop(self) -> asyncio.AbstractEventLoop:
        return self._loop

    def done(self) -> bool:
        return self._settled

    def add_done_callback(self, wake: Callable[[Arrival], object], *, context: Context) -> None:
        self._waiting = wake, context

    def cancel(self, msg: object = None) -> bool:
        return False

    def set_result(self, value: Any) -> None:
        self._value = value
        self._settle()

    def set_exception(self, error: BaseException) -> None:
        self._error = error
        self._settle()

    def result(self) -> Any:
        if self._error is not None:
            raise self._error
        return self._value

    def _settle(self) -> None:
        self._settled = True
        if self._waiting is not None:
            wake, context = self._waiting
            _enter(self._loop)
            context.run(wake, self)


def _enter(loop: asyncio.AbstractEventLoop) -> None:
    """Have asyncio know that `loop` runs here, as Pyodide's does before each turn."""
    if asyncio._get_running_loop() is not loop:
        asyncio._set_running_loop(loop)


def promptly(call: Callable[..., Any], *arguments: Any) -> Any:
    """What a JavaScript function promises, to be awaited once, at once.

    Only what is made during the call is an Arrival: asyncio's locks and groups rely on a turn of
    the loop between a result and the task that it wakes.
    """
    loop: Any = asyncio.get_running_loop()
    loop.create_future = partial(Arrival, loop)
    try:
        return call(*arguments)
    finally:
        del loop.create_future


def begin_tasks_promptly(task: Callable[..., Any]) -> None:
    """From now on a task of the event loop, made by `task`, runs up to its first await at once.

    Pyodide's `create_task` takes no notice of `eager_start`, and with a task factory it fails.
    """
    loop: Any = asyncio.get_event_loop()

    def create_task(coroutine: Coroutine[Any, Any, Any], **options: Any) -> Any:
        _enter(loop)
        return task(coroutine, **{"loop": loop, "eager_start": True, **options})

    loop.create_task = create_task
