"""Claims: claim, activate, steal, abandon, recover; a sentence a rule.

Most tests drive the module with a clock of their own (`now_ms`), over the real D1.
"""

from __future__ import annotations

from typing import Any

import pytest

from fencepost import claims, ownership, starts, transition
from fencepost.decision import Attempt, fingerprint
from fencepost.errors import NotFound
from fencepost.identifiers import Principal, Target, mint_run_id
from fencepost.ownership import Evidence
from fencepost.runs import Outcome, Owner, Run, RunStatus, VerbResult
from helpers import BridgeDatabase, Client, Json, an_owner, new_key

pytestmark = pytest.mark.anyio

ALICE = Principal("service", "alice")
HOST, ELSEWHERE = Owner("host", 1, "first"), Owner("elsewhere", 2, "second")
LEASE_MS = 30_000
T0 = 2_000_000_000_000


class Bench:
    """A run, a clock, and the verbs of three owners."""

    def __init__(self, db: BridgeDatabase, run: Run) -> None:
        self.db, self.run, self.now_ms = db, run, T0

    async def verb(self, verb: Any, owner: Owner, *more: Any, **options: Any) -> Outcome:
        where = (self.db, self.run.run_id, ALICE, owner, *more)
        result: VerbResult = await verb(*where, now_ms=self.now_ms, **options)
        self.run, self.result = result.run, result
        return result.outcome

    async def facts(self) -> list[tuple[str, str, int, int | None]]:
        rows = await ownership.facts(self.db, self.run.run_id, ALICE, 0, 200)
        facts = [row.value for row in rows if isinstance(row.value, ownership.Fact)]
        return [
            (f.type, f.owner.nonce, f.generation, f.granted_at_ms)
            for f in facts
            if f.owner is not None
        ]

    async def suspend(self) -> None:
        change = transition.Transition(HOST, RunStatus.SUSPENDED)
        self.result = await transition.transition(
            self.db, self.run.run_id, ALICE, change, now_ms=self.now_ms
        )
        self.run = self.result.run


@pytest.fixture
async def bench(db: BridgeDatabase) -> Bench:
    """A run that HOST started at T0."""
    target = Target("workflow", "w")
    meaning = (key := new_key(), ALICE, target, fingerprint(target, None, None))
    attempt = Attempt(*meaning, mint_run_id(key), "null", HOST, LEASE_MS)
    _, seen = await starts.start(db, attempt, now_ms=T0)
    assert seen.run is not None
    return Bench(db, seen.run)


@pytest.fixture
async def suspended(bench: Bench) -> Bench:
    await bench.suspend()
    return bench


@pytest.fixture
def lapsed(bench: Bench) -> Bench:
    bench.now_ms = T0 + LEASE_MS + 1
    return bench


def about(owner: Owner, kind: str = "lease-expired") -> Evidence:
    return Evidence(kind, owner)


# --- claim and activate ------------------------------------------------------------------


async def test_a_waiting_run_is_claimed_and_then_activated(suspended: Bench) -> None:
    bench = suspended
    assert await bench.verb(claims.claim, ELSEWHERE, lease_ms=5000) is Outcome.CLAIMED
    assert (bench.run.status, bench.run.owner) == (RunStatus.SUSPENDED, None)
    assert bench.run.claim is not None
    # Later than every time of the row, so that it names this claim alone.
    assert (bench.run.claim.owner, bench.run.claim.claimed_at_ms) == (ELSEWHERE, T0 + 1)
    assert bench.run.generation == 1
    bench.now_ms += 100
    assert await bench.verb(claims.activate, ELSEWHERE) is Outcome.ACTIVATED
    after = bench.run
    assert (after.owner, after.claim, after.generation) == (ELSEWHERE, None, 2)
    assert after.lease_expires_at_ms == bench.now_ms + 5000
    assert after.started_at_ms == T0
    assert await bench.facts() == [
        ("activated", "first", 1, T0),
        ("released", "first", 1, None),
        ("claimed", "second", 1, T0 + 1),
        ("activated", "second", 2, T0 + 100),
    ]


async def test_a_claimed_run_is_not_claimed_owned_or_stolen_by_anybody_else(
    suspended: Bench,
) -> None:
    await suspended.verb(claims.claim, ELSEWHERE)
    assert await suspended.verb(claims.claim, HOST) is Outcome.ALREADY_CLAIMED
    assert await suspended.verb(ownership.own, HOST) is Outcome.ALREADY_CLAIMED
    evidence = about(ELSEWHERE)
    assert await suspended.verb(claims.steal, HOST, evidence) is Outcome.ALREADY_CLAIMED


async def test_a_running_run_is_not_claimed(bench: Bench) -> None:
    assert await bench.verb(claims.claim, ELSEWHERE) is Outcome.HEARTBEAT_FRESH
    bench.now_ms = T0 + LEASE_MS + 1
    assert await bench.verb(claims.claim, ELSEWHERE) is Outcome.SNAPSHOT_CHANGED


async def test_an_ended_run_is_not_claimed(bench: Bench) -> None:
    change = transition.Transition(HOST, RunStatus.COMPLETED)
    await transition.transition(bench.db, bench.run.run_id, ALICE, change, now_ms=T0)
    assert await bench.verb(claims.claim, ELSEWHERE) is Outcome.SNAPSHOT_CHANGED


async def test_only_the_claimant_activates(suspended: Bench) -> None:
    assert await suspended.verb(claims.activate, HOST) is Outcome.CLAIM_LOST
    await suspended.verb(claims.claim, ELSEWHERE)
    assert await suspended.verb(claims.activate, HOST) is Outcome.CLAIM_LOST
    nearly = Owner(ELSEWHERE.host_id, ELSEWHERE.pid, "other nonce")
    assert await suspended.verb(claims.activate, nearly) is Outcome.CLAIM_LOST
    assert await suspended.verb(claims.activate, ELSEWHERE) is Outcome.ACTIVATED
    # The present holder's own retry.
    assert await suspended.verb(claims.activate, ELSEWHERE) is Outcome.ACTIVATED
    assert await suspended.verb(claims.activate, HOST) is Outcome.CLAIM_LOST


# --- steal -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("age_ms", "outcome"),
    [
        (LEASE_MS - 1, Outcome.HEARTBEAT_FRESH),
        (LEASE_MS, Outcome.HEARTBEAT_FRESH),
        (LEASE_MS + 1, Outcome.STOLEN),
    ],
)
async def test_a_heartbeat_is_stale_only_after_the_lease(
    bench: Bench, age_ms: int, outcome: Outcome
) -> None:
    bench.now_ms = T0 + age_ms
    assert await bench.verb(claims.steal, ELSEWHERE, about(HOST)) is outcome


async def test_a_stolen_run_belongs_to_its_owner_until_it_is_activated(lapsed: Bench) -> None:
    assert await lapsed.verb(claims.steal, ELSEWHERE, about(HOST)) is Outcome.STOLEN
    assert (lapsed.run.owner, lapsed.run.generation) == (HOST, 1)
    assert await lapsed.verb(claims.activate, ELSEWHERE) is Outcome.ACTIVATED
    assert (lapsed.run.owner, lapsed.run.generation) == (ELSEWHERE, 2)
    assert await lapsed.facts() == [
        ("activated", "first", 1, T0),
        ("stolen", "second", 1, lapsed.now_ms),
        ("activated", "second", 2, lapsed.now_ms),
    ]
    assert await lapsed.verb(ownership.heartbeat, HOST) is Outcome.FENCE_LOST


async def test_a_heartbeat_of_the_old_owner_undoes_a_theft(lapsed: Bench) -> None:
    stolen_at_ms = lapsed.now_ms
    await lapsed.verb(claims.steal, ELSEWHERE, about(HOST))
    assert await lapsed.verb(ownership.heartbeat, HOST) is Outcome.RENEWED
    lapsed.now_ms += 10
    assert await lapsed.verb(claims.activate, ELSEWHERE) is Outcome.SNAPSHOT_CHANGED
    after = lapsed.run
    assert (after.owner, after.claim, after.generation) == (HOST, None, 1)
    assert (await lapsed.facts())[1:] == [
        ("stolen", "second", 1, stolen_at_ms),
        ("released", "second", 1, stolen_at_ms),
    ]
    assert await lapsed.verb(claims.activate, ELSEWHERE) is Outcome.CLAIM_LOST


async def test_an_owner_that_lets_go_takes_the_thiefs_claim_with_it(lapsed: Bench) -> None:
    await lapsed.verb(claims.steal, ELSEWHERE, about(HOST))
    await lapsed.suspend()
    assert lapsed.run.claim is None
    assert await lapsed.verb(claims.activate, ELSEWHERE) is Outcome.CLAIM_LOST
    assert (await lapsed.facts())[1:] == [
        ("stolen", "second", 1, lapsed.now_ms),
        ("released", "second", 1, lapsed.now_ms),
        ("released", "first", 1, None),
    ]


@pytest.mark.parametrize("evidence", [None, about(HOST, "same-host-pid-dead")])
async def test_a_theft_without_evidence_that_keeps_its_rule_is_refused_first(
    bench: Bench, evidence: Evidence | None
) -> None:
    assert await bench.verb(claims.steal, ELSEWHERE, evidence) is Outcome.LIVENESS_UNCONFIRMED
    same_host = Owner("host", 9, "third")
    cross = about(HOST, "cross-host-unreachable-stale")
    assert await bench.verb(claims.steal, same_host, cross) is Outcome.LIVENESS_UNCONFIRMED


async def test_evidence_about_another_owner_steals_nothing(lapsed: Bench) -> None:
    other = about(Owner("host", 1, "somebody else"))
    assert await lapsed.verb(claims.steal, ELSEWHERE, other) is Outcome.SNAPSHOT_CHANGED


async def test_a_waiting_run_is_not_stolen(suspended: Bench) -> None:
    stolen = await suspended.verb(claims.steal, ELSEWHERE, about(HOST))
    assert stolen is Outcome.SNAPSHOT_CHANGED


# --- abandon and recover -----------------------------------------------------------------


async def test_a_claimant_abandons_its_claim_and_leaves_the_run_as_it_was(
    suspended: Bench,
) -> None:
    await suspended.verb(claims.claim, ELSEWHERE)
    assert await suspended.verb(claims.abandon, HOST) is Outcome.CLAIM_LOST
    assert await suspended.verb(claims.abandon, ELSEWHERE) is Outcome.ABANDONED
    assert (suspended.run.claim, suspended.run.status) == (None, RunStatus.SUSPENDED)
    assert await suspended.verb(claims.abandon, ELSEWHERE) is Outcome.CLAIM_LOST
    assert (await suspended.facts())[-2:] == [
        ("claimed", "second", 1, T0 + 1),
        ("released", "second", 1, T0 + 1),
    ]
    assert await suspended.verb(claims.claim, HOST) is Outcome.CLAIMED


async def test_a_dead_claimants_claim_is_recovered_and_names_it(suspended: Bench) -> None:
    await suspended.verb(claims.claim, ELSEWHERE)
    claim = suspended.run.claim
    assert claim is not None
    claimed_at_ms = claim.claimed_at_ms
    suspended.now_ms = claimed_at_ms + LEASE_MS
    evidence = about(ELSEWHERE)
    assert await suspended.verb(claims.recover, HOST, evidence) is Outcome.CLAIM_FRESH
    suspended.now_ms += 1
    assert await suspended.verb(claims.recover, HOST, evidence) is Outcome.RECOVERED
    assert (suspended.run.claim, suspended.run.owner) == (None, None)
    assert (await suspended.facts())[-1] == ("expired", "second", 1, claimed_at_ms)
    assert await suspended.verb(claims.activate, ELSEWHERE) is Outcome.CLAIM_LOST


async def test_recovering_loses_in_the_order_of_its_losses(suspended: Bench) -> None:
    recover = claims.recover
    assert await suspended.verb(recover, HOST, None) is Outcome.LIVENESS_UNCONFIRMED
    assert await suspended.verb(recover, HOST, about(ELSEWHERE)) is Outcome.CLAIM_CHANGED
    await suspended.verb(claims.claim, ELSEWHERE)
    other = about(Owner("host", 3, "third"))
    assert await suspended.verb(recover, HOST, other) is Outcome.CLAIM_CHANGED
    assert await suspended.verb(recover, HOST, about(ELSEWHERE)) is Outcome.CLAIM_FRESH


async def test_a_run_that_is_not_there_is_said_first(db: BridgeDatabase) -> None:
    for verb, more in ((claims.claim, ()), (claims.steal, (None,)), (claims.recover, (None,))):
        with pytest.raises(NotFound):
            await verb(db, "no-such-run", ALICE, HOST, *more)


# --- Over HTTP ---------------------------------------------------------------------------


def test_claim_and_activate_over_http(client: Client) -> None:
    run, other = client.started(), an_owner()
    client.finish(run, "suspended").raise_for_status()
    path = f"/v1/runs/{run['run_id']}"
    claimed: Json = client.post(f"{path}/claim", {"owner": other, "lease_ms": 2000}).json()
    assert claimed["outcome"] == "claimed"
    assert claimed["run"]["claim"]["owner"] == other
    activated = client.post(f"{path}/activate", {"owner": other}).json()
    assert (activated["outcome"], activated["run"]["generation"]) == ("activated", 2)
    reconfirmed = client.post(f"{path}/reconfirm", {"owner": other})
    assert reconfirmed.json()["outcome"] == "reconfirmed"
    lost = client.post(f"{path}/reconfirm", {"owner": run["owner"]})
    assert (lost.status_code, lost.json()["outcome"]) == (409, "fence_lost")


def test_ownership_is_listed_in_order_and_in_pages(client: Client) -> None:
    run, other = client.started(), an_owner()
    client.finish(run, "suspended").raise_for_status()
    path = f"/v1/runs/{run['run_id']}"
    client.post(f"{path}/claim", {"owner": other}).raise_for_status()
    client.post(f"{path}/activate", {"owner": other}).raise_for_status()
    whole = client.get(f"{path}/ownership").json()
    assert whole["cursor"] is None
    assert [item["type"] for item in whole["items"]] == [
        "activated",
        "released",
        "claimed",
        "activated",
    ]
    assert whole["items"][2]["owner"] == other
    first = client.get(f"{path}/ownership", params={"limit": 3}).json()
    rest = client.get(f"{path}/ownership", params={"limit": 3, "cursor": first["cursor"]}).json()
    assert first["items"] + rest["items"] == whole["items"]
    assert client.as_("bob").get(f"{path}/ownership").status_code == 404
