"""What each state of the fence admits, route by route, and while it moves."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from fencepost.fence import OPERATED
from fencepost.http import routes
from helpers import Client, Json, Sql, a_start, an_owner, connect_async, new_key

STATES = [str(state) for state in OPERATED]
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
RECEIPT = {"sequence": 1, "hash": "0" * 64, "receipt": "0" * 64}
OPERATION = "/v1/runs/{run_id}/operations/{op}"


def _resolve(client: Client, run: Json) -> httpx.Response:
    seen = client.get(f"/v1/starts/{run['key']}").json()["seen"]
    resolution = {"decision": "executed", "seen": seen, "note": "seen in the ledger"}
    return client.as_("operator").post(_start(run, "resolve"), resolution)


# One row a route: its class, and a request that would succeed if it were admitted (`run` is a
# run that its caller owns, with the token of its operation `step`, and `unbegun` another one, of
# which nothing is recorded; a receipt is asked about where no key is set, which no fence decides).
MATRIX: dict[tuple[str, str], tuple[str, Callable[[Client, Json], httpx.Response]]] = {
    ("POST", "/v1/starts"): (NEW, lambda client, run: client.start(new_key())),
    ("GET", "/v1/starts/{key}"): (ALWAYS, _get("/v1/starts/{key}")),
    ("POST", "/v1/starts/{key}/release"): (
        ALWAYS,
        lambda client, run: client.post(
            _start(run["unbegun"], "release"), {"owner": run["unbegun"]["owner"]}
        ),
    ),
    ("POST", "/v1/starts/{key}/resolve"): (ALWAYS, _resolve),
    ("GET", "/v1/runs"): (ALWAYS, _get("/v1/runs")),
    ("GET", "/v1/runs/{run_id}"): (ALWAYS, _get("/v1/runs/{run_id}")),
    ("GET", "/v1/runs/{run_id}/ownership"): (ALWAYS, _get("/v1/runs/{run_id}/ownership")),
    ("GET", "/v1/runs/{run_id}/lineage"): (ALWAYS, _get("/v1/runs/{run_id}/lineage")),
    ("GET", "/v1/runs/{run_id}/latest"): (ALWAYS, _get("/v1/runs/{run_id}/latest")),
    ("GET", "/v1/runs/{run_id}/events"): (ALWAYS, _get("/v1/runs/{run_id}/events")),
    ("POST", "/v1/runs/{run_id}/events"): (EXISTING, _run_path("events", type="noted")),
    ("POST", "/v1/runs/{run_id}/bind-change"): (EXISTING, _run_path("bind-change", change="c")),
    ("POST", "/v1/runs/{run_id}/receipts/verify"): (
        ALWAYS,
        lambda client, run: client.post(f"/v1/runs/{run['run_id']}/receipts/verify", RECEIPT),
    ),
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
    ("POST", f"{OPERATION}/conclude"): (EXISTING, _step("conclude", outcome=1)),
    ("POST", f"{OPERATION}/interrupt"): (EXISTING, _step("interrupt")),
    ("GET", OPERATION): (ALWAYS, _get("/v1/runs/{run_id}/operations/step")),
    ("GET", "/v1/fence"): (ALWAYS, _get("/v1/fence")),
    ("POST", "/v1/fence/transitions"): (
        ALWAYS,
        _operate("/v1/fence/transitions", {"expected": "open", "next": "draining"}),
    ),
    ("GET", "/v1/whoami"): (ALWAYS, _get("/v1/whoami")),
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
    ("GET", "/v1/transfer"): (
        ALWAYS,
        lambda client, run: client.as_("operator").get("/v1/transfer"),
    ),
    ("GET", "/v1/transfer/{table}"): (
        ALWAYS,
        lambda client, run: client.as_("operator").get("/v1/transfer/runs"),
    ),
    ("GET", "/metrics"): (ALWAYS, lambda client, run: client.as_("operator").get("/metrics")),
    ("GET", "/v1/health"): (ALWAYS, _get("/v1/health?deep=1")),
    ("GET", "/docs/errors"): (ALWAYS, _get("/docs/errors")),
    ("GET", "/openapi.json"): (ALWAYS, _get("/openapi.json")),
    ("GET", "/docs"): (ALWAYS, _get("/docs")),
}


def is_unsigned(answer: httpx.Response) -> bool:
    """Whether it is about a receipt, of which this deployment, without a key, knows none."""
    return answer.status_code == 503 and answer.json()["code"] == "RECEIPTS_UNCONFIGURED"


def test_the_matrix_has_a_row_for_every_route() -> None:
    asked = {(r.method, r.pattern) for r in routes.ROUTES if not r.of_a_move}
    assert set(MATRIX) == asked  # the others: test_transfer.py


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("route", MATRIX, ids=" ".join)
def test_each_state_admits_each_route_as_the_matrix_says(
    client: Client, sql: Sql, route: tuple[str, str], state: str
) -> None:
    work, send = MATRIX[route]
    run = client.started()
    run["token"] = client.operation(run, "acquire", ttl_ms=60_000).json()["lease"]["token"]
    run["unbegun"] = client.started()
    sql.fence(state, proof_key="proof" if state == "proof-only" else None)
    before = sql.dump()
    answer = send(client, run)
    if state in ADMITTED[work]:
        assert is_unsigned(answer) or answer.status_code in (200, 201, 409), answer.text
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


# --- While it moves ----------------------------------------------------------------------

ROUNDS = 200


@pytest.mark.anyio
async def test_no_start_is_ever_admitted_by_a_state_that_forbids_it(
    bridge: dict[str, str], sql: Sql
) -> None:
    sql("DELETE FROM fencepost_audit")
    sql.fence("open", revision=0)
    operator = {"Authorization": "Bearer operator"}
    async with connect_async(bridge["url"]) as http:

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
