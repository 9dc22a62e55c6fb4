"""A lost reply never costs a second execution (contracts 2): every mutating route, every fault.

One table. A row says how to send a mutation once and what its effect in the database is; a
mutating route without a row fails the suite.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from conftest import ROOT
from fencepost import table
from helpers import Client, Json, Sql, a_start, an_owner, new_key

Send = Callable[[Client, Json, dict[str, str]], httpx.Response]


@dataclass(frozen=True)
class Row:
    """`reads_first`: D1 batches that only read before the one that writes.

    `again`: the status of the same request sent again after it had its effect.
    """

    send: Send
    prepare: Callable[[Client, Sql, Json], None] = lambda client, sql, run: None
    reads_first: int = 0
    won: int = 200
    again: int = 200


def verb(name: str, **members: Any) -> Send:
    return lambda client, run, headers: client.post(
        f"/v1/runs/{run['run_id']}/{name}", {"owner": run["owner"], **members}, headers=headers
    )


def by(owner: str, name: str, **members: Any) -> Send:
    """A verb by another owner, kept in the run."""
    return lambda client, run, headers: client.post(
        f"/v1/runs/{run['run_id']}/{name}", {"owner": run[owner], **members}, headers=headers
    )


def about(name: str, whom: str) -> Send:
    """A verb with evidence about an owner kept in the run."""
    return lambda client, run, headers: client.post(
        f"/v1/runs/{run['run_id']}/{name}",
        {"owner": run["other"], "evidence": {"kind": "lease-expired", "expected_owner": run[whom]}},
        headers=headers,
    )


def start(client: Client, run: Json, headers: dict[str, str]) -> httpx.Response:
    body = a_start(owner=run["owner"])
    return client.post("/v1/starts", body, headers={"Idempotency-Key": run["new"], **headers})


def start_verb(name: str, token: str = "alice", **members: Any) -> Send:  # noqa: S107
    def send(client: Client, run: Json, headers: dict[str, str]) -> httpx.Response:
        body = members or {"owner": run["owner"]}
        path = f"/v1/starts/{run['key']}/{name}"
        return client.as_(token).post(path, body, headers=headers)

    return send


def bind_change(client: Client, run: Json, headers: dict[str, str]) -> httpx.Response:
    return verb("bind-change", change=run["new"])(client, run, headers)


def operation(name: str, **members: Any) -> Send:
    """A verb on the operation `step`, with the token of its lease if there is one."""

    def send(client: Client, run: Json, headers: dict[str, str]) -> httpx.Response:
        body = {"owner": run["owner"], **members}
        if name != "acquire":
            body["token"] = run["token"]
        path = f"/v1/runs/{run['run_id']}/operations/step/{name}"
        return client.post(path, body, headers=headers)

    return send


def leased(client: Client, sql: Sql, run: Json) -> None:
    acquired = operation("acquire", ttl_ms=60_000)(client, run, {})
    run["token"] = acquired.json()["lease"]["token"]


def operate(path: str, key: bool = False, **body: Any) -> Send:
    def send(client: Client, run: Json, headers: dict[str, str]) -> httpx.Response:
        keyed = {"Idempotency-Key": run["new"], **headers} if key else headers
        return client.as_("operator").post(path.format(**run), body, headers=keyed)

    return send


def suspended(client: Client, sql: Sql, run: Json) -> None:
    client.finish(run, "suspended").raise_for_status()


def claimed(client: Client, sql: Sql, run: Json) -> None:
    suspended(client, sql, run)
    client.post(f"/v1/runs/{run['run_id']}/claim", {"owner": run["owner"]}).raise_for_status()


def old_claim(client: Client, sql: Sql, run: Json) -> None:
    claimed(client, sql, run)
    sql("UPDATE fencepost_runs SET claimed_at_ms = 5 WHERE run_id = ?1", run["run_id"])


def lapsed(client: Client, sql: Sql, run: Json) -> None:
    sql.lapse(run["run_id"])


def cancel_requested(client: Client, sql: Sql, run: Json) -> None:
    client.post(f"/v1/runs/{run['run_id']}/cancel", {}).raise_for_status()


def old(client: Client, sql: Sql, run: Json) -> None:
    sql("DELETE FROM fencepost_runs WHERE finished_at_ms IS NOT NULL")
    client.finish(run).raise_for_status()
    sql("UPDATE fencepost_runs SET finished_at_ms = 5 WHERE run_id = ?1", run["run_id"])


def design(client: Client, sql: Sql, run: Json) -> None:
    subject = {"stage": "design", "provisional": new_key("p").lower()}
    key = new_key()
    body = a_start(owner=run["owner"], subject=subject)
    run |= {**client.start(key, body).json()["run"], "key": key}


RESOLUTION = {"decision": "executed", "attempt": 1, "note": "n", "result": 1}

ROWS: dict[str, Row] = {
    "/v1/starts": Row(start, won=201),
    "/v1/starts/{key}/release": Row(start_verb("release"), reads_first=1, again=409),
    "/v1/starts/{key}/resolve": Row(
        start_verb("resolve", "operator", **RESOLUTION), lapsed, reads_first=1, again=409
    ),
    "/v1/runs/{run_id}/claim": Row(verb("claim"), suspended, again=409),
    "/v1/runs/{run_id}/activate": Row(verb("activate"), claimed, again=409),
    "/v1/runs/{run_id}/own": Row(verb("own"), suspended, again=409),
    "/v1/runs/{run_id}/heartbeat": Row(verb("heartbeat")),
    "/v1/runs/{run_id}/reconfirm": Row(verb("reconfirm")),
    "/v1/runs/{run_id}/steal": Row(about("steal", "owner"), lapsed, again=409),
    "/v1/runs/{run_id}/abandon": Row(verb("abandon"), claimed, again=409),
    "/v1/runs/{run_id}/recover": Row(about("recover", "owner"), old_claim, again=409),
    "/v1/runs/{run_id}/transition": Row(
        verb("transition", to="completed", result=1), reads_first=1, again=409
    ),
    "/v1/runs/{run_id}/events": Row(verb("events", type="noted", payload=1), reads_first=1),
    "/v1/runs/{run_id}/bind-change": Row(bind_change, design, reads_first=1),
    "/v1/runs/{run_id}/bindings": Row(
        verb("bindings", bindings=[{"gate": "a", "revision": 1, "receipt_hash": "a" * 64}]),
        reads_first=1,
    ),
    "/v1/runs/{run_id}/cancel": Row(operate("/v1/runs/{run_id}/cancel"), again=409),
    "/v1/runs/{run_id}/acknowledge-cancel": Row(
        verb("acknowledge-cancel"), cancel_requested, again=409
    ),
    "/v1/runs/{run_id}/lineage/cancel": Row(operate("/v1/runs/{run_id}/lineage/cancel"), again=409),
    "/v1/runs/{run_id}/operations/{op}/acquire": Row(operation("acquire", ttl_ms=60_000)),
    "/v1/runs/{run_id}/operations/{op}/renew": Row(operation("renew", ttl_ms=90_000), leased),
    "/v1/runs/{run_id}/operations/{op}/commit": Row(operation("commit", outcome=1), leased),
    "/v1/runs/{run_id}/operations/{op}/interrupt": Row(
        operation("interrupt"), leased, reads_first=1, again=409
    ),
    "/v1/fence/transitions": Row(
        operate("/v1/fence/transitions", key=True, expected="open", next="draining")
    ),
    "/v1/retention/purge": Row(operate("/v1/retention/purge", limit=1), old, reads_first=1),
}

# What each fault, from the write on, comes to: (branch, whether the answer says it won).
FAULTS = {
    "lost": ("landed", True),
    "drop": ("again", True),
    "lost,lost": ("unreadable", False),
    "lost,drop": ("unreadable", False),
    "drop,drop": ("unreadable", False),
    "lost,pass,drop": ("landed", True),
    "drop,pass,lost": ("unreadable", False),
    "drop,pass,drop": ("unreadable", False),
}
# Faults whose first batch, or the one issued again, reached the database.
HAS_EFFECT = {"lost", "drop", "lost,lost", "lost,drop", "lost,pass,drop", "drop,pass,lost"}


def test_every_mutating_route_has_a_row() -> None:
    mutating = {route.pattern for route in table.ROUTES if route.method == "POST"}
    assert set(ROWS) == mutating - {"/v1/runs/{run_id}/operations/{op}/assert"}


def test_no_mutation_talks_to_d1_around_the_protocol() -> None:
    for path in (ROOT / "src/fencepost").glob("*.py"):
        if path.name in ("d1.py", "commit.py", "schema_guard.py"):
            continue
        assert not re.search(r"\.batch(_unguarded)?\(", path.read_text()), path.name


def branch(answer: httpx.Response) -> str | None:
    found = re.search(r'commit;desc="(\w+)"', answer.headers["Server-Timing"])
    return found and found[1]


def effects(sql: Sql, run: Json) -> Json:
    """What a run and its key have had done to them: counts, and the state they are in."""
    [counts] = sql(
        "SELECT (SELECT COUNT(*) FROM fencepost_runs WHERE run_id = ?1) AS runs, "
        "(SELECT COUNT(*) FROM fencepost_events WHERE run_id = ?1) AS events, "
        "(SELECT COUNT(*) FROM fencepost_ownership WHERE run_id = ?1) AS facts, "
        "(SELECT COUNT(*) FROM fencepost_audit) AS audited, "
        "(SELECT COUNT(*) FROM fencepost_reservations WHERE key = ?2) AS started",
        run["run_id"],
        run["new"],
    )
    state = sql(
        "SELECT status, generation, cancel_requested_at_ms IS NULL AS uncancelled "
        "FROM fencepost_runs WHERE run_id = ?1",
        run["run_id"],
    )
    fence = sql("SELECT state, revision FROM fencepost_fence")
    return {**counts, "state": state, "fence": fence}


def prepared(client: Client, sql: Sql, row: Row) -> Json:
    sql("DELETE FROM fencepost_fence")
    run = client.started()
    run |= {"new": new_key("new"), "other": an_owner()}
    row.prepare(client, sql, run)
    return run


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("route", ROWS)
def test_a_lost_reply_has_one_effect_or_none_and_the_same_request_converges(
    client: Client, sql: Sql, route: str, fault: str
) -> None:
    row = ROWS[route]
    expected_branch, wins = FAULTS[fault]
    # What it comes to undisturbed.
    model = prepared(client, sql, row)
    assert row.send(client, model, {}).status_code == row.won
    undisturbed = effects(sql, model)

    sql("DELETE FROM fencepost_audit")
    run = prepared(client, sql, row)
    untouched = effects(sql, run)
    sql_audit_before = untouched["audited"]
    header = {"X-Local-Fault": ",".join(["pass"] * row.reads_first + [fault])}
    answer = row.send(client, run, header)
    after = effects(sql, run)
    again = {"reissued", "reinserted"}
    if expected_branch == "again":
        assert branch(answer) in again
    else:
        assert branch(answer) == expected_branch
    if wins:
        assert answer.status_code == row.won, answer.text
    else:
        problem = answer.json()
        assert (answer.status_code, problem["code"]) == (503, "WRITE_OUTCOME_UNKNOWN")
        assert problem["retry"] == "same-key"
    for name in ("runs", "events", "facts", "started", "state"):
        expected = undisturbed if fault in HAS_EFFECT else untouched
        assert after[name] == expected[name], name
    assert after["audited"] - sql_audit_before <= 1

    retry = row.send(client, run, {})
    had_effect = fault in HAS_EFFECT
    if route == "/v1/starts":
        assert retry.status_code == (200 if had_effect else 201)
        assert retry.json()["outcome"] == "started"
    elif route != "/v1/retention/purge":
        assert retry.status_code == (row.again if had_effect else row.won), retry.text
    if route != "/v1/runs/{run_id}/events":
        final = effects(sql, run)
        assert {n: final[n] for n in ("runs", "events", "facts", "state")} == {
            n: undisturbed[n] for n in ("runs", "events", "facts", "state")
        }


def test_an_undisturbed_write_takes_no_branch(client: Client) -> None:
    assert branch(client.start(new_key())) is None
