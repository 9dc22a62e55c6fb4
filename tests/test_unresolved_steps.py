"""Steps whose last lease lapsed: nobody knows whether they were done, until somebody finds out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest

from helpers import Client, Json, Sql, a_start, acquired, an_owner

Lapse = Callable[[Client, Sql, Json], Json]


def by_time(client: Client, sql: Sql, run: Json) -> Json:
    sql("UPDATE fencepost_operations SET lease_expires_at_ms = 5 WHERE run_id = ?1", run["run_id"])
    return run


def by_time_and_marked(client: Client, sql: Sql, run: Json) -> Json:
    by_time(client, sql, run)
    marked = client.operation(run, "renew", token="t", ttl_ms=1000)  # noqa: S106
    assert marked.json()["operation"]["cause"] == "lapse"
    return run


def by_a_takeover(client: Client, sql: Sql, run: Json) -> Json:
    sql.lapse(run["run_id"])
    other = {**run, "owner": an_owner()}
    evidence = {"kind": "lease-expired", "expected_owner": run["owner"]}
    client.verb(other, "own", evidence=evidence).raise_for_status()
    return other


def by_a_suspension(client: Client, sql: Sql, run: Json) -> Json:
    client.finish(run, "suspended").raise_for_status()
    client.verb(run, "own").raise_for_status()
    return run


LAPSES = [by_time, by_time_and_marked, by_a_takeover, by_a_suspension]


@pytest.fixture(params=LAPSES, ids=lambda lapse: lapse.__name__)
def lapsed(request: pytest.FixtureRequest, client: Client, sql: Sql) -> Json:
    """A run, as its present owner has it, with a step that was leased and whose lease is over."""
    run = client.started()
    token = acquired(client, run)["lease"]["token"]
    lapse: Lapse = request.param
    return {**lapse(client, sql, run), "token": token}


def refuse(client: Client, run: Json, **members: Any) -> httpx.Response:
    return client.operation(run, "acquire", **{"ttl_ms": 60_000, "if_lapsed": "refuse", **members})


def test_a_step_that_lapsed_is_refused_to_whoever_may_not_do_it_twice(
    client: Client, sql: Sql, lapsed: Json
) -> None:
    before = sql.dump()
    for members in ({}, {"preempt": True}, {"exclusive": True}):
        answer = refuse(client, lapsed, **members)
        assert (answer.status_code, answer.json()["code"]) == (409, "STEP_UNRESOLVED")
        assert answer.json()["lapsed"] == {"token": lapsed["token"], "generation": 1}
    assert sql.dump() == before
    assert refuse(client, lapsed, payload=2).json()["code"] == "OPERATION_CONFLICT"
    assert acquired(client, lapsed)["outcome"] == "acquired"
    assert refuse(client, lapsed).json()["outcome"] == "shared"


def test_what_was_found_out_is_stored_by_the_token_of_the_lease_that_lapsed(
    client: Client, lapsed: Json
) -> None:
    stored = client.operation(lapsed, "conclude", token=lapsed["token"], outcome={"paid": True})
    assert (stored.status_code, stored.json()["outcome"]) == (200, "concluded")
    again = client.operation(lapsed, "conclude", token=lapsed["token"], outcome={"paid": True})
    assert (again.status_code, again.json()) == (200, stored.json())
    other = client.operation(lapsed, "conclude", token=lapsed["token"], outcome={"paid": False})
    assert (other.status_code, other.json()["code"]) == (409, "LEASE_FENCED")
    replayed = refuse(client, lapsed).json()
    assert (replayed["outcome"], replayed["operation"]["outcome"]) == ("replayed", {"paid": True})


def test_only_the_last_lease_is_concluded_and_only_when_it_is_over(
    client: Client, lapsed: Json
) -> None:
    new = acquired(client, lapsed)["lease"]["token"]
    for token in (lapsed["token"], new, "a-token-of-nobody"):
        answer = client.operation(lapsed, "conclude", token=token, outcome=1)
        assert (answer.status_code, answer.json()["code"]) == (409, "LEASE_FENCED")
    assert client.operation(lapsed, "commit", token=new, outcome=2).json()["outcome"] == "committed"


def test_only_the_owner_concludes(client: Client, lapsed: Json) -> None:
    other = {**lapsed, "owner": an_owner()}
    answer = client.operation(other, "conclude", token=lapsed["token"], outcome=1)
    assert (answer.status_code, answer.json()["code"]) == (409, "FENCE_LOST")
    late = client.operation(lapsed, "conclude", token=lapsed["token"], outcome=1, generation=9)
    assert late.json()["code"] == "FENCE_LOST"


def test_what_its_holder_ended_is_not_unresolved(client: Client) -> None:
    run = client.started()
    token = acquired(client, run)["lease"]["token"]
    ended = client.operation(run, "interrupt", token=token).json()
    assert ended["operation"]["cause"] == "holder"
    answer = client.operation(run, "conclude", token=token, outcome=1)
    assert (answer.status_code, answer.json()["code"]) == (409, "LEASE_FENCED")
    assert refuse(client, run).json()["outcome"] == "acquired"


def test_a_step_that_was_never_leased_cannot_be_concluded(client: Client) -> None:
    answer = client.operation(client.started(), "conclude", token="t", outcome=1)  # noqa: S106
    assert (answer.status_code, answer.json()["code"]) == (404, "OPERATION_NOT_FOUND")


def test_a_conclusion_is_work_that_was_recorded(client: Client, sql: Sql) -> None:
    run = client.started()
    token = acquired(client, run)["lease"]["token"]
    sql.lapse(run["run_id"])
    seen = client.get(f"/v1/starts/{run['key']}").json()["seen"]
    said = {"decision": "not_executed", "seen": seen, "note": "asked around"}
    operator = client.as_("operator")
    operator.post(f"/v1/starts/{run['key']}/resolve", said).raise_for_status()
    owner = an_owner()
    again = client.start(run["key"], a_start(owner=owner)).json()["run"]
    client.operation(again, "conclude", token=token, outcome={"charged": True}).raise_for_status()
    released = client.post(f"/v1/starts/{run['key']}/release", {"owner": owner})
    assert (released.status_code, released.json()["outcome"]) == (409, "work_recorded")
