"""Many requests that wait for the end of a run of 1 MB, in one isolate: when they are answered, and
what others notice meanwhile.

Half of them read the run (the answer has its state), half start its key (the answer has not). Not
measured: clients that are far away.
"""

from __future__ import annotations

import asyncio
import json
import time
from typing import NamedTuple

import httpx

from bench.measure import AUTHORIZATION, START, Client, Options, say, serve
from bench.report import Section, Table

WAITERS = 200
WAIT_S = 8
STATE_BYTES = 1_000_000
ARRIVED_S = 2  # the time in which all of them have come
OWNER = {"host_id": "bench", "pid": 1, "nonce": "bench"}


class Waited(NamedTuple):
    """Seconds until each answer; milliseconds of each health check while all wait."""

    answers_s: list[float]
    health_ms: list[float]


def run(options: Options) -> Section:
    rows = []
    for number in range(options.rounds):
        say(f"  round {number + 1}")
        with serve(source=options.source) as served:
            waited = asyncio.run(_round(served.url, f"waiting-{number}"))
        rows.append(
            [
                f"{min(waited.answers_s):.1f} to {max(waited.answers_s):.1f}",
                f"{sum(waited.health_ms) / len(waited.health_ms):.0f}",
                f"{max(waited.health_ms):.0f}",
            ]
        )
    header = ("answered after, s", "health, ms: mean", "worst")
    about = (
        f"{WAITERS} requests with `wait={WAIT_S}` on a run of 1 MB, one isolate, a row a round. "
        f"Health from {ARRIVED_S} s on, when all have come, to their deadline."
    )
    return Section("waiting", "Waiting", [about, Table(header, rows)])


async def _round(url: str, key: str) -> Waited:
    client = Client(url)
    run = client.start(key, {**START, "owner": OWNER, "lease_ms": 60_000}).body["run"]
    path, state = f"/v1/runs/{run['run_id']}", "x" * STATE_BYTES
    client.send("POST", f"{path}/transition", {"owner": OWNER, "to": "running", "state": state})
    limits = httpx.Limits(max_connections=WAITERS + 1)
    async with httpx.AsyncClient(base_url=url, timeout=60, limits=limits) as http:
        began = time.perf_counter()

        async def wait(n: int) -> float:
            headers = {"Authorization": AUTHORIZATION}
            if n % 2:
                answer = await http.get(f"{path}?wait={WAIT_S}", headers=headers)
            else:
                headers |= {"Idempotency-Key": key, "Prefer": f"wait={WAIT_S}"}
                answer = await http.post("/v1/starts", content=json.dumps(START), headers=headers)
            assert answer.status_code in (200, 409), answer.text
            return time.perf_counter() - began

        waits = asyncio.gather(*map(wait, range(WAITERS)))
        await asyncio.sleep(ARRIVED_S)
        health = []
        while time.perf_counter() - began < WAIT_S:
            asked = time.perf_counter()
            await http.get("/v1/health")
            health.append((time.perf_counter() - asked) * 1000)
            await asyncio.sleep(0.1)
        return Waited(await waits, health)
