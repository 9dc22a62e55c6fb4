"""Machines: a run that names one moves only along its table (docs/states.md)."""

from __future__ import annotations

import itertools
import json

import pytest

from fencepost import machines
from fencepost.runs import MachineState, RunStatus
from helpers import Client, Json, Sql, a_start, an_owner, new_key, round_trips

# Written out from the contract, a second time and in another form: what each state may not miss.
STATES = [
    *("created", "validating-delivery", "ready", "queued", "connecting", "running"),
    *("validating", "verifying", "retryable", "paused", "approval-needed", "change-verifying"),
    *("ready-to-apply", "applying", "recovering", "completed", "discarded", "rejected"),
]
INTO = {
    "created": "",
    "validating-delivery": "created paused approval-needed",
    "ready": "validating-delivery paused",
    "queued": "ready running retryable paused",
    "connecting": "queued retryable paused",
    "running": "ready queued connecting validating verifying retryable paused change-verifying",
    "validating": "running",
    "verifying": "running validating",
    "retryable": "connecting running validating verifying change-verifying",
    "paused": (
        "created validating-delivery ready queued connecting running validating verifying "
        "retryable paused approval-needed change-verifying ready-to-apply recovering"
    ),
    "approval-needed": ("validating-delivery running validating verifying paused change-verifying"),
    "change-verifying": "running verifying",
    "ready-to-apply": "change-verifying",
    "applying": "ready-to-apply recovering",
    "recovering": "paused applying",
    "completed": "paused applying recovering",
    "discarded": (
        "created validating-delivery ready queued connecting running validating verifying "
        "retryable paused approval-needed change-verifying ready-to-apply recovering"
    ),
    "rejected": "created validating-delivery ready paused approval-needed recovering",
}
LEGAL = {(before, after) for after, befores in INTO.items() for before in befores.split()}
ENDS = {"completed": "completed", "discarded": "cancelled", "rejected": "failed"}


def a_delivery(client: Client, sql: Sql, state: str = "created", **members: str) -> Json:
    """A run whose machine stands at `state`."""
    run = client.started(machine="delivery", **members)
    sql(
        "UPDATE fencepost_runs SET machine_state = ?2 WHERE run_id = ?1 AND ?2 <> 'created'",
        run["run_id"],
        state,
    )
    return run


def refused(client: Client, sql: Sql, run: Json, **members: object) -> Json:
    """The problem of a transition that changes nothing."""
    before = sql.dump()
    answer = client.verb(run, "transition", **members)
    assert answer.status_code == 409, answer.text
    assert sql.dump() == before
    problem: Json = answer.json()
    return problem


def test_the_registered_table_is_the_contracts() -> None:
    delivery = machines.MACHINES["delivery"]
    assert set(delivery.moves) == set(STATES)
    assert {(a, b) for a, following in delivery.moves.items() for b in following} == LEGAL
    assert delivery.initial == "created"
    assert {state: str(end) for state, end in delivery.ends.items()} == ENDS
    assert {state for state, following in delivery.moves.items() if not following} == set(ENDS)


def test_a_run_starts_in_the_first_state_of_the_machine_it_names(client: Client, sql: Sql) -> None:
    run = client.started(machine="delivery")
    assert run["machine"] == {"name": "delivery", "state": "created"}
    assert client.started()["machine"] is None
    [event] = sql("SELECT payload FROM fencepost_events WHERE run_id = ?1", run["run_id"])
    assert json.loads(event["payload"])["machine"] == "delivery"
    assert client.get(f"/v1/runs/{run['run_id']}").json()["machine"] == run["machine"]


@pytest.mark.parametrize("machine", ["", "Delivery", "delivery ", 1, ["delivery"]], ids=str)
def test_an_invalid_machine_starts_nothing(client: Client, sql: Sql, machine: object) -> None:
    before = sql.dump()
    answer = client.start(new_key(), a_start(machine=machine))
    assert (answer.status_code, answer.json()["code"]) == (400, "INVALID_REQUEST")
    assert sql.dump() == before


def test_a_retry_that_names_another_machine_or_none_replays(client: Client) -> None:
    run = client.started(machine="delivery")
    client.finish(run, "failed").raise_for_status()
    answer = client.start(run["key"], a_start())
    assert (answer.status_code, answer.json()["outcome"]) == (200, "replayed")
    assert answer.json()["run"]["machine"]["name"] == "delivery"


@pytest.mark.parametrize(("before", "after"), sorted(LEGAL))
def test_every_move_of_the_contract_is_made(
    client: Client, sql: Sql, before: str, after: str
) -> None:
    run = a_delivery(client, sql, before)
    answer = client.verb(run, "transition", machine=after, expected_head=run["head"])
    assert (answer.status_code, round_trips(answer)) == (200, 1), answer.text
    moved = answer.json()["run"]
    assert moved["machine"] == {"name": "delivery", "state": after}
    assert moved["status"] == ENDS.get(after, "running")
    [held] = sql("SELECT state, outcome FROM fencepost_reservations WHERE key = ?1", run["key"])
    assert held["outcome"] == ENDS.get(after)
    [event] = sql(
        "SELECT payload FROM fencepost_events WHERE run_id = ?1 AND sequence = 2", run["run_id"]
    )
    assert json.loads(event["payload"]) == {
        "from": "running",
        "to": ENDS.get(after, "running"),
        "machine": {"to": after},
    }


@pytest.mark.parametrize("before", STATES)
def test_no_other_move_is_made_and_nothing_is_written(
    client: Client, sql: Sql, before: str
) -> None:
    run = a_delivery(client, sql, before)
    for after in STATES:
        if (before, after) in LEGAL:
            continue
        for head in ({}, {"expected_head": run["head"]}):
            problem = refused(client, sql, run, machine=after, **head)
            assert (problem["code"], problem["outcome"]) == (
                "ILLEGAL_TRANSITION",
                "illegal_transition",
            )
            assert (problem["from_state"], problem["to_state"]) == (before, after)
            assert "state" not in problem["run"]


def test_a_pause_code_stays_until_the_next_move(client: Client, sql: Sql) -> None:
    run = client.started(machine="delivery")
    answer = client.verb(run, "transition", machine="paused", code="budget.spent")
    paused = {"name": "delivery", "state": "paused", "code": "budget.spent"}
    assert answer.json()["run"]["machine"] == paused
    [event] = sql(
        "SELECT payload FROM fencepost_events WHERE run_id = ?1 AND sequence = 2", run["run_id"]
    )
    moved = json.loads(event["payload"])["machine"]
    assert moved == {"to": "paused", "code": "budget.spent"}
    # A checkpoint is no move; pausing again without a code drops it, and so does going on.
    assert client.finish(run, "running", state=1).json()["run"]["machine"] == paused
    again = client.verb(run, "transition", machine="paused").json()["run"]
    assert again["machine"] == {"name": "delivery", "state": "paused"}
    client.verb(run, "transition", machine="paused", code="x").raise_for_status()
    ready = client.verb(run, "transition", machine="ready").json()["run"]
    assert ready["machine"] == {"name": "delivery", "state": "ready"}


@pytest.mark.parametrize(
    "members",
    [
        {"machine": "paused", "code": ""},
        {"machine": "paused", "code": "two words"},
        {"machine": "paused", "code": "c" * 201},
        {"machine": "paused", "code": 1},
        {"machine": "discarded", "code": "why"},
        {"to": "running", "code": "why"},
        {"machine": "lost"},
        {"machine": ""},
        {"machine": None},
        {"machine": ["paused"]},
        {"machine": "paused", "to": "completed"},
        {"machine": "paused", "to": "pending"},
        {"machine": "paused", "result": 1},
        {},
    ],
    ids=str,
)
def test_an_invalid_move_is_refused(client: Client, sql: Sql, members: Json) -> None:
    run = client.started(machine="delivery")
    before = sql.dump()
    answer = client.verb(run, "transition", **members)
    assert (answer.status_code, answer.json()["code"]) == (400, "INVALID_REQUEST")
    assert sql.dump() == before


def test_a_run_is_completed_only_once_its_machine_has_ended(client: Client, sql: Sql) -> None:
    for state in STATES:
        run = a_delivery(client, sql, state)
        if state in ENDS:
            assert client.finish(run).json()["run"]["status"] == "completed"
        else:
            problem = refused(client, sql, run, to="completed")
            assert problem["code"] == "ILLEGAL_TRANSITION"
            assert (problem["from_state"], problem["to_state"]) == (state, "completed")
    run = a_delivery(client, sql, "applying")
    ended = client.finish(run, machine="completed", result=1).json()["run"]
    assert (ended["status"], ended["machine"]["state"], ended["result"]) == (
        "completed",
        "completed",
        1,
    )


@pytest.mark.parametrize("to", ["failed", "cancelled", "suspended", "running"])
@pytest.mark.parametrize("state", STATES)
def test_every_other_status_is_open_from_everywhere(
    client: Client, sql: Sql, state: str, to: str
) -> None:
    run = a_delivery(client, sql, state)
    after = client.finish(run, to).json()["run"]
    assert (after["status"], after["machine"]["state"]) == (to, state)


def test_a_status_beside_the_machine_is_the_callers(client: Client, sql: Sql) -> None:
    run = a_delivery(client, sql, "running")
    after = client.finish(run, "suspended", machine="paused", code="c").json()["run"]
    assert (after["status"], after["owner"]) == ("suspended", None)
    owner = an_owner()
    client.post(f"/v1/runs/{run['run_id']}/own", {"owner": owner}).raise_for_status()
    again = client.get(f"/v1/runs/{run['run_id']}").json()
    assert again["machine"] == {"name": "delivery", "state": "paused", "code": "c"}


def test_a_result_may_come_with_the_machine_that_ends_the_run(client: Client, sql: Sql) -> None:
    run = a_delivery(client, sql, "applying")
    ended = client.verb(run, "transition", machine="completed", result={"sha": "x"}).json()["run"]
    assert (ended["status"], ended["result"]) == ("completed", {"sha": "x"})


def test_a_run_without_a_machine_moves_none(client: Client, sql: Sql) -> None:
    run = client.started()
    problem = refused(client, sql, run, machine="paused")
    assert problem["code"] == "ILLEGAL_TRANSITION"
    assert (problem["from_state"], problem["to_state"]) == (None, "paused")
    assert client.finish(run).status_code == 200


def test_losses_come_in_their_order(client: Client, sql: Sql) -> None:
    run = a_delivery(client, sql)
    stranger = {**run, "owner": an_owner()}
    old, guard = run["head"], {"cancel_requested": "present"}
    client.finish(run, "running").raise_for_status()
    members: Json = {"machine": "applying", "guard": guard, "expected_head": old}
    assert refused(client, sql, stranger, **members)["outcome"] == "fence_lost"
    assert refused(client, sql, run, **members)["outcome"] == "guard_failed"
    del members["guard"]
    assert refused(client, sql, run, **members)["outcome"] == "head_changed"
    del members["expected_head"]
    assert refused(client, sql, run, **members)["outcome"] == "illegal_transition"


def test_a_released_run_keeps_its_machine(client: Client) -> None:
    run = client.started(machine="delivery")
    released = client.post(f"/v1/starts/{run['key']}/release", {"owner": run["owner"]})
    assert released.json()["run"]["machine"] == run["machine"]
    assert client.start(run["key"]).json()["run"]["machine"] == run["machine"]


def test_a_run_whose_machine_moved_is_given_back_by_an_operator_alone_and_keeps_it(
    client: Client, sql: Sql
) -> None:
    run = client.started(machine="delivery")
    client.verb(run, "transition", machine="paused").raise_for_status()
    path = f"/v1/starts/{run['key']}"
    released = client.post(f"{path}/release", {"owner": run["owner"]})
    assert (released.status_code, released.json()["code"]) == (409, "WORK_RECORDED")
    sql.lapse(run["run_id"])
    seen = client.get(path).json()["seen"]
    verdict = {"decision": "not_executed", "seen": seen, "note": "n"}
    given_back = client.as_("operator").post(f"{path}/resolve", verdict)
    assert given_back.json()["run"]["machine"]["state"] == "paused"
    assert client.start(run["key"]).json()["run"]["machine"]["state"] == "paused"


def test_a_machine_of_another_build_moves_nowhere_but_its_run_can_end(
    client: Client, sql: Sql
) -> None:
    run = a_delivery(client, sql)
    sql("UPDATE fencepost_runs SET machine = 'newer' WHERE run_id = ?1", run["run_id"])
    assert refused(client, sql, run, machine="paused")["code"] == "ILLEGAL_TRANSITION"
    assert refused(client, sql, run, to="completed")["code"] == "ILLEGAL_TRANSITION"
    assert client.finish(run, "failed").status_code == 200


def test_a_completion_with_a_move_that_does_not_end_the_machine_is_admitted_from_nowhere() -> None:
    for state in STATES:
        admitted = machines.admitting(RunStatus.COMPLETED, machines.Move(state))
        assert bool(admitted) == (state in ENDS)


# --- The registry ------------------------------------------------------------------------

TOGGLE = machines.Machine(
    "toggle",
    "off",
    {"off": frozenset({"on"}), "on": frozenset({"off", "completed"}), "completed": frozenset()},
    {"completed": RunStatus.COMPLETED},
)


def test_another_machine_is_added_with_one_table() -> None:
    both = machines.registry([*machines.MACHINES.values(), TOGGLE])
    assert list(both) == ["delivery", "toggle"]


@pytest.mark.parametrize(
    "changed",
    [
        {"name": "delivery"},
        {"initial": "nowhere"},
        {"moves": {**TOGGLE.moves, "on": frozenset({"nowhere"})}},
        {"ends": {"completed": RunStatus.FAILED}},
        {"ends": {}},
        {"coded": frozenset({"nowhere"})},
    ],
    ids=str,
)
def test_an_invalid_table_of_moves_is_refused(changed: Json) -> None:
    broken = TOGGLE._replace(**changed)
    with pytest.raises(ValueError, match=broken.name):
        machines.registry([*machines.MACHINES.values(), broken])


def test_python_and_the_statement_agree_on_what_is_legal() -> None:
    for before, after in itertools.product(STATES, STATES):
        at, move = MachineState("delivery", before, None), machines.Move(after)
        text = machines.admitting_json(RunStatus.RUNNING, move)
        assert text is not None
        in_sql = f"delivery {before}" in json.loads(text)
        assert machines.admits(at, RunStatus.RUNNING, move) == in_sql == ((before, after) in LEGAL)
