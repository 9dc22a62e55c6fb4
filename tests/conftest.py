"""Fixtures: the real Worker on workerd, and the real local D1 behind it.

Every pytest process runs its own Worker (two isolates) over its own database in memory. `sql`
and `db` reach the same database without the Worker.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from fencepost.schema import tables
from helpers import BridgeDatabase, Client, Json, Sql
from refusals import Refusals
from stored_shapes import DUMPS, drop_all

ROOT = Path(__file__).parent.parent


def start_bridge(**options: Any) -> tuple[subprocess.Popen[str], dict[str, str]]:
    """Runs tests/bridge.mjs; it ends when its stdin is closed."""
    process = subprocess.Popen(
        [ROOT / "node_modules/.bin/node", ROOT / "tests/bridge.mjs", json.dumps(options)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise RuntimeError("the local Worker did not start; see its output above")
    return process, json.loads(line)


def stop_bridge(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.close()
    process.stdout.close()
    process.wait(timeout=20)


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="session")
def bridge() -> Iterator[dict[str, str]]:
    process, addresses = start_bridge(isolates=2, faults=True, tokens=Client.TOKENS)
    yield addresses
    stop_bridge(process)


@pytest.fixture(scope="session")
def sql_client(bridge: dict[str, str]) -> Iterator[Sql]:
    with httpx.Client(base_url=bridge["sql"], timeout=60) as http:
        yield Sql(http)


@pytest.fixture
def sql(sql_client: Sql) -> Iterator[Sql]:
    """Plain SQL over the Worker's database. The tables exist, the fence is open afterwards."""
    sql_client.batch([(ddl, ()) for ddl in tables.STATEMENTS])
    yield sql_client
    sql_client.batch([(ddl, ()) for ddl in tables.STATEMENTS])
    sql_client("DELETE FROM fencepost_fence")


@pytest.fixture
def empty_database(sql: Sql) -> Sql:
    """The same database without a single table."""
    sql.batch([(f"DROP TABLE {table}", ()) for table in tables.TABLES])
    return sql


@pytest.fixture
def client(bridge: dict[str, str], sql: Sql) -> Iterator[Client]:
    """HTTP to the Worker, as the principal service:alice with every scope but `operate`."""
    with httpx.Client(base_url=bridge["url"], timeout=60) as http:
        Client(http).look()
        yield Client(http)


@pytest.fixture
async def db(bridge: dict[str, str], sql: Sql) -> Any:
    """A `Database` for the noun modules, over the same D1."""
    async with httpx.AsyncClient(base_url=bridge["sql"], timeout=60) as http:
        yield BridgeDatabase(http)


@pytest.fixture
async def http(bridge: dict[str, str]) -> Any:
    """Many connections at once, to every isolate."""
    limits = httpx.Limits(max_connections=60)
    async with httpx.AsyncClient(base_url=bridge["url"], timeout=60, limits=limits) as session:
        yield session


@pytest.fixture
def run(client: Client) -> Json:
    """A run that alice holds."""
    return client.started()


@pytest.fixture
def refused(client: Client, sql: Sql) -> Refusals:
    return Refusals(client, sql)


@pytest.fixture
def database(client: Client, sql: Sql) -> Iterator[Sql]:
    """The database, which a test may alter; its tables are made anew afterwards."""
    yield sql
    drop_all(sql)


@pytest.fixture
def load(client: Client, database: Sql) -> Callable[[str], None]:
    """Puts a stored dump in the place of the database; no isolate has looked at it."""

    def put(name: str) -> None:
        drop_all(database)
        client.look()
        text = re.sub(r"^--.*\n", "", DUMPS[name], flags=re.MULTILINE)
        database.batch([(part, ()) for part in text.split(";\n") if part.strip()])

    return put
