"""Reading, listing and waiting for runs; rows that break a rule are refused."""

from __future__ import annotations

import threading
import time

import httpx
import pytest

from fencepost import errors, runs
from helpers import Client, Json, Sql, an_owner, new_key


def test_a_run_is_read_whole(client: Client) -> None:
    run = client.started(
        target={"kind": "agent", "id": "support", "thread_id": "t-1"},
        lineage={"id": "l-1", "round": 3},
        parent_run_id="parent",
    )
    read = client.get(f"/v1/runs/{run['run_id']}").json()
    assert read == {name: value for name, value in run.items() if name != "key"}
    assert read["target"] == {"kind": "agent", "id": "support", "thread_id": "t-1"}
    assert read["lineage"] == {"id": "l-1", "round": 3}
    assert read["parent_run_id"] == "parent"


def test_a_start_is_read_by_its_key(client: Client) -> None:
    run = client.started()
    body = client.get(f"/v1/starts/{run['key']}").json()
    assert body["reservation"]["run_id"] == run["run_id"]
    assert body["run"]["status"] == "running"


def test_another_principals_run_is_not_there_but_an_operator_sees_it(client: Client) -> None:
    run = client.started()
    for path in (f"/v1/runs/{run['run_id']}", f"/v1/starts/{run['key']}"):
        assert client.as_("bob").get(path).status_code == 404
        assert client.as_("operator").get(path).status_code == 200


def listed(client: Client, query: str) -> list[str]:
    found: list[str] = []
    cursor = ""
    while True:
        params = httpx.QueryParams(query).set("cursor", cursor)
        page = client.get("/v1/runs", params=params).json()
        for item in page["items"]:
            assert "state" not in item
            assert "result" not in item
        found += [item["run_id"] for item in page["items"]]
        if page["cursor"] is None:
            return found
        cursor = page["cursor"]


@pytest.fixture
def no_runs(sql: Sql) -> None:
    sql("DELETE FROM fencepost_runs")


@pytest.mark.usefixtures("no_runs")
def test_lists_page_through_everything_once_oldest_first(client: Client) -> None:
    mine = [client.started()["run_id"] for _ in range(7)]
    theirs = [client.as_("bob").started()["run_id"] for _ in range(2)]
    assert listed(client, "limit=3") == sorted(mine)
    assert listed(client, "limit=7") == sorted(mine)
    assert listed(client.as_("bob"), "limit=1") == sorted(theirs)
    assert sorted(listed(client.as_("operator"), "limit=4")) == sorted(mine + theirs)


@pytest.mark.usefixtures("no_runs")
def test_lists_by_status_page_through_that_status(client: Client) -> None:
    started = [client.started() for _ in range(6)]
    theirs = client.as_("bob").started()
    for run in started[::2]:
        client.finish(run).raise_for_status()
    ended = sorted(run["run_id"] for run in started[::2])
    live = sorted(run["run_id"] for run in started[1::2])
    assert listed(client, "status=completed&limit=2") == ended
    assert listed(client, "status=running&limit=2") == live
    everybody = listed(client.as_("operator"), "status=running&limit=2")
    assert sorted(everybody) == sorted([*live, theirs["run_id"]])


@pytest.mark.usefixtures("no_runs")
def test_runs_that_come_or_go_meanwhile_move_no_other(client: Client, sql: Sql) -> None:
    before = sorted(client.started()["run_id"] for _ in range(6))
    first = client.get("/v1/runs", params={"limit": 3}).json()
    sql("DELETE FROM fencepost_runs WHERE run_id = ?1", before[2])
    client.started()
    rest = client.get("/v1/runs", params={"limit": 3, "cursor": first["cursor"]}).json()
    assert [item["run_id"] for item in rest["items"]] == before[3:]


def test_a_reader_may_wait_for_the_end(client: Client) -> None:
    run = client.started()
    ending = threading.Timer(0.5, lambda: client.finish(run, result="done"))
    ending.start()
    began = time.monotonic()
    read = client.get(f"/v1/runs/{run['run_id']}", params={"wait": 20}).json()
    ending.join()
    assert (read["status"], read["result"]) == ("completed", "done")
    assert time.monotonic() - began < 15


def test_a_reader_who_waited_in_vain_gets_the_run_as_it_is(client: Client) -> None:
    run = client.started()
    read = client.get(f"/v1/runs/{run['run_id']}", params={"wait": 1}).json()
    assert read["status"] == "running"


def a_row(sql: Sql, run: Json) -> Json:
    [row] = sql("SELECT * FROM fencepost_runs WHERE run_id = ?1", run["run_id"])
    return {**row, "now_ms": 1}


@pytest.mark.parametrize(
    "damage",
    [
        {"status": "lost"},
        {"status": "pending"},
        {"owner_pid": None},
        {"heartbeat_at_ms": None},
        {"heartbeat_at_ms": 1.5},
        {"generation": 2**53},
        {"claim_nonce": "n"},
        {"lineage_id": "l"},
        {"finished_at_ms": 5},
        {"created_at_ms": "yesterday"},
    ],
    ids=str,
)
def test_a_run_row_that_breaks_a_rule_is_refused(client: Client, sql: Sql, damage: Json) -> None:
    row = a_row(sql, client.started())
    assert runs.Run.from_row(row).status == "running"
    with pytest.raises(errors.RowCorrupt) as refusal:
        runs.Run.from_row({**row, **damage})
    assert refusal.value.code == "ROW_CORRUPT"


def test_a_row_that_lacks_a_column_is_refused(client: Client, sql: Sql) -> None:
    row = a_row(sql, client.started(owner=an_owner(new_key())))
    del row["status"]
    with pytest.raises(errors.ColumnAbsent):
        runs.Run.from_row(row)
