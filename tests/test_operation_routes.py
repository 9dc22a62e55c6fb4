"""Operations over HTTP: shapes, losses, bad input, scopes."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from fencepost import journal
from fencepost.identifiers import is_operation_id
from helpers import Client, Json, Sql, acquired, an_owner, new_key


def loss(answer: httpx.Response) -> tuple[int, str, str, str]:
    problem = answer.json()
    assert problem["code"] == problem["outcome"].upper()
    assert answer.headers["Content-Type"] == "application/problem+json"
    assert "token" not in json.dumps(problem["operation"])
    return answer.status_code, problem["outcome"], problem["retry"], problem["operation"]["state"]


def test_an_operation_from_its_acquisition_to_its_replay(client: Client) -> None:
    run = client.started()
    payload = {"b": 1, "a": [1.0, "é"]}
    body = acquired(client, run, payload=payload)
    lease = body["lease"]
    assert body == {
        "outcome": "acquired",
        "operation": {
            "id": "step",
            "kind": "lease",
            "state": "running",
            "outcome": None,
            "payload_fingerprint": journal.digest(payload),
        },
        "lease": {"token": lease["token"], "expires_at_ms": lease["expires_at_ms"]},
    }
    path = f"/v1/runs/{run['run_id']}/operations/step"
    assert client.get(path).json() == {"operation": body["operation"], "lease": lease}
    shared = acquired(client, run, payload={"a": [1, "é"], "b": 1.0})
    assert (shared["outcome"], shared["lease"]) == ("shared", lease)
    token = lease["token"]
    renewed = client.operation(run, "renew", token=token, ttl_ms=90_000).json()
    assert renewed["outcome"] == "renewed"
    assert renewed["lease"]["expires_at_ms"] > lease["expires_at_ms"]
    asserted = client.operation(run, "assert", token=token).json()
    assert (asserted["outcome"], asserted["lease"]) == ("asserted", renewed["lease"])
    committed = client.operation(run, "commit", token=token, outcome={"id": "ch_1"}).json()
    assert (committed["outcome"], committed["lease"]) == ("committed", None)
    answer = client.operation(run, "acquire", ttl_ms=1, payload=payload)
    assert answer.headers["Idempotent-Replayed"] == "true"
    assert answer.json() == {**committed, "outcome": "replayed"}
    assert answer.json()["operation"]["outcome"] == {"id": "ch_1"}
    assert client.get(path).json() == {"operation": committed["operation"], "lease": None}


@pytest.mark.parametrize("outcome", [0, False, "", {}, [], None, -0.5, "\0", "é"], ids=repr)
def test_any_json_outcome_is_replayed(client: Client, outcome: object) -> None:
    run = client.started()
    token = acquired(client, run)["lease"]["token"]
    client.operation(run, "commit", token=token, outcome=outcome).raise_for_status()
    wishes: list[Json] = [{}, {"preempt": True}, {"exclusive": True}]
    for options in wishes:
        body = acquired(client, run, **options)
        assert (body["outcome"], body["lease"]) == ("replayed", None)
        assert body["operation"]["state"] == "committed"
        found = body["operation"]["outcome"]
        assert (type(found), found) == (type(outcome), outcome)


def test_every_loss_names_its_outcome_and_what_to_do(client: Client, sql: Sql) -> None:
    run = client.started()
    token = acquired(client, run)["lease"]["token"]
    refused = client.operation(run, "acquire", ttl_ms=1, exclusive=True)
    assert loss(refused) == (409, "operation_already_running", "same-key", "running")
    assert 1 <= int(refused.headers["Retry-After"]) <= 5
    other = client.operation(run, "acquire", ttl_ms=1, payload=1)
    assert loss(other) == (409, "operation_conflict", "never", "running")
    stranger = client.operation(run, "commit", token=token, outcome=1, owner=an_owner())
    assert loss(stranger) == (409, "fence_lost", "never", "running")
    stale = client.operation(run, "commit", token="0" * 32, outcome=1)
    assert loss(stale) == (409, "lease_fenced", "never", "running")
    sql("UPDATE fencepost_operations SET lease_expires_at_ms = 5 WHERE state = 'running'")
    asserted = client.operation(run, "assert", token=token)
    assert loss(asserted) == (409, "lease_fenced", "never", "lapsed")
    renewed = client.operation(run, "renew", token=token, ttl_ms=1000)
    assert loss(renewed) == (409, "lease_fenced", "never", "interrupted")


def test_a_lapsed_lease_is_displayed_without_a_write_and_marked_by_the_next_post(
    client: Client, sql: Sql
) -> None:
    run = client.started()
    token = acquired(client, run)["lease"]["token"]
    sql("UPDATE fencepost_operations SET lease_expires_at_ms = 5 WHERE state = 'running'")
    before, path = sql.dump(), f"/v1/runs/{run['run_id']}/operations/step"
    found = client.get(path).json()
    assert (found["operation"]["state"], found["lease"]) == ("lapsed", None)
    assert sql.dump() == before
    client.operation(run, "commit", token=token, outcome=1)
    assert client.get(path).json()["operation"]["state"] == "interrupted"
    body = acquired(client, run, exclusive=True)
    assert body["outcome"] == "acquired"
    assert body["lease"]["token"] != token


def test_the_case_of_an_operations_name_does_not_matter(client: Client) -> None:
    run = client.started()
    first = acquired(client, run, "Charge:Card.1_a-B")
    assert first["operation"]["id"] == "charge:card.1_a-b"
    again = acquired(client, run, "charge%3Acard.1_A-b")
    assert (again["outcome"], again["lease"]) == ("shared", first["lease"])
    found = client.get(f"/v1/runs/{run['run_id']}/operations/CHARGE:CARD.1_A-B")
    assert found.json()["operation"] == first["operation"]


BAD_NAMES = [".a", "a.", "-a", "a:", "_", "a b", "a~b", "a%2Fb", "%C3%A9", "K%E2%84%AA", "a" * 129]


@pytest.mark.parametrize("name", BAD_NAMES)
def test_an_operation_with_an_invalid_name_is_not_found(
    client: Client, sql: Sql, name: str
) -> None:
    run = client.started()
    before = sql.dump()
    for answer in (
        client.operation(run, "acquire", name, ttl_ms=1000),
        client.operation(run, "interrupt", name, token=new_key()),
        client.get(f"/v1/runs/{run['run_id']}/operations/{name}"),
    ):
        assert (answer.status_code, answer.json()["code"]) == (404, "OPERATION_NOT_FOUND")
    assert sql.dump() == before


def test_a_name_has_1_to_128_characters() -> None:
    assert all(is_operation_id(name) for name in ("a", "7", "aB", "a..b", "a" * 128))
    assert not any(is_operation_id(name) for name in ("", "a" * 129, "a\n", "é", "\u212a"))


TTL_S: list[Any] = [0, -1, 1.5, 86_400_001, True, "1000", None, 2**53, []]


@pytest.mark.parametrize("ttl_ms", TTL_S, ids=repr)
@pytest.mark.parametrize("verb", ["acquire", "renew"])
def test_a_ttl_is_an_integer_from_1_ms_to_a_day(
    client: Client, sql: Sql, verb: str, ttl_ms: object
) -> None:
    run = client.started()
    members = {"token": acquired(client, run)["lease"]["token"]} if verb == "renew" else {}
    before = sql.dump()
    answer = client.operation(run, verb, **members, ttl_ms=ttl_ms)
    assert (answer.status_code, answer.json()["code"]) == (400, "INVALID_REQUEST")
    assert sql.dump() == before


@pytest.mark.parametrize("ttl_ms", [1, 86_400_000])
def test_the_shortest_and_the_longest_ttl_are_taken(client: Client, ttl_ms: int) -> None:
    run = client.started()
    token = acquired(client, run, ttl_ms=ttl_ms)["lease"]["token"]
    if ttl_ms > 1:
        assert client.operation(run, "renew", token=token, ttl_ms=ttl_ms).status_code == 200


BAD_BODIES: list[tuple[str, Json]] = [
    ("acquire", {}),
    ("acquire", {"ttl_ms": 1, "preempt": True, "exclusive": True}),
    ("acquire", {"ttl_ms": 1, "preempt": 1}),
    ("acquire", {"ttl_ms": 1, "exclusive": "true"}),
    ("acquire", {"ttl_ms": 1, "exclusive": None}),
    ("acquire", {"ttl_ms": 1, "token": "t"}),
    ("acquire", {"ttl_ms": 1, "owner": None}),
    ("renew", {"ttl_ms": 1}),
    ("renew", {"token": 1, "ttl_ms": 1}),
    ("renew", {"token": "", "ttl_ms": 1}),
    ("renew", {"token": "t", "ttl_ms": 1, "now_ms": 1}),
    ("assert", {}),
    ("assert", {"token": "t", "ttl_ms": 1}),
    ("commit", {"token": "t"}),
    ("commit", {"outcome": 1}),
    ("interrupt", {"token": None}),
]


@pytest.mark.parametrize(("verb", "members"), BAD_BODIES, ids=str)
def test_an_invalid_body_of_a_verb_is_refused(
    client: Client, sql: Sql, verb: str, members: Json
) -> None:
    run = client.started()
    before = sql.dump()
    answer = client.operation(run, verb, **members)
    assert (answer.status_code, answer.json()["code"]) == (400, "INVALID_REQUEST")
    assert sql.dump() == before


def test_an_outcome_too_large_to_store_is_refused(client: Client, sql: Sql) -> None:
    run = client.started()
    token = acquired(client, run)["lease"]["token"]
    before = sql.dump()
    answer = client.operation(run, "commit", token=token, outcome="x" * 900_000)
    assert (answer.status_code, answer.json()["code"]) == (413, "TOO_LARGE")
    assert sql.dump() == before
    answer = client.operation(run, "commit", token=token, outcome="x" * 899_998)
    assert answer.status_code == 200


def test_verbs_need_the_scope_work_and_looking_the_scope_read(client: Client) -> None:
    run = client.started()
    assert client.as_("reader").operation(run, "acquire", ttl_ms=1).status_code == 403
    assert acquired(client.as_("worker"), run)["outcome"] == "acquired"
    path = f"/v1/runs/{run['run_id']}/operations/step"
    assert client.as_("worker").get(path).status_code == 403
    assert client.as_("reader").get(path).status_code == 200


def test_a_strangers_operation_is_not_there_and_an_operator_sees_it(client: Client) -> None:
    run = client.started()
    acquired(client, run)
    path = f"/v1/runs/{run['run_id']}/operations/step"
    for answer in (
        client.as_("bob").get(path),
        client.as_("bob").operation(run, "acquire", ttl_ms=1),
        client.get("/v1/runs/no-run/operations/step"),
    ):
        assert (answer.status_code, answer.json()["code"]) == (404, "RUN_NOT_FOUND")
    assert client.as_("operator").get(path).status_code == 200
    unknown = client.get(f"/v1/runs/{run['run_id']}/operations/other")
    assert (unknown.status_code, unknown.json()["code"]) == (404, "OPERATION_NOT_FOUND")


def test_a_lost_reply_is_safe_to_send_again(client: Client) -> None:
    run, lost = client.started(), {"X-Local-Fault": "lost,lost"}
    path = f"/v1/runs/{run['run_id']}/operations/step"
    body = {"owner": run["owner"], "ttl_ms": 60_000}
    answer = client.post(f"{path}/acquire", body, headers=lost)
    assert answer.json()["code"] == "WRITE_OUTCOME_UNKNOWN"
    token = acquired(client, run)["lease"]["token"]
    body = {"owner": run["owner"], "token": token, "outcome": [1]}
    answer = client.post(f"{path}/commit", body, headers=lost)
    assert answer.json()["code"] == "WRITE_OUTCOME_UNKNOWN"
    assert client.post(f"{path}/commit", body).json()["outcome"] == "committed"
