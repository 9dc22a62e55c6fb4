"""One row a mutating route: how to send it once, and who writes against it.

`test_lost_replies.py` sends each of them under every fault, alone and with its rivals.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import httpx

from helpers import Client, Json, Sql, a_start, new_key

Send = Callable[[Client, Json, dict[str, str]], httpx.Response]


@dataclass(frozen=True)
class Row:
    """`send` is the mutation, `rival` somebody's write against it, or the owner's own other one.

    `reads_first`: D1 batches that only read before the one that writes. `again`: the status of
    the same request sent again after it had its effect. `covered`: what the rival writes leaves
    no trace of the mutation, so that its receipt is gone. `decided`: the rows, as the rival left
    them, show that the mutation can only lose, so that it is not issued again; then `goes_on`: it
    is made anew from there, and succeeds; `asks_why`: it reads once more, to say why it lost.
    `beaten`: it loses to the rival, and the request succeeds all the same, by what the rival did.
    `overtaker`: somebody's write that ends what the mutation granted; it comes to nothing before.
    """

    send: Send
    rival: Send
    prepare: Callable[[Client, Sql, Json], None] = lambda client, sql, run: None
    reads_first: int = 0
    won: int = 200
    again: int = 200
    covered: bool = False
    decided: bool = False
    goes_on: bool = False
    asks_why: bool = False
    beaten: bool = False
    overtaker: Send | None = None


def verb(name: str, **members: Any) -> Send:
    return lambda client, run, headers: client.post(
        f"/v1/runs/{run['run_id']}/{name}", {"owner": run["owner"], **members}, headers=headers
    )


def by(owner: str, name: str, **members: Any) -> Send:
    """A verb by another owner, kept in the run."""
    return lambda client, run, headers: client.post(
        f"/v1/runs/{run['run_id']}/{name}", {"owner": run[owner], **members}, headers=headers
    )


def about(name: str, whom: str, who: str = "other") -> Send:
    """A verb with evidence about an owner kept in the run."""
    return lambda client, run, headers: client.post(
        f"/v1/runs/{run['run_id']}/{name}",
        {"owner": run[who], "evidence": {"kind": "lease-expired", "expected_owner": run[whom]}},
        headers=headers,
    )


def at_head(name: str, **members: Any) -> Send:
    """A verb that expects the history to end where the start left it."""
    return lambda client, run, headers: client.post(
        f"/v1/runs/{run['run_id']}/{name}",
        {"owner": run["owner"], "expected_head": run["head"], **members},
        headers=headers,
    )


def start(who: str) -> Send:
    return lambda client, run, headers: client.post(
        "/v1/starts", a_start(owner=run[who]), headers={"Idempotency-Key": run["new"], **headers}
    )


def start_verb(name: str, token: str = "alice", **members: Any) -> Send:  # noqa: S107
    def send(client: Client, run: Json, headers: dict[str, str]) -> httpx.Response:
        body = {**members, "seen": run["seen"]} if members else {"owner": run["owner"]}
        path = f"/v1/starts/{run['key']}/{name}"
        return client.as_(token).post(path, body, headers=headers)

    return send


def bind_change(name: str) -> Send:
    return lambda client, run, headers: verb("bind-change", change=run[name])(client, run, headers)


def bindings(digit: str) -> Send:
    bound = {"gate": "a", "revision": 1, "receipt_hash": digit * 64}
    return verb("bindings", bindings=[bound])


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


def leased_and_lapsed(client: Client, sql: Sql, run: Json) -> None:
    leased(client, sql, run)
    sql("UPDATE fencepost_operations SET lease_expires_at_ms = 5 WHERE run_id = ?1", run["run_id"])


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


def looked(client: Client, sql: Sql, run: Json) -> None:
    lapsed(client, sql, run)
    run["seen"] = client.get(f"/v1/starts/{run['key']}").json()["seen"]


def cancel_requested(client: Client, sql: Sql, run: Json) -> None:
    client.post(f"/v1/runs/{run['run_id']}/cancel", {}).raise_for_status()


def old(client: Client, sql: Sql, run: Json) -> None:
    sql("DELETE FROM fencepost_runs WHERE finished_at_ms IS NOT NULL")
    sql("DELETE FROM fencepost_reservations WHERE state = 'terminal'")
    client.finish(run).raise_for_status()
    sql("UPDATE fencepost_runs SET finished_at_ms = 5 WHERE run_id = ?1", run["run_id"])


def design(client: Client, sql: Sql, run: Json) -> None:
    subject = {"stage": "design", "provisional": run["provisional"]}
    key = new_key()
    body = a_start(owner=run["owner"], subject=subject)
    run |= {**client.start(key, body).json()["run"], "key": key}


RESOLUTION = {"decision": "executed", "note": "n", "result": 1}

COMPLETE = verb("transition", to="completed", result=1)
SUSPEND = verb("transition", to="suspended")
CANCEL = operate("/v1/runs/{run_id}/cancel")
LOCK = operate("/v1/fence/transitions", expected="open", next="migration-locked")

ROWS: dict[str, Row] = {
    "/v1/starts": Row(start("owner"), start("other"), won=201, decided=True),
    "/v1/starts/{key}/release": Row(
        start_verb("release"), COMPLETE, reads_first=1, again=409, decided=True
    ),
    "/v1/starts/{key}/resolve": Row(
        start_verb("resolve", "operator", **RESOLUTION),
        start_verb("resolve", "operator", **{**RESOLUTION, "note": "rival", "result": 2}),
        looked,
        reads_first=1,
        again=409,
        decided=True,
    ),
    "/v1/runs/{run_id}/claim": Row(
        verb("claim"), by("other", "claim"), suspended, again=409, overtaker=verb("abandon")
    ),
    "/v1/runs/{run_id}/activate": Row(verb("activate"), CANCEL, claimed, overtaker=SUSPEND),
    "/v1/runs/{run_id}/own": Row(verb("own"), by("other", "own"), suspended, overtaker=SUSPEND),
    "/v1/runs/{run_id}/heartbeat": Row(verb("heartbeat"), COMPLETE, covered=True, decided=True),
    "/v1/runs/{run_id}/reconfirm": Row(verb("reconfirm"), COMPLETE, covered=True, decided=True),
    "/v1/runs/{run_id}/steal": Row(
        about("steal", "owner"),
        about("steal", "owner", "third"),
        lapsed,
        again=409,
        overtaker=by("other", "abandon"),
    ),
    "/v1/runs/{run_id}/abandon": Row(
        verb("abandon"), verb("activate"), claimed, again=409, decided=True
    ),
    "/v1/runs/{run_id}/recover": Row(
        about("recover", "owner"),
        about("recover", "owner", "third"),
        old_claim,
        again=409,
        decided=True,
    ),
    "/v1/runs/{run_id}/transition": Row(
        COMPLETE, verb("transition", to="failed", result=2), reads_first=1, decided=True
    ),
    "/v1/runs/{run_id}/transition that expects a head": Row(
        at_head("transition", to="suspended"), verb("events", type="rival"), again=409, decided=True
    ),
    "/v1/runs/{run_id}/events": Row(
        verb("events", type="noted", payload=1),
        verb("events", type="rival"),
        reads_first=1,
        decided=True,
        goes_on=True,
    ),
    # The very same event at the very same head: told apart by the attempt, not by the hash.
    "/v1/runs/{run_id}/events that expect a head": Row(
        at_head("events", type="noted"), at_head("events", type="noted"), again=409, decided=True
    ),
    "/v1/runs/{run_id}/bind-change": Row(
        bind_change("new"), bind_change("new2"), design, reads_first=1, decided=True, asks_why=True
    ),
    "/v1/runs/{run_id}/bindings": Row(bindings("a"), bindings("b"), reads_first=1),
    "/v1/runs/{run_id}/cancel": Row(CANCEL, CANCEL, again=409, decided=True),
    "/v1/runs/{run_id}/acknowledge-cancel": Row(
        verb("acknowledge-cancel"), COMPLETE, cancel_requested, decided=True
    ),
    "/v1/runs/{run_id}/lineage/cancel": Row(
        operate("/v1/runs/{run_id}/lineage/cancel"), CANCEL, again=409
    ),
    "/v1/runs/{run_id}/operations/{op}/acquire": Row(
        operation("acquire", ttl_ms=60_000),
        operation("acquire", ttl_ms=70_000, exclusive=True),
        decided=True,
        beaten=True,
    ),
    "/v1/runs/{run_id}/operations/{op}/renew": Row(
        operation("renew", ttl_ms=90_000),
        operation("commit", outcome=2),
        leased,
        covered=True,
        decided=True,
    ),
    "/v1/runs/{run_id}/operations/{op}/commit": Row(
        operation("commit", outcome=1), operation("commit", outcome=2), leased, decided=True
    ),
    "/v1/runs/{run_id}/operations/{op}/conclude": Row(
        operation("conclude", outcome=1),
        operation("conclude", outcome=2),
        leased_and_lapsed,
        decided=True,
    ),
    "/v1/runs/{run_id}/operations/{op}/interrupt": Row(
        operation("interrupt"),
        operation("commit", outcome=2),
        leased,
        reads_first=1,
        again=409,
        decided=True,
    ),
    "/v1/fence/transitions": Row(
        operate("/v1/fence/transitions", key=True, expected="open", next="draining"),
        operate("/v1/fence/transitions", expected="open", next="draining"),
    ),
    "/v1/retention/purge": Row(
        operate("/v1/retention/purge", limit=1),
        operate("/v1/retention/purge", limit=1),
        old,
        reads_first=1,
        beaten=True,
    ),
}


def _verify(client: Client, run: Json, headers: dict[str, str]) -> httpx.Response:
    path = f"/v1/runs/{run['run_id']}/receipts/verify"
    head = {"sequence": 1, "hash": "0" * 64, "receipt": "0" * 64}
    return client.post(path, head, headers=headers)


# POSTs that write nothing.
WRITE_NOTHING: dict[str, Send] = {
    "/v1/runs/{run_id}/operations/{op}/assert": operation("assert"),
    "/v1/runs/{run_id}/receipts/verify": _verify,
}

# Those that take an `Idempotency-Key` of their own: not a start, whose key is another thing; and
# not the renewals, which ignore it.
_UNKEYED = {
    "/v1/starts",
    "/v1/runs/{run_id}/heartbeat",
    "/v1/runs/{run_id}/reconfirm",
    "/v1/runs/{run_id}/operations/{op}/renew",
}
KEYED = {name: row for name, row in ROWS.items() if name not in _UNKEYED}


def rivals(name: str) -> dict[str, Send | None]:
    """Who writes in the window: nobody, the row's rival, an operator who locks the fence, or
    whoever ends what was granted.
    """
    row = ROWS[name]
    return {
        "nobody": None,
        "its rival": row.rival,
        "the fence": LOCK,
        "its overtaker": row.overtaker,
    }
