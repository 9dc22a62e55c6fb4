"""One soak: a Worker, its clients, its killer, and the checks between its lives and at the end."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from random import Random
from typing import NamedTuple

from soak import (
    backdating,
    checks,
    database_consistency,
    operator_clients,
    reading_clients,
    starting_clients,
    takeover_and_cancel_clients,
    worker_memory,
)
from soak.answer_checker import AnswerChecker, Findings
from soak.caller import Caller, Stopped
from soak.client_knowledge import ClientKnowledge
from soak.clients import TOKENS, Client, SharedStarts
from soak.runner import Runner
from soak.worker_memory import Sample

ISOLATES = 2
SETTINGS = {
    "FENCEPOST_TOKENS": TOKENS,
    "FENCEPOST_ISOLATES": str(ISOLATES),
    "FENCEPOST_FAULTS": "1",
    "MINIFLARE_WORKERD_V8_FLAGS": f"--max-heap-size={worker_memory.HEAP_MAX_MB}",
}
# The share of the time in which the Worker is killed; afterwards its memory is measured.
KILLING_SHARE = 0.5
LIFE_S = (6.0, 16.0)
REPORT_EVERY_S = 10.0
# Longer than the longest wait that a client asks for.
CLIENTS_END_WITHIN_S = 20.0

SCENES: dict[Callable[[Client], Awaitable[object]], int] = {
    starting_clients.start_new: 30,
    starting_clients.start_again: 12,
    starting_clients.misuse: 5,
    starting_clients.release: 4,
    takeover_and_cancel_clients.take_over: 25,
    takeover_and_cancel_clients.cancel: 4,
    operator_clients.resolve: 5,
    operator_clients.purge: 3,
    reading_clients.read: 30,
}


async def _mixed(client: Client) -> None:
    """For ever: one scene after another."""
    scenes, weights = zip(*SCENES.items(), strict=True)
    while True:
        [scene] = client.rng.choices(scenes, weights)
        await scene(client)


class Options(NamedTuple):
    minutes: float
    seed: int
    clients: int


class Soak:
    """What `run` does, and what it found."""

    def __init__(self, options: Options, folder: Path) -> None:
        self.options = options
        self.seconds = options.minutes * 60
        self.rng = Random(f"{options.seed}/soak")
        self.runner = Runner(folder, **SETTINGS)
        self.findings = Findings()
        self.caller = Caller(self.runner.url, AnswerChecker(ClientKnowledge(), self.findings))
        self.shared = SharedStarts()
        self.samples: list[Sample] = []
        self.kills = self.intact = 0

    async def run(self) -> None:
        """Everything that it starts has ended when it returns, or is cancelled."""
        self.began = time.monotonic()
        self.runner.start()
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(each) for each in self._clients()]
                tasks.append(group.create_task(self._progress()))
                await self._kill_until(self.began + self.seconds * KILLING_SHARE)
                await self._measure_until(self.began + self.seconds)
                await self._stop(tasks)
            last = Caller(self.runner.url, self.caller.checker)
            self.intact = await checks.check_all_histories(last)
            await last.close()
            self.runner.end(signal.SIGINT)
            self._check_database()
        finally:
            self.runner.end(signal.SIGKILL)
            await self.caller.close()

    def _client(self, name: str) -> Client:
        return Client(name, self.options.seed, self.caller, self.shared)

    def _clients(self) -> list[Coroutine[None, None, None]]:
        names = [f"client {number}" for number in range(self.options.clients)]
        guard = self._until_stopped(
            operator_clients.move_the_fence_to_and_fro(self._client("operator"))
        )
        return [*[self._until_stopped(_mixed(self._client(name))) for name in names], guard]

    async def _until_stopped(self, client: Awaitable[None]) -> None:
        with contextlib.suppress(Stopped):
            await client

    async def _stop(self, tasks: list[asyncio.Task[None]]) -> None:
        """Clients end after the answer that they wait for."""
        self.caller.stopped = True
        _, late = await asyncio.wait(tasks[: self.options.clients], timeout=CLIENTS_END_WITHIN_S)
        if late:
            self.findings.add("every_request_is_answered", f"{len(late)} clients got no answer")
        for task in tasks:
            task.cancel()
        self.caller.checker.knowledge.closed = None

    # --- Lives and deaths ----------------------------------------------------------------

    async def _kill_until(self, end: float) -> None:
        """Lives of random length; between them the database is checked, and some runs age."""
        while True:
            life_s = self.rng.uniform(*LIFE_S)
            await self._first_answer()
            if time.monotonic() + life_s > end:
                return
            await asyncio.sleep(life_s)
            self._require_alive(self.runner.workerd() is not None)
            await self._at_a_commit()
            self.runner.end(signal.SIGKILL)
            self.kills += 1
            await asyncio.sleep(0.2)  # the clients take in what had been answered
            self._check_database()
            self._backdate()
            self.runner.start()

    async def _first_answer(self) -> None:
        answers = self.caller.counts["answers"]
        while self.caller.counts["answers"] == answers:
            await asyncio.sleep(0.2)
            self._require_alive(self.runner.process.poll() is None)

    def _require_alive(self, alive: bool) -> None:
        """Nobody but the soak ends the Worker."""
        if not alive:
            raise RuntimeError(f"the Worker ended by itself; see {self.runner.log}")

    async def _at_a_commit(self) -> None:
        """Just after a commit, when its answer has perhaps not left yet."""
        before = self.runner.commits()
        for _ in range(1000):
            if self.runner.commits() != before:
                return
            await asyncio.sleep(0)

    def _check_database(self) -> None:
        file = self.runner.database()
        if file is None:
            self.findings.add("the_file_is_sound", "there is no database")
        else:
            checks.check_database(file, self.caller.knowledge, self.findings)

    def _backdate(self) -> None:
        file = self.runner.database()
        assert file is not None
        with contextlib.closing(database_consistency.opened(file)) as db:
            self.shared.purgeable |= backdating.backdate(db, self.caller.knowledge, self.rng)

    # --- Looking -------------------------------------------------------------------------

    async def _measure_until(self, end: float) -> None:
        while (now := time.monotonic()) < end:
            pid = self.runner.workerd()
            rss_mb = None if pid is None else worker_memory.rss_mb(pid)
            self._require_alive(rss_mb is not None)
            self.samples.append(
                Sample(now - self.began, rss_mb or 0, self.caller.counts["answers"])
            )
            await asyncio.sleep(worker_memory.SAMPLE_EVERY_S)
        grown = worker_memory.growth(self.samples)
        self.findings.add("memory_is_flat", worker_memory.memory_is_flat(grown))

    async def _progress(self) -> None:
        while True:
            await asyncio.sleep(REPORT_EVERY_S)
            counts, rss = self.caller.counts, self.samples[-1].rss_mb if self.samples else None
            print(
                f"{time.monotonic() - self.began:4.0f} s  {counts['answers']} answers, "
                f"{counts['faults']} with faults, {counts['cut off']} cut off, "
                f"{self.kills} kills, {self.shared.added} starts, {counts['purged']} purged, "
                f"{self.findings.counts.total()} violations" + (f", {rss:.0f} MB" if rss else ""),
                flush=True,
            )

    def branches(self) -> Counter[str]:
        """What became of the writes whose reply was lost, by the Worker's own log."""
        found: Counter[str] = Counter()
        with self.runner.log.open(errors="replace") as log:
            for line in log:
                if line.startswith("{") and line.endswith("}\n") and '"branch":"' in line:
                    found[json.loads(line)["branch"]] += 1
        return found
