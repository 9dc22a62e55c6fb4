"""Start, replay, heartbeat and transition, beside a JavaScript Worker that does the same job.

Both Workers run in one workerd process over one database in memory, and are measured in turns.
The budget is a ratio of 0.55 for a new start. Not measured: the network, Cloudflare's
own Python runtime, a D1 that is far away (`trips`).
"""

from __future__ import annotations

import sys
from functools import partial
from typing import NamedTuple

from bench import alike, plans
from bench.measure import (
    START,
    Client,
    Json,
    Load,
    Options,
    Served,
    in_turns,
    load,
    owned,
    owner,
    ratio,
    request,
    say,
    serve,
    spread,
)
from bench.report import Section, Table

BUDGET = 0.55
CONNECTIONS = 8
WARM_UP_S = 6.0  # V8 compiles the interpreter for speed a function at a time
STATE = {"step": "rendered", "page": 12, "of": 40}


class Case(NamedTuple):
    """One kind of request, one of `requests` a connection; `budget` is the least ratio."""

    name: str
    status: int
    requests: list[Json]
    budget: float | None = None


def run(options: Options) -> Section:
    with serve(plans.plans(), source=options.source) as served, load() as generator:
        assert served.peer
        if lines := alike.differences(served.url, served.peer):
            sys.exit("The two Workers do not do the same job:\n" + "\n".join(lines))
        cases = prepare(served)
        rows = [_measure(served, generator, case, options) for case in cases]
    header = "operation", "ratio", "budget", "Python/s", "JavaScript/s", "p50 ms", "p99 ms"
    return Section(
        "start",
        "Start, replay, heartbeat, transition, against JavaScript",
        [
            f"Requests/s of the Python Worker divided by those of a hand-written JavaScript Worker "
            f"that sends the same statements and does the same checks, hashes, answers and log "
            f"lines; {CONNECTIONS} connections. p50 and p99 are Python's, and then JavaScript's.",
            Table(header, rows),
            "Both share the time that workerd and D1 take; what Python costs is in `profile`. A "
            "checkpoint is a transition from `running` to `running` with a state.",
        ],
    )


def prepare(served: Served) -> list[Case]:
    """The cases, and what they need: runs to keep alive, and runs that ended. Each connection
    has its own run, so that nobody waits for anybody's row.
    """
    client = Client(served.url)
    start, replay, heartbeat, given, not_given = [], [], [], [], []
    for number in range(CONNECTIONS):
        name = f"{number}"
        alive = client.start(f"alive-{name}", owned(name)).body["run"]
        ended = client.start(f"ended-{name}", owned(name)).body["run"]
        other = client.start(f"other-{name}", owned(name)).body["run"]
        end = {"owner": owner(name), "to": "completed", "result": 42}
        client.post(f"/v1/runs/{ended['run_id']}/transition", end)
        start.append(request("POST", "/v1/starts", START, "{key}"))
        replay.append(request("POST", "/v1/starts", START, f"ended-{name}"))
        beat = f"/v1/runs/{alive['run_id']}/heartbeat"
        heartbeat.append(request("POST", beat, {"owner": owner(name)}))
        change = {"owner": owner(name), "to": "running", "state": STATE}
        head = {**change, "expected_head": "{history}"}
        path = f"/v1/runs/{alive['run_id']}/transition"
        given.append(request("POST", path, head, history=alive["head"]))
        path = f"/v1/runs/{other['run_id']}/transition"
        not_given.append(request("POST", path, change))
    return [
        Case("start, a new key", 201, start, BUDGET),
        Case("start, replayed", 200, replay),
        Case("heartbeat", 200, heartbeat),
        Case("checkpoint, head given", 200, given),
        Case("checkpoint, head read first", 200, not_given),
    ]


def _measure(served: Served, generator: Load, case: Case, options: Options) -> list[str]:
    assert served.peer
    say(f"  {case.name}")

    def measure(url: str, seconds: float = options.seconds) -> Json:
        return generator.sustain(url, case.requests, case.status, seconds, "start-")

    urls = {"python": served.url, "javascript": served.peer}
    for url in urls.values():
        measure(url, WARM_UP_S)
    rounds = in_turns(options.rounds, {name: partial(measure, url) for name, url in urls.items()})
    rates = {name: [result["rate"] for result in rounds[name]] for name in urls}

    def both(part: str) -> str:
        return " / ".join(f"{spread([r[part] for r in rounds[n]]).median:.1f}" for n in urls)

    return [
        case.name,
        ratio(rates["python"], rates["javascript"]).text(),
        "–" if case.budget is None else f"≥ {case.budget}",
        *(spread(rates[name]).text(0) for name in urls),
        both("p50_ms"),
        both("p99_ms"),
    ]
