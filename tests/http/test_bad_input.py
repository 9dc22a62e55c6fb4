"""Bad input over HTTP: the documented answer, and not one row changed."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote, urlsplit

import pytest

from fencepost import limits
from fencepost.http import routes
from fencepost.http.forms import Form
from fencepost.http.starts import START
from helpers import Client, Json, Sql, a_start, an_owner, connect, new_key, opaque
from refusals import (
    AGENT,
    INVALID,
    KEY_INVALID,
    KEY_MISSING,
    OWNER,
    TOO_LARGE,
    Refusals,
    check,
    verbs,
)

MIB = limits.BODY_BYTES_MAX

# --- Keys ----------------------------------------------------------------------------------


def start_with_keys(client: Client, keys: list[bytes]) -> tuple[int, Any, str]:
    """Over the standard library, which sends header values byte by byte as they are."""
    address = urlsplit(str(client.http.base_url))
    connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=60)
    body = json.dumps(a_start()).encode()
    connection.putrequest("POST", "/v1/starts")
    for name, value in [("Authorization", b"Bearer alice"), ("Content-Length", b"%d" % len(body))]:
        connection.putheader(name, value)
    for key in keys:
        connection.putheader("Idempotency-Key", key)
    connection.endheaders(body)
    answer = connection.getresponse()
    text = answer.read().decode()
    connection.close()
    return answer.status, answer.headers, text


BAD_KEYS: dict[str, list[bytes]] = {
    "empty": [b""],
    "spaces": [b"   "],
    "tab": [b"\t"],
    "empty string": [b'""'],
    "string of spaces": [b'"  "'],
    "twice": [b"order-1", b"order-2"],
    "twice the same": [b"order-1", b"order-1"],
    "twice as strings": [b'"order-1"', b'"order-1"'],
    "twice empty": [b"", b""],
    "empty and a key": [b"", b"order-1"],
    "comma": [b"order,1"],
    "comma in a string": [b'"order,1"'],
    "space inside": [b"order 1"],
    "slash": [b"order/1"],
    "percent": [b"order%2D1"],
    "plus": [b"order+1"],
    "colon": [b"order:1"],
    "ff": [b"\xff"],
    "fe": [b"order-\xfe"],
    "utf-8": ["commandé".encode()],
    "no-break space before": ["\u00a0order-1".encode()],
    "ideographic space after": ["order-1\u3000".encode()],
    "next line after": ["order-1\u0085".encode()],
    "no-break space in latin-1": [b"order-1\xa0"],
    "non-ascii string": ['"é"'.encode()],
    "control character": [b"order\x01"],
    "open string": [b'"order'],
    "escape in a string": [b'"order\\"1"'],
    "parameters": [b'"order";v=1'],
    "byte sequence": [b":b3JkZXI=:"],
    "dot": [b"."],
    "two dots": [b".."],
    "dots as a string": [b'".."'],
    "201 characters": [b"k" * 201],
    "201 characters as a string": [b'"' + b"k" * 201 + b'"'],
    "8000 characters": [b"k" * 8000],
}


@pytest.mark.parametrize("name", BAD_KEYS)
def test_a_bad_key_is_refused(client: Client, sql: Sql, name: str) -> None:
    before = sql.dump()
    answer = start_with_keys(client, BAD_KEYS[name])
    check(*answer, KEY_INVALID)
    assert sql.dump() == before


def test_no_key_is_refused_as_missing(client: Client, sql: Sql) -> None:
    before = sql.dump()
    check(*start_with_keys(client, []), KEY_MISSING)
    assert sql.dump() == before


@pytest.mark.parametrize("length", [1, 200])
def test_a_key_at_the_bounds_of_its_grammar_starts(client: Client, sql: Sql, length: int) -> None:
    key = (new_key() + "~" * 200)[:length] if length > 1 else "~"
    sql("DELETE FROM fencepost_reservations WHERE key = '~'")
    status, _, text = start_with_keys(client, [key.encode()])
    assert (status, json.loads(text)["reservation"]["key"]) == (201, key)


def test_a_quoted_key_and_a_bare_one_are_the_same_key(client: Client) -> None:
    key = new_key()
    assert client.start(key).status_code == 201
    assert client.start(f'"{key}"').json()["code"] == "START_PENDING"
    # HTTP allows white space around a value.
    status, _, text = start_with_keys(client, [f"  {key}\t".encode()])
    assert (status, json.loads(text)["code"]) == (409, "START_PENDING")


# --- Bodies --------------------------------------------------------------------------------


def with_input(text: str) -> bytes:
    return b'{"target":{"kind":"workflow","id":"w"},"input":' + text.encode() + b"}"


BAD_BODIES: dict[str, bytes] = {
    "empty": b"",
    "white space": b" \n",
    "not JSON": b"target=charge",
    "cut short": b'{"target":{"kind":"workflow","id":"w"}',
    "more behind": with_input("1") + b"x",
    "array": b"[]",
    "string": b'"x"',
    "null": b"null",
    "number": b"1",
    "not UTF-8": b'{"a":"\xff"}',
    "UTF-16": with_input("1").decode().encode("utf-16"),
    "byte order mark": b"\xef\xbb\xbf" + with_input("1"),
    "duplicate member": b'{"target":{"kind":"workflow","id":"w"},"input":1,"input":2}',
    "duplicate deep inside": with_input('[{"a":{"b":1,"b":1}}]'),
    "duplicate by escape": with_input('{"a":1,"\\u0061":1}'),
    "NaN": with_input("NaN"),
    "Infinity": with_input("[-Infinity]"),
    "1e400": with_input("1e400"),
    "2^53": with_input("9007199254740992"),
    "2^53+1": with_input("9007199254740993"),
    "-2^53": with_input("-9007199254740992"),
    "lone surrogate": with_input('"\\ud800"'),
    "lone surrogate in a name": with_input('{"\\udc00":1}'),
    "raw control character": with_input('"\x01"'),
    "130 levels": with_input("[" * 129 + "]" * 129),
    "hundreds of thousands of levels": b"[" * 500_000,
    "more than 100000 values": with_input("[" + "0," * 100_000 + "0]"),
}


@pytest.mark.parametrize("name", BAD_BODIES)
def test_a_bad_body_starts_nothing(refused: Refusals, name: str) -> None:
    refused.start(BAD_BODIES[name], INVALID)


@pytest.mark.parametrize("name", ["empty", "array", "duplicate member", "2^53+1", "130 levels"])
def test_a_bad_body_moves_and_releases_no_run(refused: Refusals, run: Json, name: str) -> None:
    for path in (*verbs(run), f"/v1/starts/{run['key']}/release"):
        refused.post(path, BAD_BODIES[name], INVALID)


def a_body_of(size: int) -> bytes:
    empty = with_input('""')
    return empty.replace(b'""', b'"' + b"x" * (size - len(empty)) + b'"')


def in_chunks(body: bytes) -> Iterator[bytes]:
    """Sent without a Content-Length."""
    for start in range(0, len(body), 65_536):
        yield body[start : start + 65_536]


def test_one_byte_more_than_a_mebibyte_is_too_large(refused: Refusals) -> None:
    refused.start(a_body_of(MIB + 1), TOO_LARGE)


@pytest.mark.parametrize("size", [MIB + 1, 3 * MIB])
def test_a_body_over_a_mebibyte_is_too_large_even_when_its_length_is_not_announced(
    refused: Refusals, size: int
) -> None:
    headers = {"Idempotency-Key": new_key()}
    content = in_chunks(a_body_of(size))
    refused("POST", "/v1/starts", TOO_LARGE, content=content, headers=headers)


@pytest.mark.parametrize("chunked", [False, True])
def test_exactly_a_mebibyte_is_taken(client: Client, sql: Sql, chunked: bool) -> None:
    body = a_body_of(MIB)
    headers = {"Idempotency-Key": new_key()}
    content = in_chunks(body) if chunked else body
    answer = client.request("POST", "/v1/starts", content=content, headers=headers)
    assert answer.status_code == 201
    run = answer.json()["run"]
    assert run["state"] == "x" * (MIB - len(with_input('""')))
    sql("DELETE FROM fencepost_snapshots WHERE run_id = ?1", run["run_id"])


def test_a_result_that_leaves_no_room_beside_a_state_is_too_large(
    refused: Refusals, run: Json
) -> None:
    body = {"owner": run["owner"], "to": "completed", "result": "x" * limits.RESULT_BYTES_MAX}
    refused.post(verbs(run)[2], body, TOO_LARGE)


def test_values_at_the_bounds_are_taken_and_come_back_unchanged(client: Client) -> None:
    value = [2**53 - 1, 1 - 2**53, 1e308, "\U0001f600\u0000", {"": None}, "[" * 1000]
    deep: Any = 0
    for _ in range(126):
        deep = [deep]
    run = client.started(input=[value, deep])
    assert client.get(f"/v1/runs/{run['run_id']}").json()["state"] == [value, deep]


# --- Members -------------------------------------------------------------------------------

WORKFLOW = {"kind": "workflow", "id": "w"}
NO_OBJECTS: list[Any] = [None, True, 1, "x", [], {}]
NO_TEXTS: list[Any] = [None, True, 1, 1.5, [], {}]
NO_IDENTIFIERS: list[Any] = [*NO_TEXTS, "", " ", ".", "..", "a/b", "é", "a" * 201, "a\n"]
NO_OWNER_FIELDS: list[Any] = [*NO_TEXTS, "", "a\0", "x" * 1025]
NO_COUNTS: list[Any] = [None, True, "1", 1.5, -1, [], {}]


def given(values: list[Any]) -> list[Any]:
    """Without null, by which an optional member is absent."""
    return [value for value in values if value is not None]


BAD_OWNERS: list[Any] = [
    *NO_OBJECTS,
    {"host_id": "h", "pid": 1},
    {**OWNER, "more": 1},
    *({**OWNER, "host_id": value} for value in NO_OWNER_FIELDS),
    *({**OWNER, "nonce": value} for value in NO_OWNER_FIELDS),
    *({**OWNER, "pid": value} for value in NO_COUNTS),
]
BAD_LEASES: list[Any] = [True, "30000", 30000.5, 0, -1, 999, 3_600_001, [], {}]

BAD_STARTS: dict[str, list[Json]] = {
    "unknown member": [{"more": 1}, {"Input": 1}, {"key": "k"}, {"run_id": "r"}, {"": 1}],
    "target": [
        *({"target": value} for value in NO_OBJECTS),
        {"target": {"kind": "workflow"}},
        {"target": {"id": "w"}},
        {"target": {**WORKFLOW, "more": 1}},
        *({"target": {**WORKFLOW, "kind": kind}} for kind in [*NO_TEXTS, "", "Workflow", "job"]),
        *({"target": {**WORKFLOW, "id": id}} for id in NO_IDENTIFIERS),
        *({"target": {**AGENT, "thread_id": id}} for id in NO_IDENTIFIERS),
    ],
    "agent without a thread": [{"target": {"kind": "agent", "id": "a"}}],
    "workflow with a thread": [{"target": {**WORKFLOW, "thread_id": "t"}}],
    "owner": [{"owner": owner} for owner in given(BAD_OWNERS)],
    "lease_ms": [{"lease_ms": value} for value in BAD_LEASES],
    "parent_run_id": [{"parent_run_id": id} for id in given(NO_IDENTIFIERS)],
    "lineage": [
        *({"lineage": value} for value in given(NO_OBJECTS)),
        {"lineage": {"id": "l"}},
        {"lineage": {"round": 1}},
        {"lineage": {"id": "l", "round": 1, "more": 1}},
        *({"lineage": {"id": id, "round": 1}} for id in NO_IDENTIFIERS),
        *({"lineage": {"id": "l", "round": value}} for value in NO_COUNTS),
    ],
}


def refused_all(refused: Refusals, method: str, path: str, bodies: list[Any], key: bool) -> None:
    """Every body of a list, with one look at the database around them all."""
    before = refused.sql.dump()
    for body in bodies:
        headers = {"Idempotency-Key": new_key()} if key else {}
        answer = refused.client.request(method, path, content=json.dumps(body), headers=headers)
        assert answer.status_code == 400, (body, answer.text)
        check(answer.status_code, answer.headers, answer.text, INVALID)
    assert refused.sql.dump() == before


@pytest.mark.parametrize("name", BAD_STARTS)
def test_a_member_that_is_not_what_a_start_takes_is_refused(refused: Refusals, name: str) -> None:
    bodies: list[Any] = [{"target": WORKFLOW, **members} for members in BAD_STARTS[name]]
    refused_all(refused, "POST", "/v1/starts", bodies, key=True)


def test_a_start_without_a_target_is_refused(refused: Refusals) -> None:
    problem = refused.start({"input": 1}, INVALID)
    assert "'target'" in problem["detail"]


@pytest.mark.parametrize("lease_ms", [1000, 3_600_000, 5000.0])
def test_the_shortest_and_the_longest_lease_are_taken(client: Client, lease_ms: int) -> None:
    run = client.started(lease_ms=lease_ms)
    assert run["lease_expires_at_ms"] - run["heartbeat_at_ms"] == lease_ms
    renewed = client.verb(run, "heartbeat", lease_ms=lease_ms)
    assert renewed.status_code == 200


@pytest.mark.parametrize("verb", ["own", "heartbeat", "transition", "release"])
def test_a_verb_without_a_sound_owner_is_refused(refused: Refusals, run: Json, verb: str) -> None:
    key, id = run["key"], run["run_id"]
    path = f"/v1/starts/{key}/release" if verb == "release" else f"/v1/runs/{id}/{verb}"
    more = {"to": "completed"} if verb == "transition" else {}
    bodies: list[Any] = [
        {"owner": owner, **more} for owner in [*BAD_OWNERS, {**run["owner"], "generation": 1}]
    ]
    unknown: list[Any] = [{"owner": run["owner"], **more, "more": 1}, more]
    refused_all(refused, "POST", path, bodies + unknown, key=False)


EVIDENCE = {"kind": "lease-expired", "expected_owner": OWNER}
HEAD = {"sequence": 1, "hash": "a" * 64}
NO_GENERATIONS = [*given(NO_COUNTS), 0]
NO_STATUSES = [*given(NO_TEXTS), "", "Running", "done"]
BAD_MEMBERS: dict[tuple[str, str], list[Any]] = {
    ("own", "expected_status"): NO_STATUSES,
    ("claim", "expected_status"): NO_STATUSES,
    ("heartbeat", "generation"): NO_GENERATIONS,
    ("reconfirm", "generation"): NO_GENERATIONS,
    ("transition", "generation"): NO_GENERATIONS,
    ("acknowledge-cancel", "generation"): NO_GENERATIONS,
    ("activate", "claimed_at_ms"): given(NO_COUNTS),
    ("abandon", "claimed_at_ms"): given(NO_COUNTS),
    ("recover", "claimed_at_ms"): given(NO_COUNTS),
    ("own", "lease_ms"): BAD_LEASES,
    ("own", "evidence"): [
        *given(NO_OBJECTS),
        {"kind": "lease-expired"},
        {**EVIDENCE, "kind": "rumour"},
        {**EVIDENCE, "kind": None},
        {**EVIDENCE, "more": 1},
        {**EVIDENCE, "checked_at_ms": 1},
        *({**EVIDENCE, "expected_heartbeat_at_ms": value} for value in given(NO_COUNTS)),
        {**EVIDENCE, "expected_owner": {**OWNER, "more": 1}},
        {**EVIDENCE, "expected_owner": {**OWNER, "pid": -1}},
    ],
    ("heartbeat", "lease_ms"): BAD_LEASES,
    ("transition", "to"): [*NO_TEXTS, "", "pending", "done", "Completed"],
    ("transition", "guard"): [
        *(value for value in given(NO_OBJECTS) if value != {}),
        {"cancel_requested": True},
        {"cancel_requested": "maybe"},
        {"cancel_requested": "absent", "more": 1},
    ],
    ("transition", "expected_head"): [
        *given(NO_OBJECTS),
        {"sequence": 1},
        {"hash": "a" * 64},
        {**HEAD, "more": 1},
        *({**HEAD, "sequence": value} for value in [*NO_COUNTS, 0]),
        *({**HEAD, "hash": value} for value in [*NO_TEXTS, "", "a" * 63, "A" * 64, "g" * 64]),
        {**HEAD, "hash": "a" * 64 + "\n"},
    ],
}


@pytest.mark.parametrize(("verb", "member"), BAD_MEMBERS)
def test_a_member_that_is_not_what_a_verb_takes_is_refused(
    refused: Refusals, run: Json, verb: str, member: str
) -> None:
    base = {"owner": run["owner"], **({"to": "completed"} if verb == "transition" else {})}
    bodies: list[Any] = [{**base, member: value} for value in BAD_MEMBERS[verb, member]]
    refused_all(refused, "POST", f"/v1/runs/{run['run_id']}/{verb}", bodies, key=False)


@pytest.mark.parametrize("to", ["running", "suspended"])
def test_a_result_belongs_to_an_end(refused: Refusals, run: Json, to: str) -> None:
    refused.post(verbs(run)[2], {"owner": run["owner"], "to": to, "result": None}, INVALID)


FORMS = {form.name: form for route in routes.ROUTES if (form := route.takes).name}


@pytest.mark.parametrize("name", FORMS)
def test_null_for_an_optional_member_means_that_it_is_absent(name: str) -> None:
    for member, found in FORMS[name].members.items():
        if found.null_is_absent:
            alone: Form[Json] = Form("", dict, {member: found})
            assert alone.read({member: None}, "") == alone.read({}, "")


def test_an_input_nests_to_128_levels(client: Client) -> None:
    value: Any = 0
    for _ in range(128):
        value = [value]
    assert client.started(input=value)["state"] == value


def test_an_empty_guard_guards_nothing(client: Client) -> None:
    run = client.started()
    assert client.finish(run, "running", state=1, guard={}).status_code == 200
    client.post(f"/v1/runs/{run['run_id']}/cancel", {}).raise_for_status()
    assert client.finish(run, guard={"cancel_requested": None}).status_code == 200


def test_a_start_with_nulls_is_a_start_without_these_members(client: Client) -> None:
    nulls = {name: None for name, member in START.members.items() if member.default is not ...}
    key = new_key()
    assert client.start(key, a_start(**{**nulls, "input": 1})).status_code == 201
    assert client.start(key, a_start(input=1)).json()["code"] == "START_PENDING"


def test_the_largest_integer_of_json_is_taken_wherever_an_integer_is(client: Client) -> None:
    most = 2**53 - 1
    owner = {**an_owner(), "pid": most}
    run = client.started(owner=owner, lineage={"id": "l", "round": most})
    assert (run["owner"], run["lineage"]) == (owner, {"id": "l", "round": most})
    assert client.verb(run, "heartbeat").json()["outcome"] == "renewed"


# --- Queries -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "query",
    [
        *(f"limit={value}" for value in ["", "0", "-1", "x", "1.5", "10000", "%D9%A1", "1%20"]),
        *(f"status={value}" for value in ["", "Running", "done", "running,failed", "%00"]),
        *(
            f"cursor={quote(form(value))}"
            for form in (str, opaque)
            for value in [
                "x",
                "[",
                "null",
                "{}",
                '"a"',
                "[]",
                '["a"]',
                '["a","b","c","d"]',
                "[1,2,3]",
                '["a","b",null]',
                '["a","b","\\u0000"]',
                '["a","b","\\ud800"]',
                json.dumps(["a", "b", "c" * 2048]),
                "[" * 1000,
            ]
        ),
    ],
    ids=lambda query: query[:40],
)
def test_a_bad_query_of_a_list_is_refused(refused: Refusals, query: str) -> None:
    refused("GET", f"/v1/runs?{query}", INVALID)
    if not query.startswith("status"):
        refused("GET", f"/v1/runs?status=running&{query}", INVALID)


@pytest.mark.parametrize("wait", ["", "-1", "x", "1.5", "99999", "%D9%A1"])
def test_a_bad_wait_is_refused(refused: Refusals, run: Json, wait: str) -> None:
    refused("GET", f"/v1/runs/{run['run_id']}?wait={wait}", INVALID)


# --- Afterwards ----------------------------------------------------------------------------


def test_a_connection_survives_every_refusal(client: Client) -> None:
    with connect(str(client.http.base_url)) as http:
        again = Client(http)
        assert again.request("POST", "/v1/starts", content=a_body_of(MIB + 1)).status_code == 400
        assert again.start(new_key()).status_code == 201
