"""The schema guard: another shape is refused whole, earlier ones move forward on a write only."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest

from conftest import ROOT
from fencepost import errors, migrations, schema, schema_guard, shape
from fencepost.d1 import Result
from fencepost.migrations import DDL
from fencepost.table import ROUTES
from helpers import BridgeDatabase, Client, D1Failure, Json, Sql, an_owner, new_key, round_trips

DUMPS = {path.stem: path.read_text() for path in sorted((ROOT / "tests/schemas").glob("*.sql"))}
EARLIER = tuple(migrations.MIGRATIONS)
NAMED = ("table", "column", "difference")


def tables(sql: Sql) -> dict[str, str]:
    found = sql(
        "SELECT name, sql FROM sqlite_master WHERE type = 'table' AND name LIKE 'fencepost%'"
    )
    return {row["name"]: row["sql"] for row in found}


def drop_all(sql: Sql) -> None:
    sql.batch([(f"DROP TABLE {name}", ()) for name in tables(sql)] or [("SELECT 1", ())])


def forget(client: Client, sql: Sql) -> None:
    """Every isolate misses a table, so that it looks at the schema again."""
    sql("ALTER TABLE fencepost_audit RENAME TO kept_audit")
    client.look()
    sql("ALTER TABLE kept_audit RENAME TO fencepost_audit")


Reshape = Callable[[str, str, str], None]


@pytest.fixture
def database(client: Client, sql: Sql) -> Iterator[Sql]:
    """The database, which a test may alter; its tables are made anew afterwards."""
    yield sql
    drop_all(sql)


@pytest.fixture
def run(client: Client, database: Sql) -> Json:
    return client.started()


@pytest.fixture
def reshape(client: Client, database: Sql, run: Json) -> Reshape:
    """Makes a table anew with a piece of its DDL replaced; its rows stay."""

    def make(table: str, piece: str, other: str) -> None:
        assert piece in DDL[table]
        changed = DDL[table].replace(piece, other, 1).replace(table, "changed", 1)
        database(changed)
        wanted = {row["name"] for row in database("SELECT name FROM pragma_table_info('changed')")}
        columns = ", ".join(name for name in migrations.columns_of(table) if name in wanted)
        database.batch(
            [
                (f"INSERT INTO changed ({columns}) SELECT {columns} FROM {table}", ()),
                (f"DROP TABLE {table}", ()),
                (f"ALTER TABLE changed RENAME TO {table}", ()),
                *[(ddl, ()) for ddl in schema.STATEMENTS if f"ON {table} " in ddl],
            ]
        )
        forget(client, database)

    return make


@pytest.fixture
def load(client: Client, database: Sql) -> Callable[[str], None]:
    """Puts a stored dump in the place of the database; no isolate has looked at it."""

    def put(name: str) -> None:
        drop_all(database)
        client.look()
        text = re.sub(r"^--.*\n", "", DUMPS[name], flags=re.MULTILINE)
        database.batch([(part, ()) for part in text.split(";\n") if part.strip()])

    return put


# --- Another shape -----------------------------------------------------------------------

RUNS, EVENTS = "fencepost_runs", "fencepost_events"
DIFFERENCES: dict[str, tuple[tuple[str, str, str], str | None, str]] = {
    "type": ((RUNS, "lease_ms INTEGER", "lease_ms ANY"), "lease_ms", "type"),
    "NOT NULL": (
        (RUNS, "write_token TEXT NOT NULL", "write_token TEXT"),
        "write_token",
        "NOT NULL",
    ),
    "CHECK of a column": (
        (RUNS, "CHECK (generation >= 0)", "CHECK (generation >= 1)"),
        "generation",
        "CHECK",
    ),
    "CHECK gone from a column": ((RUNS, " CHECK (generation >= 0)", ""), "generation", "CHECK"),
    "CHECK of a table": (
        (RUNS, "CHECK ((lineage_id IS NULL) = (lineage_round IS NULL))", "CHECK (1)"),
        None,
        "CHECK",
    ),
    "UNIQUE": (
        (RUNS, "head_hash TEXT NOT NULL", "head_hash TEXT NOT NULL UNIQUE"),
        "head_hash",
        "UNIQUE",
    ),
    "DEFAULT": (
        ("fencepost_fence", "revision INTEGER NOT NULL DEFAULT 0", "revision INTEGER NOT NULL"),
        "revision",
        "DEFAULT",
    ),
    "PRIMARY KEY": (
        (EVENTS, "PRIMARY KEY (run_id, sequence)", "PRIMARY KEY (run_id, sequence, type)"),
        "run_id",
        "PRIMARY KEY",
    ),
    "STRICT": ((EVENTS, "STRICT, WITHOUT ROWID", "WITHOUT ROWID"), None, "STRICT"),
    "WITHOUT ROWID": ((EVENTS, "STRICT, WITHOUT ROWID", "STRICT"), None, "WITHOUT ROWID"),
    "a missing column": (
        ("fencepost_snapshots", ",\n  result TEXT CHECK (json_valid(result))", ""),
        "result",
        "missing",
    ),
    "a newer column that is not nullable": (
        (
            EVENTS,
            "created_at_ms INTEGER NOT NULL,",
            "created_at_ms INTEGER NOT NULL, n INTEGER NOT NULL DEFAULT 1,",
        ),
        "n",
        "unknown, and not merely nullable",
    ),
    "a newer column in the middle": (
        (EVENTS, "type TEXT NOT NULL,", "kind TEXT, type TEXT NOT NULL,"),
        "kind",
        "order",
    ),
    "a newer CHECK": (
        (EVENTS, "PRIMARY KEY (run_id", "CHECK (sequence < 100), PRIMARY KEY (run_id"),
        "sequence",
        "CHECK",
    ),
}


def writes(run: Json) -> dict[str, tuple[str, Json, dict[str, str]]]:
    """A request for every write path that such a run has."""
    at, owner = f"/v1/runs/{run['run_id']}", run["owner"]
    key = {"Idempotency-Key": new_key()}
    new = {"owner": an_owner()}
    start = {"target": {"kind": "workflow", "id": "charge"}}
    evidence = {"evidence": {"kind": "lease-expired", "expected_owner": owner}}
    binding = {"gate": "a", "revision": 1, "receipt_hash": "a" * 64}
    lease = {"owner": owner, "token": run.get("token", "t" * 32)}
    return {
        "start": ("/v1/starts", start, key),
        "fence": ("/v1/fence/transitions", {"expected": "open", "next": "draining"}, {}),
        "release": (f"/v1/starts/{run['key']}/release", {"owner": owner}, {}),
        "resolve": (
            f"/v1/starts/{run['key']}/resolve",
            {"attempt": 1, "decision": "executed", "note": "n"},
            {},
        ),
        "heartbeat": (f"{at}/heartbeat", {"owner": owner}, {}),
        "reconfirm": (f"{at}/reconfirm", {"owner": owner}, {}),
        "own": (f"{at}/own", new, {}),
        "claim": (f"{at}/claim", new, {}),
        "steal": (f"{at}/steal", new | evidence, {}),
        "transition": (f"{at}/transition", {"owner": owner, "to": "completed"}, {}),
        "abandon": (f"{at}/abandon", {"owner": owner}, {}),
        "activate": (f"{at}/activate", {"owner": owner}, {}),
        "recover": (f"{at}/recover", new | evidence, {}),
        "events": (f"{at}/events", {"type": "noted", "payload": 1, "owner": owner}, {}),
        "bind-change": (f"{at}/bind-change", {"owner": owner, "change": "1"}, {}),
        "bindings": (f"{at}/bindings", {"owner": owner, "bindings": [binding]}, {}),
        "cancel": (f"{at}/cancel", {}, {}),
        "acknowledge-cancel": (f"{at}/acknowledge-cancel", {"owner": owner}, {}),
        "lineage cancel": (f"{at}/lineage/cancel", {}, {}),
        "acquire": (f"{at}/operations/step/acquire", {"owner": owner, "ttl_ms": 60_000}, {}),
        "renew": (f"{at}/operations/step/renew", lease | {"ttl_ms": 60_000}, {}),
        "commit": (f"{at}/operations/step/commit", lease | {"outcome": 1}, {}),
        "interrupt": (f"{at}/operations/step/interrupt", lease, {}),
        "purge": ("/v1/retention/purge", {}, {}),
    }


def test_every_mutating_route_is_among_the_writes() -> None:
    run: Json = {"run_id": "r", "key": "k", "owner": an_owner()}
    paths = {path for path, _, _ in writes(run).values()}
    patterns = {route.pattern for route in ROUTES if route.method == "POST"}
    named = {p.format(run_id="r", key="k", op="step") for p in patterns}
    assert paths == named - {"/v1/runs/r/operations/step/assert"}


@pytest.mark.parametrize("name", DIFFERENCES)
def test_a_table_of_another_shape_is_refused_and_named(
    client: Client, database: Sql, reshape: Reshape, run: Json, name: str
) -> None:
    change, column, difference = DIFFERENCES[name]
    reshape(*change)
    before = database.dump()
    for isolate in ("0", "1"):
        answer = client.start(new_key(), X_Local_Isolate=isolate)
        problem = answer.json()
        assert (answer.status_code, problem["code"]) == (503, "SCHEMA_MISMATCH"), problem
        found = [problem[member] for member in NAMED]
        if name == "CHECK of a table":
            found[1] = None  # one of the columns that it is about
        assert found == [change[0], column, difference]
        assert not re.search(r"SELECT|CREATE|INSERT|SQLITE|D1_ERROR", answer.text)
    assert database.dump() == before


def test_every_write_path_refuses_and_writes_nothing(
    client: Client, database: Sql, reshape: Reshape, run: Json
) -> None:
    acquired = client.operation(run, "acquire", ttl_ms=60_000).json()
    run |= {"token": acquired["lease"]["token"]}
    reshape(RUNS, "CHECK (generation >= 0)", "CHECK (generation >= 1)")
    before, operator = database.dump(), client.as_("operator")
    for name, (path, body, headers) in writes(run).items():
        answer = operator.post(path, body, headers=headers)
        code = answer.json()["code"]
        assert (answer.status_code, code) == (503, "SCHEMA_MISMATCH"), (name, answer.text)
    assert database.dump() == before


def test_a_read_of_another_shape_works_where_it_can_and_repairs_nothing(
    client: Client, database: Sql, reshape: Reshape, run: Json
) -> None:
    reshape(RUNS, "CHECK (generation >= 0)", "CHECK (generation >= 1)")
    before = database.dump()
    assert client.get(f"/v1/runs/{run['run_id']}").status_code == 200
    assert client.get("/v1/fence").status_code == 200
    assert database.dump() == before


def test_a_read_that_misses_a_column_says_so(
    client: Client, database: Sql, reshape: Reshape, run: Json
) -> None:
    reshape("fencepost_snapshots", ",\n  result TEXT CHECK (json_valid(result))", "")
    before = database.dump()
    for path in (f"/v1/runs/{run['run_id']}", f"/v1/starts/{run['key']}"):
        answer = client.get(path)
        problem = answer.json()
        assert (answer.status_code, problem["code"]) == (503, "SCHEMA_MISMATCH"), problem
        assert [problem[m] for m in NAMED] == ["fencepost_snapshots", "result", "missing"]
    assert database.dump() == before


def test_a_column_that_goes_while_an_isolate_runs_is_noticed(
    client: Client, database: Sql, run: Json
) -> None:
    database("ALTER TABLE fencepost_snapshots RENAME COLUMN result TO outcome")
    before = database.dump()
    for answer in (client.start(new_key()), client.finish(run)):
        assert answer.status_code == 503
        assert answer.json()["code"] == "SCHEMA_MISMATCH", answer.text
        assert answer.json()["column"] == "result"
    assert database.dump() == before


def test_a_backup_of_an_earlier_shape_under_a_running_isolate_is_noticed(
    client: Client, database: Sql, run: Json
) -> None:
    """As D1's Time Travel restores one; no isolate looks, and a heartbeat needs no new column."""
    parts = DUMPS["3-ownership"].split(";\n")
    [ddl] = [part for part in parts if "EXISTS fencepost_runs (" in part]
    names = ", ".join(migrations.EARLIER[shape.digest(ddl)].columns)
    rows = database(f"SELECT {names} FROM fencepost_runs WHERE run_id = ?1", run["run_id"])
    values = ", ".join(f"?{n}" for n in range(1, len(rows[0]) + 1))
    insert = f"INSERT INTO fencepost_runs ({names}) VALUES ({values})"
    database.batch(
        [
            ("DROP TABLE fencepost_runs", ()),
            (ddl.strip(), ()),
            (insert, tuple(rows[0].values())),
        ]
    )
    isolate = {"headers": {"X-Local-Isolate": "0"}}
    path = f"/v1/runs/{run['run_id']}/heartbeat"
    beat = client.post(path, {"owner": run["owner"]}, **isolate).json()
    assert [beat[m] for m in NAMED] == ["fencepost_runs", "machine", "missing"]
    # It was written, so nothing else is said.
    assert (beat["code"], "Nothing was written" in beat["detail"]) == ("SCHEMA_MISMATCH", False)
    second = client.post(path, {"owner": run["owner"]}, **isolate).json()
    assert "next start or fence transition" in second["detail"]
    assert client.start(new_key(), X_Local_Isolate="0").status_code == 201
    assert client.post(path, {"owner": run["owner"]}, **isolate).status_code == 200


def test_a_nullable_column_more_at_the_end_is_tolerated(
    client: Client, database: Sql, run: Json
) -> None:
    for table in tables(database):
        database(f"ALTER TABLE {table} ADD COLUMN newer TEXT")
    forget(client, database)
    client.look()
    answer = client.start(new_key())
    assert (answer.status_code, round_trips(answer)) == (201, 1)
    assert client.finish(run).status_code == 200


def test_a_unique_index_of_somebody_else_is_refused_and_another_is_not(
    client: Client, database: Sql, run: Json
) -> None:
    database("CREATE INDEX mine ON fencepost_runs (target_id)")
    forget(client, database)
    assert client.start(new_key()).status_code == 201
    database("CREATE UNIQUE INDEX mine_too ON fencepost_runs (write_token)")
    forget(client, database)
    problem = client.start(new_key()).json()
    assert [problem[m] for m in NAMED] == [RUNS, "write_token", "UNIQUE"]


def test_an_index_of_ours_over_other_columns_is_refused(client: Client, database: Sql) -> None:
    database("DROP INDEX fencepost_runs_by_age")
    database("CREATE INDEX fencepost_runs_by_age ON fencepost_runs (run_id)")
    forget(client, database)
    problem = client.start(new_key()).json()
    assert [problem[m] for m in NAMED] == [RUNS, None, "index fencepost_runs_by_age"]


def test_a_view_in_the_place_of_a_table_is_refused(client: Client, database: Sql) -> None:
    database("DROP TABLE fencepost_ownership")
    database("CREATE VIEW fencepost_ownership AS SELECT 1 AS run_id")
    forget(client, database)
    try:
        problem = client.start(new_key()).json()
        assert [problem[m] for m in NAMED] == ["fencepost_ownership", None, "not an ordinary table"]
    finally:
        database("DROP VIEW fencepost_ownership")


@pytest.mark.parametrize("missing", ["INDEX fencepost_runs_by_age", "TABLE fencepost_ownership"])
def test_what_is_missing_is_created_by_a_start_and_by_no_other_write(
    client: Client, database: Sql, run: Json, missing: str
) -> None:
    database(f"DROP {missing}")
    forget(client, database)
    before = [row["name"] for row in database("SELECT name FROM sqlite_master ORDER BY 1")]
    assert client.verb(run, "heartbeat").status_code == 200
    after = [row["name"] for row in database("SELECT name FROM sqlite_master ORDER BY 1")]
    assert after == before
    assert client.start(new_key()).status_code == 201
    after = [row["name"] for row in database("SELECT name FROM sqlite_master ORDER BY 1")]
    assert set(after) - set(before) >= {missing.split()[1]}


def test_a_replay_during_a_drain_needs_no_table_that_came_later(
    client: Client, database: Sql, run: Json
) -> None:
    client.finish(run).raise_for_status()
    database("DROP INDEX fencepost_runs_by_age")
    database.fence("draining")
    forget(client, database)
    before = database.dump()
    assert client.start(run["key"]).json()["outcome"] == "replayed"
    assert client.start(new_key()).json()["code"] == "EXECUTION_FENCED"
    assert database.dump() == before


def test_an_isolate_looks_once(client: Client, database: Sql, run: Json) -> None:
    forget(client, database)
    isolate = {"X_Local_Isolate": "0"}
    assert round_trips(client.start(new_key(), None, **isolate)) == 2
    assert round_trips(client.start(new_key(), None, **isolate)) == 1


# --- Earlier shapes ----------------------------------------------------------------------


def rows_of(sql: Sql, columns: dict[str, str]) -> dict[str, list[Json]]:
    """The rows of the tables, in the columns named."""
    return {
        table: sql(f"SELECT {names} FROM {table} ORDER BY 1, 2") for table, names in columns.items()
    }


def columns_of(sql: Sql) -> dict[str, str]:
    return {
        table: ", ".join(
            row["name"] for row in sql(f"SELECT name FROM pragma_table_info('{table}')")
        )
        for table in tables(sql)
    }


def is_current(sql: Sql) -> bool:
    found: list[Any] = sql(schema_guard._READ_SHAPE)
    return schema_guard.judge(Result(found, 0, 0, 0)).current


def test_there_is_a_dump_of_every_shape() -> None:
    assert set(EARLIER) < set(DUMPS)
    # The last one is the present shape; a change of a table adds an entry to MIGRATIONS.
    assert len(DUMPS) == len(EARLIER) + 1


@pytest.mark.parametrize("earlier", migrations.EARLIER.values(), ids=lambda e: e.digest[:8])
def test_old_rows_have_a_value_for_every_column_that_is_not_null(
    earlier: migrations.Earlier,
) -> None:
    ours = shape.table(DDL[earlier.table])
    assert ours is not None
    filled = [column for column, _ in earlier.fills]
    assert set(earlier.columns).isdisjoint(filled)
    needed = {
        column
        for column, words in ours.columns.items()
        if ("not", "null") in itertools.pairwise(words) and "default" not in words
    }
    assert set(filled) <= needed <= {*earlier.columns, *filled}


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
def test_neither_a_read_nor_another_write_brings_a_dump_forward(
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
    database("CREATE TABLE fencepost_events_next (n INTEGER, m INTEGER)")
    before = database.dump()
    answer = client.start(new_key())
    assert (answer.status_code, answer.json()["code"]) == (503, "STORAGE_REFUSED")
    assert database.dump() == before
    database("DROP TABLE fencepost_events_next")
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
    found = await schema_guard.inspect(db)
    earlier, stored, _ = found.outdated[0]
    await schema_guard.ensure(db)
    before = database.dump()
    with pytest.raises(errors.Refused):
        await db.batch(migrations.statements(earlier, stored))
    assert database.dump() == before


@pytest.mark.parametrize("name", EARLIER)
def test_the_file_for_wrangler_migrates_its_shape_and_refuses_others(
    client: Client, database: Sql, load: Callable[[str], None], name: str
) -> None:
    file = (ROOT / f"schema/migrate-{name}.sql").read_text()
    parts = [(part, ()) for part in file.split(";\n") if part.strip()]
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


# --- Reading a definition ----------------------------------------------------------------


@pytest.mark.parametrize("name", DDL)
def test_comments_case_spaces_and_quotes_do_not_matter(name: str) -> None:
    written = re.sub(r"--[^\n]*", "/* other; ' */", DDL[name])
    written = written.replace("IF NOT EXISTS ", "").replace(name, f'"{name}"', 1)
    written = written.replace("TEXT NOT NULL", "text\n\tnot  null").replace("  ", "\n")
    assert shape.compare(name, DDL[name], written) is None
    assert shape.digest(written) == shape.digest(DDL[name])


def test_the_case_of_a_text_matters() -> None:
    other = DDL["fencepost_events"].replace("STRICT,", "strict,")
    assert shape.compare("t", DDL["fencepost_events"], other) is None
    other = DDL[RUNS].replace("'human'", "'Human'", 1)
    found = shape.compare(RUNS, DDL[RUNS], other)
    assert found is not None
    assert json.dumps(found[1:]) == '["principal_kind", "CHECK"]'


def test_a_foreign_key_is_a_difference() -> None:
    ours = DDL[EVENTS]
    other = ours.replace("run_id TEXT NOT NULL", "run_id TEXT NOT NULL REFERENCES fencepost_runs")
    assert shape.compare(EVENTS, ours, other) == (EVENTS, "run_id", "REFERENCES")
    key = "FOREIGN KEY (run_id) REFERENCES fencepost_runs (run_id), PRIMARY KEY"
    other = ours.replace("PRIMARY KEY", key)
    assert shape.compare(EVENTS, ours, other) == (EVENTS, "run_id", "FOREIGN KEY")
