"""Waiting for the end of a run: who may, what it looks at, and how it ends."""

from __future__ import annotations

import asyncio
import json
import re
import select
import socket
import struct
import time
from contextlib import ExitStack
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from fencepost import limits, snapshot
from helpers import Client, Json, Sql, a_start, connect_async, new_key

MORE = 5
ALICE = {"Authorization": "Bearer alice", "X-Local-Isolate": "0", "Connection": "close"}


def waiting_start(http: httpx.AsyncClient, key: str, wait_s: int) -> Any:
    # In the isolate that the test above did not fill: those who hung up count for a while.
    other = {**ALICE, "X-Local-Isolate": "1"}
    headers = {**other, "Idempotency-Key": key, "Prefer": f"wait={wait_s}"}
    return http.post("/v1/starts", content=json.dumps(a_start()), headers=headers)


def wait(client: Client, run: Json, seconds: str = "1", **headers: str) -> httpx.Response:
    return client.start(run["key"], None, Prefer=f"wait={seconds}", **headers)


def wait_without_reading(url: str, run: Json) -> socket.socket:
    """A request that waits for 30 seconds. Closed, its connection is reset: the client is gone."""
    place = urlsplit(url)
    line = socket.create_connection((place.hostname, place.port))
    line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    head = "".join(f"{name}: {value}\r\n" for name, value in ALICE.items())
    target = f"/v1/runs/{run['run_id']}?wait=30"
    line.sendall(f"GET {target} HTTP/1.1\r\nHost: a\r\n{head}\r\n".encode())
    return line


def test_256_requests_wait_in_an_isolate_and_no_more_until_some_are_abandoned(
    client: Client, bridge: dict[str, str]
) -> None:
    run, isolate = client.started(lease_ms=60_000), {"X-Local-Isolate": "0"}
    with ExitStack() as open_lines:
        lines = [
            open_lines.enter_context(wait_without_reading(bridge["url"], run))
            for _ in range(limits.WAITERS_MAX + MORE)
        ]
        while len(select.select(lines, [], [], 1)[0]) < MORE:  # those that may not wait
            pass
        refused = wait(client, run, **isolate)
        assert (refused.status_code, refused.json()["code"]) == (503, "TOO_MANY_WAITERS")
        assert (refused.json()["retry"], refused.headers["Retry-After"]) == ("same-key", "1")
        # Who does not wait, or has nothing to wait for, is answered; and all in another isolate.
        assert client.start(run["key"], None, **isolate).json()["code"] == "START_PENDING"
        assert client.start(new_key(), None, Prefer="wait=30", **isolate).status_code == 201
        assert client.get("/v1/health", headers=isolate).status_code == 200
        assert wait(client, run, X_Local_Isolate="1").json()["code"] == "START_PENDING"
    while (answer := wait(client, run, **isolate)).json()["code"] == "TOO_MANY_WAITERS":
        time.sleep(0.2)
    assert answer.json()["code"] == "START_PENDING"


@pytest.mark.anyio
async def test_all_who_wait_are_answered_with_the_end(
    client: Client, bridge: dict[str, str]
) -> None:
    run = client.started()
    async with connect_async(bridge["url"]) as http:
        waits = [asyncio.ensure_future(waiting_start(http, run["key"], 30)) for _ in range(20)]
        await asyncio.sleep(0.3)
        client.finish(run, result="done").raise_for_status()
        answers = await asyncio.gather(*waits)
    assert {answer.status_code for answer in answers} == {200}
    assert {answer.json()["run"]["result"] for answer in answers} == {"done"}


def test_a_look_of_a_waiting_request_reads_no_content() -> None:
    """Only its length, for which SQLite reads the head of the row alone."""
    columns = re.findall(r"content\.(\w+)", snapshot._GLANCE)
    assert columns == re.findall(r"octet_length\(content\.(\w+)\)", snapshot._GLANCE)


def test_a_start_that_answers_no_content_reads_none(client: Client, sql: Sql) -> None:
    run = client.started()
    # It would be refused, if it were read.
    sql("PRAGMA ignore_check_constraints = 1")
    sql("UPDATE fencepost_snapshots SET state = 'not JSON' WHERE run_id = ?1", run["run_id"])
    assert client.start(run["key"]).json()["code"] == "START_PENDING"


def test_whoever_waits_for_a_run_that_lapses_is_told_so_at_once(client: Client, sql: Sql) -> None:
    run = client.started(lease_ms=1000)
    answer = wait(client, run, "30")
    assert answer.json()["code"] == "START_UNRESOLVABLE"


def test_whoever_waits_for_a_run_that_is_released_does_not_start_it(client: Client) -> None:
    run = client.started(lease_ms=1000)
    assert wait(client, run).status_code == 409
    released = client.started()
    client.post(f"/v1/starts/{released['key']}/release", {"owner": released["owner"]})
    assert wait(client, released).status_code == 201  # it did not wait
