"""Who may do what: tokens, scopes, other people's things, and what is not there."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from fencepost.http import routes
from fencepost.http.exchange import Route
from helpers import Client, Json, Sql, a_start, acquired, an_owner, new_key
from mutations import ROWS
from refusals import (
    AGENT,
    OWNER,
    RUN_NOT_FOUND,
    SCOPE_MISSING,
    START_NOT_FOUND,
    UNAUTHORIZED,
    Refusals,
    check,
)
from worlds import World

# --- Tokens --------------------------------------------------------------------------------

GUARDED = [route for route in routes.ROUTES if route.scopes]
BAD_AUTHORIZATIONS: list[dict[str, str]] = [
    {"Authorization": header}
    for header in [
        "",
        "alice",
        "Bearer",
        "Basic YWxpY2U6",
        "Bearer:alice",
        "Bearer nobody",
        "Bearer ALICE",
        "Bearer alice bob",
        "Bearer alice, Bearer bob",
        "Bearer " + "a" * 257,
        "Bearer " + "a" * 7000,
        "Token alice",
    ]
]


def path_of(route: Route[Any], run: Json) -> str:
    path = route.pattern.replace("{key}", run["key"]).replace("{run_id}", run["run_id"])
    return path.replace("{op}", "step")


def name_of(route: Route[Any]) -> str:
    return f"{route.method} {route.pattern}"


@pytest.mark.parametrize("route", GUARDED, ids=name_of)
def test_without_a_known_token_no_route_does_anything(
    client: Client, sql: Sql, run: Json, route: Route[Any]
) -> None:
    before = sql.dump()
    body = {"owner": run["owner"], "to": "completed"}
    for headers in [{}, *BAD_AUTHORIZATIONS]:
        answer = client.http.request(
            route.method,
            path_of(route, run),
            headers={"Idempotency-Key": new_key(), **headers},
            content=json.dumps(a_start() if route.pattern == "/v1/starts" else body),
        )
        check(answer.status_code, answer.headers, answer.text, UNAUTHORIZED)
        assert answer.headers["WWW-Authenticate"].startswith("Bearer")
    assert sql.dump() == before


@pytest.mark.parametrize("route", GUARDED, ids=name_of)
def test_a_token_without_the_scope_does_nothing_either(
    client: Client, sql: Sql, run: Json, route: Route[Any]
) -> None:
    without = [
        name
        for name, (_, _, scopes) in Client.PEOPLE.items()
        if not set(scopes) & set(route.scopes)
    ]
    assert without or route.pattern == "/v1/whoami"  # which takes any token
    for name in without:
        problem = Refusals(client.as_(name), sql)(
            route.method,
            path_of(route, run),
            SCOPE_MISSING,
            content=json.dumps({"owner": run["owner"]}),
            headers={"Idempotency-Key": new_key()},
        )
        assert route.scopes[0] in problem["detail"]


def test_a_token_is_looked_at_before_anything_else(client: Client, sql: Sql) -> None:
    nobody = Refusals(client.as_("nobody"), sql)
    nobody.post("/v1/starts", b"not JSON", UNAUTHORIZED)
    nobody("GET", "/v1/runs/no-such-run?wait=x", UNAUTHORIZED)


def test_health_needs_no_token_unless_it_is_deep(client: Client, sql: Sql) -> None:
    assert client.http.get("/v1/health").status_code == 200
    for token, expected in (("nobody", UNAUTHORIZED), ("starter", SCOPE_MISSING)):
        Refusals(client.as_(token), sql)("GET", "/v1/health?deep=1", expected)


# --- Other people's and unknown things -----------------------------------------------------


@pytest.mark.parametrize("verb", ["", "/own", "/heartbeat", "/transition"])
@pytest.mark.parametrize("state", ["running", "lapsed", "ended"])
def test_the_run_of_another_principal_is_as_if_it_were_not_there(
    client: Client, sql: Sql, run: Json, verb: str, state: str
) -> None:
    if state == "lapsed":
        sql.lapse(run["run_id"])
    if state == "ended":
        client.finish(run).raise_for_status()
    evidence = {"kind": "lease-expired", "expected_owner": run["owner"]}
    body = {
        "": {},
        "/own": {"owner": an_owner(), "evidence": evidence},
        "/heartbeat": {"owner": run["owner"]},
        "/transition": {"owner": run["owner"], "to": "failed"},
    }[verb]
    method = "POST" if verb else "GET"
    bob = Refusals(client.as_("bob"), sql)
    options = {"content": json.dumps(body)} if verb else {}
    theirs = bob(method, f"/v1/runs/{run['run_id']}{verb}", RUN_NOT_FOUND, **options)
    nothing = bob(method, f"/v1/runs/{new_key('run')}{verb}", RUN_NOT_FOUND, **options)
    assert theirs == nothing


def test_the_starts_of_another_principal_are_not_there_and_not_in_lists(
    client: Client, sql: Sql, run: Json
) -> None:
    bob = Refusals(client.as_("bob"), sql)
    theirs = bob("GET", f"/v1/starts/{run['key']}", START_NOT_FOUND)
    assert theirs == bob("GET", f"/v1/starts/{new_key()}", START_NOT_FOUND)
    bob.post(f"/v1/starts/{run['key']}/release", {"owner": run["owner"]}, START_NOT_FOUND)
    for query in ("", "?status=running"):
        assert run["run_id"] not in client.as_("bob").get(f"/v1/runs{query}").text


def test_a_foreign_key_tells_nothing_but_that_it_is_foreign(
    client: Client, sql: Sql, run: Json
) -> None:
    bob = Refusals(client.as_("bob"), sql)
    for body in (a_start(), a_start(input=None), a_start(target=AGENT)):
        problem = bob.post(
            "/v1/starts",
            body,
            (403, "START_OWNER_MISMATCH", "new-key"),
            headers={"Idempotency-Key": run["key"]},
        )
        assert set(problem) == {"type", "title", "status", "detail", "code", "retry"}
        assert run["run_id"] not in json.dumps(problem)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"target": AGENT}, "START_TARGET_MISMATCH"),
        ({"target": {"kind": "workflow", "id": "refund"}}, "START_TARGET_MISMATCH"),
        ({"target": AGENT, "input": 1}, "START_TARGET_MISMATCH"),
        ({"input": {"cents": "500"}}, "START_INPUT_MISMATCH"),
        ({"input": None}, "START_INPUT_MISMATCH"),
        ({"lineage": {"id": "l", "round": 0}}, "START_INPUT_MISMATCH"),
    ],
    ids=lambda value: json.dumps(value) if isinstance(value, dict) else "",
)
def test_a_key_used_for_something_else_leaves_the_first_run_unharmed(
    refused: Refusals, run: Json, change: Json, code: str
) -> None:
    headers = {"Idempotency-Key": run["key"]}
    refused.post("/v1/starts", a_start(**change), (422, code, "new-key"), headers=headers)


UNKNOWN_IDS = [
    "run_0",
    "x" * 1000,
    "%2e",
    "a%2Fb",
    "%00",
    "run%00",
    "%FF",
    "%ED%A0%80",
    "%E2%82%AC",
    "'%20OR%201=1--",
]


@pytest.mark.parametrize("id", UNKNOWN_IDS, ids=lambda text: text[:20])
def test_an_unknown_run_or_key_is_not_found(refused: Refusals, id: str) -> None:
    refused("GET", f"/v1/runs/{id}", RUN_NOT_FOUND)
    for verb in ("own", "heartbeat", "transition"):
        more = {"to": "completed"} if verb == "transition" else {}
        refused.post(f"/v1/runs/{id}/{verb}", {"owner": OWNER, **more}, RUN_NOT_FOUND)
    refused("GET", f"/v1/starts/{id}", START_NOT_FOUND)
    refused.post(f"/v1/starts/{id}/release", {"owner": OWNER}, START_NOT_FOUND)


@pytest.mark.parametrize(
    "path",
    ["/", "/v1", "/v1/", "/v1/start", "/v1/runs/a/b/c", "/v2/starts", "/V1/starts", "//v1/starts"],
)
def test_an_unknown_path_is_not_found(refused: Refusals, path: str) -> None:
    url = str(refused.client.http.base_url).rstrip("/") + path
    refused("GET", url, (404, "NOT_FOUND", "never"))


@pytest.mark.parametrize(
    ("method", "path", "allow"),
    [
        ("GET", "/v1/starts", "POST"),
        ("PUT", "/v1/starts", "POST"),
        ("DELETE", "/v1/starts/some-key", "GET"),
        ("POST", "/v1/runs", "GET"),
        ("PATCH", "/v1/runs/run_0", "GET"),
        ("GET", "/v1/runs/run_0/heartbeat", "POST"),
        ("DELETE", "/v1/fence", "GET"),
        ("OPTIONS", "/v1/health", "GET"),
    ],
)
def test_a_known_path_says_which_methods_it_takes(
    refused: Refusals, client: Client, method: str, path: str, allow: str
) -> None:
    problem = refused(method, path, (405, "METHOD_NOT_ALLOWED", "never"))
    assert allow in problem["detail"]
    # RFC 9110, 15.5.6: a 405 has an Allow header.
    assert allow in client.request(method, path).headers["Allow"].split(", ")


# --- Content, by route and scope -----------------------------------------------------------

ONE_SCOPE = {"starter": "start", "worker": "work", "reader": "read", "overseer": "operate"}
# Who sees the state of the run in the answer to a request that won, of those who have one scope:
# `read`, a start, and the owner whose verb won, but not who only claims. Every other route shows
# no run, or one without its state.
_OWNERS = "own activate heartbeat reconfirm transition events bind-change bindings"
SEES: dict[str, set[str]] = {
    "POST /v1/starts": {"start"},
    "GET /v1/runs/{run_id}": {"read"},
    "GET /v1/runs/{run_id}/latest": {"read"},
    "POST /v1/starts/{key}/release": {"start"},
    "POST /v1/runs/{run_id}/acknowledge-cancel": {"work"},
    **{f"POST /v1/runs/{{run_id}}/{verb}": {"work"} for verb in _OWNERS.split()},
}


def answered(client: Client, sql: Sql, route: Route[Any], token: str) -> httpx.Response:
    """A request to the route that would win, for a run whose state is a secret."""
    secret = "UPDATE fencepost_snapshots SET state = '\"s-3-cr-3-t\"'"  # noqa: S105
    row = ROWS.get(route.pattern)
    if row is None or route.method == "GET":
        run = client.started()
        acquired(client, run, "step")
        sql(secret)
        path = route.pattern.format(op="step", category="runs", table="audit", **run)
        if route.method == "GET":
            return client.as_(token).get(path)
        lease = client.get(path.removesuffix("/assert")).json()["lease"]["token"]
        return client.as_(token).post(path, {"owner": run["owner"], "token": lease})
    world = World(As(client.http, "alice", client.check), sql, row)
    sql(secret)
    client = As(client.http, token, client.check, actor=token)
    headers = {"Idempotency-Key": world.run["key"]} if route.pattern == "/v1/starts" else {}
    return row.send(client, world.run, headers)


class As(Client):
    """Sends what others of `mutations` would send as this one, too, once `actor` is set."""

    def __init__(self, *given: Any, actor: str = "") -> None:
        super().__init__(*given)
        self.actor = actor

    def as_(self, token: str) -> Client:
        return self if self.actor else super().as_(token)


ADMITTED = [
    pytest.param(route, token, id=f"{name_of(route)} {token}")
    for route in GUARDED
    for token, scope in ONE_SCOPE.items()
    if scope in route.scopes  # the others are refused, whatever they ask
    and not route.of_a_move
    and "{table}" not in route.pattern  # whose pages are whole rows, for the operator of a move
    and "receipts" not in route.pattern  # which shows no run: test_receipts.py
]


@pytest.mark.parametrize(("route", "token"), ADMITTED)
def test_content_goes_out_to_whom_it_is_for(
    client: Client, sql: Sql, route: Route[Any], token: str
) -> None:
    answer = answered(client, sql, route, token)
    assert answer.status_code < 300, answer.text
    name = name_of(route)
    assert ("s-3-cr-3-t" in answer.text) == (ONE_SCOPE[token] in SEES.get(name, set()))
