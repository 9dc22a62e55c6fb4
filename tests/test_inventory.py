"""What a deployment still owes, for a drain."""

from __future__ import annotations

import json

import pytest

from fencepost import inventory
from fencepost.schema import tables
from fencepost.storage.d1 import Reader
from fencepost.storage.sql import Statement
from helpers import BridgeDatabase, Client, Json, Sql, new_key, opaque


@pytest.fixture
def empty(sql: Sql) -> None:
    for table in ("runs", "reservations", "operations"):
        sql(f"DELETE FROM fencepost_{table}")


def work(client: Client) -> Json:
    """A run that is work in every category: it runs an operation."""
    run = client.started()
    client.operation(run, "acquire", ttl_ms=60_000).raise_for_status()
    return run


def sweep(client: Client, category: str, limit: int) -> tuple[list[Json], list[Json]]:
    """(all items, all pages) of a category."""
    pages: list[Json] = []
    params: dict[str, object] = {"limit": limit}
    while True:
        answer = client.as_("operator").get(f"/v1/inventory/{category}", params=params)
        pages.append(answer.json())
        if pages[-1]["cursor"] is None:
            return [item for page in pages for item in page["items"]], pages
        params["cursor"] = pages[-1]["cursor"]


def counts(client: Client) -> dict[str, int]:
    items = client.as_("operator").get("/v1/inventory").json()["items"]
    return {item["category"]: item["count"] for item in items}


@pytest.mark.usefixtures("empty")
def test_what_runs_or_waits_is_work_and_what_ended_is_not(client: Client) -> None:
    assert counts(client) == {"runs": 0, "start-reservations": 0, "operations": 0}
    running, suspended, ended = client.started(), client.started(), client.started()
    client.finish(suspended, "suspended").raise_for_status()
    client.finish(ended).raise_for_status()
    released = client.started()
    client.post(f"/v1/starts/{released['key']}/release", {"owner": released["owner"]})
    assert counts(client) == {"runs": 3, "start-reservations": 3, "operations": 0}
    runs, _ = sweep(client, "runs", 10)
    work = {run["run_id"] for run in (running, suspended, released)}
    assert {item["run_id"] for item in runs} == work
    assert all("state" not in item for item in runs)
    held, _ = sweep(client, "start-reservations", 10)
    assert {item["run_id"] for item in held} == work
    assert {item["state"] for item in held} == {"started", "reserved"}


@pytest.mark.usefixtures("empty")
@pytest.mark.parametrize("category", inventory.CATEGORIES)
def test_pages_cover_everything_once_and_count_on_the_first(client: Client, category: str) -> None:
    expected = sorted(work(client)["run_id"] for _ in range(7))
    expected.append(work(client.as_("bob"))["run_id"])
    items, pages = sweep(client, category, 3)
    assert sorted(item["run_id"] for item in items) == sorted(expected)
    assert (pages[0]["count"], pages[0]["more"]) == (8, False)
    assert all({"count", "more"}.isdisjoint(page) for page in pages[1:])
    _, exact = sweep(client, category, 8)
    assert exact[-1]["items"] == []


@pytest.mark.usefixtures("empty")
@pytest.mark.parametrize("category", inventory.CATEGORIES)
def test_rows_that_come_or_go_between_pages_move_no_other(
    client: Client, sql: Sql, category: str
) -> None:
    before = sorted(work(client)["run_id"] for _ in range(6))
    path, operator = f"/v1/inventory/{category}", client.as_("operator")
    first = operator.get(path, params={"limit": 3}).json()
    for table in ("runs", "reservations", "operations"):
        sql(f"DELETE FROM fencepost_{table} WHERE run_id = ?1", before[0])
        sql(f"DELETE FROM fencepost_{table} WHERE run_id = ?1", before[2])
    work(client)
    rest = operator.get(path, params={"limit": 3, "cursor": first["cursor"]}).json()
    assert [item["run_id"] for item in rest["items"]] == before[3:]


@pytest.mark.usefixtures("empty")
def test_an_operation_is_work_while_it_runs_in_a_run_that_has_not_ended(
    client: Client, sql: Sql
) -> None:
    running, committed, ended = work(client), work(client), work(client)
    token = client.operation(committed, "acquire", ttl_ms=1).json()["lease"]["token"]
    client.operation(committed, "commit", token=token, outcome=None).raise_for_status()
    client.finish(ended).raise_for_status()
    assert counts(client)["operations"] == 1
    [item], _ = sweep(client, "operations", 10)
    assert (item["run_id"], item["id"], item["state"]) == (running["run_id"], "step", "running")
    assert "token" not in json.dumps(item)
    sql("UPDATE fencepost_operations SET lease_expires_at_ms = 5 WHERE state = 'running'")
    [item], _ = sweep(client, "operations", 10)
    assert (item["state"], item["lease_expires_at_ms"]) == ("lapsed", 5)


@pytest.mark.usefixtures("empty")
def test_a_step_of_an_earlier_generation_is_owed_and_lapsed(client: Client, sql: Sql) -> None:
    suspended, taken = work(client), work(client)
    client.finish(suspended, "suspended").raise_for_status()
    sql.lapse(taken["run_id"])
    evidence = {"kind": "lease-expired", "expected_owner": taken["owner"]}
    owner = {**taken["owner"], "nonce": new_key()}
    client.verb(taken, "own", owner=owner, evidence=evidence).raise_for_status()
    assert counts(client)["operations"] == 2
    items, _ = sweep(client, "operations", 1)
    assert [item["state"] for item in items] == ["lapsed", "lapsed"]
    again = client.operation({**taken, "owner": owner}, "acquire", ttl_ms=60_000)
    assert again.json()["outcome"] == "acquired"
    items, _ = sweep(client, "operations", 10)
    assert {item["run_id"]: item["state"] for item in items} == {
        suspended["run_id"]: "lapsed",
        taken["run_id"]: "running",
    }


@pytest.mark.usefixtures("empty")
def test_a_corrupt_row_counts_as_work_and_is_named(client: Client, sql: Sql) -> None:
    run = client.started()
    # Rules that the reading side adds to the CHECKs of the table.
    sql("UPDATE fencepost_reservations SET owner_id = '   ' WHERE key = ?1", run["key"])
    [held], _ = sweep(client, "start-reservations", 10)
    assert (held["key"], held["run_id"]) == (run["key"], run["run_id"])
    assert held["corrupt"]["table"] == "fencepost_reservations"
    assert "owner_id" in held["corrupt"]["rule"]
    assert counts(client)["start-reservations"] == 1


def test_without_tables_there_is_no_work(client: Client, empty_database: Sql) -> None:
    assert counts(client) == {"runs": 0, "start-reservations": 0, "operations": 0}
    page = client.as_("operator").get("/v1/inventory/runs").json()
    assert page == {"items": [], "cursor": None}
    assert empty_database("SELECT name FROM sqlite_master WHERE name LIKE 'fencepost%'") == []


@pytest.mark.parametrize(
    "query",
    [
        {"cursor": "["},
        {"cursor": json.dumps(["a", "b", "c", "d"])},
        {"cursor": opaque(json.dumps(["a"]))},
        {"cursor": opaque(json.dumps(["a", "b", "c", "d", "e"]))},
        {"cursor": opaque(json.dumps(["a", "b", "c", 4]))},
        {"cursor": opaque(json.dumps(["a", "b", "c", "d" * 2048]))},
        {"limit": "0"},
        {"limit": "-1"},
        {"limit": "1e2"},
        {"limit": "10000"},
    ],
    ids=str,
)
def test_an_invalid_query_of_the_inventory_is_refused(
    client: Client, query: dict[str, str]
) -> None:
    answer = client.as_("operator").get("/v1/inventory/runs", params=query)
    assert (answer.status_code, answer.json()["code"]) == (400, "INVALID_REQUEST")


def test_a_limit_above_200_is_200(client: Client) -> None:
    assert client.as_("operator").get("/v1/inventory/runs?limit=9999").status_code == 200


def test_an_unknown_category_is_not_there_and_only_operators_look(client: Client) -> None:
    answer = client.as_("operator").get("/v1/inventory/schedules")
    assert (answer.status_code, answer.json()["code"]) == (404, "NOT_FOUND")
    for path in ("/v1/inventory", "/v1/inventory/runs"):
        assert client.get(path).status_code == 403


@pytest.mark.anyio
async def test_the_inventory_reads_through_a_handle_that_cannot_write(db: BridgeDatabase) -> None:
    reader = Reader(db)
    for category in inventory.CATEGORIES.values():
        await inventory.page(reader, category, None, 10)
    await inventory.counts(reader)
    assert all(statement.sql.lstrip().startswith("SELECT") for statement in db.statements)
    assert not hasattr(reader, "batch")
    with pytest.raises(ValueError, match="SELECT"):
        await reader.read([Statement("DELETE FROM fencepost_runs")])


def test_every_table_is_in_the_inventory_or_excused(sql: Sql) -> None:
    """The census: a table that is added must say what a drain has to know of it."""
    listed = {category.table for category in inventory.CATEGORIES.values()}
    assert listed.isdisjoint(inventory.EXCUSED)
    assert listed | set(inventory.EXCUSED) == set(tables.TABLES)
    stored = sql("SELECT name FROM sqlite_master WHERE type = 'table' AND name LIKE 'fencepost%'")
    assert {row["name"] for row in stored} == set(tables.TABLES)
