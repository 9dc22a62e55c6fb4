"""The Worker's entrypoint."""

from __future__ import annotations

from typing import Any

from workers import WorkerEntrypoint

from fencepost import routes


class Default(WorkerEntrypoint):
    """Fencepost over the D1 binding `DB`, with the secret `FENCEPOST_TOKENS`."""

    async def fetch(self, request: Any) -> Any:
        return await routes.serve(request.js_object, self.env)

    async def scheduled(self, controller: Any, env: Any, ctx: Any) -> None:
        await routes.purge(self.env)
