"""Requests without idle turns of the event loop: where a task goes on, and what stays as it was."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Callable, Iterator
from contextvars import ContextVar
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest

from conftest import ROOT, start_bridge, stop_bridge
from fencepost.storage.event_loop import Arrival, promptly
from helpers import Client, a_start, connect, new_key

pytestmark = pytest.mark.anyio


class Promise:
    """What Pyodide makes of a call of JavaScript that promises: a future of the running loop."""

    def __init__(self) -> None:
        self.future: Any = None

    def call(self) -> Awaitable[Any]:
        future: Awaitable[Any] = asyncio.get_running_loop().create_future()
        self.future = future
        return future

    def later(self, settle: Callable[..., None], *arguments: object) -> None:
        """From outside of any task, as a callback of JavaScript."""
        asyncio.get_running_loop().call_soon(settle, *arguments)


async def awaiting(promise: Promise, seen: list[object]) -> None:
    try:
        seen.append(await promptly(promise.call))
    except Exception as error:
        seen.append(error)


def begin(promise: Promise, seen: list[object]) -> asyncio.Task[None]:
    return asyncio.get_running_loop().create_task(awaiting(promise, seen))


async def test_a_task_goes_on_within_the_callback_that_brings_the_result() -> None:
    promise = Promise()
    seen: list[object] = []
    task = begin(promise, seen)
    await asyncio.sleep(0)

    def settle() -> None:
        promise.future.set_result("kept")
        seen.append("the callback is over")

    promise.later(settle)
    await task
    assert seen == ["kept", "the callback is over"]


async def test_an_error_is_raised_where_the_promise_is_awaited() -> None:
    promise = Promise()
    seen: list[object] = []
    task = begin(promise, seen)
    await asyncio.sleep(0)
    broken = ValueError("broken")
    promise.later(promise.future.set_exception, broken)
    await task
    assert seen == [broken]


async def test_a_promise_that_is_kept_before_it_is_awaited_is_not_waited_for() -> None:
    promise = Promise()
    arrival = promptly(promise.call)
    promise.future.set_result("kept")
    assert promise.future.done()
    assert await arrival == "kept"


async def test_a_task_that_is_cancelled_ends_when_the_promise_is_settled() -> None:
    promise = Promise()
    seen: list[object] = []
    task = begin(promise, seen)
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.sleep(0)
    assert not task.done()
    promise.later(promise.future.set_result, "kept")
    with pytest.raises(asyncio.CancelledError):
        await task
    assert seen == []


async def test_a_task_goes_on_in_its_own_context_and_as_the_current_task() -> None:
    whose: ContextVar[str] = ContextVar("whose")
    whose.set("the test's")
    promise = Promise()
    seen: list[object] = []

    async def look() -> None:
        whose.set("the task's")
        await promptly(promise.call)
        seen.extend((asyncio.current_task(), whose.get()))

    task = asyncio.get_running_loop().create_task(look())
    await asyncio.sleep(0)
    promise.later(promise.future.set_result, None)
    await task
    assert seen == [task, "the task's"]
    assert whose.get() == "the test's"


async def test_the_loop_makes_its_own_futures_outside_of_the_call() -> None:
    """asyncio's locks and groups rely on a turn between a result and the task that it wakes."""
    loop, promise = asyncio.get_running_loop(), Promise()
    promptly(promise.call)
    assert isinstance(promise.future, Arrival)
    assert isinstance(loop.create_future(), asyncio.Future)

    def fails() -> None:
        raise ValueError

    with pytest.raises(ValueError):
        promptly(fails)
    assert isinstance(loop.create_future(), asyncio.Future)


async def test_asyncio_takes_an_arrival_for_a_future() -> None:
    assert asyncio.isfuture(Arrival(asyncio.get_running_loop()))


# --- On the Worker -----------------------------------------------------------------------

COUNTED = """
import asyncio

_loop = asyncio.get_event_loop()
_call_later, _turns, _fetch = _loop.call_later, [], Default.fetch

def _counting(delay, callback, *arguments, context=None):
    _turns.append(callback)
    return _call_later(delay, callback, *arguments, context=context)

async def _fetch_counted(self, request):
    response = await _fetch(self, request)
    response.headers.set("X-Turns", str(len(_turns)))
    return response

_loop.call_later, Default.fetch = _counting, _fetch_counted
"""


@pytest.fixture(scope="module")
def counted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    """A Worker that says how many turns of its event loop a request asked for."""
    source = tmp_path_factory.mktemp("counted") / "src"
    shutil.copytree(ROOT / "src", source)
    entry: Path = source / "entry.py"
    entry.write_text(entry.read_text() + COUNTED)
    process, addresses = start_bridge(source=str(source), tokens=Client.TOKENS)
    with connect(addresses["url"]) as http:
        yield http
    stop_bridge(process)


def test_a_request_takes_one_turn_of_the_event_loop_and_that_one_hands_its_answer_over(
    counted: httpx.Client,
) -> None:
    client = Client(counted)
    key = new_key()
    answers = [
        client.start(new_key()),
        client.start(key),
        client.start(key),
        client.start(key, a_start(input=1)),
        client.get(f"/v1/starts/{key}"),
        client.get("/v1/health"),
    ]
    assert [answer.status_code for answer in answers] == [201, 201, 409, 422, 200, 200]
    turns = [int(answer.headers["X-Turns"]) for answer in answers]
    assert [after - before for before, after in pairwise(turns)] == [1] * 5
