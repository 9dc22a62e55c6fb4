"""Who owns a run, and for how long: grants, heartbeats, takeovers.

A grant is a compare-and-set in one batch. It first writes the ownership facts, if the grant is
admitted, and then the run, if the fact was written. Each grant raises the generation by one. A
lease lapses when its time passes without a heartbeat of its owner. Then another process can own the
run by giving evidence; the reservation is not freed by it. All times are the database's; a caller's
clock is never used.

Not guaranteed: that a former owner has stopped working. The generation is a fencing token: pass it
to every system that the run calls, and let that system refuse a lower one.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from fencepost import errors, fence, requests
from fencepost.identifiers import Principal, mint_token
from fencepost.runs import Grant, Outcome, Owner, Run, RunStatus, VerbResult
from fencepost.snapshot import (
    SEEN,
    VISIBLE,
    RunReadBack,
    found,
    not_found,
    read_statement,
    scope,
    verb,
)
from fencepost.storage.d1 import Database
from fencepost.storage.rows import Listed, Row, Rules, all_or_none, check_row, listed, whole
from fencepost.storage.sql import NOW_MS, Parameter, Statement

# The owner that asks holds the run, in the generation that it says, if it says one.
HELD_BY = """owner_host_id = :host_id AND owner_pid = :pid AND owner_nonce = :nonce
  AND (:generation IS NULL OR generation = :generation)"""


def holder(owner: Owner, generation: int | None) -> dict[str, Parameter]:
    """The parameters of HELD_BY."""
    return {**owner.params, "generation": generation}


# A running run has an owner. Another process can own it only with evidence about that owner: its
# lease has ended, its process is dead on the same host, or its host cannot be reached
# (docs/states.md).
EVIDENCE_KINDS = ("lease-expired", "same-host-pid-dead", "cross-host-unreachable-stale")


class Evidence(NamedTuple):
    """Why the owner (or claimant) that it names is believed dead.

    Whether the lease has ended is judged here, by the database's clock. With
    `expected_heartbeat_at_ms` it holds only for the lease that was looked at: evidence that
    arrives after another heartbeat is stale.
    """

    kind: str
    expected_owner: Owner
    expected_heartbeat_at_ms: int | None = None

    def keeps_its_rule(self, claimant: Owner) -> bool:
        """Whether its kind fits the host of the claimant and the host of the owner it names."""
        same_host = claimant.host_id == self.expected_owner.host_id
        return self.kind == "lease-expired" or (self.kind == "same-host-pid-dead") == same_host

    def fits(self, run: Run) -> bool:
        """Whether the run has the owner named here, and the heartbeat, if one is named."""
        heartbeat = self.expected_heartbeat_at_ms in (None, run.heartbeat_at_ms)
        return run.owner == self.expected_owner and heartbeat


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
    AND {fence.admits_existing_run_sql(":run_id")} AND {requests.UNUSED}
    AND (:expected_status IS NULL OR status = :expected_status)
    AND (:expected_heartbeat_at_ms IS NULL OR heartbeat_at_ms = :expected_heartbeat_at_ms)
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
RETURNING generation
"""

# Decides nothing: guarded by the fact just written. Its time is the fact's time.
_GRANT = f"""
UPDATE fencepost_runs SET status = 'running',
  owner_host_id = :host_id, owner_pid = :pid, owner_nonce = :nonce, generation = generation + 1,
  heartbeat_at_ms = fact.at_ms, lease_ms = COALESCE(:lease_ms, lease_ms),
  lease_expires_at_ms = fact.at_ms + COALESCE(:lease_ms, lease_ms),
  started_at_ms = COALESCE(started_at_ms, fact.at_ms),
  write_token = :token, updated_at_ms = fact.at_ms
FROM (SELECT at_ms, write_token AS token
  FROM {SEEN} CROSS JOIN fencepost_ownership USING (run_id)
  ORDER BY sequence DESC LIMIT 1) AS fact
WHERE run_id = :run_id AND fact.token = :token
"""


# Decides: whether a grant landed, and which generation it gave, whoever holds the run now.
_GRANT_RECEIPT = """
SELECT generation FROM fencepost_ownership
WHERE run_id = :run_id AND write_token = :token AND type = 'activated'
"""


async def own(
    db: Database,
    run_id: str,
    viewer: Principal | None,
    owner: Owner,
    *,
    lease_ms: int | None = None,
    evidence: Evidence | None = None,
    expected_status: RunStatus | None = None,
    now_ms: int | None = None,
) -> VerbResult:
    """Own a run that waits for an owner, or whose owner's lease lapsed. One round trip.

    `lease_ms` (milliseconds) None keeps the lease length of the run; `expected_status` and the
    evidence's heartbeat, if given, must be the run's. Whoever holds the run under a fresh lease
    `owned` it, and writes nothing. Losses, in order: already_claimed,
    heartbeat_fresh, evidence_required, snapshot_changed; after a lost reply also overtaken and
    lease_lapsed (`granted`). Raises NotFound and Fenced.
    """
    token = mint_token()
    kind, expected, heartbeat_at_ms = (None, None, None) if evidence is None else evidence
    grant = {"run_id": run_id, "token": token, **owner.params}
    proof = {"evidence_kind": kind, **expected_params(expected)}
    seen = {"expected_status": expected_status, "expected_heartbeat_at_ms": heartbeat_at_ms}
    asked = {**scope(viewer), **proof, **seen, **requests.params(db)}
    statements = [
        Statement(_GRANT_FACTS, **grant, **asked, now_ms=now_ms),
        Statement(_GRANT, **grant, **scope(viewer), lease_ms=lease_ms),
    ]
    receipt = Statement(_GRANT_RECEIPT, run_id=run_id, token=token)
    records = requests.of_run(db, run_id, token, Outcome.OWNED)
    where = (run_id, viewer, now_ms)
    back = await verb(db, statements, token, *where, receipt=receipt, records=records)
    if back.won:
        return granted(back, Outcome.OWNED, owner)
    back.require_existing_run()
    if back.run.owner == owner and back.run.lease_is_fresh:
        return VerbResult(Outcome.OWNED, back.run, granted=Grant(back.run.generation))
    return back.lost(_own_loss(back.run, owner, evidence, expected_status))


def granted(back: RunReadBack, won: Outcome, owner: Owner) -> VerbResult:
    """A grant of ownership is won only while the run shows this very grant, under its lease."""
    generation = max(row["generation"] for row in back.rows)
    run = back.run
    if run.owner != owner or run.generation != generation:
        return back.lost(Outcome.OVERTAKEN, Grant(generation))
    if not run.lease_is_fresh:
        return back.lost(Outcome.LEASE_LAPSED, Grant(generation))
    return VerbResult(won, run, granted=Grant(generation))


def _own_loss(
    run: Run, owner: Owner, evidence: Evidence | None, expected_status: RunStatus | None
) -> Outcome:
    if run.claim is not None:
        return Outcome.ALREADY_CLAIMED
    as_expected = expected_status in (None, run.status)
    if run.status is RunStatus.RUNNING:
        if run.lease_is_fresh:
            return Outcome.HEARTBEAT_FRESH
        if as_expected and (evidence is None or evidence.fits(run)):
            proved = evidence is not None and evidence.keeps_its_rule(owner)
            # Nothing was in the way but the lease: it ended between the write and this reading.
            return Outcome.HEARTBEAT_FRESH if proved else Outcome.EVIDENCE_REQUIRED
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
  AND {HELD_BY} AND {fence.admits_existing_run_sql(":run_id")}
RETURNING run_id
"""


async def heartbeat(
    db: Database,
    run_id: str,
    viewer: Principal | None,
    owner: Owner,
    *,
    generation: int | None = None,
    lease_ms: int | None = None,
    now_ms: int | None = None,
) -> VerbResult:
    """Renew the lease of a run that `owner` holds, in `generation` if given. One round trip.

    Writes one row. `lease_ms` (milliseconds) becomes the run's lease length; None keeps it. Loss:
    fence_lost. Raises NotFound and Fenced.
    """
    token = mint_token()
    who = {"run_id": run_id, **scope(viewer), **holder(owner, generation)}
    renewal = Statement(_HEARTBEAT, **who, lease_ms=lease_ms, token=token, now_ms=now_ms)
    back = await verb(
        db,
        [renewal],
        token,
        run_id,
        viewer,
        now_ms,
        could_win=lambda run: run.held_by(owner, generation),
    )
    if back.won:
        return VerbResult(Outcome.RENEWED, back.run)
    back.require_existing_run()
    return back.lost(Outcome.FENCE_LOST)


async def reconfirm(
    db: Database,
    run_id: str,
    viewer: Principal | None,
    owner: Owner,
    *,
    generation: int | None = None,
    now_ms: int | None = None,
) -> VerbResult:
    """As a heartbeat, by a process that is not sure whether it still holds the run."""
    result = await heartbeat(db, run_id, viewer, owner, generation=generation, now_ms=now_ms)
    won = result.outcome is Outcome.RENEWED
    return result._replace(outcome=Outcome.RECONFIRMED) if won else result


# --- Facts -------------------------------------------------------------------------------


# Of the ownership of a run and of claims on it; and of its cancel, which end no claim.
CANCEL_FACTS = ("cancel-requested", "cancel-acknowledged")
FACTS = ("claimed", "activated", "released", "stolen", "expired", *CANCEL_FACTS)


class Fact(NamedTuple):
    """A row of fencepost_ownership. `granted_at_ms` is None when an ownership ended.

    `owner` is the process that it is about; a request for a cancel is a principal's instead.
    """

    sequence: int
    type: str
    owner: Owner | None
    principal: Principal | None
    generation: int
    granted_at_ms: int | None
    at_ms: int

    @classmethod
    def from_row(cls, row: Row) -> Fact:
        """Raises RowCorrupt for a row that breaks a rule."""
        check_row("fencepost_ownership", _FACT_RULES, row)
        owner = principal = None
        if row["owner_host_id"] is not None:
            owner = Owner(row["owner_host_id"], row["owner_pid"], row["owner_nonce"])
        if row["principal_kind"] is not None:
            principal = Principal(row["principal_kind"], row["principal_id"])
        who = (row["sequence"], row["type"], owner, principal)
        return cls(*who, row["generation"], row["granted_at_ms"], row["at_ms"])


_FACT_RULES: Rules = (
    ("type is known", lambda row: row["type"] in FACTS),
    ("numbers are whole", whole("sequence", "generation", "at_ms")),
    ("numbers are whole", whole("owner_pid", null=True)),
    (
        "a fact names a process, or the principal who requested a cancel",
        lambda row: (
            (row["owner_host_id"] is None)
            == (row["type"] == "cancel-requested")
            == (row["principal_kind"] is not None)
        ),
    ),
    ("an owner is whole or absent", all_or_none("owner_host_id", "owner_pid", "owner_nonce")),
    ("a principal is whole or absent", all_or_none("principal_kind", "principal_id")),
)

# The time of the claim that stands: cancels may have come after it.
_CLAIM_AT_MS = """SELECT granted_at_ms FROM fencepost_ownership
      WHERE run_id = :run_id AND type IN ('claimed', 'stolen') ORDER BY sequence DESC LIMIT 1"""

# Decides nothing: guarded by the token of the write that it records. `:grant` says when the
# ownership was granted: by this write ('now'), by the claim before ('claim'), or not at all.
_FACT = f"""
INSERT INTO fencepost_ownership (run_id, sequence, type, owner_host_id, owner_pid, owner_nonce,
  generation, granted_at_ms, write_token, at_ms)
SELECT run_id,
  1 + COALESCE((SELECT MAX(sequence) FROM fencepost_ownership WHERE run_id = :run_id), 0),
  :type, :host_id, :pid, :nonce, generation,
  CASE :grant WHEN 'now' THEN updated_at_ms
    WHEN 'claim' THEN ({_CLAIM_AT_MS}) END,
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


# Decides nothing: guarded by the token of the write that has removed a claim, if one stood: it
# stands as long as no fact but those of cancels comes after its own. `:type` says how it ended.
_CLAIM_ENDED = """
INSERT INTO fencepost_ownership (run_id, sequence, type, owner_host_id, owner_pid, owner_nonce,
  generation, granted_at_ms, write_token, at_ms)
SELECT run.run_id,
  1 + (SELECT MAX(sequence) FROM fencepost_ownership WHERE run_id = :run_id),
  :type, last.owner_host_id, last.owner_pid, last.owner_nonce, run.generation,
  last.granted_at_ms, :token, run.updated_at_ms
FROM fencepost_runs AS run JOIN fencepost_ownership AS last ON last.run_id = run.run_id
  AND last.sequence = (SELECT MAX(sequence) FROM fencepost_ownership WHERE run_id = :run_id
    AND type NOT IN ('cancel-requested', 'cancel-acknowledged'))
WHERE run.run_id = :run_id AND run.write_token = :token AND last.type IN ('claimed', 'stolen')
"""


def claim_ended_statement(
    run_id: str, token: str, type: Literal["released", "expired"]
) -> Statement:
    """The fact that ends a standing claim, for a write that removes whatever claim there is.

    It comes before the other facts of its batch.
    """
    return Statement(_CLAIM_ENDED, run_id=run_id, token=token, type=type)


_PAGE = f"""
SELECT fact.* FROM {SEEN} CROSS JOIN fencepost_ownership AS fact USING (run_id)
WHERE sequence > :after ORDER BY sequence LIMIT :limit
"""


async def facts(
    db: Database, run_id: str, viewer: Principal | None, after: int, limit: int
) -> list[Listed[Fact]]:
    """At most `limit` facts of a run, in order, after sequence `after`. Raises NotFound."""
    granted = Statement(_PAGE, run_id=run_id, **scope(viewer), after=after, limit=limit)
    try:
        results = await db.read([read_statement(run_id, viewer), granted])
    except errors.MissingTable:
        raise not_found() from None
    found(results[0])
    return listed(results[1].rows, Fact.from_row)
