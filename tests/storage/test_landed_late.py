"""A first attempt that commits after it was looked for, before it is sent again, has one effect.

D1 may lose a reply and run the batch later. The second attempt then finds the first one's token,
and is taken back whole.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from fencepost import cancellation, claims, errors, fence, ownership, resolve, retention
from fencepost.fence import FenceCommand, FenceState
from fencepost.identifiers import KeyedRequest, Principal
from fencepost.runs import Outcome, Owner
from fencepost.settings import Retention
from fencepost.storage.d1 import Result
from fencepost.storage.sql import Statement
from fencepost.storage.writes import Branch
from helpers import BridgeDatabase, Client, Json, Sql, an_owner, connect_async, new_key
from mutations import old
from worlds import timeless

pytestmark = pytest.mark.anyio
OLGA = Principal("human", "olga")


class Late(BridgeDatabase):
    """The first batch that writes loses its reply, and runs when the next one is sent."""

    held: Sequence[Statement] | None = None
    lates = 0

    async def batch_unguarded(self, statements: Sequence[Statement]) -> list[Result]:
        writes = any(not each.sql.lstrip().startswith("SELECT") for each in statements)
        if not writes:
            return await super().batch_unguarded(statements)
        if self.lates == 0:
            self.held, self.lates = statements, 1
            raise errors.Unknown("D1_ERROR: Network connection lost.")
        if self.held is not None:
            held, self.held = self.held, None
            await super().batch_unguarded(held)
        return await super().batch_unguarded(statements)


Act = Callable[[BridgeDatabase, Json], Awaitable[Any]]


async def own(db: BridgeDatabase, run: Json) -> Any:
    return (await ownership.own(db, run["run_id"], None, Owner(**run["owner"]))).outcome


async def claim(db: BridgeDatabase, run: Json) -> Any:
    return (await claims.claim(db, run["run_id"], None, Owner(**run["owner"]))).outcome


async def cancel(db: BridgeDatabase, run: Json) -> Any:
    return (await cancellation.cancel(db, run["run_id"], None, OLGA)).outcome


async def move_the_fence(db: BridgeDatabase, run: Json) -> Any:
    command = FenceCommand(FenceState.OPEN, FenceState.OPEN)
    return (await fence.transition(db, OLGA, command))[0]


async def resolve_without_a_run(db: BridgeDatabase, run: Json) -> Any:
    found = await resolve.look(db, run["key"], None)
    said = resolve.Resolution(resolve.Verdict.NOT_EXECUTED, found.seen, "note")
    return (await resolve.resolve(db, run["key"], OLGA, said))[0]


async def purge(db: BridgeDatabase, run: Json) -> Any:
    db.request = KeyedRequest("", OLGA, None, run["named"], "retention/purge", "0" * 64)
    return await retention.purge(db, OLGA, Retention(), 1)


def suspended(client: Client, sql: Sql, run: Json) -> None:
    client.finish(run, "suspended").raise_for_status()


def without_its_run(client: Client, sql: Sql, run: Json) -> None:
    sql("DELETE FROM fencepost_runs WHERE run_id = ?1", run["run_id"])


def as_it_is(client: Client, sql: Sql, run: Json) -> None:
    return None


CASES: dict[str, tuple[Act, Callable[[Client, Sql, Json], None]]] = {
    "own": (own, suspended),
    "claim": (claim, suspended),
    "cancel": (cancel, suspended),
    "the fence": (move_the_fence, as_it_is),
    "resolve": (resolve_without_a_run, without_its_run),
    "purge": (purge, old),
}
TABLES = ("runs", "reservations", "ownership", "audit", "requests", "fence")


def numbers(sql: Sql, run: Json) -> list[str]:
    """The rows of the run and of the deployment, without what differs from run to run."""
    where = {"audit": "1", "fence": "1", "requests": f"key = '{run['named']}'"}
    shown = []
    for table in TABLES:
        which = where.get(table, f"run_id = '{run['run_id']}'")
        for row in sql(f"SELECT * FROM fencepost_{table} WHERE {which}"):
            kept = {
                name: value is not None if "token" in name or "hash" in name else value
                for name, value in row.items()
                if name
                not in ("key", "run_id", "subject", "fingerprint", "claim_nonce", "sequence")
                and "nonce" not in name
            }
            shown.append(timeless(f"{table} {kept}").replace(run["run_id"], "<run>"))
    return sorted(shown)


@pytest.mark.parametrize("name", CASES)
async def test_a_first_attempt_that_lands_late_has_one_effect(
    bridge: dict[str, str], client: Client, sql: Sql, name: str
) -> None:
    act, prepare = CASES[name]
    seen = []
    async with connect_async(bridge["sql"]) as http:
        for kind in (BridgeDatabase, Late):
            sql("DELETE FROM fencepost_audit")
            sql.fence("open", revision=1)
            run = client.started(owner=an_owner())
            run["named"] = new_key("named")
            prepare(client, sql, run)
            db = kind(http)
            outcome = await act(db, run)
            seen.append((outcome, numbers(sql, run)))
            assert (db.branch is Branch.LANDED) == (kind is Late)
    assert seen[1] == seen[0]
    assert seen[0][0] not in (Outcome.OVERTAKEN, Outcome.SNAPSHOT_CHANGED)
