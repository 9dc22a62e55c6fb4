"""Inputs that broke systems like this one in public; each test names its report.

The list is the project's; its line 11 (a reply of D1 lost after the commit) has tests of its own.
"""

from __future__ import annotations

import ast
import asyncio
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from helpers import Client, Json, Sql, a_start, an_owner, connect_async, new_key

SOURCES = sorted((Path(__file__).parent.parent / "src").rglob("*.py"))


def starts(sql: Sql) -> int:
    """How many runs there are at all."""
    count: int = sql("SELECT COUNT(*) AS n FROM fencepost_runs")[0]["n"]
    return count


def start_with(client: Client, *keys: str | bytes) -> httpx.Response:
    """A start with these Idempotency-Key headers, as bytes of the caller's choice."""
    headers = [(b"Authorization", f"Bearer {client.token}".encode())]
    headers += [
        (b"Idempotency-Key", key if isinstance(key, bytes) else key.encode()) for key in keys
    ]
    return client.http.post("/v1/starts", headers=headers, content=json.dumps(a_start()))


async def at_once(
    bridge: dict[str, str],
    key: str,
    bodies: list[Json],
    token: str = "alice",  # noqa: S107
) -> list[httpx.Response]:
    """One start per body under one key, all at the same time, over both isolates."""
    async with connect_async(bridge["url"], len(bodies)) as http:
        return await asyncio.gather(
            *(
                http.post(
                    "/v1/starts",
                    content=json.dumps(body),
                    headers={
                        "Authorization": f"Bearer {token}",
                        "Idempotency-Key": key,
                        "X-Local-Isolate": str(number % 2),
                    },
                )
                for number, body in enumerate(bodies)
            )
        )


def test_1_a_comma_in_the_key_or_two_headers_never_share_a_run(client: Client, sql: Sql) -> None:
    """cloudflare/workerd #5678, #5915: the runtime split, or joined, values at commas."""
    before = starts(sql)
    for keys in (["order,1"], ["order,2"], ['"order,1"'], ["order-1", "order-2"], ["o", "o"]):
        answer = start_with(client, *keys)
        assert answer.status_code == 400
        assert answer.json()["code"] == "IDEMPOTENCY_KEY_INVALID"
    assert starts(sql) == before


def test_2_bytes_that_are_not_ascii_never_become_one_key(client: Client, sql: Sql) -> None:
    r"""cloudflare/workerd #6927: \xff and \xfe both decoded to U+FFFD."""
    before = starts(sql)
    for key in (b"\xff", b"\xfe", b"order-\xff", "\ufffd".encode(), "é".encode(), b"\xe9"):
        answer = start_with(client, key)
        assert answer.status_code == 400
        assert answer.json()["code"] == "IDEMPOTENCY_KEY_INVALID"
    assert starts(sql) == before


@pytest.mark.anyio
async def test_3_fifty_at_once_and_again_while_it_runs_start_one_run(
    bridge: dict[str, str], client: Client, sql: Sql
) -> None:
    """accept-io/midas #14, dbos-inc/dbos-transact-py #544."""
    key, before = new_key(), starts(sql)
    first = await at_once(bridge, key, [a_start()] * 50)
    assert Counter(answer.status_code for answer in first) == {201: 1, 409: 49}
    again = await at_once(bridge, key, [a_start()] * 50)
    assert {answer.status_code for answer in again} == {409}
    losers = [answer for answer in [*first, *again] if answer.status_code == 409]
    assert {answer.json()["code"] for answer in losers} == {"START_PENDING"}
    [won] = [answer.json()["run"] for answer in first if answer.status_code == 201]
    assert {answer.json()["run_id"] for answer in losers} == {won["run_id"]}
    assert starts(sql) == before + 1


def test_4_the_same_key_for_another_target_is_refused_by_its_name(client: Client, sql: Sql) -> None:
    """dbos-inc/dbos-transact-ts #725: the other workflow got the first one's result."""
    run = client.started()
    before = sql.dump()
    for target in (
        {"kind": "workflow", "id": "refund"},
        {"kind": "agent", "id": "charge", "thread_id": "t"},
    ):
        answer = client.start(run["key"], a_start(target=target))
        assert answer.status_code == 422
        assert answer.json()["code"] == "START_TARGET_MISMATCH"
        assert answer.json()["target"] == {"kind": "workflow", "id": "charge"}
    assert sql.dump() == before
    assert client.finish(run, result="unharmed").status_code == 200
    assert client.start(run["key"]).json()["run"]["result"] == "unharmed"


@pytest.mark.anyio
async def test_5_the_loser_of_the_insert_with_another_body_gets_the_same_422(
    bridge: dict[str, str], client: Client
) -> None:
    """aws-powertools/powertools-lambda-typescript #2058: only the slow path checked."""
    for _ in range(5):
        key = new_key()
        answers = await at_once(bridge, key, [a_start(input=n % 2) for n in range(12)])
        [winner] = [answer for answer in answers if answer.status_code == 201]
        won = winner.json()["run"]["state"]
        for number, answer in enumerate(answers):
            if number % 2 == won:
                assert answer.status_code in (201, 409)
                continue
            slow = client.start(key, a_start(input=number % 2))
            assert answer.status_code == slow.status_code == 422
            assert answer.json() == slow.json()
            assert answer.json()["code"] == "START_INPUT_MISMATCH"


def test_6_bodies_are_compared_by_what_they_say(client: Client) -> None:
    """aws-powertools/powertools-lambda-python #638; agentic-commerce-protocol #120."""

    def start(key: str, text: str) -> httpx.Response:
        body = '{"input": %s, "target": {"id": "w", "kind": "workflow"}}' % text  # noqa: UP031
        headers = {"Idempotency-Key": key}
        return client.request("POST", "/v1/starts", content=body.encode(), headers=headers)

    for one, other, same in [
        ('{"a":1,"b":[2,{"c":3,"d":4}]}', ' { "b" : [2, {"d":4,"c":3}],\n"a":1 } ', True),
        ("12345", "12345.0", True),
        ("12345", "1.2345e4", True),
        ("0", "-0.0", True),
        ('"\\u00e9\\ud83d\\ude00\\/"', '"é\U0001f600/"', True),
        ('{"f":null}', "{}", False),
        ("[1,2]", "[2,1]", False),
        ("12345", '"12345"', False),
        ("1", "true", False),
        ('"é"', '"e\\u0301"', False),
        ("9007199254740991", "9007199254740990", False),
    ]:
        key = new_key()
        first = start(key, one)
        assert first.status_code == 201
        client.finish(first.json()["run"]).raise_for_status()
        again = start(key, other)
        code = (again.status_code, again.json().get("code"))
        assert code == ((200, None) if same else (422, "START_INPUT_MISMATCH")), (one, other)
    for text in ('{"a":1,"a":1}', '"\\ud800"', "NaN", "9007199254740993"):
        assert start(new_key(), text).status_code == 400, text


def test_7_requests_without_a_key_never_replay_each_other(client: Client, sql: Sql) -> None:
    """aws-powertools/powertools-lambda-typescript #1501: all keyless ones replayed the first."""
    before = sql.dump()
    for keys in ([], [""], ['""'], ['" "'], ["", ""], ['""', '""']):
        for _ in range(2):
            answer = start_with(client, *keys)
            assert answer.status_code == 400
            missing = "IDEMPOTENCY_KEY_INVALID" if keys else "IDEMPOTENCY_KEY_MISSING"
            assert answer.json()["code"] == missing
    assert sql.dump() == before


def test_8_a_crash_between_the_commit_and_the_reply_runs_nothing_twice(
    client: Client, sql: Sql
) -> None:
    """VilledeMontreal/express-idempotency #32: the key stayed locked, or ran again."""
    key, mine, before = new_key(), a_start(owner=an_owner()), starts(sql)
    lost = client.start(key, mine, X_Local_Fault="lost,lost")
    assert lost.status_code == 503
    assert (lost.json()["code"], lost.json()["retry"]) == ("WRITE_OUTCOME_UNKNOWN", "same-key")

    retry = client.start(key, mine)
    assert (retry.status_code, retry.json()["outcome"]) == (200, "started")
    run = retry.json()["run"]
    assert run["generation"] == 1

    other = client.start(key, a_start(owner=an_owner()))
    assert (other.status_code, other.json()["code"]) == (409, "START_PENDING")

    sql.lapse(run["run_id"])
    other = client.start(key, a_start(owner=an_owner()))
    assert (other.status_code, other.json()["code"]) == (409, "START_UNRESOLVABLE")
    assert other.json()["run_id"] == run["run_id"]
    assert starts(sql) == before + 1

    # The way out: somebody answers for the first owner's end, and carries the same run on.
    evidence = {"kind": "lease-expired", "expected_owner": run["owner"]}
    heir = {"owner": an_owner(), "evidence": evidence}
    owned = client.as_("operator").post(f"/v1/runs/{run['run_id']}/own", heir)
    assert owned.json()["run"]["generation"] == 2
    assert client.verb(run, "heartbeat").json()["code"] == "FENCE_LOST"
    client.finish(owned.json()["run"], result="once").raise_for_status()
    assert client.start(key, mine).json()["run"]["result"] == "once"


def test_8_a_crash_before_the_commit_leaves_the_key_free(client: Client, sql: Sql) -> None:
    key, before = new_key(), sql.dump()
    assert client.start(key, X_Local_Fault="drop,drop").json()["code"] == "WRITE_OUTCOME_UNKNOWN"
    assert sql.dump() == before
    assert client.start(key).status_code == 201


def test_9_a_rotated_token_is_the_same_principal_and_another_principal_learns_nothing(
    client: Client,
) -> None:
    """RamaAditya49/titen #104, #37: keys belonged to the token, not to who sent it."""
    key, body = new_key(), a_start(owner=an_owner())
    run = client.start(key, body).json()["run"]
    rotated = client.as_("alice-rotated")
    assert rotated.start(key, body).json()["run"] == run
    assert rotated.start(key).json()["run_id"] == run["run_id"]
    assert rotated.verb(run, "heartbeat").status_code == 200
    foreign = client.as_("bob").start(key, body)
    assert foreign.status_code == 403
    assert foreign.json()["code"] == "START_OWNER_MISMATCH"
    for secret in (run["run_id"], "alice", "charge", "running"):
        assert secret not in foreign.text


def test_10_no_time_comes_from_a_client(client: Client, sql: Sql) -> None:
    """johanhaleby/occurrent #659: a lease held by the clock of its holder."""
    run = client.started()
    before = sql.dump()
    evidence = {"kind": "lease-expired", "expected_owner": run["owner"]}
    for name in (
        "now_ms",
        "at_ms",
        "created_at_ms",
        "started_at_ms",
        "heartbeat_at_ms",
        "lease_expires_at_ms",
        "finished_at_ms",
    ):
        time = {name: 1}
        answers = [
            client.start(new_key(), a_start(**time)),
            client.verb(run, "heartbeat", **time),
            client.verb(run, "own", **time),
            client.verb(run, "own", evidence={**evidence, "checked_at_ms": 1}),
            client.verb(run, "transition", to="completed", **time),
            client.post(f"/v1/starts/{run['key']}/release", {"owner": run["owner"], **time}),
        ]
        assert {answer.status_code for answer in answers} == {400}
    assert sql.dump() == before


def test_10_a_lease_never_moves_backwards(client: Client, sql: Sql) -> None:
    run = client.started(lease_ms=600_000)
    shorter = client.verb(run, "heartbeat", lease_ms=1000).json()["run"]
    assert shorter["lease_expires_at_ms"] >= run["lease_expires_at_ms"]
    # The database's clock was ahead, and was set back.
    ahead = run["heartbeat_at_ms"] + 3_600_000
    sql(
        "UPDATE fencepost_runs SET heartbeat_at_ms = ?2, updated_at_ms = ?2, "
        "lease_expires_at_ms = ?2 + 1000 WHERE run_id = ?1",
        run["run_id"],
        ahead,
    )
    later = client.verb(run, "heartbeat").json()["run"]
    assert later["heartbeat_at_ms"] == ahead
    assert later["lease_expires_at_ms"] == ahead + 1000
    ended = client.finish(run).json()["run"]
    assert ended["finished_at_ms"] >= ahead


CLOCKS_AND_CHANCE = {"time", "datetime", "date", "random", "secrets", "uuid"}
READINGS = {"urandom", "getrandom", "now", "utcnow", "today", "uuid4", "mint_token", "mint_run_id"}


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.name)
def test_10_nothing_reads_a_clock_or_chance_at_import(source: Path) -> None:
    """cloudflare/workerd #6839: at module scope, Date.now() is 0 in a deployed Worker."""
    for node in executed_at_import(ast.parse(source.read_text())):
        if isinstance(node, ast.Call):
            name = ast.unparse(node.func).split(".")
            assert name[0] not in CLOCKS_AND_CHANCE, ast.unparse(node)
            assert name[-1] not in READINGS, ast.unparse(node)


def executed_at_import(node: ast.AST) -> Iterator[ast.AST]:
    """All nodes but the bodies of functions; their decorators and defaults run at import."""
    yield node
    for field, value in ast.iter_fields(node):
        if field == "body" and isinstance(
            node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda
        ):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from executed_at_import(child)


def test_12_none_is_null_both_ways_and_what_no_double_holds_is_refused(
    client: Client, sql: Sql
) -> None:
    """cloudflare/workers-sdk #2745, pyodide/pyodide #5849, cloudflare/workerd #4195."""
    run = client.started(input=None)
    [row] = sql(
        "SELECT parent_run_id, lineage_id, lineage_round, finished_at_ms, thread_id, state, "
        "result FROM fencepost_runs JOIN fencepost_snapshots USING (run_id) WHERE run_id = ?1",
        run["run_id"],
    )
    # SQL NULL is what is not there; the text `null` is a value that somebody sent.
    assert row.pop("state") == "null"
    assert set(row.values()) == {None}
    for name in ("parent_run_id", "lineage", "finished_at_ms", "state", "result", "claim"):
        assert run[name] is None
    ended = client.finish(run, result=[None, {"a": None}]).json()["run"]
    assert ended["result"] == [None, {"a": None}]
    assert ended["owner"] is None

    before = sql.dump()
    for text in ("9007199254740993", "-9007199254740993", "NaN", "Infinity", "1e999"):
        body = '{"target":{"kind":"workflow","id":"w"},"input":[' + text + "]}"
        headers = {"Idempotency-Key": new_key()}
        answer = client.request("POST", "/v1/starts", content=body, headers=headers)
        assert (answer.status_code, answer.json()["code"]) == (400, "INVALID_REQUEST")
    assert sql.dump() == before


def test_13_a_batch_that_fails_half_way_leaves_nothing_of_a_start(client: Client, sql: Sql) -> None:
    """cloudflare/miniflare #484: [valid, failing] left the valid row."""
    key, before = new_key(), sql.dump()
    # The event comes after the reservation, the run and its state.
    sql(
        "CREATE TRIGGER half_way BEFORE INSERT ON fencepost_events "
        "BEGIN SELECT RAISE(ABORT, 'HALF_WAY'); END"
    )
    try:
        answer = client.start(key)
    finally:
        sql("DROP TRIGGER half_way")
    assert answer.status_code == 503
    assert (answer.json()["code"], answer.json()["retry"]) == ("STORAGE_REFUSED", "same-key")
    assert "HALF_WAY" not in answer.text
    assert sql.dump() == before
    assert client.start(key).status_code == 201


def test_14_every_conflict_says_whether_to_send_it_again(client: Client, sql: Sql) -> None:
    """KeeperHub/keeperhub #1922: one 409 for all, and clients retried what could never work."""
    run, lapsed, purged, ended = (client.started() for _ in range(4))
    sql.lapse(lapsed["run_id"])
    client.finish(purged).raise_for_status()
    purge(sql, purged)
    client.finish(ended).raise_for_status()
    evidence = {"kind": "lease-expired", "expected_owner": run["owner"]}
    stranger = an_owner()

    def own(which: Json, **members: Any) -> httpx.Response:
        return client.post(f"/v1/runs/{which['run_id']}/own", {"owner": stranger, **members})

    refund = a_start(target={"kind": "workflow", "id": "refund"})
    answers = {
        ("START_PENDING", "same-key"): client.start(run["key"]),
        ("START_UNRESOLVABLE", "same-key"): client.start(lapsed["key"]),
        ("START_ALREADY_SETTLED", "never"): client.start(purged["key"]),
        ("START_OWNER_MISMATCH", "new-key"): client.as_("bob").start(run["key"]),
        ("START_TARGET_MISMATCH", "new-key"): client.start(run["key"], refund),
        ("START_INPUT_MISMATCH", "new-key"): client.start(run["key"], a_start(input=0)),
        ("HEARTBEAT_FRESH", "same-key"): own(run, evidence=evidence),
        ("EVIDENCE_REQUIRED", "never"): own(lapsed),
        ("SNAPSHOT_CHANGED", "never"): own(ended),
        ("FENCE_LOST", "never"): client.verb(ended, "heartbeat"),
        ("HEAD_CHANGED", "never"): client.finish(
            run, expected_head={"sequence": 7, "hash": "a" * 64}
        ),
        ("GUARD_FAILED", "never"): client.finish(run, guard={"cancel_requested": "present"}),
    }
    for (code, retry), answer in answers.items():
        problem = answer.json()
        assert (problem["code"], problem["retry"]) == (code, retry)
        assert answer.status_code in (403, 409, 422)
        assert ("Retry-After" in answer.headers) == (retry == "same-key")


def purge(sql: Sql, run: Json) -> None:
    """What retention deletes of a run that ended; its reservation outlives it."""
    for table in ("runs", "snapshots", "events", "ownership"):
        sql(f"DELETE FROM fencepost_{table} WHERE run_id = ?1", run["run_id"])


def test_15_a_retry_long_after_the_end_replays_and_never_runs_again(
    client: Client, sql: Sql
) -> None:
    """temporalio/temporal #11968: a retry after the end started a second run."""
    run = client.started()
    client.finish(run, result={"charged": True}).raise_for_status()
    sql(
        "UPDATE fencepost_reservations SET created_at_ms = 1, updated_at_ms = 2 WHERE key = ?1",
        run["key"],
    )
    sql(
        "UPDATE fencepost_runs SET created_at_ms = 1, started_at_ms = 1, finished_at_ms = 2, "
        "updated_at_ms = 2 WHERE run_id = ?1",
        run["run_id"],
    )
    for _ in range(2):
        late = client.start(run["key"])
        assert (late.status_code, late.headers["Idempotent-Replayed"]) == (200, "true")
        assert late.json()["run"]["run_id"] == run["run_id"]
        assert late.json()["run"]["result"] == {"charged": True}

    purge(sql, run)
    before = sql.dump()
    for _ in range(2):
        late = client.start(run["key"])
        assert (late.status_code, late.json()["code"]) == (409, "START_ALREADY_SETTLED")
        assert (late.json()["retry"], late.json()["run_id"]) == ("never", run["run_id"])
    assert sql.dump() == before
