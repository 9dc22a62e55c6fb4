"""Purging: what is past its retention goes whole, and nothing else goes."""

from __future__ import annotations

import pytest

from fencepost import limits, retention, settings
from fencepost.identifiers import Principal
from fencepost.retention import DAY_MS
from fencepost.settings import Retention
from helpers import BridgeDatabase, Client, Json, Sql

TABLES = ("runs", "snapshots", "events", "ownership", "operations")


@pytest.fixture(autouse=True)
def nothing_old(sql: Sql) -> None:
    for table in (*TABLES, "reservations", "audit"):
        sql(f"DELETE FROM fencepost_{table}")


def ended(client: Client, sql: Sql, days_ago: float = 31) -> Json:
    run = client.started()
    client.operation(run, "acquire", ttl_ms=60_000).raise_for_status()
    client.finish(run, result=1).raise_for_status()
    sql(
        "UPDATE fencepost_runs SET finished_at_ms = finished_at_ms - ?2 WHERE run_id = ?1",
        run["run_id"],
        int(days_ago * DAY_MS),
    )
    return run


def purge(client: Client, **members: int) -> Json:
    answer = client.as_("operator").post("/v1/retention/purge", members)
    assert answer.status_code == 200, answer.text
    body: Json = answer.json()
    return body


def remains(sql: Sql, run: Json) -> set[str]:
    return {
        table
        for table in TABLES
        if sql(f"SELECT 1 FROM fencepost_{table} WHERE run_id = ?1", run["run_id"])
    }


def test_a_run_past_its_retention_goes_with_all_that_is_its(client: Client, sql: Sql) -> None:
    old, young = ended(client, sql), ended(client, sql, days_ago=29)
    assert purge(client) == {"runs": 1, "reservations": 0, "more": False}
    assert remains(sql, old) == set()
    assert remains(sql, young) == set(TABLES)
    assert purge(client) == {"runs": 0, "reservations": 0, "more": False}


def test_the_key_of_a_purged_run_stays_spent_until_its_own_retention_ends(
    client: Client, sql: Sql
) -> None:
    run = ended(client, sql)
    purge(client)
    answer = client.start(run["key"])
    assert (answer.status_code, answer.json()["code"]) == (409, "START_ALREADY_SETTLED")
    [held] = sql("SELECT * FROM fencepost_reservations WHERE key = ?1", run["key"])
    assert held["updated_at_ms"] - held["created_at_ms"] < DAY_MS
    aged = held["updated_at_ms"] - 366 * DAY_MS
    sql(
        "UPDATE fencepost_reservations SET created_at_ms = ?2, updated_at_ms = ?2 WHERE key = ?1",
        run["key"],
        aged,
    )
    assert purge(client) == {"runs": 0, "reservations": 1, "more": False}
    assert client.start(run["key"]).status_code == 201


def test_the_keys_retention_begins_when_its_run_goes(client: Client, sql: Sql) -> None:
    run = ended(client, sql, days_ago=400)
    sql(
        "UPDATE fencepost_reservations SET created_at_ms = 1, updated_at_ms = 1 WHERE key = ?1",
        run["key"],
    )
    assert purge(client)["runs"] == 1
    assert client.start(run["key"]).json()["code"] == "START_ALREADY_SETTLED"


def test_what_has_not_ended_is_never_purged(client: Client, sql: Sql) -> None:
    running, suspended, released = client.started(), client.started(), client.started()
    client.finish(suspended, "suspended").raise_for_status()
    client.post(f"/v1/starts/{released['key']}/release", {"owner": released["owner"]})
    sql("UPDATE fencepost_runs SET created_at_ms = 1, started_at_ms = 1, updated_at_ms = 1")
    sql("UPDATE fencepost_reservations SET created_at_ms = 1, updated_at_ms = 1")
    before = sql.dump()
    assert purge(client) == {"runs": 0, "reservations": 0, "more": False}
    assert sql.dump() == before
    for run in (running, suspended, released):
        assert remains(sql, run) == set(TABLES) - {"operations"}


def test_an_unsettled_reservation_without_a_run_is_never_purged(client: Client, sql: Sql) -> None:
    run = client.started()
    for table in TABLES:
        sql(f"DELETE FROM fencepost_{table}")
    sql("UPDATE fencepost_reservations SET created_at_ms = 1, updated_at_ms = 1")
    assert purge(client)["reservations"] == 0
    assert client.start(run["key"]).json()["code"] == "START_UNRESOLVABLE"


def test_an_ended_run_with_an_unsettled_reservation_settles_it(client: Client, sql: Sql) -> None:
    run = ended(client, sql)
    sql("UPDATE fencepost_reservations SET state = 'started', outcome = NULL, claim_nonce = 'n'")
    purge(client)
    [held] = sql("SELECT state, outcome FROM fencepost_reservations WHERE key = ?1", run["key"])
    assert held == {"state": "terminal", "outcome": "completed"}


def test_a_purge_stops_at_its_limit_and_says_so(client: Client, sql: Sql) -> None:
    runs = [ended(client, sql, days_ago=40 - n) for n in range(5)]
    assert purge(client, limit=2) == {"runs": 2, "reservations": 0, "more": True}
    assert [bool(remains(sql, run)) for run in runs] == [False, False, True, True, True]
    assert purge(client, limit=10)["runs"] == 3


def test_a_purge_is_audited(client: Client, sql: Sql) -> None:
    ended(client, sql)
    purge(client)
    [entry] = client.as_("operator").get("/v1/audit").json()["items"]
    assert (entry["action"], entry["after"]) == ("purge", {"runs": 1, "reservations": 0})
    assert entry["principal"] == {"kind": "human", "id": "olga"}


@pytest.mark.parametrize(
    "fault", ["drop", "lost", "pass,drop", "pass,lost", "pass,drop,drop", "pass,lost,drop"]
)
def test_a_purge_that_is_cut_off_leaves_nothing_half_deleted(
    client: Client, sql: Sql, fault: str
) -> None:
    runs = [ended(client, sql) for _ in range(3)]
    headers = {"X-Local-Fault": fault}
    answer = client.as_("operator").post("/v1/retention/purge", {}, headers=headers)
    assert answer.status_code in (200, 503)
    for run in runs:
        assert remains(sql, run) in (set(), set(TABLES))
    purge(client)
    assert [remains(sql, run) for run in runs] == [set()] * 3


def copied(sql: Sql, run: Json, copies: int) -> None:
    """So many more runs like this one, with all of their rows."""
    for table in TABLES:
        names = [
            row["name"] for row in sql(f"SELECT name FROM pragma_table_info('fencepost_{table}')")
        ]
        values = ", ".join("run_id || '-' || n" if name == "run_id" else name for name in names)
        sql(
            f"WITH RECURSIVE counted(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM counted "
            f"WHERE n < {copies}) INSERT INTO fencepost_{table} ({', '.join(names)}) "
            f"SELECT {values} FROM fencepost_{table}, counted WHERE run_id = ?1",
            run["run_id"],
        )


@pytest.mark.anyio
async def test_a_large_purge_goes_in_chunks_within_the_limits(
    client: Client, sql: Sql, db: BridgeDatabase
) -> None:
    run = ended(client, sql)
    copies = 2 * limits.PURGE_CHUNK_ROWS + 10
    copied(sql, run, copies)
    cron = Principal("system", "cron")
    purged = await retention.purge(db, cron, Retention(), limits.PURGE_ROWS_DEFAULT)
    assert (purged.runs, purged.more) == (copies + 1, False)
    assert sql("SELECT COUNT(*) AS n FROM fencepost_events") == [{"n": 0}]
    assert sql("SELECT COUNT(*) AS n FROM fencepost_operations") == [{"n": 0}]
    # One look at the clock, three chunks that delete; the last is not full, so nothing is left.
    assert db.round_trips == 4


def test_2500_runs_that_are_due_are_gone_after_one_cron(client: Client, sql: Sql) -> None:
    copied(sql, ended(client, sql), 2_499)
    client.http.get("/cdn-cgi/handler/scheduled").raise_for_status()
    for table in TABLES:
        assert sql(f"SELECT COUNT(*) AS n FROM fencepost_{table}") == [{"n": 0}], table


@pytest.mark.anyio
async def test_a_run_is_due_only_after_its_retention(
    client: Client, sql: Sql, db: BridgeDatabase
) -> None:
    run = ended(client, sql, days_ago=0)
    [row] = sql("SELECT finished_at_ms FROM fencepost_runs WHERE run_id = ?1", run["run_id"])
    due, cron = row["finished_at_ms"] + 30 * DAY_MS, Principal("system", "cron")
    assert (await retention.purge(db, cron, Retention(), 10, now_ms=due)).runs == 0
    assert (await retention.purge(db, cron, Retention(), 10, now_ms=due + 1)).runs == 1


def test_the_cron_trigger_purges_as_the_system(client: Client, sql: Sql) -> None:
    run = ended(client, sql)
    client.http.get("/cdn-cgi/handler/scheduled").raise_for_status()
    assert remains(sql, run) == set()
    [entry] = client.as_("operator").get("/v1/audit").json()["items"]
    assert entry["principal"] == {"kind": "system", "id": "cron"}


def test_without_tables_a_purge_creates_none(client: Client, empty_database: Sql) -> None:
    assert purge(client) == {"runs": 0, "reservations": 0, "more": False}
    assert empty_database("SELECT name FROM sqlite_master WHERE name LIKE 'fencepost%'") == []


@pytest.mark.parametrize("limit", [0, -1, 10_001, 1.5, "1"])
def test_an_invalid_limit_of_a_purge_is_refused(client: Client, limit: object) -> None:
    answer = client.as_("operator").post("/v1/retention/purge", {"limit": limit})
    assert (answer.status_code, answer.json()["code"]) == (400, "INVALID_REQUEST")


def test_retention_comes_from_settings_and_a_bad_one_stops_the_purge() -> None:
    given = {"FENCEPOST_RUN_RETENTION_DAYS": "7", "FENCEPOST_KEY_RETENTION_DAYS": "90"}
    assert settings.retention(lambda name: given[name]) == Retention(7, 90)
    assert settings.retention(lambda name: None) == Retention(30, 365)
    for bad in ("0", "-1", "", "1.5", "forever", "99999"):
        with pytest.raises(ValueError, match="FENCEPOST_RUN_RETENTION_DAYS"):
            settings.retention(lambda name, bad=bad: bad)  # type: ignore[misc]
