"""The budgets that are counts: round trips, rows written, rows read, plans."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator

import httpx
import pytest

from conftest import ROOT
from fencepost import copies, inventory, limits, transfer
from fencepost.storage.sql import Statement, _compiled
from helpers import Client, Json, Sql, a_start, an_owner, new_key, round_trips, rows

PACKAGE = ROOT / "src/fencepost"


@pytest.fixture
def client(client: Client) -> Client:
    return client.counting()


def test_a_new_start_is_one_round_trip_and_at_most_8_rows_written(client: Client) -> None:
    client.started()
    answer = client.start(new_key())
    assert round_trips(answer) == 1
    assert rows(answer)[1] <= 8


def test_a_new_start_with_a_machine_is_no_dearer(client: Client) -> None:
    client.started()
    answer = client.start(new_key(), a_start(machine="delivery"))
    assert (answer.status_code, round_trips(answer)) == (201, 1)
    assert rows(answer)[1] <= 8


def test_a_replay_is_one_round_trip_and_writes_nothing(client: Client) -> None:
    run = client.started()
    client.finish(run).raise_for_status()
    answer = client.start(run["key"])
    assert (answer.status_code, round_trips(answer), rows(answer)[1]) == (200, 1, 0)


@pytest.mark.parametrize("state", ["draining", "migration-locked"])
def test_a_refused_start_is_one_round_trip_and_writes_nothing(
    client: Client, sql: Sql, state: str
) -> None:
    run = client.started()
    mismatch = client.start(run["key"], a_start(input=1))
    assert (mismatch.status_code, round_trips(mismatch), rows(mismatch)[1]) == (422, 1, 0)
    sql.fence(state)
    answer = client.start(new_key())
    assert (answer.status_code, round_trips(answer), rows(answer)[1]) == (503, 1, 0)


def test_a_heartbeat_is_one_round_trip_and_one_row_written(client: Client) -> None:
    answer = client.verb(client.started(), "heartbeat")
    assert (answer.status_code, round_trips(answer), rows(answer)[1]) == (200, 1, 1)


def test_every_verb_on_an_operation_is_one_round_trip(client: Client) -> None:
    run = client.started()
    answer = client.operation(run, "acquire", ttl_ms=60_000)
    assert (answer.status_code, round_trips(answer)) == (200, 1)
    assert rows(answer)[1] <= 2
    token = {"token": answer.json()["lease"]["token"]}
    calls: list[tuple[str, Json, int]] = [
        ("acquire", {"ttl_ms": 60_000}, 0),
        ("acquire", {"ttl_ms": 60_000, "exclusive": True}, 0),
        ("renew", {**token, "ttl_ms": 90_000}, 1),
        ("assert", token, 0),
        ("commit", {**token, "outcome": 1}, 2),
        ("acquire", {"ttl_ms": 60_000}, 0),
        ("interrupt", token, 0),
    ]
    for verb, members, written in calls:
        answer = client.operation(run, verb, **members)
        assert round_trips(answer) == 1
        assert rows(answer)[1] <= written
    assert round_trips(client.get(f"/v1/runs/{run['run_id']}/operations/step")) == 1


def test_own_is_one_round_trip(client: Client) -> None:
    run = client.started()
    client.finish(run, "suspended").raise_for_status()
    answer = client.post(f"/v1/runs/{run['run_id']}/own", {"owner": an_owner()})
    assert (answer.status_code, round_trips(answer)) == (200, 1)


def test_the_fence_is_read_in_one_round_trip(client: Client) -> None:
    assert round_trips(client.get("/v1/fence")) == 1


def test_health_does_not_touch_the_database(client: Client) -> None:
    assert round_trips(client.get("/v1/health")) == 0


BINDING = {"gate": "a", "revision": 1, "receipt_hash": "0" * 64}


def keyed_reads(client: Client) -> Json:
    """Rows read by each keyed operation, on a run of its own."""
    run = client.started()
    key, waiting = new_key(), client.started()
    client.finish(waiting, "suspended").raise_for_status()
    answers = {
        "start": client.start(key),
        "pending": client.start(run["key"]),
        "read": client.get(f"/v1/runs/{run['run_id']}"),
        "read start": client.get(f"/v1/starts/{run['key']}"),
        "heartbeat": client.verb(run, "heartbeat"),
        "own": client.post(f"/v1/runs/{waiting['run_id']}/own", {"owner": an_owner()}),
        "bind": client.verb(run, "bindings", bindings=[BINDING]),
        "bindings": client.get(f"/v1/runs/{run['run_id']}/bindings"),
        "acquire": client.operation(run, "acquire", ttl_ms=60_000),
        "read operation": client.get(f"/v1/runs/{run['run_id']}/operations/step"),
        "transition": client.finish(run),
        "replay": client.start(run["key"]),
        "page": client.get("/v1/runs", params={"limit": 1}),
        "page by status": client.get("/v1/runs", params={"limit": 1, "status": "running"}),
    }
    return {name: rows(answer)[0] for name, answer in answers.items()}


COPIES = 2000


@pytest.fixture
def many_runs(client: Client, sql: Sql) -> Iterator[None]:
    """Thousands of reservations and runs, copied from one."""
    run = client.started()
    client.verb(run, "bindings", bindings=[BINDING]).raise_for_status()
    client.operation(run, "acquire", ttl_ms=60_000).raise_for_status()

    def columns(table: str, **changed: str) -> tuple[str, str]:
        names = [row["name"] for row in sql(f"SELECT name FROM pragma_table_info('{table}')")]
        return ", ".join(names), ", ".join(changed.get(name, name) for name in names)

    for table, changed in {
        "fencepost_reservations": {"key": "key || '-' || n", "run_id": "run_id || '-' || n"},
        "fencepost_runs": {"run_id": "run_id || '-' || n"},
        "fencepost_events": {"run_id": "run_id || '-' || n"},
        "fencepost_ownership": {"run_id": "run_id || '-' || n"},
        "fencepost_snapshots": {"run_id": "run_id || '-' || n"},
        "fencepost_bindings": {"run_id": "run_id || '-' || n"},
        "fencepost_operations": {"run_id": "run_id || '-' || n"},
    }.items():
        names, values = columns(table, **changed)
        sql(
            f"WITH RECURSIVE counted(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM counted "
            f"WHERE n < {COPIES}) INSERT INTO {table} ({names}) SELECT {values} "
            f"FROM {table}, counted WHERE run_id = ?1",
            run["run_id"],
        )
    yield
    for table in (
        *("reservations", "runs", "events", "ownership", "snapshots"),
        "bindings",
        "operations",
    ):
        sql(f"DELETE FROM fencepost_{table} WHERE run_id LIKE ?1", f"{run['run_id'][:30]}-%")
        sql(f"DELETE FROM fencepost_{table} WHERE run_id LIKE 'run%-%'")


def test_rows_read_do_not_grow_with_the_tables(
    client: Client, request: pytest.FixtureRequest
) -> None:
    few = keyed_reads(client)
    request.getfixturevalue("many_runs")
    assert keyed_reads(client) == few


@pytest.mark.usefixtures("many_runs")
@pytest.mark.parametrize(
    ("path", "query"),
    [
        ("runs", {}),
        ("runs", {"status": "running"}),
        ("inventory/runs", {}),
        ("inventory/start-reservations", {}),
        ("inventory/operations", {}),
    ],
)
def test_a_later_page_does_not_read_the_pages_before(
    client: Client, path: str, query: Json
) -> None:
    def page(**params: object) -> httpx.Response:
        return client.as_("operator").get(f"/v1/{path}", params={**query, **params})

    cursor = page(limit=200).json()["cursor"]
    later = page(limit=5, cursor=cursor)
    assert len(later.json()["items"]) == 5
    assert rows(later)[0] <= 2 * 5 + 1 + 1  # the last one is the fence


@pytest.mark.usefixtures("many_runs")
@pytest.mark.parametrize("category", inventory.CATEGORIES)
def test_an_inventory_counts_to_a_thousand_and_says_if_there_is_more(
    client: Client, sql: Sql, category: str
) -> None:
    # What other tests left running in runs that ended is skipped one by one, and read for that.
    sql(
        "DELETE FROM fencepost_operations WHERE run_id IN "
        "(SELECT run_id FROM fencepost_runs WHERE finished_at_ms IS NOT NULL)"
    )
    operator = client.as_("operator")
    items = operator.get("/v1/inventory").json()["items"]
    [work] = [item for item in items if item["category"] == category]
    assert (work["count"], work["more"]) == (limits.COUNT_MAX, True)
    page = operator.get(f"/v1/inventory/{category}", params={"limit": 5})
    assert (page.json()["count"], page.json()["more"]) == (limits.COUNT_MAX, True)
    assert rows(page)[0] <= 2 * (limits.COUNT_MAX + 1 + 5) + 1


def test_a_purge_with_nothing_due_does_not_read_the_audit(client: Client, sql: Sql) -> None:
    operator = client.as_("operator")
    before = rows(operator.post("/v1/retention/purge", {}))[0]
    sql(
        "WITH RECURSIVE counted(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM counted WHERE n < 900) "
        "INSERT INTO fencepost_audit (action, principal_kind, principal_id, subject, write_token, "
        "at_ms) SELECT 'purge', 'system', 'cron', 'deployment', n, n FROM counted"
    )
    assert rows(operator.post("/v1/retention/purge", {}))[0] == before


# --- Plans -------------------------------------------------------------------------------

# Tables that never grow: one row (the fence, also as `gate`), or as many as a query brings along.
SMALL = {"fencepost_fence", "fencepost_transfer", "gate", "json_each", "sqlite_master"}
# Names of subqueries with a row or a handful.
SMALL |= {"clock", "stamp", "step", "fact", "claim", "grantable", "page", "due", "taken", "name"}
# Statements that sort: the numbers of one page.
SORTS = {"events._PAGE"}
# Statements that stop at the first row of the audit, but for those of an empty deployment.
STOPS = {"transfer._UNUSED", "transfer._LAST_OF_AUDIT"}
VERBS = re.compile(r"\s*(SELECT|INSERT|UPDATE|DELETE|WITH)\b")


def sql_constants() -> Iterator[tuple[str, Statement]]:
    """(name, statement) of every SQL text that is a constant of a module."""
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        if parts[-1] == "__init__":
            continue
        module = importlib.import_module(".".join(("fencepost", *parts)))
        for name, value in vars(module).items():
            if (
                isinstance(value, str)
                and VERBS.match(value)
                and "{" not in value.replace("'{}'", "")
            ):
                yield f"{'.'.join(parts)}.{name}", of_ones(value)
    yield from of_a_move()


def of_a_move() -> Iterator[tuple[str, Statement]]:
    """The statements that are made for each table."""
    for table in copies.TABLES:
        of = copies.shape(table)
        row: list[copies.Value] = [1 if name in of.integers else "x" for name in of.columns]
        page = copies.RowsPage(table, of.key_of(row), [row], more=False)
        view = copies.View("x", brought=False)
        yield f"copies.page of {table}", copies.page_statement(table, view, page.after, 5)
        yield f"copies.stands in {table}", copies.stands_statement(page)
        follows, values = copies.follows(page)
        yield f"copies.follows in {table}", Statement(f"SELECT {follows}", **values)
        yield f"transfer.last of {table}", Statement(transfer._last_sql(table))


def of_ones(text: str) -> Statement:
    """The statement with 1 for each of its parameters."""
    return Statement(text, **dict.fromkeys(_compiled(text).names, 1))


STATEMENTS = dict(sql_constants())


def test_the_guard_sees_the_statements() -> None:
    assert len(STATEMENTS) >= 60
    assert "starts._CREATE_RUN" in STATEMENTS


@pytest.mark.parametrize("name", STATEMENTS)
def test_every_statement_finds_its_rows_by_an_index(sql: Sql, name: str) -> None:
    text, ones = STATEMENTS[name].sql, STATEMENTS[name].params
    plan = sql(f"EXPLAIN QUERY PLAN {text}", *ones)
    scans = [row["detail"] for row in plan if row["detail"].startswith("SCAN")]
    for scan in scans:
        table = scan.split()[1]
        counted = " USING " in scan or table == "first"  # the first thousand
        counts_an_index = "_COUNT" in name and "LIMIT 1001" in text and counted
        no_table = "CONSTANT ROW" in scan or table.startswith("(subquery")
        stops = name in STOPS or name.startswith("transfer.last of")
        assert table in SMALL or no_table or counts_an_index or stops, scan
    sorts = any("USE TEMP B-TREE FOR ORDER BY" in row["detail"] for row in plan)
    assert sorts == (name in SORTS or name.startswith("copies.page of"))
