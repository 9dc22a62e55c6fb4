"""Cancelling a run and a lineage; lineages and who belongs to them."""

from __future__ import annotations

import asyncio
import json
from collections import Counter

import httpx
import pytest

from helpers import Client, Json, Sql, a_start, an_owner, connect_async, new_key, round_trips


def cancel(client: Client, run: Json, path: str = "cancel") -> httpx.Response:
    return client.post(f"/v1/runs/{run['run_id']}/{path}", {})


def test_a_cancel_is_requested_once_and_the_first_is_kept(client: Client) -> None:
    run = client.started()
    first = cancel(client, run)
    body = first.json()
    assert (first.status_code, body["outcome"], round_trips(first)) == (200, "cancel_requested", 1)
    assert body["run"]["status"] == "running"
    second = cancel(client, run)
    assert (second.status_code, second.json()["code"]) == (409, "ALREADY_REQUESTED")
    requested = body["run"]["cancel_requested_at_ms"]
    assert second.json()["run"]["cancel_requested_at_ms"] == requested


def test_an_ended_run_says_so_before_anything_else(client: Client) -> None:
    run = client.started()
    cancel(client, run).raise_for_status()
    client.finish(run, "cancelled").raise_for_status()
    answer = cancel(client, run)
    assert (answer.status_code, answer.json()["outcome"]) == (409, "terminal")
    assert answer.json()["run"]["status"] == "cancelled"


def test_an_acknowledgement_converges_and_the_first_is_kept(client: Client) -> None:
    run = client.started()
    early = client.verb(run, "acknowledge-cancel")
    assert (early.status_code, early.json()["outcome"]) == (409, "cancel_not_requested")
    cancel(client, run).raise_for_status()
    stranger = client.verb({**run, "owner": an_owner()}, "acknowledge-cancel")
    assert stranger.json()["outcome"] == "fence_lost"
    first = client.verb(run, "acknowledge-cancel").json()
    assert first["outcome"] == "cancel_acknowledged"
    again = client.verb(run, "acknowledge-cancel")
    assert again.json()["outcome"] == "cancel_acknowledged"
    acknowledged = first["run"]["cancel_acknowledged_at_ms"]
    assert again.json()["run"]["cancel_acknowledged_at_ms"] == acknowledged


def test_a_new_owner_acknowledges_too_and_the_first_is_kept(client: Client, sql: Sql) -> None:
    run, other = client.started(), an_owner()
    cancel(client, run).raise_for_status()
    first = client.verb(run, "acknowledge-cancel").json()["run"]
    client.finish(run, "suspended").raise_for_status()
    client.verb({**run, "owner": other}, "own").raise_for_status()
    again = client.verb({**run, "owner": other}, "acknowledge-cancel")
    assert (again.status_code, again.json()["outcome"]) == (200, "cancel_acknowledged")
    acknowledged = first["cancel_acknowledged_at_ms"]
    assert again.json()["run"]["cancel_acknowledged_at_ms"] == acknowledged
    facts = client.get(f"/v1/runs/{run['run_id']}/ownership").json()["items"]
    assert [fact["owner"] for fact in facts if fact["type"] == "cancel-acknowledged"] == [
        run["owner"]
    ]


def test_a_guarded_completion_does_not_complete_what_somebody_asked_to_cancel(
    client: Client,
) -> None:
    run = client.started()
    cancel(client, run).raise_for_status()
    answer = client.finish(run, guard={"cancel_requested": "absent"})
    assert answer.json()["outcome"] == "guard_failed"
    assert client.get(f"/v1/runs/{run['run_id']}").json()["status"] == "running"


def test_an_operators_cancel_of_a_foreign_run_is_audited(client: Client, sql: Sql) -> None:
    sql("DELETE FROM fencepost_audit")
    run, own = client.started(), client.as_("operator").started()
    cancel(client.as_("operator"), own).raise_for_status()
    assert client.as_("operator").get("/v1/audit").json()["items"] == []
    cancel(client.as_("operator"), run).raise_for_status()
    cancel(client.as_("operator"), run)
    [entry] = client.as_("operator").get("/v1/audit").json()["items"]
    assert (entry["action"], entry["subject"]) == ("cancel", run["run_id"])
    assert entry["principal"] == {"kind": "human", "id": "olga"}


def test_a_cancel_takes_the_scope_start_or_operate_and_ones_own_run(client: Client) -> None:
    run = client.started()
    assert cancel(client.as_("worker"), run).status_code == 403
    assert cancel(client.as_("bob"), run).status_code == 404
    assert cancel(client.as_("starter"), run).status_code == 200


@pytest.mark.anyio
async def test_of_cancel_and_guarded_completion_the_loser_is_told(
    bridge: dict[str, str], client: Client
) -> None:
    seen: Counter[tuple[int, int]] = Counter()
    async with connect_async(bridge["url"]) as http:

        async def post(n: int, path: str, body: Json) -> httpx.Response:
            headers = {"Authorization": "Bearer alice", "X-Local-Isolate": str(n % 2)}
            return await http.post(path, content=json.dumps(body), headers=headers)

        for round in range(100):
            run = client.started()
            path = f"/v1/runs/{run['run_id']}"
            completion = {
                "owner": run["owner"],
                "to": "completed",
                "guard": {"cancel_requested": "absent"},
                "expected_head": run["head"],
            }
            requests = [
                post(round, f"{path}/cancel", {}),
                post(round + 1, f"{path}/transition", completion),
            ]
            if round % 2:
                requests.reverse()
            answers = await asyncio.gather(*requests)
            if round % 2:
                answers.reverse()
            cancelled, completed = answers
            seen[cancelled.status_code, completed.status_code] += 1
            if completed.status_code == 200:
                assert cancelled.json()["outcome"] in ("terminal", "cancel_requested")
                assert cancelled.json()["outcome"] == "terminal"
            else:
                assert completed.json()["outcome"] == "guard_failed"
                client.finish(run, "cancelled").raise_for_status()
            end = client.get(path).json()
            assert end["status"] == ("completed" if completed.status_code == 200 else "cancelled")
            assert client.finish(run, "failed").json()["outcome"] == "fence_lost"
    assert set(seen) <= {(409, 200), (200, 409)}


# --- Lineages ----------------------------------------------------------------------------


def rounds(client: Client, run: Json, **params: object) -> list[str]:
    page = client.get(f"/v1/runs/{run['run_id']}/lineage", params=params).json()
    return [item["run_id"] for item in page["items"]]


def test_a_lineage_is_its_rounds_in_order(client: Client) -> None:
    name = new_key("lineage")
    third = client.started(lineage={"id": name, "round": 3})
    first = client.started(lineage={"id": name, "round": 1})
    second = client.started(lineage={"id": name, "round": 2})
    expected = [first["run_id"], second["run_id"], third["run_id"]]
    for member in (first, second, third):
        assert rounds(client, member) == expected
        latest = client.get(f"/v1/runs/{member['run_id']}/latest").json()
        assert (latest["run_id"], latest["state"]) == (third["run_id"], {"cents": 500})


def test_a_run_without_a_lineage_is_its_own_and_comes_before_its_rounds(client: Client) -> None:
    root = client.started()
    assert rounds(client, root) == [root["run_id"]]
    later = client.started(lineage={"id": root["run_id"], "round": 0})
    assert rounds(client, root) == [root["run_id"], later["run_id"]]
    assert rounds(client, later) == [root["run_id"], later["run_id"]]
    assert client.get(f"/v1/runs/{root['run_id']}/latest").json()["run_id"] == later["run_id"]


def test_a_same_named_run_of_another_lineage_is_no_member(client: Client) -> None:
    named = client.started(lineage={"id": new_key("other"), "round": 0})
    member = client.started(lineage={"id": named["run_id"], "round": 5})
    assert rounds(client, member) == [member["run_id"]]
    assert rounds(client, named) == [named["run_id"]]


def test_forks_and_other_principals_are_no_members(client: Client) -> None:
    name = new_key("lineage")
    mine = client.started(lineage={"id": name, "round": 0})
    client.as_("bob").started(lineage={"id": name, "round": 1})
    client.started(parent_run_id=mine["run_id"])
    assert rounds(client, mine) == [mine["run_id"]]
    assert rounds(client.as_("operator"), mine) == [mine["run_id"]]
    assert client.as_("bob").get(f"/v1/runs/{mine['run_id']}/lineage").status_code == 404


def test_a_lineage_pages_through_every_round_once(client: Client) -> None:
    root = client.started()
    members = [root["run_id"]]
    for number in (0, 1, 1, 2, 5):
        run = client.started(lineage={"id": root["run_id"], "round": number})
        members.append(run["run_id"])
    assert rounds(client, root) == members[:2] + sorted(members[2:4]) + members[4:]
    found: list[str] = []
    cursor = ""
    while True:
        params = {"limit": 2, "cursor": cursor}
        page = client.get(f"/v1/runs/{root['run_id']}/lineage", params=params).json()
        found += [item["run_id"] for item in page["items"]]
        if page["cursor"] is None:
            break
        cursor = page["cursor"]
    assert found == rounds(client, root)


def test_cancelling_a_lineage_requests_it_of_every_live_round(client: Client, sql: Sql) -> None:
    name = new_key("lineage")
    ended = client.started(lineage={"id": name, "round": 1})
    client.finish(ended).raise_for_status()
    live = [client.started(lineage={"id": name, "round": n}) for n in (2, 3)]
    other = client.started()
    answer = cancel(client, ended, "lineage/cancel")
    assert (answer.status_code, answer.json()["outcome"]) == (200, "cancel_requested")
    assert round_trips(answer) == 1
    assert answer.json()["run"]["run_id"] == live[1]["run_id"]
    requested = {
        row["run_id"]
        for row in sql("SELECT run_id FROM fencepost_runs WHERE cancel_requested_at_ms > 0")
    }
    assert {run["run_id"] for run in live} <= requested
    assert {ended["run_id"], other["run_id"]}.isdisjoint(requested)
    again = cancel(client, live[0], "lineage/cancel")
    assert (again.status_code, again.json()["outcome"]) == (409, "already_requested")
    client.finish(live[1], "cancelled").raise_for_status()
    outranked = cancel(client, ended, "lineage/cancel")
    assert outranked.json()["outcome"] == "already_requested"
    client.finish(live[0], "failed").raise_for_status()
    settled = cancel(client, ended, "lineage/cancel")
    assert (settled.json()["outcome"], settled.json()["run"]["status"]) == ("terminal", "cancelled")


def test_an_operators_cancel_of_a_foreign_lineage_is_audited_once(client: Client, sql: Sql) -> None:
    sql("DELETE FROM fencepost_audit")
    run = client.started(lineage={"id": new_key("lineage"), "round": 1})
    operator = client.as_("operator")
    cancel(operator, run, "lineage/cancel").raise_for_status()
    cancel(operator, run, "lineage/cancel")
    [entry] = operator.get("/v1/audit").json()["items"]
    assert entry["action"] == "lineage-cancel"
    assert entry["subject"] == run["lineage"]["id"]
    assert entry["after"] == {"requested": 1}


def test_generations_are_never_reused_not_even_by_a_restart(client: Client) -> None:
    key, seen = new_key(), []
    for _ in range(4):
        run = client.start(key, a_start(owner=an_owner())).json()["run"]
        seen.append(run["generation"])
        client.post(f"/v1/starts/{key}/release", {"owner": run["owner"]}).raise_for_status()
    assert seen == [1, 2, 3, 4]
