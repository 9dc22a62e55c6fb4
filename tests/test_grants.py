"""A grant is told as won only while the row shows this very grant; an effect as what it was.

A reply is lost, and in the window before anyone knows the run is taken over, resolved, started
again, cancelled, ended, or just left alone for longer than its lease. What the caller then learns
is compared with the row: nobody is told a generation, a claim or an owner that is not its own.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import httpx
import pytest

from fencepost import cancellation, claims, events, ownership, resolve, runs, snapshot, starts
from fencepost import transition as transitions
from fencepost.decision import Attempt, fingerprint
from fencepost.events import Append
from fencepost.identifiers import Principal, Target, mint_run_id
from fencepost.ownership import Evidence
from fencepost.resolve import Resolution, Verdict
from fencepost.runs import Outcome, Owner, Run, RunStatus, VerbResult
from fencepost.transition import Transition
from helpers import BridgeDatabase, Client, Sql, an_owner, connect_async, new_key
from losing import Losing

pytestmark = pytest.mark.anyio

ALICE, OLGA = Principal("service", "alice"), Principal("human", "olga")
A, B, C = (Owner("host", number, name) for number, name in enumerate("abc"))
T0, LEASE_MS = 2_000_000_000_000, 10_000
WORK = Target("workflow", "w")


class World:
    """One run, A's, and a clock."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        self.http, self.db, self.now = http, BridgeDatabase(http), T0
        self.key = new_key("grant")
        self.run_id = ""

    def attempt(self, owner: Owner) -> Attempt:
        meaning = (ALICE, WORK, fingerprint(WORK, None, None))
        return Attempt(self.key, *meaning, mint_run_id(self.key), "null", owner, LEASE_MS)

    async def begin(self) -> World:
        _, seen = await starts.start(self.db, self.attempt(A), now_ms=self.now)
        assert seen.run
        self.run_id = seen.run.run_id
        return self

    async def verb(
        self, verb: Any, *more: Any, db: BridgeDatabase | None = None, **named: Any
    ) -> Any:
        where = (db or self.db, self.run_id, ALICE, *more)
        return await verb(*where, now_ms=self.now, **named)

    async def run(self) -> Run:
        [result] = await self.db.read([snapshot.read_statement(self.run_id, ALICE, self.now)])
        return snapshot.found(result)

    def lapse(self) -> None:
        self.now += LEASE_MS + 1

    async def suspend(self, owner: Owner = A) -> None:
        change = Transition(owner, RunStatus.SUSPENDED)
        assert (await self.verb(transitions.transition, change)).outcome is Outcome.TRANSITIONED


@pytest.fixture
async def world(bridge: dict[str, str], sql: Sql) -> AsyncIterator[World]:
    async with connect_async(bridge["sql"]) as http:
        yield await World(http).begin()


# --- What may happen in the window -------------------------------------------------------


async def nothing(world: World, me: Owner) -> None:
    """The window is shorter than the lease."""


async def long(world: World, me: Owner) -> None:
    """The window is longer than the lease."""
    world.lapse()


async def beat(world: World, me: Owner) -> None:
    """Another thread of the same process keeps the lease."""
    world.now += 5
    await world.verb(ownership.heartbeat, me)


async def takes_over(world: World, me: Owner) -> None:
    world.lapse()
    run = await world.run()
    evidence = Evidence("lease-expired", run.owner or me)
    await world.verb(ownership.own, C, evidence=evidence)


async def resolves(world: World, me: Owner) -> None:
    world.lapse()
    await resolve_as(world, Verdict.EXECUTED)


async def restarts(world: World, me: Owner) -> None:
    world.lapse()
    await resolve_as(world, Verdict.NOT_EXECUTED)
    await starts.start(world.db, world.attempt(C), now_ms=world.now)


async def resolve_as(world: World, verdict: Verdict) -> None:
    look = await resolve.look(world.db, world.key, None, world.now)
    said = Resolution(verdict, look.seen, "n")
    await resolve.resolve(world.db, world.key, OLGA, said, world.now)


async def cancels(world: World, me: Owner) -> None:
    await world.verb(cancellation.cancel, ALICE)


async def ends(world: World, me: Owner) -> None:
    """Another thread of the same process ends the run."""
    await world.verb(transitions.transition, Transition(me, RunStatus.COMPLETED))


async def abandons(world: World, me: Owner) -> None:
    """Another thread of the same process lets its claim go, and C claims."""
    await world.verb(claims.abandon, me)
    await world.verb(claims.claim, C)


async def recovers(world: World, me: Owner) -> None:
    world.lapse()
    await world.verb(claims.recover, C, Evidence("lease-expired", me))


Rival = Callable[[World, Owner], Awaitable[None]]
RIVALS: list[Rival] = [
    *(nothing, long, beat, takes_over, resolves, restarts),
    *(cancels, ends, abandons, recovers),
]

# --- Grants ------------------------------------------------------------------------------

Grant = Callable[[World, BridgeDatabase], Awaitable[VerbResult]]


async def own_waiting(world: World, db: BridgeDatabase) -> VerbResult:
    result: VerbResult = await world.verb(ownership.own, B, db=db)
    return result


async def own_lapsed(world: World, db: BridgeDatabase) -> VerbResult:
    evidence = Evidence("lease-expired", A)
    result: VerbResult = await world.verb(ownership.own, B, db=db, evidence=evidence)
    return result


async def activate(world: World, db: BridgeDatabase) -> VerbResult:
    result: VerbResult = await world.verb(claims.activate, B, db=db)
    return result


async def claim(world: World, db: BridgeDatabase) -> VerbResult:
    result: VerbResult = await world.verb(claims.claim, B, db=db)
    return result


async def steal(world: World, db: BridgeDatabase) -> VerbResult:
    result: VerbResult = await world.verb(claims.steal, B, Evidence("lease-expired", A), db=db)
    return result


async def prepare(world: World, grant: Grant) -> None:
    if grant in (own_lapsed, steal):
        world.lapse()
        return
    await world.suspend()
    if grant is activate:
        await world.verb(claims.claim, B)


@pytest.mark.parametrize("rival", RIVALS, ids=lambda rival: rival.__name__)
@pytest.mark.parametrize(
    "grant", [own_waiting, own_lapsed, activate, claim, steal], ids=lambda g: g.__name__
)
async def test_a_grant_is_told_as_won_only_while_the_row_shows_it(
    world: World, grant: Grant, rival: Rival
) -> None:
    await prepare(world, grant)
    before = await world.run()
    losing = Losing(world.http, lambda: rival(world, B))
    # The clock that a verb is given is that of its sending; rows are judged by the later one.
    result = await grant(world, losing)
    run = await told_now(world, losing, grant, result)
    if result.outcome in (Outcome.OWNED, Outcome.ACTIVATED):
        assert (run.owner, run.generation) == (B, before.generation + 1)
        assert run.lease_is_fresh
    elif result.outcome in (Outcome.CLAIMED, Outcome.STOLEN):
        assert run.claim
        assert run.claim.owner == B
    elif result.outcome is Outcome.LEASE_LAPSED:
        assert result.granted
        assert (run.owner, run.generation) == (B, result.granted.generation)
    else:
        assert result.outcome is Outcome.OVERTAKEN
        assert result.granted
        claimed = result.granted.claimed_at_ms
        if claimed is None:
            assert result.granted.generation == before.generation + 1
            assert (run.owner, run.generation) != (B, before.generation + 1)
        else:
            assert run.claim is None or (run.claim.owner, run.claim.claimed_at_ms) != (B, claimed)
    assert losing.branch == "landed"


async def told_now(world: World, db: Losing, grant: Grant, result: VerbResult) -> Run:
    """The run as the verb read it back. `now_ms` of a verb is fixed when it is sent, so a lease
    that ended in the window is judged by the world's clock here.
    """
    run = await world.run()
    assert (run.owner, run.generation, run.claim, run.status) == (
        result.run.owner,
        result.run.generation,
        result.run.claim,
        result.run.status,
    )
    return run._replace(now_ms=result.run.now_ms)


@pytest.mark.parametrize("by_claim", [False, True], ids=["own", "activate"])
async def test_a_lease_that_ended_before_the_loss_was_known_is_told_as_lapsed(
    client: Client, world: World, by_claim: bool
) -> None:
    """By the database's own clock: the lease is the shortest there is, the window longer."""
    run = client.started(lease_ms=1000)
    client.finish(run, "suspended").raise_for_status()
    path, where = f"/v1/runs/{run['run_id']}", (run["run_id"], ALICE, B)
    if by_claim:
        client.post(f"{path}/claim", {"owner": B.params}).raise_for_status()

    async def longer_than_the_lease() -> None:
        await asyncio.sleep(1.1)

    losing = Losing(world.http, longer_than_the_lease)
    result = await (claims.activate if by_claim else ownership.own)(losing, *where)
    assert (result.outcome, result.granted) == (Outcome.LEASE_LAPSED, runs.Grant(2))
    # The exit that it names works: a heartbeat under that generation.
    beat = client.post(f"{path}/heartbeat", {"owner": B.params, "generation": 2})
    assert beat.json()["outcome"] == "renewed"


# --- Effects -----------------------------------------------------------------------------


async def checkpoint(world: World, db: BridgeDatabase) -> VerbResult:
    change = Transition(A, RunStatus.RUNNING, state_json="1")
    result: VerbResult = await world.verb(transitions.transition, change, db=db)
    return result


async def suspend(world: World, db: BridgeDatabase) -> VerbResult:
    change = Transition(A, RunStatus.SUSPENDED)
    result: VerbResult = await world.verb(transitions.transition, change, db=db)
    return result


async def complete(world: World, db: BridgeDatabase) -> VerbResult:
    change = Transition(A, RunStatus.COMPLETED, result_json="1")
    result: VerbResult = await world.verb(transitions.transition, change, db=db)
    return result


async def append(world: World, db: BridgeDatabase) -> VerbResult:
    result: VerbResult = (await world.verb(events.append, Append("noted", 1, A), db=db)).result
    return result


async def request_cancel(world: World, db: BridgeDatabase) -> VerbResult:
    result: VerbResult = await world.verb(cancellation.cancel, ALICE, db=db)
    return result


async def acknowledge(world: World, db: BridgeDatabase) -> VerbResult:
    result: VerbResult = await world.verb(cancellation.acknowledge, A, db=db)
    return result


WON = {
    checkpoint: Outcome.TRANSITIONED,
    suspend: Outcome.TRANSITIONED,
    complete: Outcome.TRANSITIONED,
    append: Outcome.APPENDED,
    request_cancel: Outcome.CANCEL_REQUESTED,
    acknowledge: Outcome.CANCEL_ACKNOWLEDGED,
}


@pytest.mark.parametrize(
    "rival",
    [nothing, long, beat, takes_over, resolves, restarts, cancels, ends],
    ids=lambda rival: rival.__name__,
)
@pytest.mark.parametrize("effect", WON, ids=lambda effect: effect.__name__)
async def test_an_effect_that_landed_is_told_whatever_came_after(
    world: World, effect: Grant, rival: Rival
) -> None:
    if effect is acknowledge:
        await world.verb(cancellation.cancel, ALICE)
    losing = Losing(world.http, lambda: rival(world, A))
    result = await effect(world, losing)
    assert (result.outcome, losing.branch) == (WON[effect], "landed")  # type: ignore[index]
    if result.run.owner not in (None, A) and effect is not request_cancel:
        # What it shows of the run is another's: it says so, and whose generation that is.
        assert result.beaten_by
        assert result.beaten_by.generation == result.run.generation


# --- Over HTTP ---------------------------------------------------------------------------


async def test_an_overtaken_claim_is_409_and_names_the_claim_that_was(client: Client) -> None:
    run = client.started()
    client.finish(run, "suspended").raise_for_status()
    mine, path = an_owner(), f"/v1/runs/{run['run_id']}"
    rival = {
        "path": f"{path}/abandon",
        "headers": {"Authorization": "Bearer alice"},
        "body": json.dumps({"owner": mine}),
    }
    headers = {"X-Local-Fault": "lost", "X-Local-Rival": json.dumps(rival)}
    answer = client.post(f"{path}/claim", {"owner": mine}, headers=headers)
    problem = answer.json()
    assert (answer.status_code, problem["code"], problem["retry"]) == (409, "OVERTAKEN", "never")
    assert problem["granted"]["generation"] is None
    assert problem["granted"]["claimed_at_ms"] > run["created_at_ms"]
    assert problem["beaten_by"]["type"] == "released"
    assert "Nothing was written" not in problem["detail"]
