"""Cancelling: anyone who may drive a run requests it once; its owner acknowledges it once.

A request stops nothing by itself. The owner sees it in every answer, acknowledges it, and ends
the run; a transition with the guard `cancel_requested: absent` cannot complete what somebody
asked to cancel. The fence does not gate requests (contracts 1.4). An operator's request for
another principal's run is audited in its batch.
"""

from __future__ import annotations

from fencepost import audit, errors, fence, lineage
from fencepost.identifiers import Principal, mint_token
from fencepost.runs import Outcome, Owner, Run
from fencepost.snapshot import VISIBLE, found, not_found, scope, verb
from fencepost.storage import writes
from fencepost.storage.d1 import Database
from fencepost.storage.sql import NOW_MS, Statement

# Decides: the run has not ended and nobody has requested its cancel: the first request is kept.
_CANCEL = f"""
UPDATE fencepost_runs SET
  cancel_requested_at_ms = MAX(COALESCE(?5, {NOW_MS}), updated_at_ms),
  write_token = ?4, updated_at_ms = MAX(COALESCE(?5, {NOW_MS}), updated_at_ms)
WHERE run_id = ?1 AND {VISIBLE} AND finished_at_ms IS NULL AND cancel_requested_at_ms IS NULL
RETURNING run_id
"""

# Decides: the run that this write touched is not its requester's own.
_AUDIT_CANCEL = f"""
INSERT {audit.INTO}
SELECT 'cancel', ?3, ?4, run_id, NULL, json_object('status', status),
  json_object('cancel_requested_at_ms', cancel_requested_at_ms), ?2, updated_at_ms
FROM fencepost_runs
WHERE run_id = ?1 AND write_token = ?2 AND NOT (principal_kind = ?3 AND principal_id = ?4)
"""


async def cancel(
    db: Database,
    run_id: str,
    viewer: Principal | None,
    requester: Principal,
    *,
    now_ms: int | None = None,
) -> tuple[Outcome, Run]:
    """Request the cancel of a run. One round trip. Losses, in order: terminal,
    already_requested. Raises NotFound; MissingTable of the audit never, since a run exists.
    """
    token = mint_token()
    statements = [
        Statement(_CANCEL, (run_id, *scope(viewer), token, now_ms)),
        Statement(_AUDIT_CANCEL, (run_id, token, *requester)),
    ]
    won, run, _ = await verb(db, statements, token, run_id, viewer, now_ms)
    if won:
        return Outcome.CANCEL_REQUESTED, run
    return (Outcome.TERMINAL if run.ended else Outcome.ALREADY_REQUESTED), run


# Decides: the owner runs it, a cancel was requested, and was not acknowledged yet.
_ACKNOWLEDGE = f"""
UPDATE fencepost_runs SET
  cancel_acknowledged_at_ms = MAX(COALESCE(?8, {NOW_MS}), updated_at_ms),
  write_token = ?4, updated_at_ms = MAX(COALESCE(?8, {NOW_MS}), updated_at_ms)
WHERE run_id = ?1 AND {VISIBLE} AND {fence.admits_existing_run_sql("?1")}
  AND status = 'running' AND owner_host_id = ?5 AND owner_pid = ?6 AND owner_nonce = ?7
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
    """The owner says that it has seen the request. One round trip; the first one is kept.

    Losses, in order: fence_lost, cancel_not_requested, already_acknowledged. Raises Fenced.
    """
    who, token = owner.columns, mint_token()
    statements = [Statement(_ACKNOWLEDGE, (run_id, *scope(viewer), token, *who, now_ms))]
    won, run, gate = await verb(db, statements, token, run_id, viewer, now_ms)
    if won:
        return Outcome.CANCEL_ACKNOWLEDGED, run
    gate.require_existing_run(run_id)
    if run.owner != owner:
        return Outcome.FENCE_LOST, run
    if run.cancel_requested_at_ms is None:
        return Outcome.CANCEL_NOT_REQUESTED, run
    return Outcome.ALREADY_ACKNOWLEDGED, run


# Decides, member by member: it has not ended and nobody has requested its cancel.
_CANCEL_LINEAGE = f"""
UPDATE fencepost_runs SET
  cancel_requested_at_ms = MAX(COALESCE(?5, {NOW_MS}), updated_at_ms),
  write_token = ?4, updated_at_ms = MAX(COALESCE(?5, {NOW_MS}), updated_at_ms)
WHERE run_id IN ({lineage.LIVE_MEMBERS}) AND cancel_requested_at_ms IS NULL
RETURNING run_id
"""

_AUDIT_CANCEL_LINEAGE = f"""
INSERT {audit.INTO}
SELECT 'lineage-cancel', ?5, ?6, root.id, NULL, NULL,
  json_object('requested', changes()), ?4, COALESCE(?7, {NOW_MS})
FROM ({lineage.ROOT}) AS root
WHERE changes() > 0 AND NOT (root.kind = ?5 AND root.who = ?6)
"""

_LIVE = f"SELECT COUNT(*) AS n FROM ({lineage.LIVE_MEMBERS})"


# Whether a request landed: its token is in some member, unless each was written since.
_LINEAGE_RECEIPT = f"""
SELECT 1 AS landed FROM fencepost_runs
WHERE run_id IN ({lineage.LIVE_MEMBERS}) AND write_token = ?4 LIMIT 1
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

    Answers the last round. A new request anywhere wins; else a live round that was requested
    before (already_requested) outranks rounds that have ended (terminal). Raises NotFound.
    """
    member = (run_id, *scope(viewer))
    token = mint_token()
    statements = [
        Statement(_CANCEL_LINEAGE, (*member, token, now_ms)),
        Statement(_AUDIT_CANCEL_LINEAGE, (*member, token, *requester, now_ms)),
    ]
    reads = [Statement(_LIVE, member), lineage.latest_statement(run_id, viewer)]
    receipt = Statement(_LINEAGE_RECEIPT, (*member, token))
    try:
        written = await writes.write(db, writes.Write(statements, reads, receipt))
    except errors.MissingTable:
        raise not_found() from None
    run = found(written.reads[1])
    if written.won:
        return Outcome.CANCEL_REQUESTED, run
    live = written.reads[0].rows[0]["n"]
    return (Outcome.ALREADY_REQUESTED if live else Outcome.TERMINAL), run
