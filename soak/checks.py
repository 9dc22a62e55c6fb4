"""All that is checked of a Worker that is down, and the last look at one that still serves."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from random import Random

from soak import database_consistency, database_matches_answers
from soak.answer_checker import Findings
from soak.caller import Caller
from soak.client_knowledge import ClientKnowledge
from soak.requests_and_answers import Request

AT_ONCE = 8


def check_database(file: Path, knowledge: ClientKnowledge, findings: Findings) -> None:
    """Every invariant of rows, and of rows against what was told."""
    with contextlib.closing(database_consistency.opened(file)) as db:
        for invariant in (*database_consistency.INVARIANTS, *database_matches_answers.INVARIANTS):
            for text in invariant(db, knowledge):
                findings.add(invariant.__name__, text)


async def check_all_histories(caller: Caller) -> int:
    """The service's own word on the history of every run, without faults; how many there are."""
    knowledge, rng = caller.knowledge, Random(0)
    runs = [run_id for run_id, told in knowledge.runs.items() if told.heads]
    left = iter(runs)

    async def ask_some() -> None:
        for run_id in left:
            may = frozenset({"RUN_NOT_FOUND"} if knowledge.run(run_id).backdated else ())
            path = f"/v1/runs/{run_id}/integrity"
            request = Request("GET", path, token="operator", may=may)  # noqa: S106
            await caller.ask(request, rng, faulty=False)

    await asyncio.gather(*[ask_some() for _ in range(AT_ONCE)])
    return len(runs)
