"""Cancelling: a principal requests it once; the owner of the run acknowledges it once.

A request alone does not stop a run. The owner sees the request in every answer, acknowledges it,
and ends the run. A transition with the guard `cancel_requested: absent` fails once a cancel is
requested. The fence does not gate requests. An operator's request for another principal's run
is audited in the same batch.
"""

from __future__ import annotations

from fencepost import audit, errors, fence, lineage
from fencepost.identifiers import Principal, mint_token
from fencepost.runs import Outcome, Owner, Run
from fencepost.snapshot import VISIBLE, found, not_found, scope, verb
from fencepost.storage import writes
from fencepost.storage.d1 import Database
from fencepost.storage.sql import NOW_MS, Statement

# Decides: the run has not ended, and no cancel was requested before. The first request is kept.
_CANCEL = f"""
UPDATE fencepost_runs SET
  cancel_requested_at_ms = MAX(COALESCE(:now_ms, {NOW_MS}), updated_at_ms),
  write_token = :token, updated_at_ms = MAX(COALESCE(:now_ms, {NOW_MS}), updated_at_ms)
WHERE run_id = :run_id AND {VISIBLE} AND finished_at_ms IS NULL AND cancel_requested_at_ms IS NULL
RETURNING run_id
"""

# Decides: the run that this write changed belongs to another principal.
_AUDIT_CANCEL = f"""
INSERT {audit.INTO}
SELECT 'cancel', :principal_kind, :principal_id, run_id, NULL, json_object('status', status),
  json_object('cancel_requested_at_ms', cancel_requested_at_ms), :token, updated_at_ms
FROM fencepost_runs
WHERE run_id = :run_id AND write_token = :token
  AND NOT (principal_kind = :principal_kind AND principal_id = :principal_id)
"""


async def cancel(
    db: Database,
    run_id: str,
    viewer: Principal | None,
    requester: Principal,
    *,
    now_ms: int | None = None,
) -> tuple[Outcome, Run]:
    """Request the cancel of a run. One round trip.

    Losses, in order: terminal, already_requested. Raises NotFound. Not guaranteed: that the run
    stops; its owner decides.
    """
    token = mint_token()
    write = {"run_id": run_id, "token": token}
    statements = [
        Statement(_CANCEL, **write, **scope(viewer), now_ms=now_ms),
        Statement(_AUDIT_CANCEL, **write, **_principal(requester)),
    ]
    won, run, _ = await verb(db, statements, token, run_id, viewer, now_ms)
    if won:
        return Outcome.CANCEL_REQUESTED, run
    return (Outcome.TERMINAL if run.ended else Outcome.ALREADY_REQUESTED), run


def _principal(requester: Principal) -> dict[str, str]:
    return {"principal_kind": requester.kind, "principal_id": requester.id}


# Decides: the owner runs it, a cancel was requested, and was not acknowledged yet.
_ACKNOWLEDGE = f"""
UPDATE fencepost_runs SET
  cancel_acknowledged_at_ms = MAX(COALESCE(:now_ms, {NOW_MS}), updated_at_ms),
  write_token = :token, updated_at_ms = MAX(COALESCE(:now_ms, {NOW_MS}), updated_at_ms)
WHERE run_id = :run_id AND {VISIBLE} AND {fence.admits_existing_run_sql(":run_id")}
  AND status = 'running' AND owner_host_id = :host_id AND owner_pid = :pid AND owner_nonce = :nonce
  AND cancel_requested_at_ms IS NOT NULL AND cancel_acknowledged_at_ms IS NULL
RETURNING run_id
"""


async def acknowledge(
    db: Database,
    run_id: str,
    viewer: Principal | None,
    owner: Owner,
    *,
    now_ms: int | None = None,
) -> tuple[Outcome, Run]:
    """Record that the owner has seen the request. One round trip. The first one is kept.

    Losses, in order: fence_lost, cancel_not_requested, already_acknowledged. Raises Fenced.
    """
    token = mint_token()
    who = {"run_id": run_id, **scope(viewer), **owner.params}
    acknowledgement = Statement(_ACKNOWLEDGE, **who, token=token, now_ms=now_ms)
    won, run, gate = await verb(db, [acknowledgement], token, run_id, viewer, now_ms)
    if won:
        return Outcome.CANCEL_ACKNOWLEDGED, run
    gate.require_existing_run(run_id)
    if run.owner != owner:
        return Outcome.FENCE_LOST, run
    if run.cancel_requested_at_ms is None:
        return Outcome.CANCEL_NOT_REQUESTED, run
    return Outcome.ALREADY_ACKNOWLEDGED, run


# Decides, for each member: it has not ended, and no cancel was requested before.
_CANCEL_LINEAGE = f"""
UPDATE fencepost_runs SET
  cancel_requested_at_ms = MAX(COALESCE(:now_ms, {NOW_MS}), updated_at_ms),
  write_token = :token, updated_at_ms = MAX(COALESCE(:now_ms, {NOW_MS}), updated_at_ms)
WHERE run_id IN ({lineage.LIVE_MEMBERS}) AND cancel_requested_at_ms IS NULL
RETURNING run_id
"""

_AUDIT_CANCEL_LINEAGE = f"""
INSERT {audit.INTO}
SELECT 'lineage-cancel', :principal_kind, :principal_id, root.id, NULL, NULL,
  json_object('requested', changes()), :token, COALESCE(:now_ms, {NOW_MS})
FROM ({lineage.ROOT}) AS root
WHERE changes() > 0 AND NOT (root.kind = :principal_kind AND root.who = :principal_id)
"""

_LIVE = f"SELECT COUNT(*) AS n FROM ({lineage.LIVE_MEMBERS})"


# A row if the request committed: some member has its token, unless all were written since.
_LINEAGE_RECEIPT = f"""
SELECT 1 AS landed FROM fencepost_runs
WHERE run_id IN ({lineage.LIVE_MEMBERS}) AND write_token = :token LIMIT 1
"""


async def cancel_lineage(
    db: Database,
    run_id: str,
    viewer: Principal | None,
    requester: Principal,
    *,
    now_ms: int | None = None,
) -> tuple[Outcome, Run]:
    """Request the cancel of every round that has not ended, in one UPDATE and one round trip.

    Returns the last round. It wins if it made a request for any round. Losses: already_requested,
    if a round that has not ended had one before; else terminal. Raises NotFound.
    """
    member = {"run_id": run_id, **scope(viewer)}
    token, who = mint_token(), _principal(requester)
    statements = [
        Statement(_CANCEL_LINEAGE, **member, token=token, now_ms=now_ms),
        Statement(_AUDIT_CANCEL_LINEAGE, **member, **who, token=token, now_ms=now_ms),
    ]
    reads = [Statement(_LIVE, **member), lineage.latest_statement(run_id, viewer)]
    receipt = Statement(_LINEAGE_RECEIPT, **member, token=token)
    try:
        written = await writes.write(db, writes.Write(statements, reads, receipt))
    except errors.MissingTable:
        raise not_found() from None
    run = found(written.reads[1])
    if written.won:
        return Outcome.CANCEL_REQUESTED, run
    live = written.reads[0].rows[0]["n"]
    return (Outcome.ALREADY_REQUESTED if live else Outcome.TERMINAL), run
