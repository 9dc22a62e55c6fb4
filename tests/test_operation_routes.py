"""Operations over HTTP: shapes, losses, bad input, scopes."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any
from urllib.parse import unquote

import httpx
import pytest

from fencepost import journal
from fencepost.identifiers import is_operation_id
from helpers import Client, Json, Sql, a_start, acquired, an_owner, new_key


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
            "cause": None,
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
    ("acquire", {"ttl_ms": 1, "preempt": 1}),
    ("acquire", {"ttl_ms": 1, "exclusive": "true"}),
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


# --- A lease belongs to the generation that took it --------------------------------------


def _take(client: Client, run: Json, owner: Json) -> Json:
    evidence = {"kind": "lease-expired", "expected_owner": run["owner"]}
    answer = client.verb(run, "own", owner=owner, evidence=evidence)
    assert answer.json()["outcome"] == "owned"
    return {**run, **answer.json()["run"]}


def taken_over(client: Client, sql: Sql, run: Json) -> Json:
    sql.lapse(run["run_id"])
    return _take(client, run, an_owner())


def owned_anew(client: Client, sql: Sql, run: Json) -> Json:
    sql.lapse(run["run_id"])
    return _take(client, run, run["owner"])


def suspended_and_owned(client: Client, sql: Sql, run: Json) -> Json:
    client.finish(run, "suspended").raise_for_status()
    return _take(client, run, an_owner())


def suspended_and_owned_anew(client: Client, sql: Sql, run: Json) -> Json:
    client.finish(run, "suspended").raise_for_status()
    return _take(client, run, run["owner"])


def resolved_and_started_again(client: Client, sql: Sql, run: Json) -> Json:
    sql.lapse(run["run_id"])
    path, operator = f"/v1/starts/{run['key']}", client.as_("operator")
    verdict = {
        "decision": "not_executed",
        "note": "looked",
        "seen": operator.get(path).json()["seen"],
    }
    operator.post(f"{path}/resolve", verdict).raise_for_status()
    answer = client.start(run["key"], a_start(owner=an_owner()))
    assert answer.status_code == 201, answer.text
    return {**run, **answer.json()["run"]}


Change = Callable[[Client, Sql, Json], Json]
GRANTS: list[Change] = [
    taken_over,
    owned_anew,
    suspended_and_owned,
    suspended_and_owned_anew,
    resolved_and_started_again,
]
OPTIONS: list[Json] = [{}, {"exclusive": True}, {"preempt": True}]
DAY_MS = 86_400_000
WITH_TOKEN: dict[str, Json] = {
    "renew": {"ttl_ms": DAY_MS},
    "assert": {},
    "commit": {"outcome": 1},
    "interrupt": {},
}


def seen(client: Client, run: Json) -> tuple[str, Json | None]:
    body = client.get(f"/v1/runs/{run['run_id']}/operations/step").json()
    return body["operation"]["state"], body["lease"]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("grant", GRANTS)
def test_a_grant_of_the_run_ends_its_leases_and_the_new_owner_leases_the_step_at_once(
    client: Client, sql: Sql, grant: Change, options: Json
) -> None:
    run = client.started()
    token = acquired(client, run, ttl_ms=DAY_MS)["lease"]["token"]
    now = grant(client, sql, run)
    assert now["generation"] == 2
    before = sql.dump()
    assert seen(client, run) == ("lapsed", None)
    assert sql.dump() == before
    body = acquired(client, now, **options)
    assert body["outcome"] == "acquired"
    assert body["lease"]["token"] != token
    events = client.get(f"/v1/runs/{run['run_id']}/events").json()["items"]
    assert (events[-1]["type"], events[-1]["payload"]) == (
        "operation-interrupted",
        {"operation": "step", "cause": "lapse"},
    )
    assert client.get(f"/v1/runs/{run['run_id']}/integrity").json()["intact"]
    assert acquired(client, now)["lease"] == body["lease"]
    stale = client.operation(now, "commit", token=token, outcome="stale")
    assert loss(stale) == (409, "lease_fenced", "never", "running")
    own = client.operation(now, "commit", token=body["lease"]["token"], outcome="own")
    assert own.json()["operation"]["outcome"] == "own"


@pytest.mark.parametrize("verb", WITH_TOKEN)
@pytest.mark.parametrize("grant", GRANTS)
def test_a_token_of_an_earlier_generation_is_fenced_in_the_present_one(
    client: Client, sql: Sql, grant: Change, verb: str
) -> None:
    run = client.started()
    token = acquired(client, run, ttl_ms=DAY_MS)["lease"]["token"]
    now = grant(client, sql, run)
    state = "lapsed" if verb == "assert" else "interrupted"
    answer = client.operation(now, verb, token=token, **WITH_TOKEN[verb])
    assert loss(answer) == (409, "lease_fenced", "never", state)
    assert seen(client, run) == (state, None)
    assert acquired(client, now, exclusive=True)["outcome"] == "acquired"


@pytest.mark.parametrize("verb", [*WITH_TOKEN, "acquire"])
@pytest.mark.parametrize("grant", GRANTS)
def test_the_former_generation_does_nothing_more_to_a_step_and_writes_nothing(
    client: Client, sql: Sql, grant: Change, verb: str
) -> None:
    run = client.started()
    token = acquired(client, run, ttl_ms=DAY_MS)["lease"]["token"]
    now = grant(client, sql, run)
    # By its process where another one holds the run, and by its generation in any case.
    others: list[Json] = [{"generation": 1}, *[{}] * (now["owner"] != run["owner"])]
    wishes = [{"ttl_ms": 1000, **options} for options in OPTIONS]
    if verb != "acquire":
        wishes = [{"token": token, **WITH_TOKEN[verb]}]
    before = sql.dump()
    for wish in wishes:
        for other in others:
            answer = client.operation(run, verb, **wish, **other)
            assert loss(answer) == (409, "fence_lost", "never", "lapsed")
            beaten_by = answer.json()["beaten_by"]
            assert (beaten_by["type"], beaten_by["generation"]) == ("activated", 2)
    assert sql.dump() == before


@pytest.mark.parametrize("to", ["suspended", "completed", "failed", "cancelled"])
def test_leaving_running_ends_the_leases_of_a_run_and_nobody_finishes_the_step(
    client: Client, sql: Sql, to: str
) -> None:
    run = client.started()
    token = acquired(client, run, ttl_ms=DAY_MS)["lease"]["token"]
    client.finish(run, to).raise_for_status()
    before = sql.dump()
    assert seen(client, run) == ("lapsed", None)
    for options in OPTIONS:
        answer = client.operation(run, "acquire", ttl_ms=1000, **options)
        assert loss(answer) == (409, "fence_lost", "never", "lapsed")
    for verb, members in WITH_TOKEN.items():
        answer = client.operation(run, verb, token=token, **members)
        assert loss(answer) == (409, "fence_lost", "never", "lapsed")
        assert answer.json()["beaten_by"]["type"] == "released"
    assert sql.dump() == before


def test_the_generation_that_a_caller_says_must_be_the_runs(client: Client, sql: Sql) -> None:
    run = client.started()
    token = acquired(client, run, generation=1)["lease"]["token"]
    before = sql.dump()
    for verb, members in {**WITH_TOKEN, "acquire": {"ttl_ms": 1000}}.items():
        held = {} if verb == "acquire" else {"token": token}
        answer = client.operation(run, verb, generation=2, **held, **members)
        assert loss(answer) == (409, "fence_lost", "never", "running")
    assert sql.dump() == before
    for verb, members in WITH_TOKEN.items():
        if verb != "interrupt":
            answer = client.operation(run, verb, generation=1, token=token, **members)
            assert answer.status_code == 200


@pytest.mark.parametrize("generation", [0, -1, 1.5, "1", True, 2**53])
def test_a_generation_is_an_integer_from_1(client: Client, sql: Sql, generation: object) -> None:
    run = client.started()
    before = sql.dump()
    for verb, members in {**WITH_TOKEN, "acquire": {"ttl_ms": 1000}}.items():
        held = {} if verb == "acquire" else {"token": "t"}
        answer = client.operation(run, verb, generation=generation, **held, **members)
        assert (answer.status_code, answer.json()["code"]) == (400, "INVALID_REQUEST")
    assert sql.dump() == before


def test_a_retry_of_a_commit_is_compared_as_json(client: Client) -> None:
    run = client.started()
    token = acquired(client, run)["lease"]["token"]
    stored = {"id": "ch_1", "cents": 500}
    for same in (stored, {"cents": 500.0, "id": "ch_1"}):
        body = client.operation(run, "commit", token=token, outcome=same).json()
        assert (body["outcome"], body["operation"]["outcome"]) == ("committed", stored)
    other = client.operation(run, "commit", token=token, outcome={**stored, "cents": 501})
    assert loss(other) == (409, "lease_fenced", "never", "committed")


# --- Lost replies, with a rival in the window --------------------------------------------


def rival(path: str, body: Json) -> dict[str, str]:
    """The headers of a request whose first reply is lost; then this one comes in between."""
    headers = {"authorization": "Bearer alice", "content-type": "application/json"}
    other = {"path": path, "headers": headers, "body": json.dumps(body)}
    return {"X-Local-Fault": "lost", "X-Local-Rival": json.dumps(other)}


def disturbed(
    client: Client, run: Json, verb: str, members: Json, what: str, by: Json
) -> tuple[httpx.Response, Json]:
    """(the answer of a verb whose reply was lost, the body of the answer to its rival)."""
    at = f"/v1/runs/{run['run_id']}"
    path, body = f"{at}/operations/step/{verb}", {"owner": run["owner"], **members}
    answer = client.post(path, body, headers=rival(f"{at}/{what}", by))
    other = json.loads(unquote(answer.headers["X-Local-Rival"]))
    assert other["status"] == 200, other
    return answer, other["body"]


def test_an_acquisition_whose_reply_was_lost_loses_when_the_run_was_taken_over_meanwhile(
    client: Client, sql: Sql
) -> None:
    run = client.started()
    sql.lapse(run["run_id"])
    evidence = {"kind": "lease-expired", "expected_owner": run["owner"]}
    by = {"owner": an_owner(), "evidence": evidence}
    answer, owned = disturbed(client, run, "acquire", {"ttl_ms": DAY_MS}, "own", by)
    assert owned["outcome"] == "owned"
    assert loss(answer) == (409, "fence_lost", "never", "lapsed")
    assert answer.json()["beaten_by"]["generation"] == 2
    assert acquired(client, owned["run"], exclusive=True)["outcome"] == "acquired"


def test_an_acquisition_whose_reply_was_lost_shares_the_lease_that_preempted_it(
    client: Client,
) -> None:
    run = client.started()
    by = {"owner": run["owner"], "ttl_ms": 60_000, "preempt": True}
    what = "operations/step/acquire"
    answer, other = disturbed(client, run, "acquire", {"ttl_ms": 60_000}, what, by)
    body = answer.json()
    assert (body["outcome"], body["lease"]) == ("shared", other["lease"])


def test_a_commit_whose_reply_was_lost_is_committed_though_the_run_was_taken_over_meanwhile(
    client: Client, sql: Sql
) -> None:
    run = client.started()
    token = acquired(client, run)["lease"]["token"]
    sql.lapse(run["run_id"])
    evidence = {"kind": "lease-expired", "expected_owner": run["owner"]}
    by = {"owner": an_owner(), "evidence": evidence}
    answer, owned = disturbed(client, run, "commit", {"token": token, "outcome": 7}, "own", by)
    assert answer.json()["outcome"] == "committed"
    assert acquired(client, owned["run"])["operation"]["outcome"] == 7
