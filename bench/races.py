"""48 verbs of one run at the same moment, over two isolates, without a head: how often each tries.

A verb first reads the head (an acquisition of a lapsed step by its first attempt), so attempts are
round trips less that one. Not measured: isolates on several machines; a D1 that is far away, where
each attempt takes as long as the way there and back.
"""

from __future__ import annotations

import asyncio
import json
import re
import statistics
import time
from collections.abc import Callable
from typing import NamedTuple

import httpx

from bench.measure import AUTHORIZATION, START, Client, Json, Options, say, serve
from bench.report import Section, Table

AT_ONCE = 48
TTL_MS = 60_000
OWNER = {"host_id": "bench", "pid": 1, "nonce": "bench"}
Asked = tuple[str, Json]


class Race(NamedTuple):
    """The n-th request: the path below the run, and the body without the owner."""

    name: str
    request: Callable[[list[str], int], Asked]


def _append(tokens: list[str], n: int) -> Asked:
    return "events", {"type": "noted", "payload": n}


def _checkpoint(tokens: list[str], n: int) -> Asked:
    return "transition", {"to": "running", "state": n}


def _bind(tokens: list[str], n: int) -> Asked:
    return "bindings", {"bindings": [{"gate": "a", "revision": n + 1, "receipt_hash": "0" * 64}]}


def _interrupt(tokens: list[str], n: int) -> Asked:
    return f"operations/step-{n}/interrupt", {"token": tokens[n]}


def _acquire(tokens: list[str], n: int) -> Asked:
    return f"operations/lapsed-{n}/acquire", {"ttl_ms": TTL_MS}


def _mixed(tokens: list[str], n: int) -> Asked:
    return (_append, _checkpoint, _bind, _interrupt, _acquire)[n % 5](tokens, n)


RACES = (
    Race("events", _append),
    Race("checkpoints", _checkpoint),
    Race("bindings", _bind),
    Race("interrupts", _interrupt),
    Race("acquisitions of lapsed steps", _acquire),
    Race("all of these", _mixed),
)


def run(options: Options) -> Section:
    with serve(source=options.source, isolates=2) as served:
        rows = [_row(served.url, race, options.rounds) for race in RACES]
    header = ("48 at once", "attempts: median", "worst", "ms: median", "worst")
    return Section(
        "races",
        "Races: 48 verbs of one run at once",
        [
            f"Over two isolates, without a head, {options.rounds} rounds. All of them win; "
            "anything else would end it.",
            Table(header, rows),
        ],
    )


def _row(url: str, race: Race, rounds: int) -> list[str]:
    say(f"  {race.name}")
    trips: list[int] = []
    times_ms: list[float] = []
    for number in range(rounds):
        for answer_trips, ms in asyncio.run(_round(url, race, f"{race.name[:3]}-{number}")):
            trips.append(answer_trips)
            times_ms.append(ms)
    first_reads = 0 if race.request is _acquire else 1
    return [
        race.name,
        f"{statistics.median(trips) - first_reads:.0f}",
        f"{max(trips) - first_reads}",
        f"{statistics.median(times_ms):.0f}",
        f"{max(times_ms):.0f}",
    ]


async def _round(url: str, race: Race, key: str) -> list[tuple[int, float]]:
    client = Client(url)
    run = client.start(f"race-{key}-{time.time_ns()}", {**START, "owner": OWNER}).body["run"]
    at = f"/v1/runs/{run['run_id']}"
    steps = race.request in (_interrupt, _acquire, _mixed)
    tokens = [
        _acquired(client, f"{at}/operations/step-{n}", TTL_MS) for n in range(AT_ONCE * steps)
    ]
    for n in range(AT_ONCE * steps):
        _acquired(client, f"{at}/operations/lapsed-{n}", 1)
    limits = httpx.Limits(max_connections=AT_ONCE)
    async with httpx.AsyncClient(base_url=url, timeout=60, limits=limits) as http:

        async def send(n: int) -> tuple[int, float]:
            path, body = race.request(tokens, n)
            headers = {"Authorization": AUTHORIZATION, "X-Local-Isolate": str(n % 2)}
            began = time.perf_counter()
            content = json.dumps({"owner": OWNER, **body})
            answer = await http.post(f"{at}/{path}", content=content, headers=headers)
            assert answer.status_code == 200, answer.text
            found = re.search(r'd1;desc="(\d+) round trips"', answer.headers["Server-Timing"])
            assert found
            return int(found[1]), (time.perf_counter() - began) * 1000

        return await asyncio.gather(*map(send, range(AT_ONCE)))


def _acquired(client: Client, path: str, ttl_ms: int) -> str:
    answer = client.send("POST", f"{path}/acquire", {"owner": OWNER, "ttl_ms": ttl_ms})
    token: str = answer.body["lease"]["token"]
    return token
