"""A reply is lost, and before anybody reads back, a rival writes (contracts 2, T155c, T246).

`lost`: the write happened, then the rival's. `drop`: only the rival's did. Either way the answer
is the contract's, and the rival is untouched.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import httpx
import pytest

from fencepost import cancellation, claims, events, fence, ownership, release, resolve, starts
from fencepost import transition as transitions
from fencepost.commit import Branch
from fencepost.d1 import Result, Statement
from fencepost.decision import Decision, Start, fingerprint
from fencepost.errors import Unknown
from fencepost.fence import FenceState, Moved
from fencepost.identifiers import Principal, Target
from fencepost.journal import Head
from fencepost.resolve import Resolution, Verdict
from fencepost.runs import Outcome, Owner, RunStatus
from helpers import BridgeDatabase, Client, Json, Sql, an_owner, new_key

pytestmark = pytest.mark.anyio

ALICE, OLGA = Principal("service", "alice"), Principal("human", "olga")


class Window(BridgeDatabase):
    """Loses the reply of the first batch that writes; in the window a rival acts."""

    def __init__(self, http: httpx.AsyncClient, fault: str, rival: Callable[[], Any]) -> None:
        super().__init__(http)
        self.fault, self.rival, self.used = fault, rival, False

    async def batch(self, statements: Sequence[Statement]) -> list[Result]:
        reads = all(statement.sql.lstrip().startswith("SELECT") for statement in statements)
        if self.used or reads:
            return await super().batch(statements)
        self.used = True
        if self.fault == "lost":
            await super().batch(statements)
        self.rival()
        raise Unknown("D1_ERROR: Network connection lost.")


@dataclass(frozen=True)
class Case:
    """`act` is the write, `rival` what somebody else does in the window; then what is answered
    when the write had happened, and when it had not, with the branch taken."""

    act: Callable[[Window, Json], Awaitable[Any]]
    rival: Callable[[Client, Json], httpx.Response]
    lost: tuple[Any, Branch]
    drop: tuple[Any, Branch]
    prepare: str = ""


def owner_of(run: Json) -> Owner:
    return Owner(**run["owner"])


async def start(db: Window, run: Json) -> Any:
    target = Target("workflow", "charge")
    mark = fingerprint(target, {"cents": 500}, None)
    asked = Start(run["new"], ALICE, target, mark, '{"cents":500}', owner_of(run))
    return (await starts.start(db, asked))[0]


async def complete(db: Window, run: Json) -> Any:
    head = Head(**run["head"])
    change = transitions.Transition(owner_of(run), RunStatus.COMPLETED, expected_head=head)
    return (await transitions.transition(db, run["run_id"], ALICE, change))[0]


async def append(db: Window, run: Json) -> Any:
    addition = events.Append("noted", 1, expected_head=Head(**run["head"]))
    return (await events.append(db, run["run_id"], ALICE, addition))[0]


async def own(db: Window, run: Json) -> Any:
    return (await ownership.own(db, run["run_id"], ALICE, owner_of(run)))[0]


async def heartbeat(db: Window, run: Json) -> Any:
    return (await ownership.heartbeat(db, run["run_id"], ALICE, owner_of(run)))[0]


async def claim(db: Window, run: Json) -> Any:
    return (await claims.claim(db, run["run_id"], ALICE, owner_of(run)))[0]


async def cancel(db: Window, run: Json) -> Any:
    return (await cancellation.cancel(db, run["run_id"], ALICE, ALICE))[0]


async def give_back(db: Window, run: Json) -> Any:
    return (await release.release(db, run["key"], ALICE, owner_of(run)))[0]


async def settle(db: Window, run: Json) -> Any:
    resolution = Resolution(Verdict.EXECUTED, 1, "n")
    return (await resolve.resolve(db, run["key"], OLGA, resolution))[0]


async def drain(db: Window, run: Json) -> Any:
    command = fence.Transition(FenceState.OPEN, FenceState.DRAINING)
    return (await fence.transition(db, OLGA, command))[0]


def by_another(verb: str) -> Callable[[Client, Json], httpx.Response]:
    return lambda client, run: client.verb({**run, "owner": an_owner()}, verb)


def noted(client: Client, run: Json) -> httpx.Response:
    return client.post(f"/v1/runs/{run['run_id']}/events", {"type": "rival"})


def cancelled(client: Client, run: Json) -> httpx.Response:
    return client.as_("operator").post(f"/v1/runs/{run['run_id']}/cancel", {})


def locked(client: Client, run: Json) -> httpx.Response:
    gate = client.get("/v1/fence").json()["state"]
    body = {"expected": gate, "next": "migration-locked"}
    return client.as_("operator").post("/v1/fence/transitions", body)


def resolved(client: Client, run: Json) -> httpx.Response:
    body = {"decision": "not_executed", "attempt": 1, "note": "rival"}
    return client.as_("operator").post(f"/v1/starts/{run['key']}/resolve", body)


LANDED, REISSUED, REFUSED = Branch.LANDED, Branch.REISSUED, Branch.REFUSED
CASES = {
    "start, a start of the key": Case(
        start,
        lambda client, run: client.start(run["new"]),
        (Decision.STARTED, LANDED),
        (Decision.PENDING, REFUSED),
    ),
    "transition, an append": Case(
        complete, noted, (Outcome.TRANSITIONED, LANDED), (Outcome.HEAD_CHANGED, REFUSED)
    ),
    "transition, a cancel": Case(
        complete, cancelled, (Outcome.TRANSITIONED, LANDED), (Outcome.TRANSITIONED, REISSUED)
    ),
    "append, an append": Case(
        append, noted, (Outcome.APPENDED, LANDED), (Outcome.HEAD_CHANGED, REFUSED)
    ),
    # The very same event at the very same head: told apart by the attempt, not by the hash.
    "append, the same append": Case(
        append,
        lambda client, run: client.post(
            f"/v1/runs/{run['run_id']}/events",
            {"type": "noted", "payload": 1, "expected_head": run["head"]},
        ),
        (Outcome.APPENDED, LANDED),
        (Outcome.HEAD_CHANGED, REFUSED),
    ),
    "own, an own": Case(
        own,
        by_another("own"),
        (Outcome.OWNED, LANDED),
        (Outcome.HEARTBEAT_FRESH, REFUSED),
        "suspended",
    ),
    "own, a cancel": Case(
        own, cancelled, (Outcome.OWNED, LANDED), (Outcome.OWNED, REISSUED), "suspended"
    ),
    "claim, a claim": Case(
        claim,
        by_another("claim"),
        (Outcome.CLAIMED, LANDED),
        (Outcome.ALREADY_CLAIMED, REFUSED),
        "suspended",
    ),
    # A heartbeat leaves nothing behind but its token, which the rival's write covers: it is
    # issued twice, which renews the lease and nothing else.
    "heartbeat, a cancel": Case(
        heartbeat, cancelled, (Outcome.RENEWED, REISSUED), (Outcome.RENEWED, REISSUED)
    ),
    "cancel, a cancel": Case(
        cancel, cancelled, (Outcome.CANCEL_REQUESTED, LANDED), (Outcome.ALREADY_REQUESTED, REFUSED)
    ),
    "release, an append": Case(
        give_back, noted, (Outcome.RELEASED, LANDED), (Outcome.RELEASED, REFUSED)
    ),
    "resolve, a resolve": Case(
        settle,
        resolved,
        (Outcome.RESOLVED, LANDED),
        (Outcome.ATTEMPT_CHANGED, REFUSED),
        "lapsed",
    ),
    "fence transition, another": Case(
        drain, locked, (Moved.MOVED, LANDED), (Moved.CONFLICT, REFUSED)
    ),
}


@pytest.mark.parametrize("fault", ["lost", "drop"])
@pytest.mark.parametrize("name", CASES)
async def test_a_rivals_write_in_the_window_stands_and_the_answer_is_the_contracts(
    bridge: dict[str, str], client: Client, sql: Sql, name: str, fault: str
) -> None:
    case = CASES[name]
    run = {**client.started(), "new": new_key("new")}
    if case.prepare == "suspended":
        client.finish(run, "suspended").raise_for_status()
    if case.prepare == "lapsed":
        sql.lapse(run["run_id"])
    said: list[httpx.Response] = []
    async with httpx.AsyncClient(base_url=bridge["sql"], timeout=60) as http:
        db = Window(http, fault, lambda: said.append(case.rival(client, run)))
        outcome = await case.act(db, run)
    assert (outcome, db.branch) == (case.lost if fault == "lost" else case.drop)
    assert len(said) == 1
    sql("DELETE FROM fencepost_fence")
    found = client.as_("operator").get(f"/v1/runs/{run['run_id']}/integrity").json()
    assert found["intact"], found
    generations = sql(
        "SELECT generation, COUNT(*) AS n FROM fencepost_ownership "
        "WHERE run_id = ?1 AND type = 'activated' GROUP BY generation",
        run["run_id"],
    )
    assert all(row["n"] == 1 for row in generations)
