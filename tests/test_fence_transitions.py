"""Moving the fence over HTTP."""

from __future__ import annotations

import asyncio
import itertools
import json
from typing import Any

import httpx
import pytest

from fencepost.fence import OPERATED
from helpers import Client, Json, Sql, a_start, an_owner, connect_async, new_key, round_trips

STATES = [str(state) for state in OPERATED]


def move(
    client: Client, expected: str, next: str, key: str | None = None, **members: Any
) -> httpx.Response:
    headers = {} if key is None else {"Idempotency-Key": key}
    body = {"expected": expected, "next": next, **members}
    if next == "proof-only":
        body.setdefault("proof_key", "proof")
    return client.as_("operator").post("/v1/fence/transitions", body, headers=headers)


@pytest.mark.parametrize(("expected", "next"), list(itertools.product(STATES, STATES)))
def test_any_pair_of_states_is_legal(client: Client, sql: Sql, expected: str, next: str) -> None:
    sql.fence(expected, proof_key="old" if expected == "proof-only" else None, revision=7)
    answer = move(client, expected, next)
    assert answer.status_code == 200, answer.text
    body = answer.json()
    assert (body["state"], body["revision"], body["proof_run_id"]) == (next, 8, None)
    assert body["proof_key"] == ("proof" if next == "proof-only" else None)
    assert client.get("/v1/fence").json()["updated_at_ms"] == body["updated_at_ms"]
    assert round_trips(answer) == 1


def test_the_loser_is_told_the_state_that_the_winner_left(client: Client, sql: Sql) -> None:
    sql.fence("open", revision=3)
    move(client, "open", "draining").raise_for_status()
    before = sql.dump()
    answer = move(client, "open", "migration-locked")
    problem = answer.json()
    assert (answer.status_code, problem["code"]) == (409, "FENCE_CAS_CONFLICT")
    assert (problem["state"], problem["revision"], problem["retry"]) == ("draining", 4, "never")
    assert sql.dump() == before


def test_a_revision_that_is_not_the_present_one_loses(client: Client, sql: Sql) -> None:
    sql.fence("open", revision=3)
    assert move(client, "open", "draining", revision=2).json()["code"] == "FENCE_CAS_CONFLICT"
    assert move(client, "open", "draining", revision=3).json()["revision"] == 4


def test_a_fence_that_was_never_provisioned_is_moved_from_open(
    client: Client, empty_database: Sql
) -> None:
    lost = move(client, "draining", "open")
    assert (lost.status_code, lost.json()["state"]) == (409, "open")
    assert empty_database("SELECT name FROM sqlite_master WHERE name LIKE 'fencepost%'") == []
    answer = move(client, "open", "draining", revision=0)
    assert (answer.status_code, answer.json()["revision"]) == (200, 1)
    assert client.start(new_key()).json()["code"] == "EXECUTION_FENCED"


def test_a_retry_with_the_same_key_converges_on_the_same_answer(client: Client, sql: Sql) -> None:
    key, proof = new_key(), new_key("proof")
    first = move(client, "open", "proof-only", key, proof_key=proof)
    run = client.start(proof).json()["run"]
    before = sql.dump()
    retry = move(client, "open", "proof-only", key, proof_key=proof)
    assert retry.status_code == 200
    assert (retry.json(), retry.headers["Idempotent-Replayed"]) == (first.json(), "true")
    assert client.as_("operator").get("/v1/fence").json()["proof_run_id"] == run["run_id"]
    assert sql.dump() == before


def test_a_retry_converges_when_the_first_reply_was_lost(client: Client, sql: Sql) -> None:
    sql.fence("open", revision=1)
    key, operator = new_key(), client.as_("operator")
    body = {"expected": "open", "next": "draining"}
    headers = {"Idempotency-Key": key, "X-Local-Fault": "lost,lost"}
    lost = operator.post("/v1/fence/transitions", body, headers=headers)
    assert lost.json()["code"] == "WRITE_OUTCOME_UNKNOWN"
    [moved] = sql("SELECT revision, updated_at_ms FROM fencepost_fence")
    retry = move(client, "open", "draining", key).json()
    assert (retry["revision"], retry["updated_at_ms"]) == (2, moved["updated_at_ms"])
    assert len(sql("SELECT 1 FROM fencepost_audit WHERE action = 'fence-transition'")) >= 1


def test_a_late_retry_of_a_keyed_command_never_acts_again(client: Client, sql: Sql) -> None:
    key = new_key()
    first = move(client, "open", "draining", key)
    for back in range(3):
        move(client, "draining", "open", new_key()).raise_for_status()
        before = sql.dump()
        retry = move(client, "open", "draining", key)
        assert (retry.status_code, retry.json()) == (200, first.json())
        assert retry.headers["Idempotent-Replayed"] == "true"
        assert sql.dump() == before
        if back < 2:
            move(client, "open", "draining", new_key()).raise_for_status()


def test_the_same_key_for_another_command_is_refused(client: Client, sql: Sql) -> None:
    key = new_key()
    move(client, "open", "draining", key).raise_for_status()
    before = sql.dump()
    answer = move(client, "draining", "open", key)
    assert (answer.status_code, answer.json()["code"]) == (422, "IDEMPOTENCY_KEY_REUSED")
    assert sql.dump() == before


@pytest.mark.parametrize(
    "body",
    [
        {"expected": "open", "next": "proof-only"},
        {"expected": "open", "next": "draining", "proof_key": "k"},
        {"expected": "open", "next": "ajar"},
        {"expected": "ajar", "next": "open"},
        {"expected": "open"},
        {"expected": "open", "next": "draining", "revision": -1},
        {"expected": "open", "next": "proof-only", "proof_key": "a b"},
        {"expected": "open", "next": "draining", "more": 1},
    ],
    ids=str,
)
def test_an_invalid_command_does_not_move_the_fence(client: Client, sql: Sql, body: Json) -> None:
    before = sql.dump()
    answer = client.as_("operator").post("/v1/fence/transitions", body)
    assert (answer.status_code, answer.json()["code"]) == (400, "INVALID_REQUEST")
    assert sql.dump() == before


def test_only_operators_move_the_fence(client: Client) -> None:
    body = {"expected": "open", "next": "draining"}
    answer = client.post("/v1/fence/transitions", body)
    assert (answer.status_code, answer.json()["code"]) == (403, "SCOPE_MISSING")


def test_every_transition_is_audited(client: Client, sql: Sql) -> None:
    sql("DELETE FROM fencepost_audit")
    move(client, "open", "draining").raise_for_status()
    move(client, "open", "draining")
    [entry] = client.as_("operator").get("/v1/audit").json()["items"]
    assert entry["action"] == "fence-transition"
    assert entry["principal"] == {"kind": "human", "id": "olga"}
    assert entry["subject"] == "deployment"
    assert (entry["before"]["state"], entry["after"]["state"]) == ("open", "draining")
    assert entry["after"]["revision"] == entry["before"]["revision"] + 1


def test_proof_only_end_to_end(client: Client, sql: Sql) -> None:
    proof, body = new_key("proof"), a_start(owner=an_owner())
    old = client.started()
    move(client, "open", "proof-only", proof_key=proof).raise_for_status()
    run = client.start(proof, body).json()["run"]
    assert client.as_("operator").get("/v1/fence").json()["proof_run_id"] == run["run_id"]
    assert client.start(new_key()).json()["code"] == "EXECUTION_FENCED"
    assert client.start(proof, body).json()["outcome"] == "started"
    assert client.verb(old, "heartbeat").json()["code"] == "EXECUTION_FENCED"
    assert client.verb(run, "heartbeat").json()["outcome"] == "renewed"
    assert client.finish(run, result="proved").json()["outcome"] == "transitioned"
    assert client.start(proof).json()["run"]["result"] == "proved"
    assert move(client, "proof-only", "open").json()["proof_run_id"] is None
    assert client.verb(old, "heartbeat").json()["outcome"] == "renewed"


@pytest.mark.anyio
async def test_of_concurrent_transitions_one_wins(bridge: dict[str, str], sql: Sql) -> None:
    headers = {"Authorization": "Bearer operator"}
    async with connect_async(bridge["url"]) as http:
        for _ in range(10):
            sql.fence("open", revision=1)
            bodies = [{"expected": "open", "next": STATES[1 + n % 2]} for n in range(12)]
            answers = await asyncio.gather(
                *[
                    http.post(
                        "/v1/fence/transitions",
                        content=json.dumps(body),
                        headers={**headers, "X-Local-Isolate": str(n % 2)},
                    )
                    for n, body in enumerate(bodies)
                ]
            )
            [winner] = [answer.json() for answer in answers if answer.status_code == 200]
            for loser in (answer.json() for answer in answers if answer.status_code != 200):
                assert loser["code"] == "FENCE_CAS_CONFLICT"
                assert loser["state"] == winner["state"]
