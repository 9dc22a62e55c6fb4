"""What every section shares: processes, a client, rounds in turns, medians and ratios.

Rates are requests/s, times milliseconds. A ratio is made of two measurements of the same round,
one right after the other, and then the median of the rounds is taken: what the machine does
besides hits both. Nothing here measures a network, or a deployed Worker.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

PROJECT = Path(__file__).resolve().parent.parent
NODE = PROJECT / "node_modules" / ".bin" / "node"
IDLE_S = 2.0  # after which workerd may have closed a connection
AUTHORIZATION = "Bearer dev-token"  # what the runner configures when nothing else is
Json = dict[str, Any]


class Options(NamedTuple):
    """How long to measure: `seconds` is the length of a round, `sizes` are rows of a table.

    `moved`: how many runs are moved from one deployment to another.
    """

    rounds: int
    seconds: float
    sizes: list[int]
    source: Path
    moved: list[int]


def say(text: str) -> None:
    """Progress, apart from the results."""
    print(text, file=sys.stderr, flush=True)


# --- Numbers -----------------------------------------------------------------------------


class Spread(NamedTuple):
    """A median, with the lowest and the highest of what it was taken from."""

    median: float
    low: float
    high: float

    def text(self, digits: int = 2) -> str:
        return f"{self.median:.{digits}f} ({self.low:.{digits}f}–{self.high:.{digits}f})"


def spread(values: Sequence[float]) -> Spread:
    return Spread(statistics.median(values), min(values), max(values))


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> Spread:
    """Round by round: both were measured within the same few seconds."""
    return spread([a / b for a, b in zip(ours, theirs, strict=True)])


def in_turns(rounds: int, measures: Mapping[str, Callable[[], Any]]) -> dict[str, list[Any]]:
    """The results of each measure, a round of all of them at a time."""
    results: dict[str, list[Any]] = {name: [] for name in measures}
    for _ in range(rounds):
        for name, measure in measures.items():
            results[name].append(measure())
    return results


# --- Processes ---------------------------------------------------------------------------


@contextlib.contextmanager
def node(script: str, *arguments: str, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """A Node process that ends when its standard input closes."""
    command = [str(NODE), str(PROJECT / "bench" / script), *arguments]
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=PROJECT,
        env={**os.environ, **environment},
    )
    try:
        yield process
    finally:
        process.communicate()  # closes its standard input


def read_line(process: subprocess.Popen[str]) -> str:
    line = process.stdout.readline() if process.stdout else ""
    if not line:
        sys.exit("A process of the benchmark ended early; the reason stands above.")
    return line


class Served(NamedTuple):
    """Workers that are up, and the workerd process that runs them."""

    url: str
    peer: str | None
    empty: str
    pid: int


@contextlib.contextmanager
def serve(
    plans: Json | None = None, heap_max_mb: int | None = None, **runner: Any
) -> Iterator[Served]:
    """The Worker with settings of `createRunner`, and its peer if there are `plans` for it.

    `heap_max_mb`: what JavaScript may hold in an isolate; without it V8 lets garbage lie.
    """
    settings = {name: str(v) if isinstance(v, Path) else v for name, v in runner.items()}
    argument = json.dumps({"runner": settings, "plans": plans})
    flags = {"MINIFLARE_WORKERD_V8_FLAGS": f"--max-heap-size={heap_max_mb}"} if heap_max_mb else {}
    with node("serve.mjs", argument, **flags) as process:
        addresses = json.loads(read_line(process))
        yield Served(**addresses, pid=_workerd(process.pid))


def _workerd(parent: int) -> int:
    """The process that runs the Workers; 0 where there is no /proc."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            name, _, rest = stat.read_text().partition(")")
            if name.endswith("(workerd") and int(rest.split()[1]) == parent:
                return int(stat.parent.name)
    return 0


def cpu_ms(pid: int) -> float:
    """CPU time of a process so far, all threads, user and system; 0 where there is no /proc."""
    if pid == 0:
        return 0.0
    tasks = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(task.read_text().split()[0]) for task in tasks) / 1e6


# --- Load --------------------------------------------------------------------------------


class Load:
    """Makes many requests at once, outside this process (load.mjs)."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def sustain(
        self, url: str, requests: list[Json], status: int, seconds: float, key: str = ""
    ) -> Json:
        """One connection a request, each sending it again and again for `seconds`."""
        job = {"url": url, "requests": requests, "status": status, "key": key}
        return self._run({**job, "seconds": seconds})

    def burst(self, url: str, bursts: list[list[Json]], key: str = "") -> Json:
        """One connection a request of a burst; all requests of a burst at the same time."""
        return self._run({"url": url, "bursts": bursts, "key": key})

    def _run(self, job: Json) -> Json:
        print(json.dumps(job), file=self._process.stdin, flush=True)
        result: Json = json.loads(read_line(self._process))
        if "error" in result:
            sys.exit(f"The load generator: {result['error'][:2000]}")
        return result


@contextlib.contextmanager
def load() -> Iterator[Load]:
    with node("load.mjs") as process:
        yield Load(process)


def request(
    method: str,
    path: str,
    body: Any = None,
    key: str | None = None,
    history: Json | None = None,
    token: str = AUTHORIZATION,
) -> Json:
    """A request for the load generator."""
    lines = [f"{method} {path} HTTP/1.1", "Host: 127.0.0.1", f"Authorization: {token}"]
    if key is not None:
        lines.append(f"Idempotency-Key: {key}")
    shape: Json = {"head": "\r\n".join(lines), "body": "" if body is None else json.dumps(body)}
    if history is not None:
        shape["body"] = shape["body"].replace('"{history}"', "{history}")
        shape["history"] = json.dumps(history)
    return shape


# --- One request at a time ---------------------------------------------------------------


class Answer(NamedTuple):
    """`ms` is the time that the client waited; trips and rows are the Worker's own count.

    `local_trips` are those that a delaying binding counted since this client's last request.
    """

    status: int
    body: Any
    headers: dict[str, str]
    ms: float
    local_trips: int

    @property
    def trips(self) -> int:
        return int(self._timing(r"(\d+) round trips"))

    @property
    def read(self) -> int:
        return int(self._timing(r"(\d+) read", "x-local-rows")) if self.trips else 0

    @property
    def written(self) -> int:
        return int(self._timing(r"(\d+) written", "x-local-rows")) if self.trips else 0

    @property
    def database_ms(self) -> float:
        """Whole milliseconds of a clock that moves in such steps: take means of many."""
        return float(self._timing(r"dur=(\d+)"))

    def _timing(self, pattern: str, header: str = "server-timing") -> str:
        """Rows are told by the Worker to operators alone, and by the runner to whom it is asked."""
        found = re.search(pattern, self.headers.get(header) or self.headers["server-timing"])
        assert found, self.headers
        return found[1]


class Client:
    """A keep-alive connection; ends the benchmark at an answer that is not as expected."""

    def __init__(self, url: str, token: str = AUTHORIZATION) -> None:
        self._connection = http.client.HTTPConnection(url.removeprefix("http://"), timeout=120)
        self._token = token
        self._local_trips = 0
        self._used_s = 0.0

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def send(
        self,
        method: str,
        path: str,
        body: Any = None,
        key: str | None = None,
        status: int = 200,
        **headers: str,
    ) -> Answer:
        all_headers = {"Authorization": self._token, **headers}
        if self._token != AUTHORIZATION:
            all_headers["X-Local-Rows"] = "1"
        if key is not None:
            all_headers["Idempotency-Key"] = key
        content = None if body is None else json.dumps(body)
        if time.monotonic() - self._used_s > IDLE_S:
            self._connection.close()  # which the next request opens again
        if self._connection.sock is None:
            self._connection.connect()
        started = time.perf_counter()
        self._connection.request(method, path, content, all_headers)
        response = self._connection.getresponse()
        data = response.read()
        ms, self._used_s = (time.perf_counter() - started) * 1000, time.monotonic()
        if response.status != status:
            sys.exit(f"{method} {path} was answered {response.status}: {data.decode()[:2000]}")
        names = {name.lower(): value for name, value in response.getheaders()}
        before, self._local_trips = self._local_trips, int(names.get("x-local-trips", 0))
        trips = self._local_trips - before
        return Answer(response.status, json.loads(data), names, ms, trips)

    def get(self, path: str, **options: Any) -> Answer:
        return self.send("GET", path, **options)

    def post(self, path: str, body: Any = None, **options: Any) -> Answer:
        return self.send("POST", path, {} if body is None else body, **options)

    def start(self, key: str, body: Json, status: int = 201) -> Answer:
        return self.post("/v1/starts", body, key=key, status=status)


START: Json = {
    "target": {"kind": "workflow", "id": "nightly-invoice"},
    "input": {
        "order": 48213,
        "customer": "Zoë Example",
        "lines": [{"sku": "A-100", "count": 2, "price": 19.99}, {"sku": "B-7", "count": 1}],
        "express": False,
    },
}


def owner(name: str) -> Json:
    return {"host_id": "bench", "pid": 1, "nonce": f"nonce-{name}"}


def owned(name: str, **members: Any) -> Json:
    """The body of a start by an owner of its own; the lease outlives the benchmark."""
    return {**START, "owner": owner(name), "lease_ms": 3_600_000, **members}
