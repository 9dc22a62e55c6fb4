"""Random verbs by three owners: the real D1 and the model agree after every step."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from fencepost import cancellation, claims, ownership, snapshot, starts
from fencepost import transition as transitions
from fencepost.decision import Attempt, fingerprint
from fencepost.identifiers import Principal, Target, mint_run_id
from fencepost.ownership import EVIDENCE_KINDS, Evidence
from fencepost.runs import Owner, Run, RunStatus
from helpers import BridgeDatabase, Sql, connect_async, new_key
from ownership_model import Model

ALICE = Principal("service", "alice")
OWNERS = [Owner("host", 1, "a"), Owner("host", 2, "b"), Owner("elsewhere", 1, "c")]
LEASE_MS = 10_000
T0 = 2_000_000_000_000

# Mostly None: whoever it concerns, the owner or the claimant.
concerned = st.sampled_from([None, None, None, *OWNERS])
kinds = st.sampled_from([*EVIDENCE_KINDS, "lease-expired"])
guards = st.sampled_from([None, None, "absent", "present"])
pauses = st.sampled_from([1, 500, LEASE_MS + 1])
# Ends are rare, so that a run lives long enough to be fought over.
states = st.sampled_from([RunStatus.RUNNING, *[RunStatus.SUSPENDED] * 8, RunStatus.COMPLETED])
STEPS = [
    *["time passes", "the lease ends", "the lease ends", "the claim grows old"],
    *["claim", "activate", "activate", "abandon", "steal", "steal", "recover", "own"],
    *["heartbeat", "transition", "cancel", "acknowledge"],
]


class Ownership(RuleBasedStateMachine):
    bridge = ""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.http = connect_async(self.bridge)
        self.db = BridgeDatabase(self.http)
        target = Target("workflow", "w")
        key = new_key("model")
        self.attempt = Attempt(
            key,
            ALICE,
            target,
            fingerprint(target, None, None),
            mint_run_id(key),
            "null",
            OWNERS[0],
            LEASE_MS,
        )
        _, seen = self.wait(starts.start(self.db, self.attempt, now_ms=T0))
        self.run_id = seen.run.run_id
        self.model = Model(OWNERS[0], T0, LEASE_MS)

    def wait(self, coroutine: Any) -> Any:
        return self.loop.run_until_complete(coroutine)

    def verb(self, verb: Any, expected: str, *more: Any, **options: Any) -> None:
        """The verb's outcome is the model's; so are the row and the facts afterwards."""
        where = (self.db, self.run_id, ALICE, *more)
        result = self.wait(verb(*where, now_ms=self.model.now, **options))
        assert result.outcome == expected
        assert result.claim_cleared == self.model.cleared
        self.compare(result.run)

    def compare(self, run: Run) -> None:
        model = self.model
        claim = run.claim and (run.claim.owner, run.claim.claimed_at_ms)
        assert (run.status, run.owner, run.generation) == (
            model.status,
            model.owner,
            model.generation,
        )
        assert (run.heartbeat_at_ms, run.lease_expires_at_ms) == (model.heartbeat, model.expires)
        assert claim == (model.claim and model.claim[:2])
        assert (run.cancel_requested_at_ms is not None) == model.cancel
        assert (run.cancel_acknowledged_at_ms is not None) == model.acknowledged
        facts = self.wait(ownership.facts(self.db, self.run_id, ALICE, 0, 200))
        assert [(f.type, f.owner, f.generation) for f in facts] == model.facts

    @rule(
        name=st.sampled_from(STEPS),
        who=concerned,
        kind=kinds,
        suspect=concerned,
        to=states,
        guard=guards,
        ms=pauses,
    )
    def step(
        self,
        name: str,
        who: Owner | None,
        kind: str,
        suspect: Owner | None,
        to: RunStatus,
        guard: Any,
        ms: int,
    ) -> None:
        """One rule for all, so that every example meets every verb."""
        model = self.model
        model.cleared = False
        owner, claimant = model.owner or OWNERS[0], model.claim[0] if model.claim else OWNERS[0]
        about_owner = Evidence(kind, suspect or owner)
        about_claimant = Evidence(kind, suspect or claimant)
        rival = who or OWNERS[ms % 3]
        match name:
            case "time passes":
                model.now += ms
            case "the lease ends":
                model.now = max(model.now, (model.expires or 0) + ms % 2)
            case "the claim grows old":
                model.now = max(model.now, (model.claim or (0, 0))[1] + LEASE_MS + ms % 2)
            case "claim":
                self.verb(claims.claim, model.claim_(rival), rival)
            case "activate":
                self.verb(claims.activate, model.activate(who or claimant), who or claimant)
            case "abandon":
                self.verb(claims.abandon, model.abandon(who or claimant), who or claimant)
            case "steal":
                self.verb(claims.steal, model.steal(rival, about_owner), rival, about_owner)
            case "recover":
                expected = model.recover(rival, about_claimant)
                self.verb(claims.recover, expected, rival, about_claimant)
            case "own":
                evidence = about_owner if guard != "absent" else None
                expected = model.own(rival, evidence)
                self.verb(ownership.own, expected, rival, evidence=evidence)
            case "heartbeat":
                self.verb(ownership.heartbeat, model.beat(who or owner), who or owner)
            case "transition":
                change = transitions.Transition(who or owner, to, cancel_requested=guard)
                expected = model.transition(who or owner, to, guard)
                self.verb(transitions.transition, expected, change)
            case "cancel":
                self.verb(cancellation.cancel, model.request_cancel(), ALICE)
            case "acknowledge":
                expected = model.acknowledge(who or owner)
                self.verb(cancellation.acknowledge, expected, who or owner)

    def teardown(self) -> None:
        self.compare(self.wait(snapshot.read(self.db, self.run_id, ALICE)))
        self.wait(self.http.aclose())
        self.loop.close()


@pytest.mark.usefixtures("sql")
def test_random_verbs_by_three_owners_do_what_the_contract_says(
    bridge: dict[str, str], sql: Sql
) -> None:
    Ownership.bridge = bridge["sql"]
    run_state_machine_as_test(
        Ownership,
        settings=settings(
            max_examples=40,
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            database=None,
            phases=[Phase.generate],  # shrinking would take minutes over a real database
        ),
    )
