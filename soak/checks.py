"""All that is checked of a Worker that is down, and the last look at one that still serves."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from random import Random

from soak import kept, rest
from soak.caller import Caller
from soak.history import History
from soak.requests import Request
from soak.witness import Findings

AT_ONCE = 8


def of_the_database(file: Path, history: History, findings: Findings) -> None:
    """Every invariant of rows, and of rows against what was told."""
    with contextlib.closing(rest.opened(file)) as db:
        for invariant in (*rest.INVARIANTS, *kept.INVARIANTS):
            for text in invariant(db, history):
                findings.add(invariant.__name__, text)


async def of_all_histories(caller: Caller) -> int:
    """The service's own word on the history of every run, without faults; how many there are."""
    history, rng = caller.history, Random(0)
    runs = [run_id for run_id, told in history.runs.items() if told.heads]
    left = iter(runs)

    async def ask_some() -> None:
        for run_id in left:
            may = frozenset({"RUN_NOT_FOUND"} if history.run(run_id).aged else ())
            path = f"/v1/runs/{run_id}/integrity"
            request = Request("GET", path, token="operator", may=may)  # noqa: S106
            await caller.ask(request, rng, faulty=False)

    await asyncio.gather(*[ask_some() for _ in range(AT_ONCE)])
    return len(runs)
