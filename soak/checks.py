"""The checks of a Worker that is down, and the last ones over HTTP."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

from soak import kept, rest
from soak.history import History
from soak.requests import Request
from soak.witness import Findings
from soak.world import Actor

AT_ONCE = 8


def of_the_database(file: Path, history: History, findings: Findings) -> None:
    """Every invariant of rows, and of rows against what was told."""
    with contextlib.closing(rest.opened(file)) as db:
        for invariant in (*rest.INVARIANTS, *kept.INVARIANTS):
            for text in invariant(db, history):
                findings.add(invariant.__name__, text)


async def of_all_histories(actor: Actor) -> int:
    """The integrity of every run by the service's own word, without faults; how many there are."""
    history, runs = actor.caller.history, iter(list(actor.caller.history.runs))
    known = [run_id for run_id in runs if history.run(run_id).heads]
    left = iter(known)

    async def some() -> None:
        for run_id in left:
            may = frozenset({"RUN_NOT_FOUND"} if history.run(run_id).aged else ())
            path = f"/v1/runs/{run_id}/integrity"
            request = Request("GET", path, token="operator", may=may)  # noqa: S106
            await actor.caller.ask(request, actor.rng, faulty=False)

    await asyncio.gather(*[some() for _ in range(AT_ONCE)])
    return len(known)
