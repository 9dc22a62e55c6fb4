"""Moving a run along: checkpoints, suspension, ends, guards and expected heads."""

from __future__ import annotations

import pytest

from helpers import Client, Sql, round_trips


def test_a_checkpoint_keeps_the_owner_and_replaces_the_state(client: Client) -> None:
    run = client.started()
    body = client.finish(run, "running", state={"step": 2}).json()
    assert body["outcome"] == "transitioned"
    after = body["run"]
    assert (after["status"], after["owner"], after["state"]) == (
        "running",
        run["owner"],
        {"step": 2},
    )
    assert after["head"]["sequence"] == 2
    assert after["heartbeat_at_ms"] == run["heartbeat_at_ms"]


def test_an_omitted_state_keeps_the_old_one_and_null_is_a_state(client: Client) -> None:
    run = client.started()
    client.finish(run, "running", state=[1]).raise_for_status()
    assert client.finish(run, "running").json()["run"]["state"] == [1]
    assert client.finish(run, "running", state=None).json()["run"]["state"] is None


@pytest.mark.parametrize("to", ["completed", "failed", "cancelled"])
def test_an_end_clears_the_owner_stamps_the_time_and_settles(
    client: Client, sql: Sql, to: str
) -> None:
    run = client.started()
    after = client.finish(run, to, result={"ok": False}).json()["run"]
    assert (after["status"], after["owner"], after["heartbeat_at_ms"]) == (to, None, None)
    assert after["finished_at_ms"] >= run["started_at_ms"]
    assert after["result"] == {"ok": False}
    [held] = sql("SELECT * FROM fencepost_reservations WHERE key = ?1", run["key"])
    assert (held["state"], held["outcome"]) == ("terminal", to)


def test_a_suspended_run_lets_go_of_its_owner_and_settles_nothing(client: Client, sql: Sql) -> None:
    run = client.started()
    after = client.finish(run, "suspended").json()["run"]
    assert (after["status"], after["owner"], after["finished_at_ms"]) == ("suspended", None, None)
    [held] = sql("SELECT state FROM fencepost_reservations WHERE key = ?1", run["key"])
    assert held == {"state": "started"}


def test_an_ended_run_is_not_moved_again(client: Client, sql: Sql) -> None:
    run = client.started()
    client.finish(run, result=1).raise_for_status()
    before = sql.dump()
    answer = client.finish(run, "failed", result=2)
    assert (answer.status_code, answer.json()["outcome"]) == (409, "fence_lost")
    assert sql.dump() == before


def test_the_guard_on_a_cancel_request_is_part_of_the_write(client: Client, sql: Sql) -> None:
    run = client.started()
    answer = client.finish(run, guard={"cancel_requested": "present"})
    assert (answer.status_code, answer.json()["outcome"]) == (409, "guard_failed")
    sql("UPDATE fencepost_runs SET cancel_requested_at_ms = 5 WHERE run_id = ?1", run["run_id"])
    answer = client.finish(run, guard={"cancel_requested": "absent"})
    assert answer.json()["outcome"] == "guard_failed"
    answer = client.finish(run, "cancelled", guard={"cancel_requested": "present"})
    assert answer.json()["outcome"] == "transitioned"


def test_an_expected_head_costs_one_round_trip_and_must_be_the_head(client: Client) -> None:
    run = client.started()
    answer = client.finish(run, "running", expected_head=run["head"])
    assert (answer.status_code, round_trips(answer)) == (200, 1)
    answer = client.finish(run, "running", expected_head=run["head"])
    assert (answer.status_code, answer.json()["outcome"]) == (409, "head_changed")
    assert answer.json()["run"]["head"]["sequence"] == 2
    assert round_trips(client.finish(run)) == 2


def test_a_transition_is_recorded_by_digest(client: Client, sql: Sql) -> None:
    run = client.started()
    client.finish(run, result={"secret": 1}).raise_for_status()
    [event] = sql(
        "SELECT type, payload FROM fencepost_events WHERE run_id = ?1 AND sequence = 2",
        run["run_id"],
    )
    assert event["type"] == "state-transitioned"
    assert "secret" not in event["payload"]
    assert '"from":"running"' in event["payload"]
