"""No start ends where nobody can go on, and nothing that blocks a drain is without an exit.

Every combination of key, run, claim, cancel and lease that can be reached is put under every state
of the fence. A start is asked for, and each exit that its answer names is taken: it must work, and
the start must come to a definite answer by such steps.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from typing import NamedTuple

import httpx
import pytest

from fencepost import inventory
from fencepost.schema import migrations, tables
from helpers import Client, Json, Sql, a_start, acquired, an_owner, new_key

# --- The combinations --------------------------------------------------------------------


class World(NamedTuple):
    """The database; a principal's processes; an operator, who has no other scope."""

    client: Client
    operator: Client
    sql: Sql

    def run_verb(self, run: Json, verb: str, **body: object) -> Json:
        answer = self.client.post(f"/v1/runs/{run['run_id']}/{verb}", body)
        assert answer.status_code == 200, (verb, answer.text)
        given: Json = answer.json()
        return given

    def set(self, run: Json, table: str, assignments: str) -> None:
        self.sql(f"UPDATE fencepost_{table} SET {assignments} WHERE run_id = ?1", run["run_id"])


Step = Callable[[World, Json], None]


def lapse(world: World, run: Json) -> None:
    world.sql.lapse(run["run_id"])


def release(world: World, run: Json) -> None:
    path = f"/v1/starts/{run['key']}/release"
    world.client.post(path, {"owner": run["holder"]}).raise_for_status()
    run["holder"] = None


def own(world: World, run: Json) -> None:
    """By another process; of a run that waits, or whose lease has lapsed."""
    evidence = run["holder"] and {"kind": "lease-expired", "expected_owner": run["holder"]}
    proof = {"evidence": evidence} if evidence else {}
    run["holder"] = an_owner()
    world.run_verb(run, "own", owner=run["holder"], **proof)


def to(status: str) -> Step:
    def act(world: World, run: Json) -> None:
        world.run_verb(run, "transition", owner=run["holder"], to=status)
        run["holder"] = None

    return act


def take_step(world: World, run: Json) -> None:
    acquired(world.client, {**run, "owner": run["holder"]})


def not_executed(world: World, run: Json) -> None:
    assert resolve(world, run["key"], "not_executed").status_code == 200
    run["holder"] = None


def lose_the_run(world: World, run: Json) -> None:
    """As the library leaves a key: it makes no run, and joins none."""
    for table in ("runs", "snapshots", "events", "ownership", "subjects"):
        world.sql(f"DELETE FROM fencepost_{table} WHERE run_id = ?1", run["run_id"])
    world.sql("DELETE FROM fencepost_reservations WHERE key = ?1", run["joined"])
    run["joined"] = None


def start_by_library(world: World, run: Json) -> None:
    """The reservation alone."""
    started = "state = 'started', claim_nonce = 'library', outcome = NULL"
    world.sql(f"UPDATE fencepost_reservations SET {started} WHERE key = ?1", run["key"])


def reserve_by_library(world: World, run: Json) -> None:
    reserved = "state = 'reserved', claim_nonce = NULL, outcome = NULL"
    world.sql(f"UPDATE fencepost_reservations SET {reserved} WHERE key = ?1", run["key"])


def request_by_old_build(world: World, run: Json) -> None:
    """A cancel did not end a run that waits."""
    world.set(run, "runs", "cancel_requested_at_ms = 5")


def cancel(world: World, run: Json) -> None:
    world.run_verb(run, "cancel")


# What became of a run and its key, in steps. The first ones take claims and cancels besides.
BASES: dict[str, list[Step]] = {
    "running": [],
    "suspended": [to("suspended")],
    "released": [release],
    "released, owned, lapsed": [release, own, lapse],
    "released, started by the library": [release, start_by_library],
    "released, a cancel requested in an old build": [release, request_by_old_build],
}
PLAIN: dict[str, list[Step]] = {
    "lapsed": [lapse],
    "lapsed, a cancel requested": [cancel, lapse],
    "lapsed in a step": [take_step, lapse],
    "suspended in a step": [take_step, to("suspended")],
    "completed": [to("completed")],
    "failed in a step": [take_step, to("failed")],
    "cancelled": [to("cancelled")],
    "released, owned": [release, own],
    "released, owned, suspended": [release, own, to("suspended")],
    "released, owned, completed": [release, own, to("completed")],
    "given back by an operator": [lapse, not_executed],
    "taken over": [lapse, own],
    "taken over, lapsed": [lapse, own, lapse],
    "reserved without a run": [release, lose_the_run],
    "started without a run": [lose_the_run],
    "completed, its key reserved by the library": [to("completed"), reserve_by_library],
    "completed, its key started by the library": [to("completed"), start_by_library],
}


def claim(world: World, run: Json) -> None:
    """A claim of a run that waits, or a steal of one whose lease has lapsed."""
    run["claimant"] = an_owner()
    if run["holder"] is None:
        world.run_verb(run, "claim", owner=run["claimant"])
        return
    lapse(world, run)
    evidence = {"kind": "lease-expired", "expected_owner": run["holder"]}
    world.run_verb(run, "steal", owner=run["claimant"], evidence=evidence)


def claim_while_the_owner_lives(world: World, run: Json) -> None:
    claim(world, run)
    world.run_verb(run, "heartbeat", owner=run["holder"])


def age(world: World, run: Json) -> None:
    world.set(run, "runs", "claimed_at_ms = 5")


CLAIMS: dict[str, list[Step]] = {
    "": [],
    ", claimed": [claim],
    ", claimed long ago": [claim, age],
    ", claimed, its owner lives": [claim_while_the_owner_lives],
    ", claimed long ago, its owner lives": [claim_while_the_owner_lives, age],
}
LIVES = (", claimed, its owner lives", ", claimed long ago, its owner lives")
CANCELS: dict[str, list[Step]] = {"": [], ", a cancel requested": [cancel]}


def combinations() -> dict[str, list[Step]]:
    found = dict(PLAIN)
    for base, claimed, cancelled in itertools.product(BASES, CLAIMS, CANCELS):
        if claimed in LIVES and base != "running":
            continue  # it has no owner who could live
        if cancelled and (claimed in (", claimed", *LIVES) or "old build" in base):
            continue  # as the same long ago, or as without the cancel
        steps = [*BASES[base], *CLAIMS[claimed], *CANCELS[cancelled]]
        found[base + claimed + cancelled] = steps
    return found


class Case(NamedTuple):
    """A run with the key that started it and one that joined it; `restore` puts it back so."""

    name: str
    run: Json
    restore: Callable[[], None]

    @property
    def askers(self) -> list[Json]:
        """Who may ask for its start: another process, its owner, its claimant."""
        return [one for one in (an_owner(), self.run["holder"], self.run["claimant"]) if one]


_CASES: list[Case] = []


def cases(world: World) -> list[Case]:
    """Every combination, as it was when it was made. Made once for both tests."""
    world.sql.batch([(f"DELETE FROM {name}", ()) for name in tables.TABLES])
    if not _CASES:
        for name, steps in combinations().items():
            run = put(world, steps)
            _CASES.append(Case(name, run, saved(world.sql, run)))
    else:
        for case in _CASES:
            case.restore()
    return _CASES


def put(world: World, steps: list[Step]) -> Json:
    subject = {"stage": "build", "change": new_key("change")}
    run = world.client.started(subject=subject, lease_ms=3_600_000)
    run |= {"joined": new_key("joined"), "subject": subject, "holder": run["owner"]}
    run["claimant"] = None
    world.client.start(run["joined"], a_start(subject=subject)).raise_for_status()
    for step in steps:
        step(world, run)
    return run


_OF_RUNS = [name for name in tables.TABLES if "run_id" in migrations.columns_of(name)]


def saved(sql: Sql, run: Json) -> Callable[[], None]:
    """What puts all rows of the run and its keys back as they are now."""
    select = [(f"SELECT * FROM {name} WHERE run_id = ?1", (run["run_id"],)) for name in _OF_RUNS]
    batch = [(f"DELETE FROM {name} WHERE run_id = ?1", (run["run_id"],)) for name in _OF_RUNS]
    for name, result in zip(_OF_RUNS, sql.batch(select), strict=True):
        for row in result["results"]:
            marks = ", ".join(f"?{number + 1}" for number in range(len(row)))
            insert = f"INSERT INTO {name} ({', '.join(row)}) VALUES ({marks})"
            batch.append((insert, tuple(row.values())))

    def restore() -> None:
        sql.batch(batch)

    return restore


# --- Going on ----------------------------------------------------------------------------


def resolve(world: World, key: str, decision: str) -> httpx.Response:
    """As docs/operations.md has it; by an operator who has no other scope."""
    seen = world.operator.get(f"/v1/starts/{key}").json()["seen"]
    body = {"decision": decision, "seen": seen, "note": "looked at the ledger"}
    return world.operator.post(f"/v1/starts/{key}/resolve", body)


def wait(world: World, run: Json) -> None:
    """Until every lease has lapsed and every claim is old."""
    world.sql(
        "UPDATE fencepost_runs SET claimed_at_ms = MIN(claimed_at_ms, 5), "
        "lease_expires_at_ms = MIN(lease_expires_at_ms, 2) WHERE run_id = ?1",
        run["run_id"],
    )


def follow(world: World, run: Json, asker: Json, verb: str, path: str) -> httpx.Response:
    """Take an exit, with all that it asks for."""
    if verb == "resolve":
        return resolve(world, run["key"], "not_executed")
    about = {"recover": run["claimant"], "own": run["holder"]}.get(verb)
    evidence = {"kind": "lease-expired", "expected_owner": about}
    proof = {"evidence": evidence} if about not in (None, asker) else {}
    return world.client.post(path, {"owner": asker, **proof})


def check_prose(world: World, problem: Json, *, reads: bool) -> None:
    """The text names the same exits; what it says to read can be read."""
    posts = re.findall(r"POST (/v1/[^\s:]+[^\s:.])", problem["detail"])
    assert posts == [way["path"] for way in problem["exits"]]
    for path in re.findall(r"GET (/v1/[^\s:]+[^\s:.])", problem["detail"]) if reads else []:
        assert world.client.get(path).status_code == 200, problem["detail"]


# --- The exits of a start ----------------------------------------------------------------

FENCES: dict[str, Callable[[Json], Json]] = {
    "open": lambda run: {"state": "open"},
    "draining": lambda run: {"state": "draining"},
    "migration-locked": lambda run: {"state": "migration-locked"},
    "proof-only with this run": lambda run: {
        "state": "proof-only",
        "proof_key": run["key"],
        "proof_run_id": run["run_id"],
    },
    "proof-only with this key": lambda run: {"state": "proof-only", "proof_key": run["key"]},
    "proof-only with another": lambda run: {"state": "proof-only", "proof_key": "another"},
    "unreadable": lambda run: {"state": "half-open"},
}
# Under the others the exits are those of `migration-locked`: the one that no fence closes.
CLOSED = ("draining", "migration-locked", "proof-only with this run", "proof-only with this key")
DEFINITE = ("started", "replayed", "START_ALREADY_SETTLED")
LATER = ("START_PENDING", "EXECUTION_FENCED", "EXECUTION_FENCE_UNREADABLE")


def ask(world: World, run: Json, asker: Json) -> tuple[str, Json]:
    """Ask for the start: what the answer says, and its body."""
    answer = world.client.start(run["key"], a_start(owner=asker, subject=run["subject"]))
    body: Json = answer.json()
    code = str(body.get("code") or body["outcome"])
    assert code in (*DEFINITE, *LATER, "START_UNRESOLVABLE"), answer.text
    assert code not in LATER or int(answer.headers["Retry-After"]) >= 1
    assert code != "started" or body["run"]["owner"] == asker
    return code, body


def go_on(world: World, run: Json, asker: Json) -> None:
    """Do as the answers say, until one is definite."""
    for _ in range(6):
        code, body = ask(world, run, asker)
        if code in DEFINITE:
            return
        if code == "START_UNRESOLVABLE":
            take(world, run, asker, body["exits"][0])
        elif code == "START_PENDING":
            wait(world, run)
        else:
            world.sql.fence("open")
    raise AssertionError(f"it goes round in circles, and answers {code}")


def take(world: World, run: Json, asker: Json, way: Json) -> None:
    answer = follow(world, run, asker, **way)
    assert answer.status_code == 200, (way, answer.text)


def check_start(world: World, case: Case, fenced: str, asker: Json, followed: bool) -> None:
    """The answer to a start, and, if they are followed, where the exits that it names lead to."""
    run, fence = case.run, FENCES[fenced](case.run)
    world.sql.fence(**fence)
    code, body = ask(world, run, asker)
    ways = body.get("exits", [])
    if code == "START_UNRESOLVABLE":
        check_prose(world, body, reads=fenced == "open")
        assert ways[-1]["verb"] == "resolve"
        assert len(ways) == 1 or fenced in ("open", *CLOSED)
    elif code == "START_PENDING" and fenced == "open":
        go_on(world, run, asker)
    if fenced == "proof-only with this key":  # the start has bound its run
        fence = FENCES["proof-only with this run"](case.run)
    for way in ways if followed else []:
        case.restore()
        world.sql.fence(**fence)
        take(world, run, asker, way)
        go_on(world, run, asker)
    if code == "started" or (code != "replayed" and followed):
        case.restore()


@pytest.mark.soak
def test_every_exit_that_a_start_names_works_and_leads_to_a_definite_answer(
    client: Client, sql: Sql
) -> None:
    world = World(client, client.as_("resolver"), sql)
    for (number, case), fenced in itertools.product(enumerate(cases(world)), FENCES):
        followed = fenced in ("open", CLOSED[number % len(CLOSED)])
        for asker in case.askers if fenced == "open" else case.askers[:1]:
            try:
                check_start(world, case, fenced, asker, followed)
            except AssertionError as dead_end:
                raise AssertionError(f"{case.name}; the fence {fenced}") from dead_end
        if case.run["joined"] and fenced in ("open", "unreadable"):
            joined = a_start(subject=case.run["subject"])
            answer = client.start(case.run["joined"], joined).json()
            assert answer.get("outcome") == "replayed", (case.name, fenced, answer)


# --- A drain -----------------------------------------------------------------------------


def listed(world: World, category: str) -> list[Json]:
    """All that the inventory has of a category."""
    items: list[Json] = []
    query: Json = {"limit": 100}
    while True:
        page = world.operator.get(f"/v1/inventory/{category}", params=query).json()
        items += page["items"]
        if page["cursor"] is None:
            return items
        query["cursor"] = page["cursor"]


def settle(world: World, held: Json, decision: str) -> None:
    """What an operator can do about a key that the inventory lists."""
    answer = resolve(world, held["key"], decision)
    problem = answer.json()
    if problem.get("code") == "KEY_JOINED":
        starters = world.sql(_STARTER, held["key"])
        assert [problem["key"]] == [row["key"] for row in starters]
    elif problem.get("code") in ("HEARTBEAT_FRESH", "CLAIM_FRESH"):
        assert int(answer.headers["Retry-After"]) >= 1
        wait(world, held)
    else:
        assert answer.status_code == 200, answer.text


_STARTER = """
SELECT starter.key FROM fencepost_reservations AS held
JOIN fencepost_reservations AS starter USING (run_id) WHERE held.key = ?1 AND starter.joined = 0
"""
DECISIONS = ("not_executed", "executed", "cancelled")


@pytest.mark.parametrize("state", ["draining", "migration-locked"])
def test_an_operator_can_empty_the_inventory(client: Client, sql: Sql, state: str) -> None:
    world = World(client, client.as_("resolver"), sql)
    cases(world)
    sql.fence(state)
    for decision in ("wait", "first", "then", "last"):
        for number, held in enumerate(listed(world, "start-reservations")):
            settle(world, held, DECISIONS[number % 3] if decision == "first" else "cancelled")
    assert {name: listed(world, name) for name in inventory.CATEGORIES} == {
        name: [] for name in inventory.CATEGORIES
    }
