"""Claims: a tentative hold on a run, to be activated into an ownership, or given up.

A claim waits for nobody: while it stands, no other process can claim, own or steal the run; its
activation fails if the run moved meanwhile. A claim older than the run's lease can be recovered
by somebody who gives evidence about the claimant.
"""

from __future__ import annotations

from fencepost import fence
from fencepost.identifiers import Principal, mint_token
from fencepost.ownership import Evidence, fact_statement
from fencepost.runs import Outcome, Owner, Run, RunStatus
from fencepost.snapshot import VISIBLE, scope, verb
from fencepost.storage.d1 import Database
from fencepost.storage.sql import NOW_MS, Statement

_GATE = fence.admits_existing_run_sql("?1")

# Decides: the run waits for an owner, and nobody claims it.
_CLAIM = f"""
UPDATE fencepost_runs SET claim_host_id = ?5, claim_pid = ?6, claim_nonce = ?7,
  claimed_at_ms = MAX(COALESCE(?9, {NOW_MS}), updated_at_ms), lease_ms = COALESCE(?8, lease_ms),
  write_token = ?4, updated_at_ms = MAX(COALESCE(?9, {NOW_MS}), updated_at_ms)
WHERE run_id = ?1 AND {VISIBLE} AND {_GATE}
  AND status IN ('pending', 'suspended') AND claim_host_id IS NULL
RETURNING run_id
"""


async def claim(
    db: Database,
    run_id: str,
    viewer: Principal | None,
    owner: Owner,
    *,
    lease_ms: int | None = None,
    now_ms: int | None = None,
) -> tuple[Outcome, Run]:
    """Hold a run that waits for an owner. One round trip.

    Losses, in order: already_claimed, heartbeat_fresh, snapshot_changed.
    """
    token = mint_token()
    values = (run_id, *scope(viewer), token, *owner.columns, lease_ms, now_ms)
    statements = [
        Statement(_CLAIM, values),
        fact_statement(run_id, token, "claimed", owner, "now"),
    ]
    won, run, gate = await verb(db, statements, token, run_id, viewer, now_ms)
    if won:
        return Outcome.CLAIMED, run
    gate.require_existing_run(run_id)
    return _loss(run), run


# Decides: the run runs under this very owner, its lease lapsed, and nobody claims it.
_STEAL = f"""
UPDATE fencepost_runs SET claim_host_id = ?5, claim_pid = ?6, claim_nonce = ?7,
  claimed_at_ms = MAX(COALESCE(?11, {NOW_MS}), updated_at_ms),
  claim_heartbeat_at_ms = heartbeat_at_ms,
  write_token = ?4, updated_at_ms = MAX(COALESCE(?11, {NOW_MS}), updated_at_ms)
WHERE run_id = ?1 AND {VISIBLE} AND {_GATE}
  AND status = 'running' AND claim_host_id IS NULL
  AND owner_host_id = ?8 AND owner_pid = ?9 AND owner_nonce = ?10
  AND lease_expires_at_ms < COALESCE(?11, {NOW_MS})
RETURNING run_id
"""


async def steal(
    db: Database,
    run_id: str,
    viewer: Principal | None,
    owner: Owner,
    evidence: Evidence | None,
    *,
    now_ms: int | None = None,
) -> tuple[Outcome, Run]:
    """Claim a run from an owner that is believed dead. One round trip.

    The claim stands until it is activated; a heartbeat of the old owner undoes it. Losses, in
    order: liveness_unconfirmed, already_claimed, heartbeat_fresh, snapshot_changed.
    """
    if evidence is None or not evidence.keeps_its_rule(owner):
        _, run, _ = await verb(db, [], "", run_id, viewer, now_ms)
        return Outcome.LIVENESS_UNCONFIRMED, run
    token, expected = mint_token(), evidence.expected_owner
    values = (run_id, *scope(viewer), token, *owner.columns, *expected.columns, now_ms)
    statements = [
        Statement(_STEAL, values),
        fact_statement(run_id, token, "stolen", owner, "now"),
    ]
    won, run, gate = await verb(db, statements, token, run_id, viewer, now_ms)
    if won:
        return Outcome.STOLEN, run
    gate.require_existing_run(run_id)
    return _loss(run), run


def _loss(run: Run) -> Outcome:
    """The contract's order (contracts 3)."""
    if run.claim is not None:
        return Outcome.ALREADY_CLAIMED
    if run.status is RunStatus.RUNNING and run.lease_is_fresh:
        return Outcome.HEARTBEAT_FRESH
    return Outcome.SNAPSHOT_CHANGED


_EXACT_CLAIM = "claim_host_id = ?5 AND claim_pid = ?6 AND claim_nonce = ?7"
_NO_CLAIM = (
    "claim_host_id = NULL, claim_pid = NULL, claim_nonce = NULL, claimed_at_ms = NULL,"
    " claim_heartbeat_at_ms = NULL"
)

# Decides: this claim stands, and the run is as it was when it was made.
_ACTIVATE = f"""
UPDATE fencepost_runs SET status = 'running',
  owner_host_id = ?5, owner_pid = ?6, owner_nonce = ?7, generation = generation + 1,
  heartbeat_at_ms = MAX(COALESCE(?8, {NOW_MS}), updated_at_ms),
  lease_expires_at_ms = MAX(COALESCE(?8, {NOW_MS}), updated_at_ms) + lease_ms,
  started_at_ms = COALESCE(started_at_ms, MAX(COALESCE(?8, {NOW_MS}), updated_at_ms)),
  {_NO_CLAIM},
  write_token = ?4, updated_at_ms = MAX(COALESCE(?8, {NOW_MS}), updated_at_ms)
WHERE run_id = ?1 AND {VISIBLE} AND {_GATE} AND {_EXACT_CLAIM}
  AND claim_heartbeat_at_ms IS heartbeat_at_ms
RETURNING run_id
"""

# Decides: this claim stands. Lets go of it.
_ABANDON = f"""
UPDATE fencepost_runs SET {_NO_CLAIM},
  write_token = ?4, updated_at_ms = MAX(COALESCE(?8, {NOW_MS}), updated_at_ms)
WHERE run_id = ?1 AND {VISIBLE} AND {_GATE} AND {_EXACT_CLAIM}
RETURNING run_id
"""


async def activate(
    db: Database,
    run_id: str,
    viewer: Principal | None,
    owner: Owner,
    *,
    now_ms: int | None = None,
) -> tuple[Outcome, Run]:
    """Turn one's claim into the ownership of the run. One round trip.

    Losses, in order: claim_lost; snapshot_changed, which also lets go of the claim.
    """
    granted, changed = mint_token(), mint_token()
    who, mine = (run_id, *scope(viewer)), owner.columns
    statements = [
        Statement(_ACTIVATE, (*who, granted, *mine, now_ms)),
        Statement(_ABANDON, (*who, changed, *mine, now_ms)),
        fact_statement(run_id, granted, "activated", owner, "now"),
        fact_statement(run_id, changed, "released", owner, "claim"),
    ]
    won, run, gate = await verb(db, statements, granted, run_id, viewer, now_ms)
    if won:
        return Outcome.ACTIVATED, run
    gate.require_existing_run(run_id)
    moved = run.write_token == changed
    return (Outcome.SNAPSHOT_CHANGED if moved else Outcome.CLAIM_LOST), run


async def abandon(
    db: Database,
    run_id: str,
    viewer: Principal | None,
    owner: Owner,
    *,
    now_ms: int | None = None,
) -> tuple[Outcome, Run]:
    """Let go of one's claim. One round trip. Loss: claim_lost."""
    token = mint_token()
    statements = [
        Statement(_ABANDON, (run_id, *scope(viewer), token, *owner.columns, now_ms)),
        fact_statement(run_id, token, "released", owner, "claim"),
    ]
    won, run, gate = await verb(db, statements, token, run_id, viewer, now_ms)
    if won:
        return Outcome.ABANDONED, run
    gate.require_existing_run(run_id)
    return Outcome.CLAIM_LOST, run


# Decides: the claim of the claimant that is believed dead stands, and is older than the run's
# lease is long.
_RECOVER = f"""
UPDATE fencepost_runs SET {_NO_CLAIM},
  write_token = ?4, updated_at_ms = MAX(COALESCE(?8, {NOW_MS}), updated_at_ms)
WHERE run_id = ?1 AND {VISIBLE} AND {_GATE} AND {_EXACT_CLAIM}
  AND claimed_at_ms + lease_ms < COALESCE(?8, {NOW_MS})
RETURNING run_id
"""


async def recover(
    db: Database,
    run_id: str,
    viewer: Principal | None,
    owner: Owner,
    evidence: Evidence | None,
    *,
    now_ms: int | None = None,
) -> tuple[Outcome, Run]:
    """Clear the claim of a claimant that is believed dead; grants nothing. One round trip.

    Losses, in order: liveness_unconfirmed, claim_changed, claim_fresh.
    """
    if evidence is None or not evidence.keeps_its_rule(owner):
        _, run, _ = await verb(db, [], "", run_id, viewer, now_ms)
        return Outcome.LIVENESS_UNCONFIRMED, run
    token, dead = mint_token(), evidence.expected_owner
    statements = [
        Statement(_RECOVER, (run_id, *scope(viewer), token, *dead.columns, now_ms)),
        fact_statement(run_id, token, "expired", dead, "claim"),
    ]
    won, run, gate = await verb(db, statements, token, run_id, viewer, now_ms)
    if won:
        return Outcome.RECOVERED, run
    gate.require_existing_run(run_id)
    changed = run.claim is None or run.claim.owner != dead
    return (Outcome.CLAIM_CHANGED if changed else Outcome.CLAIM_FRESH), run
