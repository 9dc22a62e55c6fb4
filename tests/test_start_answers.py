"""The answers to a start, row by row of the decision table, beyond new, replayed and pending."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import httpx
import pytest

from helpers import Client, Json, Sql, a_start, an_owner, new_key


def release(client: Client, run: Json) -> None:
    path = f"/v1/starts/{run['key']}/release"
    client.post(path, {"owner": run["owner"]}).raise_for_status()


def follow(client: Client, run: Json, verb: str, path: str, owner: Json) -> httpx.Response:
    """Take an exit that START_UNRESOLVABLE names."""
    if verb == "resolve":
        operator = client.as_("operator")
        seen = operator.get(f"/v1/starts/{run['key']}").json()["seen"]
        return operator.post(path, {"decision": "not_executed", "seen": seen, "note": "n"})
    stored = client.get(f"/v1/runs/{run['run_id']}").json()
    about = stored["claim"]["owner"] if verb == "recover" else stored["owner"]
    evidence = {"kind": "lease-expired", "expected_owner": about}
    body = {"owner": owner} if verb == "heartbeat" else {"owner": owner, "evidence": evidence}
    return client.post(path, body)


def unresolvable(client: Client, run: Json, owner: Json) -> Json:
    answer = client.start(run["key"], a_start(owner=owner))
    problem: Json = answer.json()
    assert (answer.status_code, problem["code"]) == (409, "START_UNRESOLVABLE")
    return problem


# --- A lease that has lapsed --------------------------------------------------------------


def test_the_owner_itself_is_not_told_started_after_its_lease_lapsed(
    client: Client, sql: Sql, run: Json
) -> None:
    """Two processes that share a nonce by mistake would both execute."""
    sql.lapse(run["run_id"])
    before = sql.dump()
    problem = unresolvable(client, run, run["owner"])
    assert [way["verb"] for way in problem["exits"]] == ["own", "heartbeat", "resolve"]
    assert sql.dump() == before


@pytest.mark.parametrize("mine", [True, False], ids=["the owner", "another process"])
@pytest.mark.parametrize("number", range(3))
def test_each_exit_of_a_lapsed_start_works(
    client: Client, sql: Sql, mine: bool, number: int
) -> None:
    run = client.started()
    owner = run["owner"] if mine else an_owner()
    sql.lapse(run["run_id"])
    ways = unresolvable(client, run, owner)["exits"]
    if number < len(ways):
        answer = follow(client, run, **ways[number], owner=owner)
        assert answer.status_code == 200, (ways[number], answer.text)
        code = client.start(run["key"], a_start(owner=owner)).json().get("code")
        assert code != "START_UNRESOLVABLE"


def test_a_closed_fence_leaves_only_the_exit_that_passes_it(
    client: Client, sql: Sql, run: Json
) -> None:
    sql.lapse(run["run_id"])
    sql.fence("migration-locked")
    problem = unresolvable(client, run, an_owner())
    assert [way["verb"] for way in problem["exits"]] == ["resolve"]
    assert "/own" not in problem["detail"]
    assert follow(client, run, **problem["exits"][0], owner=an_owner()).status_code == 200


# --- A claim that stands ------------------------------------------------------------------


def claimed(client: Client, run: Json) -> Json:
    """A released key, whose waiting run another process claims."""
    release(client, run)
    claimant = an_owner()
    client.post(f"/v1/runs/{run['run_id']}/claim", {"owner": claimant}).raise_for_status()
    return claimant


def test_a_claim_is_not_pushed_aside_by_a_start(client: Client, sql: Sql, run: Json) -> None:
    claimant = claimed(client, run)
    before = sql.dump()
    answer = client.start(run["key"], a_start(owner=an_owner()))
    problem = answer.json()
    assert (answer.status_code, problem["code"]) == (409, "START_PENDING")
    assert int(answer.headers["Retry-After"]) >= 1
    assert sql.dump() == before
    activated = client.post(f"/v1/runs/{run['run_id']}/activate", {"owner": claimant})
    assert activated.json()["outcome"] == "activated"


def test_an_old_claim_is_recovered_and_then_the_key_starts(
    client: Client, sql: Sql, run: Json
) -> None:
    claimed(client, run)
    sql("UPDATE fencepost_runs SET claimed_at_ms = 5 WHERE run_id = ?1", run["run_id"])
    problem = unresolvable(client, run, an_owner())
    assert [way["verb"] for way in problem["exits"]] == ["recover", "resolve"]
    way = problem["exits"][0]
    assert follow(client, run, **way, owner=an_owner()).json()["outcome"] == "recovered"
    assert client.start(run["key"], a_start(owner=an_owner())).status_code == 201
    facts = client.get(f"/v1/runs/{run['run_id']}/ownership").json()["items"]
    kinds = [fact["type"] for fact in facts]
    assert kinds == ["activated", "released", "claimed", "expired", "activated"]


# --- A cancel before the start ------------------------------------------------------------


def test_a_cancelled_run_that_waited_is_never_started_again(
    client: Client, sql: Sql, run: Json
) -> None:
    release(client, run)
    cancelled = client.post(f"/v1/runs/{run['run_id']}/cancel", {}).json()
    assert (cancelled["outcome"], cancelled["run"]["status"]) == ("cancel_requested", "cancelled")
    answer = client.start(run["key"], a_start(owner=an_owner()))
    assert (answer.status_code, answer.json()["run"]["status"]) == (200, "cancelled")
    held = client.get(f"/v1/starts/{run['key']}").json()["reservation"]
    assert (held["state"], held["outcome"]) == ("terminal", "cancelled")
    assert client.get(f"/v1/runs/{run['run_id']}/integrity").json()["intact"] is True


@pytest.mark.parametrize("verb", ["abandon", "recover"])
def test_a_claim_that_goes_leaves_no_cancelled_run_to_wait(
    client: Client, sql: Sql, run: Json, verb: str
) -> None:
    claimant = claimed(client, run)
    asked = client.post(f"/v1/runs/{run['run_id']}/cancel", {}).json()["run"]
    assert asked["status"] == "pending"  # the claimant will see it
    sql("UPDATE fencepost_runs SET claimed_at_ms = 5 WHERE run_id = ?1", run["run_id"])
    evidence = {"kind": "lease-expired", "expected_owner": claimant}
    body = {"owner": claimant} if verb == "abandon" else {"owner": an_owner(), "evidence": evidence}
    answer = client.post(f"/v1/runs/{run['run_id']}/{verb}", body)
    assert (answer.status_code, answer.json()["run"]["status"]) == (200, "cancelled")
    assert client.start(run["key"]).json()["outcome"] == "replayed"
    assert client.get(f"/v1/runs/{run['run_id']}/integrity").json()["intact"] is True


# --- A request that waited ----------------------------------------------------------------


def test_a_request_that_waited_never_starts(client: Client, sql: Sql, run: Json) -> None:
    """Its client may be gone: it would start under an owner that nobody knows."""
    answers: list[httpx.Response] = []

    def wait() -> None:
        answers.append(client.start(run["key"], a_start(owner=an_owner()), Prefer="wait=10"))

    waiting = threading.Thread(target=wait)
    waiting.start()
    time.sleep(0.3)
    release(client, run)
    waiting.join(timeout=20)
    [answer] = answers
    assert (answer.status_code, answer.json()["code"]) == (409, "START_PENDING")
    assert answer.headers["Retry-After"] == "1"
    held = client.get(f"/v1/starts/{run['key']}").json()
    assert (held["reservation"]["state"], held["run"]["status"]) == ("reserved", "pending")
    assert client.start(run["key"], a_start(owner=an_owner())).status_code == 201


# --- A database that takes no writes ------------------------------------------------------

REFUSED = {"X_Local_Fault": "refuse"}


def replayed(client: Client, sql: Sql, run: Json) -> tuple[Json, int, str]:
    client.finish(run).raise_for_status()
    return a_start(), 200, "replayed"


def pending(client: Client, sql: Sql, run: Json) -> tuple[Json, int, str]:
    return a_start(owner=an_owner()), 409, "START_PENDING"


def own_retry(client: Client, sql: Sql, run: Json) -> tuple[Json, int, str]:
    return a_start(owner=run["owner"]), 200, "started"


def other_input(client: Client, sql: Sql, run: Json) -> tuple[Json, int, str]:
    return a_start(input=1), 422, "START_INPUT_MISMATCH"


def other_target(client: Client, sql: Sql, run: Json) -> tuple[Json, int, str]:
    return a_start(target={"kind": "workflow", "id": "x"}), 422, "START_TARGET_MISMATCH"


def abandoned(client: Client, sql: Sql, run: Json) -> tuple[Json, int, str]:
    sql.lapse(run["run_id"])
    return a_start(), 409, "START_UNRESOLVABLE"


def purged(client: Client, sql: Sql, run: Json) -> tuple[Json, int, str]:
    client.finish(run).raise_for_status()
    sql("DELETE FROM fencepost_runs WHERE run_id = ?1", run["run_id"])
    return a_start(), 409, "START_ALREADY_SETTLED"


Case = Callable[[Client, Sql, Json], tuple[Json, int, str]]
NEED_NO_WRITE: list[Case] = [
    *(replayed, pending, own_retry, other_input, other_target, abandoned, purged)
]


@pytest.mark.parametrize("case", NEED_NO_WRITE, ids=lambda case: case.__name__)
@pytest.mark.parametrize("trouble", ["the database refuses writes", "the fence is unreadable"])
def test_what_needs_no_write_is_answered_without_one(
    client: Client, sql: Sql, run: Json, case: Case, trouble: str
) -> None:
    body, status, said = case(client, sql, run)
    if case is own_retry and trouble == "the fence is unreadable":
        return  # whether existing work goes on is what the fence says
    headers = REFUSED
    if trouble == "the fence is unreadable":
        sql("PRAGMA ignore_check_constraints = ON")
        sql.fence("open")
        sql("UPDATE fencepost_fence SET state = 'unheard-of'")
        headers = {}
    before = sql.dump()
    answer = client.start(run["key"], body, **headers)
    found = answer.json()
    assert (answer.status_code, found.get("code") or found["outcome"]) == (status, said)
    assert sql.dump() == before


def test_only_starts_are_refused_by_a_database_that_takes_no_writes(
    client: Client, sql: Sql, run: Json
) -> None:
    release(client, run)
    before = sql.dump()
    new = client.start(new_key(), None, **REFUSED)
    assert (new.status_code, new.json()["code"]) == (503, "STORAGE_REFUSED")
    again = client.start(run["key"], X_Local_Fault="refuse,pass,refuse")
    assert (again.status_code, again.json()["code"]) == (503, "STORAGE_REFUSED")
    assert sql.dump() == before


# --- Slots --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "slot"), [("order-42", "3bf"), ("order-42~item-1", "3bf"), ("~x", "e3b")]
)
def test_a_run_id_carries_the_slot_of_its_keys_placement(
    client: Client, key: str, slot: str
) -> None:
    import hashlib

    assert hashlib.sha256(key.partition("~")[0].encode()).hexdigest()[:3] == slot
    answer = client.start(key)
    assert answer.json()["run"]["run_id"].partition("~")[2] == slot
