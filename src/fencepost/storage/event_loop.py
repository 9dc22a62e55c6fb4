"""Requests without idle turns of the event loop.

Each turn of Pyodide's event loop is a JavaScript timer. Pyodide takes one turn before the first
step of a task, one between a promise that settles and the step that awaits it, and one to count
each task and each future. Here a task begins when it is created, and continues inside the
callback of the promise.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context
from functools import partial
from typing import Any


class Arrival:
    """A Future-like object (`asyncio.isfuture`) that one task awaits and a promise settles.

    `set_result` and `set_exception` run the next step of the task before they return. Only a
    JavaScript callback may call them, while no task runs, and as its last action. An Arrival
    cannot be cancelled: a cancelled task ends when the promise settles. Pyodide asks `done` first.
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
    """Tell asyncio that `loop` is running, as Pyodide does before each turn."""
    if asyncio._get_running_loop() is not loop:
        asyncio._set_running_loop(loop)


def promptly(call: Callable[..., Any], *arguments: Any) -> Any:
    """Call a JavaScript function. Await the promise that it returns once, immediately.

    Only futures created during the call are Arrivals. asyncio's locks and task groups rely on a
    turn of the loop between a result and the task that it wakes.
    """
    loop: Any = asyncio.get_running_loop()
    loop.create_future = partial(Arrival, loop)
    try:
        return call(*arguments)
    finally:
        del loop.create_future


def begin_tasks_promptly(task: Callable[..., Any]) -> None:
    """Let every new task run up to its first await when it is created. `task` makes the task.

    Pyodide's `create_task` ignores `eager_start`, and fails with a task factory.
    """
    loop: Any = asyncio.get_event_loop()

    def create_task(coroutine: Coroutine[Any, Any, Any], **options: Any) -> Any:
        _enter(loop)
        return task(coroutine, **{"loop": loop, "eager_start": True, **options})

    loop.create_task = create_task
