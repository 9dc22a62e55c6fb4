"""What a monitor and a browser see: metrics, traces, health, and pages of other origins."""

from __future__ import annotations

import json
from collections.abc import Iterator

import httpx
import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from conftest import start_bridge, stop_bridge
from fencepost import limits
from fencepost.http import cors, queries
from fencepost.runs import RunStatus
from helpers import Client, Json, Sql, an_owner, connect, new_key, round_trips, rows

OWED = ("runs", "reservations", "operations")

# --- Metrics -------------------------------------------------------------------------------


def metrics(client: Client) -> dict[tuple[str, str], float]:
    """The numbers, by the name of the metric and the value of its label."""
    answer = client.as_("operator").get("/metrics")
    assert answer.status_code == 200, answer.text
    assert answer.headers["Content-Type"].startswith("application/openmetrics-text; version=1.0.0")
    families = text_string_to_metric_families(answer.text)  # type: ignore[no-untyped-call]
    samples = [sample for family in families for sample in family.samples]
    return {(each.name, next(iter(each.labels.values()), "")): each.value for each in samples}


def test_metrics_say_the_state_of_the_fence_and_what_is_owed(client: Client, sql: Sql) -> None:
    sql.batch([(f"DELETE FROM fencepost_{table}", ()) for table in OWED])
    ended, lapsed, held = client.started(), client.started(), client.started()
    client.finish(ended).raise_for_status()
    sql.lapse(lapsed["run_id"])
    client.operation(held, "acquire", ttl_ms=60_000).raise_for_status()
    sql.fence("draining", revision=7)
    found = metrics(client)
    assert found["fencepost_fence_state", "draining"] == 1
    assert sum(n for (name, _), n in found.items() if name == "fencepost_fence_state") == 1
    assert found["fencepost_fence_revision", ""] == 7
    by_status = {status: found["fencepost_runs", status] for status in RunStatus}
    assert {status for status, n in by_status.items() if n} == {"running", "completed"}
    assert (by_status[RunStatus.RUNNING], by_status[RunStatus.COMPLETED]) == (2, 1)
    owed = {name: n for (metric, name), n in found.items() if metric == "fencepost_inventory"}
    assert owed == {"runs": 2, "start-reservations": 2, "operations": 1}
    assert found["fencepost_starts_unresolvable", ""] == 1


def test_metrics_count_what_a_start_calls_unresolvable(client: Client, sql: Sql) -> None:
    def count() -> float:
        return metrics(client)["fencepost_starts_unresolvable", ""]

    sql.batch([(f"DELETE FROM fencepost_{table}", ()) for table in OWED])
    run, lost = client.started(), client.started()
    assert count() == 0
    sql("DELETE FROM fencepost_runs WHERE run_id = ?1", lost["run_id"])
    assert client.start(lost["key"]).json()["code"] == "START_UNRESOLVABLE"
    assert count() == 1
    sql.lapse(run["run_id"])
    assert client.start(run["key"]).json()["code"] == "START_UNRESOLVABLE"
    assert count() == 2
    evidence = {"kind": "lease-expired", "expected_owner": run["owner"]}
    thief = {"owner": an_owner(), "evidence": evidence}
    client.post(f"/v1/runs/{run['run_id']}/steal", thief).raise_for_status()
    assert client.start(run["key"]).json()["code"] == "START_PENDING"
    assert count() == 1


def test_metrics_of_an_empty_database_are_zeros(client: Client, empty_database: Sql) -> None:
    found = metrics(client)
    assert found.pop(("fencepost_fence_state", "open")) == 1
    assert set(found.values()) == {0}


def test_metrics_read_a_bounded_number_of_rows_in_one_trip(client: Client, sql: Sql) -> None:
    run = client.started()
    names = [row["name"] for row in sql("SELECT name FROM pragma_table_info('fencepost_runs')")]
    copied = ", ".join("run_id || '-' || value" if name == "run_id" else name for name in names)
    sql(
        f"INSERT INTO fencepost_runs SELECT {copied} FROM fencepost_runs, json_each(?1) "
        "WHERE run_id = ?2",
        json.dumps(list(range(3 * limits.COUNT_MAX))),
        run["run_id"],
    )
    answer = client.as_("operator").counting().get("/metrics")
    assert 'fencepost_runs{status="running"} 1000' in answer.text
    assert round_trips(answer) == 1
    assert rows(answer)[0] <= 3 * (limits.COUNT_MAX + 1) + 400
    sql("DELETE FROM fencepost_runs")


def test_metrics_are_for_operators(client: Client) -> None:
    assert client.get("/metrics").status_code == 403


# --- Traces --------------------------------------------------------------------------------

TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def test_a_run_keeps_the_trace_context_of_its_start(client: Client) -> None:
    key = new_key()
    run = client.start(key, traceparent=TRACE).json()["run"]
    assert run["traceparent"] == TRACE
    other = TRACE.replace("01", "00")
    client.start(key, traceparent=other)
    assert client.get(f"/v1/runs/{run['run_id']}").json()["traceparent"] == TRACE


@pytest.mark.parametrize(
    "header",
    [
        "",
        "x",
        TRACE.upper(),
        f"ff{TRACE[2:]}",
        f"{TRACE}-more",
        f"00-{'0' * 32}-00f067aa0ba902b7-01",
        f"00-4bf92f3577b34da6a3ce929d0e0e4736-{'0' * 16}-01",
        f"{TRACE}, {TRACE}",
    ],
)
def test_a_trace_context_that_is_not_valid_is_ignored(client: Client, header: str) -> None:
    assert queries.traceparent(header) is None
    answer = client.start(new_key(), traceparent=header)
    assert (answer.status_code, answer.json()["run"]["traceparent"]) == (201, None)


# --- Health --------------------------------------------------------------------------------


def deep(client: Client) -> Json:
    body: Json = client.get("/v1/health?deep=1").json()
    return body


def test_deep_health_says_what_the_schema_is_to_this_build(client: Client, database: Sql) -> None:
    assert (deep(client)["schema"], deep(client)["fence"]) == ("current", "open")
    database("DROP INDEX fencepost_runs_by_age")
    assert deep(client)["schema"] == "behind"
    database("ALTER TABLE fencepost_audit DROP COLUMN note")
    assert deep(client)["schema"] == "foreign"


def since(client: Client, mark: str) -> list[str]:
    answer = client.get(f"/v1/health?deep=1&since={mark}", headers={"X-Local-Isolate": "0"})
    went_back: list[str] = answer.json()["went_back"]
    return went_back


def test_deep_health_tells_a_database_whose_fence_or_audit_went_back(
    client: Client, sql: Sql
) -> None:
    operator = client.as_("operator")
    for _ in range(2):
        body = {"expected": "open", "next": "open"}
        operator.post("/v1/fence/transitions", body).raise_for_status()
    mark = deep(client)["mark"]
    revision, sequence = map(int, mark.split("."))
    assert since(client, mark) == []
    assert since(client, f"{revision + 1}.{sequence}") == ["fence"]
    assert since(client, f"{revision}.{sequence + 1}") == ["audit"]
    sql("UPDATE fencepost_fence SET revision = revision - 1, last_admitted_revision = NULL")
    sql("DELETE FROM fencepost_audit WHERE sequence = ?1", sequence)
    assert since(client, mark) == ["fence", "audit"]


def test_an_isolate_remembers_how_far_it_has_seen_the_deployment_come(
    client: Client, sql: Sql
) -> None:
    sql.fence("open", revision=1_000_000)
    at = {"headers": {"X-Local-Isolate": "1"}}
    assert "fence" not in client.get("/v1/health?deep=1", **at).json()["went_back"]
    sql.fence("open", revision=999_999)
    assert "fence" in client.get("/v1/health?deep=1", **at).json()["went_back"]


@pytest.mark.parametrize(
    "mark", ["", "1", "1.", ".1", "1.2.3", "-1.2", "a.b", "1.99999999999999999"]
)
def test_a_mark_is_one_that_health_gave_out(client: Client, mark: str) -> None:
    answer = client.get("/v1/health", params={"deep": "1", "since": mark})
    assert (answer.status_code, answer.json()["code"]) == (400, "INVALID_REQUEST")


def test_deep_health_of_an_empty_database(client: Client, empty_database: Sql) -> None:
    assert (deep(client)["schema"], deep(client)["fence"]) == ("empty", "open")


# --- Pages of other origins ----------------------------------------------------------------

LISTED, OTHER = "https://ops.example", "https://evil.example"


@pytest.fixture(scope="module")
def listed() -> Iterator[httpx.Client]:
    """A deployment of its own, whose pages at LISTED may call."""
    variables = {cors.SETTING: f"http://localhost:5173, {LISTED}"}
    process, addresses = start_bridge(tokens=Client.TOKENS, variables=variables)
    with connect(addresses["url"]) as http:
        yield http
    stop_bridge(process)


def preflight(http: httpx.Client, origin: str) -> httpx.Response:
    asked = {"Origin": origin, "Access-Control-Request-Method": "POST"}
    return http.options("/v1/starts", headers=asked)


def test_a_page_of_a_listed_origin_may_call(listed: httpx.Client) -> None:
    answer = preflight(listed, LISTED)
    assert (answer.status_code, answer.content) == (204, b"")
    assert answer.headers["Access-Control-Allow-Origin"] == LISTED
    assert "POST" in answer.headers["Access-Control-Allow-Methods"]
    for header in ("Authorization", "Idempotency-Key", "Prefer", "Content-Type"):
        assert header in answer.headers["Access-Control-Allow-Headers"]
    headers = {"Origin": LISTED, "Authorization": "Bearer nobody"}
    refused = listed.get("/v1/runs", headers=headers)
    assert (refused.status_code, refused.headers["Vary"]) == (401, "Origin")
    assert refused.headers["Access-Control-Allow-Origin"] == LISTED
    assert "Retry-After" in refused.headers["Access-Control-Expose-Headers"]
    assert "Access-Control-Allow-Credentials" not in refused.headers


@pytest.mark.parametrize("origin", [OTHER, "null", "", LISTED + ":444", "HTTPS://OPS.EXAMPLE"])
def test_a_page_of_no_listed_origin_may_not(listed: httpx.Client, origin: str) -> None:
    answer = preflight(listed, origin)
    assert (answer.status_code, answer.json()["code"]) == (405, "METHOD_NOT_ALLOWED")
    assert "Access-Control-Allow-Origin" not in answer.headers
    assert answer.headers["Vary"] == "Origin"


def test_by_default_no_page_of_another_origin_may_call(client: Client) -> None:
    answer = preflight(client.http, LISTED)
    assert answer.status_code == 405
    assert not [name for name in answer.headers if name.startswith("access-control")]


@pytest.mark.parametrize(
    "setting",
    ["*", "https://a.example/", "a.example", "https://*.example", "https://a.example,", "null"],
)
def test_a_list_with_what_is_no_origin_admits_none(setting: str) -> None:
    assert cors.origins(f"{LISTED},{setting}") == frozenset()
