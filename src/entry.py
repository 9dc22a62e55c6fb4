"""The Worker's entrypoint."""

from __future__ import annotations

from typing import Any

from pyodide.webloop import PyodideTask
from workers import WorkerEntrypoint, import_from_javascript

from fencepost.http import server
from fencepost.storage import event_loop

event_loop.begin_tasks_promptly(PyodideTask)

# Its `env` is the environment without the SDK's wrappers, which look at each binding's class
# each time; in every event it is the environment of that event until the first await.
_runtime = import_from_javascript("cloudflare:workers")


class Default(WorkerEntrypoint):
    """Fencepost over the D1 binding `DB`, with the secret `FENCEPOST_TOKENS`."""

    async def fetch(self, request: Any) -> Any:
        return await server.serve(request.js_object, _runtime.env)

    async def scheduled(self, controller: Any, env: Any, ctx: Any) -> None:
        await server.purge(_runtime.env)
