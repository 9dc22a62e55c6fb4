"""Who owns a run, and for how long: grants, heartbeats, takeovers.

A grant is a compare-and-set in one batch. It first writes the ownership facts, if the grant is
admitted, and then the run, if the fact was written. Each grant raises the generation by one. After
a lease has lapsed, another process can own the run by giving evidence. The reservation is never
freed by that. All times are the database's; a caller's clock is never used.

Not guaranteed: that a former owner has stopped working. The generation is a fencing token: pass it
to every system that the run calls, and let that system refuse a lower one.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from fencepost import errors, fence
from fencepost.identifiers import Principal, mint_token
from fencepost.runs import Outcome, Owner, Run, RunStatus
from fencepost.snapshot import VISIBLE, found, not_found, read_statement, scope, verb
from fencepost.storage.d1 import Database
from fencepost.storage.rows import Row, Rules, check_row, whole
from fencepost.storage.sql import NOW_MS, Statement

# A running run has an owner. Another process can own it only with evidence about that owner: its
# lease has ended, its process is dead on the same host, or its host cannot be reached
# (docs/states.md).
EVIDENCE_KINDS = ("lease-expired", "same-host-pid-dead", "cross-host-unreachable-stale")


class Evidence(NamedTuple):
    """Why the caller believes that the present owner is dead.

    The kind is the caller's word. Whether the lease has lapsed is checked here.
    """

    kind: str
    expected_owner: Owner

    def keeps_its_rule(self, claimant: Owner) -> bool:
        """Whether its kind fits the host of the claimant and the host of the owner it names."""
        same_host = claimant.host_id == self.expected_owner.host_id
        return self.kind == "lease-expired" or (self.kind == "same-host-pid-dead") == same_host


def expected_params(owner: Owner | None) -> dict[str, str | int | None]:
    """`:expected_host_id`, `:expected_pid`, `:expected_nonce`: the owner in the evidence."""
    return {f"expected_{name}": getattr(owner, name, None) for name in Owner._fields}


# Decides: the run waits for an owner, or its lease has lapsed and the caller is the owner or has
# evidence about it (`:evidence_kind`, `:expected_…`); no claim stands; the fence admits existing
# work. Writes the facts of the grant. They depend on who owned the run before.
_GRANT_FACTS = f"""
WITH step (taken_from, position, type) AS (VALUES
  ('nobody', 1, 'claimed'), ('nobody', 2, 'activated'),
  ('self', 1, 'released'), ('self', 2, 'claimed'), ('self', 3, 'activated'),
  ('rival', 1, 'stolen'), ('rival', 2, 'activated')),
clock AS MATERIALIZED (SELECT COALESCE(:now_ms, {NOW_MS}) AS now_ms),
grantable AS (
  SELECT run_id, generation, MAX(now_ms, updated_at_ms) AS at_ms,
    CASE WHEN status <> 'running' THEN 'nobody'
      WHEN (owner_host_id, owner_pid, owner_nonce) = (:host_id, :pid, :nonce) THEN 'self'
      ELSE 'rival' END AS taken_from
  FROM fencepost_runs, clock
  WHERE run_id = :run_id AND {VISIBLE} AND claimed_at_ms IS NULL
    AND {fence.admits_existing_run_sql(":run_id")}
    AND (status IN ('pending', 'suspended')
      OR (status = 'running' AND lease_expires_at_ms < now_ms
        AND ((owner_host_id, owner_pid, owner_nonce) = (:host_id, :pid, :nonce)
          OR ((owner_host_id, owner_pid, owner_nonce)
              = (:expected_host_id, :expected_pid, :expected_nonce)
            AND (:evidence_kind = 'lease-expired'
              OR (:evidence_kind = 'same-host-pid-dead') = (:host_id = :expected_host_id)))))))
INSERT INTO fencepost_ownership (run_id, sequence, type, owner_host_id, owner_pid, owner_nonce,
  generation, granted_at_ms, write_token, at_ms)
SELECT run_id,
  position + COALESCE((SELECT MAX(sequence) FROM fencepost_ownership WHERE run_id = :run_id), 0),
  type, :host_id, :pid, :nonce, generation + (type = 'activated'),
  CASE WHEN type <> 'released' THEN at_ms END, :token, at_ms
FROM grantable JOIN step USING (taken_from)
RETURNING run_id
"""

# Decides nothing: guarded by the fact just written. Its time is the fact's time.
_GRANT = """
UPDATE fencepost_runs SET status = 'running',
  owner_host_id = :host_id, owner_pid = :pid, owner_nonce = :nonce, generation = generation + 1,
  heartbeat_at_ms = fact.at_ms, lease_ms = COALESCE(:lease_ms, lease_ms),
  lease_expires_at_ms = fact.at_ms + COALESCE(:lease_ms, lease_ms),
  started_at_ms = COALESCE(started_at_ms, fact.at_ms),
  write_token = :token, updated_at_ms = fact.at_ms
FROM (SELECT at_ms, write_token AS token FROM fencepost_ownership
  WHERE run_id = :run_id ORDER BY sequence DESC LIMIT 1) AS fact
WHERE run_id = :run_id AND fact.token = :token
"""


async def own(
    db: Database,
    run_id: str,
    viewer: Principal | None,
    owner: Owner,
    *,
    lease_ms: int | None = None,
    evidence: Evidence | None = None,
    now_ms: int | None = None,
) -> tuple[Outcome, Run]:
    """Own a run that waits for an owner, or whose owner's lease lapsed. One round trip.

    `lease_ms` (milliseconds) None keeps the lease length of the run. Losses, in order:
    already_claimed, heartbeat_fresh, evidence_required, snapshot_changed. Raises NotFound and
    Fenced.
    """
    token = mint_token()
    kind, expected = (None, None) if evidence is None else evidence
    grant = {"run_id": run_id, "token": token, **owner.params}
    proof = {"evidence_kind": kind, **expected_params(expected)}
    statements = [
        Statement(_GRANT_FACTS, **grant, **scope(viewer), **proof, now_ms=now_ms),
        Statement(_GRANT, **grant, lease_ms=lease_ms),
    ]
    won, run, gate = await verb(db, statements, token, run_id, viewer, now_ms)
    if won:
        return Outcome.OWNED, run
    gate.require_existing_run(run_id)
    return _own_loss(run, evidence), run


def _own_loss(run: Run, evidence: Evidence | None) -> Outcome:
    if run.claim is not None:
        return Outcome.ALREADY_CLAIMED
    if run.status is RunStatus.RUNNING:
        if run.lease_is_fresh:
            return Outcome.HEARTBEAT_FRESH
        if evidence is None or run.owner == evidence.expected_owner:
            return Outcome.EVIDENCE_REQUIRED
    return Outcome.SNAPSHOT_CHANGED


# Decides: the run is running and this owner holds it, even if the lease has lapsed meanwhile.
# One row, no fact. Neither the heartbeat nor the end of the lease moves backwards.
_HEARTBEAT = f"""
UPDATE fencepost_runs SET
  heartbeat_at_ms = MAX(heartbeat_at_ms, COALESCE(:now_ms, {NOW_MS})),
  lease_ms = COALESCE(:lease_ms, lease_ms),
  lease_expires_at_ms =
    MAX(lease_expires_at_ms, COALESCE(:now_ms, {NOW_MS}) + COALESCE(:lease_ms, lease_ms)),
  write_token = :token, updated_at_ms = MAX(updated_at_ms, COALESCE(:now_ms, {NOW_MS}))
WHERE run_id = :run_id AND {VISIBLE} AND status = 'running'
  AND owner_host_id = :host_id AND owner_pid = :pid AND owner_nonce = :nonce
  AND {fence.admits_existing_run_sql(":run_id")}
RETURNING run_id
"""


async def heartbeat(
    db: Database,
    run_id: str,
    viewer: Principal | None,
    owner: Owner,
    *,
    lease_ms: int | None = None,
    now_ms: int | None = None,
) -> tuple[Outcome, Run]:
    """Renew the lease of a run that `owner` holds. One round trip, one row.

    `lease_ms` (milliseconds) becomes the run's lease length; None keeps it. Loss: fence_lost.
    Raises NotFound and Fenced.
    """
    token = mint_token()
    who = {"run_id": run_id, **scope(viewer), **owner.params}
    renewal = Statement(_HEARTBEAT, **who, lease_ms=lease_ms, token=token, now_ms=now_ms)
    won, run, gate = await verb(db, [renewal], token, run_id, viewer, now_ms)
    if won:
        return Outcome.RENEWED, run
    gate.require_existing_run(run_id)
    return Outcome.FENCE_LOST, run


async def reconfirm(
    db: Database, run_id: str, viewer: Principal | None, owner: Owner, now_ms: int | None = None
) -> tuple[Outcome, Run]:
    """As a heartbeat, by a process that is not sure whether it still holds the run."""
    outcome, run = await heartbeat(db, run_id, viewer, owner, now_ms=now_ms)
    return (Outcome.RECONFIRMED if outcome is Outcome.RENEWED else outcome), run


# --- Facts -------------------------------------------------------------------------------


FACTS = ("claimed", "activated", "released", "stolen", "expired")


class Fact(NamedTuple):
    """A row of fencepost_ownership. `granted_at_ms` is None when an ownership ended."""

    sequence: int
    type: str
    owner: Owner
    generation: int
    granted_at_ms: int | None
    at_ms: int

    @classmethod
    def from_row(cls, row: Row) -> Fact:
        """Raises RowCorrupt for a row that breaks a rule."""
        check_row("fencepost_ownership", _FACT_RULES, row)
        owner = Owner(row["owner_host_id"], row["owner_pid"], row["owner_nonce"])
        times = (row["granted_at_ms"], row["at_ms"])
        return cls(row["sequence"], row["type"], owner, row["generation"], *times)


_FACT_RULES: Rules = (
    (
        "type is claimed, activated, released, stolen or expired",
        lambda row: row["type"] in FACTS,
    ),
    ("numbers are whole", whole("sequence", "generation", "owner_pid", "at_ms")),
)

# Decides nothing: guarded by the token of the write that it records. `:grant` says when the
# ownership was granted: by this write ('now'), by the claim before ('claim'), or not at all.
_FACT = """
INSERT INTO fencepost_ownership (run_id, sequence, type, owner_host_id, owner_pid, owner_nonce,
  generation, granted_at_ms, write_token, at_ms)
SELECT run_id,
  1 + COALESCE((SELECT MAX(sequence) FROM fencepost_ownership WHERE run_id = :run_id), 0),
  :type, :host_id, :pid, :nonce, generation,
  CASE :grant WHEN 'now' THEN updated_at_ms
    WHEN 'claim' THEN (SELECT granted_at_ms FROM fencepost_ownership
      WHERE run_id = :run_id ORDER BY sequence DESC LIMIT 1) END,
  :token, updated_at_ms
FROM fencepost_runs WHERE run_id = :run_id AND write_token = :token
"""


def fact_statement(
    run_id: str,
    token: str,
    type: str,
    owner: Owner,
    grant: Literal["now", "claim"] | None,
) -> Statement:
    """One fact, for the write named by `token`."""
    return Statement(_FACT, run_id=run_id, token=token, type=type, **owner.params, grant=grant)


_PAGE = """
SELECT * FROM fencepost_ownership WHERE run_id = :run_id AND sequence > :after
ORDER BY sequence LIMIT :limit
"""


async def facts(
    db: Database, run_id: str, viewer: Principal | None, after: int, limit: int
) -> list[Fact]:
    """At most `limit` facts of a run, in order, after sequence `after`. Raises NotFound."""
    granted = Statement(_PAGE, run_id=run_id, after=after, limit=limit)
    try:
        results = await db.read([read_statement(run_id, viewer), granted])
    except errors.MissingTable:
        raise not_found() from None
    found(results[0])
    return [Fact.from_row(row) for row in results[1].rows]
