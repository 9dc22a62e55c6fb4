"""What the other tests rely on: dumps that tell databases apart, and tables that are there."""

from __future__ import annotations

import pytest

from fencepost.schema import tables
from helpers import RUNS_KEPT, Client, Sql, new_key, round_trips
from stored_shapes import stored_tables

CHANGES = {
    "a row is inserted": "INSERT INTO fencepost_fence (id, state, updated_at_ms) VALUES "
    "('deployment', 'open', 2)",
    "a row is updated": "UPDATE fencepost_runs SET updated_at_ms = updated_at_ms + 1",
    "a row is replaced": "REPLACE INTO fencepost_snapshots SELECT run_id, '0', result "
    "FROM fencepost_snapshots",
    "a row is deleted": "DELETE FROM fencepost_events WHERE sequence = 1",
    "all rows are deleted": "DELETE FROM fencepost_events",
    "an index is dropped": "DROP INDEX fencepost_runs_by_age",
    "a table is dropped": "DROP TABLE fencepost_ownership",
    "a column is added": "ALTER TABLE fencepost_runs ADD COLUMN more TEXT",
}


@pytest.mark.usefixtures("run")
@pytest.mark.parametrize("change", CHANGES)
def test_a_dump_is_another_one_when(database: Sql, change: str) -> None:
    before = database.dump()
    assert database.dump() == before
    database(CHANGES[change])
    assert database.dump() != before


def test_a_dump_is_another_one_when_the_worker_writes(client: Client, sql: Sql) -> None:
    run, before = client.started(), sql.dump()
    assert run["run_id"] in before
    client.verb(run, "heartbeat").raise_for_status()
    assert sql.dump() != before


@pytest.mark.usefixtures("run")
def test_a_dump_is_another_one_when_a_table_is_made_anew_without_its_rows(database: Sql) -> None:
    before = database.dump()
    [ddl] = [text for text in tables.STATEMENTS if "EXISTS fencepost_snapshots " in text]
    database.batch([("DROP TABLE fencepost_snapshots", ()), (ddl, ())])
    assert database.dump() != before


@pytest.mark.parametrize("isolate", ["0", "1"])
def test_between_two_tests_dropped_tables_come_back_and_every_isolate_trusts_them(
    client: Client, sql: Sql, isolate: str
) -> None:
    sql(f"DROP TABLE {tables.TABLES[-1]}")
    client.look()
    sql.tidy()
    client.settle(sql)
    assert set(stored_tables(sql)) == set(tables.TABLES)
    answer = client.start(new_key(), X_Local_Isolate=isolate)
    assert (answer.status_code, round_trips(answer)) == (201, 1)


def test_between_two_tests_the_fence_is_opened_and_many_rows_go(client: Client, sql: Sql) -> None:
    for _ in range(RUNS_KEPT + 1):
        client.started()
    sql.fence("draining")
    sql.tidy()
    assert not [name for name in tables.TABLES if sql(f"SELECT 1 FROM {name}")]
