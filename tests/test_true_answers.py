"""An answer says what is stored, and what became of this very request."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from helpers import Client, Json, Sql, a_start, an_owner, new_key


def faulty(fault: str, path: str = "", body: Json | None = None) -> dict[str, Any]:
    """Headers of a request whose D1 batches fail as told, with a rival in the first window."""
    headers = {"X-Local-Fault": fault}
    if body is not None:
        authorization = {"Authorization": "Bearer alice"}
        rival = {"path": path, "headers": authorization, "body": json.dumps(body)}
        headers["X-Local-Rival"] = json.dumps(rival)
    return {"headers": headers}


def branch(answer: httpx.Response) -> str:
    return answer.headers["Server-Timing"].partition('commit;desc="')[2].strip('"')


# --- Times -------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", ["", "pass,lost", "pass,drop"])
def test_the_time_of_an_event_is_the_time_that_is_stored(
    client: Client, run: Json, fault: str
) -> None:
    """Also when a rival has written to the run since, at another time."""
    path = f"/v1/runs/{run['run_id']}/events"
    rival = {"type": "rival"} if fault == "pass,lost" else None
    options = faulty(fault, path, rival) if fault else {}
    told = client.post(path, {"type": "noted"}, **options).json()["event"]
    stored = client.get(path).json()["items"]
    assert told in stored


# --- Unknown outcomes --------------------------------------------------------------------


def test_an_event_of_unknown_outcome_is_not_said_to_be_safe_to_send_again(
    client: Client, run: Json
) -> None:
    path = f"/v1/runs/{run['run_id']}/events"
    answer = client.post(path, {"type": "noted"}, **faulty("pass,lost,drop"))
    assert answer.json()["code"] == "WRITE_OUTCOME_UNKNOWN"
    assert "appended once more" in answer.json()["detail"]
    head = {"sequence": 2, "hash": client.get(path).json()["items"][-1]["hash"]}
    body = {"type": "noted", "expected_head": head}
    answer = client.post(path, body, **faulty("lost,drop"))
    assert answer.json()["code"] == "WRITE_OUTCOME_UNKNOWN"
    assert "once more" not in answer.json()["detail"]


@pytest.mark.parametrize("owned", [True, False])
def test_a_start_of_unknown_outcome_says_whether_the_same_request_converges(
    client: Client, owned: bool
) -> None:
    key, body = new_key(), a_start(**({"owner": an_owner()} if owned else {}))
    answer = client.start(key, body, X_Local_Fault="lost,drop")
    assert answer.json()["code"] == "WRITE_OUTCOME_UNKNOWN"
    assert ("START_UNRESOLVABLE" in answer.json()["detail"]) is not owned
    again = client.start(key, body)
    assert (again.status_code, again.json().get("code")) == (
        (200, None) if owned else (409, "START_PENDING")
    )


# --- Decided before it is issued again ---------------------------------------------------


def test_rows_that_hold_the_decision_are_answered_and_nothing_is_issued_again(
    client: Client, run: Json
) -> None:
    """The run ended in the window; were the write issued again, its failure would be a 503."""
    path = f"/v1/runs/{run['run_id']}"
    end = {"owner": run["owner"], "to": "completed"}
    options = faulty("drop,pass,drop", f"{path}/transition", end)
    answer = client.post(f"{path}/heartbeat", {"owner": run["owner"]}, **options)
    assert (answer.status_code, answer.json()["code"]) == (409, "FENCE_LOST")
    assert branch(answer) == "decided"


def test_a_start_whose_key_was_taken_in_the_window_is_decided_from_the_row(
    client: Client,
) -> None:
    key = new_key()
    rival = {
        "path": "/v1/starts",
        "headers": {"Authorization": "Bearer alice", "Idempotency-Key": key},
        "body": json.dumps(a_start(owner=an_owner())),
    }
    headers = {"X_Local_Fault": "drop,pass,drop", "X_Local_Rival": json.dumps(rival)}
    answer = client.start(key, a_start(owner=an_owner()), **headers)
    assert (answer.status_code, answer.json()["code"]) == (409, "START_PENDING")
    assert branch(answer) == "decided"


# --- What was written --------------------------------------------------------------------


@pytest.mark.parametrize("fault", [None, "lost", "drop"])
def test_an_activation_that_removed_the_claim_does_not_say_that_nothing_was_written(
    client: Client, sql: Sql, run: Json, fault: str | None
) -> None:
    sql.lapse(run["run_id"])
    thief, path = an_owner(), f"/v1/runs/{run['run_id']}"
    evidence = {"kind": "lease-expired", "expected_owner": run["owner"]}
    client.post(f"{path}/steal", {"owner": thief, "evidence": evidence}).raise_for_status()
    client.verb(run, "heartbeat").raise_for_status()
    options = faulty(fault) if fault else {}
    problem = client.post(f"{path}/activate", {"owner": thief}, **options).json()
    assert problem["code"] == "SNAPSHOT_CHANGED"
    assert problem["run"]["claim"] is None
    assert "Nothing was written" not in problem["detail"]
    assert "claim was removed" in problem["detail"]


# --- The run that an outcome is about ----------------------------------------------------


def rounds(client: Client, *ends: str | None) -> list[Json]:
    lineage = new_key("lineage")
    found = []
    for number, end in enumerate(ends):
        run = client.started(lineage={"id": lineage, "round": number})
        if end:
            client.finish(run, end).raise_for_status()
        found.append(run)
    return found


def cancel_lineage(client: Client, run: Json) -> Json:
    answer: Json = client.post(f"/v1/runs/{run['run_id']}/lineage/cancel", {}).json()
    return answer


def test_a_lineage_cancel_shows_the_last_round_that_it_asked(client: Client) -> None:
    first, asked, ended = rounds(client, None, None, "completed")
    answer = cancel_lineage(client, first)
    assert answer["outcome"] == "cancel_requested"
    assert answer["run"]["run_id"] == asked["run_id"]
    assert answer["run"]["cancel_requested_at_ms"] is not None
    again = cancel_lineage(client, ended)
    assert (again["outcome"], again["run"]["run_id"]) == ("already_requested", asked["run_id"])
    client.finish(first).raise_for_status()
    client.finish(asked).raise_for_status()
    over = cancel_lineage(client, first)
    assert (over["outcome"], over["run"]["run_id"]) == ("terminal", ended["run_id"])


def test_a_lineage_cancel_whose_reply_was_lost_shows_the_round_that_it_asked(
    client: Client,
) -> None:
    first, asked, _ = rounds(client, None, None, "completed")
    end = {"owner": asked["owner"], "to": "cancelled"}
    options = faulty("lost", f"/v1/runs/{asked['run_id']}/transition", end)
    path = f"/v1/runs/{first['run_id']}/lineage/cancel"
    answer = client.post(path, {}, **options)
    assert (answer.json()["outcome"], branch(answer)) == ("cancel_requested", "landed")
    assert answer.json()["run"]["run_id"] == asked["run_id"]


def test_a_lineage_cancel_ends_the_rounds_that_wait(client: Client) -> None:
    first, waits, _ = rounds(client, None, None, "completed")
    path = f"/v1/starts/{waits['key']}/release"
    client.post(path, {"owner": waits["owner"]}).raise_for_status()
    answer = cancel_lineage(client, first)
    assert (answer["run"]["run_id"], answer["run"]["status"]) == (waits["run_id"], "cancelled")
    assert client.get(f"/v1/runs/{first['run_id']}").json()["cancel_requested_at_ms"] is not None
    assert client.start(waits["key"], a_start(lineage=waits["lineage"])).json()["outcome"] == (
        "replayed"
    )


# --- Who asked, and who answered ---------------------------------------------------------


def test_a_cancel_and_its_acknowledgement_are_facts_that_say_by_whom(
    client: Client, run: Json
) -> None:
    path = f"/v1/runs/{run['run_id']}"
    asked = client.as_("operator").post(f"{path}/cancel", {}).json()["run"]
    answered = client.verb(run, "acknowledge-cancel").json()["run"]
    _, request, acknowledgement = client.get(f"{path}/ownership").json()["items"]
    assert (request["type"], request["owner"]) == ("cancel-requested", None)
    assert request["principal"] == {"kind": "human", "id": "olga"}
    assert request["at_ms"] == asked["cancel_requested_at_ms"]
    assert acknowledgement["type"] == "cancel-acknowledged"
    assert (acknowledgement["owner"], acknowledgement["principal"]) == (run["owner"], None)
    assert acknowledgement["at_ms"] == answered["cancel_acknowledged_at_ms"]


@pytest.mark.parametrize("verb", ["cancel", "acknowledge-cancel"])
def test_a_cancel_that_landed_is_told_so_whatever_covered_its_trace(
    client: Client, run: Json, verb: str
) -> None:
    path = f"/v1/runs/{run['run_id']}"
    body = {} if verb == "cancel" else {"owner": run["owner"]}
    if verb != "cancel":
        client.post(f"{path}/cancel", {}).raise_for_status()
    options = faulty("lost", f"{path}/heartbeat", {"owner": run["owner"]})
    answer = client.post(f"{path}/{verb}", body, **options)
    assert (answer.status_code, branch(answer)) == (200, "landed")


# --- JSON is compared as JSON ------------------------------------------------------------


def test_a_commit_sent_again_with_the_same_json_in_other_words_is_committed(
    client: Client, run: Json
) -> None:
    path = f"/v1/runs/{run['run_id']}/operations/pay"
    leased = client.post(f"{path}/acquire", {"owner": run["owner"], "ttl_ms": 60_000}).json()
    body = {"owner": run["owner"], "token": leased["lease"]["token"]}
    client.post(f"{path}/commit", {**body, "outcome": {"a": 500, "b": [1]}}).raise_for_status()
    for outcome in ({"b": [1.0], "a": 500.0}, {"a": 5e2, "b": [1]}):
        again = client.post(f"{path}/commit", {**body, "outcome": outcome})
        assert (again.status_code, again.json()["outcome"]) == (200, "committed")
    other = client.post(f"{path}/commit", {**body, "outcome": {"a": 501, "b": [1]}})
    assert other.json()["code"] == "LEASE_FENCED"
