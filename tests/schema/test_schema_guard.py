"""The schema guard: another shape is refused whole. Earlier ones: test_migrations.py."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from fencepost.http.routes import ROUTES
from fencepost.schema import ddl as stored_ddl
from fencepost.schema import migrations, tables
from fencepost.schema.migrations import DDL
from helpers import Client, Json, Sql, an_owner, new_key, round_trips
from mutations import WRITE_NOTHING
from stored_shapes import DUMPS, stored_tables

NAMED = ("table", "column", "difference")


def forget(client: Client, sql: Sql) -> None:
    """Every isolate misses a table, so that it looks at the schema again."""
    sql("ALTER TABLE fencepost_audit RENAME TO kept_audit")
    client.look()
    sql("ALTER TABLE kept_audit RENAME TO fencepost_audit")


Reshape = Callable[[str, str, str], None]


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
                *[(ddl, ()) for ddl in tables.STATEMENTS if f"ON {table} " in ddl],
            ]
        )
        forget(client, database)

    return make


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
    abandoned = run.get("abandoned", run)
    return {
        "start": ("/v1/starts", start, key),
        "fence": ("/v1/fence/transitions", {"expected": "open", "next": "draining"}, {}),
        "release": (f"/v1/starts/{run['key']}/release", {"owner": owner}, {}),
        "resolve": (
            f"/v1/starts/{abandoned['key']}/resolve",
            {"seen": abandoned.get("seen", ""), "decision": "executed", "note": "n"},
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
        "conclude": (f"{at}/operations/step/conclude", lease | {"outcome": 1}, {}),
        "interrupt": (f"{at}/operations/step/interrupt", lease, {}),
        "purge": ("/v1/retention/purge", {}, {}),
    }


def test_every_mutating_route_is_among_the_writes() -> None:
    run: Json = {"run_id": "r", "key": "k", "owner": an_owner()}
    paths = {path for path, _, _ in writes(run).values()}
    posts = [route for route in ROUTES if route.method == "POST" and not route.of_a_move]
    patterns = {route.pattern for route in posts}
    named = {p.format(run_id="r", key="k", op="step") for p in patterns - set(WRITE_NOTHING)}
    assert paths == named


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
    abandoned = client.started()
    database.lapse(abandoned["run_id"])
    abandoned["seen"] = client.get(f"/v1/starts/{abandoned['key']}").json()["seen"]
    run |= {"token": acquired["lease"]["token"], "abandoned": abandoned}
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
    names = ", ".join(migrations.EARLIER[stored_ddl.digest(ddl)].columns)
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
    for table in stored_tables(database):
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


@pytest.mark.parametrize(
    "missing",
    ["INDEX fencepost_runs_by_age", "TABLE fencepost_bindings"],
)
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


def test_a_run_is_not_said_to_be_missing_when_another_table_is(
    client: Client, database: Sql, run: Json
) -> None:
    database("DROP TABLE fencepost_ownership")
    forget(client, database)
    answer = client.verb(run, "heartbeat")
    assert (answer.status_code, answer.json()["retry"]) == (503, "same-key")
    assert client.start(new_key()).status_code == 201
    assert client.verb(run, "heartbeat").status_code == 200


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
