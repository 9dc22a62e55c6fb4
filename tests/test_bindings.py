"""Delivery bindings: once each, all or nothing, in one linear history."""

from __future__ import annotations

import asyncio
import itertools
import json
from typing import Any

import httpx
import pytest

from fencepost import errors, journal, limits
from fencepost.bindings import Binding
from helpers import Client, Json, Sql, an_owner, connect_async, opaque, round_trips, rows

ROUNDS = 10


def a_binding(gate: str = "a", revision: int = 1, digit: str = "0", **members: Any) -> Json:
    return {"gate": gate, "revision": revision, "receipt_hash": digit * 64, **members}


def bind(client: Client, run: Json, *wanted: Json, **members: Any) -> httpx.Response:
    return client.verb(run, "bindings", bindings=list(wanted), **members)


def listed(client: Client, run: Json, limit: int = 100) -> list[Json]:
    found: list[Json] = []
    cursor = ""
    while True:
        params = {"limit": str(limit), "cursor": cursor}
        answer = client.get(f"/v1/runs/{run['run_id']}/bindings", params=params)
        assert answer.status_code == 200, answer.text
        found += answer.json()["items"]
        if answer.json()["cursor"] is None:
            return found
        cursor = answer.json()["cursor"]


def events_of(sql: Sql, run: Json) -> list[Json]:
    """The history of a run, after a look at its chain."""
    events = sql("SELECT * FROM fencepost_events WHERE run_id = ?1 ORDER BY 2", run["run_id"])
    head = journal.GENESIS
    for event in events:
        made = journal.next_event(head, event["type"], json.loads(event["payload"]))
        assert (made.sequence, made.hash) == (event["sequence"], event["hash"])
        assert made.prior_hash == event["prior_hash"]
        head = made.head
    [row] = sql(
        "SELECT head_sequence, head_hash FROM fencepost_runs WHERE run_id = ?1", run["run_id"]
    )
    assert (row["head_sequence"], row["head_hash"]) == (head.sequence, head.hash)
    return events


def test_a_binding_is_stored_and_is_an_event(client: Client, sql: Sql) -> None:
    run = client.started()
    answer = bind(client, run, a_binding(approval_proof={"by": "olga", "at": 1.0}))
    body = answer.json()
    assert (answer.status_code, body["outcome"]) == (200, "bound")
    [stored] = body["bindings"]
    assert stored.pop("created_at_ms") > 0
    assert stored == a_binding(approval_proof={"by": "olga", "at": 1})
    assert body["run"]["head"]["sequence"] == 2
    [_, event] = events_of(sql, run)
    assert event["type"] == "delivery-bound"
    assert json.loads(event["payload"]) == stored


def test_several_are_bound_at_once_each_with_its_event_in_the_order_sent(
    client: Client, sql: Sql
) -> None:
    run = client.started()
    wanted = [a_binding("b", 2, "1"), a_binding("a", 2, "2"), a_binding("b", 1, "3")]
    answer = bind(client, run, *wanted)
    assert (answer.status_code, round_trips(answer)) == (200, 2)
    payloads = [json.loads(event["payload"]) for event in events_of(sql, run)[1:]]
    assert payloads == wanted
    places = [(item["revision"], item["gate"]) for item in listed(client, run)]
    assert places == [(1, "b"), (2, "a"), (2, "b")]
    assert [item["gate"] for item in answer.json()["bindings"]] == ["b", "a", "b"]


def test_the_same_binding_again_is_replayed_and_writes_nothing(client: Client, sql: Sql) -> None:
    client = client.counting()
    run = client.started()
    wanted = [a_binding(approval_proof={"a": 1, "b": {}}), a_binding("b", approval_proof=None)]
    first = bind(client, run, *wanted, expected_head=run["head"])
    before = sql.dump()
    # Other order of members, 1.0 for 1, and null for a proof that is left out: all the same.
    same = [a_binding("b"), a_binding(approval_proof={"b": {}, "a": 1.0})]
    for head in ({}, {"expected_head": run["head"]}, {"expected_head": {**run["head"]}}):
        again = bind(client, run, *same, **head)
        assert (again.status_code, again.json()["outcome"]) == (200, "replayed")
        assert again.headers["Idempotent-Replayed"] == "true"
        assert again.json()["bindings"] == first.json()["bindings"]
        assert (round_trips(again), rows(again)[1]) == (1, 0)
    assert sql.dump() == before


@pytest.mark.parametrize(
    "other",
    [
        a_binding(digit="1", approval_proof={"by": "olga"}),
        a_binding(approval_proof={"by": "bob"}),
        a_binding(),
    ],
    ids=["receipt", "proof", "without the proof"],
)
@pytest.mark.parametrize("headed", [False, True])
def test_another_receipt_for_a_bound_gate_is_a_conflict_and_nothing_of_the_request_is_bound(
    client: Client, sql: Sql, other: Json, headed: bool
) -> None:
    run = client.started()
    head = bind(client, run, a_binding(approval_proof={"by": "olga"})).json()["run"]["head"]
    before = sql.dump()
    members = {"expected_head": head} if headed else {}
    answer = bind(client, run, a_binding("b", 7), other, a_binding("a", 2), **members)
    problem = answer.json()
    assert (answer.status_code, problem["code"]) == (409, "DELIVERY_REVISION_CONFLICT")
    assert (problem["gate"], problem["revision"]) == ("a", 1)
    assert problem["outcome"] == "delivery_revision_conflict"
    assert sql.dump() == before


@pytest.mark.parametrize("headed", [False, True])
def test_a_new_binding_beside_one_that_was_bound_is_bound(
    client: Client, sql: Sql, headed: bool
) -> None:
    run = client.started()
    head = bind(client, run, a_binding()).json()["run"]["head"]
    members = {"expected_head": head} if headed else {}
    answer = bind(client, run, a_binding("b"), a_binding(), a_binding("a", 2), **members)
    assert (answer.status_code, answer.json()["outcome"]) == (200, "bound")
    assert (len(answer.json()["bindings"]), round_trips(answer)) == (3, 2)
    assert len(events_of(sql, run)) == 4


def test_an_expected_head_costs_one_round_trip_and_must_be_the_head(
    client: Client, sql: Sql
) -> None:
    run = client.started()
    answer = bind(client, run, a_binding(), a_binding("b"), expected_head=run["head"])
    assert (answer.status_code, round_trips(answer)) == (200, 1)
    before = sql.dump()
    answer = bind(client, run, a_binding("a", 2), expected_head=run["head"])
    assert (answer.status_code, answer.json()["outcome"]) == (409, "head_changed")
    assert answer.json()["run"]["head"]["sequence"] == 3
    assert sql.dump() == before


def test_only_the_owner_of_a_running_run_binds(client: Client, sql: Sql) -> None:
    run = client.started()
    head = bind(client, run, a_binding()).json()["run"]["head"]
    before = sql.dump()
    stranger = {**run, "owner": an_owner()}
    for wanted in (a_binding(), a_binding("b"), a_binding(digit="1")):
        for members in ({}, {"expected_head": run["head"]}, {"expected_head": head}):
            answer = bind(client, stranger, wanted, **members)
            assert (answer.status_code, answer.json()["outcome"]) == (409, "fence_lost")
    assert bind(client.as_("bob"), run, a_binding("b")).status_code == 404
    assert client.as_("bob").get(f"/v1/runs/{run['run_id']}/bindings").status_code == 404
    assert bind(client, {**run, "run_id": "none"}, a_binding()).status_code == 404
    assert bind(client.as_("reader"), run, a_binding("b")).status_code == 403
    assert sql.dump() == before
    client.finish(run).raise_for_status()
    assert bind(client, run, a_binding("b")).json()["outcome"] == "fence_lost"
    assert len(listed(client, run)) == 1


@pytest.mark.parametrize(
    "wanted",
    [
        [],
        {},
        None,
        "a",
        [1],
        [a_binding("c")],
        [a_binding("A")],
        [a_binding(revision=0)],
        [a_binding(revision=-1)],
        [{**a_binding(), "revision": 1.5}],
        [{**a_binding(), "revision": True}],
        [a_binding(revision=2**53)],
        [a_binding(digit="A")],
        [{**a_binding(), "receipt_hash": "0" * 63}],
        [{**a_binding(), "receipt_hash": None}],
        [{"gate": "a", "revision": 1}],
        [a_binding(more=1)],
        [a_binding(approval_proof=[])],
        [a_binding(approval_proof="{}")],
        [a_binding(approval_proof={"n": 2**53})],
        [a_binding(), a_binding()],
        [a_binding(), a_binding(digit="1")],
        [a_binding("a", n + 1) for n in range(limits.BINDINGS_MAX + 1)],
        [a_binding(), a_binding("c")],
    ],
    ids=lambda wanted: str(wanted)[:60],
)
def test_an_invalid_list_of_bindings_binds_nothing(client: Client, sql: Sql, wanted: Any) -> None:
    run = client.started()
    before = sql.dump()
    answer = client.verb(run, "bindings", bindings=wanted)
    assert (answer.status_code, answer.json()["code"]) == (400, "INVALID_REQUEST")
    assert sql.dump() == before


def test_a_proof_is_as_long_as_the_limit_and_no_longer(client: Client, sql: Sql) -> None:
    run = client.started()
    room = limits.APPROVAL_PROOF_BYTES_MAX - len('{"p":""}')
    before = sql.dump()
    answer = bind(client, run, a_binding(approval_proof={"p": "x" * (room + 1)}))
    assert (answer.status_code, answer.json()["code"]) == (413, "TOO_LARGE")
    assert sql.dump() == before
    wanted = [
        a_binding(gate, revision, approval_proof={"p": "é" * (room // 2)})
        for revision in range(1, limits.BINDINGS_MAX // 2 + 1)
        for gate in "ab"
    ]
    answer = client.verb(run, "bindings", bindings=wanted[:20], expected_head=run["head"])
    assert answer.status_code == 200, answer.text
    small = [{**item, "approval_proof": {}} for item in wanted]
    other = client.started()
    answer = client.verb(other, "bindings", bindings=small, expected_head=other["head"])
    assert (answer.status_code, round_trips(answer)) == (200, 1), answer.text
    assert len(events_of(sql, other)) == 1 + limits.BINDINGS_MAX


def test_lists_page_through_everything_once_by_revision_and_gate(client: Client) -> None:
    run = client.started()
    places = [("b", 10), ("a", 2), ("b", 2), ("a", 10), ("a", 1), ("b", 9), ("a", 11)]
    bind(client, run, *[a_binding(gate, revision) for gate, revision in places])
    expected = sorted((revision, gate) for gate, revision in places)
    for limit in (1, 2, 3, 7, 100):
        found = [(item["revision"], item["gate"]) for item in listed(client, run, limit)]
        assert found == expected
    assert listed(client, client.started()) == []
    for cursor in ("[", opaque('["1"]'), opaque('["x", "a"]'), opaque('[1, "a"]')):
        path = f"/v1/runs/{run['run_id']}/bindings"
        assert client.get(path, params={"cursor": cursor}).status_code == 400


def test_a_lost_reply_converges_on_a_replay(client: Client, sql: Sql) -> None:
    run = client.started()
    body = {"owner": run["owner"], "bindings": [a_binding()], "expected_head": run["head"]}
    path = f"/v1/runs/{run['run_id']}/bindings"
    lost = client.post(path, body, headers={"X-Local-Fault": "lost,lost"})
    assert lost.json()["code"] == "WRITE_OUTCOME_UNKNOWN"
    assert client.post(path, body).json()["outcome"] == "replayed"
    assert len(events_of(sql, run)) == 2


def test_bindings_go_with_their_run(client: Client, sql: Sql) -> None:
    old, young = client.started(), client.started()
    for run in (old, young):
        bind(client, run, a_binding(), a_binding("b")).raise_for_status()
        client.finish(run).raise_for_status()
    sql("UPDATE fencepost_runs SET finished_at_ms = 1 WHERE run_id = ?1", old["run_id"])
    client.as_("operator").post("/v1/retention/purge", {}).raise_for_status()
    count = "SELECT COUNT(*) AS n FROM fencepost_bindings WHERE run_id = ?1"
    assert sql(count, old["run_id"]) == [{"n": 0}]
    assert sql(count, young["run_id"]) == [{"n": 2}]


@pytest.mark.parametrize(
    ("rule", "changed"),
    [
        ("gate is a or b", {"gate": "c"}),
        ("revision is whole, from 1 to 2^53−1", {"revision": 0}),
        ("revision is whole, from 1 to 2^53−1", {"revision": 1.5}),
        ("receipt_hash is 64 lowercase hexadecimal digits", {"receipt_hash": "A" * 64}),
        ("receipt_hash is 64 lowercase hexadecimal digits", {"receipt_hash": None}),
        ("approval_proof is a JSON object", {"approval_proof": "[]"}),
        ("approval_proof is a JSON object", {"approval_proof": "{"}),
    ],
)
def test_a_row_that_breaks_a_rule_is_refused(rule: str, changed: Json) -> None:
    row = a_binding(approval_proof=None, created_at_ms=1)
    assert Binding.from_row(row).place == (1, "a")
    with pytest.raises(errors.RowCorrupt) as caught:
        Binding.from_row({**row, **changed})
    assert caught.value.members["rule"] == rule


def test_without_tables_nothing_is_there_and_none_is_made(
    client: Client, empty_database: Sql
) -> None:
    ghost = {"run_id": "r", "owner": an_owner()}
    assert bind(client, ghost, a_binding()).status_code == 404
    assert client.get("/v1/runs/r/bindings").status_code == 404
    assert empty_database("SELECT name FROM sqlite_master WHERE name LIKE 'fencepost%'") == []


@pytest.mark.anyio
async def test_of_concurrent_bindings_one_wins_each_revision_and_the_history_is_one_line(
    bridge: dict[str, str], client: Client, sql: Sql
) -> None:
    async with connect_async(bridge["url"]) as http:
        for _ in range(ROUNDS):
            run = client.started()

            async def send(number: int, run: Json = run) -> httpx.Response:
                # Four rivals for each of three revisions, with a second binding of their own.
                wanted = [
                    a_binding("a", 1 + number % 3, "0123"[number // 3]),
                    a_binding("b", 10 + number),
                ]
                return await http.post(
                    f"/v1/runs/{run['run_id']}/bindings",
                    content=json.dumps({"owner": run["owner"], "bindings": wanted}),
                    headers={
                        "Authorization": "Bearer alice",
                        "X-Local-Isolate": str(number % 2),
                    },
                )

            answers = await asyncio.gather(*[send(number) for number in range(12)])
            won = [n for n, answer in enumerate(answers) if answer.status_code == 200]
            lost = {answer.json()["outcome"] for answer in answers if answer.status_code != 200}
            assert lost <= {"delivery_revision_conflict", "head_changed"}
            assert won
            assert len({number % 3 for number in won}) == len(won)
            stored = {(item["gate"], item["revision"]) for item in listed(client, run)}
            expected = [[("a", 1 + n % 3), ("b", 10 + n)] for n in won]
            assert stored == set(itertools.chain.from_iterable(expected))
            assert len(events_of(sql, run)) == 1 + 2 * len(won)
