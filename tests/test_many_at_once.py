"""48 verbs of one run at the same moment, over two isolates: a race never reaches a caller.

The database is read afterwards: it has one event for each verb, in one line.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections import Counter
from collections.abc import Callable

import httpx
import pytest

from helpers import Client, Json, Sql, acquired, new_key, round_trips

pytestmark = pytest.mark.anyio
AT_ONCE = 48

# The path below the run, and the body, of the n-th request.
Request = Callable[[Json, int], tuple[str, Json]]


def append(run: Json, n: int) -> tuple[str, Json]:
    return "events", {"type": "noted", "payload": n}


def append_as_owner(run: Json, n: int) -> tuple[str, Json]:
    return "events", {"type": "noted", "payload": n, "owner": run["owner"]}


def checkpoint(run: Json, n: int) -> tuple[str, Json]:
    return "transition", {"to": "running", "state": n, "owner": run["owner"]}


def bind(run: Json, n: int) -> tuple[str, Json]:
    binding = {"gate": "a", "revision": n + 1, "receipt_hash": "0" * 64}
    return "bindings", {"owner": run["owner"], "bindings": [binding]}


def interrupt(run: Json, n: int) -> tuple[str, Json]:
    return f"operations/step-{n}/interrupt", {"owner": run["owner"], "token": run["tokens"][n]}


def acquire_lapsed(run: Json, n: int) -> tuple[str, Json]:
    return f"operations/lapsed-{n}/acquire", {"owner": run["owner"], "ttl_ms": 60_000}


def bind_change(run: Json, n: int) -> tuple[str, Json]:
    """The same change: the first binds it, to the others it is bound."""
    return "bind-change", {"owner": run["owner"], "change": run["change"]}


def mixed(run: Json, n: int) -> tuple[str, Json]:
    kinds = (append, append_as_owner, checkpoint, bind, interrupt, acquire_lapsed, bind_change)
    return kinds[n % len(kinds)](run, n)


def one_event_each(request_of: Request) -> int:
    """How many events they append."""
    if request_of is bind_change:
        return 1
    changes = [n for n in range(AT_ONCE) if mixed(SOME_RUN, n)[0] == "bind-change"]
    return AT_ONCE - len(changes) + 1 if request_of is mixed else AT_ONCE


SOME_RUN: Json = {"owner": {}, "change": "", "tokens": [""] * AT_ONCE}


def prepared(client: Client, sql: Sql, request_of: Request) -> Json:
    """A design run with the steps that the requests need: leased, or with a lease that is over."""
    subject = {"stage": "design", "provisional": new_key("design")}
    run = client.started(subject=subject)
    tokens = [""] * AT_ONCE
    for n in range(AT_ONCE):
        path, _ = request_of(SOME_RUN, n)
        if path.startswith("operations/"):
            step = path.split("/")[1]
            tokens[n] = acquired(client, run, step)["lease"]["token"]
    sql(
        "UPDATE fencepost_operations SET lease_expires_at_ms = 1 "
        "WHERE run_id = ?1 AND operation_id LIKE 'lapsed-%'",
        run["run_id"],
    )
    return {**run, "tokens": tokens, "change": new_key("change")}


async def send(http: httpx.AsyncClient, n: int, path: str, body: Json) -> httpx.Response:
    headers = {"Authorization": "Bearer alice", "X-Local-Isolate": str(n % 2)}
    return await http.post(path, content=json.dumps(body), headers=headers)


def history(sql: Sql, run: Json) -> list[Json]:
    return sql(
        "SELECT sequence, type, prior_hash, hash FROM fencepost_events WHERE run_id = ?1 "
        "ORDER BY sequence",
        run["run_id"],
    )


def assert_one_line(events: list[Json]) -> None:
    assert [event["sequence"] for event in events] == list(range(1, len(events) + 1))
    for before, after in itertools.pairwise(events):
        assert after["prior_hash"] == before["hash"]


@pytest.mark.parametrize(
    "request_of",
    [
        append,
        checkpoint,
        bind,
        interrupt,
        acquire_lapsed,
        bind_change,
        mixed,
    ],
)
async def test_48_verbs_at_once_over_2_isolates_all_win_and_the_history_is_one_line(
    http: httpx.AsyncClient, client: Client, sql: Sql, request_of: Request
) -> None:
    run = prepared(client, sql, request_of)
    asked = [request_of(run, n) for n in range(AT_ONCE)]
    answers = await asyncio.gather(
        *[send(http, n, f"/v1/runs/{run['run_id']}/{p}", b) for n, (p, b) in enumerate(asked)]
    )
    trips = sorted(map(round_trips, answers))
    print(f"{request_of.__name__}: {trips[AT_ONCE // 2]} and at most {trips[-1]} trips")
    assert Counter(answer.status_code for answer in answers) == {200: AT_ONCE}
    events = history(sql, run)
    assert len(events) == 1 + one_event_each(request_of)
    assert_one_line(events)


@pytest.mark.parametrize("request_of", [append, checkpoint, bind])
async def test_a_stale_or_forged_head_hint_never_loses(client: Client, request_of: Request) -> None:
    run = client.started()
    for n, hint in enumerate([run["head"], {"sequence": 900, "hash": "0" * 64}]):
        path, body = request_of(run, n)
        client.post(f"/v1/runs/{run['run_id']}/events", {"type": "noted"})
        answer = client.post(f"/v1/runs/{run['run_id']}/{path}", {**body, "head_hint": hint})
        assert answer.status_code == 200, answer.text
