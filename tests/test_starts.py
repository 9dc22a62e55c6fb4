"""The start over HTTP: every row of the decision table."""

from __future__ import annotations

import pytest

from helpers import Client, Sql, a_start, an_owner, new_key, rows


def test_a_new_key_starts_a_run_that_its_caller_owns(client: Client, sql: Sql) -> None:
    key, owner = new_key(), an_owner()
    answer = client.start(key, a_start(owner=owner, lease_ms=60_000))
    body = answer.json()
    assert answer.status_code == 201
    assert body["outcome"] == "started"
    run, held = body["run"], body["reservation"]
    assert answer.headers["Location"] == f"/v1/runs/{run['run_id']}"
    assert answer.headers["Cache-Control"] == "no-store"
    assert run["owner"] == owner
    assert (run["status"], run["generation"], run["state"]) == ("running", 1, {"cents": 500})
    assert run["lease_expires_at_ms"] - run["heartbeat_at_ms"] == 60_000
    assert held["key"] == key
    assert (held["state"], held["attempt"], held["run_id"]) == ("started", 1, run["run_id"])
    assert held["owner"] == {"kind": "service", "id": "alice"}
    [event] = sql("SELECT * FROM fencepost_events WHERE run_id = ?1", run["run_id"])
    assert run["head"] == {"sequence": 1, "hash": event["hash"]}
    facts = sql("SELECT type FROM fencepost_ownership WHERE run_id = ?1", run["run_id"])
    assert facts == [{"type": "activated"}]


def test_without_an_owner_the_worker_mints_one(client: Client) -> None:
    first, second = client.start(new_key()), client.start(new_key())
    assert first.json()["run"]["owner"]["nonce"] != second.json()["run"]["owner"]["nonce"]


def test_the_owners_own_retry_converges_on_its_start_and_writes_nothing(client: Client) -> None:
    client = client.counting()
    key, body = new_key(), a_start(owner=an_owner())
    first, retry = client.start(key, body), client.start(key, body)
    assert (first.status_code, retry.status_code) == (201, 200)
    assert retry.json()["outcome"] == "started"
    assert retry.json()["run"] == first.json()["run"]
    assert rows(retry)[1] == 0


def test_somebody_elses_retry_is_told_that_the_start_is_pending(client: Client) -> None:
    run = client.started()
    answer = client.start(run["key"])
    problem = answer.json()
    assert answer.status_code == 409
    assert answer.headers["Content-Type"] == "application/problem+json"
    assert 1 <= int(answer.headers["Retry-After"]) <= 5
    assert (problem["code"], problem["retry"]) == ("START_PENDING", "same-key")
    assert problem["run_id"] == run["run_id"]
    assert problem["pending_since_ms"] == run["started_at_ms"]


@pytest.mark.parametrize("to", ["completed", "failed", "cancelled", "suspended"])
def test_after_the_end_the_key_replays_the_run_and_its_result(client: Client, to: str) -> None:
    client = client.counting()
    run = client.started()
    result = {} if to == "suspended" else {"result": {"charge": to}}
    client.finish(run, to, **result).raise_for_status()
    answer = client.start(run["key"])
    assert answer.status_code == 200
    assert answer.headers["Idempotent-Replayed"] == "true"
    assert answer.json()["outcome"] == "replayed"
    assert answer.json()["run"]["run_id"] == run["run_id"]
    assert answer.json()["run"]["status"] == to
    assert answer.json()["run"]["result"] == result.get("result")
    assert rows(answer)[1] == 0


def test_the_end_of_a_run_settles_its_reservation(client: Client) -> None:
    run = client.started()
    client.finish(run, "failed", result="no funds").raise_for_status()
    held = client.get(f"/v1/starts/{run['key']}").json()["reservation"]
    assert (held["state"], held["outcome"]) == ("terminal", "failed")


def test_a_lapsed_lease_makes_the_start_unresolvable_and_never_runs_it_again(
    client: Client, sql: Sql
) -> None:
    client = client.counting()
    run = client.started()
    sql.lapse(run["run_id"])
    answer = client.start(run["key"])
    assert answer.status_code == 409
    assert answer.json()["code"] == "START_UNRESOLVABLE"
    assert answer.json()["retry"] == "same-key"
    assert answer.json()["attempt"] == 1
    assert rows(answer)[1] == 0


def test_the_owner_itself_goes_on_after_a_lapse_that_nobody_used_by_a_heartbeat_alone(
    client: Client, sql: Sql
) -> None:
    key, body = new_key(), a_start(owner=an_owner())
    run = client.start(key, body).json()["run"]
    sql.lapse(run["run_id"])
    problem = client.start(key, body).json()
    assert problem["code"] == "START_UNRESOLVABLE"
    path = f"/v1/runs/{run['run_id']}"
    assert problem["exits"] == [
        {"verb": "own", "path": f"{path}/own"},
        {"verb": "heartbeat", "path": f"{path}/heartbeat"},
        {"verb": "resolve", "path": f"/v1/starts/{key}/resolve"},
    ]
    client.verb(run, "heartbeat", generation=1).raise_for_status()
    assert client.start(key, body).json()["outcome"] == "started"


def test_a_foreign_owner_is_told_nothing_else(client: Client) -> None:
    run = client.started()
    answer = client.as_("bob").start(run["key"], a_start(target={"kind": "workflow", "id": "x"}))
    assert answer.status_code == 403
    assert answer.json() == {
        "type": "/docs/errors#START_OWNER_MISMATCH",
        "title": "The key belongs to another principal",
        "status": 403,
        "detail": "This key belongs to another principal.",
        "code": "START_OWNER_MISMATCH",
        "retry": "new-key",
    }


def test_another_target_is_named_before_another_input(client: Client) -> None:
    run = client.started()
    other = {"target": {"kind": "agent", "id": "charge", "thread_id": "t"}, "input": 1}
    answer = client.start(run["key"], other)
    assert answer.status_code == 422
    assert answer.json()["code"] == "START_TARGET_MISMATCH"
    assert answer.json()["target"] == {"kind": "workflow", "id": "charge"}


def test_another_input_or_lineage_is_refused(client: Client) -> None:
    run = client.started()
    for change in ({"input": {"cents": 501}}, {"lineage": {"id": "l", "round": 1}}):
        answer = client.start(run["key"], a_start(**change))
        assert answer.status_code == 422
        assert answer.json()["code"] == "START_INPUT_MISMATCH"


def test_a_purged_run_stays_settled(client: Client, sql: Sql) -> None:
    run = client.started()
    client.finish(run).raise_for_status()
    sql("DELETE FROM fencepost_runs WHERE run_id = ?1", run["run_id"])
    answer = client.start(run["key"])
    assert answer.status_code == 409
    assert answer.json()["code"] == "START_ALREADY_SETTLED"
    assert answer.json()["retry"] == "never"
    assert sql("SELECT * FROM fencepost_runs WHERE run_id = ?1", run["run_id"]) == []


def test_a_start_waits_for_the_end_when_it_prefers_to(client: Client) -> None:
    run = client.started()
    answer = client.start(run["key"], prefer="wait=1")
    assert answer.status_code == 409
    assert answer.json()["code"] == "START_PENDING"
    client.finish(run, result=1).raise_for_status()
    answer = client.start(run["key"], prefer="respond-async, wait=10")
    assert answer.headers["Preference-Applied"] == "wait=10"
    assert answer.json()["run"]["result"] == 1


def test_a_key_reserved_by_the_library_is_started_with_its_stored_run(
    client: Client, sql: Sql
) -> None:
    done = client.started()
    [row] = sql("SELECT * FROM fencepost_reservations WHERE key = ?1", done["key"])
    key = new_key()
    row |= {"key": key, "run_id": new_key("run"), "state": "reserved", "claim_nonce": None}
    marks = ", ".join(f"?{n}" for n in range(1, len(row) + 1))
    sql(f"INSERT INTO fencepost_reservations ({', '.join(row)}) VALUES ({marks})", *row.values())
    answer = client.start(key)
    assert answer.status_code == 201
    assert answer.json()["run"]["run_id"] == row["run_id"]
    assert client.start(key).json()["code"] == "START_PENDING"
