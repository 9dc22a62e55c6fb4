"""Headers, queries and bodies: what comes in is checked, and refused by the right error."""

from __future__ import annotations

import contextlib
import json
import re
import string
from typing import Any, TypeVar

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fencepost import errors, limits
from fencepost.decision import Attempt
from fencepost.http import forms, queries, runs, starts, values
from fencepost.identifiers import Principal, Target
from fencepost.runs import Lineage, Owner, RunStatus
from helpers import opaque

PATH_SAFE = string.ascii_letters + string.digits + "._~-"
keys = st.text(PATH_SAFE, min_size=1, max_size=200).filter(lambda key: key not in (".", ".."))
OWNER = {"host_id": "h", "pid": 1, "nonce": "n"}
ALICE = Principal("service", "alice")
T = TypeVar("T")


def fits_the_grammar(key: str) -> bool:
    return 1 <= len(key) <= 200 and set(key) <= set(PATH_SAFE) and key not in (".", "..")


# --- Idempotency-Key -----------------------------------------------------------------------


@settings(max_examples=200, deadline=None)
@given(keys)
@example("a" * 200)
@example("...")
@example("1.5")
def test_a_bare_key_and_a_structured_string_are_the_same_key(key: str) -> None:
    assert queries.idempotency_key(key) == key
    assert queries.idempotency_key(f'"{key}"') == key


# Headers that are nearly keys, and ones that are nothing like it.
headers = (
    st.text(max_size=30)
    | st.text(PATH_SAFE + '"\\, \t;=:?@\x00\x1f\x7f\u00a0\u3000é', max_size=12)
    | st.text(PATH_SAFE + ' ",', max_size=8).map(lambda text: f'"{text}"')
)


@settings(max_examples=200, deadline=None)
@given(headers)
@example("")
@example(" ")
@example('""')
@example('" "')
@example('"abc')
@example('"a\\"b"')
@example('"a"b')
@example('"a";p=1')
@example('"a", "a"')
@example(":YWJj:")
@example("a" * 201)
@example('"' + "a" * 201 + '"')
@example("key\u00a0")
@example("\u3000key")
@example("\x1ckey")
@example("key\x0b")
@example("\x85key")
@example('"é"')
@example("\ufffd")
@example('"\ud800"')
def test_a_header_is_a_key_of_the_grammar_or_an_idempotency_key_error(header: str) -> None:
    bare = header.strip(" \t")  # the white space that HTTP allows around a value
    quoted = re.fullmatch('"(.*)"', bare, re.DOTALL)
    meant = quoted[1] if quoted else bare
    key = key_or_code(header)
    assert key in (meant if fits_the_grammar(meant) else "", "IDEMPOTENCY_KEY_INVALID")
    if bare == header:
        assert (key == meant) == fits_the_grammar(meant)


def key_or_code(header: str) -> str:
    try:
        return queries.idempotency_key(header)
    except errors.IdempotencyKeyError as refusal:
        return refusal.code


def test_no_header_at_all_is_a_missing_key() -> None:
    with pytest.raises(errors.IdempotencyKeyError) as refusal:
        queries.idempotency_key(None)
    assert refusal.value.code == "IDEMPOTENCY_KEY_MISSING"


# --- Prefer and queries --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        (None, 0),
        ("", 0),
        ("wait=10", 10),
        ("WAIT = 10", 10),
        ('wait="10"', 10),
        ("respond-async, wait=7", 7),
        ("wait=7;x=1", 7),
        ("wait=30", 30),
        ("wait=31", 30),
        ("wait=999999999", 30),
        ("wait=-1", 0),
        ("wait=1.5", 0),
        ("wait", 0),
        ("wait=soon", 0),
        ("await=10", 0),
        ("x-wait=10", 0),
        ("wait=9999999999", 30),
        ('note="wait=3"', 0),
        ("respond-async; wait=3", 0),
        ('x="a, wait=3", wait=4', 4),
        ("wait=soon, wait=3", 0),
        ("wait=2, wait=3", 2),
        (", ,wait=5", 5),
        ('a="unended, wait=3', 0),
    ],
)
def test_prefer_wait_is_bounded_and_nonsense_is_ignored(header: str | None, seconds: int) -> None:
    assert queries.preferred_wait_s(header) == seconds


@settings(max_examples=50, deadline=None)
@given(st.text())
def test_no_prefer_header_can_fail_a_request(header: str) -> None:
    assert 0 <= queries.preferred_wait_s(header) <= limits.WAIT_S_MAX


@pytest.mark.parametrize(
    ("text", "value"), [(None, 100), ("1", 1), ("200", 200), ("201", 200), ("9999", 200)]
)
def test_a_limit_above_the_most_is_the_most(text: str | None, value: int) -> None:
    query = {} if text is None else {"limit": text}
    assert queries.AFTER_SEQUENCE.query(query).limit == value


@pytest.mark.parametrize("text", ["", "0", "-1", "1.0", "1e2", "10000", " 1", "\u0661", "x", "0x1"])
def test_a_limit_that_is_no_small_integer_is_refused(text: str) -> None:
    with pytest.raises(errors.InvalidRequest):
        queries.AFTER_SEQUENCE.query({"limit": text})


def cursor(text: str) -> Any:
    return runs.RUNS.query({"cursor": text}).cursor


@pytest.mark.parametrize("query", [{}, {"cursor": ""}])
def test_no_cursor_begins_at_the_start(query: dict[str, str]) -> None:
    assert runs.RUNS.query(query).cursor is None


def test_a_cursor_is_an_array_of_exactly_as_many_strings() -> None:
    assert cursor(opaque('["a","é",""]')) == ("a", "é", "")


@given(st.lists(st.text(), min_size=3, max_size=3).filter(lambda keys: "\0" not in "".join(keys)))
@example(["\x7f", '"\\\n', "\U0001f600é"])
@example(["service", "\U0001f600" * 200, "r" * 200])
def test_a_cursor_that_was_given_out_looks_as_documented_and_is_read_back(keys: list[str]) -> None:
    text = queries.cursor_text(tuple(keys))
    assert text is not None
    documented = runs.RUNS.members["cursor"].parser
    assert isinstance(documented, forms.Parser)
    assert re.search(documented.schema["pattern"], text)
    assert len(text) <= limits.CURSOR_CHARS_MAX or sum(map(len, keys)) > 600
    if len(text) <= limits.CURSOR_CHARS_MAX:
        assert cursor(text) == tuple(keys)


@pytest.mark.parametrize("position", [-1, 0, 10**15, limits.INTEGER_MAX])
def test_a_cursor_of_any_number_that_is_stored_is_read_back(position: int) -> None:
    text = queries.cursor_text((str(position),))
    assert queries.AFTER_SEQUENCE.query({"cursor": text or ""}).cursor == (position,)


@pytest.mark.parametrize(
    "text",
    [
        "x",
        "[",
        "null",
        "{}",
        '"abc"',
        "[]",
        '["a","b"]',
        '["a","b","c","d"]',
        '["a","b",1]',
        '["a","b",null]',
        '["a","b","\\u0000"]',
        '["a","b","\\ud800"]',
        json.dumps(["a", "b", "c" * limits.CURSOR_CHARS_MAX]),
        "[" * 1024,
    ],
)
def test_a_cursor_that_was_not_given_out_is_refused(text: str) -> None:
    for tried in (text, opaque(text), text + "=", "\u00e9"):
        with pytest.raises(errors.InvalidRequest):
            cursor(tried)


# --- Bodies --------------------------------------------------------------------------------


def parsed(form: forms.Form[T], value: Any) -> T:
    return form.read(forms.loads(json.dumps(value).encode()), "")


def start(**members: Any) -> Attempt:
    value = {"target": {"kind": "workflow", "id": "w"}, **members}
    return parsed(starts.START, value).attempt("key", ALICE)


def test_a_start_has_defaults_for_all_but_its_target() -> None:
    asked = start()
    assert (asked.key, asked.principal) == ("key", ALICE)
    assert asked.target == Target("workflow", "w")
    assert asked.input_json == "null"
    assert asked.lease_ms == limits.LEASE_MS_DEFAULT
    assert (asked.parent_run_id, asked.lineage) == (None, None)
    assert asked.owner != start().owner  # nobody else knows the one that was minted


def test_a_start_keeps_what_it_was_given() -> None:
    asked = start(
        target={"kind": "agent", "id": "a", "thread_id": "t"},
        input={"é": [1.0, "\U0001f600"]},
        owner=OWNER,
        lease_ms=1000,
        parent_run_id="p",
        lineage={"id": "l", "round": 0},
    )
    assert asked.target == Target("agent", "a", "t")
    assert asked.input_json == '{"é":[1.0,"\U0001f600"]}'
    assert asked.owner == Owner("h", 1, "n")
    assert (asked.lease_ms, asked.parent_run_id, asked.lineage) == (1000, "p", Lineage("l", 0))


def test_an_omitted_input_is_null() -> None:
    assert start().fingerprint == start(input=None).fingerprint
    assert start().fingerprint != start(input={}).fingerprint


def test_what_runs_it_is_not_what_it_is_so_owner_and_lease_are_no_part_of_the_fingerprint() -> None:
    assert start(owner=OWNER, lease_ms=1000).fingerprint == start().fingerprint


@pytest.mark.parametrize("value", [None, True, 0, 1.5, "x", [], [{}]], ids=json.dumps)
def test_a_body_is_an_object(value: Any) -> None:
    with pytest.raises(errors.InvalidRequest, match="not a JSON object"):
        parsed(runs.NOTHING, value)


def test_unknown_members_are_named_but_neither_all_nor_at_full_length() -> None:
    unknown = {letter * 1000: "secret" for letter in "abcdefgh"}
    with pytest.raises(errors.InvalidRequest) as refusal:
        start(**unknown)
    assert "a" * 40 in refusal.value.detail
    assert "secret" not in refusal.value.detail
    assert len(refusal.value.detail) < 300


def test_a_transition_keeps_what_it_was_given() -> None:
    change = parsed(
        runs.TRANSITION,
        {
            "owner": OWNER,
            "to": "completed",
            "state": None,
            "result": [],
            "guard": {"cancel_requested": "absent"},
            "expected_head": {"sequence": 3, "hash": "a" * 64},
        },
    )
    assert (change.owner, change.to) == (Owner("h", 1, "n"), RunStatus.COMPLETED)
    assert (change.state_json, change.result_json) == ("null", "[]")
    assert change.cancel_requested == "absent"
    assert change.expected_head is not None
    assert (change.expected_head.sequence, change.expected_head.hash) == (3, "a" * 64)


def test_an_omitted_state_or_result_stays_as_it_is_stored() -> None:
    change = parsed(runs.TRANSITION, {"owner": OWNER, "to": "running"})
    assert (change.state_json, change.result_json) == (None, None)


def test_a_stored_value_is_measured_in_the_bytes_that_are_stored() -> None:
    read = values.stored_json(10).read
    assert read("é" * 4, "state") == '"éééé"'
    with pytest.raises(errors.InvalidRequest) as refusal:
        read("é" * 5, "state")
    assert refusal.value.code == "TOO_LARGE"
    with pytest.raises(errors.InvalidRequest):
        read([1e15], "state")  # shorter as it was sent than as it is stored


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=5,
)
NAMES = ["target", "input", "owner", "lease_ms", "parent_run_id", "lineage", "to", "guard", "state"]


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(st.sampled_from(NAMES), JSON_VALUES), st.booleans())
@example({"target": {"kind": [], "id": {}}}, True)
@example({"target": {"kind": "agent", "id": "a", "thread_id": None}}, True)
def test_any_json_is_a_start_or_an_invalid_request(members: dict[str, Any], whole: bool) -> None:
    base = {"target": {"kind": "workflow", "id": "w"}, "owner": OWNER} if whole else {}
    with contextlib.suppress(errors.InvalidRequest):
        parsed(starts.START, {**base, **members}).attempt("key", ALICE)
    with contextlib.suppress(errors.InvalidRequest):
        parsed(runs.TRANSITION, {**base, **members})
