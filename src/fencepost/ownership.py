"""Who owns a run, and for how long: grants, heartbeats, takeovers.

A grant is a compare-and-set in one batch: first the ownership facts, written only if the grant
is admitted, then the run, guarded by the fact just written. Each grant raises the generation by
one. A lease that lapsed may move the ownership to somebody who gives evidence; it never frees
the reservation. All times are the database's; nothing here trusts a caller's clock.

Not guaranteed: that a former owner has stopped working. Pass the generation on to whatever the
run calls, and let it refuse lower ones.
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

# A run that runs belongs to somebody: only evidence about that very owner opens it (contracts
# 3): the same host saw the process dead, another host lost it, or its lease has ended.
EVIDENCE_KINDS = ("lease-expired", "same-host-pid-dead", "cross-host-unreachable-stale")


class Evidence(NamedTuple):
    """Why the present owner is believed dead. Staleness is judged here, by the lease."""

    kind: str
    expected_owner: Owner

    def keeps_its_rule(self, claimant: Owner) -> bool:
        """Whether its kind fits the hosts of the claimant and of the owner that it names."""
        same_host = claimant.host_id == self.expected_owner.host_id
        return self.kind == "lease-expired" or (self.kind == "same-host-pid-dead") == same_host


# Decides: the run waits for an owner, or runs under a lease that lapsed and the claimant is
# the owner itself or has evidence about it (?7 … ?10); nobody claims it; the fence admits
# existing work. Writes the facts of the grant, which differ by whom it was taken from.
_GRANT_FACTS = f"""
WITH step (taken_from, position, type) AS (VALUES
  ('nobody', 1, 'claimed'), ('nobody', 2, 'activated'),
  ('self', 1, 'released'), ('self', 2, 'claimed'), ('self', 3, 'activated'),
  ('rival', 1, 'stolen'), ('rival', 2, 'activated')),
clock AS MATERIALIZED (SELECT COALESCE(?12, {NOW_MS}) AS now_ms),
grantable AS (
  SELECT run_id, generation, MAX(now_ms, updated_at_ms) AS at_ms,
    CASE WHEN status <> 'running' THEN 'nobody'
      WHEN (owner_host_id, owner_pid, owner_nonce) = (?4, ?5, ?6) THEN 'self'
      ELSE 'rival' END AS taken_from
  FROM fencepost_runs, clock
  WHERE run_id = ?1 AND {VISIBLE} AND claimed_at_ms IS NULL
    AND {fence.admits_existing_run_sql("?1")}
    AND (status IN ('pending', 'suspended')
      OR (status = 'running' AND lease_expires_at_ms < now_ms
        AND ((owner_host_id, owner_pid, owner_nonce) = (?4, ?5, ?6)
          OR ((owner_host_id, owner_pid, owner_nonce) = (?8, ?9, ?10)
            AND (?7 = 'lease-expired' OR (?7 = 'same-host-pid-dead') = (?4 = ?8)))))))
INSERT INTO fencepost_ownership (run_id, sequence, type, owner_host_id, owner_pid, owner_nonce,
  generation, granted_at_ms, write_token, at_ms)
SELECT run_id,
  position + COALESCE((SELECT MAX(sequence) FROM fencepost_ownership WHERE run_id = ?1), 0),
  type, ?4, ?5, ?6, generation + (type = 'activated'),
  CASE WHEN type <> 'released' THEN at_ms END, ?11, at_ms
FROM grantable JOIN step USING (taken_from)
RETURNING run_id
"""

# Decides nothing: guarded by the fact just written, from which it takes its time.
_GRANT = """
UPDATE fencepost_runs SET status = 'running',
  owner_host_id = ?3, owner_pid = ?4, owner_nonce = ?5, generation = generation + 1,
  heartbeat_at_ms = fact.at_ms, lease_ms = COALESCE(?6, lease_ms),
  lease_expires_at_ms = fact.at_ms + COALESCE(?6, lease_ms),
  started_at_ms = COALESCE(started_at_ms, fact.at_ms),
  write_token = ?2, updated_at_ms = fact.at_ms
FROM (SELECT at_ms, write_token AS token FROM fencepost_ownership
  WHERE run_id = ?1 ORDER BY sequence DESC LIMIT 1) AS fact
WHERE run_id = ?1 AND fact.token = ?2
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
    """Take a run that waits for an owner, or whose owner's lease lapsed. One round trip.

    `lease_ms` None keeps the run's own. Losses, in order: already_claimed, heartbeat_fresh,
    evidence_required, snapshot_changed. Raises NotFound and Fenced.
    """
    token, who = mint_token(), owner.columns
    proof: tuple[str | int | None, ...] = (None, None, None, None)
    if evidence is not None:
        expected = evidence.expected_owner
        proof = (evidence.kind, *expected.columns)
    statements = [
        Statement(_GRANT_FACTS, (run_id, *scope(viewer), *who, *proof, token, now_ms)),
        Statement(_GRANT, (run_id, token, *who, lease_ms)),
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


# Decides: the run is running and this owner holds it; a lapsed lease that nobody took revives.
# One row, no fact. Neither the heartbeat nor the end of the lease moves backwards.
_HEARTBEAT = f"""
UPDATE fencepost_runs SET
  heartbeat_at_ms = MAX(heartbeat_at_ms, COALESCE(?9, {NOW_MS})),
  lease_ms = COALESCE(?7, lease_ms),
  lease_expires_at_ms =
    MAX(lease_expires_at_ms, COALESCE(?9, {NOW_MS}) + COALESCE(?7, lease_ms)),
  write_token = ?8, updated_at_ms = MAX(updated_at_ms, COALESCE(?9, {NOW_MS}))
WHERE run_id = ?1 AND {VISIBLE} AND status = 'running'
  AND owner_host_id = ?4 AND owner_pid = ?5 AND owner_nonce = ?6
  AND {fence.admits_existing_run_sql("?1")}
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

    `lease_ms` becomes the run's own; None keeps it. Loss: fence_lost. Raises NotFound, Fenced.
    """
    who, token = owner.columns, mint_token()
    statements = [Statement(_HEARTBEAT, (run_id, *scope(viewer), *who, lease_ms, token, now_ms))]
    won, run, gate = await verb(db, statements, token, run_id, viewer, now_ms)
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
    """A row of fencepost_ownership. `granted_at_ms` is None for letting go of an ownership."""

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

# Decides nothing: guarded by the token of the write that it records. ?7: the grant that the
# fact is about is this write's ('now'), that of the claim before ('claim'), or none.
_FACT = """
INSERT INTO fencepost_ownership (run_id, sequence, type, owner_host_id, owner_pid, owner_nonce,
  generation, granted_at_ms, write_token, at_ms)
SELECT run_id,
  1 + COALESCE((SELECT MAX(sequence) FROM fencepost_ownership WHERE run_id = ?1), 0),
  ?3, ?4, ?5, ?6, generation,
  CASE ?7 WHEN 'now' THEN updated_at_ms
    WHEN 'claim' THEN (SELECT granted_at_ms FROM fencepost_ownership
      WHERE run_id = ?1 ORDER BY sequence DESC LIMIT 1) END,
  ?2, updated_at_ms
FROM fencepost_runs WHERE run_id = ?1 AND write_token = ?2
"""


def fact_statement(
    run_id: str,
    token: str,
    type: str,
    owner: Owner,
    grant: Literal["now", "claim"] | None,
) -> Statement:
    """One fact, for the write named by `token`."""
    who = owner.columns
    return Statement(_FACT, (run_id, token, type, *who, grant))


_PAGE = """
SELECT * FROM fencepost_ownership WHERE run_id = ?1 AND sequence > ?2 ORDER BY sequence LIMIT ?3
"""


async def facts(
    db: Database, run_id: str, viewer: Principal | None, after: int, limit: int
) -> list[Fact]:
    """Who owned a run, in order, from after sequence `after` on. Raises NotFound."""
    try:
        results = await db.read(
            [read_statement(run_id, viewer), Statement(_PAGE, (run_id, after, limit))]
        )
    except errors.MissingTable:
        raise not_found() from None
    found(results[0])
    return [Fact.from_row(row) for row in results[1].rows]
