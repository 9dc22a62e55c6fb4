"""Releasing a start that did not execute, and starting its key again."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from helpers import Client, Json, Sql, a_start, acquired, an_owner, new_key, round_trips


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


# --- What was begun is never given back --------------------------------------------------


def taken_over(client: Client, sql: Sql, run: Json) -> Json:
    """The run, held by another process that gave evidence."""
    sql.lapse(run["run_id"])
    thief = an_owner()
    evidence = {"kind": "lease-expired", "expected_owner": run["owner"]}
    body = {"owner": thief, "evidence": evidence}
    client.post(f"/v1/runs/{run['run_id']}/own", body).raise_for_status()
    return {**run, "owner": thief}


def checkpointed(client: Client, sql: Sql, run: Json) -> Json:
    client.finish(run, "running", state={"page": 1}).raise_for_status()
    return run


def noted(client: Client, sql: Sql, run: Json) -> Json:
    client.post(f"/v1/runs/{run['run_id']}/events", {"type": "noted"}).raise_for_status()
    return run


def leased(client: Client, sql: Sql, run: Json) -> Json:
    acquired(client, run)
    return run


def committed(client: Client, sql: Sql, run: Json) -> Json:
    token = acquired(client, run)["lease"]["token"]
    client.operation(run, "commit", token=token, outcome=1).raise_for_status()
    return run


def bound(client: Client, sql: Sql, run: Json) -> Json:
    binding = {"gate": "a", "revision": 1, "receipt_hash": "0" * 64}
    client.verb(run, "bindings", bindings=[binding]).raise_for_status()
    return run


def suspended_and_owned(client: Client, sql: Sql, run: Json) -> Json:
    client.finish(run, "suspended").raise_for_status()
    client.verb(run, "own").raise_for_status()
    return run


def acknowledged(client: Client, sql: Sql, run: Json) -> Json:
    client.post(f"/v1/runs/{run['run_id']}/cancel", {}).raise_for_status()
    client.verb(run, "acknowledge-cancel").raise_for_status()
    return run


def owned_anew(client: Client, sql: Sql, run: Json) -> Json:
    """By the very same process, after its lease lapsed: a generation that no start granted."""
    sql.lapse(run["run_id"])
    client.verb(run, "own").raise_for_status()
    return run


BEGUN: dict[str, Callable[[Client, Sql, Json], Json]] = {
    "taken over": taken_over,
    "checkpoint": checkpointed,
    "event": noted,
    "step leased": leased,
    "step committed": committed,
    "delivery bound": bound,
    "suspended and owned again": suspended_and_owned,
    "cancel acknowledged": acknowledged,
    "owned anew by the same process": owned_anew,
}


@pytest.mark.parametrize("begun", BEGUN)
def test_a_start_whose_attempt_recorded_anything_is_never_given_back(
    client: Client, sql: Sql, begun: str
) -> None:
    run = BEGUN[begun](client, sql, client.started())
    before = sql.dump()
    path = f"/v1/starts/{run['key']}/release"
    answer = client.post(path, {"owner": run["owner"]})
    assert (answer.status_code, answer.json()["code"]) == (409, "WORK_RECORDED")
    assert answer.json()["retry"] == "never"
    assert sql.dump() == before
    again = client.start(run["key"], a_start(owner=an_owner()))
    assert again.json()["code"] == "START_PENDING"


def test_heartbeats_record_nothing_and_do_not_stand_in_the_way(client: Client) -> None:
    run = client.started()
    for verb in ("heartbeat", "reconfirm", "heartbeat"):
        client.verb(run, verb).raise_for_status()
    assert release(client, run)["outcome"] == "released"


def test_what_an_earlier_attempt_recorded_does_not_hold_a_later_one(
    client: Client, sql: Sql
) -> None:
    run = client.started()
    acquired(client, run)
    sql.lapse(run["run_id"])
    operator = client.as_("operator")
    seen = operator.get(f"/v1/starts/{run['key']}").json()["seen"]
    said = {"decision": "not_executed", "seen": seen, "note": "n"}
    operator.post(f"/v1/starts/{run['key']}/resolve", said).raise_for_status()
    second = client.start(run["key"], a_start(owner=an_owner())).json()["run"]
    assert release(client, {**run, **second})["reservation"]["attempt"] == 3


def test_a_stale_generation_releases_nothing(client: Client, sql: Sql) -> None:
    run = client.started()
    before = sql.dump()
    path = f"/v1/starts/{run['key']}/release"
    answer = client.post(path, {"owner": run["owner"], "generation": 2})
    assert answer.json()["code"] == "FENCE_LOST"
    assert sql.dump() == before
    assert client.post(path, {"owner": run["owner"], "generation": 1}).status_code == 200


def test_a_released_start_whose_cancel_was_requested_ends_cancelled(client: Client) -> None:
    run = client.started()
    client.post(f"/v1/runs/{run['run_id']}/cancel", {}).raise_for_status()
    body = release(client, run)
    assert body["run"]["status"] == "cancelled"
    held = body["reservation"]
    assert (held["state"], held["outcome"], held["attempt"]) == ("terminal", "cancelled", 1)
    replay = client.start(run["key"])
    assert replay.headers["Idempotent-Replayed"] == "true"
    assert client.get(f"/v1/runs/{run['run_id']}/integrity").json()["intact"] is True


def test_a_key_that_joined_a_run_does_not_release_it(client: Client, sql: Sql) -> None:
    subject = {"stage": "build", "change": new_key("change")}
    run = client.started(subject=subject)
    joined = new_key()
    client.start(joined, a_start(subject=subject)).raise_for_status()
    before = sql.dump()
    answer = client.post(f"/v1/starts/{joined}/release", {"owner": run["owner"]})
    assert (answer.status_code, answer.json()["code"]) == (409, "KEY_JOINED")
    assert sql.dump() == before


def test_a_claim_that_stood_ends_with_the_release_and_its_fact_says_so(
    client: Client, sql: Sql
) -> None:
    run = client.started()
    sql.lapse(run["run_id"])
    thief = an_owner()
    evidence = {"kind": "lease-expired", "expected_owner": run["owner"]}
    steal = {"owner": thief, "evidence": evidence}
    client.post(f"/v1/runs/{run['run_id']}/steal", steal).raise_for_status()
    client.verb(run, "heartbeat").raise_for_status()
    assert release(client, run)["run"]["claim"] is None
    facts = client.get(f"/v1/runs/{run['run_id']}/ownership").json()["items"]
    assert [(f["type"], f["owner"]["nonce"]) for f in facts] == [
        ("activated", run["owner"]["nonce"]),
        ("stolen", thief["nonce"]),
        ("released", thief["nonce"]),
        ("released", run["owner"]["nonce"]),
    ]
