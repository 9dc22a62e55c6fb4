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

from soak import aging, checks, memory, operators, readers, rest, starters, thieves
from soak.caller import Caller, Stopped
from soak.history import History
from soak.memory import Sample
from soak.runner import Runner
from soak.witness import Findings, Witness
from soak.world import TOKENS, Actor, World

ISOLATES = 2
SETTINGS = {
    "FENCEPOST_TOKENS": TOKENS,
    "FENCEPOST_ISOLATES": str(ISOLATES),
    "FENCEPOST_FAULTS": "1",
    "MINIFLARE_WORKERD_V8_FLAGS": f"--max-heap-size={memory.HEAP_MAX_MB}",
}
# The share of the time in which the Worker is killed; afterwards its memory is measured.
KILLING_SHARE = 0.5
LIFE_S = (6.0, 16.0)
REPORT_EVERY_S = 10.0
# Longer than the longest wait that a client asks for.
CLIENTS_END_WITHIN_S = 20.0

SCENES: dict[Callable[[Actor], Awaitable[object]], int] = {
    starters.start_new: 30,
    starters.start_again: 12,
    starters.misuse: 5,
    starters.release: 4,
    thieves.take_over: 25,
    thieves.cancel: 4,
    operators.resolve: 5,
    operators.purge: 3,
    readers.read: 30,
}


async def _mixed(actor: Actor) -> None:
    """For ever: one scene after another."""
    scenes, weights = zip(*SCENES.items(), strict=True)
    while True:
        [scene] = actor.rng.choices(scenes, weights)
        await scene(actor)


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
        self.caller = Caller(self.runner.url, Witness(History(), self.findings))
        self.world = World()
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
            last = Caller(self.runner.url, self.caller.witness)
            self.intact = await checks.of_all_histories(last)
            await last.close()
            self.runner.end(signal.SIGINT)
            self._check_database()
        finally:
            self.runner.end(signal.SIGKILL)
            await self.caller.close()

    def _actor(self, name: str) -> Actor:
        return Actor(name, self.options.seed, self.caller, self.world)

    def _clients(self) -> list[Coroutine[None, None, None]]:
        names = [f"client {number}" for number in range(self.options.clients)]
        guard = self._until_stopped(operators.guard_the_fence(self._actor("operator")))
        return [*[self._until_stopped(_mixed(self._actor(name))) for name in names], guard]

    async def _until_stopped(self, client: Awaitable[None]) -> None:
        with contextlib.suppress(Stopped):
            await client

    async def _stop(self, tasks: list[asyncio.Task[None]]) -> None:
        """Clients end after the answer that they wait for."""
        self.caller.stopped = True
        _, late = await asyncio.wait(tasks[: self.options.clients], timeout=CLIENTS_END_WITHIN_S)
        if late:
            self.findings.add("every_request_is_answered", f"{len(late)} clients wait for ever")
        for task in tasks:
            task.cancel()
        self.caller.witness.history.closed = None

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
            self._age()
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
            checks.of_the_database(file, self.caller.history, self.findings)

    def _age(self) -> None:
        file = self.runner.database()
        assert file is not None
        with contextlib.closing(rest.opened(file)) as db:
            self.world.purgeable |= aging.age(db, self.caller.history, self.rng)

    # --- Looking -------------------------------------------------------------------------

    async def _measure_until(self, end: float) -> None:
        while (now := time.monotonic()) < end:
            pid = self.runner.workerd()
            rss_mb = None if pid is None else memory.rss_mb(pid)
            self._require_alive(rss_mb is not None)
            self.samples.append(
                Sample(now - self.began, rss_mb or 0, self.caller.counts["answers"])
            )
            await asyncio.sleep(memory.SAMPLE_EVERY_S)
        grown = memory.growth(self.samples)
        self.findings.add("memory_is_flat", memory.memory_is_flat(grown))

    async def _progress(self) -> None:
        while True:
            await asyncio.sleep(REPORT_EVERY_S)
            counts, rss = self.caller.counts, self.samples[-1].rss_mb if self.samples else None
            print(
                f"{time.monotonic() - self.began:4.0f} s  {counts['answers']} answers, "
                f"{counts['faults']} with faults, {counts['cut off']} cut off, "
                f"{self.kills} kills, {self.world.added} starts, {counts['purged']} purged, "
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
