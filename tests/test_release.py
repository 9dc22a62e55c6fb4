"""Releasing a start that did not execute, and starting its key again."""

from __future__ import annotations

from helpers import Client, Json, Sql, a_start, an_owner, round_trips


def release(client: Client, run: Json, owner: Json | None = None) -> Json:
    answer = client.post(f"/v1/starts/{run['key']}/release", {"owner": owner or run["owner"]})
    body: Json = answer.json()
    assert (answer.status_code == 200) == (body["outcome"] == "released")
    return body


def test_a_released_start_waits_for_its_next_attempt(client: Client, sql: Sql) -> None:
    run = client.started()
    body = release(client, run)
    assert (body["reservation"]["state"], body["reservation"]["attempt"]) == ("reserved", 2)
    assert (body["run"]["status"], body["run"]["owner"]) == ("pending", None)
    facts = sql("SELECT type FROM fencepost_ownership WHERE run_id = ?1", run["run_id"])
    assert [fact["type"] for fact in facts] == ["activated", "released"]


def test_a_released_key_starts_the_same_run_with_a_new_generation(client: Client, sql: Sql) -> None:
    run = client.started()
    release(client, run)
    answer = client.start(run["key"], a_start(owner=an_owner()))
    body = answer.json()
    assert answer.status_code == 201
    assert round_trips(answer) == 2
    assert body["run"]["run_id"] == run["run_id"]
    assert (body["run"]["generation"], body["reservation"]["attempt"]) == (2, 2)
    assert body["run"]["state"] == {"cents": 500}
    events = sql(
        "SELECT type, prior_hash, hash FROM fencepost_events WHERE run_id = ?1 ORDER BY sequence",
        run["run_id"],
    )
    assert [e["type"] for e in events] == ["run-created", "run-released", "run-restarted"]
    assert [e["prior_hash"] for e in events[1:]] == [e["hash"] for e in events[:-1]]


def test_a_released_key_still_refuses_another_input(client: Client) -> None:
    run = client.started()
    release(client, run)
    answer = client.start(run["key"], a_start(input=None))
    assert answer.json()["code"] == "START_INPUT_MISMATCH"


def test_only_the_owner_can_say_that_the_start_did_not_execute(client: Client, sql: Sql) -> None:
    run = client.started()
    before = sql.dump()
    assert release(client, run, an_owner())["outcome"] == "fence_lost"
    answer = client.as_("bob").post(f"/v1/starts/{run['key']}/release", {"owner": run["owner"]})
    assert answer.status_code == 404
    assert sql.dump() == before


def test_an_owner_whose_lease_ended_cannot_release(client: Client, sql: Sql) -> None:
    run = client.started()
    sql.lapse(run["run_id"])
    before = sql.dump()
    assert release(client, run)["outcome"] == "fence_lost"
    assert sql.dump() == before


def test_a_run_that_ended_is_not_released(client: Client) -> None:
    run = client.started()
    client.finish(run).raise_for_status()
    assert release(client, run)["outcome"] == "fence_lost"
    assert client.start(run["key"]).json()["outcome"] == "replayed"


def test_release_passes_a_closed_fence(client: Client, sql: Sql) -> None:
    run = client.started()
    sql.fence("migration-locked")
    assert release(client, run)["outcome"] == "released"
    answer = client.start(run["key"])
    assert (answer.status_code, answer.json()["code"]) == (503, "EXECUTION_FENCED")


def test_a_pending_run_that_somebody_owns_directly_is_not_started_twice(client: Client) -> None:
    run = client.started()
    release(client, run)
    rival = an_owner()
    owned = client.post(f"/v1/runs/{run['run_id']}/own", {"owner": rival})
    assert owned.json()["outcome"] == "owned"
    assert client.start(run["key"]).json()["code"] == "START_PENDING"
    client.finish({**run, "owner": rival}, result=1).raise_for_status()
    assert client.start(run["key"]).json()["run"]["result"] == 1
