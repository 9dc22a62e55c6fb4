"""Moving the fence over HTTP, and what each state then admits, route by route."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from fencepost import table
from fencepost.fence import FenceState
from helpers import Client, Json, Sql, a_start, an_owner, new_key, round_trips

STATES = [str(state) for state in FenceState]


def move(
    client: Client, expected: str, next: str, key: str | None = None, **members: Any
) -> httpx.Response:
    headers = {} if key is None else {"Idempotency-Key": key}
    body = {"expected": expected, "next": next, **members}
    if next == "proof-only":
        body.setdefault("proof_key", "proof")
    return client.as_("operator").post("/v1/fence/transitions", body, headers=headers)


@pytest.mark.parametrize(("expected", "next"), list(itertools.product(STATES, STATES)))
def test_any_pair_of_states_is_legal(client: Client, sql: Sql, expected: str, next: str) -> None:
    sql.fence(expected, proof_key="old" if expected == "proof-only" else None, revision=7)
    answer = move(client, expected, next)
    assert answer.status_code == 200, answer.text
    body = answer.json()
    assert (body["state"], body["revision"], body["proof_run_id"]) == (next, 8, None)
    assert body["proof_key"] == ("proof" if next == "proof-only" else None)
    assert client.get("/v1/fence").json()["updated_at_ms"] == body["updated_at_ms"]
    assert round_trips(answer) == 1


def test_the_loser_is_told_the_state_that_the_winner_left(client: Client, sql: Sql) -> None:
    sql.fence("open", revision=3)
    move(client, "open", "draining").raise_for_status()
    before = sql.dump()
    answer = move(client, "open", "migration-locked")
    problem = answer.json()
    assert (answer.status_code, problem["code"]) == (409, "FENCE_CAS_CONFLICT")
    assert (problem["state"], problem["revision"], problem["retry"]) == ("draining", 4, "never")
    assert sql.dump() == before


def test_a_revision_that_is_not_the_present_one_loses(client: Client, sql: Sql) -> None:
    sql.fence("open", revision=3)
    assert move(client, "open", "draining", revision=2).json()["code"] == "FENCE_CAS_CONFLICT"
    assert move(client, "open", "draining", revision=3).json()["revision"] == 4


def test_a_fence_that_was_never_provisioned_is_moved_from_open(
    client: Client, empty_database: Sql
) -> None:
    lost = move(client, "draining", "open")
    assert (lost.status_code, lost.json()["state"]) == (409, "open")
    assert empty_database("SELECT name FROM sqlite_master WHERE name LIKE 'fencepost%'") == []
    answer = move(client, "open", "draining", revision=0)
    assert (answer.status_code, answer.json()["revision"]) == (200, 1)
    assert client.start(new_key()).json()["code"] == "EXECUTION_FENCED"


def test_a_retry_with_the_same_key_converges_on_the_same_answer(client: Client, sql: Sql) -> None:
    key, proof = new_key(), new_key("proof")
    first = move(client, "open", "proof-only", key, proof_key=proof)
    run = client.start(proof).json()["run"]
    before = sql.dump()
    retry = move(client, "open", "proof-only", key, proof_key=proof)
    assert retry.status_code == 200
    assert retry.json() == {**first.json(), "proof_run_id": run["run_id"]}
    assert sql.dump() == before


def test_a_retry_converges_when_the_first_reply_was_lost(client: Client, sql: Sql) -> None:
    sql.fence("open", revision=1)
    key, operator = new_key(), client.as_("operator")
    body = {"expected": "open", "next": "draining"}
    headers = {"Idempotency-Key": key, "X-Local-Fault": "lost,lost"}
    lost = operator.post("/v1/fence/transitions", body, headers=headers)
    assert lost.json()["code"] == "WRITE_OUTCOME_UNKNOWN"
    [moved] = sql("SELECT revision, updated_at_ms FROM fencepost_fence")
    retry = move(client, "open", "draining", key).json()
    assert (retry["revision"], retry["updated_at_ms"]) == (2, moved["updated_at_ms"])
    assert len(sql("SELECT 1 FROM fencepost_audit WHERE action = 'fence-transition'")) >= 1


def test_a_retry_loses_once_somebody_else_has_moved_the_fence(client: Client) -> None:
    key = new_key()
    move(client, "open", "draining", key).raise_for_status()
    move(client, "draining", "open").raise_for_status()
    again = move(client, "open", "draining", new_key())
    assert again.status_code == 200
    retry = move(client, "open", "draining", key)
    assert (retry.status_code, retry.json()["code"]) == (409, "FENCE_CAS_CONFLICT")


def test_the_same_key_for_another_command_is_refused(client: Client, sql: Sql) -> None:
    key = new_key()
    move(client, "open", "draining", key).raise_for_status()
    before = sql.dump()
    answer = move(client, "draining", "open", key)
    assert (answer.status_code, answer.json()["code"]) == (422, "IDEMPOTENCY_KEY_REUSED")
    assert sql.dump() == before


@pytest.mark.parametrize(
    "body",
    [
        {"expected": "open", "next": "proof-only"},
        {"expected": "open", "next": "draining", "proof_key": "k"},
        {"expected": "open", "next": "ajar"},
        {"expected": "ajar", "next": "open"},
        {"expected": "open"},
        {"expected": "open", "next": "draining", "revision": -1},
        {"expected": "open", "next": "proof-only", "proof_key": "a b"},
        {"expected": "open", "next": "draining", "more": 1},
    ],
    ids=str,
)
def test_a_command_that_is_none_changes_nothing(client: Client, sql: Sql, body: Json) -> None:
    before = sql.dump()
    answer = client.as_("operator").post("/v1/fence/transitions", body)
    assert (answer.status_code, answer.json()["code"]) == (400, "INVALID_REQUEST")
    assert sql.dump() == before


def test_only_operators_move_the_fence(client: Client) -> None:
    body = {"expected": "open", "next": "draining"}
    answer = client.post("/v1/fence/transitions", body)
    assert (answer.status_code, answer.json()["code"]) == (403, "SCOPE_MISSING")


def test_every_transition_is_audited(client: Client, sql: Sql) -> None:
    sql("DELETE FROM fencepost_audit")
    move(client, "open", "draining").raise_for_status()
    move(client, "open", "draining")
    [entry] = client.as_("operator").get("/v1/audit").json()["items"]
    assert entry["action"] == "fence-transition"
    assert entry["principal"] == {"kind": "human", "id": "olga"}
    assert entry["subject"] == "deployment"
    assert (entry["before"]["state"], entry["after"]["state"]) == ("open", "draining")
    assert entry["after"]["revision"] == entry["before"]["revision"] + 1


def test_proof_only_end_to_end(client: Client, sql: Sql) -> None:
    proof, body = new_key("proof"), a_start(owner=an_owner())
    old = client.started()
    move(client, "open", "proof-only", proof_key=proof).raise_for_status()
    run = client.start(proof, body).json()["run"]
    assert client.get("/v1/fence").json()["proof_run_id"] == run["run_id"]
    assert client.start(new_key()).json()["code"] == "EXECUTION_FENCED"
    assert client.start(proof, body).json()["outcome"] == "started"
    assert client.verb(old, "heartbeat").json()["code"] == "EXECUTION_FENCED"
    assert client.verb(run, "heartbeat").json()["outcome"] == "renewed"
    assert client.finish(run, result="proved").json()["outcome"] == "transitioned"
    assert client.start(proof).json()["run"]["result"] == "proved"
    assert move(client, "proof-only", "open").json()["proof_run_id"] is None
    assert client.verb(old, "heartbeat").json()["outcome"] == "renewed"


# --- Route by route ----------------------------------------------------------------------

NEW, EXISTING, ALWAYS = "a new start", "an existing run", "always"
ADMITTED = {
    NEW: {"open"},
    EXISTING: {"open", "draining"},
    ALWAYS: set(STATES),
}


def _run_path(verb: str, **members: Any) -> Callable[[Client, Json], httpx.Response]:
    return lambda client, run: client.verb(run, verb, **members)


def _evidence(verb: str) -> Callable[[Client, Json], httpx.Response]:
    return lambda client, run: client.verb(
        run, verb, evidence={"kind": "lease-expired", "expected_owner": run["owner"]}
    )


def _get(path: str) -> Callable[[Client, Json], httpx.Response]:
    return lambda client, run: client.get(path.format(**run))


def _operate(path: str, body: Json) -> Callable[[Client, Json], httpx.Response]:
    return lambda client, run: client.as_("operator").post(path.format(**run), body)


def _step(verb: str, **members: Any) -> Callable[[Client, Json], httpx.Response]:
    return lambda client, run: client.operation(run, verb, **{"token": run["token"], **members})


def _start(run: Json, verb: str) -> str:
    return f"/v1/starts/{run['key']}/{verb}"


BINDINGS = [{"gate": "a", "revision": 1, "receipt_hash": "0" * 64}]
OPERATION = "/v1/runs/{run_id}/operations/{op}"
RESOLUTION = {"decision": "executed", "attempt": 1, "note": "seen in the ledger"}

# One row a route: its class, and a request that would succeed if it were admitted (`run` is a
# run that its caller owns, with the token of its operation `step`; statuses other than 503 count
# as admitted).
MATRIX: dict[tuple[str, str], tuple[str, Callable[[Client, Json], httpx.Response]]] = {
    ("POST", "/v1/starts"): (NEW, lambda client, run: client.start(new_key())),
    ("GET", "/v1/starts/{key}"): (ALWAYS, _get("/v1/starts/{key}")),
    ("POST", "/v1/starts/{key}/release"): (
        ALWAYS,
        lambda client, run: client.post(_start(run, "release"), {"owner": run["owner"]}),
    ),
    ("POST", "/v1/starts/{key}/resolve"): (
        ALWAYS,
        lambda client, run: client.as_("operator").post(_start(run, "resolve"), RESOLUTION),
    ),
    ("GET", "/v1/runs"): (ALWAYS, _get("/v1/runs")),
    ("GET", "/v1/runs/{run_id}"): (ALWAYS, _get("/v1/runs/{run_id}")),
    ("GET", "/v1/runs/{run_id}/ownership"): (ALWAYS, _get("/v1/runs/{run_id}/ownership")),
    ("GET", "/v1/runs/{run_id}/lineage"): (ALWAYS, _get("/v1/runs/{run_id}/lineage")),
    ("GET", "/v1/runs/{run_id}/latest"): (ALWAYS, _get("/v1/runs/{run_id}/latest")),
    ("GET", "/v1/runs/{run_id}/events"): (ALWAYS, _get("/v1/runs/{run_id}/events")),
    ("POST", "/v1/runs/{run_id}/events"): (EXISTING, _run_path("events", type="noted")),
    ("POST", "/v1/runs/{run_id}/bind-change"): (EXISTING, _run_path("bind-change", change="c")),
    ("GET", "/v1/runs/{run_id}/integrity"): (ALWAYS, _get("/v1/runs/{run_id}/integrity")),
    ("POST", "/v1/runs/{run_id}/claim"): (EXISTING, _run_path("claim")),
    ("POST", "/v1/runs/{run_id}/activate"): (EXISTING, _run_path("activate")),
    ("POST", "/v1/runs/{run_id}/own"): (EXISTING, _run_path("own")),
    ("POST", "/v1/runs/{run_id}/heartbeat"): (EXISTING, _run_path("heartbeat")),
    ("POST", "/v1/runs/{run_id}/reconfirm"): (EXISTING, _run_path("reconfirm")),
    ("POST", "/v1/runs/{run_id}/steal"): (EXISTING, _evidence("steal")),
    ("POST", "/v1/runs/{run_id}/abandon"): (EXISTING, _run_path("abandon")),
    ("POST", "/v1/runs/{run_id}/recover"): (EXISTING, _evidence("recover")),
    ("POST", "/v1/runs/{run_id}/transition"): (EXISTING, _run_path("transition", to="suspended")),
    ("POST", "/v1/runs/{run_id}/cancel"): (ALWAYS, _operate("/v1/runs/{run_id}/cancel", {})),
    ("POST", "/v1/runs/{run_id}/acknowledge-cancel"): (EXISTING, _run_path("acknowledge-cancel")),
    ("POST", "/v1/runs/{run_id}/lineage/cancel"): (
        ALWAYS,
        _operate("/v1/runs/{run_id}/lineage/cancel", {}),
    ),
    ("GET", "/v1/runs/{run_id}/bindings"): (ALWAYS, _get("/v1/runs/{run_id}/bindings")),
    ("POST", "/v1/runs/{run_id}/bindings"): (EXISTING, _run_path("bindings", bindings=BINDINGS)),
    ("POST", f"{OPERATION}/acquire"): (
        EXISTING,
        lambda client, run: client.operation(run, "acquire", "other", ttl_ms=1000),
    ),
    ("POST", f"{OPERATION}/renew"): (EXISTING, _step("renew", ttl_ms=90_000)),
    ("POST", f"{OPERATION}/assert"): (EXISTING, _step("assert")),
    ("POST", f"{OPERATION}/commit"): (EXISTING, _step("commit", outcome=1)),
    ("POST", f"{OPERATION}/interrupt"): (EXISTING, _step("interrupt")),
    ("GET", OPERATION): (ALWAYS, _get("/v1/runs/{run_id}/operations/step")),
    ("GET", "/v1/fence"): (ALWAYS, _get("/v1/fence")),
    ("POST", "/v1/fence/transitions"): (
        ALWAYS,
        _operate("/v1/fence/transitions", {"expected": "open", "next": "draining"}),
    ),
    ("GET", "/v1/inventory"): (
        ALWAYS,
        lambda client, run: client.as_("operator").get("/v1/inventory"),
    ),
    ("GET", "/v1/inventory/{category}"): (
        ALWAYS,
        lambda client, run: client.as_("operator").get("/v1/inventory/runs"),
    ),
    ("POST", "/v1/retention/purge"): (ALWAYS, _operate("/v1/retention/purge", {})),
    ("GET", "/v1/audit"): (ALWAYS, lambda client, run: client.as_("operator").get("/v1/audit")),
    ("GET", "/v1/health"): (ALWAYS, _get("/v1/health?deep=1")),
    ("GET", "/docs/errors"): (ALWAYS, _get("/docs/errors")),
    ("GET", "/openapi.json"): (ALWAYS, _get("/openapi.json")),
    ("GET", "/docs"): (ALWAYS, _get("/docs")),
}


def test_the_matrix_has_a_row_for_every_route() -> None:
    assert set(MATRIX) == {(route.method, route.pattern) for route in table.ROUTES}


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("route", MATRIX, ids=" ".join)
def test_each_state_admits_each_route_as_the_matrix_says(
    client: Client, sql: Sql, route: tuple[str, str], state: str
) -> None:
    work, send = MATRIX[route]
    run = client.started()
    run["token"] = client.operation(run, "acquire", ttl_ms=60_000).json()["lease"]["token"]
    sql.fence(state, proof_key="proof" if state == "proof-only" else None)
    before = sql.dump()
    answer = send(client, run)
    if state in ADMITTED[work]:
        assert answer.status_code in (200, 201, 409), answer.text
    else:
        assert (answer.status_code, answer.json()["code"]) == (503, "EXECUTION_FENCED")
        assert answer.json()["state"] == state
    if route[0] == "GET" or answer.status_code >= 400:
        assert sql.dump() == before


def test_the_owners_own_retry_is_existing_work(client: Client, sql: Sql) -> None:
    for state in STATES:
        key, body = new_key(), a_start(owner=an_owner())
        client.start(key, body).raise_for_status()
        sql.fence(state, proof_key="proof" if state == "proof-only" else None)
        answer = client.start(key, body)
        assert answer.status_code == (200 if state in ADMITTED[EXISTING] else 503)
        sql("DELETE FROM fencepost_fence")


# --- Races -------------------------------------------------------------------------------

ROUNDS = 200


@pytest.mark.anyio
async def test_no_start_is_ever_admitted_by_a_state_that_forbids_it(
    bridge: dict[str, str], sql: Sql
) -> None:
    sql("DELETE FROM fencepost_audit")
    sql.fence("open", revision=0)
    operator = {"Authorization": "Bearer operator"}
    async with httpx.AsyncClient(base_url=bridge["url"], timeout=60) as http:

        async def shift(number: int, expected: str, next: str) -> None:
            body = json.dumps({"expected": expected, "next": next})
            headers = {**operator, "X-Local-Isolate": str(number % 2)}
            answer = await http.post("/v1/fence/transitions", content=body, headers=headers)
            assert answer.status_code == 200, answer.text

        async def start(number: int) -> int:
            headers = {
                "Authorization": "Bearer alice",
                "Idempotency-Key": new_key("fenced"),
                "X-Local-Isolate": str(number % 2),
            }
            body = json.dumps(a_start())
            return (await http.post("/v1/starts", content=body, headers=headers)).status_code

        seen: list[int] = []
        for number in range(ROUNDS):
            expected, next = ("open", "draining") if number % 2 == 0 else ("draining", "open")
            round = [start(0), start(1), shift(number, expected, next), start(0), start(1)]
            seen += [code for code in await asyncio.gather(*round) if code is not None]
    assert set(seen) == {201, 503}
    moves = sql("SELECT at_ms, after FROM fencepost_audit ORDER BY sequence")
    closed = [
        (shut["at_ms"], reopened["at_ms"])
        for shut, reopened in zip(moves[::2], moves[1::2], strict=True)
    ]
    assert len(closed) == ROUNDS // 2
    admitted = sql("SELECT created_at_ms FROM fencepost_reservations WHERE key LIKE 'fenced-%'")
    stamps = [row["created_at_ms"] for row in admitted]
    assert len(stamps) == seen.count(201)
    for stamp in stamps:
        assert not any(shut < stamp < reopened for shut, reopened in closed)


@pytest.mark.anyio
async def test_of_concurrent_transitions_one_wins(bridge: dict[str, str], sql: Sql) -> None:
    headers = {"Authorization": "Bearer operator"}
    async with httpx.AsyncClient(base_url=bridge["url"], timeout=60) as http:
        for _ in range(10):
            sql.fence("open", revision=1)
            bodies = [{"expected": "open", "next": STATES[1 + n % 2]} for n in range(12)]
            answers = await asyncio.gather(
                *[
                    http.post(
                        "/v1/fence/transitions",
                        content=json.dumps(body),
                        headers={**headers, "X-Local-Isolate": str(n % 2)},
                    )
                    for n, body in enumerate(bodies)
                ]
            )
            [winner] = [answer.json() for answer in answers if answer.status_code == 200]
            for loser in (answer.json() for answer in answers if answer.status_code != 200):
                assert loser["code"] == "FENCE_CAS_CONFLICT"
                assert loser["state"] == winner["state"]
