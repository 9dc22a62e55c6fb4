"""A table that is missing: an absent fence is open, an empty database has no rows, and anything
else is a mismatch that is said as one; never a run that is not there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import httpx
import pytest

from fencepost import fence
from fencepost.http import routes
from fencepost.schema import tables
from fencepost.storage.sql import Statement
from helpers import BridgeDatabase, Client, D1Failure, Json, Sql, new_key
from mutations import ROWS, operation
from stored_shapes import drop_all

FENCE = "fencepost_fence"
OWNER = {"host_id": "h", "pid": 1, "nonce": "n"}
OTHERS = [table for table in tables.TABLES if table != FENCE]

# What reads only tables that are there is answered.
SAID = {200, 201, 403, 409}


def answers(client: Client, sql: Sql, missing: str) -> dict[str, httpx.Response]:
    """Every route about a run that was made before a table went missing."""
    found = {}
    for name, row in ROWS.items():
        sql(f"DELETE FROM {FENCE}")
        run = client.started()
        run |= {n: new_key(n) for n in ("new", "new2", "named", "provisional")}
        run |= {n: {**run["owner"], "nonce": new_key()} for n in ("other", "third")}
        row.prepare(client, sql, run)
        sql(f"ALTER TABLE {missing} RENAME TO gone")
        found[name] = row.send(client, run, {})
        sql(f"DROP TABLE IF EXISTS {missing}")
        sql(f"ALTER TABLE gone RENAME TO {missing}")
    return found


def reads(client: Client, run: Json) -> dict[str, httpx.Response]:
    operator = client.as_("operator")
    operation("acquire", ttl_ms=60_000)(client, run, {})
    paths = [
        route.pattern.format(op="step", category="runs", table="events", **run)
        for route in routes.ROUTES
        if route.method == "GET"
    ]
    return {path: operator.get(path) for path in paths}


@pytest.mark.parametrize("missing", OTHERS)
def test_with_another_table_missing_no_read_says_that_something_is_not_there(
    client: Client, database: Sql, run: Json, missing: str
) -> None:
    client.operation(run, "acquire", ttl_ms=60_000)
    database(f"DROP TABLE {missing}")
    found = reads(client, run)
    for path, answer in found.items():
        said = (answer.status_code, answer.json()["code"]) if answer.status_code > 299 else None
        if path != "/v1/transfer/events":  # of which an open deployment gives none
            assert said in (None, (503, "SCHEMA_MISMATCH")), (path, answer.text)
        if said and answer.status_code == 503:
            assert answer.json()["table"] == missing
            assert answer.json()["difference"] == "missing"
    if missing not in ("fencepost_requests", "fencepost_subjects"):  # which no GET reads
        assert any(answer.status_code == 503 for answer in found.values())


@pytest.mark.parametrize("missing", ["fencepost_reservations", "fencepost_audit", FENCE])
def test_with_a_table_missing_no_verb_says_that_the_run_is_not_there(
    client: Client, database: Sql, missing: str
) -> None:
    for name, answer in answers(client, database, missing).items():
        assert answer.status_code != 404, (name, answer.text)
        code = answer.json().get("code")
        assert answer.status_code in SAID or code == "SCHEMA_MISMATCH", (name, answer.text)
        if missing == FENCE:
            assert answer.status_code in (200, 201), (name, answer.text)


def test_an_absent_fence_is_open_until_it_is_there(client: Client, database: Sql) -> None:
    run = client.started()
    database(f"DROP TABLE {FENCE}")
    assert client.get("/v1/fence").json()["state"] == "open"
    assert client.verb(run, "heartbeat").status_code == 200
    assert database("SELECT name FROM sqlite_master WHERE name = ?1", FENCE) == []
    assert client.start(new_key()).status_code == 201  # which makes it
    database.fence("migration-locked")
    assert client.verb(run, "heartbeat").json()["code"] == "EXECUTION_FENCED"


@pytest.mark.anyio
async def test_a_fence_that_is_made_while_it_is_missed_is_read_as_it_is(
    db: BridgeDatabase, sql: Sql, monkeypatch: pytest.MonkeyPatch
) -> None:
    sql.fence("draining", revision=7)
    send, missed = db._send, ["no such table: fencepost_fence: SQLITE_ERROR"]

    async def first_it_is_missing(statements: Sequence[Statement]) -> str:
        if missed:
            raise D1Failure(f"D1_ERROR: {missed[0]}", [missed.pop()])
        return await send(statements)

    monkeypatch.setattr(db, "_send", first_it_is_missing)
    gate = await fence.read(db)
    assert (gate.state, gate.revision) == ("draining", 7)


Ask = Callable[[Client], httpx.Response]


@pytest.mark.parametrize(
    "ask",
    [
        lambda client: client.get("/v1/runs/r"),
        lambda client: client.get("/v1/starts/k"),
        lambda client: client.post("/v1/runs/r/cancel", {}),
        lambda client: client.verb({"run_id": "r", "owner": {**OWNER}}, "heartbeat"),
    ],
)
def test_in_an_empty_database_nothing_is_there(
    client: Client, empty_database: Sql, ask: Ask
) -> None:
    assert ask(client).status_code == 404


# --- A row that the present shape refuses --------------------------------------------------


def test_a_row_that_a_migration_refuses_is_named_by_its_table_and_the_migration(
    client: Client, database: Sql, load: Callable[[str], None]
) -> None:
    load("7-requests")
    database("PRAGMA ignore_check_constraints = 1")
    database("UPDATE fencepost_runs SET status = 'lost' WHERE run_id = 'run-1'")
    database("PRAGMA ignore_check_constraints = 0")
    before = database.dump()
    operator = client.as_("operator")
    moved = operator.post("/v1/fence/transitions", {"expected": "open", "next": "open"})
    for answer in (client.start(new_key()), moved):
        problem = answer.json()
        assert (answer.status_code, problem["code"]) == (503, "SCHEMA_MISMATCH")
        assert problem["table"] == "fencepost_runs"
        assert "migration from 7-requests" in problem["detail"]
        assert "lost" not in answer.text
    assert database.dump() == before


@pytest.mark.parametrize("state", ["draining", "migration-locked"])
def test_while_draining_a_transition_to_the_same_state_brings_the_schema_forward(
    client: Client, database: Sql, load: Callable[[str], None], state: str
) -> None:
    load("7-requests")
    database("UPDATE fencepost_fence SET state = ?1", state)
    refused = client.start("old-ended")
    assert refused.json()["code"] == "SCHEMA_MISMATCH"
    assert "a transition to the state that it has" in refused.json()["detail"]
    operator = client.as_("operator")
    assert operator.get("/v1/health?deep=1").json()["schema"] == "behind"
    body = {"expected": state, "next": state}
    assert operator.post("/v1/fence/transitions", body).status_code == 200
    assert operator.get("/v1/health?deep=1").json()["schema"] == "current"
    assert client.start("old-ended").json()["code"] == "START_TARGET_MISMATCH"
    drop_all(database)
