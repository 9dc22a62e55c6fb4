"""Every table is in the move and in the purge, or excused; test_inventory.py has the inventory."""

from __future__ import annotations

import re

from fencepost import copies, retention
from fencepost.retention import DAY_MS
from fencepost.schema import migrations, tables
from helpers import Client, Json, Sql, a_start, acquired, an_owner, new_key

MOVE_EXCUSED = {
    "fencepost_fence": "each deployment has a switch of its own",
    "fencepost_transfer": "what each deployment knows of the move",
}
PURGE_EXCUSED = {
    "fencepost_fence": "the switch itself",
    "fencepost_audit": "kept for good",
    "fencepost_transfer": "one row, of the last move",
}


def test_every_table_is_moved_or_excused() -> None:
    moved = {f"fencepost_{name}" for name in copies.TABLES}
    assert moved | set(MOVE_EXCUSED) == set(tables.TABLES)
    assert moved.isdisjoint(MOVE_EXCUSED)


def test_every_table_is_purged_or_excused() -> None:
    deletes = [sql for sql in vars(retention).values() if isinstance(sql, str)]
    purged = {name for sql in deletes for name in re.findall(r"^DELETE FROM (\w+)", sql)}
    assert purged | set(PURGE_EXCUSED) == set(tables.TABLES)
    assert purged.isdisjoint(PURGE_EXCUSED)


def a_run_with_everything(client: Client) -> Json:
    """A run that has ended, with a row in every table that knows runs."""
    owner, key = an_owner(), new_key()
    subject = {"stage": "delivery", "change": new_key("change").lower()}
    run = client.start(key, a_start(owner=owner, subject=subject)).json()["run"]
    acquired(client, run)
    binding = {"gate": "a", "revision": 1, "receipt_hash": "0" * 64}
    client.verb(run, "bindings", bindings=[binding]).raise_for_status()
    body = {"owner": owner, "type": "noted"}
    path = f"/v1/runs/{run['run_id']}/events"
    client.post(path, body, headers={"Idempotency-Key": new_key()}).raise_for_status()
    client.finish(run, result=1).raise_for_status()
    return {**run, "key": key, "subject": subject}


def test_a_purged_run_leaves_no_row_of_it_but_its_spent_key(client: Client, sql: Sql) -> None:
    sql("DELETE FROM fencepost_runs WHERE finished_at_ms IS NOT NULL")
    run = a_run_with_everything(client)
    about = [table for table in tables.TABLES if "run_id" in migrations.columns_of(table)]

    def rows_of(table: str) -> int:
        return len(sql(f"SELECT 1 FROM {table} WHERE run_id = ?1", run["run_id"]))

    assert {table for table in about if not rows_of(table)} == set()
    sql(
        "UPDATE fencepost_runs SET finished_at_ms = finished_at_ms - ?2 WHERE run_id = ?1",
        run["run_id"],
        31 * DAY_MS,
    )
    client.as_("operator").post("/v1/retention/purge", {}).raise_for_status()
    assert {table for table in about if rows_of(table)} == {"fencepost_reservations"}
    spent = client.start(run["key"], a_start(subject=run["subject"])).json()
    assert spent["code"] == "START_ALREADY_SETTLED"
    assert spent["key_until_ms"] > run["started_at_ms"] + 364 * DAY_MS
