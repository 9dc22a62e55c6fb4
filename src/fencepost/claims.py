"""Claims: a tentative hold on a run, which is then activated into an ownership, or abandoned.

While a claim stands, no other process can claim, own or steal the run. Activating it fails if
the former owner has sent a heartbeat since. Another process can recover (remove) a claim that is
older than the run's lease length, with evidence about the claimant.
"""

from __future__ import annotations

from fencepost import fence
from fencepost.identifiers import Principal, mint_token
from fencepost.ownership import Evidence, expected_params, fact_statement
from fencepost.runs import Outcome, Owner, Run, RunStatus
from fencepost.snapshot import VISIBLE, scope, verb
from fencepost.storage.d1 import Database
from fencepost.storage.sql import NOW_MS, Parameter, Statement

_GATE = fence.admits_existing_run_sql(":run_id")

# Decides: the run waits for an owner, and no claim stands.
_CLAIM = f"""
UPDATE fencepost_runs SET claim_host_id = :host_id, claim_pid = :pid, claim_nonce = :nonce,
  claimed_at_ms = MAX(COALESCE(:now_ms, {NOW_MS}), updated_at_ms),
  lease_ms = COALESCE(:lease_ms, lease_ms),
  write_token = :token, updated_at_ms = MAX(COALESCE(:now_ms, {NOW_MS}), updated_at_ms)
WHERE run_id = :run_id AND {VISIBLE} AND {_GATE}
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
    """Claim a run that waits for an owner. One round trip.

    Losses, in order: already_claimed, heartbeat_fresh, snapshot_changed. Raises NotFound, Fenced.
    """
    token = mint_token()
    values = _values(run_id, viewer, owner, token, now_ms)
    statements = [
        Statement(_CLAIM, **values, lease_ms=lease_ms),
        fact_statement(run_id, token, "claimed", owner, "now"),
    ]
    won, run, gate = await verb(db, statements, token, run_id, viewer, now_ms)
    if won:
        return Outcome.CLAIMED, run
    gate.require_existing_run(run_id)
    return _loss(run), run


def _values(
    run_id: str, viewer: Principal | None, owner: Owner, token: str, now_ms: int | None
) -> dict[str, Parameter]:
    """Values that every statement about a claim binds. `owner` is the claimant."""
    who: dict[str, Parameter] = {"run_id": run_id, **scope(viewer), **owner.params}
    return {**who, "token": token, "now_ms": now_ms}


# Decides: the run is running, its owner is the one in the evidence (`:expected_…`), its lease has
# lapsed, and no claim stands.
_STEAL = f"""
UPDATE fencepost_runs SET claim_host_id = :host_id, claim_pid = :pid, claim_nonce = :nonce,
  claimed_at_ms = MAX(COALESCE(:now_ms, {NOW_MS}), updated_at_ms),
  claim_heartbeat_at_ms = heartbeat_at_ms,
  write_token = :token, updated_at_ms = MAX(COALESCE(:now_ms, {NOW_MS}), updated_at_ms)
WHERE run_id = :run_id AND {VISIBLE} AND {_GATE}
  AND status = 'running' AND claim_host_id IS NULL
  AND owner_host_id = :expected_host_id AND owner_pid = :expected_pid
  AND owner_nonce = :expected_nonce
  AND lease_expires_at_ms < COALESCE(:now_ms, {NOW_MS})
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
    """Claim a running run whose owner is believed dead. One round trip.

    The owner stays until the claim is activated. If it sends a heartbeat before, activating
    fails. Losses, in order: liveness_unconfirmed, already_claimed, heartbeat_fresh,
    snapshot_changed. Raises NotFound and Fenced.
    """
    if evidence is None or not evidence.keeps_its_rule(owner):
        _, run, _ = await verb(db, [], "", run_id, viewer, now_ms)
        return Outcome.LIVENESS_UNCONFIRMED, run
    token, expected = mint_token(), expected_params(evidence.expected_owner)
    statements = [
        Statement(_STEAL, **_values(run_id, viewer, owner, token, now_ms), **expected),
        fact_statement(run_id, token, "stolen", owner, "now"),
    ]
    won, run, gate = await verb(db, statements, token, run_id, viewer, now_ms)
    if won:
        return Outcome.STOLEN, run
    gate.require_existing_run(run_id)
    return _loss(run), run


def _loss(run: Run) -> Outcome:
    """The first of the losses, in their order."""
    if run.claim is not None:
        return Outcome.ALREADY_CLAIMED
    if run.status is RunStatus.RUNNING and run.lease_is_fresh:
        return Outcome.HEARTBEAT_FRESH
    return Outcome.SNAPSHOT_CHANGED


_EXACT_CLAIM = "claim_host_id = :host_id AND claim_pid = :pid AND claim_nonce = :nonce"
_NO_CLAIM = (
    "claim_host_id = NULL, claim_pid = NULL, claim_nonce = NULL, claimed_at_ms = NULL,"
    " claim_heartbeat_at_ms = NULL"
)

# Decides: this claim stands, and the former owner has sent no heartbeat since it was made.
_ACTIVATE = f"""
UPDATE fencepost_runs SET status = 'running',
  owner_host_id = :host_id, owner_pid = :pid, owner_nonce = :nonce, generation = generation + 1,
  heartbeat_at_ms = MAX(COALESCE(:now_ms, {NOW_MS}), updated_at_ms),
  lease_expires_at_ms = MAX(COALESCE(:now_ms, {NOW_MS}), updated_at_ms) + lease_ms,
  started_at_ms = COALESCE(started_at_ms, MAX(COALESCE(:now_ms, {NOW_MS}), updated_at_ms)),
  {_NO_CLAIM},
  write_token = :token, updated_at_ms = MAX(COALESCE(:now_ms, {NOW_MS}), updated_at_ms)
WHERE run_id = :run_id AND {VISIBLE} AND {_GATE} AND {_EXACT_CLAIM}
  AND claim_heartbeat_at_ms IS heartbeat_at_ms
RETURNING run_id
"""

# Decides: this claim stands. Removes it.
_ABANDON = f"""
UPDATE fencepost_runs SET {_NO_CLAIM},
  write_token = :token, updated_at_ms = MAX(COALESCE(:now_ms, {NOW_MS}), updated_at_ms)
WHERE run_id = :run_id AND {VISIBLE} AND {_GATE} AND {_EXACT_CLAIM}
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
    """Turn the caller's claim into the ownership of the run. One round trip.

    Losses, in order: claim_lost; snapshot_changed, which also removes the claim. Raises NotFound
    and Fenced.
    """
    granted, changed = mint_token(), mint_token()
    statements = [
        Statement(_ACTIVATE, **_values(run_id, viewer, owner, granted, now_ms)),
        Statement(_ABANDON, **_values(run_id, viewer, owner, changed, now_ms)),
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
    """Remove the caller's claim. One round trip. Loss: claim_lost. Raises NotFound, Fenced."""
    token = mint_token()
    statements = [
        Statement(_ABANDON, **_values(run_id, viewer, owner, token, now_ms)),
        fact_statement(run_id, token, "released", owner, "claim"),
    ]
    won, run, gate = await verb(db, statements, token, run_id, viewer, now_ms)
    if won:
        return Outcome.ABANDONED, run
    gate.require_existing_run(run_id)
    return Outcome.CLAIM_LOST, run


# Decides: the claimant in the evidence has a claim, and it is older than the run's lease length.
_RECOVER = f"""
UPDATE fencepost_runs SET {_NO_CLAIM},
  write_token = :token, updated_at_ms = MAX(COALESCE(:now_ms, {NOW_MS}), updated_at_ms)
WHERE run_id = :run_id AND {VISIBLE} AND {_GATE} AND {_EXACT_CLAIM}
  AND claimed_at_ms + lease_ms < COALESCE(:now_ms, {NOW_MS})
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
    """Remove the claim of a claimant that is believed dead. Grants nothing. One round trip.

    Losses, in order: liveness_unconfirmed, claim_changed, claim_fresh. Raises NotFound, Fenced.
    """
    if evidence is None or not evidence.keeps_its_rule(owner):
        _, run, _ = await verb(db, [], "", run_id, viewer, now_ms)
        return Outcome.LIVENESS_UNCONFIRMED, run
    token, dead = mint_token(), evidence.expected_owner
    statements = [
        Statement(_RECOVER, **_values(run_id, viewer, dead, token, now_ms)),
        fact_statement(run_id, token, "expired", dead, "claim"),
    ]
    won, run, gate = await verb(db, statements, token, run_id, viewer, now_ms)
    if won:
        return Outcome.RECOVERED, run
    gate.require_existing_run(run_id)
    changed = run.claim is None or run.claim.owner != dead
    return (Outcome.CLAIM_CHANGED if changed else Outcome.CLAIM_FRESH), run
