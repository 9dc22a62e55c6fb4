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
from typing import IO, Any

import httpx
import pytest

from fencepost.schema import tables
from helpers import BridgeDatabase, Client, Json, Sql, alters, connect, connect_async
from refusals import Refusals
from stored_shapes import DUMPS, drop_all

ROOT = Path(__file__).parent.parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What waits for other programs begins first, while there is other work to do beside it."""
    items.sort(key=lambda item: item.get_closest_marker("waits") is None)


def start_bridge(
    stderr: IO[str] | None = None, **options: Any
) -> tuple[subprocess.Popen[str], dict[str, str]]:
    """Runs tests/bridge.mjs; it ends when its stdin is closed. Its log goes to `stderr`."""
    process = subprocess.Popen(
        [ROOT / "node_modules/.bin/node", ROOT / "tests/bridge.mjs", json.dumps(options)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=stderr,
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
    with connect(bridge["sql"]) as http:
        yield Sql(http)


@pytest.fixture
def sql(sql_client: Sql) -> Iterator[Sql]:
    """Plain SQL over the Worker's database. The tables exist, the fence is open afterwards."""
    sql_client.restore()
    yield sql_client
    sql_client.tidy()


@pytest.fixture
def empty_database(sql: Sql) -> Sql:
    """The same database without a single table."""
    sql.batch([(f"DROP TABLE {table}", ()) for table in tables.TABLES])
    return sql


@pytest.fixture(scope="session")
def connection(bridge: dict[str, str]) -> Iterator[httpx.Client]:
    with connect(bridge["url"]) as http:
        yield http


@pytest.fixture
def client(connection: httpx.Client, sql: Sql) -> Client:
    """HTTP to the Worker, as the principal service:alice with every scope but `operate`.

    Every isolate has found the schema current.
    """
    client = Client(connection)
    client.settle(sql)
    return client


@pytest.fixture
async def db(bridge: dict[str, str], sql: Sql, sql_client: Sql) -> Any:
    """A `Database` for the noun modules, over the same D1."""
    async with connect_async(bridge["sql"]) as http:
        database = BridgeDatabase(http)
        yield database
    sql_client.altered |= any(alters(statement.sql) for statement in database.statements)


@pytest.fixture
async def http(bridge: dict[str, str]) -> Any:
    """Many connections at once, to every isolate."""
    async with connect_async(bridge["url"], 60) as session:
        yield session


@pytest.fixture
def run(client: Client) -> Json:
    """A run that alice holds."""
    return client.started()


@pytest.fixture
def refused(client: Client, sql: Sql) -> Refusals:
    return Refusals(client, sql)


@pytest.fixture(scope="session")
def deployments() -> Iterator[tuple[Any, Any]]:
    """Two deployments for moves from one to the other; the source has two isolates."""
    from deployments import deployment

    with deployment(isolates=2, faults=True) as source, deployment(faults=True) as to:
        yield source, to


@pytest.fixture
def source(deployments: tuple[Any, Any]) -> Any:
    """A deployment that is open and empty; its isolates know the schema."""
    deployments[0].empty()
    deployments[0].alice.look()
    return deployments[0]


@pytest.fixture
def target(deployments: tuple[Any, Any]) -> Any:
    """A deployment that is empty, locked, and was never open."""
    deployments[1].empty("migration-locked")
    return deployments[1]


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
