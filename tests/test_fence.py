"""The fence: what each state admits, and that doubt closes it."""

from __future__ import annotations

import pytest

from fencepost import errors, fence
from fencepost.fence import OPERATED, Fence, FenceState
from fencepost.identifiers import Principal
from helpers import BridgeDatabase, Client, Sql, an_owner, new_key

ALICE, BOB = Principal("service", "alice"), Principal("service", "bob")
MATRIX = {
    # state: (a new start, an existing run, arming future work, queued work)
    FenceState.OPEN: (True, True, True, True),
    FenceState.DRAINING: (False, True, False, True),
    FenceState.MIGRATION_LOCKED: (False, False, False, False),
}


@pytest.mark.parametrize("state", MATRIX)
def test_each_state_admits_what_the_matrix_says(state: FenceState) -> None:
    gate = Fence(state, 1, None, None, 1)
    assert MATRIX[state] == (
        gate.admits_start("k", ALICE),
        gate.admits_existing_run("r"),
        gate.admits_arming(),
        gate.admits_queued_work(),
    )


def test_proof_only_admits_its_key_and_its_run_alone() -> None:
    unbound = Fence(FenceState.PROOF_ONLY, 1, "proof", None, 1)
    bound = Fence(FenceState.PROOF_ONLY, 1, "proof", "run", 1)
    assert unbound.admits_start("proof", ALICE)
    assert not unbound.admits_start("other", ALICE)
    assert not unbound.admits_existing_run("run")
    assert bound.admits_start("proof", ALICE, "run")
    assert not bound.admits_start("proof", ALICE, "other run")
    hers = bound._replace(proof_principal=BOB)
    assert hers.admits_start("proof", BOB, "run")
    assert not hers.admits_start("proof", ALICE, "run")
    assert bound.admits_existing_run("run")
    assert not bound.admits_existing_run("other run")
    assert not bound.admits_arming()
    assert not bound.admits_queued_work()


@pytest.mark.anyio
async def test_a_fence_that_was_never_provisioned_is_open(
    db: BridgeDatabase, empty_database: Sql
) -> None:
    before = empty_database.dump()
    assert (await fence.read(db)).state is FenceState.OPEN
    assert empty_database.dump() == before


@pytest.mark.anyio
async def test_a_missing_row_is_open(db: BridgeDatabase) -> None:
    assert await fence.read(db) == Fence(FenceState.OPEN, 0, None, None, None)


@pytest.mark.anyio
async def test_a_state_that_this_build_does_not_know_is_unreadable(
    db: BridgeDatabase, sql: Sql
) -> None:
    sql.fence("half-open")
    with pytest.raises(errors.FenceUnreadable):
        await fence.read(db)


def test_an_unreadable_fence_admits_nothing_and_nothing_is_written(
    client: Client, sql: Sql
) -> None:
    run = client.started()
    sql.fence("half-open")
    before = sql.dump()
    answers = [
        client.start(new_key()),
        client.verb(run, "heartbeat"),
        client.finish(run),
        client.get("/v1/fence"),
    ]
    for answer in answers:
        assert answer.status_code == 503
        assert answer.json()["code"] == "EXECUTION_FENCE_UNREADABLE"
    assert sql.dump() == before


@pytest.mark.parametrize("state", ["draining", "migration-locked"])
def test_a_closed_fence_refuses_new_starts_and_leaves_the_database_alone(
    client: Client, sql: Sql, state: str
) -> None:
    sql.fence(state)
    before = sql.dump()
    answer = client.start(new_key())
    assert answer.status_code == 503
    assert answer.json()["code"] == "EXECUTION_FENCED"
    assert answer.json()["state"] == state
    assert answer.json()["retry"] == "same-key"
    assert "Retry-After" in answer.headers
    assert sql.dump() == before


def test_draining_lets_existing_runs_finish(client: Client, sql: Sql) -> None:
    run = client.started()
    sql.fence("draining")
    assert client.verb(run, "heartbeat").status_code == 200
    assert client.finish(run, "suspended").status_code == 200
    assert client.verb({**run, "owner": an_owner()}, "own").status_code == 200
    assert client.start(run["key"]).json()["code"] == "START_PENDING"


def test_migration_locked_stops_existing_runs_but_reads_and_replays_pass(
    client: Client, sql: Sql
) -> None:
    done, live = client.started(), client.started()
    client.finish(done, result=1).raise_for_status()
    sql.fence("migration-locked")
    before = sql.dump()
    for answer in (
        client.verb(live, "heartbeat"),
        client.verb(live, "own"),
        client.finish(live),
    ):
        assert (answer.status_code, answer.json()["code"]) == (503, "EXECUTION_FENCED")
    assert client.start(done["key"]).json()["outcome"] == "replayed"
    assert client.get(f"/v1/runs/{live['run_id']}").json()["status"] == "running"
    assert client.get("/v1/fence").json()["state"] == "migration-locked"
    assert sql.dump() == before


def test_the_owners_retry_is_fenced_while_existing_runs_are(client: Client, sql: Sql) -> None:
    key, body = new_key(), {"target": {"kind": "workflow", "id": "w"}, "owner": an_owner()}
    client.start(key, body).raise_for_status()
    sql.fence("migration-locked")
    answer = client.start(key, body)
    assert (answer.status_code, answer.json()["code"]) == (503, "EXECUTION_FENCED")


def test_proof_only_starts_the_proof_key_and_binds_its_run(client: Client, sql: Sql) -> None:
    key = new_key("proof")
    sql.fence("proof-only", proof_key=key)
    assert client.start(new_key()).json()["code"] == "EXECUTION_FENCED"
    body = {"target": {"kind": "workflow", "id": "w"}, "owner": an_owner()}
    run = client.start(key, body).json()["run"]
    assert sql("SELECT proof_run_id FROM fencepost_fence") == [{"proof_run_id": run["run_id"]}]
    assert client.start(key, body).json()["outcome"] == "started"
    assert client.verb(run, "heartbeat").status_code == 200


def test_the_proof_key_is_shown_to_operators_alone(client: Client, sql: Sql) -> None:
    sql.fence("proof-only", proof_key="secret")
    assert "proof_key" not in client.get("/v1/fence").json()
    assert client.as_("operator").get("/v1/fence").json() == {
        "state": "proof-only",
        "revision": 1,
        "proof_key": "secret",
        "proof_principal": None,
        "proof_run_id": None,
        "last_admitted_revision": None,
        "updated_at_ms": 1000,
    }


def test_the_first_start_of_all_looks_at_the_fence_before_it_creates_tables(
    client: Client, empty_database: Sql
) -> None:
    from fencepost.schema import tables

    empty_database(tables.STATEMENTS[0])
    empty_database.fence("migration-locked")
    before = empty_database.dump()
    answer = client.start(new_key())
    assert (answer.status_code, answer.json()["code"]) == (503, "EXECUTION_FENCED")
    assert empty_database.dump() == before


LOCK = [part for part in fence.as_lock_file().split(";\n") if part.strip()]


@pytest.mark.parametrize("state", [*OPERATED, None])
def test_the_lock_file_closes_a_fence_in_any_state_and_says_so_in_the_audit(
    client: Client, sql: Sql, state: str | None
) -> None:
    sql("DELETE FROM fencepost_fence")
    sql("DELETE FROM fencepost_audit")
    if state is not None:
        sql.fence(state, proof_key="k" if state == "proof-only" else None, revision=3)
    sql.batch([(part, ()) for part in LOCK])
    now = client.as_("operator").get("/v1/fence").json()
    assert (now["state"], now["proof_key"]) == ("migration-locked", None)
    assert now["revision"] == (0 if state is None else 4)
    acts = [row["action"] for row in sql("SELECT action FROM fencepost_audit")]
    assert acts == ([] if state is None else ["fence-lock"])


@pytest.mark.parametrize("state", ["importing", "void"])
def test_the_lock_file_does_not_touch_a_deployment_that_moves(sql: Sql, state: str) -> None:
    sql.fence(state)
    before = sql.dump()
    sql.batch([(part, ()) for part in LOCK])
    assert sql.dump() == before
