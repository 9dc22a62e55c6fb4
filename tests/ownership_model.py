"""The rules of ownership (docs/states.md) as a small model."""

from __future__ import annotations

from dataclasses import dataclass, field

from fencepost.ownership import Evidence
from fencepost.runs import Owner


@dataclass
class Model:
    """One run. Every verb returns the outcome's name; `facts` are (type, owner, generation)."""

    owner: Owner | None
    now: int
    lease: int
    status: str = "running"
    generation: int = 1
    heartbeat: int | None = None
    expires: int | None = None
    claim: tuple[Owner, int, int | None] | None = None
    cancel: bool = False
    acknowledged: bool = False
    facts: list[tuple[str, Owner, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        assert self.owner is not None
        self.heartbeat, self.expires = self.now, self.now + self.lease
        self.facts.append(("activated", self.owner, 1))

    def note(self, type: str, who: Owner) -> None:
        self.facts.append((type, who, self.generation))

    def grant(self, who: Owner) -> None:
        self.status, self.owner, self.claim = "running", who, None
        self.generation += 1
        self.heartbeat, self.expires = self.now, self.now + self.lease
        self.note("activated", who)

    @property
    def stale(self) -> bool:
        return self.status == "running" and self.expires is not None and self.expires < self.now

    def loss(self) -> str:
        if self.claim:
            return "already_claimed"
        fresh = self.status == "running" and not self.stale
        return "heartbeat_fresh" if fresh else "snapshot_changed"

    def claim_(self, who: Owner) -> str:
        if self.claim or self.status not in ("pending", "suspended"):
            return self.loss()
        self.claim = (who, self.now, None)
        self.note("claimed", who)
        return "claimed"

    def activate(self, who: Owner) -> str:
        if not self.claim or self.claim[0] != who:
            return "claim_lost"
        if self.claim[2] != self.heartbeat:
            self.claim = None
            self.note("released", who)
            return "snapshot_changed"
        self.grant(who)
        return "activated"

    def abandon(self, who: Owner) -> str:
        if not self.claim or self.claim[0] != who:
            return "claim_lost"
        self.claim = None
        self.note("released", who)
        return "abandoned"

    def steal(self, who: Owner, evidence: Evidence) -> str:
        if not evidence.keeps_its_rule(who):
            return "liveness_unconfirmed"
        if self.claim or not self.stale or self.owner != evidence.expected_owner:
            return self.loss()
        self.claim = (who, self.now, self.heartbeat)
        self.note("stolen", who)
        return "stolen"

    def recover(self, who: Owner, evidence: Evidence) -> str:
        if not evidence.keeps_its_rule(who):
            return "liveness_unconfirmed"
        dead = evidence.expected_owner
        if not self.claim or self.claim[0] != dead:
            return "claim_changed"
        if self.claim[1] + self.lease >= self.now:
            return "claim_fresh"
        self.claim = None
        self.note("expired", dead)
        return "recovered"

    def own(self, who: Owner, evidence: Evidence | None) -> str:
        waits = self.status in ("pending", "suspended")
        mine = self.owner == who
        valid = evidence and evidence.expected_owner == self.owner and evidence.keeps_its_rule(who)
        if self.claim or not (waits or (self.stale and (mine or valid))):
            if self.claim or not self.stale:
                return self.loss()
            about_another = evidence and evidence.expected_owner != self.owner
            return "snapshot_changed" if about_another else "evidence_required"
        if waits:
            self.note("claimed", who)
        elif mine:
            self.note("released", who)
            self.note("claimed", who)
        else:
            self.note("stolen", who)
        self.grant(who)
        return "owned"

    def beat(self, who: Owner) -> str:
        if self.owner != who or self.heartbeat is None or self.expires is None:
            return "fence_lost"
        self.heartbeat = max(self.heartbeat, self.now)
        self.expires = max(self.expires, self.now + self.lease)
        return "renewed"

    def transition(self, who: Owner, to: str, guard: str | None) -> str:
        if self.owner != who:
            return "fence_lost"
        if guard and (guard == "present") != self.cancel:
            return "guard_failed"
        if to != "running":
            self.note("released", who)
            self.owner = self.heartbeat = self.expires = self.claim = None
        self.status = to
        return "transitioned"

    def request_cancel(self) -> str:
        if self.status in ("completed", "failed", "cancelled"):
            return "terminal"
        if self.cancel:
            return "already_requested"
        self.cancel = True
        return "cancel_requested"

    def acknowledge(self, who: Owner) -> str:
        if self.owner != who:
            return "fence_lost"
        if not self.cancel or self.acknowledged:
            return "already_acknowledged" if self.cancel else "cancel_not_requested"
        self.acknowledged = True
        return "cancel_acknowledged"
