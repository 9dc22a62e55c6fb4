"""Claims: a tentative hold on a run, which is then activated into an ownership, or abandoned.

While a claim stands, no other process can claim, own or steal the run. Activating it fails if the
run has changed since. A claim that is older than the run's lease length can be recovered (removed)
by another process that gives evidence about the claimant. Each claim of a run has a time of its
own, later than any before: `claimed_at_ms` names it, as a generation names an ownership.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from fencepost import cancellation, fence, requests
from fencepost.identifiers import Principal, mint_token
from fencepost.ownership import Evidence, expected_params, fact_statement, granted
from fencepost.runs import Claim, Grant, Outcome, Owner, Run, RunStatus, VerbResult
from fencepost.snapshot import VISIBLE, RunReadBack, found, read_statement, scope, verb
from fencepost.storage import races
from fencepost.storage.d1 import Database
from fencepost.storage.sql import NOW_MS, Parameter, Statement

_GATE = f"{fence.admits_existing_run_sql(':run_id')} AND {requests.UNUSED}"
# Later than any time in the row, so that no two claims of a run have one time.
_CLAIM_AT_MS = f"MAX(COALESCE(:now_ms, {NOW_MS}), updated_at_ms + 1)"

# Decides: the run waits for an owner, in the status that was expected, and no claim stands.
_CLAIM = f"""
UPDATE fencepost_runs SET claim_host_id = :host_id, claim_pid = :pid, claim_nonce = :nonce,
  claimed_at_ms = {_CLAIM_AT_MS}, lease_ms = COALESCE(:lease_ms, lease_ms),
  write_token = :token, updated_at_ms = {_CLAIM_AT_MS}
WHERE run_id = :run_id AND {VISIBLE} AND {_GATE}
  AND status IN ('pending', 'suspended') AND claim_host_id IS NULL
  AND (:expected_status IS NULL OR status = :expected_status)
RETURNING claimed_at_ms
"""

# Decides: whether a claim landed, and when it was made, whether or not it stands.
_CLAIM_RECEIPT = """
SELECT granted_at_ms AS claimed_at_ms FROM fencepost_ownership
WHERE run_id = :run_id AND write_token = :token AND type IN ('claimed', 'stolen')
"""


async def claim(
    db: Database,
    run_id: str,
    viewer: Principal | None,
    owner: Owner,
    *,
    lease_ms: int | None = None,
    expected_status: RunStatus | None = None,
    now_ms: int | None = None,
) -> VerbResult:
    """Claim a run that waits for an owner. One round trip.

    Losses, in order: already_claimed, heartbeat_fresh, snapshot_changed; after a lost reply also
    overtaken (`granted`). Raises NotFound, Fenced.
    """
    token = mint_token()
    values = _values(db, run_id, viewer, owner, token, now_ms)
    statements = [
        Statement(_CLAIM, **values, lease_ms=lease_ms, expected_status=expected_status),
        fact_statement(run_id, token, "claimed", owner, "now"),
    ]
    receipt = Statement(_CLAIM_RECEIPT, run_id=run_id, token=token)
    records = requests.of_run(db, run_id, token, Outcome.CLAIMED)
    where = (run_id, viewer, now_ms)
    back = await verb(db, statements, token, *where, receipt=receipt, records=records)
    if back.won:
        return _claimed(back, Outcome.CLAIMED, owner)
    back.require_existing_run()
    return back.lost(_loss(back.run))


def _values(
    db: Database,
    run_id: str,
    viewer: Principal | None,
    owner: Owner,
    token: str,
    now_ms: int | None,
) -> dict[str, Parameter]:
    """The parameters that most statements about a claim share; `owner` is the claimant."""
    return {
        "run_id": run_id,
        **scope(viewer),
        "token": token,
        **owner.params,
        "now_ms": now_ms,
        **requests.params(db),
    }


def _claimed(back: RunReadBack, won: Outcome, owner: Owner) -> VerbResult:
    """A claim is won only while the run shows this very claim."""
    at_ms = back.rows[0]["claimed_at_ms"]
    if back.run.claim == Claim(owner, at_ms):
        return VerbResult(won, back.run, granted=Grant(None, at_ms))
    return back.lost(Outcome.OVERTAKEN, Grant(None, at_ms))


# Decides: the run runs under the expected owner, whose lease has lapsed, and no claim stands.
_STEAL = f"""
UPDATE fencepost_runs SET claim_host_id = :host_id, claim_pid = :pid, claim_nonce = :nonce,
  claimed_at_ms = {_CLAIM_AT_MS}, claim_heartbeat_at_ms = heartbeat_at_ms,
  write_token = :token, updated_at_ms = {_CLAIM_AT_MS}
WHERE run_id = :run_id AND {VISIBLE} AND {_GATE}
  AND status = 'running' AND claim_host_id IS NULL
  AND owner_host_id = :expected_host_id AND owner_pid = :expected_pid
  AND owner_nonce = :expected_nonce
  AND (:expected_heartbeat_at_ms IS NULL OR heartbeat_at_ms = :expected_heartbeat_at_ms)
  AND lease_expires_at_ms < COALESCE(:now_ms, {NOW_MS})
RETURNING claimed_at_ms
"""


async def steal(
    db: Database,
    run_id: str,
    viewer: Principal | None,
    owner: Owner,
    evidence: Evidence | None,
    *,
    now_ms: int | None = None,
) -> VerbResult:
    """Claim a run whose owner is believed dead. One round trip.

    The claim stands until it is activated. A later heartbeat of the old owner makes the activation
    fail. Losses, in order: liveness_unconfirmed, already_claimed, heartbeat_fresh,
    snapshot_changed; after a lost reply also overtaken (`granted`).
    """
    if evidence is None or not evidence.keeps_its_rule(owner):
        back = await verb(db, [], "", run_id, viewer, now_ms)
        back.require_existing_run()
        return back.lost(Outcome.LIVENESS_UNCONFIRMED)
    token = mint_token()
    values = _values(db, run_id, viewer, owner, token, now_ms)
    expected = expected_params(evidence.expected_owner)
    heartbeat = {"expected_heartbeat_at_ms": evidence.expected_heartbeat_at_ms}
    statements = [
        Statement(_STEAL, **values, **expected, **heartbeat),
        fact_statement(run_id, token, "stolen", owner, "now"),
    ]
    receipt = Statement(_CLAIM_RECEIPT, run_id=run_id, token=token)
    records = requests.of_run(db, run_id, token, Outcome.STOLEN)
    where = (run_id, viewer, now_ms)
    back = await verb(db, statements, token, *where, receipt=receipt, records=records)
    if back.won:
        return _claimed(back, Outcome.STOLEN, owner)
    back.require_existing_run()
    return back.lost(_loss(back.run, evidence))


def _loss(run: Run, evidence: Evidence | None = None) -> Outcome:
    """Why a claim was not made; the order is that of docs/states.md.

    Evidence that fits was beaten by the lease alone, even if that has ended by this reading.
    """
    if run.claim is not None:
        return Outcome.ALREADY_CLAIMED
    fits = evidence is not None and evidence.fits(run)
    if run.status is RunStatus.RUNNING and (run.lease_is_fresh or fits):
        return Outcome.HEARTBEAT_FRESH
    return Outcome.SNAPSHOT_CHANGED


_EXACT_CLAIM = (
    "claim_host_id = :host_id AND claim_pid = :pid AND claim_nonce = :nonce"
    " AND (:claimed_at_ms IS NULL OR claimed_at_ms = :claimed_at_ms)"
)
_NO_CLAIM = (
    "claim_host_id = NULL, claim_pid = NULL, claim_nonce = NULL, claimed_at_ms = NULL,"
    " claim_heartbeat_at_ms = NULL"
)

# Decides: this claim stands, and the run has not changed since it was made.
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
RETURNING 'activated' AS type, generation
"""

# Decides: this claim stands. Removes it, unless that would leave a run to wait whose cancel was
# requested: such a run ends (`cancellation.end_waiting`).
_ABANDON = f"""
UPDATE fencepost_runs SET {_NO_CLAIM},
  write_token = :token, updated_at_ms = MAX(COALESCE(:now_ms, {NOW_MS}), updated_at_ms)
WHERE run_id = :run_id AND {VISIBLE} AND {_GATE} AND {_EXACT_CLAIM}
  AND (status <> 'pending' OR cancel_requested_at_ms IS NULL)
RETURNING 'released' AS type, generation
"""

# Decides: whether an activation landed: as a grant, or by removing a claim that was out of date.
_ACTIVATION_RECEIPT = """
SELECT type, generation FROM fencepost_ownership
WHERE run_id = :run_id AND ((write_token = :token AND type = 'activated')
  OR (write_token = :changed AND type = 'released'))
"""


async def activate(
    db: Database,
    run_id: str,
    viewer: Principal | None,
    owner: Owner,
    *,
    claimed_at_ms: int | None = None,
    now_ms: int | None = None,
) -> VerbResult:
    """Turn the caller's claim, the one made at `claimed_at_ms` if given, into the ownership.

    One round trip. Whoever holds the run by that claim already has `activated` it, and writes
    nothing. Losses, in order: claim_lost; snapshot_changed, which also removes the claim
    (`claim_cleared`); after a lost reply also overtaken and lease_lapsed (`granted`).
    """
    back, changed = await _activate(db, run_id, viewer, owner, claimed_at_ms, now_ms)
    if back.won and back.rows[0]["type"] == "activated":
        return granted(back, Outcome.ACTIVATED, owner)
    if back.won or back.run.write_token == changed:
        return back.lost(Outcome.SNAPSHOT_CHANGED)._replace(claim_cleared=True)
    back.require_existing_run()
    run: Run | None = back.run
    if claimed_at_ms is not None and _holds(back.run, owner):
        run = await _granted_from(db, back.run, viewer, claimed_at_ms, now_ms)
    if run is not None and _holds(run, owner):
        return VerbResult(Outcome.ACTIVATED, run, granted=Grant(run.generation))
    return back.lost(Outcome.CLAIM_LOST)


async def _activate(
    db: Database,
    run_id: str,
    viewer: Principal | None,
    owner: Owner,
    claimed_at_ms: int | None,
    now_ms: int | None,
) -> tuple[RunReadBack, str]:
    """One attempt; and the token of the write that removes a claim that is out of date."""
    token, changed = mint_token(), mint_token()
    values = {**_values(db, run_id, viewer, owner, token, now_ms), "claimed_at_ms": claimed_at_ms}
    statements = [
        Statement(_ACTIVATE, **values),
        Statement(_ABANDON, **{**values, "token": changed}),
        fact_statement(run_id, token, "activated", owner, "now"),
        fact_statement(run_id, changed, "released", owner, "claim"),
    ]
    # One of both, which is then the token of the run's row.
    records = [
        *requests.of_run(db, run_id, token, Outcome.ACTIVATED, type="activated"),
        *requests.of_run(db, run_id, changed, Outcome.SNAPSHOT_CHANGED, type="released"),
    ]
    back = await verb(
        db,
        statements,
        token,
        *(run_id, viewer, now_ms),
        receipt=Statement(_ACTIVATION_RECEIPT, run_id=run_id, token=token, changed=changed),
        records=records,
        also=(changed,),
        could_win=lambda run: _claims(run, owner, claimed_at_ms),
    )
    return back, changed


def _holds(run: Run, owner: Owner) -> bool:
    return run.owner == owner and run.lease_is_fresh


# Decides nothing: whether the present grant came from the claim of that time.
_FROM_CLAIM = """
SELECT granted_at_ms = :claimed_at_ms AS it_did FROM fencepost_ownership
WHERE run_id = :run_id AND type IN ('claimed', 'stolen') AND sequence < (
  SELECT MAX(sequence) FROM fencepost_ownership WHERE run_id = :run_id AND type = 'activated')
ORDER BY sequence DESC LIMIT 1
"""


async def _granted_from(
    db: Database, run: Run, viewer: Principal | None, claimed_at_ms: int, now_ms: int | None
) -> Run | None:
    """The run as it is now, if its present grant came from the claim of that time."""
    which: dict[str, Parameter] = {"run_id": run.run_id, "claimed_at_ms": claimed_at_ms}
    statements = [read_statement(run.run_id, viewer, now_ms), Statement(_FROM_CLAIM, **which)]
    present, claim = await db.read(statements)
    return found(present) if any(row["it_did"] for row in claim.rows) else None


def _claims(run: Run, claimant: Owner, claimed_at_ms: int | None) -> bool:
    """Whether this process claims the run, by the claim of that time if one is given."""
    held = run.claim
    return (
        held is not None and held.owner == claimant and claimed_at_ms in (None, held.claimed_at_ms)
    )


async def abandon(
    db: Database,
    run_id: str,
    viewer: Principal | None,
    owner: Owner,
    *,
    claimed_at_ms: int | None = None,
    now_ms: int | None = None,
) -> VerbResult:
    """Remove the caller's claim, the one made at `claimed_at_ms` if given. Loss: claim_lost.

    One round trip; two if that ends the run, because its cancel was requested meanwhile. Raises
    Unavailable (CONTENDED) after lost races for the history of such a run.
    """
    return await _remove(db, run_id, viewer, (owner, claimed_at_ms), _BY_CLAIMANT, now_ms)


# Decides: the claim of the claimant that is believed dead stands, and is older than the run's
# lease length.
_OLD = f"claimed_at_ms + lease_ms < COALESCE(:now_ms, {NOW_MS})"
_RECOVER = _ABANDON.replace("RETURNING", f"  AND {_OLD}\nRETURNING")

# The same, for a run that waits and whose cancel was requested: it ends.
_REQUESTED = f"{_GATE} AND {_EXACT_CLAIM} AND cancel_requested_at_ms IS NOT NULL"
_END_ABANDONED = cancellation.end_waiting_sql(_REQUESTED)
_END_RECOVERED = cancellation.end_waiting_sql(f"{_REQUESTED} AND {_OLD}")


async def recover(
    db: Database,
    run_id: str,
    viewer: Principal | None,
    owner: Owner,
    evidence: Evidence | None,
    *,
    claimed_at_ms: int | None = None,
    now_ms: int | None = None,
) -> VerbResult:
    """Remove the claim of a claimant that is believed dead, the one made at `claimed_at_ms` if
    given. Grants nothing.

    One round trip; two if that ends the run. Losses, in order: liveness_unconfirmed,
    claim_changed, claim_fresh. Raises as `abandon`.
    """
    if evidence is None or not evidence.keeps_its_rule(owner):
        back = await verb(db, [], "", run_id, viewer, now_ms)
        back.require_existing_run()
        return back.lost(Outcome.LIVENESS_UNCONFIRMED)
    claim = (evidence.expected_owner, claimed_at_ms)
    return await _remove(db, run_id, viewer, claim, _BY_ANOTHER, now_ms)


class _Removal(NamedTuple):
    """How a claim is removed, and what the verb is answered."""

    ends_as: Literal["released", "expired"]
    sql: str
    # Of a run that waits and whose cancel was requested: it ends.
    end_sql: str
    won: Outcome
    # The claim is not there.
    gone: Outcome


_BY_CLAIMANT = _Removal("released", _ABANDON, _END_ABANDONED, Outcome.ABANDONED, Outcome.CLAIM_LOST)
_BY_ANOTHER = _Removal(
    "expired", _RECOVER, _END_RECOVERED, Outcome.RECOVERED, Outcome.CLAIM_CHANGED
)


async def _remove(
    db: Database,
    run_id: str,
    viewer: Principal | None,
    claim: tuple[Owner, int | None],
    removal: _Removal,
    now_ms: int | None,
) -> VerbResult:
    """Remove a claim, and end the run if it would wait although its cancel was requested."""

    async def attempt() -> VerbResult | None:
        back = await _remove_only(db, run_id, viewer, claim, removal, now_ms)
        if back.won:
            return VerbResult(removal.won, back.run)
        back.require_existing_run()
        if not _claims(back.run, *claim):
            return back.lost(removal.gone)
        if removal is _BY_ANOTHER and back.run.claim_is_fresh:
            return back.lost(Outcome.CLAIM_FRESH)
        if back.run.status is not RunStatus.PENDING or back.run.cancel_requested_at_ms is None:
            return None
        ended = await _remove_and_end(db, back.run, viewer, claim, removal, now_ms)
        return VerbResult(removal.won, ended.run) if ended.won else None

    return await races.until_decided(db, attempt)


async def _remove_only(
    db: Database,
    run_id: str,
    viewer: Principal | None,
    claim: tuple[Owner, int | None],
    removal: _Removal,
    now_ms: int | None,
) -> RunReadBack:
    claimant, claimed_at_ms = claim
    token = mint_token()
    values = _values(db, run_id, viewer, claimant, token, now_ms)
    statements = [
        Statement(removal.sql, **values, claimed_at_ms=claimed_at_ms),
        fact_statement(run_id, token, removal.ends_as, claimant, "claim"),
    ]
    return await verb(
        db,
        statements,
        token,
        run_id,
        viewer,
        now_ms,
        records=requests.of_run(db, run_id, token, removal.won),
        could_win=lambda run: _claims(run, *claim),
    )


async def _remove_and_end(
    db: Database,
    run: Run,
    viewer: Principal | None,
    claim: tuple[Owner, int | None],
    removal: _Removal,
    now_ms: int | None,
) -> RunReadBack:
    claimant, claimed_at_ms = claim
    token = mint_token()
    return await cancellation.end_waiting(
        db,
        run,
        viewer,
        removal.end_sql,
        params={**claimant.params, "claimed_at_ms": claimed_at_ms},
        claim=(claimant, removal.ends_as),
        token=token,
        records=requests.of_run(db, run.run_id, token, removal.won),
        now_ms=now_ms,
    )
