"""Races for an operation, over two isolates: many rounds, real concurrency."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from typing import Any

import httpx
import pytest

from helpers import Client, Json, Sql, acquired

pytestmark = pytest.mark.anyio
ROUNDS = 10


async def send(
    http: httpx.AsyncClient, number: int, run: Json, verb: str, step: str = "step", **members: Any
) -> httpx.Response:
    headers = {"Authorization": "Bearer alice", "X-Local-Isolate": str(number % 2)}
    body = json.dumps({"owner": run["owner"], **members})
    path = f"/v1/runs/{run['run_id']}/operations/{step}/{verb}"
    return await http.post(path, content=body, headers=headers)


@pytest.mark.parametrize("lapsed", [False, True])
async def test_of_16_concurrent_acquisitions_that_want_it_alone_one_gets_it(
    http: httpx.AsyncClient, client: Client, sql: Sql, lapsed: bool
) -> None:
    for _ in range(ROUNDS):
        run = client.started()
        if lapsed:
            acquired(client, run)
            sql("UPDATE fencepost_operations SET lease_expires_at_ms = 5 WHERE state = 'running'")
        members: Json = {"ttl_ms": 60_000, "exclusive": True}
        answers = await asyncio.gather(
            *[send(http, n, run, "acquire", **members) for n in range(16)]
        )
        seen = Counter(answer.json()["outcome"] for answer in answers)
        assert seen == {"acquired": 1, "operation_already_running": 15}


async def test_of_16_concurrent_acquisitions_that_share_all_hold_one_token(
    http: httpx.AsyncClient, client: Client
) -> None:
    for _ in range(ROUNDS):
        run = client.started()
        answers = await asyncio.gather(
            *[send(http, n, run, "acquire", ttl_ms=60_000) for n in range(16)]
        )
        bodies = [answer.json() for answer in answers]
        assert Counter(body["outcome"] for body in bodies) == {"acquired": 1, "shared": 15}
        assert len({body["lease"]["token"] for body in bodies}) == 1


@pytest.mark.parametrize("exclusive", [False, True])
@pytest.mark.parametrize("over", ["by time", "with its generation"])
async def test_no_acquisition_of_many_lapsed_steps_is_answered_with_a_lease_that_is_over(
    http: httpx.AsyncClient, client: Client, sql: Sql, over: str, exclusive: bool
) -> None:
    """All of them race for the head of one history, because each marks its step."""
    for _ in range(ROUNDS):
        run = client.started()
        steps = [f"step-{number}" for number in range(6)]
        before = {step: acquired(client, run, step)["lease"]["token"] for step in steps}
        past, lapse = (
            "lease_expires_at_ms = 5",
            "UPDATE fencepost_operations SET {} WHERE run_id = ?1",
        )
        sql(lapse.format(past if over == "by time" else "generation = 0"), run["run_id"])
        members = {"ttl_ms": 60_000, "exclusive": exclusive}
        answers = await asyncio.gather(
            *[send(http, n, run, "acquire", step, **members) for n, step in enumerate(steps * 3)]
        )
        for step, answer in zip(steps * 3, answers, strict=True):
            body = answer.json()
            if answer.status_code == 503:
                assert body["code"] == "CONTENDED"
            elif answer.status_code == 409:
                assert exclusive
                assert body["code"] == "OPERATION_ALREADY_RUNNING"
                assert body["operation"]["state"] == "running"
            else:
                now = client.get(f"/v1/runs/{run['run_id']}/operations/{step}").json()
                assert body["lease"] == now["lease"]
                assert body["lease"]["token"] != before[step]
        winners = Counter(
            step
            for step, answer in zip(steps * 3, answers, strict=True)
            if answer.json().get("outcome") == "acquired"
        )
        assert set(winners.values()) == {1}


async def test_an_acquisition_against_the_commit_never_erases_the_outcome(
    http: httpx.AsyncClient, client: Client
) -> None:
    for round in range(ROUNDS):
        run = client.started()
        token = acquired(client, run)["lease"]["token"]
        rivals = [
            send(http, n, run, "acquire", ttl_ms=60_000, preempt=n % 2 == 0) for n in range(6)
        ]
        commits = [send(http, n, run, "commit", token=token, outcome=n) for n in range(2)]
        order = commits + rivals if round % 2 else rivals[:3] + commits + rivals[3:]
        bodies = [answer.json() for answer in await asyncio.gather(*order)]
        won = [body for body in bodies if body["outcome"] == "committed"]
        found = client.get(f"/v1/runs/{run['run_id']}/operations/step").json()
        assert len(won) <= 1
        if won:
            assert found["operation"] == won[0]["operation"]
            replays = [body for body in bodies if body["outcome"] == "replayed"]
            assert all(body["operation"] == won[0]["operation"] for body in replays)
        else:
            assert found["operation"]["state"] == "running"
            assert found["lease"]["token"] != token
