"""What a stranger is told: a run or a key of another principal is as one that is not there."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fencepost.http import routes
from fencepost.http.exchange import Route
from helpers import Client, Json, Sql, acquired, an_owner, new_key, rows
from mutations import ROWS, WRITE_NOTHING

GUARDED = [
    route
    for route in routes.ROUTES
    if ("{run_id}" in route.pattern or "{key}" in route.pattern) and route.scopes != ("operate",)
]
CHILDREN = 40


def with_children(client: Client, run: Json, number: int) -> None:
    """A history, facts, steps and bindings: what must not be read for a stranger."""
    for n in range(number):
        client.verb(run, "events", type="note", payload={"n": n}).raise_for_status()
        acquired(client, run, f"step-{n}")
        binding = {"gate": "a", "revision": n + 1, "receipt_hash": f"{n:064}"}
        client.verb(run, "bindings", bindings=[binding]).raise_for_status()


class Stranger(Client):
    """Bob, whoever a row of `mutations` would be."""

    def as_(self, token: str) -> Client:
        return self


def ask(client: Client, route: Route[Any], run: Json) -> tuple[Any, Any]:
    """Everything that the answer says but the date, and the rows read and written."""
    if route.method == "GET":
        path = route.pattern.replace("{op}", "step-1")
        answer = client.get(path.format(**run))
    else:
        named = dict.fromkeys(("new", "new2", "named", "provisional", "seen"), run["key"])
        asked = {**run, **named, "token": "token"}
        who = {name: an_owner(name) for name in ("owner", "other", "third")}
        row = ROWS.get(route.pattern)
        send = WRITE_NOTHING[route.pattern] if row is None else row.send
        answer = send(client, {**asked, **who}, {"Idempotency-Key": "stranger"})
    headers = {k: v for k, v in answer.headers.items() if k not in ("date", "x-local-rows")}
    return (answer.status_code, headers, answer.text), rows(answer)


@pytest.mark.parametrize("route", GUARDED, ids=lambda route: f"{route.method} {route.pattern}")
def test_another_principals_run_is_answered_as_one_that_is_not_there(
    client: Client, sql: Sql, route: Route[Any]
) -> None:
    bare, large = client.started(), client.started()
    with_children(client, large, 3)
    children = ("events", "ownership", "operations", "bindings", "requests", "snapshots")
    delete = "DELETE FROM fencepost_{} WHERE run_id = ?1"
    sql.batch([(delete.format(table), (bare["run_id"],)) for table in children])
    sql.batch(
        [
            (
                "INSERT INTO fencepost_events SELECT run_id, sequence + 1000 * n, type, payload, "
                "prior_hash, hash, write_token, created_at_ms FROM fencepost_events, "
                "(SELECT value AS n FROM json_each(?1)) WHERE run_id = ?2",
                (json.dumps(list(range(1, CHILDREN))), large["run_id"]),
            ),
            (
                "INSERT INTO fencepost_ownership SELECT run_id, sequence + 1000 * n, type, "
                "owner_host_id, owner_pid, owner_nonce, generation, granted_at_ms, write_token, "
                "at_ms, principal_kind, principal_id FROM fencepost_ownership, "
                "(SELECT value AS n FROM json_each(?1)) WHERE run_id = ?2",
                (json.dumps(list(range(1, CHILDREN))), large["run_id"]),
            ),
        ]
    )
    stranger = Stranger(client.http, "bob", client.check, {"X-Local-Rows": "1"})
    nowhere = {**bare, "run_id": "run_nowhere", "key": new_key()}
    absent, few, many = (ask(stranger, route, run) for run in (nowhere, bare, large))
    (few, few_rows), (many, many_rows) = few, many
    assert absent[0][0] == 404
    assert few == many == absent[0]
    assert few_rows == many_rows  # no child was read
    assert many_rows[1] == 0


def test_rows_are_told_to_operators_alone(client: Client) -> None:
    run = client.started()
    path = f"/v1/runs/{run['run_id']}"
    assert "rows" not in client.get(path).headers["Server-Timing"]
    assert "rows" in client.as_("operator").get(path).headers["Server-Timing"]
