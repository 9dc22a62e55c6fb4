"""Owning and keeping a run over HTTP, as far as own and heartbeat go."""

from __future__ import annotations

import pytest

from fencepost import ownership
from fencepost.identifiers import Principal
from fencepost.runs import Outcome, Owner
from helpers import BridgeDatabase, Client, Json, Sql, an_owner


def facts(sql: Sql, run: Json) -> list[tuple[str, str, int]]:
    rows = sql(
        "SELECT type, owner_nonce, generation FROM fencepost_ownership "
        "WHERE run_id = ?1 ORDER BY sequence",
        run["run_id"],
    )
    return [(row["type"], row["owner_nonce"], row["generation"]) for row in rows]


def own(client: Client, run: Json, owner: Json, **members: object) -> Json:
    answer = client.post(f"/v1/runs/{run['run_id']}/own", {"owner": owner, **members})
    body: Json = answer.json()
    assert (answer.status_code == 200) == (body["outcome"] == "owned")
    return body


def test_a_suspended_run_is_owned_by_whoever_comes_first(client: Client, sql: Sql) -> None:
    run, next_owner = client.started(), an_owner()
    client.finish(run, "suspended").raise_for_status()
    body = own(client, run, next_owner, lease_ms=5000)
    assert body["run"]["owner"] == next_owner
    assert body["run"]["generation"] == 2
    assert body["run"]["lease_expires_at_ms"] - body["run"]["heartbeat_at_ms"] == 5000
    assert body["run"]["started_at_ms"] == run["started_at_ms"]
    mine, other = run["owner"]["nonce"], next_owner["nonce"]
    assert facts(sql, run) == [
        ("activated", mine, 1),
        ("released", mine, 1),
        ("claimed", other, 1),
        ("activated", other, 2),
    ]


def test_a_run_with_a_fresh_lease_is_nobody_elses(client: Client) -> None:
    run, thief = client.started(), an_owner()
    evidence = {"kind": "lease-expired", "expected_owner": run["owner"]}
    body = own(client, run, thief, evidence=evidence)
    assert (body["outcome"], body["code"]) == ("heartbeat_fresh", "HEARTBEAT_FRESH")
    assert body["retry"] == "same-key"
    assert "state" not in body["run"]


def test_a_lapsed_run_is_not_taken_without_evidence(client: Client, sql: Sql) -> None:
    run = client.started()
    sql.lapse(run["run_id"])
    before = sql.dump()
    assert own(client, run, an_owner())["outcome"] == "evidence_required"
    assert sql.dump() == before


def test_evidence_must_name_the_present_owner(client: Client, sql: Sql) -> None:
    run = client.started()
    sql.lapse(run["run_id"])
    evidence = {"kind": "lease-expired", "expected_owner": an_owner()}
    assert own(client, run, an_owner(), evidence=evidence)["outcome"] == "snapshot_changed"


@pytest.mark.parametrize(
    ("kind", "host", "outcome"),
    [
        ("same-host-pid-dead", "host", "owned"),
        ("same-host-pid-dead", "elsewhere", "evidence_required"),
        ("cross-host-unreachable-stale", "elsewhere", "owned"),
        ("cross-host-unreachable-stale", "host", "evidence_required"),
        ("lease-expired", "host", "owned"),
        ("lease-expired", "elsewhere", "owned"),
    ],
)
def test_each_kind_of_evidence_has_its_rule_about_hosts(
    client: Client, sql: Sql, kind: str, host: str, outcome: str
) -> None:
    run, thief = client.started(), {**an_owner(), "host_id": host}
    sql.lapse(run["run_id"])
    evidence = {"kind": kind, "expected_owner": run["owner"]}
    assert own(client, run, thief, evidence=evidence)["outcome"] == outcome
    if outcome == "owned":
        nonce = thief["nonce"]
        assert facts(sql, run)[1:] == [("stolen", nonce, 1), ("activated", nonce, 2)]


def test_an_owner_takes_its_own_lapsed_run_back_without_evidence(client: Client, sql: Sql) -> None:
    run = client.started()
    sql.lapse(run["run_id"])
    assert own(client, run, run["owner"])["run"]["generation"] == 2
    assert [fact[0] for fact in facts(sql, run)[1:]] == ["released", "claimed", "activated"]


def test_a_run_that_ended_is_not_owned_again(client: Client) -> None:
    run = client.started()
    client.finish(run).raise_for_status()
    assert own(client, run, an_owner())["outcome"] == "snapshot_changed"


def test_a_heartbeat_renews_the_lease_and_writes_one_row_and_no_fact(
    client: Client, sql: Sql
) -> None:
    run = client.started()
    answer = client.verb(run, "heartbeat", lease_ms=100_000)
    body = answer.json()
    assert (answer.status_code, body["outcome"]) == (200, "renewed")
    assert body["run"]["lease_expires_at_ms"] >= run["lease_expires_at_ms"] + 60_000
    assert body["run"]["generation"] == 1
    assert len(facts(sql, run)) == 1


def test_a_lease_never_moves_backwards(client: Client) -> None:
    run = client.started(lease_ms=3_600_000)
    body = client.verb(run, "heartbeat", lease_ms=1000).json()
    assert body["run"]["lease_expires_at_ms"] == run["lease_expires_at_ms"]


def test_a_process_that_lost_its_lease_to_another_is_fenced(client: Client, sql: Sql) -> None:
    run, thief = client.started(), an_owner()
    sql.lapse(run["run_id"])
    evidence = {"kind": "lease-expired", "expected_owner": run["owner"]}
    own(client, run, thief, evidence=evidence)
    before = sql.dump()
    for answer in (client.verb(run, "heartbeat"), client.finish(run)):
        assert (answer.status_code, answer.json()["outcome"]) == (409, "fence_lost")
        assert answer.json()["retry"] == "never"
    assert sql.dump() == before


def test_a_heartbeat_after_a_lapse_that_nobody_used_revives_the_lease(
    client: Client, sql: Sql
) -> None:
    run = client.started()
    sql.lapse(run["run_id"])
    assert client.verb(run, "heartbeat").json()["outcome"] == "renewed"
    assert client.start(run["key"]).json()["code"] == "START_PENDING"


@pytest.mark.anyio
async def test_a_lease_that_ends_exactly_now_is_fresh(
    client: Client, db: BridgeDatabase, sql: Sql
) -> None:
    run = client.started()
    end, thief = run["lease_expires_at_ms"], Owner("host", 1, "thief")
    evidence = ownership.Evidence("lease-expired", Owner(**run["owner"]))

    async def take(now_ms: int) -> Outcome:
        viewer = Principal("service", "alice")
        result = await ownership.own(
            db, run["run_id"], viewer, thief, evidence=evidence, now_ms=now_ms
        )
        return result.outcome

    before = sql.dump()
    assert await take(end - 1) is Outcome.HEARTBEAT_FRESH
    assert await take(end) is Outcome.HEARTBEAT_FRESH
    assert sql.dump() == before
    assert await take(end + 1) is Outcome.OWNED
