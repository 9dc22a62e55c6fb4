"""Earlier shapes move forward: on a start or a fence transition only, whole or not at all."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from conftest import ROOT
from fencepost import errors
from fencepost.schema import ddl, guard, migrations
from fencepost.schema.migrations import DDL
from fencepost.storage.d1 import Result
from helpers import BridgeDatabase, Client, D1Failure, Json, Sql, new_key
from stored_shapes import DUMPS, EARLIER, drop_all, stored_tables


def rows_of(sql: Sql, columns: dict[str, str]) -> dict[str, list[Json]]:
    """The rows of the tables, in the columns named."""
    return {
        table: sql(f"SELECT {names} FROM {table} ORDER BY 1, 2") for table, names in columns.items()
    }


def columns_of(sql: Sql) -> dict[str, str]:
    dropped = {column for earlier in migrations.EARLIER.values() for column in earlier.drops}
    return {
        table: ", ".join(
            row["name"]
            for row in sql(f"SELECT name FROM pragma_table_info('{table}')")
            if row["name"] not in dropped
        )
        for table in stored_tables(sql)
    }


def is_current(sql: Sql) -> bool:
    found: list[Any] = sql(guard._READ_SHAPE)
    return guard.judge(Result(found, 0, 0, 0)).current


def test_there_is_a_dump_of_every_shape() -> None:
    assert set(EARLIER) < set(DUMPS)
    # The last one is the present shape; a change of a table adds an entry to MIGRATIONS.
    assert len(DUMPS) == len(EARLIER) + 1


@pytest.mark.parametrize("earlier", migrations.EARLIER.values(), ids=lambda e: e.digest[:8])
def test_old_rows_have_a_value_for_every_column_that_is_not_null(
    earlier: migrations.Earlier,
) -> None:
    ours = ddl.table(DDL[earlier.table])
    assert ours is not None
    filled = [column for column, _ in earlier.fills]
    assert set(earlier.columns).isdisjoint(filled)
    needed = {
        column
        for column, words in ours.columns.items()
        if ("not", "null") in itertools.pairwise(words) and "default" not in words
    }
    assert set(filled) <= ours.columns.keys()
    assert needed <= {*earlier.columns, *filled}
    assert set(earlier.drops) == set(earlier.columns) - ours.columns.keys()


@pytest.mark.parametrize("name", [name for name in EARLIER if name < "4"])
def test_no_old_reservation_has_joined_another_and_no_old_run_has_a_machine(
    client: Client, database: Sql, load: Callable[[str], None], name: str
) -> None:
    load(name)
    assert client.start(new_key()).status_code == 201
    of_old = "WHERE key LIKE 'old-%' GROUP BY 1, 2"
    held = database(
        f"SELECT joined, subject_sha256, COUNT(*) AS n FROM fencepost_reservations {of_old}"
    )
    assert held == [{"joined": 0, "subject_sha256": None, "n": 3}]
    machines = database("SELECT DISTINCT machine, machine_state, machine_code FROM fencepost_runs")
    assert machines == [{"machine": None, "machine_state": None, "machine_code": None}]
    released = client.start("old-released")
    assert released.status_code == 422, released.text  # of other input, but it can be read


@pytest.mark.parametrize("name", [name for name in EARLIER if "4" <= name < "6"])
def test_an_old_lease_is_of_the_generation_in_which_its_run_is(
    client: Client, database: Sql, load: Callable[[str], None], name: str
) -> None:
    load(name)
    assert client.start(new_key()).status_code == 201
    steps = database(
        "SELECT step.generation, run.generation AS present FROM fencepost_operations AS step "
        "JOIN fencepost_runs AS run USING (run_id)"
    )
    assert steps
    assert all(step["generation"] == step["present"] > 1 for step in steps)


@pytest.mark.parametrize("name", DUMPS)
def test_ensure_brings_a_dump_forward_and_keeps_its_rows(
    client: Client, database: Sql, load: Callable[[str], None], name: str
) -> None:
    load(name)
    columns = columns_of(database)
    then = rows_of(database, columns)
    # The fence does not move, so all rows must be as they were.
    body = {"expected": "open", "next": "open", "revision": 3}
    answer = client.as_("operator").post("/v1/fence/transitions", body)
    assert answer.status_code == 200, answer.text
    assert is_current(database)
    now = rows_of(database, columns)
    for table in then.keys() - {"fencepost_fence", "fencepost_audit"}:
        assert now[table] == then[table], table
    assert now["fencepost_fence"][0]["revision"] == 4


@pytest.mark.parametrize("name", DUMPS)
def test_a_start_brings_a_dump_forward(
    client: Client, database: Sql, load: Callable[[str], None], name: str
) -> None:
    load(name)
    columns = columns_of(database)
    then = rows_of(database, columns)
    assert client.start(new_key()).status_code == 201
    assert is_current(database)
    now = rows_of(database, columns)
    for table in then:
        assert [row for row in now[table] if row in then[table]] == then[table], table
    owner = {"host_id": "host", "pid": 7, "nonce": "nonce"}
    beat = client.post("/v1/runs/run-1/heartbeat", {"owner": owner})
    assert (beat.status_code, beat.json()["run"]["generation"]) == (200, 4)
    assert client.start("old-ended").status_code == 422  # of other input: the key is still known


@pytest.mark.parametrize("name", EARLIER)
def test_reads_and_other_writes_bring_no_dump_forward(
    client: Client, database: Sql, load: Callable[[str], None], name: str
) -> None:
    load(name)
    before, operator = database.dump(), client.as_("operator")
    owner = {"host_id": "host", "pid": 7, "nonce": "nonce"}
    paths = ("/v1/runs/run-1", "/v1/runs", "/v1/starts/old-ended", "/v1/fence", "/v1/inventory")
    for answer in [operator.get(path) for path in paths]:
        assert answer.status_code == 200 or answer.json()["code"] == "SCHEMA_MISMATCH", answer.text
    for verb in ("heartbeat", "cancel"):
        members = {"owner": owner} if verb == "heartbeat" else {}
        answer = client.post(f"/v1/runs/run-1/{verb}", members)
        assert (answer.status_code, answer.json()["code"]) == (503, "SCHEMA_MISMATCH")
        assert "next start or fence transition" in answer.json()["detail"]
    assert database.dump() == before


@pytest.mark.parametrize("name", EARLIER)
def test_a_start_that_the_fence_refuses_brings_nothing_forward(
    client: Client, database: Sql, load: Callable[[str], None], name: str
) -> None:
    load(name)
    database("UPDATE fencepost_fence SET state = 'migration-locked'")
    before = database.dump()
    assert client.start(new_key()).status_code == 503
    assert database.dump() == before


@pytest.mark.parametrize("name", EARLIER)
def test_a_migration_that_fails_half_way_leaves_the_earlier_shape_whole(
    client: Client, database: Sql, load: Callable[[str], None], name: str
) -> None:
    load(name)
    # The last table that is rebuilt cannot be: its new name is taken.
    last = migrations.MIGRATIONS[name][-1].table
    database(f"CREATE TABLE {last}_next (n INTEGER, m INTEGER)")
    before = database.dump()
    answer = client.start(new_key())
    assert (answer.status_code, answer.json()["code"]) == (503, "STORAGE_REFUSED")
    assert database.dump() == before
    database(f"DROP TABLE {last}_next")
    assert client.start(new_key()).status_code == 201
    assert is_current(database)


@pytest.mark.parametrize("name", EARLIER)
def test_a_view_that_forbids_the_renaming_leaves_the_earlier_shape_whole(
    client: Client, database: Sql, load: Callable[[str], None], name: str
) -> None:
    load(name)
    # A view over a table that is dropped: the renaming of its successor fails.
    database("CREATE VIEW looks AS SELECT no_column FROM fencepost_runs")
    before = database.dump()
    try:
        assert client.start(new_key()).status_code == 503
        assert database.dump() == before
    finally:
        database("DROP VIEW looks")


@pytest.mark.parametrize("name", EARLIER)
@pytest.mark.parametrize("fault", ["lost", "drop"])
def test_a_lost_reply_of_a_migration_leaves_one_shape_or_the_other(
    client: Client, database: Sql, load: Callable[[str], None], name: str, fault: str
) -> None:
    load(name)
    before, key = database.dump(), new_key()
    # The look, the fence, the look of `ensure`, and the batch that migrates.
    answer = client.start(key, X_Local_Fault=f"pass,pass,pass,{fault}")
    assert answer.json()["code"] == "WRITE_OUTCOME_UNKNOWN"
    assert is_current(database) if fault == "lost" else database.dump() == before
    assert client.start(key).status_code == 201
    assert is_current(database)


@pytest.mark.parametrize("name", EARLIER)
def test_two_isolates_that_migrate_at_once_end_in_one_shape(
    client: Client, database: Sql, load: Callable[[str], None], name: str
) -> None:
    for _ in range(5):
        load(name)

        def start(isolate: int) -> httpx.Response:
            return client.start(new_key(), X_Local_Isolate=str(isolate))

        with ThreadPoolExecutor(4) as pool:
            answers = list(pool.map(start, (0, 1, 0, 1)))
        assert [answer.status_code for answer in answers] == [201] * 4, [a.text for a in answers]
        assert is_current(database)
        runs = database(
            "SELECT run_id FROM fencepost_runs WHERE run_id LIKE 'run-_' ORDER BY run_id"
        )
        assert [row["run_id"] for row in runs] == ["run-1", "run-2", "run-3"]


@pytest.mark.anyio
@pytest.mark.parametrize("name", EARLIER)
async def test_a_migration_chosen_for_what_is_no_longer_there_does_nothing(
    db: BridgeDatabase, database: Sql, load: Callable[[str], None], name: str
) -> None:
    load(name)
    found = await guard.inspect(db)
    earlier, stored, _ = found.outdated[0]
    await guard.ensure(db)
    before = database.dump()
    with pytest.raises(errors.Refused):
        await db.batch(migrations.statements(earlier, stored))
    assert database.dump() == before


def stored_schema(sql: Sql) -> dict[str, ddl.Tokens]:
    """Every table and every index by name, word by word."""
    found = sql(
        "SELECT name, sql FROM sqlite_master WHERE name LIKE 'fencepost%' AND sql IS NOT NULL"
    )
    return {row["name"]: ddl.tokens(row["sql"]) for row in found}


def statements_of(file: str) -> list[tuple[str, tuple[()]]]:
    text = (ROOT / "schema" / file).read_text()
    return [(part, ()) for part in text.split(";\n") if part.strip()]


@pytest.mark.parametrize("name", EARLIER)
def test_a_dump_and_its_migration_file_give_exactly_the_present_schema(
    database: Sql, load: Callable[[str], None], name: str
) -> None:
    load(name)
    database.batch(statements_of(f"migrate-{name}.sql"))
    migrated = stored_schema(database)
    drop_all(database)
    database.batch(statements_of("schema.sql"))
    assert migrated == stored_schema(database)


@pytest.mark.parametrize("name", EARLIER)
def test_a_migration_file_creates_nothing_that_its_shape_already_has(
    database: Sql, load: Callable[[str], None], name: str
) -> None:
    load(name)
    statements = statements_of(f"migrate-{name}.sql")
    # A statement that creates what is there fails without these words.
    database.batch([(sql.replace("IF NOT EXISTS ", ""), ()) for sql, _ in statements])


@pytest.mark.parametrize("name", EARLIER)
def test_the_file_for_wrangler_migrates_its_shape_and_refuses_others(
    client: Client, database: Sql, load: Callable[[str], None], name: str
) -> None:
    parts = statements_of(f"migrate-{name}.sql")
    load(name)
    columns = columns_of(database)
    then = rows_of(database, columns)
    database.batch(parts)
    assert is_current(database)
    assert rows_of(database, columns) == then
    before = database.dump()
    with pytest.raises(D1Failure, match="malformed JSON"):
        database.batch(parts)
    assert database.dump() == before
