"""Starting a run by what it is about: joining, making room, binding a change."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from typing import Any

import httpx
import pytest

from helpers import Client, Json, Sql, a_start, an_owner, connect_async, new_key, round_trips, rows


def start(client: Client, key: str | None = None, **subject: Any) -> httpx.Response:
    return client.start(key or new_key(), a_start(owner=an_owner(), subject=subject))


def name() -> str:
    return new_key("name").lower()


def run_of(answer: httpx.Response) -> Json:
    run: Json = answer.json()["run"]
    return run


def test_a_new_subject_starts_a_run_and_its_event_says_so(client: Client) -> None:
    change = name()
    answer = start(client, stage="delivery", change=change)
    assert (answer.status_code, answer.json()["outcome"]) == (201, "started")
    assert round_trips(answer) == 1
    run = run_of(answer)
    [event] = client.get(f"/v1/runs/{run['run_id']}/events").json()["items"]
    assert event["payload"]["subject"] == {"stage": "delivery", "change": change}
    assert client.get(f"/v1/runs/{run['run_id']}/integrity").json()["intact"]


def test_a_live_run_of_the_subject_is_joined(client: Client, sql: Sql) -> None:
    client = client.counting()
    change, key = name(), new_key()
    run = run_of(start(client, stage="delivery", change=change))
    joined = start(client, key, stage="delivery", change=change)
    assert (joined.status_code, joined.json()["outcome"]) == (200, "replayed")
    assert joined.headers["Idempotent-Replayed"] == "true"
    assert run_of(joined)["run_id"] == run["run_id"]
    assert run_of(joined)["status"] == "running"
    retry = start(client, key, stage="delivery", change=change)
    assert retry.json()["outcome"] == "replayed"
    assert rows(retry)[1] == 0
    client.finish(run, result=1).raise_for_status()
    assert run_of(start(client, key, stage="delivery", change=change))["result"] == 1
    states = sql("SELECT state FROM fencepost_reservations WHERE run_id = ?1", run["run_id"])
    assert [row["state"] for row in states] == ["terminal", "terminal"]


def test_an_ended_run_is_joined_too_and_owes_nothing(client: Client, sql: Sql) -> None:
    change, key = name(), new_key()
    run = run_of(start(client, stage="delivery", change=change))
    client.finish(run, result="done").raise_for_status()
    joined = start(client, key, stage="delivery", change=change)
    assert (run_of(joined)["run_id"], run_of(joined)["result"]) == (run["run_id"], "done")
    [held] = sql("SELECT * FROM fencepost_reservations WHERE key = ?1", key)
    assert (held["state"], held["outcome"]) == ("terminal", "completed")


def test_a_design_run_that_ended_makes_room(client: Client) -> None:
    change, key = name(), new_key()
    first = run_of(start(client, key, stage="design", change=change))
    assert run_of(start(client, stage="design", change=change))["run_id"] == first["run_id"]
    client.finish(first, "failed", result="no").raise_for_status()
    second = start(client, stage="design", change=change)
    assert second.status_code == 201
    assert run_of(second)["run_id"] != first["run_id"]
    replay = start(client, key, stage="design", change=change)
    assert run_of(replay)["run_id"] == first["run_id"]


def test_stages_and_principals_have_subjects_of_their_own(client: Client) -> None:
    change = name()
    answers = [
        start(client, stage="design", change=change),
        start(client, stage="delivery", change=change),
        start(client.as_("bob"), stage="delivery", change=change),
    ]
    assert [answer.status_code for answer in answers] == [201, 201, 201]


def test_a_provisional_run_is_found_by_any_of_its_names(client: Client) -> None:
    one, two, three = name(), name(), name()
    run = run_of(start(client, stage="design", provisional=one, aliases=[two]))
    assert run_of(start(client, stage="design", provisional=two))["run_id"] == run["run_id"]
    via = start(client, stage="design", provisional=three, aliases=[one])
    assert run_of(via)["run_id"] == run["run_id"]
    assert run_of(start(client, stage="design", provisional=three))["run_id"] == run["run_id"]


def test_names_that_lead_to_two_runs_are_a_conflict(client: Client, sql: Sql) -> None:
    one, two = name(), name()
    start(client, stage="design", provisional=one).raise_for_status()
    start(client, stage="design", provisional=two).raise_for_status()
    before = sql.dump()
    answer = start(client, stage="design", provisional=one, aliases=[two])
    assert (answer.status_code, answer.json()["code"]) == (409, "RUN_LOOKUP_CONFLICT")
    assert sql.dump() == before


def test_the_same_key_for_another_subject_is_a_conflict(client: Client, sql: Sql) -> None:
    key = new_key()
    start(client, key, stage="design", change=name()).raise_for_status()
    before = sql.dump()
    for subject in ({"stage": "design", "change": name()}, None):
        body = a_start(owner=an_owner(), **({"subject": subject} if subject else {}))
        answer = client.start(key, body)
        assert (answer.status_code, answer.json()["code"]) == (422, "START_SUBJECT_MISMATCH")
        assert answer.json()["retry"] == "new-key"
    assert sql.dump() == before


@pytest.mark.parametrize(
    "subject",
    [
        {},
        {"stage": "design"},
        {"stage": "design", "change": "a", "provisional": "b"},
        {"stage": "delivery", "provisional": "b"},
        {"stage": "design", "change": "a", "aliases": ["b"]},
        {"stage": "design", "provisional": "a", "aliases": list("bcdef")},
        {"stage": "design", "provisional": "a", "aliases": ["B"]},
        {"stage": "design", "change": "-a"},
        {"stage": "design", "change": "a-"},
        {"stage": "design", "change": "A"},
        {"stage": "design", "change": ""},
        {"stage": "design", "change": "a" * 129},
        {"stage": "design", "change": "a\n"},
        {"stage": "design", "change": "a", "more": 1},
        "design",
    ],
    ids=lambda subject: str(subject)[:60],
)
def test_an_invalid_subject_is_refused(client: Client, sql: Sql, subject: Any) -> None:
    before = sql.dump()
    answer = client.start(new_key(), a_start(subject=subject))
    assert (answer.status_code, answer.json()["code"]) == (400, "INVALID_REQUEST")
    assert sql.dump() == before


def test_a_joined_key_neither_releases_nor_resolves_the_run(client: Client, sql: Sql) -> None:
    change, key = name(), new_key()
    run = run_of(start(client, stage="delivery", change=change))
    start(client, key, stage="delivery", change=change).raise_for_status()
    answer = client.post(f"/v1/starts/{key}/release", {"owner": run["owner"]})
    assert (answer.status_code, answer.json()["code"]) == (409, "KEY_JOINED")
    sql.lapse(run["run_id"])
    seen = client.get(f"/v1/starts/{key}").json()["seen"]
    verdict = {"decision": "executed", "seen": seen, "note": "n"}
    answer = client.as_("operator").post(f"/v1/starts/{key}/resolve", verdict)
    assert (answer.status_code, answer.json()["code"]) == (409, "KEY_JOINED")
    starter = client.get(f"/v1/starts/{answer.json()['key']}").json()
    assert (starter["run"]["run_id"], starter["reservation"]["key"] == key) == (
        run["run_id"],
        False,
    )


def test_a_closed_fence_admits_no_subject_either(client: Client, sql: Sql) -> None:
    change = name()
    start(client, stage="delivery", change=change).raise_for_status()
    sql.fence("draining")
    before = sql.dump()
    for subject in (change, name()):
        answer = start(client, stage="delivery", change=subject)
        assert (answer.status_code, answer.json()["code"]) == (503, "EXECUTION_FENCED")
    assert sql.dump() == before


@pytest.mark.anyio
async def test_of_50_concurrent_starts_of_one_subject_one_starts_and_all_get_its_run(
    bridge: dict[str, str], sql: Sql
) -> None:
    async with connect_async(bridge["url"], 50) as http:

        async def one(n: int, change: str) -> httpx.Response:
            headers = {
                "Authorization": "Bearer alice",
                "Idempotency-Key": new_key(),
                "X-Local-Isolate": str(n % 2),
            }
            body = a_start(subject={"stage": "design", "change": change})
            return await http.post("/v1/starts", content=json.dumps(body), headers=headers)

        for _ in range(5):
            change = name()
            answers = await asyncio.gather(*[one(n, change) for n in range(50)])
            assert Counter(answer.status_code for answer in answers) == {201: 1, 200: 49}
            assert len({run_of(answer)["run_id"] for answer in answers}) == 1


# --- Binding -----------------------------------------------------------------------------


def bind(client: Client, run: Json, change: str) -> httpx.Response:
    return client.verb(run, "bind-change", change=change)


def test_a_provisional_run_is_bound_to_a_change_once(client: Client, sql: Sql) -> None:
    provisional, change, key = name(), name(), new_key()
    run = run_of(start(client, key, stage="design", provisional=provisional))
    answer = bind(client, run, change)
    assert (answer.status_code, answer.json()["outcome"]) == (200, "bound")
    assert run_of(start(client, stage="design", change=change))["run_id"] == run["run_id"]
    before = sql.dump()
    assert bind(client, run, change).json()["outcome"] == "bound"
    assert sql.dump() == before
    other = bind(client, run, name())
    assert (other.status_code, other.json()["code"]) == (409, "CHANGE_BINDING_NOT_ALLOWED")
    pending = start(client, key, stage="design", provisional=provisional)
    assert (pending.json()["code"], pending.json()["run_id"]) == ("START_PENDING", run["run_id"])
    client.finish(run, result="bound").raise_for_status()
    replay = start(client, key, stage="design", provisional=provisional)
    assert (run_of(replay)["run_id"], run_of(replay)["result"]) == (run["run_id"], "bound")
    events = client.get(f"/v1/runs/{run['run_id']}/events").json()["items"]
    assert (events[1]["type"], events[1]["payload"]) == ("change-bound", {"change": change})
    assert client.get(f"/v1/runs/{run['run_id']}/integrity").json()["intact"]


def test_a_change_that_has_a_live_run_is_taken(client: Client) -> None:
    change = name()
    rival = run_of(start(client, stage="design", change=change))
    run = run_of(start(client, stage="design", provisional=name()))
    answer = bind(client, run, change)
    assert (answer.status_code, answer.json()["code"]) == (409, "CHANGE_RUN_ALREADY_EXISTS")
    client.finish(rival).raise_for_status()
    assert bind(client, run, change).json()["outcome"] == "bound"


def test_only_a_provisional_design_run_is_bound_and_only_by_its_owner(client: Client) -> None:
    for subject in ({"stage": "delivery", "change": name()}, {"stage": "design", "change": name()}):
        run = run_of(start(client, **subject))
        assert bind(client, run, name()).json()["code"] == "CHANGE_BINDING_NOT_ALLOWED"
    assert bind(client, client.started(), name()).json()["code"] == "CHANGE_BINDING_NOT_ALLOWED"
    run = run_of(start(client, stage="design", provisional=name()))
    stranger = {**run, "owner": an_owner()}
    assert bind(client, stranger, name()).json()["outcome"] == "fence_lost"
    assert bind(client, run, "Not a change").status_code == 400


def test_a_run_that_never_was_provisional_takes_no_change_not_even_its_own(client: Client) -> None:
    change = new_key("c").lower()
    run = run_of(start(client, stage="design", change=change))
    for other in (change, new_key("c").lower()):
        lost = bind(client, run, other)
        assert (lost.status_code, lost.json()["code"]) == (409, "CHANGE_BINDING_NOT_ALLOWED")


def test_a_key_that_joins_a_run_is_told_so_at_once_with_the_runs_own_target(client: Client) -> None:
    subject = {"stage": "build", "change": new_key("c").lower()}
    run = client.started(subject=subject)
    assert client.get(f"/v1/starts/{run['key']}").json()["reservation"]["joined"] is False
    other = {"kind": "agent", "id": "writer", "thread_id": "t"}
    body = a_start(subject=subject, target=other, input="another")
    joined = client.start(new_key(), body, Prefer="wait=20")
    assert (joined.status_code, joined.json()["outcome"]) == (200, "replayed")
    assert joined.json()["reservation"]["joined"] is True
    assert joined.json()["run"]["target"] == run["target"] != other
    assert "Preference-Applied" not in joined.headers
