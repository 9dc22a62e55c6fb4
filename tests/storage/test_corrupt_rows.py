"""A stored row that breaks a rule is refused on read: 503 ROW_CORRUPT, the rule and no content.

The tables refuse such rows themselves, so here they are made anew without their CHECKs.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from fencepost.schema import tables
from helpers import Client, Json, Sql

SECRET = "do-not-echo"  # noqa: S105
LOOSE = ("reservations", "runs", "snapshots", "operations")


def without_checks(ddl: str) -> str:
    """The DDL without its CHECK constraints and NOT NULLs, loose about types."""
    out, rest = "", re.sub(r"--[^\n]*", "", ddl)
    while (at := rest.find("CHECK (")) >= 0:
        out, rest = out + rest[:at], rest[at + len("CHECK ") :]
        depth, end = 1, 1
        while depth:
            depth += (rest[end] == "(") - (rest[end] == ")")
            end += 1
        rest = rest[end:]
    loose = (out + rest).replace("STRICT, ", "").replace(" STRICT", "").replace("NOT NULL", "")
    return re.sub(r",(\s*,)+", ",", re.sub(r",\s*\n?\s*\)", "\n)", re.sub(r",(\s*,)+", ",", loose)))


@pytest.fixture
def loose(client: Client, sql: Sql) -> Iterator[Json]:
    """A run of alice's, in tables that take anything."""
    for table in LOOSE:
        sql(f"DROP TABLE fencepost_{table}")
    for ddl in tables.STATEMENTS:
        if re.match(rf"CREATE TABLE IF NOT EXISTS fencepost_({'|'.join(LOOSE)}) ", ddl):
            sql(without_checks(ddl))
    yield client.started(input={"secret": SECRET})
    for table in LOOSE:
        sql(f"DROP TABLE fencepost_{table}")


RUN_DAMAGE = {
    "status is known": "status = 'lost'",
    "numbers are whole and within ±(2^53−1)": "generation = 1.5",
    "an owner is whole and has a heartbeat and a lease": "owner_pid = NULL",
    "a running run, and no other, has an owner": "status = 'suspended'",
    "a claim is whole or absent": "claim_nonce = 'n'",
    "a lineage has an id and a round": "lineage_round = 1",
    "a machine has a name and a state": "machine = 'delivery'",
    "only a machine has a code": "machine_code = 'c'",
    "a run that ended, and no other, has an end": "finished_at_ms = 5",
}


@pytest.mark.parametrize("rule", RUN_DAMAGE)
def test_a_run_that_breaks_a_rule_is_refused(
    client: Client, sql: Sql, loose: Json, rule: str
) -> None:
    sql(f"UPDATE fencepost_runs SET {RUN_DAMAGE[rule]} WHERE run_id = ?1", loose["run_id"])
    before = sql.dump()
    for answer in (
        client.get(f"/v1/runs/{loose['run_id']}"),
        client.get(f"/v1/starts/{loose['key']}"),
        client.start(loose["key"]),
    ):
        problem = answer.json()
        assert (answer.status_code, problem["code"]) == (503, "ROW_CORRUPT")
        assert (problem["table"], problem["rule"]) == ("fencepost_runs", rule)
        assert SECRET not in answer.text
    assert sql.dump() == before


@pytest.mark.parametrize(
    ("damage", "rule"),
    [
        ("heartbeat_at_ms = NULL", "an owner is whole and has a heartbeat and a lease"),
        ("lease_expires_at_ms = NULL", "an owner is whole and has a heartbeat and a lease"),
        (
            "owner_host_id = NULL, owner_pid = NULL, owner_nonce = NULL, heartbeat_at_ms = NULL, "
            "lease_expires_at_ms = NULL",
            "a running run, and no other, has an owner",
        ),
        ("claimed_at_ms = 5", "a claim is whole or absent"),
        ("created_at_ms = -1", "numbers are whole and within ±(2^53−1)"),
        ("created_at_ms = 'yesterday'", "numbers are whole and within ±(2^53−1)"),
        ("owner_pid = 9007199254740992", "numbers are whole and within ±(2^53−1)"),
        ("lineage_id = 'l'", "a lineage has an id and a round"),
        ("status = 'completed'", "a running run, and no other, has an owner"),
    ],
)
def test_every_way_to_break_it_is_seen(
    client: Client, sql: Sql, loose: Json, damage: str, rule: str
) -> None:
    sql(f"UPDATE fencepost_runs SET {damage} WHERE run_id = ?1", loose["run_id"])
    assert client.get(f"/v1/runs/{loose['run_id']}").json()["rule"] == rule


RESERVATION_DAMAGE = {
    "owner_kind is human, service, agent or system": "owner_kind = 'robot'",
    "owner_id is 1–200 printable characters": "owner_id = ' '",
    "target_kind is workflow or agent": "target_kind = 'job'",
    "an agent has a thread, a workflow has none": "thread_id = 't'",
    "run_id is path-safe": "run_id = '../x'",
    "state is reserved, started or terminal": "state = 'lost'",
    "attempt is at least 1": "attempt = 0",
    "a started reservation has a claim nonce": "claim_nonce = NULL",
    "times are whole milliseconds": "updated_at_ms = 'soon'",
    "joined is 0 or 1": "joined = 2",
}


@pytest.mark.parametrize("rule", RESERVATION_DAMAGE)
def test_a_reservation_that_breaks_a_rule_is_refused(
    client: Client, sql: Sql, loose: Json, rule: str
) -> None:
    damage = RESERVATION_DAMAGE[rule]
    sql(f"UPDATE fencepost_reservations SET {damage} WHERE key = ?1", loose["key"])
    answer = client.get(f"/v1/starts/{loose['key']}")
    assert (answer.status_code, answer.json()["code"]) == (503, "ROW_CORRUPT")
    assert answer.json()["rule"] == rule


@pytest.mark.parametrize(
    ("damage", "rule"),
    [
        (f"state = '{SECRET}'", "state is JSON"),
        (f"result = '{{{SECRET}'", "result is JSON"),
        ("state = NULL", "a run has a state"),
    ],
)
def test_a_state_that_is_not_json_is_refused_and_not_echoed(
    client: Client, sql: Sql, loose: Json, damage: str, rule: str
) -> None:
    sql(f"UPDATE fencepost_snapshots SET {damage} WHERE run_id = ?1", loose["run_id"])
    answer = client.get(f"/v1/runs/{loose['run_id']}")
    assert (answer.status_code, answer.json()["code"]) == (503, "ROW_CORRUPT")
    assert answer.json()["rule"] == rule
    assert SECRET not in answer.text


OPERATION_DAMAGE = {
    "state is running, committed or interrupted": "state = 'lost'",
    "an operation that runs, and no other, has a lease that ends": "lease_expires_at_ms = NULL",
    "a committed operation, and no other, has an outcome": "outcome = '1'",
    "times are whole milliseconds": "lease_expires_at_ms = 'soon'",
    "generation is whole": "generation = 1.5",
    "outcome is JSON": f"state = 'committed', lease_expires_at_ms = NULL, outcome = '{SECRET}'",
}


@pytest.mark.parametrize("rule", OPERATION_DAMAGE)
def test_an_operation_that_breaks_a_rule_is_refused(
    client: Client, sql: Sql, loose: Json, rule: str
) -> None:
    client.operation(loose, "acquire", ttl_ms=60_000).raise_for_status()
    damage = OPERATION_DAMAGE[rule]
    sql(f"UPDATE fencepost_operations SET {damage} WHERE run_id = ?1", loose["run_id"])
    before = sql.dump()
    path = f"/v1/runs/{loose['run_id']}/operations/step"
    for answer in (client.get(path), client.operation(loose, "acquire", ttl_ms=1)):
        problem = answer.json()
        assert (answer.status_code, problem["code"]) == (503, "ROW_CORRUPT")
        assert (problem["table"], problem["rule"]) == ("fencepost_operations", rule)
        assert SECRET not in answer.text
    assert sql.dump() == before
