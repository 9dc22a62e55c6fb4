"""The proof of a deployment: whose start it is, what binds its run, and what spends its key."""

from __future__ import annotations

from typing import Any

import pytest

from helpers import Client, Json, Sql, a_start, an_owner, new_key


def move(client: Client, to: str, **members: Any) -> Json:
    operator = client.as_("operator")
    expected = operator.get("/v1/fence").json()["state"]
    answer = operator.post("/v1/fence/transitions", {"expected": expected, "next": to, **members})
    assert answer.status_code == 200, answer.text
    body: Json = answer.json()
    return body


def gate(client: Client) -> Json:
    body: Json = client.as_("operator").get("/v1/fence").json()
    return body


def prove(client: Client, key: str, **members: Any) -> Json:
    return move(client, "proof-only", proof_key=key, **members)


def test_the_same_proof_key_binds_its_run_again_after_another_proof_only(client: Client) -> None:
    key, body = new_key("proof"), a_start(owner=an_owner())
    prove(client, key)
    run = client.start(key, body).json()["run"]
    assert gate(client)["proof_run_id"] == run["run_id"]
    prove(client, key)
    assert gate(client)["proof_run_id"] is None
    assert client.verb(run, "heartbeat").json()["code"] == "EXECUTION_FENCED"
    again = client.start(key, body)
    assert (again.status_code, again.json()["outcome"]) == (200, "started")
    assert gate(client)["proof_run_id"] == run["run_id"]
    assert client.verb(run, "heartbeat").status_code == 200


@pytest.mark.parametrize("state", ["running", "suspended", "completed", "lapsed"])
def test_a_key_in_use_becomes_the_proof_with_its_run(client: Client, sql: Sql, state: str) -> None:
    run = client.started()
    if state == "lapsed":
        sql.lapse(run["run_id"])
    elif state != "running":
        client.finish(run, state).raise_for_status()
    prove(client, run["key"])
    client.start(run["key"])
    assert gate(client)["proof_run_id"] == run["run_id"]


def test_a_request_that_does_not_mean_the_run_binds_nothing(client: Client) -> None:
    run = client.started()
    prove(client, run["key"])
    subject = {"stage": "delivery", "change": "another"}
    others = (a_start(input="another"), a_start(subject=subject))
    for who, body in ((client.as_("bob"), None), *((client, other) for other in others)):
        assert who.start(run["key"], body).status_code in (403, 422)
        assert gate(client)["proof_run_id"] is None


def test_a_replay_binds_once_and_writes_nothing_more(client: Client) -> None:
    counting, run = client.counting(), client.started()
    client.finish(run).raise_for_status()
    prove(client, run["key"])
    written = [counting.start(run["key"]).headers["X-Local-Rows"] for _ in range(2)]
    assert [rows.split()[2] for rows in written] == ["1", "0"]


def test_only_the_principal_that_the_transition_names_may_take_the_proof(client: Client) -> None:
    key, alice = new_key("proof"), {"kind": "service", "id": "alice"}
    shown = prove(client, key, proof_principal=alice)
    assert shown["proof_principal"] == alice
    taken = client.as_("bob").start(key)
    assert (taken.status_code, taken.json()["code"]) == (503, "EXECUTION_FENCED")
    assert client.start(key).status_code == 201
    assert move(client, "open")["proof_principal"] is None


def test_a_released_proof_is_started_again_by_its_principal_alone(client: Client) -> None:
    key, alice = new_key("proof"), {"kind": "service", "id": "alice"}
    prove(client, key, proof_principal=alice)
    owner = an_owner()
    first = client.start(key, a_start(owner=owner)).json()["run"]
    released = client.post(f"/v1/starts/{key}/release", {"owner": owner})
    assert released.status_code == 200, released.text
    again = client.start(key, a_start(owner=an_owner()))
    assert (again.status_code, again.json()["run"]["run_id"]) == (201, first["run_id"])


@pytest.mark.parametrize(
    "members",
    [
        {"next": "open", "proof_principal": {"kind": "service", "id": "alice"}},
        {"next": "proof-only", "proof_key": "k", "proof_principal": {"kind": "king", "id": "a"}},
        {"next": "proof-only", "proof_key": "k", "proof_principal": {"kind": "human", "id": " "}},
        {"next": "proof-only", "proof_key": "k", "proof_principal": "alice"},
    ],
    ids=str,
)
def test_a_proof_principal_that_is_none_is_refused(client: Client, members: Json) -> None:
    body = {"expected": "open", **members}
    assert client.as_("operator").post("/v1/fence/transitions", body).status_code == 400


def test_a_start_that_would_join_a_run_does_not_spend_the_proof_key(
    client: Client, sql: Sql
) -> None:
    subject = {"stage": "delivery", "change": new_key("change").lower()}
    client.started(subject=subject)
    key = new_key("proof")
    prove(client, key)
    before = sql.dump()
    joining = client.start(key, a_start(subject=subject))
    assert (joining.status_code, joining.json()["code"]) == (503, "EXECUTION_FENCED")
    assert "without a subject" in joining.json()["detail"]
    assert sql.dump() == before
    assert client.start(key).status_code == 201


# --- Under which revision ------------------------------------------------------------------


def test_a_drain_proof_says_under_which_revision_the_last_run_was_started(client: Client) -> None:
    client.started()
    assert gate(client)["last_admitted_revision"] is None  # no fence row yet
    move(client, "draining")
    assert gate(client)["last_admitted_revision"] == 0
    move(client, "open")
    assert gate(client)["last_admitted_revision"] == 0
    run = client.started()
    held = client.get(f"/v1/starts/{run['key']}").json()["reservation"]
    assert (held["admitted_revision"], gate(client)["last_admitted_revision"]) == (2, 2)
    assert move(client, "draining")["last_admitted_revision"] == 2
    refused, replayed = client.start(new_key()), client.start(run["key"])
    assert (refused.status_code, replayed.status_code) == (503, 409)
    assert gate(client)["last_admitted_revision"] == 2


def test_the_next_attempt_is_admitted_by_the_revision_of_its_own(client: Client) -> None:
    run = client.started()
    released = client.post(f"/v1/starts/{run['key']}/release", {"owner": run["owner"]})
    assert released.json()["reservation"]["admitted_revision"] == 0
    move(client, "open")
    again = client.start(run["key"]).json()
    assert again["reservation"]["admitted_revision"] == 1
    assert gate(client)["last_admitted_revision"] == 1


def test_a_key_that_joins_a_run_starts_none(client: Client) -> None:
    subject = {"stage": "delivery", "change": new_key("change").lower()}
    client.started(subject=subject)
    move(client, "open")
    assert client.start(new_key(), a_start(subject=subject)).status_code == 200
    assert gate(client)["last_admitted_revision"] == 0


def test_only_the_first_start_under_a_revision_writes_the_fence(client: Client) -> None:
    move(client, "open")
    counting = client.counting()
    answers = [counting.start(new_key()) for _ in range(3)]
    written = [int(answer.headers["X-Local-Rows"].split()[2]) for answer in answers]
    assert written == [9, 8, 8]
