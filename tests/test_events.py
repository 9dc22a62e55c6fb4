"""A run's history: adding to it, listing it, and finding any tampering with it."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import json
from collections import Counter
from typing import Any

import httpx
import pytest

from helpers import Client, Json, Sql, an_owner, connect_async, new_key, round_trips


def append(client: Client, run: Json, **members: Any) -> httpx.Response:
    body = {"type": "noted", "payload": {"n": 1}, **members}
    return client.post(f"/v1/runs/{run['run_id']}/events", body)


def integrity(client: Client, run: Json) -> Json:
    answer = client.get(f"/v1/runs/{run['run_id']}/integrity")
    assert answer.status_code == 200, answer.text
    found: Json = answer.json()
    return found


def test_an_event_is_chained_to_the_one_before(client: Client) -> None:
    run = client.started()
    body = append(client, run, payload={"b": [1.0, "ü"], "a": None}).json()
    assert body["outcome"] == "appended"
    event = body["event"]
    assert (event["sequence"], event["prior_hash"]) == (2, run["head"]["hash"])
    canonical = (
        '{"payload":{"a":null,"b":[1,"ü"]},'
        f'"prior_hash":"{event["prior_hash"]}","sequence":2,"type":"noted"}}'
    )
    assert event["hash"] == hashlib.sha256(canonical.encode()).hexdigest()
    assert body["run"]["head"] == {"sequence": 2, "hash": event["hash"]}
    listed = client.get(f"/v1/runs/{run['run_id']}/events").json()["items"]
    assert listed[1] == event
    assert listed[0]["type"] == "run-created"


def test_an_expected_head_costs_one_round_trip_and_must_be_the_head(client: Client) -> None:
    run = client.started()
    answer = append(client, run, expected_head=run["head"])
    assert (answer.status_code, round_trips(answer)) == (200, 1)
    lost = append(client, run, expected_head=run["head"])
    assert (lost.status_code, lost.json()["outcome"]) == (409, "head_changed")
    assert round_trips(append(client, run)) == 2


@pytest.mark.parametrize("to", ["completed", "failed", "cancelled"])
def test_the_history_of_a_run_that_has_ended_takes_no_events(
    client: Client, sql: Sql, to: str
) -> None:
    run = client.started()
    keyed = {"Idempotency-Key": new_key()}
    path, body = f"/v1/runs/{run['run_id']}/events", {"type": "noted"}
    first = client.post(path, body, headers=keyed)
    client.finish(run, to).raise_for_status()
    before = sql.dump()
    for who in (client, client.as_("operator")):
        lost = append(who, run)
        assert (lost.status_code, lost.json()["code"]) == (409, "RUN_ENDED")
    assert append(client, run, owner=run["owner"]).json()["code"] == "FENCE_LOST"
    again = client.post(path, body, headers=keyed)
    assert (again.status_code, again.json()["event"]) == (200, first.json()["event"])
    assert sql.dump() == before


def test_an_append_in_the_name_of_an_owner_is_fenced_by_it(client: Client, sql: Sql) -> None:
    run, thief = client.started(), an_owner()
    assert append(client, run, owner=run["owner"]).json()["outcome"] == "appended"
    sql.lapse(run["run_id"])
    evidence = {"kind": "lease-expired", "expected_owner": run["owner"]}
    path = f"/v1/runs/{run['run_id']}/own"
    client.post(path, {"owner": thief, "evidence": evidence}).raise_for_status()
    before = sql.dump()
    lost = append(client, run, owner=run["owner"])
    assert (lost.status_code, lost.json()["outcome"]) == (409, "fence_lost")
    assert sql.dump() == before
    assert append(client, run).json()["outcome"] == "appended"


@pytest.mark.parametrize(
    "members",
    [
        {"type": "run-created"},
        {"type": "state-transitioned"},
        {"type": "a b"},
        {"type": ""},
        {"type": 1},
        {"owner": {"host_id": "h"}},
        {"expected_head": 1},
        {"more": 1},
    ],
    ids=str,
)
def test_an_invalid_event_is_refused(client: Client, sql: Sql, members: Json) -> None:
    run = client.started()
    before = sql.dump()
    answer = append(client, run, **members)
    assert (answer.status_code, answer.json()["code"]) == (400, "INVALID_REQUEST")
    assert sql.dump() == before


def test_events_are_paged(client: Client) -> None:
    run = client.started()
    for n in range(6):
        append(client, run, payload=n).raise_for_status()
    found: list[int] = []
    cursor = ""
    while True:
        params = {"limit": 3, "cursor": cursor}
        page = client.get(f"/v1/runs/{run['run_id']}/events", params=params).json()
        found += [item["sequence"] for item in page["items"]]
        if page["cursor"] is None:
            break
        cursor = page["cursor"]
    assert found == list(range(1, 8))


@pytest.mark.anyio
async def test_48_concurrent_appends_over_2_isolates_make_one_linear_chain(
    bridge: dict[str, str], client: Client
) -> None:
    run = client.started()
    path = f"/v1/runs/{run['run_id']}/events"
    async with connect_async(bridge["url"], 50) as http:

        async def one(n: int) -> int:
            headers = {"Authorization": "Bearer alice", "X-Local-Isolate": str(n % 2)}
            body = json.dumps({"type": "noted", "payload": n})
            while True:
                answer = await http.post(path, content=body, headers=headers)
                if answer.status_code != 503:
                    return answer.status_code
                assert answer.json()["code"] == "CONTENDED"
                assert answer.json()["retry"] == "same-key"

        assert Counter(await asyncio.gather(*[one(n) for n in range(48)])) == {200: 48}
    items = client.get(path).json()["items"]
    assert [item["sequence"] for item in items] == list(range(1, 50))
    assert sorted(item["payload"] for item in items[1:]) == list(range(48))
    for before, after in itertools.pairwise(items):
        assert after["prior_hash"] == before["hash"]
    assert integrity(client, run)["intact"]


# --- Integrity ---------------------------------------------------------------------------


def lived(client: Client) -> Json:
    """A run with one event of each kind that its own life makes, ended with a result."""
    run = client.started(lineage={"id": "l", "round": 1}, parent_run_id="p")
    client.post(f"/v1/starts/{run['key']}/release", {"owner": run["owner"]}).raise_for_status()
    body = {
        "target": run["target"],
        "input": {"cents": 500},
        "owner": run["owner"],
        "lineage": run["lineage"],
    }
    client.start(run["key"], body).raise_for_status()
    append(client, run, payload={"x": 1e16, "y": "é"}).raise_for_status()
    client.finish(run, "running", state={"step": 1}).raise_for_status()
    client.finish(run, "suspended").raise_for_status()
    client.verb(run, "own").raise_for_status()
    client.finish(run, result={"ok": True}).raise_for_status()
    return run


def test_a_history_that_nobody_touched_is_intact(client: Client) -> None:
    run = lived(client)
    found = integrity(client, run)
    assert found == {
        "intact": True,
        "events": 7,
        "head": client.get(f"/v1/runs/{run['run_id']}").json()["head"],
        "first_broken": None,
    }


def test_a_run_that_was_resolved_is_intact(client: Client, sql: Sql) -> None:
    for decision in ("executed", "not_executed", "cancelled"):
        run = client.started()
        sql.lapse(run["run_id"])
        path = f"/v1/starts/{run['key']}"
        body = {"decision": decision, "seen": client.get(path).json()["seen"], "note": "n"}
        if decision == "executed":
            body["result"] = 5
        client.as_("operator").post(f"{path}/resolve", body).raise_for_status()
        assert integrity(client, run)["intact"], decision


EVENT_DAMAGE = {
    "sequence": ("sequence = 33", 5),
    "type": ("type = 'other'", 5),
    "payload": ("payload = '{\"x\":1}'", 5),
    "payload, white space alone": ("payload = payload || ' '", 5),
    "prior_hash": ("prior_hash = hash", 5),
    "hash": ("hash = prior_hash", 5),
    "created_at_ms": ("created_at_ms = 1", 5),
    "run_id": ("run_id = 'another'", 5),
}


@pytest.mark.parametrize("column", EVENT_DAMAGE)
def test_tampering_with_any_column_of_an_event_is_found(
    client: Client, sql: Sql, column: str
) -> None:
    run = lived(client)
    damage, sequence = EVENT_DAMAGE[column]
    sql(
        f"UPDATE fencepost_events SET {damage} WHERE run_id = ?1 AND sequence = ?2",
        run["run_id"],
        sequence,
    )
    found = integrity(client, run)
    assert not found["intact"]
    assert found["first_broken"]["sequence"] == sequence
    sql("DELETE FROM fencepost_events WHERE run_id = 'another'")


def test_a_missing_event_a_second_beginning_and_no_event_are_found(
    client: Client, sql: Sql
) -> None:
    run = lived(client)
    where = "WHERE run_id = ?1 AND sequence"
    sql(f"DELETE FROM fencepost_events {where} = 7", run["run_id"])
    cut = integrity(client, run)
    assert cut["first_broken"] == {"sequence": None, "rule": "the run's head is its last event"}
    sql(f"DELETE FROM fencepost_events {where} = 1", run["run_id"])
    assert integrity(client, run)["first_broken"]["sequence"] == 1
    sql(f"DELETE FROM fencepost_events {where} > 0", run["run_id"])
    gone = integrity(client, run)
    assert gone["first_broken"] == {"sequence": None, "rule": "a history begins with run-created"}


RUN_DAMAGE = {
    "target": "target_id = 'other'",
    "target, its kind": "target_kind = 'agent', thread_id = 't'",
    "principal": "principal_kind = 'human'",
    "lineage": "lineage_round = 2",
    "lineage, dropped": "lineage_id = NULL, lineage_round = NULL",
    "parent_run_id": "parent_run_id = 'q'",
    "created_at_ms": "created_at_ms = 1",
    "finished_at_ms": "finished_at_ms = 1",
    "status": "status = 'failed'",
    "head": "head_sequence = 6",
    "head, its hash": f"head_hash = '{'0' * 64}'",
}


@pytest.mark.parametrize("column", RUN_DAMAGE)
def test_tampering_with_any_column_of_the_projection_is_found(
    client: Client, sql: Sql, column: str
) -> None:
    run = lived(client)
    sql(f"UPDATE fencepost_runs SET {RUN_DAMAGE[column]} WHERE run_id = ?1", run["run_id"])
    found = integrity(client.as_("operator"), run)
    assert not found["intact"]
    name = column.split(",")[0]
    assert found["first_broken"]["sequence"] is None
    assert name in found["first_broken"]["rule"]


@pytest.mark.parametrize(
    ("damage", "name"),
    [
        ("state = '{}'", "state"),
        ("state = state || ' '", "state"),
        ("result = '1'", "result"),
        ("result = NULL", "result"),
    ],
)
def test_tampering_with_state_or_result_is_found(
    client: Client, sql: Sql, damage: str, name: str
) -> None:
    run = lived(client)
    sql(f"UPDATE fencepost_snapshots SET {damage} WHERE run_id = ?1", run["run_id"])
    assert name in integrity(client, run)["first_broken"]["rule"]


def test_a_run_brought_back_from_its_end_is_found(client: Client, sql: Sql) -> None:
    run = lived(client)
    sql(
        "UPDATE fencepost_runs SET status = 'suspended', finished_at_ms = NULL WHERE run_id = ?1",
        run["run_id"],
    )
    assert "status" in integrity(client, run)["first_broken"]["rule"]


def test_looking_for_damage_writes_nothing(client: Client, sql: Sql) -> None:
    run = lived(client)
    before = sql.dump()
    integrity(client, run)
    client.get(f"/v1/runs/{run['run_id']}/events")
    assert sql.dump() == before
    for path in ("events", "integrity"):
        assert client.as_("bob").get(f"/v1/runs/{run['run_id']}/{path}").status_code == 404


def test_a_page_ends_at_four_mebibytes_and_its_cursor_goes_on(client: Client) -> None:
    run = client.started()
    path, big = f"/v1/runs/{run['run_id']}/events", "x" * 900_000
    for n in range(11):
        client.post(path, {"type": "noted", "payload": [n, big]}).raise_for_status()
    seen: list[int] = []
    cursor: str | None = ""
    pages = 0
    while cursor is not None:
        answer = client.get(path, params={"limit": 200, "cursor": cursor})
        assert len(answer.content) < 4_194_304 + 1_000_000
        seen += [event["sequence"] for event in answer.json()["items"]]
        cursor, pages = answer.json()["cursor"], pages + 1
    assert (seen, pages) == (list(range(1, 13)), 3)
    assert client.get(f"/v1/runs/{run['run_id']}/integrity").json()["events"] == 12
