"""The Worker, whose own entry is `product.py` here, with a clock in each of its stages.

Time is given to the innermost stage that runs. A request with the header `X-Bench-Clocks` is
answered with the milliseconds of each stage so far, and begins anew. One request at a time.
"""

from __future__ import annotations

import importlib
import json
import time
from collections.abc import Callable, Generator
from typing import Any

from js import Response

# In the order of their imports: a stage is in place before anybody imports it by name.
STAGES = {
    "statements checked": ["storage.d1:check"],
    "statements to JavaScript, results to text": ["storage.d1:Database._send"],
    "results from JSON": ["storage.d1:Database.batch_unguarded"],
    "the unknown-commit protocol": ["storage.writes:write"],
    "event hashed": ["journal:next_event"],
    "rows judged": ["reservation:Reservation.from_row", "runs:Run.from_row"],
    "fence judged": ["fence:Fence.from_rows"],
    "token checked": ["http.auth:admit"],
    "body read": ["http.server:_read_body"],
    "JSON parsed": ["http.strictjson:loads"],
    "members checked": ["http.forms:loads", "http.forms:Form.read"],
    "fingerprint": ["decision:fingerprint"],
    "statements made, decision": ["starts:start"],
    "answer shaped": ["http.outcomes:start_reply"],
    "route found, handler": ["http.server:answer"],
    "log line": ["http.server:log_line", "http.server:_log"],
    "response made": ["http.server:_send"],
    "request received": ["http.server:serve"],
}
WAITING = "waiting for D1"
OUTSIDE = "outside: HTTP, host, client"

spent_ms: dict[str, float] = {}
missing: list[str] = []
_stack = [OUTSIDE]
_since = 0.0


def _switch(change: Callable[[], object]) -> None:
    """Give the time until now to the stage that ran, and go to another."""
    global _since
    now = time.perf_counter()
    spent_ms[_stack[-1]] = spent_ms.get(_stack[-1], 0.0) + (now - _since) * 1000
    _since = now
    change()


def _enter(stage: str) -> None:
    _switch(lambda: _stack.append(stage))


def _leave() -> None:
    _switch(_stack.pop)


class _Timed:
    """A coroutine; while it is suspended, time goes to WAITING, whatever stages it is in."""

    def __init__(self, stage: str, coroutine: Any) -> None:
        self._stage, self._coroutine = stage, coroutine

    def __await__(self) -> Generator[Any, Any, Any]:
        iterator = self._coroutine.__await__()
        step, value = iterator.send, None
        while True:
            _enter(self._stage)
            try:
                future = step(value)
            except StopIteration as done:
                return done.value
            finally:
                _leave()
            if _stack == [OUTSIDE]:
                _enter(WAITING)
            try:
                step, value = iterator.send, (yield future)
            except BaseException as failure:
                step, value = iterator.throw, failure
            if _stack[-1] == WAITING:
                _leave()


def _timed(stage: str, function: Any) -> Any:
    def call(*args: Any, **named: Any) -> Any:
        _enter(stage)
        try:
            result = function(*args, **named)
        finally:
            _leave()
        return _Timed(stage, result) if hasattr(result, "__await__") else result

    return call


def _install(stage: str, name: str) -> None:
    path, _, attribute = name.partition(":")
    place: Any = importlib.import_module(f"fencepost.{path}")
    *owners, last = attribute.split(".")
    for owner in owners:
        place = getattr(place, owner)
    found = vars(place).get(last)
    if found is None:
        missing.append(name)
    elif isinstance(found, classmethod):
        setattr(place, last, classmethod(_timed(stage, found.__func__)))
    else:
        setattr(place, last, _timed(stage, found))


for stage, names in STAGES.items():
    for name in names:
        _install(stage, name)

import product  # type: ignore[import-not-found]  # noqa: E402


class Default(product.Default):  # type: ignore[misc]
    async def fetch(self, request: Any) -> Any:
        if not request.js_object.headers.has("x-bench-clocks"):
            return await super().fetch(request)
        answer = json.dumps({"spent_ms": spent_ms, "missing": missing})
        spent_ms.clear()
        return Response.new(answer)
