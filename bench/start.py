"""Requests/s of the Python Worker beside a hand-written JavaScript Worker that does the same job.

`npm run bench`, or this script with a Python that has the repository's packages. Both Workers run
in one workerd process over one D1 database, and are measured in turns, so that whatever else the
machine does hits both. The budget (design 13) is a ratio of 0.55 for a new start.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import statistics
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

PROJECT = Path(__file__).resolve().parent.parent
NODE = PROJECT / "node_modules" / ".bin" / "node"
BUDGET = 0.55
CONNECTIONS = 8
WARM_UP_S = 2.0
AUTHORIZATION = "Bearer dev-token"  # what the runner configures when nothing else is
START = {
    "target": {"kind": "workflow", "id": "nightly-invoice"},
    "input": {
        "order": 48213,
        "customer": "Zoë Example",
        "lines": [{"sku": "A-100", "count": 2, "price": 19.99}, {"sku": "B-7", "count": 1}],
        "express": False,
    },
}


class Case(NamedTuple):
    """One kind of request; `requests` holds one text a connection."""

    name: str
    status: int
    requests: list[str]
    has_peer: bool


def main() -> None:
    options = _options()
    argument = json.dumps({"plan": start_plan(options.source), "source": str(options.source)})
    with _node("serve.mjs", argument) as server, _node("load.mjs") as load:
        urls = json.loads(_line(server))
        cases = _cases(urls)
        for case in cases:
            _measure_and_print(load, urls, case, options)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5, help="rounds of each Worker (default 5)")
    parser.add_argument("--seconds", type=float, default=2, help="length of a round (default 2)")
    parser.add_argument("--source", type=Path, default=PROJECT / "src", help="Python sources")
    options = parser.parse_args()
    if options.rounds < 1 or options.seconds <= 0:
        parser.error("rounds and seconds are positive")
    return options


# --- What the peer executes --------------------------------------------------------------


def start_plan(source: Path) -> list[dict[str, Any]]:
    """The batch of a new start: each statement's SQL, and its parameters by name or value.

    Built by the Worker's own code from a start whose every member is recognisable.
    """
    sys.path[:0] = [str(source), str(PROJECT / "python_modules")]
    from fencepost import reservation, starts
    from fencepost.decision import Start
    from fencepost.identifiers import Principal, Target
    from fencepost.runs import Lineage, Owner

    principal, target = Principal("@principal_kind", "@principal_id"), Target("@k", "@i", "@t")
    start = Start(
        key="@key",
        principal=principal,
        target=target,
        fingerprint="@fingerprint",
        input_json="@input_json",
        owner=Owner("@owner_host_id", -1, "@owner_nonce"),
        lease_ms=-2,
        parent_run_id="@parent_run_id",
        lineage=Lineage("@lineage_id", -3),
    )
    run_id, token = "@run_id", "@token"
    intent = reservation.Intent(start.key, principal, target, start.fingerprint, run_id)
    statements = [
        reservation.reserve_statement(intent, token, None),
        *starts.create_statements(start, run_id, token),
        *starts._read_statements(start.key, None),
    ]
    event = starts._created_event(start, run_id)
    names = {
        -1: "owner_pid",
        -2: "lease_ms",
        -3: "lineage_round",
        "@k": "target_kind",
        "@i": "target_id",
        "@t": "thread_id",
        event.hash: "event_hash",
        event.payload_json: "event_payload",
    }

    def parameter(value: Any) -> dict[str, Any]:
        if value in names:
            return {"name": names[value]}
        if isinstance(value, str) and value.startswith("@"):
            return {"name": value[1:]}
        return {"value": value}

    return [{"sql": sql, "params": list(map(parameter, params))} for sql, params in statements]


# --- Requests ----------------------------------------------------------------------------


def _cases(urls: dict[str, str]) -> list[Case]:
    """Also makes what they need: the tables, runs to keep alive, and runs that ended."""
    start, replay, heartbeat = [], [], []
    for number in range(CONNECTIONS):
        owner = {"host_id": "bench", "pid": number, "nonce": f"nonce-{number}"}
        alive = _send(urls["python"], f"alive-{number}", {**START, "owner": owner})
        ended = _send(urls["python"], f"ended-{number}", {**START, "owner": owner})
        path = f"/v1/runs/{ended['run']['run_id']}/transition"
        _send(urls["python"], None, {"owner": owner, "to": "completed", "result": 42}, path)
        start.append(_text("/v1/starts", START, "{key}"))
        replay.append(_text("/v1/starts", START, f"ended-{number}"))
        path = f"/v1/runs/{alive['run']['run_id']}/heartbeat"
        heartbeat.append(_text(path, {"owner": owner}))
    for key in ("shape-{}", "ended-0"):
        answers = [_send(url, key.format(name), START) for name, url in urls.items()]
        if _shape(answers[0]) != _shape(answers[1]):
            sys.exit(f"The two Workers answer differently: {json.dumps(answers, indent=1)}")
    return [
        Case("start, a new key", 201, start, has_peer=True),
        Case("start, replayed", 200, replay, has_peer=True),
        Case("heartbeat", 200, heartbeat, has_peer=False),
    ]


def _text(path: str, body: Any, key: str | None = None) -> str:
    """An HTTP request, one character a byte."""
    content = json.dumps(body)
    return "\r\n".join(
        [
            f"POST {path} HTTP/1.1",
            "Host: 127.0.0.1",
            f"Authorization: {AUTHORIZATION}",
            "Content-Type: application/json",
            f"Content-Length: {len(content)}",
            *([] if key is None else [f"Idempotency-Key: {key}"]),
            "",
            content,
        ]
    )


def _send(url: str, key: str | None, body: Any, path: str = "/v1/starts") -> Any:
    headers = {"Authorization": AUTHORIZATION, "Content-Type": "application/json"}
    if key is not None:
        headers["Idempotency-Key"] = key
    connection = http.client.HTTPConnection(url.removeprefix("http://"))
    with contextlib.closing(connection):
        connection.request("POST", path, json.dumps(body), headers)
        response = connection.getresponse()
        answer = json.load(response)
    if response.status not in (200, 201):
        sys.exit(f"POST {path} was answered {response.status}: {json.dumps(answer)}")
    return answer


def _shape(value: Any) -> Any:
    """The members of a JSON value, and the type of each."""
    if isinstance(value, dict):
        return {name: _shape(item) for name, item in value.items()}
    return [_shape(item) for item in value] if isinstance(value, list) else type(value)


# --- Measuring ---------------------------------------------------------------------------


def _measure_and_print(
    load: subprocess.Popen[str], urls: dict[str, str], case: Case, options: argparse.Namespace
) -> None:
    measured = ["python", "javascript"] if case.has_peer else ["python"]
    for name in measured:
        _round(load, urls[name], case, f"warm-up-{name}-", WARM_UP_S)
    rounds: dict[str, list[dict[str, float]]] = {name: [] for name in measured}
    for number in range(options.rounds):
        for name in measured:
            key = f"{name}-{number}-"
            rounds[name].append(_round(load, urls[name], case, key, options.seconds))
    rounds_text = f"{options.rounds} rounds × {options.seconds:g} s"
    print(f"\n{case.name}: {CONNECTIONS} connections, {rounds_text}; medians over the rounds")
    header = "requests/s", "lowest", "highest", "p50 ms", "p99 ms"
    print(f"  {'Worker':<12}" + "".join(f"{name:>12}" for name in header))
    for name, results in rounds.items():
        rates = [result["rate"] for result in results]
        p50, p99 = (statistics.median(r[part] for r in results) for part in ("p50_ms", "p99_ms"))
        print(
            f"  {name:<12}{statistics.median(rates):>12.0f}{min(rates):>12.0f}{max(rates):>12.0f}"
            f"{p50:>12.2f}{p99:>12.2f}"
        )
    if case.has_peer:
        pairs = zip(rounds["python"], rounds["javascript"], strict=True)
        ratios = [python["rate"] / javascript["rate"] for python, javascript in pairs]
        budget = f", budget at least {BUDGET}" if case.status == 201 else ""
        print(
            f"  ratio python/javascript: {statistics.median(ratios):.2f} "
            f"(rounds {min(ratios):.2f} to {max(ratios):.2f}{budget})"
        )
    sys.stdout.flush()


def _round(
    load: subprocess.Popen[str], url: str, case: Case, key: str, seconds: float
) -> dict[str, float]:
    job = {"url": url, "requests": case.requests, "key": key}
    _print_to(load, json.dumps({**job, "status": case.status, "seconds": seconds}))
    result: dict[str, Any] = json.loads(_line(load))
    if "error" in result:
        sys.exit(f"{case.name}: {result['error']}")
    return result


@contextlib.contextmanager
def _node(script: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A Node process that ends when its standard input closes."""
    command = [str(NODE), str(PROJECT / "bench" / script), *arguments]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=PROJECT
    )
    try:
        yield process
    finally:
        process.communicate()  # closes its standard input


def _print_to(process: subprocess.Popen[str], line: str) -> None:
    print(line, file=process.stdin, flush=True)


def _line(process: subprocess.Popen[str]) -> str:
    line = process.stdout.readline() if process.stdout else ""
    if not line:
        sys.exit("A process of the benchmark ended early; the reason stands above.")
    return line


if __name__ == "__main__":
    main()
