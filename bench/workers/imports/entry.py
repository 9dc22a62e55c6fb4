"""Times the imports of the Worker, whose own entry is `product.py` here, and answers with them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from importlib.machinery import SourceFileLoader
from typing import Any
from zipimport import zipimporter

from js import Response
from workers import WorkerEntrypoint

spent_ms: dict[str, float] = {}  # by module: reading, compiling, executing; not what it imported
_inner_ms = [0.0]


def _timed(execute: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
    def exec_module(loader: Any, module: Any) -> None:
        started = time.perf_counter()
        _inner_ms.append(0.0)
        try:
            execute(loader, module)
        finally:
            elapsed = (time.perf_counter() - started) * 1000
            spent_ms[module.__name__] = elapsed - _inner_ms.pop()
            _inner_ms[-1] += elapsed

    return exec_module


for loader in (SourceFileLoader, zipimporter):
    loader.exec_module = _timed(loader.exec_module)  # type: ignore[method-assign, assignment]

import product  # type: ignore[import-not-found]  # noqa: E402, F401


class Default(WorkerEntrypoint):  # type: ignore[misc]
    async def fetch(self, request: Any) -> Any:
        return Response.new(json.dumps(spent_ms))
