"""The move of a deployment: how long it takes, and the memory of both Workers meanwhile.

`npm run move` between two Workers, each over a database of its own. What is moved is as
`bench.seed` writes it. Not measured: deployments that are far apart, where each page takes two
ways there and back; states of a megabyte, of which a page has one.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from bench import seed as seeds
from bench.measure import AUTHORIZATION, NODE, PROJECT, START, Client, Json, Options, say, serve
from bench.report import Section, Table
from bench.seed import Seed
from soak.worker_memory import HEAP_MAX_MB, rss_mb

FILES = "v3/d1/miniflare-D1DatabaseObject"
SAMPLE_EVERY_S = 0.5
THIRDS = ("first third", "second", "last")
TOKEN = AUTHORIZATION.removeprefix("Bearer ")


class Moved(NamedTuple):
    """`memory_mb`: the most that the source and the target held, in each third of the time."""

    runs: int
    rows: int
    seconds: float
    memory_mb: list[tuple[float, float]]


def run(options: Options) -> Section:
    header = (
        *("runs", "rows", "s", "rows/s"),
        *(f"{side}, MB: {third}" for side in ("source", "target") for third in THIRDS),
    )
    about = (
        "Prepare, seal, every row, finish, and the proof. Memory is what the process holds "
        "(Python, SQLite), the most of it in each third of the time. JavaScript may "
        f"hold {HEAP_MAX_MB} MB in an isolate: without a limit V8 lets garbage lie."
    )
    rows = [_row(_move(size, options)) for size in options.moved]
    return Section("move", "A move", [about, Table(header, rows)])


def _row(moved: Moved) -> list[str]:
    memory = [f"{mb:.0f}" for side in zip(*moved.memory_mb, strict=True) for mb in side]
    speed = f"{moved.rows / moved.seconds:,.0f}"
    return [f"{moved.runs:,}", f"{moved.rows:,}", f"{moved.seconds:.0f}", speed, *memory]


def _move(size: int, options: Options) -> Moved:
    say(f"  {size:,} runs")
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        old, new = Path(folder, "old"), Path(folder, "new")
        seeds.write(_file(old, options), Seed(size, time.time_ns() // 1_000_000))
        _provision(_file(new, options))
        settings: Json = {"source": options.source, "heap_max_mb": HEAP_MAX_MB}
        source = stack.enter_context(serve(**settings, persist=old))
        target = stack.enter_context(serve(**settings, persist=new))
        _lock(source.url)
        began = time.monotonic()
        with _sampled(source.pid, target.pid) as samples:
            proof = _command(source.url, target.url)
        seconds = time.monotonic() - began
    rows = sum(table["rows"] for table in proof["tables"].values())
    return Moved(size, rows, seconds, _thirds(samples))


def _file(folder: Path, options: Options) -> Path:
    """The file of a local D1, which a first start has created."""
    with serve(source=options.source, persist=folder) as served:
        Client(served.url).start("first", START)
    [file] = (path for path in (folder / FILES).glob("*.sqlite") if path.stem != "metadata")
    return file


def _provision(file: Path) -> None:
    """Make it a database that was never open, as docs/operations.md does."""
    with contextlib.closing(sqlite3.connect(file, isolation_level=None)) as database:
        tables = database.execute(
            "SELECT name FROM sqlite_schema WHERE type = 'table' AND name LIKE 'fencepost_%'"
        ).fetchall()
        for (table,) in tables:
            database.execute(f"DROP TABLE {table}")
        database.executescript((PROJECT / "schema" / "schema.sql").read_text())
        # As schema/seed-target.sql, whose clock SQLite has only from 3.42 on.
        database.execute(
            "INSERT INTO fencepost_fence (id, state, revision, updated_at_ms) "
            "VALUES ('deployment', 'importing', 0, ?)",
            [time.time_ns() // 1_000_000],
        )


def _lock(url: str) -> None:
    client = Client(url)
    for expected, next in (("open", "draining"), ("draining", "migration-locked")):
        client.send("POST", "/v1/fence/transitions", {"expected": expected, "next": next})


def _command(old: str, new: str) -> Json:
    command = [str(NODE), str(PROJECT / "client" / "move.mjs"), "--from", old, "--to", new]
    environment = {**os.environ, "FENCEPOST_TOKEN": TOKEN}
    done = subprocess.run(command, stdout=subprocess.PIPE, env=environment, check=True)
    proof: Json = json.loads(done.stdout)
    return proof


@contextlib.contextmanager
def _sampled(*pids: int) -> Iterator[list[tuple[float, ...]]]:
    """What each process holds, in MB, again and again."""
    samples: list[tuple[float, ...]] = []
    over = threading.Event()

    def look() -> None:
        while len(samples) < len(THIRDS) or not over.wait(SAMPLE_EVERY_S):
            samples.append(tuple(rss_mb(pid) or 0.0 for pid in pids))

    looking = threading.Thread(target=look)
    looking.start()
    try:
        yield samples
    finally:
        over.set()
        looking.join()


def _thirds(samples: list[tuple[float, ...]]) -> list[tuple[float, float]]:
    third = len(samples) // 3
    parts = (samples[:third], samples[third : 2 * third], samples[2 * third :])
    return [(max(s for s, _ in part), max(t for _, t in part)) for part in parts]
