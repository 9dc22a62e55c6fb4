"""The edge of the service: odd targets and headers, whom a token names, what its scopes show."""

from __future__ import annotations

import http.client
import json
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from helpers import Client, Json, Sql, a_start, an_owner, new_key

# --- Targets and headers -----------------------------------------------------------------


def raw(url: str, head: bytes) -> tuple[int, Json | None]:
    """The answer to the bytes of a request."""
    place = urlsplit(url)
    line = http.client.HTTPConnection(place.hostname or "", place.port, timeout=20)
    line.connect()
    assert line.sock
    line.sock.sendall(head)
    answer = http.client.HTTPResponse(line.sock)
    answer.begin()
    body = answer.read()
    line.close()
    try:
        return answer.status, json.loads(body)
    except ValueError:
        return answer.status, None


# Without those of which the runtime itself makes no URL: it answers 500 before the Worker is asked.
HOSTS = [b"u:p@a/v1/health?", b"a?b#c", b"a/b", b"[::1", b"a:99999999", b"a#", b"a@b"]


@pytest.mark.parametrize("host", HOSTS)
@pytest.mark.parametrize("target", [b"/v1/fence", b"/v1/nowhere"])
def test_the_path_comes_from_the_target_and_never_from_the_host(
    bridge: dict[str, str], client: Client, host: bytes, target: bytes
) -> None:
    head = b"GET " + target + b" HTTP/1.1\r\nHost: " + host + b"\r\nConnection: close\r\n\r\n"
    status, body = raw(bridge["url"], head)
    assert 400 <= status < 500
    assert body is None or body["code"] != "INTERNAL"


@pytest.mark.parametrize(
    "target",
    [b"/", b"//", b"/?", b"/%", b"/v1//runs", b"/v1/../v1/health", b"/\xff", b"/a#b"],
)
@pytest.mark.parametrize("method", [b"GET", b"OPTIONS", b"POST", b"DELETE", b"PROPFIND"])
def test_no_target_reaches_500(
    bridge: dict[str, str], client: Client, method: bytes, target: bytes
) -> None:
    head = method + b" " + target + b" HTTP/1.1\r\nHost: a\r\nContent-Length: 0\r\n"
    status, _ = raw(bridge["url"], head + b"Connection: close\r\n\r\n")
    assert status < 500 or (method == b"PROPFIND" and status == 501)  # of the runtime


@pytest.mark.parametrize("length", [b"9" * 5000, b"1048577", b"9" * 16])
def test_a_length_of_any_size_is_too_large(bridge: dict[str, str], length: bytes) -> None:
    head = (
        b"POST /v1/starts HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer alice\r\n"
        b"Idempotency-Key: k\r\nContent-Length: " + length + b"\r\n\r\n"
    )
    status, _ = raw(bridge["url"], head)
    assert 400 <= status < 500


def test_head_is_get_without_its_body(client: Client) -> None:
    run = client.started()
    for path in (f"/v1/runs/{run['run_id']}", "/v1/health", "/openapi.json"):
        got, headed = (
            client.get(path),
            client.http.head(path, headers={"Authorization": "Bearer alice"}),
        )
        assert (headed.status_code, headed.content) == (got.status_code, b"")
        assert headed.headers["Content-Type"] == got.headers["Content-Type"]


@pytest.mark.parametrize("encoding", ["gzip", "br", "deflate, gzip", "x"])
def test_an_encoded_body_is_415_and_the_encoding_is_named(client: Client, encoding: str) -> None:
    headers = {"Content-Encoding": encoding, "Idempotency-Key": new_key()}
    answer = client.post("/v1/starts", a_start(), headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (415, "CONTENT_ENCODING_UNSUPPORTED")
    assert encoding in answer.json()["detail"]
    plain = {**headers, "Content-Encoding": "identity"}
    assert client.post("/v1/starts", a_start(), headers=plain).status_code == 201


def test_a_query_parameter_that_is_given_twice_is_refused(client: Client) -> None:
    answer = client.get("/v1/runs?limit=1&status=running&limit=2")
    assert answer.status_code == 400
    assert "limit" in answer.json()["detail"]


# --- Tokens ------------------------------------------------------------------------------


def test_whoami_says_whom_the_token_names(client: Client) -> None:
    answer = client.as_("worker").get("/v1/whoami")
    principal = {"kind": "service", "id": "alice"}
    assert answer.json() == {"principal": principal, "scopes": ["work"]}
    assert client.as_("nobody").get("/v1/whoami").status_code == 401


def challenge(answer: httpx.Response) -> Any:
    return answer.headers.get("WWW-Authenticate")


def test_a_refusal_says_what_is_wrong_with_the_token(client: Client) -> None:
    """RFC 6750, section 3."""
    assert challenge(client.http.get("/v1/runs")) == "Bearer"
    assert challenge(client.as_("nobody").get("/v1/runs")) == 'Bearer error="invalid_token"'
    lacking = client.as_("worker").get("/v1/runs")
    assert lacking.status_code == 403
    assert challenge(lacking) == 'Bearer error="insufficient_scope", scope="read"'


# --- Content -----------------------------------------------------------------------------


def secret_run(client: Client) -> Json:
    run = client.started()
    client.verb(run, "transition", to="running", state="s-3-cr-3-t").raise_for_status()
    return run


@pytest.mark.parametrize("verb", ["cancel", "lineage/cancel"])
def test_a_cancel_shows_no_content_without_the_scope_read(client: Client, verb: str) -> None:
    run = secret_run(client)
    answer = client.as_("starter").post(f"/v1/runs/{run['run_id']}/{verb}", {})
    assert answer.json()["outcome"] == "cancel_requested"
    assert "s-3-cr-3-t" not in answer.text
    other = secret_run(client)
    assert "s-3-cr-3-t" in client.post(f"/v1/runs/{other['run_id']}/{verb}", {}).text


def test_a_start_is_looked_at_without_content_without_the_scope_read(client: Client) -> None:
    run = secret_run(client)
    assert "s-3-cr-3-t" not in client.as_("starter").get(f"/v1/starts/{run['key']}").text
    assert "s-3-cr-3-t" in client.get(f"/v1/starts/{run['key']}").text


def test_the_owner_whose_verb_won_sees_its_run_and_nobody_who_lost_does(client: Client) -> None:
    run = secret_run(client)
    won = client.as_("worker").verb(run, "heartbeat")
    assert (won.status_code, "s-3-cr-3-t" in won.text) == (200, True)
    lost = client.as_("worker").verb({**run, "owner": an_owner()}, "heartbeat")
    assert (lost.status_code, "s-3-cr-3-t" in lost.text) == (409, False)


def test_the_proof_is_told_to_operators_alone(client: Client, sql: Sql) -> None:
    sql.fence("open")
    assert not {"proof_key", "proof_run_id"} & client.get("/v1/fence").json().keys()
    assert {"proof_key", "proof_run_id"} <= client.as_("operator").get("/v1/fence").json().keys()
