"""A Worker that only answers: what any Python Worker costs."""

from __future__ import annotations

from typing import Any

from js import Response
from workers import WorkerEntrypoint


class Default(WorkerEntrypoint):  # type: ignore[misc]
    async def fetch(self, request: Any) -> Any:
        return Response.new('{"status":"ok"}')
