"""Where the time of a request goes in the Worker: a ladder of requests, and clocks in one of them.

The ladder compares requests of which each does a little more, by the CPU time of the workerd
process (all threads, D1's included), in Python and in JavaScript. The clocks are in a copy of the
sources: workerd's clock moves in steps of 1 ms, so that only sums over many requests mean
anything. Not measured: what V8 does for WebAssembly in other threads is CPU time, but no wait.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import shutil
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

from bench import plans
from bench.measure import (
    PROJECT,
    START,
    Client,
    Json,
    Load,
    Options,
    Spread,
    cpu_ms,
    in_turns,
    load,
    owned,
    owner,
    request,
    say,
    serve,
    spread,
)
from bench.report import Section, Table

WORKERS = PROJECT / "bench" / "workers"
CONNECTIONS = 8
WAITS = 200
_NUMBERS = itertools.count()


class Rung(NamedTuple):
    """A request; address and process of the Workers that answer it."""

    name: str
    status: int
    requests: list[Json]
    python: tuple[str, int]
    javascript: tuple[str, int]


class Cost(NamedTuple):
    """CPU milliseconds of a rung; `more` is Python's less JavaScript's, round by round."""

    name: str
    python: Spread
    javascript: Spread
    more: Spread

    def row(self) -> list[str]:
        return [self.name, self.python.text(), self.javascript.text(), self.more.text()]


def run(options: Options) -> Section:
    costs, (ours, theirs) = _climb(options)
    stages, requests, missing = _clocked(options)
    error = math.sqrt(1 / 6 / requests)
    notes = [f"Stages that were not found: {', '.join(missing)}."] if missing else []
    return Section(
        "profile",
        "Where the time of a request goes",
        [
            "CPU milliseconds of the workerd process a request, all threads, D1 included; "
            f"{CONNECTIONS} connections. Every request does what the one above does and more, "
            "except that the second and the third do not ask D1.",
            Table(
                ("request", "Python", "JavaScript", "Python − JavaScript"),
                [cost.row() for cost in costs],
            ),
            _breakdown([cost.more.median for cost in costs]),
            f"From the way to D1 to the way back, a new start at a time: {ours} ms in Python, with "
            f"its conversions, {theirs} ms in JavaScript.",
            f"Inside a new start, by clocks in a copy of the sources: {requests:,} requests of one "
            f"connection, each stage ± {error:.2f} ms and dearer by its clock.",
            Table(("stage", "ms a start", "share"), stages),
            *notes,
        ],
    )


def _breakdown(more: list[float]) -> str:
    """What a new start costs more in Python, by the rungs that tell one thing apart each."""
    host, health, refused, *_, start = more
    return (
        f"Of the {start:.2f} ms that a new start costs more in Python, {host:.2f} are the "
        f"interpreter's host, {health - host:.2f} route, log line and answer, "
        f"{refused - health:.2f} token, body, checks and fingerprint, and {start - refused:.2f} "
        "statements, the way to D1 and back, rows and the decision."
    )


# --- The ladder --------------------------------------------------------------------------


def _climb(options: Options) -> tuple[list[Cost], list[str]]:
    """The rungs, and how long each language waits for D1."""
    with contextlib.ExitStack() as stack:
        empty = stack.enter_context(serve(source=WORKERS / "empty"))
        served = stack.enter_context(serve(plans.plans(), source=options.source))
        generator = stack.enter_context(load())
        assert served.peer
        python, javascript = (empty.url, empty.pid), (served.empty, served.pid)
        first = Rung("an empty Worker", 200, _same(request("GET", "/")), python, javascript)
        python, javascript = (served.url, served.pid), (served.peer, served.pid)
        rungs = [first, *(Rung(*shape, python, javascript) for shape in _shapes(served.url))]
        costs = [_measure(generator, rung, options) for rung in rungs]
        urls = {"python": served.url, "javascript": served.peer}
        waits = in_turns(options.rounds, {name: partial(_wait, urls[name]) for name in urls})
    return costs, [spread(values).text() for values in waits.values()]


def _same(shape: Json) -> list[Json]:
    return [shape] * CONNECTIONS


def _shapes(url: str) -> list[tuple[str, int, list[Json]]]:
    client, key, path = Client(url), "ended", "/v1/starts"
    run = f"/v1/runs/{client.start(key, owned(key)).body['run']['run_id']}"
    client.post(f"{run}/transition", {"owner": owner(key), "to": "completed", "result": 42})
    refused = {**START, "unknown": 1}
    return [
        ("health: route, answer, log line", 200, _same(request("GET", "/v1/health"))),
        ("a start refused: token, body, checks", 400, _same(request("POST", path, refused, key))),
        ("a run read: token, one SELECT", 200, _same(request("GET", run))),
        ("a start replayed: nothing written", 200, _same(request("POST", path, START, key))),
        ("a new start", 201, _same(request("POST", path, START, "{key}"))),
    ]


def _measure(generator: Load, rung: Rung, options: Options) -> Cost:
    say(f"  {rung.name}")

    def cost(url: str, pid: int) -> float:
        before = cpu_ms(pid)
        result = generator.sustain(url, rung.requests, rung.status, options.seconds, "rung-")
        return (cpu_ms(pid) - before) / float(result["count"])

    measures = {
        "python": partial(cost, *rung.python),
        "javascript": partial(cost, *rung.javascript),
    }
    for measure in measures.values():
        measure()
    costs = in_turns(options.rounds, measures)
    more = [a - b for a, b in zip(costs["python"], costs["javascript"], strict=True)]
    return Cost(rung.name, *map(spread, (*costs.values(), more)))


def _wait(url: str) -> float:
    """Mean milliseconds from a batch's way out to its way back in, new starts one by one."""
    client = Client(url)
    answers = [client.start(f"wait-{next(_NUMBERS)}", START) for _ in range(WAITS)]
    return sum(answer.database_ms for answer in answers) / WAITS


# --- The clocks --------------------------------------------------------------------------


def _clocked(options: Options) -> tuple[list[list[str]], int, list[str]]:
    """A row a stage, the number of requests behind it, and the stages that were not found."""
    say("  clocks")
    with copied_sources(options.source, "clocks") as source, serve(source=source) as served:
        with load() as generator:
            shape = [request("POST", "/v1/starts", START, "{key}")]
            generator.sustain(served.url, shape, 201, options.seconds, "clocks-")
            _read_clocks(served.url)
            seconds = options.seconds * options.rounds
            result = generator.sustain(served.url, shape, 201, seconds, "clocks-")
        clocks = _read_clocks(served.url)
    stages = {name: ms / result["count"] for name, ms in clocks["spent_ms"].items()}
    total = sum(stages.values())
    ordered = sorted(stages.items(), key=lambda stage: -stage[1])
    rows = [[name, f"{ms:.2f}", f"{ms / total:.0%}"] for name, ms in ordered]
    return rows, int(result["count"]), clocks["missing"]


def _read_clocks(url: str) -> Json:
    """What the clocks say since the last reading."""
    headers: Json = {"X-Bench-Clocks": "1"}
    clocks: Json = Client(url).get("/", **headers).body
    return clocks


@contextlib.contextmanager
def copied_sources(source: Path, worker: str) -> Iterator[Path]:
    """The sources of the Worker with another entry, which finds the product's as `product`."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "src"
        shutil.copytree(source, copy, ignore=shutil.ignore_patterns("__pycache__"))
        (copy / "entry.py").rename(copy / "product.py")
        shutil.copy(WORKERS / worker / "entry.py", copy)
        yield copy
