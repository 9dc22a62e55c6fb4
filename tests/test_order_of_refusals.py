"""Who may see the run, then the fence, then the rest: on every verb that the fence gates."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest

from helpers import Client, Json, Sql, an_owner
from test_fence_admission import EXISTING, MATRIX

GATED = [route for route, (work, _) in MATRIX.items() if work == EXISTING]
CLOSED = {"migration-locked": None, "proof-only": "proof"}

Send = Callable[[Client, Json], httpx.Response]


def _prepared(client: Client) -> Json:
    run = client.started(machine="delivery")
    run["token"] = client.operation(run, "acquire", ttl_ms=60_000).json()["lease"]["token"]
    return run


@pytest.mark.parametrize("whose", ["another principal's", "nobody's"])
def test_a_run_that_may_not_be_seen_is_404_whatever_the_fence(
    client: Client, sql: Sql, whose: str
) -> None:
    run = _prepared(client)
    asker = client.as_("bob") if whose == "another principal's" else client
    run["run_id"] = run["run_id"] if whose == "another principal's" else "run_absent"
    for state, proof_key in CLOSED.items():
        sql.fence(state, proof_key=proof_key)
        before = sql.dump()
        for route in GATED:
            answer = MATRIX[route][1](asker, run)
            assert (answer.status_code, answer.json()["code"]) == (404, "RUN_NOT_FOUND"), route
        assert sql.dump() == before


# --- Requests that lose ------------------------------------------------------------------


def verb(name: str, **members: Any) -> Send:
    return lambda client, run: client.verb(run, name, **members)


def stranger(name: str, **members: Any) -> Send:
    """By a process that holds nothing."""
    return lambda client, run: client.verb(run, name, owner=an_owner(), **members)


def about(name: str, kind: str) -> Send:
    """With evidence about the owner, which is not dead."""

    def send(client: Client, run: Json) -> httpx.Response:
        evidence = {"kind": kind, "expected_owner": run["owner"]}
        return client.verb(run, name, owner=an_owner(), evidence=evidence)

    return send


def step(name: str, **members: Any) -> Send:
    def send(client: Client, run: Json) -> httpx.Response:
        token = {} if name == "acquire" else {"token": run["token"]}
        return client.operation(run, name, **{**token, **members})

    return send


def stranger_step(name: str, **members: Any) -> Send:
    return lambda client, run: step(name, owner=an_owner(), **members)(client, run)


BINDING = {"gate": "a", "revision": 1, "receipt_hash": "0" * 64}
WRONG_HEAD = {"sequence": 99, "hash": "0" * 64}
WRONG = {"token": "tok_wrong"}
ABSENT: Json = {"operation": "absent"}

# For each route, requests of all kinds that it refuses even while the fence is open.
LOSING: dict[str, list[Send]] = {
    "events": [
        stranger("events", type="noted"),
        verb("events", type="noted", expected_head=WRONG_HEAD),
    ],
    "bind-change": [stranger("bind-change", change="c"), verb("bind-change", change="c")],
    "claim": [stranger("claim")],
    "activate": [stranger("activate"), stranger("activate", claimed_at_ms=5)],
    "own": [stranger("own"), about("own", "lease-expired"), about("own", "same-host-pid-dead")],
    "heartbeat": [stranger("heartbeat"), verb("heartbeat", generation=99)],
    "reconfirm": [stranger("reconfirm"), verb("reconfirm", generation=99)],
    "steal": [
        stranger("steal"),
        about("steal", "lease-expired"),
        about("steal", "cross-host-unreachable-stale"),
    ],
    "abandon": [stranger("abandon"), verb("abandon", claimed_at_ms=5)],
    "recover": [
        stranger("recover"),
        about("recover", "lease-expired"),
        about("recover", "cross-host-unreachable-stale"),
    ],
    "transition": [
        stranger("transition", to="completed"),
        verb("transition", to="failed", expected_head=WRONG_HEAD),
        verb("transition", to="failed", guard={"cancel_requested": "present"}),
        verb("transition", machine="applying"),
    ],
    "acknowledge-cancel": [stranger("acknowledge-cancel"), verb("acknowledge-cancel")],
    "bindings": [
        stranger("bindings", bindings=[BINDING]),
        verb("bindings", bindings=[BINDING], expected_head=WRONG_HEAD),
    ],
    "operations/{op}/acquire": [
        stranger_step("acquire", ttl_ms=1000),
        step("acquire", ttl_ms=1000, payload="other"),
        step("acquire", ttl_ms=1000, exclusive=True),
    ],
    "operations/{op}/renew": [
        stranger_step("renew", ttl_ms=1000),
        step("renew", ttl_ms=1000, **WRONG),
        step("renew", ttl_ms=1000, **ABSENT),
    ],
    "operations/{op}/assert": [stranger_step("assert"), step("assert", **WRONG)],
    "operations/{op}/commit": [
        stranger_step("commit", outcome=1),
        step("commit", outcome=1, **WRONG),
        step("commit", outcome=1, **ABSENT),
    ],
    "operations/{op}/conclude": [
        stranger_step("conclude", outcome=1),
        step("conclude", outcome=1),
        step("conclude", outcome=1, **ABSENT),
    ],
    "operations/{op}/interrupt": [
        stranger_step("interrupt"),
        step("interrupt", **WRONG),
        step("interrupt", **ABSENT),
    ],
}


def _route(name: str) -> tuple[str, str]:
    return ("POST", f"/v1/runs/{{run_id}}/{name}")


def test_every_gated_route_has_requests_that_lose() -> None:
    assert {_route(name) for name in LOSING} == set(GATED)


@pytest.mark.parametrize("name", LOSING)
def test_a_closed_fence_is_met_before_any_other_loss(client: Client, sql: Sql, name: str) -> None:
    live, ended, lapsed = _prepared(client), _prepared(client), _prepared(client)
    client.finish(ended, "cancelled").raise_for_status()
    sql(
        "UPDATE fencepost_operations SET lease_expires_at_ms = 5 WHERE run_id = ?1",
        lapsed["run_id"],
    )
    sends = [(live, send) for send in LOSING[name]]
    sends += [(ended, send) for send in LOSING[name]]
    if name in ("operations/{op}/renew", "operations/{op}/commit", "operations/{op}/interrupt"):
        sends.append((lapsed, MATRIX[_route(name)][1]))
    for state, proof_key in CLOSED.items():
        sql.fence(state, proof_key=proof_key)
        before = sql.dump()
        for number, (run, send) in enumerate(sends):
            problem = send(client, run).json()
            assert (problem["code"], problem.get("state")) == ("EXECUTION_FENCED", state), number
        assert sql.dump() == before
    sql.fence("open")
    for number, (run, send) in enumerate(sends):
        answer = send(client, run)
        assert answer.status_code in (404, 409), (number, answer.text)
        assert answer.json()["code"] != "RUN_NOT_FOUND", number
