"""Tables: where they are created, that they defend themselves, and that the files agree."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import generated
from conftest import ROOT
from fencepost.schema import guard
from helpers import BridgeDatabase, Client, D1Failure, Sql, new_key, round_trips

SOURCES = sorted((ROOT / "src").rglob("*.py"))


@pytest.mark.parametrize("name", generated.FILES)
def test_a_generated_file_is_as_its_source_says(name: str) -> None:
    assert (ROOT / name).read_text() == generated.FILES[name]


def test_the_first_start_of_all_creates_the_tables(client: Client, empty_database: Sql) -> None:
    answer = client.start(new_key())
    assert answer.status_code == 201
    # The failed start and the shape, the fence without its table, the shape, tables, start.
    assert round_trips(answer) == 7
    assert round_trips(client.start(new_key())) == 1


def test_no_other_path_creates_a_table(client: Client, empty_database: Sql) -> None:
    owner = {"host_id": "h", "pid": 1, "nonce": "n"}
    for answer in (
        client.get("/v1/starts/k"),
        client.get("/v1/runs/r"),
        client.get("/v1/runs?status=running"),
        client.get("/v1/runs"),
        client.get("/v1/fence"),
        client.get("/v1/health?deep=1"),
        client.post("/v1/starts/k/release", {"owner": owner}),
        client.post("/v1/runs/r/own", {"owner": owner}),
        client.post("/v1/runs/r/heartbeat", {"owner": owner}),
        client.post("/v1/runs/r/transition", {"owner": owner, "to": "completed"}),
        client.get("/v1/runs/r/operations/o"),
        client.post("/v1/runs/r/operations/o/acquire", {"owner": owner, "ttl_ms": 1000}),
    ):
        assert answer.status_code in (200, 404), answer.text
    assert empty_database("SELECT name FROM sqlite_master WHERE name LIKE 'fencepost%'") == []


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.name)
def test_ddl_stands_in_the_schema_modules_and_the_migrations_alone(source: Path) -> None:
    ddl = re.findall(r"\b(?:CREATE|ALTER|DROP)\s+(?:TABLE|INDEX|TRIGGER)\b", source.read_text())
    assert bool(ddl) == (source.name in ("tables.py", "migrations.py", "seal_triggers.py"))


def test_only_a_start_and_a_fence_transition_bring_the_schema_forward() -> None:
    callers = {path.name for path in SOURCES if ".bring_schema_forward(" in path.read_text()}
    assert callers == {"starts.py", "fence.py"}


@pytest.mark.anyio
async def test_ensuring_an_existing_schema_changes_nothing(db: BridgeDatabase, sql: Sql) -> None:
    before = sql.dump()
    await guard.ensure(db)
    assert sql.dump() == before


BROKEN = {
    "a running run without an owner": (
        "UPDATE fencepost_runs SET owner_host_id = NULL, owner_pid = NULL, owner_nonce = NULL, "
        "heartbeat_at_ms = NULL, lease_expires_at_ms = NULL"
    ),
    "an owner without a heartbeat": "UPDATE fencepost_runs SET heartbeat_at_ms = NULL",
    "half an owner": "UPDATE fencepost_runs SET owner_pid = NULL",
    "half a claim": "UPDATE fencepost_runs SET claim_host_id = 'h'",
    "an end of a run that runs": "UPDATE fencepost_runs SET finished_at_ms = 5",
    "an unknown status": "UPDATE fencepost_runs SET status = 'lost'",
    "half a machine": "UPDATE fencepost_runs SET machine = 'delivery'",
    "a state of no machine": "UPDATE fencepost_runs SET machine_state = 'created'",
    "a code of no machine": "UPDATE fencepost_runs SET machine_code = 'c'",
    "a binding at no gate": (
        "INSERT INTO fencepost_bindings SELECT run_id, 1, 'c', head_hash, NULL, 1 "
        "FROM fencepost_runs"
    ),
    "a binding in revision 0": (
        "INSERT INTO fencepost_bindings SELECT run_id, 0, 'a', head_hash, NULL, 1 "
        "FROM fencepost_runs"
    ),
    "a receipt that is no hash": (
        "INSERT INTO fencepost_bindings SELECT run_id, 1, 'a', upper(head_hash) || 'G', NULL, 1 "
        "FROM fencepost_runs"
    ),
    "a proof that is no object": (
        "INSERT INTO fencepost_bindings SELECT run_id, 1, 'a', head_hash, '[]', 1 "
        "FROM fencepost_runs"
    ),
    "half a lineage": "UPDATE fencepost_runs SET lineage_id = 'l'",
    "an acknowledgement without a request": (
        "UPDATE fencepost_runs SET cancel_acknowledged_at_ms = 5"
    ),
    "a fact of nobody": "UPDATE fencepost_ownership SET type = 'cancel-requested'",
    "a fact without a process": (
        "UPDATE fencepost_ownership SET owner_host_id = NULL, owner_pid = NULL, owner_nonce = NULL"
    ),
    "a fact of half a process": "UPDATE fencepost_ownership SET owner_pid = NULL",
    "a fact of a process and of a principal": (
        "UPDATE fencepost_ownership SET principal_kind = 'human', principal_id = 'olga'"
    ),
    "a fact of half a principal": (
        "UPDATE fencepost_ownership SET type = 'cancel-requested', owner_host_id = NULL, "
        "owner_pid = NULL, owner_nonce = NULL, principal_kind = 'human'"
    ),
    "an unknown fact": "UPDATE fencepost_ownership SET type = 'forgotten'",
    "a started reservation without a claim": (
        "UPDATE fencepost_reservations SET claim_nonce = NULL"
    ),
    "a reserved reservation with a claim": "UPDATE fencepost_reservations SET state = 'reserved'",
    "an outcome before the end": "UPDATE fencepost_reservations SET outcome = 'completed'",
    "attempt 0": "UPDATE fencepost_reservations SET attempt = 0",
    "an agent without a thread": "UPDATE fencepost_reservations SET target_kind = 'agent'",
    "a state that is not JSON": "UPDATE fencepost_snapshots SET state = '{'",
    "a running operation without a lease": (
        "UPDATE fencepost_operations SET lease_expires_at_ms = NULL"
    ),
    "an interrupted operation with a lease": (
        "UPDATE fencepost_operations SET state = 'interrupted'"
    ),
    "a committed operation without an outcome": (
        "UPDATE fencepost_operations SET state = 'committed', lease_expires_at_ms = NULL"
    ),
    "an outcome of an operation that runs": "UPDATE fencepost_operations SET outcome = '1'",
    "an operation of no generation": "UPDATE fencepost_operations SET generation = NULL",
    "an operation of generation −1": "UPDATE fencepost_operations SET generation = -1",
    "an operation in upper case": "UPDATE fencepost_operations SET operation_id = 'STEP'",
    "proof-only without a key": (
        "INSERT INTO fencepost_fence (id, state, updated_at_ms) "
        "VALUES ('deployment', 'proof-only', 1)"
    ),
    "a second fence": (
        "INSERT INTO fencepost_fence (id, state, updated_at_ms) VALUES ('other', 'open', 1)"
    ),
}


@pytest.mark.parametrize("statement", BROKEN.values(), ids=BROKEN)
def test_the_tables_refuse(client: Client, sql: Sql, statement: str) -> None:
    sql("DELETE FROM fencepost_operations")
    client.operation(client.started(), "acquire", ttl_ms=60_000).raise_for_status()
    with pytest.raises(D1Failure, match="SQLITE_CONSTRAINT"):
        sql(statement)
