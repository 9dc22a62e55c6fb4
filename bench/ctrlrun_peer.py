"""ctrlrun's reserve and commit beside our start and finish: the same promise, made elsewhere.

ctrlrun (PyPI) is a library: its SQLite store runs inside the process that calls it. What is
compared is therefore not two implementations of one thing but the price of being a service.
Not measured: several processes on one file, other disks than that of the temporary folder.
"""

from __future__ import annotations

import itertools
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.measure import PROJECT, Client, Options, in_turns, owned, owner, ratio, serve, spread
from bench.report import Section, Table

RESULT = {"charge": "ch_1"}


def run(options: Options) -> Section:
    sys.path.append(str(PROJECT / "bench_modules"))
    with (
        tempfile.TemporaryDirectory() as folder,
        serve(source=options.source) as served,  # also keeps its database in a temporary file
    ):
        store = _store(Path(folder) / "ctrlrun.sqlite")
        pairs = {"fencepost": _fencepost(served.url), "ctrlrun": _ctrlrun(store)}
        for pair in pairs.values():
            _rate(pair, 1)
        measures = {name: _measure(pair, options.seconds) for name, pair in pairs.items()}
        rates = in_turns(options.rounds, measures)
        store.close()
    return _section(rates)


def _section(rates: dict[str, list[float]]) -> Section:
    rows = [
        [name, spread(values).text(0), f"{1000 / spread(values).median:.2f}"]
        for name, values in rates.items()
    ]
    slower = ratio(rates["ctrlrun"], rates["fencepost"])
    return Section(
        "ctrlrun",
        "Beside ctrlrun",
        [
            "One caller, one pair after the other: start and finish (two requests, transition "
            "without a given head, so three D1 round trips), beside `reserve_effect`, "
            "`begin_execution` and `commit_effect` of ctrlrun's SQLite store.",
            Table(("", "pairs/s", "ms a pair"), rows),
            f"ctrlrun is {slower.text(1)} times as fast. It runs in the "
            "caller's process, without HTTP, JSON, tokens or another process, keeps no input, "
            "snapshot, event or owner of a run, and checks no fence. Its store is a file in WAL "
            "mode with `synchronous=NORMAL`, which does not sync at a commit; the "
            "local D1 syncs its file once for each batch that writes. Its clients are "
            "processes that can open that file; the clients of Fencepost need a token.",
        ],
    )


def _store(path: Path) -> Any:
    from ctrlrun.state import SQLiteStateStore

    return SQLiteStateStore(path)


def _fencepost(url: str) -> Callable[[int], object]:
    client, me = Client(url), owner("pair")
    finish = {"owner": me, "to": "completed", "result": RESULT}

    def pair(number: int) -> object:
        run = client.start(f"pair-{number}", owned("pair")).body["run"]
        return client.post(f"/v1/runs/{run['run_id']}/transition", finish)

    return pair


def _ctrlrun(store: Any) -> Callable[[int], object]:
    def pair(number: int) -> object:
        key, action = f"pair-{number}", f"action-{number}"
        store.reserve_effect(key, action)
        store.begin_execution(key, action)
        return store.commit_effect(key, action, RESULT)

    return pair


_NUMBERS = itertools.count()


def _measure(pair: Callable[[int], object], seconds: float) -> Callable[[], float]:
    return lambda: _rate(pair, seconds)


def _rate(pair: Callable[[int], object], seconds: float) -> float:
    """Pairs a second, one after the other; no key is used twice."""
    started, done = time.perf_counter(), 0
    while time.perf_counter() - started < seconds:
        pair(next(_NUMBERS))
        done += 1
    return done / (time.perf_counter() - started)
