"""A verb with an `Idempotency-Key` has one effect, however often it is sent (DESIGN 9b).

What comes of lost replies, with a key and without: `test_lost_replies.py`.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections import Counter
from typing import Any

import httpx
import pytest

from fencepost.http.routes import ROUTES
from helpers import Client, Json, Sql, an_owner, connect_async, new_key, round_trips, rows
from mutations import COMPLETE, KEYED, SUSPEND, Row, by, verb
from worlds import World, said, spelled

# In the suite; CI runs 200 (`-m soak`).
ROUNDS = 2
ROUNDS_OF_CI = 200
GRANTS = {"owned", "activated", "claimed", "stolen", "acquired"}


def keyed_rows() -> list[Any]:
    return [pytest.param(row, id=name) for name, row in KEYED.items()]


def test_every_mutating_post_takes_a_key_but_the_renewals() -> None:
    keyed = {name.split(" ")[0] for name in KEYED} | {"/v1/starts"}
    for route in ROUTES:
        headers = {header.name for header in route.headers}
        takes_a_key = route.method == "POST" and route.pattern in keyed
        assert ("Idempotency-Key" in headers) == takes_a_key, route.pattern


def told(answer: httpx.Response, run: Json) -> Any:
    """The body, without the nonces of owners: a replay shows none but the caller's."""
    text = answer.text
    for name in ("owner", "other", "third"):
        text = text.replace(f',"nonce":"{run[name]["nonce"]}"', "")
    return json.loads(text)


@pytest.mark.parametrize("row", keyed_rows())
def test_a_retry_is_answered_as_the_first_was_in_one_trip_and_writes_nothing(
    client: Client, sql: Sql, row: Row
) -> None:
    client = client.counting()
    plain = World(client, sql, row)
    unkeyed = plain.act()
    world = World(client, sql, row)
    first = world.act(world.key())
    assert (first.status_code, said(first)) == (row.won, said(unkeyed))
    # One row more, and no more trips.
    assert round_trips(first) == round_trips(unkeyed)
    if row is not KEYED["/v1/fence/transitions"]:  # which is always sent with a key
        assert rows(first)[1] == rows(unkeyed)[1] + 1
    before = sql.dump()
    again = world.act(world.key())
    assert (again.status_code, told(again, world.run)) == (200, told(first, world.run))
    assert again.headers["Idempotent-Replayed"] == "true"
    assert "Idempotent-Replayed" not in first.headers
    assert (round_trips(again), rows(again)[1]) == (1, 0)
    assert sql.dump() == before


# --- Twice at once -----------------------------------------------------------------------


async def _twice(http: httpx.AsyncClient, request: Json) -> list[httpx.Response]:
    async def send(isolate: int) -> httpx.Response:
        headers = {**request["headers"], "X-Local-Isolate": str(isolate)}
        return await http.post(request["path"], content=request["body"], headers=headers)

    return list(await asyncio.gather(send(0), send(1)))


async def _race(
    bridge: dict[str, str], client: Client, sql: Sql, row: Row, rounds: int
) -> Counter[bool]:
    """The same request twice at once over two isolates; who was the replay."""
    replays: Counter[bool] = Counter()
    async with connect_async(bridge["url"]) as http:
        alone = World(client, sql, row)
        once = alone.act(alone.key())
        effects = alone.effects()
        for _ in range(rounds):
            world = World(client, sql, row)
            request = json.loads(spelled(_with(row, world), world.run))
            answers = await _twice(http, request)
            assert [answer.status_code for answer in answers] == [row.won] * 2, answers[0].text
            assert told(answers[0], world.run) == told(answers[1], world.run)
            assert said(answers[0]) == said(once)
            assert world.effects() == effects
            marks = ["Idempotent-Replayed" in answer.headers for answer in answers]
            assert sorted(marks) == [False, True]
            replays[marks[0]] += 1
    return replays


def _with(row: Row, world: World) -> Any:
    """The row's request, with its key and token, for `spelled`."""

    def send(client: Client, run: Json, headers: dict[str, str]) -> httpx.Response:
        return row.send(Client(client.http, world.client.token, client.check), run, world.key())

    return send


@pytest.mark.anyio
@pytest.mark.parametrize("row", keyed_rows())
async def test_the_same_key_twice_at_once_over_two_isolates_has_one_effect(
    bridge: dict[str, str], client: Client, sql: Sql, row: Row
) -> None:
    await _race(bridge, client, sql, row, ROUNDS)


@pytest.mark.soak
@pytest.mark.anyio
@pytest.mark.parametrize("row", keyed_rows())
async def test_the_same_key_twice_at_once_200_times_has_one_effect_each_time(
    bridge: dict[str, str], client: Client, sql: Sql, row: Row
) -> None:
    rounds = int(os.environ.get("ROUNDS", ROUNDS_OF_CI))
    assert sum((await _race(bridge, client, sql, row, rounds)).values()) == rounds


# --- What came meanwhile -----------------------------------------------------------------


def expected_again(first: httpx.Response, over: bool) -> tuple[tuple[int, Any], ...]:
    """What a retry may say: as before; or, of a grant that is over, that it is."""
    if over and first.json().get("outcome") in GRANTS:
        return ((409, "overtaken"),)
    return (said(first),)


@pytest.mark.parametrize("row", keyed_rows())
def test_a_retry_after_the_fence_closed_or_broke_is_answered_as_before(
    client: Client, sql: Sql, row: Row
) -> None:
    world = World(client, sql, row)
    first = world.act(world.key())
    for state in ("migration-locked", "ajar"):
        sql.fence(state)
        again = world.act(world.key())
        assert (said(again), again.headers["Idempotent-Replayed"]) == (said(first), "true")


@pytest.mark.parametrize("row", keyed_rows())
def test_a_retry_after_another_process_took_the_run_is_answered_as_before_or_overtaken(
    client: Client, sql: Sql, row: Row
) -> None:
    world = World(client, sql, row)
    sql(
        "UPDATE fencepost_snapshots SET state = '\"s-3-cr-3-t\"' WHERE run_id = ?1",
        world.run["run_id"],
    )
    first = world.act(world.key())
    taken = _take_over(client, sql, world.run)
    again = world.act(world.key())
    assert said(again) in expected_again(first, taken)
    assert world.run["third"]["nonce"] not in again.text
    if taken:
        _check_fewer_scopes(world, first)
        by("third", "transition", to="failed")(client, world.run, {}).raise_for_status()
        assert said(world.act(world.key())) in expected_again(first, taken)


def _check_fewer_scopes(world: World, first: httpx.Response) -> None:
    """Another process holds the run now, and the sender's token may do less than then."""
    for token in ("worker", "starter", "reader"):
        again = world.act(world.key(), token)
        if again.request.headers["Authorization"] != f"Bearer {token}":
            return  # an operator's
        if again.status_code == 200:
            assert said(again) == said(first)
            assert again.headers["Idempotent-Replayed"] == "true"
            assert "s-3-cr-3-t" not in again.text
        else:
            assert again.json()["code"] in ("SCOPE_MISSING", "OVERTAKEN")


def _take_over(client: Client, sql: Sql, run: Json) -> bool:
    """Let the third process own the run, if it has not ended. Whether it does."""
    at = f"/v1/runs/{run['run_id']}"
    sql(
        "UPDATE fencepost_runs SET claim_host_id = NULL, claim_pid = NULL, claim_nonce = NULL, "
        "claimed_at_ms = NULL, claim_heartbeat_at_ms = NULL WHERE run_id = ?1",
        run["run_id"],
    )
    now = client.get(at).json()
    if now.get("owner"):
        sql.lapse(run["run_id"])
    evidence = {"evidence": {"kind": "lease-expired", "expected_owner": now.get("owner")}}
    body = {"owner": run["third"], **(evidence if now.get("owner") else {})}
    return client.post(f"{at}/own", body).status_code == 200


# --- One key, one request ----------------------------------------------------------------


def test_the_same_key_with_another_body_or_verb_is_refused_and_nothing_is_written(
    client: Client, sql: Sql
) -> None:
    run, key = client.started(), {"Idempotency-Key": new_key()}
    verb("events", type="noted", payload=1)(client, run, key).raise_for_status()
    before = sql.dump()
    for other in (verb("events", type="noted", payload=2), COMPLETE, SUSPEND):
        answer = other(client, run, key)
        assert (answer.status_code, answer.json()["code"]) == (422, "IDEMPOTENCY_KEY_REUSED")
        assert answer.json()["retry"] == "new-key"
    assert sql.dump() == before


def test_a_hint_is_no_part_of_the_request(client: Client) -> None:
    run, key = client.started(), {"Idempotency-Key": new_key()}
    first = verb("events", type="noted")(client, run, key)
    hinted = verb("events", type="noted", head_hint=first.json()["run"]["head"])
    again = hinted(client, run, key)
    assert again.json() == first.json()
    assert again.headers["Idempotent-Replayed"] == "true"


def test_one_key_on_two_runs_or_by_two_principals_is_two_requests(client: Client, sql: Sql) -> None:
    key = {"Idempotency-Key": new_key()}
    runs = [client.started(), client.started()]
    for run in runs:
        answer = verb("events", type="noted")(client, run, key)
        assert "Idempotent-Replayed" not in answer.headers
    other = verb("events", type="noted")(client.as_("operator"), runs[0], key)
    assert (other.status_code, other.json()["event"]["sequence"]) == (200, 3)
    assert len(sql("SELECT 1 FROM fencepost_requests WHERE key = ?1", key["Idempotency-Key"])) == 3


def test_a_key_tells_nothing_about_a_run_that_the_sender_may_not_see(client: Client) -> None:
    run, key = client.started(), {"Idempotency-Key": new_key()}
    operator = client.as_("operator")
    operator.post(f"/v1/runs/{run['run_id']}/cancel", {}, headers=key).raise_for_status()
    foreign = client.as_("bob").post(f"/v1/runs/{run['run_id']}/cancel", {}, headers=key)
    nowhere = client.as_("bob").post("/v1/runs/run_nowhere/cancel", {}, headers=key)
    assert (foreign.status_code, foreign.json()) == (nowhere.status_code, nowhere.json())


def test_a_renewal_ignores_its_key(client: Client, sql: Sql) -> None:
    run, key = client.started(), {"Idempotency-Key": new_key()}
    for _ in range(2):
        answer = verb("heartbeat")(client, run, key)
        assert answer.status_code == 200
        assert "Idempotent-Replayed" not in answer.headers
    assert not sql("SELECT 1 FROM fencepost_requests WHERE run_id = ?1", run["run_id"])


def test_a_request_that_lost_is_judged_again(client: Client) -> None:
    run, key = client.started(), {"Idempotency-Key": new_key()}
    other = {**run, "owner": an_owner()}
    assert verb("events", type="noted")(client, other, key).status_code == 409
    client.finish(run, "suspended").raise_for_status()
    client.verb(other, "own").raise_for_status()
    assert verb("events", type="noted")(client, other, key).status_code == 200


def test_the_generation_that_was_granted_is_told_again_and_no_later_one(
    client: Client, sql: Sql
) -> None:
    run, key = client.started(), {"Idempotency-Key": new_key()}
    client.finish(run, "suspended").raise_for_status()
    first = verb("own")(client, run, key)
    assert first.json()["granted"] == {"generation": 2, "claimed_at_ms": None}
    client.finish(run, "suspended").raise_for_status()
    client.verb(run, "own").raise_for_status()
    again = verb("own")(client, run, key)
    assert (again.status_code, again.json()["outcome"]) == (409, "overtaken")
    assert again.json()["granted"]["generation"] == 2


def test_the_keys_of_a_run_are_purged_with_it_and_those_of_the_deployment_stay(
    client: Client, sql: Sql
) -> None:
    run, key = client.started(), {"Idempotency-Key": new_key()}
    COMPLETE(client, run, key).raise_for_status()
    sql("UPDATE fencepost_runs SET finished_at_ms = 5 WHERE run_id = ?1", run["run_id"])
    purge = {"Idempotency-Key": new_key()}
    operator = client.as_("operator")
    first = operator.post("/v1/retention/purge", {}, headers=purge).json()
    assert first["runs"] >= 1
    assert operator.post("/v1/retention/purge", {}, headers=purge).json() == first
    kept = sql("SELECT run_id FROM fencepost_requests WHERE key IN (?1, ?2)", *_names(key, purge))
    assert kept == [{"run_id": ""}]


def _names(*headers: dict[str, str]) -> list[str]:
    return [header["Idempotency-Key"] for header in headers]


# --- Without a key -----------------------------------------------------------------------


@pytest.mark.parametrize("name", ["own", "activate"])
def test_without_a_key_a_grant_converges_for_the_present_holder_alone(
    client: Client, sql: Sql, name: str
) -> None:
    run = client.started()
    client.finish(run, "suspended").raise_for_status()
    if name == "activate":
        client.verb(run, "claim").raise_for_status()
    first = client.verb(run, name)
    before = sql.dump()
    again = client.verb(run, name)
    assert (again.status_code, again.json()) == (200, first.json())
    assert sql.dump() == before
    assert client.verb({**run, "owner": an_owner()}, name).status_code == 409
    sql.lapse(run["run_id"])
    if name == "activate":
        assert client.verb(run, name).json()["outcome"] == "claim_lost"


def test_a_late_activation_of_an_earlier_claim_does_not_converge(client: Client) -> None:
    run = client.started()
    client.finish(run, "suspended").raise_for_status()
    claimed = client.verb(run, "claim").json()["granted"]["claimed_at_ms"]
    client.verb(run, "abandon").raise_for_status()
    client.verb(run, "own").raise_for_status()
    late = client.verb(run, "activate", claimed_at_ms=claimed)
    assert (late.status_code, late.json()["outcome"]) == (409, "claim_lost")


def test_without_a_key_an_end_converges_if_it_is_the_last_event_and_this_owners(
    client: Client, sql: Sql
) -> None:
    run = client.started()
    COMPLETE(client, run, {}).raise_for_status()
    before = sql.dump()
    again = COMPLETE(client, run, {})
    assert (again.status_code, again.json()["outcome"]) == (200, "transitioned")
    for other in (
        verb("transition", to="completed", result=2),
        verb("transition", to="failed", result=1),
        verb("transition", to="completed", result=1, generation=2),
        verb("transition", to="completed", result=1, expected_head=again.json()["run"]["head"]),
        verb("events", type="noted"),
    ):
        assert other(client, run, {}).status_code == 409
    stranger = {**run, "owner": an_owner()}
    assert COMPLETE(client, stranger, {}).json()["outcome"] == "fence_lost"
    assert sql.dump() == before


def test_an_end_does_not_converge_for_a_claimant_whose_claim_it_ended(
    client: Client, sql: Sql
) -> None:
    run, thief = client.started(), an_owner()
    sql.lapse(run["run_id"])
    evidence = {"kind": "lease-expired", "expected_owner": run["owner"]}
    client.verb({**run, "owner": thief}, "steal", evidence=evidence).raise_for_status()
    COMPLETE(client, run, {}).raise_for_status()
    late = COMPLETE(client, {**run, "owner": thief}, {})
    assert (late.status_code, late.json()["outcome"]) == (409, "fence_lost")


# --- What an attack found ----------------------------------------------------------------


def test_a_cancel_of_a_lineage_that_was_cut_off_is_remembered_with_its_last_round(
    client: Client, sql: Sql
) -> None:
    lineage, key = new_key("lineage"), {"Idempotency-Key": new_key()}
    running = client.started(lineage={"id": lineage, "round": 1})
    waiting = client.started(lineage={"id": lineage, "round": 2})
    body = {"owner": waiting["owner"]}
    client.post(f"/v1/starts/{waiting['key']}/release", body).raise_for_status()
    path = f"/v1/runs/{running['run_id']}/lineage/cancel"
    cut_off = client.post(path, {}, headers={**key, "X-Local-Fault": "pass,lost,lost"})
    assert cut_off.json()["code"] == "WRITE_OUTCOME_UNKNOWN"
    again = client.post(path, {}, headers=key)
    assert (again.status_code, again.json()["outcome"]) == (200, "cancel_requested")
    for run in (running, waiting):
        facts = client.get(f"/v1/runs/{run['run_id']}/ownership").json()["items"]
        assert [fact["type"] for fact in facts].count("cancel-requested") == 1


def test_an_answer_after_a_lost_reply_shows_no_content_of_another_process(
    client: Client, sql: Sql
) -> None:
    run, other = client.started(), an_owner()
    client.verb(run, "transition", to="running", state="s-3-cr-3-t").raise_for_status()
    rival = spelled(by("other", "own"), {**run, "other": other})
    headers = {
        "Idempotency-Key": new_key(),
        "X-Local-Fault": "pass,lost",
        "X-Local-Rival": rival,
    }
    answer = SUSPEND(client.as_("worker"), run, headers)
    assert (answer.status_code, answer.json()["outcome"]) == (200, "transitioned")
    assert answer.json()["run"]["owner"]["host_id"] == other["host_id"]
    assert "s-3-cr-3-t" not in answer.text


def test_a_keyed_fence_command_that_is_refused_writes_no_fence(client: Client, sql: Sql) -> None:
    sql("DELETE FROM fencepost_fence")
    operator, key = client.as_("operator"), {"Idempotency-Key": new_key()}
    run = client.started()
    COMPLETE(client, run, {}).raise_for_status()
    sql("UPDATE fencepost_runs SET finished_at_ms = 5 WHERE run_id = ?1", run["run_id"])
    operator.post("/v1/retention/purge", {}, headers=key).raise_for_status()
    body = {"expected": "open", "next": "draining"}
    answer = operator.post("/v1/fence/transitions", body, headers=key)
    assert (answer.status_code, answer.json()["code"]) == (422, "IDEMPOTENCY_KEY_REUSED")
    assert not sql("SELECT 1 FROM fencepost_fence")
