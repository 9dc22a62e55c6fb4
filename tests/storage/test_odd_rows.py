"""Whatever stands in a row: no route answers 500, and every answer is JSON.

Each column of each table gets odd values in turn, in tables without their CHECKs; and each column
is missing in turn, as in a table of another build. All GET routes and some verbs then look at it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, NoReturn

import httpx
import pytest

from fencepost import journal
from fencepost.journal import Head
from fencepost.schema import tables
from helpers import Client, D1Failure, Json, Sql, acquired, an_owner, new_key
from storage.test_corrupt_rows import without_checks

pytestmark = pytest.mark.soak  # two minutes
MADE = [ddl for ddl in tables.STATEMENTS if ddl.startswith("CREATE TABLE")]
ODD = ["NULL", "-1", "9e999", "'{'", "x'ff00'"]
# Texts that are JSON, and that no answer can show.
ODD_JSON = ["'[1]'", "'5'", "'1e999'", '\'{"a":"\\ud800"}\'', f"'{'[' * 900 + ']' * 900}'"]
ODD_JSON += [f"'{'9' * 5_000}'", '\'{"machine":{"to":[]},"to":{}}\'']
JSON_COLUMNS = {"state", "result", "payload", "approval_proof", "outcome", "before", "after"}
JSON_COLUMNS |= {"answer", "manifest"}


def _refuse(word: str) -> NoReturn:
    raise AssertionError(f"{word} is not JSON")


class World:
    """A run with a row in every table, and everything that may be asked of it."""

    def __init__(self, client: Client, sql: Sql) -> None:
        self.sql = sql
        self.client = Client(client.http, "operator", lambda method, path, answer: None)
        self.operation_key, self.cancel_key = new_key(), new_key()
        self.run = self._made()
        self.rows = {table: sql(f"SELECT * FROM {table}") for table in tables.TABLES}
        assert all(self.rows.values()), [name for name, rows in self.rows.items() if not rows]

    def _made(self) -> Json:
        operator, subject = self.client, {"stage": "delivery", "change": "odd"}
        self.sql.fence("open")
        members = {"machine": "delivery", "lineage": {"id": "odd", "round": 0}, "subject": subject}
        run = operator.started(**members)
        path = f"/v1/runs/{run['run_id']}"
        bound = {"gate": "a", "revision": 1, "receipt_hash": "a" * 64, "approval_proof": {"a": 1}}
        operator.verb(run, "bindings", bindings=[bound]).raise_for_status()
        token = acquired(operator, run, "done")["lease"]["token"]
        operator.operation(run, "commit", "done", token=token, outcome=[1]).raise_for_status()
        acquired(operator, run)
        operator.post(f"{path}/events", {"type": "note", "payload": {"a": 1}}).raise_for_status()
        keyed = {"Idempotency-Key": self.cancel_key}
        operator.post(f"{path}/cancel", {}, headers=keyed).raise_for_status()
        fence = {"expected": "open", "next": "open"}
        operator.post("/v1/fence/transitions", fence).raise_for_status()
        # As of a target that has opened.
        opened = "(id, deployment_id, seal, revision) VALUES ('deployment', ?1, ?2, 0)"
        self.sql(f"INSERT INTO fencepost_transfer {opened}", "d" * 32, "a" * 64)
        return run

    def restore(self) -> None:
        batch: list[tuple[str, list[Any]]] = []
        for table, rows in self.rows.items():
            batch.append((f"DELETE FROM {table}", []))
            for row in rows:
                marks = ", ".join(f"?{at}" for at, _ in enumerate(row, 1))
                names = ", ".join(row)
                batch.append((f"INSERT INTO {table} ({names}) VALUES ({marks})", [*row.values()]))
        self.sql.batch(batch)

    def look(self, told: str) -> None:
        for answer in self._answers():
            request = answer.request
            said = f"{told}: {request.method} {request.url.path}: {answer.text[:500]}"
            assert answer.status_code != 500, said
            if "json" in answer.headers["Content-Type"]:
                json.loads(answer.content, parse_constant=_refuse)

    def _answers(self) -> Iterator[httpx.Response]:
        client, run = self.client, self.run
        path = f"/v1/runs/{run['run_id']}"
        yield from (client.get(f"{path}{of}") for of in OF_RUN)
        yield from (client.get(of) for of in OF_ALL)
        yield client.get(f"/v1/starts/{run['key']}")
        yield client.post(f"{path}/cancel", {}, headers={"Idempotency-Key": self.cancel_key})
        yield client.verb(run, "heartbeat")
        yield client.post(f"{path}/events", {"type": "note"})
        yield client.operation(run, "acquire", ttl_ms=60_000)
        bound = {"gate": "a", "revision": 1, "receipt_hash": "a" * 64, "approval_proof": {"a": 1}}
        yield client.verb(run, "bindings", bindings=[bound])
        yield client.verb(run, "transition", machine="validating-delivery")
        yield client.start(run["key"])


OF_RUN = ["", "/events", "/integrity", "/ownership", "/bindings", "/lineage", "/lineage/latest"]
OF_RUN += ["/operations/step", "/operations/done"]
OF_ALL = ["/v1/runs", "/v1/runs?status=running", "/v1/fence", "/v1/audit", "/v1/inventory"]
OF_ALL += ["/v1/inventory/runs", "/v1/inventory/start-reservations", "/v1/inventory/operations"]
OF_ALL += ["/metrics", "/v1/transfer", "/v1/transfer/runs"]


@pytest.fixture
def world(client: Client, database: Sql) -> World:
    database.batch([(f"DROP TABLE {table}", ()) for table in tables.TABLES])
    database.batch([(without_checks(ddl), ()) for ddl in MADE])
    return World(client, database)


def columns(table: str) -> list[str]:
    ddl = next(ddl for ddl in MADE if f" {table} (" in ddl)
    return re.findall(r"^  ([a-z_0-9]+) (?:TEXT|INTEGER)", ddl, re.MULTILINE)


@pytest.mark.parametrize("table", tables.TABLES)
def test_no_value_of_any_column_reaches_500(world: World, table: str) -> None:
    for column in columns(table):
        for value in [*ODD, *(ODD_JSON if column in JSON_COLUMNS else [])]:
            try:
                world.sql(f"UPDATE {table} SET {column} = {value}")
            except D1Failure:  # a key
                continue
            world.look(f"{table}.{column} = {value[:40]}")
            world.restore()


@pytest.mark.parametrize("table", tables.TABLES)
def test_no_column_that_is_missing_reaches_500(world: World, table: str) -> None:
    for column in columns(table):
        world.sql(f"ALTER TABLE {table} RENAME COLUMN {column} TO other")
        world.look(f"{table} without {column}")
        world.sql(f"ALTER TABLE {table} RENAME COLUMN other TO {column}")
        world.restore()


PAYLOADS = ["[1]", "5", "null", '"x"', "1e999", '{"a":"\\ud800"}', "[" * 900 + "]" * 900]
PAYLOADS += ["9" * 5_000, "{}", '{"machine":[]}', '{"machine":{"to":1}}', '{"decision":[]}']
PAYLOADS += ['{"to":[]}', '{"run_id":"x"}', '{"machine":"of-another-build"}']


@pytest.mark.parametrize("type", sorted(journal.PRODUCT_TYPES | {"note"}))
def test_no_rechained_history_reaches_500(client: Client, sql: Sql, type: str) -> None:
    """Every hash is right; only the payload is none that this build writes."""
    run = client.started(machine="delivery")
    run_id, path = run["run_id"], f"/v1/runs/{run['run_id']}"
    [first] = sql("SELECT * FROM fencepost_events WHERE run_id = ?1", run_id)
    at = Head(0, journal.GENESIS_HASH) if type == "run-created" else Head(1, first["hash"])
    for payload in PAYLOADS:
        if type == "run-created":
            payload = payload.replace('"x"}', f'"{run_id}"}}')
        hash = journal.event_hash(at, type, payload)
        row = (run_id, at.sequence + 1, type, payload, at.hash, hash, "t", first["created_at_ms"])
        event = "INSERT OR REPLACE INTO fencepost_events VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)"
        head = "UPDATE fencepost_runs SET head_sequence = ?1, head_hash = ?2 WHERE run_id = ?3"
        sql.batch([(event, row), (head, (at.sequence + 1, hash, run_id))])
        for answer in (client.get(f"{path}/events"), client.get(f"{path}/integrity")):
            assert answer.status_code == 200, f"{payload[:40]}: {answer.text}"
            json.loads(answer.content, parse_constant=_refuse)
        assert client.verb(run, "heartbeat").status_code == 200
        assert client.verb(run, "heartbeat", owner=an_owner()).status_code == 409


def test_a_machine_of_another_build_is_shown_and_does_not_move(client: Client, sql: Sql) -> None:
    run = client.started(machine="delivery")
    sql(
        "UPDATE fencepost_runs SET machine = 'later', machine_state = 'new' WHERE run_id = ?1",
        run["run_id"],
    )
    path = f"/v1/runs/{run['run_id']}"
    assert client.get(path).json()["machine"] == {"name": "later", "state": "new"}
    assert client.get(f"{path}/integrity").json()["intact"] is False
    assert client.verb(run, "transition", machine="ready").json()["code"] == "ILLEGAL_TRANSITION"
    assert client.verb(run, "heartbeat").status_code == 200
