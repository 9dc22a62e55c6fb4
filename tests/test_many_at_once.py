"""24 verbs of one run at the same moment, over two isolates: a race never reaches a caller.

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

from helpers import Client, Json, Sql, acquired

pytestmark = pytest.mark.anyio
AT_ONCE = 24

# The path below the run, and the body, of the n-th request. `owner` is the run's.
Request = Callable[[Json, int], tuple[str, Json]]


def append(owner: Json, n: int) -> tuple[str, Json]:
    return "events", {"type": "noted", "payload": n}


def append_as_owner(owner: Json, n: int) -> tuple[str, Json]:
    return "events", {"type": "noted", "payload": n, "owner": owner}


def checkpoint(owner: Json, n: int) -> tuple[str, Json]:
    return "transition", {"to": "running", "state": n, "owner": owner}


def bind(owner: Json, n: int) -> tuple[str, Json]:
    binding = {"gate": "a", "revision": n + 1, "receipt_hash": "0" * 64}
    return "bindings", {"owner": owner, "bindings": [binding]}


def mixed(owner: Json, n: int) -> tuple[str, Json]:
    return (append, append_as_owner, checkpoint, bind)[n % 4](owner, n)


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


@pytest.mark.parametrize("request_of", [append, append_as_owner, checkpoint, bind, mixed])
async def test_24_verbs_at_once_over_2_isolates_all_win_and_the_history_is_one_line(
    http: httpx.AsyncClient, client: Client, sql: Sql, request_of: Request
) -> None:
    run = client.started()
    asked = [request_of(run["owner"], n) for n in range(AT_ONCE)]
    answers = await asyncio.gather(
        *[send(http, n, f"/v1/runs/{run['run_id']}/{p}", b) for n, (p, b) in enumerate(asked)]
    )
    assert Counter(answer.status_code for answer in answers) == {200: AT_ONCE}
    events = history(sql, run)
    assert len(events) == 1 + AT_ONCE
    assert_one_line(events)


async def test_24_acquires_of_lapsed_steps_at_once_all_win_and_mark_each_once(
    http: httpx.AsyncClient, client: Client, sql: Sql
) -> None:
    run = client.started()
    for n in range(AT_ONCE):
        acquired(client, run, f"step-{n}")
    sql("UPDATE fencepost_operations SET lease_expires_at_ms = 1 WHERE run_id = ?1", run["run_id"])
    path = f"/v1/runs/{run['run_id']}/operations/"
    body = {"owner": run["owner"], "ttl_ms": 60_000}
    answers = await asyncio.gather(
        *[send(http, n, f"{path}step-{n}/acquire", body) for n in range(AT_ONCE)]
    )
    assert Counter(answer.json()["outcome"] for answer in answers) == {"acquired": AT_ONCE}
    events = history(sql, run)
    assert Counter(event["type"] for event in events[1:]) == {"operation-interrupted": AT_ONCE}
    assert_one_line(events)


@pytest.mark.parametrize("request_of", [append, checkpoint, bind])
async def test_a_stale_or_forged_head_hint_never_loses(client: Client, request_of: Request) -> None:
    run = client.started()
    for n, hint in enumerate([run["head"], {"sequence": 900, "hash": "0" * 64}]):
        path, body = request_of(run["owner"], n)
        client.post(f"/v1/runs/{run['run_id']}/events", {"type": "noted"})
        answer = client.post(f"/v1/runs/{run['run_id']}/{path}", {**body, "head_hint": hint})
        assert answer.status_code == 200, answer.text
