"""The Worker's entrypoint."""

from __future__ import annotations

from typing import Any

from pyodide.webloop import PyodideTask
from workers import WorkerEntrypoint, import_from_javascript

from fencepost.http import server
from fencepost.storage import event_loop

event_loop.begin_tasks_promptly(PyodideTask)

# `_runtime.env` is the environment without the SDK's wrappers, which check the class of a binding
# at every access. Until the first await it is the environment of the current event.
_runtime = import_from_javascript("cloudflare:workers")


class Default(WorkerEntrypoint):
    """Fencepost over the D1 binding `DB`, with the secret `FENCEPOST_TOKENS`."""

    async def fetch(self, request: Any) -> Any:
        return await server.serve(request.js_object, _runtime.env)

    async def scheduled(self, controller: Any, env: Any, ctx: Any) -> None:
        await server.purge(_runtime.env)
