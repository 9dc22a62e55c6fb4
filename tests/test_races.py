"""Races, proved over two isolates: many rounds, real concurrency, one database."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections import Counter

import httpx
import pytest

from helpers import Client, Json, Sql, a_start, an_owner, new_key

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("sql")]
ROUNDS = 10


async def send(
    http: httpx.AsyncClient, number: int, path: str, body: Json, key: str | None = None
) -> httpx.Response:
    headers = {"Authorization": "Bearer alice", "X-Local-Isolate": str(number % 2)}
    if key is not None:
        headers["Idempotency-Key"] = key
    return await http.post(path, content=json.dumps(body), headers=headers)


async def test_of_50_concurrent_starts_of_one_key_over_2_isolates_one_starts(
    http: httpx.AsyncClient, sql: Sql
) -> None:
    for _ in range(ROUNDS):
        key = new_key()
        starts = [send(http, n, "/v1/starts", a_start(), key) for n in range(50)]
        answers = await asyncio.gather(*starts)
        seen = Counter(answer.status_code for answer in answers)
        assert seen == {201: 1, 409: 49}
        runs = {body.get("run_id") or body["run"]["run_id"] for body in (a.json() for a in answers)}
        assert len(runs) == 1
        held = sql("SELECT run_id FROM fencepost_reservations WHERE key = ?1", key)
        assert {row["run_id"] for row in held} == runs
        for table in ("runs", "snapshots", "events", "ownership"):
            [count] = sql(
                f"SELECT COUNT(*) AS n FROM fencepost_{table} WHERE run_id = ?1", runs.copy().pop()
            )
            assert count == {"n": 1}


async def test_two_different_bodies_under_one_key_start_one_and_refuse_the_other(
    http: httpx.AsyncClient,
) -> None:
    for _ in range(ROUNDS):
        key = new_key()
        bodies = [a_start(input={"cents": n % 2}) for n in range(20)]
        answers = await asyncio.gather(
            *[send(http, n // 2, "/v1/starts", body, key) for n, body in enumerate(bodies)]
        )
        [winner] = [n for n, answer in enumerate(answers) if answer.status_code == 201]
        for n, answer in enumerate(answers):
            same_body = n % 2 == winner % 2
            expected = 201 if n == winner else 409 if same_body else 422
            assert answer.status_code == expected
            if expected == 422:
                assert answer.json()["code"] == "START_INPUT_MISMATCH"


async def test_of_many_processes_that_own_a_waiting_run_one_gets_it(
    http: httpx.AsyncClient, client: Client, sql: Sql
) -> None:
    for _ in range(ROUNDS):
        run = client.started()
        client.finish(run, "suspended").raise_for_status()
        path = f"/v1/runs/{run['run_id']}/own"
        answers = await asyncio.gather(
            *[send(http, n, path, {"owner": an_owner(f"owner-{n}")}) for n in range(16)]
        )
        [winner] = [answer.json()["run"] for answer in answers if answer.status_code == 200]
        assert winner["generation"] == 2
        losses = {answer.json()["outcome"] for answer in answers if answer.status_code == 409}
        assert losses == {"heartbeat_fresh"}
        facts = sql(
            "SELECT type FROM fencepost_ownership WHERE run_id = ?1 ORDER BY sequence",
            run["run_id"],
        )
        types = [fact["type"] for fact in facts]
        assert types == ["activated", "released", "claimed", "activated"]


async def test_of_many_takeovers_of_a_lapsed_run_one_wins_and_the_old_owner_is_fenced(
    http: httpx.AsyncClient, client: Client, sql: Sql
) -> None:
    for _ in range(ROUNDS):
        run = client.started()
        sql.lapse(run["run_id"])
        evidence = {"kind": "lease-expired", "expected_owner": run["owner"]}
        path = f"/v1/runs/{run['run_id']}/own"
        bodies = [{"owner": an_owner(f"thief-{n}"), "evidence": evidence} for n in range(12)]
        answers = await asyncio.gather(*[send(http, n, path, b) for n, b in enumerate(bodies)])
        assert Counter(a.status_code for a in answers) == {200: 1, 409: 11}
        assert client.verb(run, "heartbeat").json()["outcome"] == "fence_lost"
        assert client.finish(run).json()["outcome"] == "fence_lost"


async def test_concurrent_transitions_of_one_run_make_one_linear_history(
    http: httpx.AsyncClient, client: Client, sql: Sql
) -> None:
    run = client.started()
    body = {"owner": run["owner"], "to": "running", "state": 1}
    path = f"/v1/runs/{run['run_id']}/transition"
    answers = await asyncio.gather(*[send(http, n, path, body) for n in range(24)])
    won = sum(answer.status_code == 200 for answer in answers)
    assert won >= 1
    assert all(a.json().get("code") == "CONTENDED" for a in answers if a.status_code != 200)
    events = sql(
        "SELECT sequence, prior_hash, hash FROM fencepost_events WHERE run_id = ?1 ORDER BY 1",
        run["run_id"],
    )
    assert [event["sequence"] for event in events] == list(range(1, won + 2))
    for before, after in itertools.pairwise(events):
        assert after["prior_hash"] == before["hash"]


async def test_of_concurrent_starts_of_a_released_key_one_starts_the_same_run_again(
    http: httpx.AsyncClient, client: Client
) -> None:
    for _ in range(ROUNDS):
        run = client.started()
        released = client.post(f"/v1/starts/{run['key']}/release", {"owner": run["owner"]})
        assert released.status_code == 200
        answers = await asyncio.gather(
            *[send(http, n, "/v1/starts", a_start(), run["key"]) for n in range(12)]
        )
        assert Counter(a.status_code for a in answers) == {201: 1, 409: 11}
        [again] = [answer.json() for answer in answers if answer.status_code == 201]
        assert again["run"]["run_id"] == run["run_id"]
        assert (again["run"]["generation"], again["reservation"]["attempt"]) == (2, 2)
