"""Resolving abandoned starts: compare-and-set on the attempt, audited, once."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from typing import Any

import httpx
import pytest

from helpers import Client, Json, Sql, an_owner, new_key

pytestmark = pytest.mark.usefixtures("sql")


def resolve(client: Client, run: Json, decision: str, **members: Any) -> httpx.Response:
    body = {"decision": decision, "attempt": 1, "note": "looked at the ledger", **members}
    return client.as_("operator").post(f"/v1/starts/{run['key']}/resolve", body)


@pytest.fixture
def abandoned(client: Client, sql: Sql) -> Json:
    run = client.started()
    sql.lapse(run["run_id"])
    return run


def test_a_key_resolved_as_executed_is_settled_with_the_result(
    client: Client, sql: Sql, abandoned: Json
) -> None:
    answer = resolve(client, abandoned, "executed", result={"charge": "ch_1"})
    body = answer.json()
    assert (answer.status_code, body["outcome"]) == (200, "resolved")
    assert (body["reservation"]["state"], body["reservation"]["outcome"]) == (
        "terminal",
        "executed",
    )
    assert (body["run"]["status"], body["run"]["owner"]) == ("completed", None)
    replay = client.start(abandoned["key"])
    assert replay.headers["Idempotent-Replayed"] == "true"
    assert replay.json()["run"]["result"] == {"charge": "ch_1"}
    assert client.finish(abandoned).json()["outcome"] == "fence_lost"


def test_a_key_resolved_as_not_executed_starts_again_as_the_next_attempt(
    client: Client, sql: Sql, abandoned: Json
) -> None:
    body = resolve(client, abandoned, "not_executed").json()
    assert (body["reservation"]["state"], body["reservation"]["attempt"]) == ("reserved", 2)
    assert body["run"]["status"] == "pending"
    again = client.start(abandoned["key"])
    assert again.status_code == 201
    assert again.json()["run"]["run_id"] == abandoned["run_id"]
    assert again.json()["run"]["generation"] == 2
    assert client.verb(abandoned, "heartbeat").json()["outcome"] == "fence_lost"
    events = sql(
        "SELECT type FROM fencepost_events WHERE run_id = ?1 ORDER BY sequence",
        abandoned["run_id"],
    )
    assert [event["type"] for event in events] == ["run-created", "run-resolved", "run-restarted"]
    facts = sql(
        "SELECT type FROM fencepost_ownership WHERE run_id = ?1 ORDER BY sequence",
        abandoned["run_id"],
    )
    assert [fact["type"] for fact in facts] == ["activated", "expired", "activated"]


def test_the_audit_says_who_when_what_and_why(client: Client, sql: Sql, abandoned: Json) -> None:
    sql("DELETE FROM fencepost_audit")
    resolve(client, abandoned, "executed").raise_for_status()
    [entry] = client.as_("operator").get("/v1/audit").json()["items"]
    assert (entry["action"], entry["subject"]) == ("resolve", abandoned["key"])
    assert entry["principal"] == {"kind": "human", "id": "olga"}
    assert entry["note"] == "looked at the ledger"
    assert (entry["before"]["state"], entry["before"]["attempt"]) == ("started", 1)
    assert entry["after"] == {"decision": "executed"}
    assert entry["at_ms"] > 1_700_000_000_000


def test_a_second_operator_is_told_that_somebody_was_first(
    client: Client, sql: Sql, abandoned: Json
) -> None:
    resolve(client, abandoned, "executed").raise_for_status()
    before = sql.dump()
    for decision in ("executed", "not_executed"):
        answer = resolve(client, abandoned, decision)
        assert (answer.status_code, answer.json()["code"]) == (409, "ATTEMPT_CHANGED")
    assert sql.dump() == before


def test_another_attempt_than_the_open_one_loses(client: Client, abandoned: Json) -> None:
    assert resolve(client, abandoned, "executed", attempt=2).json()["code"] == "ATTEMPT_CHANGED"
    resolve(client, abandoned, "not_executed").raise_for_status()
    assert resolve(client, abandoned, "executed").json()["code"] == "ATTEMPT_CHANGED"


def test_a_run_whose_owner_lives_is_not_resolved(client: Client, sql: Sql) -> None:
    run = client.started()
    before = sql.dump()
    answer = resolve(client, run, "executed")
    assert (answer.status_code, answer.json()["code"]) == (409, "HEARTBEAT_FRESH")
    assert sql.dump() == before


@pytest.mark.parametrize("to", ["completed", "suspended"])
def test_a_run_that_nobody_abandoned_is_not_resolved(client: Client, to: str) -> None:
    run = client.started()
    client.finish(run, to).raise_for_status()
    assert resolve(client, run, "not_executed").status_code == 409


@pytest.mark.parametrize(
    ("decision", "code"), [("executed", "START_ALREADY_SETTLED"), ("not_executed", None)]
)
def test_a_start_that_was_never_owned_is_resolved_too(
    client: Client, sql: Sql, abandoned: Json, decision: str, code: str | None
) -> None:
    sql("DELETE FROM fencepost_runs WHERE run_id = ?1", abandoned["run_id"])
    sql("DELETE FROM fencepost_events WHERE run_id = ?1", abandoned["run_id"])
    sql("DELETE FROM fencepost_snapshots WHERE run_id = ?1", abandoned["run_id"])
    assert client.start(abandoned["key"]).json()["code"] == "START_UNRESOLVABLE"
    assert resolve(client, abandoned, decision).json()["outcome"] == "resolved"
    answer = client.start(abandoned["key"])
    assert answer.json().get("code") == code
    assert (answer.status_code == 201) == (code is None)


@pytest.mark.parametrize(
    "change",
    [
        {"decision": "perhaps"},
        {"attempt": 0},
        {"attempt": "1"},
        {"note": ""},
        {"note": "   "},
        {"note": "x" * 1001},
        {"note": 1},
        {"decision": "not_executed", "result": 1},
        {"more": 1},
    ],
    ids=lambda change: str(change)[:40],
)
def test_an_invalid_resolution_changes_nothing(
    client: Client, sql: Sql, abandoned: Json, change: Json
) -> None:
    before = sql.dump()
    answer = resolve(client, abandoned, **{"decision": "executed", **change})
    assert (answer.status_code, answer.json()["code"]) == (400, "INVALID_REQUEST")
    assert sql.dump() == before


def test_only_operators_resolve_and_only_keys_that_exist(client: Client, abandoned: Json) -> None:
    body = {"decision": "executed", "attempt": 1, "note": "n"}
    answer = client.post(f"/v1/starts/{abandoned['key']}/resolve", body)
    assert answer.status_code == 403
    assert resolve(client, {"key": new_key()}, "executed").status_code == 404


@pytest.mark.anyio
async def test_of_operators_owner_and_thief_at_once_exactly_one_settles_it(
    bridge: dict[str, str], client: Client, sql: Sql
) -> None:
    async with httpx.AsyncClient(base_url=bridge["url"], timeout=60) as http:

        async def post(n: int, path: str, body: Json, token: str) -> httpx.Response:
            headers = {"Authorization": f"Bearer {token}", "X-Local-Isolate": str(n % 2)}
            return await http.post(path, content=json.dumps(body), headers=headers)

        for _ in range(10):
            run = client.started()
            sql.lapse(run["run_id"])
            verdict = {"attempt": 1, "note": "n"}
            evidence = {"kind": "lease-expired", "expected_owner": run["owner"]}
            own = f"/v1/runs/{run['run_id']}/own"
            path = f"/v1/starts/{run['key']}/resolve"
            answers = await asyncio.gather(
                post(0, path, {**verdict, "decision": "executed"}, "operator"),
                post(1, path, {**verdict, "decision": "not_executed"}, "operator"),
                post(0, own, {"owner": an_owner(), "evidence": evidence}, "alice"),
                post(1, own, {"owner": an_owner(), "evidence": evidence}, "alice"),
            )
            resolved = [a for a in answers[:2] if a.status_code == 200]
            owned = [a for a in answers[2:] if a.status_code == 200]
            assert len(resolved) <= 1
            # A run given back by `not_executed` waits for an owner: one may own it then.
            given_back = resolved and resolved[0].json()["run"]["status"] == "pending"
            assert len(owned) <= 1
            assert len(resolved) + len(owned) == 1 or (given_back and len(owned) == 1)
            assert Counter(a.status_code for a in answers).keys() <= {200, 409}
