"""The fencing token in every verb: a stale generation, or a claim that is over, writes nothing."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from helpers import Client, Json, Sql, acquired, an_owner, new_key

BINDING = {"gate": "a", "revision": 1, "receipt_hash": "0" * 64}
# Verbs of an owner, with what else each takes.
OWNER_VERBS: dict[str, Json] = {
    "heartbeat": {},
    "reconfirm": {},
    "transition": {"to": "running", "state": 1},
    "transition to an end": {"to": "completed", "result": 1},
    "events": {"type": "noted"},
    "bindings": {"bindings": [BINDING]},
    "bind-change": {"change": "c"},
    "acknowledge-cancel": {},
    "operations/new/acquire": {"ttl_ms": 60_000},
    "operations/step/renew": {"ttl_ms": 60_000},
    "operations/step/assert": {},
    "operations/step/commit": {"outcome": 1},
    "operations/step/interrupt": {},
}


@pytest.fixture
def second(client: Client, sql: Sql) -> Json:
    """A design run that its owner owns anew: in generation 2, with a step and a cancel."""
    run = client.started(subject={"stage": "design", "provisional": new_key("draft")})
    sql.lapse(run["run_id"])
    client.verb(run, "own").raise_for_status()
    client.post(f"/v1/runs/{run['run_id']}/cancel", {}).raise_for_status()
    return {**run, "token": acquired(client, run)["lease"]["token"]}


def send(client: Client, run: Json, name: str, **members: Any) -> httpx.Response:
    body = {"owner": run["owner"], **OWNER_VERBS[name], **members}
    if name.startswith("operations/step/"):
        body["token"] = run["token"]
    if name == "bind-change":
        body["change"] = new_key("c").lower()
    return client.post(f"/v1/runs/{run['run_id']}/{name.split(' ')[0]}", body)


@pytest.mark.parametrize("name", OWNER_VERBS)
def test_a_stale_generation_of_the_very_owner_writes_nothing(
    client: Client, sql: Sql, second: Json, name: str
) -> None:
    for generation in (1, 3):
        before = sql.dump()
        answer = send(client, second, name, generation=generation)
        assert (answer.status_code, answer.json()["code"]) == (409, "FENCE_LOST"), answer.text
        assert sql.dump() == before
    assert send(client, second, name, generation=2).status_code == 200


@pytest.mark.parametrize("generation", [0, -1, "2", 1.5, True])
def test_a_generation_is_a_positive_integer(client: Client, run: Json, generation: Any) -> None:
    answer = client.verb(run, "heartbeat", generation=generation)
    assert (answer.status_code, answer.json()["code"]) == (400, "INVALID_REQUEST")


# --- Claims ------------------------------------------------------------------------------


def claim(client: Client, run: Json, owner: Json) -> int:
    answer = client.post(f"/v1/runs/{run['run_id']}/claim", {"owner": owner})
    at_ms: int = answer.json()["run"]["claim"]["claimed_at_ms"]
    return at_ms


@pytest.fixture
def waiting(client: Client) -> Json:
    run = client.started()
    client.finish(run, "suspended").raise_for_status()
    return run


def test_a_second_claim_of_the_same_process_has_a_later_time(client: Client, waiting: Json) -> None:
    owner, path = an_owner(), f"/v1/runs/{waiting['run_id']}"
    times = []
    for _ in range(5):
        times.append(claim(client, waiting, owner))
        client.post(f"{path}/abandon", {"owner": owner}).raise_for_status()
    assert times == sorted(set(times))


@pytest.mark.parametrize("verb", ["activate", "abandon"])
def test_a_late_verb_of_the_first_claim_does_not_act_on_the_second(
    client: Client, sql: Sql, waiting: Json, verb: str
) -> None:
    owner, path = an_owner(), f"/v1/runs/{waiting['run_id']}"
    first = claim(client, waiting, owner)
    client.post(f"{path}/abandon", {"owner": owner}).raise_for_status()
    second = claim(client, waiting, owner)
    before = sql.dump()
    late = client.post(f"{path}/{verb}", {"owner": owner, "claimed_at_ms": first})
    assert (late.status_code, late.json()["code"]) == (409, "CLAIM_LOST")
    assert sql.dump() == before
    now = client.post(f"{path}/{verb}", {"owner": owner, "claimed_at_ms": second})
    assert now.status_code == 200


def test_a_late_recovery_of_the_first_claim_does_not_remove_the_second(
    client: Client, sql: Sql, waiting: Json
) -> None:
    owner, path = an_owner(), f"/v1/runs/{waiting['run_id']}"
    first = claim(client, waiting, owner)
    client.post(f"{path}/abandon", {"owner": owner}).raise_for_status()
    claim(client, waiting, owner)
    sql("UPDATE fencepost_runs SET claimed_at_ms = 5 WHERE run_id = ?1", waiting["run_id"])
    evidence = {"kind": "lease-expired", "expected_owner": owner}
    body = {"owner": an_owner(), "evidence": evidence}
    before = sql.dump()
    late = client.post(f"{path}/recover", {**body, "claimed_at_ms": first})
    assert late.json()["code"] == "CLAIM_CHANGED"
    assert sql.dump() == before
    now = client.post(f"{path}/recover", {**body, "claimed_at_ms": 5})
    assert now.json()["outcome"] == "recovered"


# --- What was looked at ------------------------------------------------------------------


@pytest.mark.parametrize("verb", ["own", "steal"])
def test_evidence_about_an_earlier_heartbeat_is_stale(
    client: Client, sql: Sql, run: Json, verb: str
) -> None:
    """The thief looks, the owner beats, and lapses again."""
    sql.lapse(run["run_id"])
    client.verb(run, "heartbeat").raise_for_status()
    sql(
        "UPDATE fencepost_runs SET heartbeat_at_ms = 7, lease_expires_at_ms = 8 WHERE run_id = ?1",
        run["run_id"],
    )
    evidence = {"kind": "lease-expired", "expected_owner": run["owner"]}
    path, thief = f"/v1/runs/{run['run_id']}/{verb}", an_owner()
    before = sql.dump()
    stale = {**evidence, "expected_heartbeat_at_ms": 1}
    answer = client.post(path, {"owner": thief, "evidence": stale})
    assert (answer.status_code, answer.json()["code"]) == (409, "SNAPSHOT_CHANGED")
    assert sql.dump() == before
    fits = {**evidence, "expected_heartbeat_at_ms": 7}
    assert client.post(path, {"owner": thief, "evidence": fits}).status_code == 200


@pytest.mark.parametrize("verb", ["own", "claim"])
def test_a_delayed_verb_that_saw_another_status_loses(
    client: Client, sql: Sql, waiting: Json, verb: str
) -> None:
    path, owner = f"/v1/runs/{waiting['run_id']}/{verb}", an_owner()
    before = sql.dump()
    late = client.post(path, {"owner": owner, "expected_status": "pending"})
    assert (late.status_code, late.json()["code"]) == (409, "SNAPSHOT_CHANGED")
    assert sql.dump() == before
    now = client.post(path, {"owner": owner, "expected_status": "suspended"})
    assert now.status_code == 200


def test_a_loss_names_what_beat_the_caller(client: Client, sql: Sql, run: Json) -> None:
    sql.lapse(run["run_id"])
    evidence = {"kind": "lease-expired", "expected_owner": run["owner"]}
    path = f"/v1/runs/{run['run_id']}"
    client.post(f"{path}/own", {"owner": an_owner(), "evidence": evidence}).raise_for_status()
    [*_, fact] = client.get(f"{path}/ownership").json()["items"]
    lost = client.verb(run, "heartbeat").json()
    assert lost["beaten_by"] == {
        "type": "activated",
        "generation": 2,
        "sequence": fact["sequence"],
        "at_ms": fact["at_ms"],
    }
    head = {"sequence": 1, "hash": run["head"]["hash"]}
    client.post(f"{path}/events", {"type": "noted"}).raise_for_status()
    lost = client.post(f"{path}/events", {"type": "noted", "expected_head": head}).json()
    assert lost["code"] == "HEAD_CHANGED"
    assert (lost["beaten_by"]["type"], lost["beaten_by"]["sequence"]) == ("noted", 2)
    assert lost["beaten_by"]["generation"] is None
