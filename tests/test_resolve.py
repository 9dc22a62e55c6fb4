"""Resolving starts that nobody executes: compared with what was looked at, audited, once."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from helpers import Client, Json, Sql, a_start, acquired, an_owner, connect_async, new_key

pytestmark = pytest.mark.usefixtures("sql")


def look(client: Client, run: Json) -> str:
    seen: str = client.as_("operator").get(f"/v1/starts/{run['key']}").json()["seen"]
    return seen


def resolve(client: Client, run: Json, decision: str, **members: Any) -> httpx.Response:
    seen = members.pop("seen", None) or look(client, run)
    body = {"decision": decision, "seen": seen, "note": "looked at the ledger", **members}
    return client.as_("operator").post(f"/v1/starts/{run['key']}/resolve", body)


@pytest.fixture
def abandoned(client: Client, sql: Sql) -> Json:
    run = client.started()
    sql.lapse(run["run_id"])
    return run


# --- The three decisions -----------------------------------------------------------------


def test_executed_settles_the_key_with_the_result(client: Client, abandoned: Json) -> None:
    answer = resolve(client, abandoned, "executed", result={"charge": "ch_1"})
    body = answer.json()
    assert (answer.status_code, body["outcome"]) == (200, "resolved")
    held = body["reservation"]
    assert (held["state"], held["outcome"]) == ("terminal", "executed")
    assert (body["run"]["status"], body["run"]["owner"]) == ("completed", None)
    replay = client.start(abandoned["key"])
    assert replay.headers["Idempotent-Replayed"] == "true"
    assert replay.json()["run"]["result"] == {"charge": "ch_1"}
    assert client.finish(abandoned).json()["outcome"] == "fence_lost"


def test_a_key_resolved_as_not_executed_starts_again_as_the_next_attempt(
    client: Client, sql: Sql, abandoned: Json
) -> None:
    body = resolve(client, abandoned, "not_executed").json()
    assert (body["reservation"]["state"], body["reservation"]["attempt"]) == ("reserved", 2)
    assert body["run"]["status"] == "pending"
    again = client.start(abandoned["key"])
    assert again.status_code == 201
    assert again.json()["run"]["run_id"] == abandoned["run_id"]
    assert again.json()["run"]["generation"] == 2
    assert client.verb(abandoned, "heartbeat").json()["outcome"] == "fence_lost"
    assert kinds(sql, "events", abandoned) == ["run-created", "run-resolved", "run-restarted"]
    assert kinds(sql, "ownership", abandoned) == ["activated", "expired", "activated"]


def kinds(sql: Sql, table: str, run: Json) -> list[str]:
    text = f"SELECT type FROM fencepost_{table} WHERE run_id = ?1 ORDER BY sequence"
    return [row["type"] for row in sql(text, run["run_id"])]


def test_cancelled_ends_the_run_and_settles_the_key(client: Client, abandoned: Json) -> None:
    body = resolve(client, abandoned, "cancelled").json()
    held = body["reservation"]
    assert (held["state"], held["outcome"], held["attempt"]) == ("terminal", "cancelled", 1)
    assert body["run"]["status"] == "cancelled"
    replay = client.start(abandoned["key"]).json()
    assert (replay["outcome"], replay["run"]["status"]) == ("replayed", "cancelled")
    assert client.get(f"/v1/runs/{abandoned['run_id']}/integrity").json()["intact"] is True


def test_not_executed_ends_a_run_whose_cancel_was_requested(
    client: Client, abandoned: Json
) -> None:
    client.post(f"/v1/runs/{abandoned['run_id']}/cancel", {}).raise_for_status()
    body = resolve(client, abandoned, "not_executed").json()
    assert (body["reservation"]["outcome"], body["run"]["status"]) == ("cancelled", "cancelled")
    assert client.start(abandoned["key"]).json()["outcome"] == "replayed"


# --- Every unsettled key that nobody holds live ------------------------------------------


def suspended(client: Client, sql: Sql, run: Json) -> None:
    client.finish(run, "suspended").raise_for_status()


def released(client: Client, sql: Sql, run: Json) -> None:
    path = f"/v1/starts/{run['key']}/release"
    client.post(path, {"owner": run["owner"]}).raise_for_status()


def released_owned_and_lapsed(client: Client, sql: Sql, run: Json) -> None:
    released(client, sql, run)
    client.post(f"/v1/runs/{run['run_id']}/own", {"owner": an_owner()}).raise_for_status()
    sql.lapse(run["run_id"])


def claimed_long_ago(client: Client, sql: Sql, run: Json) -> None:
    suspended(client, sql, run)
    client.post(f"/v1/runs/{run['run_id']}/claim", {"owner": an_owner()}).raise_for_status()
    sql("UPDATE fencepost_runs SET claimed_at_ms = 5 WHERE run_id = ?1", run["run_id"])


def without_a_run(client: Client, sql: Sql, run: Json) -> None:
    for table in ("runs", "events", "snapshots", "ownership"):
        sql(f"DELETE FROM fencepost_{table} WHERE run_id = ?1", run["run_id"])


def reserved_without_a_run(client: Client, sql: Sql, run: Json) -> None:
    released(client, sql, run)
    without_a_run(client, sql, run)


def lapsed(client: Client, sql: Sql, run: Json) -> None:
    sql.lapse(run["run_id"])


UNHELD: dict[str, Callable[[Client, Sql, Json], None]] = {
    "lapsed": lapsed,
    "suspended": suspended,
    "released": released,
    "released, owned by another process, lapsed": released_owned_and_lapsed,
    "claimed by a process that died": claimed_long_ago,
    "started without a run": without_a_run,
    "reserved without a run": reserved_without_a_run,
}


@pytest.mark.parametrize("decision", ["executed", "not_executed", "cancelled"])
@pytest.mark.parametrize("state", UNHELD)
def test_every_unsettled_key_that_nobody_holds_live_is_resolved(
    client: Client, sql: Sql, state: str, decision: str
) -> None:
    run = client.started()
    UNHELD[state](client, sql, run)
    answer = resolve(client, run, decision)
    assert answer.status_code == 200, answer.text
    held = answer.json()["reservation"]
    assert held["outcome"] == (None if decision == "not_executed" else decision)
    again = client.start(run["key"], a_start(owner=an_owner()))
    if decision == "not_executed":
        assert again.status_code == 201, again.text
    elif "without" in state:
        assert again.json()["code"] == "START_ALREADY_SETTLED"
    else:
        assert again.json()["outcome"] == "replayed"


def test_the_claim_of_a_dead_process_ends_with_the_resolution(client: Client, sql: Sql) -> None:
    run = client.started()
    claimed_long_ago(client, sql, run)
    resolve(client, run, "not_executed").raise_for_status()
    assert kinds(sql, "ownership", run) == ["activated", "released", "claimed", "expired"]


def test_a_result_needs_a_run_to_stand_in(client: Client, sql: Sql) -> None:
    run = client.started()
    without_a_run(client, sql, run)
    before = sql.dump()
    answer = resolve(client, run, "executed", result=1)
    assert (answer.status_code, answer.json()["code"]) == (400, "INVALID_REQUEST")
    assert sql.dump() == before


def test_a_run_whose_owner_lives_is_not_resolved(client: Client, sql: Sql) -> None:
    run = client.started()
    before = sql.dump()
    answer = resolve(client, run, "executed")
    assert (answer.status_code, answer.json()["code"]) == (409, "HEARTBEAT_FRESH")
    assert sql.dump() == before


def test_a_run_that_is_being_claimed_is_not_resolved(client: Client, sql: Sql) -> None:
    run = client.started()
    suspended(client, sql, run)
    client.post(f"/v1/runs/{run['run_id']}/claim", {"owner": an_owner()}).raise_for_status()
    before = sql.dump()
    answer = resolve(client, run, "not_executed")
    assert (answer.status_code, answer.json()["code"]) == (409, "CLAIM_FRESH")
    assert sql.dump() == before


@pytest.mark.parametrize("to", ["completed", "failed", "cancelled"])
def test_a_settled_key_is_not_resolved(client: Client, sql: Sql, to: str) -> None:
    run = client.started()
    client.finish(run, to).raise_for_status()
    before = sql.dump()
    for decision in ("executed", "not_executed", "cancelled"):
        assert resolve(client, run, decision).json()["code"] == "SNAPSHOT_CHANGED"
    assert sql.dump() == before


@pytest.mark.parametrize("decision", ["executed", "not_executed", "cancelled"])
def test_an_unsettled_key_of_a_run_that_has_ended_is_settled_as_the_run_was(
    client: Client, sql: Sql, decision: str
) -> None:
    """As the library may leave it: it reserves a key for any run."""
    run = client.started()
    client.finish(run, "failed").raise_for_status()
    sql(
        "UPDATE fencepost_reservations SET state = 'reserved', claim_nonce = NULL, outcome = NULL "
        "WHERE key = ?1",
        run["key"],
    )
    before = client.get(f"/v1/runs/{run['run_id']}").json()
    held = resolve(client, run, decision).json()["reservation"]
    assert (held["state"], held["outcome"], held["attempt"]) == ("terminal", "failed", 1)
    assert client.get(f"/v1/runs/{run['run_id']}").json() == before
    assert resolve(client, run, "executed").json()["code"] == "SNAPSHOT_CHANGED"


def test_a_joined_key_is_resolved_through_the_key_that_started_its_run(
    client: Client, sql: Sql
) -> None:
    subject = {"stage": "build", "change": new_key("change")}
    run, joined = client.started(subject=subject), new_key()
    client.start(joined, a_start(subject=subject)).raise_for_status()
    sql.lapse(run["run_id"])
    before = sql.dump()
    answer = resolve(client, {**run, "key": joined}, "executed")
    problem = answer.json()
    assert (answer.status_code, problem["code"]) == (409, "KEY_JOINED")
    assert problem["key"] == run["key"]
    assert sql.dump() == before
    resolve(client, run, "executed").raise_for_status()
    settled = client.get(f"/v1/starts/{joined}").json()["reservation"]
    assert (settled["state"], settled["outcome"]) == ("terminal", "executed")


# --- Whatever happens between the look and the word --------------------------------------


def by_owner(verb: str, **members: Any) -> Callable[[Client, Sql, Json], None]:
    def act(client: Client, sql: Sql, run: Json) -> None:
        client.verb(run, verb, **members).raise_for_status()

    return act


def taken_over(client: Client, sql: Sql, run: Json) -> None:
    evidence = {"kind": "lease-expired", "expected_owner": run["owner"]}
    body = {"owner": an_owner(), "evidence": evidence}
    client.post(f"/v1/runs/{run['run_id']}/own", body).raise_for_status()


def stolen(client: Client, sql: Sql, run: Json) -> None:
    evidence = {"kind": "lease-expired", "expected_owner": run["owner"]}
    body = {"owner": an_owner(), "evidence": evidence}
    client.post(f"/v1/runs/{run['run_id']}/steal", body).raise_for_status()


def executed_by_another(client: Client, sql: Sql, run: Json) -> None:
    """A0: owned with evidence, executed, and lapsed again: the attempt is as it was."""
    taken_over(client, sql, run)
    holder = client.get(f"/v1/runs/{run['run_id']}").json()["owner"]
    client.finish({**run, "owner": holder}, "running", state="paid").raise_for_status()
    sql.lapse(run["run_id"])


def revived_and_lapsed(client: Client, sql: Sql, run: Json) -> None:
    client.verb(run, "heartbeat").raise_for_status()
    sql.lapse(run["run_id"])


def step_acquired(client: Client, sql: Sql, run: Json) -> None:
    acquired(client, run, new_key("step"))


def step_committed(client: Client, sql: Sql, run: Json) -> None:
    token = acquired(client, run, "early")["lease"]["token"]
    client.operation(run, "commit", "early", token=token, outcome=1).raise_for_status()


def step_renewed(client: Client, sql: Sql, run: Json) -> None:
    token = acquired(client, run, "early")["lease"]["token"]
    client.operation(run, "renew", "early", token=token, ttl_ms=90_000).raise_for_status()


def noted(client: Client, sql: Sql, run: Json) -> None:
    client.post(f"/v1/runs/{run['run_id']}/events", {"type": "noted"}).raise_for_status()


def cancel_requested(client: Client, sql: Sql, run: Json) -> None:
    client.post(f"/v1/runs/{run['run_id']}/cancel", {}).raise_for_status()


def resolved_by_another(client: Client, sql: Sql, run: Json) -> None:
    resolve(client, run, "not_executed").raise_for_status()


def resolved_started_and_lapsed(client: Client, sql: Sql, run: Json) -> None:
    resolved_by_another(client, sql, run)
    client.start(run["key"], a_start(owner=an_owner())).raise_for_status()
    sql.lapse(run["run_id"])


def revived_and_released(client: Client, sql: Sql, run: Json) -> None:
    client.verb(run, "heartbeat").raise_for_status()
    released(client, sql, run)


WRITES: dict[str, Callable[[Client, Sql, Json], None]] = {
    "heartbeat": by_owner("heartbeat"),
    "heartbeat, and lapsed again": revived_and_lapsed,
    "checkpoint": by_owner("transition", to="running", state=1),
    "end": by_owner("transition", to="completed"),
    "suspend": by_owner("transition", to="suspended"),
    "owned anew by its owner": by_owner("own"),
    "owned by another": taken_over,
    "executed by another, and lapsed": executed_by_another,
    "stolen": stolen,
    "step acquired": step_acquired,
    "step committed": step_committed,
    "step renewed": step_renewed,
    "event": noted,
    "cancel requested": cancel_requested,
    "resolved by another operator": resolved_by_another,
    "resolved, started again, and lapsed": resolved_started_and_lapsed,
    "revived and released": revived_and_released,
}


@pytest.mark.parametrize("decision", ["executed", "not_executed", "cancelled"])
@pytest.mark.parametrize("write", WRITES)
def test_any_write_since_the_look_makes_the_decision_lose(
    client: Client, sql: Sql, write: str, decision: str
) -> None:
    run = client.started()
    acquired(client, run, "early")
    if write == "revived and released":
        run = client.started()  # in which nothing was recorded
    sql.lapse(run["run_id"])
    seen = look(client, run)
    WRITES[write](client, sql, run)
    before = sql.dump()
    answer = resolve(client, run, decision, seen=seen)
    assert (answer.status_code, answer.json()["code"]) == (409, "SNAPSHOT_CHANGED")
    assert sql.dump() == before


def library_start(sql: Sql, run: Json) -> None:
    """What the library's start of a reserved key writes: the reservation alone."""
    sql(
        "UPDATE fencepost_reservations SET state = 'started', claim_nonce = 'library', "
        "updated_at_ms = updated_at_ms + 1 WHERE key = ?1",
        run["key"],
    )


def test_a_start_by_the_library_since_the_look_makes_the_decision_lose(
    client: Client, sql: Sql
) -> None:
    run = client.started()
    reserved_without_a_run(client, sql, run)
    seen = look(client, run)
    library_start(sql, run)
    answer = resolve(client, run, "not_executed", seen=seen)
    assert answer.json()["code"] == "SNAPSHOT_CHANGED"


@pytest.mark.parametrize("state", UNHELD)
def test_two_looks_at_the_same_start_see_the_same(client: Client, sql: Sql, state: str) -> None:
    run = client.started()
    UNHELD[state](client, sql, run)
    assert look(client, run) == look(client, run)


@pytest.mark.parametrize("write", ["heartbeat", "step acquired", "owned by another", "event"])
def test_a_write_between_the_reading_and_the_writing_of_a_decision_makes_it_lose(
    client: Client, sql: Sql, abandoned: Json, write: str
) -> None:
    """The decision's own two trips: the write comes in the window that a dropped reply leaves."""
    run = {**abandoned, "seen": look(client, abandoned)}
    rivals = {
        "heartbeat": ("heartbeat", {"owner": run["owner"]}),
        "step acquired": ("operations/s/acquire", {"owner": run["owner"], "ttl_ms": 60_000}),
        "owned by another": (
            "own",
            {
                "owner": an_owner(),
                "evidence": {"kind": "lease-expired", "expected_owner": run["owner"]},
            },
        ),
        "event": ("events", {"type": "noted"}),
    }
    verb, body = rivals[write]
    rival = {
        "path": f"/v1/runs/{run['run_id']}/{verb}",
        "headers": {"Authorization": "Bearer alice"},
        "body": json.dumps(body),
    }
    answer = client.as_("operator").post(
        f"/v1/starts/{run['key']}/resolve",
        {"decision": "not_executed", "seen": run["seen"], "note": "n"},
        headers={"X-Local-Fault": "pass,drop", "X-Local-Rival": json.dumps(rival)},
    )
    assert (answer.status_code, answer.json()["code"]) == (409, "SNAPSHOT_CHANGED")
    [held] = sql("SELECT state, attempt FROM fencepost_reservations WHERE key = ?1", run["key"])
    assert (held["state"], held["attempt"]) == ("started", 1)


# --- The audit, bad input, races ---------------------------------------------------------


def test_the_audit_says_who_when_what_and_why(client: Client, sql: Sql, abandoned: Json) -> None:
    sql("DELETE FROM fencepost_audit")
    resolve(client, abandoned, "executed").raise_for_status()
    [entry] = client.as_("operator").get("/v1/audit").json()["items"]
    assert (entry["action"], entry["subject"]) == ("resolve", abandoned["key"])
    assert entry["principal"] == {"kind": "human", "id": "olga"}
    assert entry["note"] == "looked at the ledger"
    assert (entry["before"]["state"], entry["before"]["attempt"]) == ("started", 1)
    assert entry["after"] == {"decision": "executed"}
    assert entry["at_ms"] > 1_700_000_000_000


def test_the_second_operator_learns_that_another_was_first(
    client: Client, sql: Sql, abandoned: Json
) -> None:
    seen = look(client, abandoned)
    resolve(client, abandoned, "executed", seen=seen).raise_for_status()
    before = sql.dump()
    for decision in ("executed", "not_executed", "cancelled"):
        answer = resolve(client, abandoned, decision, seen=seen)
        assert (answer.status_code, answer.json()["code"]) == (409, "SNAPSHOT_CHANGED")
    assert sql.dump() == before


@pytest.mark.parametrize(
    "change",
    [
        {"decision": "perhaps"},
        {"seen": ""},
        {"seen": "x"},
        {"seen": 1},
        {"seen": "+" * 43},
        {"attempt": 1},
        {"note": ""},
        {"note": "   "},
        {"note": "x" * 1001},
        {"note": 1},
        {"decision": "not_executed", "result": 1},
        {"decision": "cancelled", "result": 1},
        {"more": 1},
    ],
    ids=lambda change: str(change)[:40],
)
def test_a_body_that_is_no_resolution_changes_nothing(
    client: Client, sql: Sql, abandoned: Json, change: Json
) -> None:
    seen = look(client, abandoned)
    before = sql.dump()
    body = {"decision": "executed", "seen": seen, "note": "n", **change}
    answer = client.as_("operator").post(f"/v1/starts/{abandoned['key']}/resolve", body)
    assert (answer.status_code, answer.json()["code"]) == (400, "INVALID_REQUEST")
    assert sql.dump() == before


def test_only_operators_resolve_and_only_keys_that_exist(client: Client, abandoned: Json) -> None:
    body = {"decision": "executed", "seen": look(client, abandoned), "note": "n"}
    answer = client.post(f"/v1/starts/{abandoned['key']}/resolve", body)
    assert answer.status_code == 403
    answer = client.as_("operator").post(f"/v1/starts/{new_key()}/resolve", body)
    assert answer.status_code == 404


@pytest.mark.anyio
async def test_of_operators_owner_and_thief_at_once_exactly_one_settles_it(
    bridge: dict[str, str], client: Client, sql: Sql
) -> None:
    async with connect_async(bridge["url"]) as http:

        async def post(n: int, path: str, body: Json, token: str) -> httpx.Response:
            headers = {"Authorization": f"Bearer {token}", "X-Local-Isolate": str(n % 2)}
            return await http.post(path, content=json.dumps(body), headers=headers)

        for _ in range(10):
            run = client.started()
            sql.lapse(run["run_id"])
            verdict = {"seen": look(client, run), "note": "n"}
            evidence = {"kind": "lease-expired", "expected_owner": run["owner"]}
            own = f"/v1/runs/{run['run_id']}/own"
            path = f"/v1/starts/{run['key']}/resolve"
            answers = await asyncio.gather(
                post(0, path, {**verdict, "decision": "executed"}, "operator"),
                post(1, path, {**verdict, "decision": "not_executed"}, "operator"),
                post(0, own, {"owner": an_owner(), "evidence": evidence}, "alice"),
                post(1, own, {"owner": an_owner(), "evidence": evidence}, "alice"),
            )
            resolved = [a for a in answers[:2] if a.status_code == 200]
            owned = [a for a in answers[2:] if a.status_code == 200]
            assert len(resolved) <= 1
            # A run given back by `not_executed` waits for an owner: one may own it then.
            given_back = resolved and resolved[0].json()["run"]["status"] == "pending"
            assert len(owned) <= 1
            assert len(resolved) + len(owned) == 1 or (given_back and len(owned) == 1)
            assert Counter(a.status_code for a in answers).keys() <= {200, 409}
