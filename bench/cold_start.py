"""From the start of a process to the first answers, and what the imports of the Worker take.

Measured from outside, with the clock of this process. Not measured: Cloudflare's snapshot, taken at
deploy time after the imports, which spares a deployed isolate the interpreter's start and them.
"""

from __future__ import annotations

import time
from collections import defaultdict
from functools import partial
from pathlib import Path
from typing import Any

from bench.measure import START, Client, Options, in_turns, ratio, say, serve, spread
from bench.profile import WORKERS, copied_sources
from bench.report import Section, Table

SLOWEST = 8


def run(options: Options) -> Section:
    say("  processes")
    boots = in_turns(
        options.rounds,
        {
            "no Python, only workerd and a JavaScript Worker": partial(_boot, worker=False),
            "an empty Python Worker": partial(_boot, source=WORKERS / "empty"),
            "Fencepost": partial(_boot, source=options.source, starts=True),
        },
    )
    say("  imports")
    with copied_sources(options.source, "imports") as source:
        imports = [_imports(source) for _ in range(options.rounds)]
    rows = [[name, *_times(found)] for name, found in boots.items()]
    empty, ours = boots["an empty Python Worker"], boots["Fencepost"]
    slower = ratio([boot[0] for boot in ours], [boot[0] for boot in empty])
    return Section(
        "cold",
        "Cold start",
        [
            f"Milliseconds. Fencepost is ready after {slower.text()} times the time of an empty "
            "Python Worker; the rest is Node, Miniflare, workerd and the interpreter.",
            Table(("from the process", "ready", "first answer", "first start", "second"), rows),
            "The first start checks the schema and creates the tables: five round trips.",
            Table(("imports", "ms"), _import_rows(imports)),
            "Reading, compiling and executing each module, without what it imports. Nothing is "
            "compiled beforehand here; clocks have steps of 1 ms, so small numbers are not exact.",
        ],
    )


def _boot(starts: bool = False, **settings: Any) -> list[float]:
    """From the process to being ready, then each answer; ms."""
    started = time.perf_counter()
    with serve(**settings) as served:
        times = [(time.perf_counter() - started) * 1000]
        client = Client(served.url or served.empty)
        times.append(client.get("/v1/health").ms)
        if starts:
            times += [client.start(f"cold-{number}", START).ms for number in range(2)]
    return times


def _times(boots: list[list[float]]) -> list[str]:
    texts = [spread(column).text(0) for column in zip(*boots, strict=True)]
    return texts + ["–"] * (4 - len(texts))


# --- Imports -----------------------------------------------------------------------------


def _imports(source: Path) -> dict[str, float]:
    with serve(source=source) as served:
        spent_ms: dict[str, float] = Client(served.url).get("/").body
        return spent_ms


def _import_rows(rounds: list[dict[str, float]]) -> list[list[str]]:
    """Sums by where modules come from, and then the slowest modules."""
    groups = [defaultdict(float, {"all": sum(found.values())}) for found in rounds]
    for sums, found in zip(groups, rounds, strict=True):
        for module, ms in found.items():
            sums[_group(module)] += ms
    modules = sorted(rounds[0], key=lambda name: -spread([r[name] for r in rounds]).median)
    return [
        *([name, spread([sums[name] for sums in groups]).text(0)] for name in groups[0]),
        *([f"`{name}`", spread([r[name] for r in rounds]).text(0)] for name in modules[:SLOWEST]),
    ]


def _group(module: str) -> str:
    root = module.split(".")[0]
    return "Fencepost" if root in ("fencepost", "product") else "the standard library and packages"
