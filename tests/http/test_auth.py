"""Bearer tokens: closed unless a known token with the right scope is sent."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fencepost import errors
from fencepost.http import auth
from fencepost.http.exchange import Request
from fencepost.identifiers import Principal
from fencepost.storage.d1 import Database


def entry(token: str = "token", **members: Any) -> dict[str, Any]:  # noqa: S107
    return {
        "sha256": hashlib.sha256(token.encode()).hexdigest(),
        "principal": {"kind": "service", "id": "alice"},
        "scopes": ["start", "read"],
        **members,
    }


TOKENS = json.dumps(
    [entry("old"), entry("new"), entry("bob", principal={"kind": "human", "id": "b"})]
)


def refusal(header: str | None, tokens: str | None = TOKENS) -> errors.AuthError:
    with pytest.raises(errors.AuthError) as caught:
        auth.authenticate(header, tokens)
    return caught.value


@pytest.mark.parametrize(
    "header", ["Bearer new", "bearer new", "BEARER new", "Bearer   new", "Bearer new "]
)
def test_a_known_token_names_its_principal(header: str) -> None:
    grant = auth.authenticate(header, TOKENS)
    assert grant.principal == Principal("service", "alice")
    assert grant.scopes == {"start", "read"}


def test_a_rotated_token_is_the_same_principal_and_another_one_is_not() -> None:
    old, new, bob = (auth.authenticate(f"Bearer {name}", TOKENS) for name in ("old", "new", "bob"))
    assert old.principal == new.principal != bob.principal


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        "Bearer",
        "Bearer ",
        "new",
        "Basic new",
        "Bearer:new",
        "Bearernew",
        "Bearer new, Bearer new",
        "Bearer new old",
        "Bearer\tnew",
        'Bearer "new"',
        "Bearer new\n",
        "Bearer NEW",
        "Bearer ne",
        "Bearer neww",
        "Bearer =new",
        "Bearer n\u00e9w",
        "Bearer \ud800",
        "Bearer " + "n" * 257,
        "Bearer " + hashlib.sha256(b"new").hexdigest(),
    ],
    ids=ascii,
)
def test_a_header_without_a_known_token_is_unauthorized(header: str | None) -> None:
    error = refusal(header)
    assert error.code == "UNAUTHORIZED"


@settings(max_examples=100, deadline=None)
@given(st.text())
@example("Bearer " + "a" * 100_000)
def test_no_header_at_all_gets_in_by_chance(header: str) -> None:
    assert refusal(header).code == "UNAUTHORIZED"


def test_a_token_of_256_characters_works_and_a_longer_one_is_not_even_hashed() -> None:
    tokens = json.dumps([entry("t" * 256), entry("t" * 257)])
    assert auth.authenticate("Bearer " + "t" * 256, tokens).scopes
    assert refusal("Bearer " + "t" * 257, tokens).code == "UNAUTHORIZED"


@pytest.mark.parametrize("end", ["2999-01-01T00:00:00Z", "2999-01-01t00:00:00.5+02:00"])
def test_a_token_holds_until_its_end_and_no_longer(end: str) -> None:
    assert auth.authenticate("Bearer token", json.dumps([entry(expires_at=end)])).scopes
    past = json.dumps([entry(expires_at=end.replace("2999", "2020"))])
    error = refusal("Bearer token", past)
    assert (error.code, error.challenge) == ("UNAUTHORIZED", 'Bearer error="invalid_token"')


@pytest.mark.parametrize(
    "tokens",
    [
        None,
        "",
        " ",
        "garbage",
        "null",
        "1",
        '"token"',
        "{}",
        "[]",
        "[null]",
        "[1]",
        '["token"]',
        "[[]]",
        "[{}]",
        "[" * 100_000,
        json.dumps(entry()),
        json.dumps([entry(sha256="token")]),
        json.dumps([entry(sha256="A" * 64)]),
        json.dumps([entry(sha256=None)]),
        json.dumps([entry(sha256="a" * 64 + "\n")]),
        json.dumps([entry(principal=None)]),
        json.dumps([entry(principal={"kind": "robot", "id": "x"})]),
        json.dumps([entry(principal={"kind": [], "id": "x"})]),
        json.dumps([entry(principal={"kind": "service"})]),
        json.dumps([entry(principal={"kind": "service", "id": ""})]),
        json.dumps([entry(principal={"kind": "service", "id": " "})]),
        json.dumps([entry(principal={"kind": "service", "id": 7})]),
        json.dumps([entry(principal={"kind": "service", "id": ["x"]})]),
        json.dumps([entry(scopes="start")]),
        json.dumps([entry(scopes=["everything"])]),
        json.dumps([entry(scopes=[["start"]])]),
        json.dumps([entry(), {}]),
        json.dumps([entry(), entry(scopes=["read"])]),
        json.dumps([entry(expires="2030-01-01T00:00:00Z")]),
        json.dumps([entry(principal={"kind": "service", "id": "x", "name": "y"})]),
        json.dumps([entry(expires_at=None)]),
        json.dumps([entry(expires_at=1_900_000_000)]),
        json.dumps([entry(expires_at="2030-01-01")]),
        json.dumps([entry(expires_at="2030-01-01T00:00:00")]),
        json.dumps([entry(expires_at="2030-13-01T00:00:00Z")]),
    ],
    ids=lambda tokens: ascii(tokens)[:60],
)
def test_without_a_usable_configuration_nobody_gets_in(tokens: str | None) -> None:
    for header in (None, "Bearer token"):
        error = refusal(header, tokens)
        assert error.code == "AUTH_UNCONFIGURED"


@pytest.mark.parametrize("header", ["Bearer token", "Bearer secret", "Basic secret"])
def test_a_refusal_repeats_neither_the_token_nor_the_configuration(header: str) -> None:
    for tokens in (TOKENS, "secret"):
        error = refusal(header, tokens)
        assert "secret" not in error.detail
        assert error.members == {}


# --- Scopes --------------------------------------------------------------------------------


def request(headers: Mapping[str, str]) -> Request:
    async def no_body(bytes_max: int) -> bytes:
        raise AssertionError("authentication comes before the body")

    return Request("POST", "/v1/starts", {}, headers.get, no_body, Database(None), lambda _: TOKENS)


def test_any_one_of_the_scopes_admits() -> None:
    asked = request({"authorization": "Bearer new"})
    auth.admit(asked, ("operate", "read"))
    assert asked.sender == Principal("service", "alice")
    assert asked.viewer == asked.sender


def test_a_token_without_the_scope_is_told_which_one_it_lacks() -> None:
    with pytest.raises(errors.AuthError) as caught:
        auth.admit(request({"authorization": "Bearer new"}), ("work", "operate"))
    assert caught.value.code == "SCOPE_MISSING"
    assert "work or operate" in caught.value.detail


def test_an_operator_sees_the_runs_of_everybody() -> None:
    asked = request({"authorization": "Bearer olga"})
    tokens = json.dumps([entry("olga", scopes=["operate"])])
    asked.setting = lambda _: tokens
    auth.admit(asked, ("operate",))
    assert asked.viewer is None
