"""Cancelling: a principal requests it once; the owner of the run acknowledges it once.

A request ends a run that waits and that nobody claims, and settles its keys. It does not stop any
other run: the owner sees the request in every answer, acknowledges it, and ends the run; whatever
leaves such a run to wait (release, resolve, abandon, recover) ends it instead. A transition with
the guard `cancel_requested: absent` fails once a cancel is requested. The fence does not gate
requests. An operator's request for another principal's run is audited in the same batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from fencepost import audit, errors, fence, journal, lineage, requests, reservation
from fencepost.identifiers import Principal, mint_token
from fencepost.ownership import HELD_BY, fact_statement, holder
from fencepost.runs import Outcome, Owner, Run, RunStatus, VerbResult
from fencepost.snapshot import (
    VISIBLE,
    RunReadBack,
    found,
    read,
    scope,
    verb,
    write_receipt,
)
from fencepost.storage import races, writes
from fencepost.storage.d1 import Database
from fencepost.storage.sql import NOW_MS, Parameter, Statement

# A run that waits and that nobody claims: a request ends it, by `end_waiting`.
_WAITS_UNCLAIMED = "status = 'pending' AND claim_host_id IS NULL"

# Decides: the run has not ended, no cancel was requested before, and the run has somebody who will
# see the request. The first request is kept.
_CANCEL = f"""
UPDATE fencepost_runs SET
  cancel_requested_at_ms = MAX(COALESCE(:now_ms, {NOW_MS}), updated_at_ms),
  write_token = :token, updated_at_ms = MAX(COALESCE(:now_ms, {NOW_MS}), updated_at_ms)
WHERE run_id = :run_id AND {VISIBLE} AND finished_at_ms IS NULL AND cancel_requested_at_ms IS NULL
  AND NOT ({_WAITS_UNCLAIMED}) AND {requests.UNUSED}
RETURNING run_id
"""

# Decides nothing: guarded by the token of the request. Who asked, and when.
_REQUESTED = """
INSERT INTO fencepost_ownership (run_id, sequence, type, generation, write_token, at_ms,
  principal_kind, principal_id)
SELECT run_id,
  1 + COALESCE((SELECT MAX(sequence) FROM fencepost_ownership AS fact
    WHERE fact.run_id = fencepost_runs.run_id), 0),
  'cancel-requested', generation, :token, updated_at_ms, :principal_kind, :principal_id
FROM fencepost_runs WHERE run_id = :run_id AND write_token = :token
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
) -> VerbResult:
    """Request the cancel of a run. One round trip; two for a run that waits, which it ends.

    Losses, in order: terminal, already_requested. Raises NotFound, and Unavailable after lost
    races. Not guaranteed: that a run stops which has an owner; its owner decides.
    """
    token = mint_token()
    records = requests.of_run(db, run_id, token, Outcome.CANCEL_REQUESTED)
    return await _cancel(db, run_id, viewer, requester, token, records, None, now_ms)


async def _cancel(
    db: Database,
    run_id: str,
    viewer: Principal | None,
    requester: Principal,
    token: str,
    records: Sequence[Statement],
    waiting: Run | None,
    now_ms: int | None,
) -> VerbResult:
    """`cancel`, under a given token. `waiting` is the run, if it was read and waits."""

    async def attempt() -> VerbResult | None:
        nonlocal waiting
        if waiting is None:
            back = await _request(db, run_id, viewer, requester, token, records, now_ms)
            if back.won:
                return VerbResult(Outcome.CANCEL_REQUESTED, back.run)
            if back.run.ended:
                return back.lost(Outcome.TERMINAL)
            if back.run.cancel_requested_at_ms is not None:
                return back.lost(Outcome.ALREADY_REQUESTED)
            waiting = back.run
        read, waiting = waiting, None
        back = await end_waiting(
            db,
            read,
            viewer,
            _END_UNCLAIMED,
            requester=requester,
            token=token,
            records=records,
            now_ms=now_ms,
        )
        return VerbResult(Outcome.CANCEL_REQUESTED, back.run) if back.won else None

    return await races.until_decided(db, attempt)


async def _request(
    db: Database,
    run_id: str,
    viewer: Principal | None,
    requester: Principal,
    token: str,
    records: Sequence[Statement],
    now_ms: int | None,
) -> RunReadBack:
    what = {"run_id": run_id, "token": token, **scope(viewer), **requests.params(db)}
    statements = [
        Statement(_CANCEL, **what, now_ms=now_ms),
        *_requested_statements(run_id, token, requester),
    ]

    def could_win(run: Run) -> bool:
        return not run.ended and run.cancel_requested_at_ms is None

    where = (run_id, viewer, now_ms)
    return await verb(db, statements, token, *where, records=records, could_win=could_win)


def _requested_statements(run_id: str, token: str, requester: Principal) -> list[Statement]:
    write = {"run_id": run_id, "token": token, **_principal(requester)}
    return [Statement(_REQUESTED, **write), Statement(_AUDIT_CANCEL, **write)]


def _principal(requester: Principal) -> dict[str, str]:
    return {"principal_kind": requester.kind, "principal_id": requester.id}


# --- Ending a run that waits -------------------------------------------------------------


def end_waiting_sql(condition: str) -> str:
    """SQL that decides: the run waits, with the history that was read, and `condition` holds.

    Ends it `cancelled`.
    """
    return f"""
UPDATE fencepost_runs SET status = 'cancelled',
  claim_host_id = NULL, claim_pid = NULL, claim_nonce = NULL, claimed_at_ms = NULL,
  claim_heartbeat_at_ms = NULL,
  cancel_requested_at_ms = COALESCE(cancel_requested_at_ms,
    MAX(COALESCE(:now_ms, {NOW_MS}), updated_at_ms)),
  finished_at_ms = MAX(COALESCE(:now_ms, {NOW_MS}), updated_at_ms),
  head_sequence = :sequence, head_hash = :hash, write_token = :token,
  updated_at_ms = MAX(COALESCE(:now_ms, {NOW_MS}), updated_at_ms)
WHERE run_id = :run_id AND {VISIBLE} AND status = 'pending'
  AND head_sequence = :sequence - 1 AND head_hash = :prior_hash
  AND {condition} AND {requests.UNUSED}
RETURNING run_id
"""


_FROM_WAITING = {"from": "pending", "to": "cancelled"}
_END_UNCLAIMED = end_waiting_sql("claim_host_id IS NULL AND cancel_requested_at_ms IS NULL")


async def end_waiting(
    db: Database,
    run: Run,
    viewer: Principal | None,
    sql: str,
    *,
    params: dict[str, Parameter] | None = None,
    claim: tuple[Owner, Literal["released", "expired"]] | None = None,
    requester: Principal | None = None,
    token: str,
    records: Sequence[Statement],
    now_ms: int | None = None,
) -> RunReadBack:
    """End a run that waits `cancelled` and settle its keys. One round trip.

    `sql` is made by `end_waiting_sql`, with `params`; `claim` is the one that it removes, and how
    that ends; `requester` whoever asks for the cancel now; `records` what records a keyed
    request. It does not win when the run, or its history, is no longer as it was read.
    """
    run_id = run.run_id
    event = journal.next_event(run.head, "state-transitioned", _FROM_WAITING)
    asked = {**scope(viewer), **(params or {}), **requests.params(db)}
    statements = [
        Statement(sql, run_id=run_id, **asked, **event.params, token=token, now_ms=now_ms),
        journal.append_statement(run_id, token, event),
        *([fact_statement(run_id, token, claim[1], claim[0], "claim")] if claim else []),
        *(_requested_statements(run_id, token, requester) if requester else []),
        reservation.settle_statement(run_id, token, RunStatus.CANCELLED),
    ]
    return await verb(
        db,
        statements,
        token,
        *(run_id, viewer, now_ms),
        receipt=write_receipt(run_id, token, event.sequence),
        records=records,
        could_win=lambda seen: seen.head == run.head and seen.status is RunStatus.PENDING,
    )


# --- Acknowledging -----------------------------------------------------------------------

# Decides: the owner runs it, a cancel was requested, and was not acknowledged yet.
_ACKNOWLEDGE = f"""
UPDATE fencepost_runs SET
  cancel_acknowledged_at_ms = MAX(COALESCE(:now_ms, {NOW_MS}), updated_at_ms),
  write_token = :token, updated_at_ms = MAX(COALESCE(:now_ms, {NOW_MS}), updated_at_ms)
WHERE run_id = :run_id AND {VISIBLE} AND {fence.admits_existing_run_sql(":run_id")}
  AND status = 'running' AND {HELD_BY}
  AND cancel_requested_at_ms IS NOT NULL AND cancel_acknowledged_at_ms IS NULL
  AND {requests.UNUSED}
RETURNING run_id
"""


async def acknowledge(
    db: Database,
    run_id: str,
    viewer: Principal | None,
    owner: Owner,
    *,
    generation: int | None = None,
    now_ms: int | None = None,
) -> VerbResult:
    """Record that the owner, in `generation` if given, has seen the request. One round trip.

    The first acknowledgement is kept, with who made it; another one by whoever holds the run is
    `cancel_acknowledged` too, and writes nothing. Losses, in order: fence_lost,
    cancel_not_requested. Raises Fenced.
    """
    token = mint_token()
    who = {"run_id": run_id, **scope(viewer), **holder(owner, generation), **requests.params(db)}
    statements = [
        Statement(_ACKNOWLEDGE, **who, token=token, now_ms=now_ms),
        fact_statement(run_id, token, "cancel-acknowledged", owner, None),
    ]
    back = await verb(
        db,
        statements,
        token,
        *(run_id, viewer, now_ms),
        records=requests.of_run(db, run_id, token, Outcome.CANCEL_ACKNOWLEDGED),
        could_win=lambda run: (
            run.held_by(owner, generation) and run.cancel_acknowledged_at_ms is None
        ),
    )
    if back.won:
        return back.effect(Outcome.CANCEL_ACKNOWLEDGED, owner)
    back.require_existing_run()
    if not back.run.held_by(owner, generation):
        return back.lost(Outcome.FENCE_LOST)
    if back.run.cancel_requested_at_ms is None:
        return back.lost(Outcome.CANCEL_NOT_REQUESTED)
    return VerbResult(Outcome.CANCEL_ACKNOWLEDGED, back.run)


# --- A lineage ---------------------------------------------------------------------------

# Decides, for each member: it has not ended, no cancel was requested before, and it has somebody
# who will see the request.
_CANCEL_LINEAGE = f"""
UPDATE fencepost_runs SET
  cancel_requested_at_ms = MAX(COALESCE(:now_ms, {NOW_MS}), updated_at_ms),
  write_token = :token, updated_at_ms = MAX(COALESCE(:now_ms, {NOW_MS}), updated_at_ms)
WHERE run_id IN ({lineage.LIVE_MEMBERS}) AND cancel_requested_at_ms IS NULL
  AND NOT ({_WAITS_UNCLAIMED}) AND {requests.UNUSED}
RETURNING run_id
"""

# Decides: some request was made (by the statement before), and the lineage is another
# principal's.
_AUDIT_CANCEL_LINEAGE = f"""
INSERT {audit.INTO}
SELECT 'lineage-cancel', :principal_kind, :principal_id, root.id, NULL, NULL,
  json_object('requested', changes()), :token, COALESCE(:now_ms, {NOW_MS})
FROM ({lineage.ROOT}) AS root
WHERE changes() > 0 AND NOT (root.kind = :principal_kind AND root.who = :principal_id)
"""

# Decides nothing: guarded, member by member, by the token of the request, which may be tried again.
_REQUESTED_OF_LINEAGE = f"""
INSERT INTO fencepost_ownership (run_id, sequence, type, generation, write_token, at_ms,
  principal_kind, principal_id)
SELECT run_id,
  1 + COALESCE((SELECT MAX(sequence) FROM fencepost_ownership AS fact
    WHERE fact.run_id = fencepost_runs.run_id), 0),
  'cancel-requested', generation, :token, updated_at_ms, :requester_kind, :requester_id
FROM fencepost_runs WHERE run_id IN ({lineage.LIVE_MEMBERS}) AND write_token = :token
  AND NOT EXISTS (SELECT 1 FROM fencepost_ownership AS said
    WHERE said.run_id = fencepost_runs.run_id AND said.write_token = :token)
"""

# Members that the request ends, since nobody would see it.
_WAITING_MEMBERS = f"""
SELECT *, COALESCE(:now_ms, {NOW_MS}) AS now_ms FROM fencepost_runs
WHERE run_id IN ({lineage.LIVE_MEMBERS}) AND {_WAITS_UNCLAIMED} AND cancel_requested_at_ms IS NULL
"""

_LIVE = f"SELECT COUNT(*) AS n FROM ({lineage.LIVE_MEMBERS})"


# Decides nothing: guarded by the token of the request, which asked some member; and nobody waits
# who is still to be asked.
_RECORD_LINEAGE = f"""
INSERT {requests.INTO} '{{}}', :token, COALESCE(:now_ms, {NOW_MS})
WHERE {lineage.ASKED} IS NOT NULL AND NOT EXISTS (SELECT 1 FROM fencepost_runs
  WHERE run_id IN ({lineage.LIVE_MEMBERS}) AND cancel_requested_at_ms IS NULL)
ON CONFLICT DO NOTHING
"""


# A row if the request committed: some member has a fact with its token.
_LINEAGE_RECEIPT = f"SELECT 1 AS landed WHERE {lineage.ASKED} IS NOT NULL"


async def cancel_lineage(
    db: Database,
    run_id: str,
    viewer: Principal | None,
    requester: Principal,
    *,
    now_ms: int | None = None,
) -> VerbResult:
    """Request the cancel of every round that has not ended. One round trip; if rounds wait, one for
    each of them, which it ends, and one more.

    It wins if it made a request for any round, and returns the last of these. Losses:
    already_requested, with the last round that has not ended and had a request before; else
    terminal, with the last round. Raises NotFound, and Unavailable after lost races; the rounds
    asked before that stay asked.
    """
    token, won = mint_token(), False

    async def attempt() -> VerbResult | None:
        nonlocal won
        write, records = _lineage_write(db, run_id, viewer, requester, token, now_ms)
        try:
            written = await requests.write(db, write, (token,), records)
        except errors.MissingTable:
            await read(db, run_id, viewer)
            raise
        asked, live, waiting = written.reads
        run, won = found(asked), won or written.won
        if waiting.rows and not db.replay:
            for member in map(Run.from_row, waiting.rows):
                where = (member.run_id, viewer, requester, token)
                ended = await _cancel(db, *where, records, member, now_ms)
                won = won or ended.outcome is Outcome.CANCEL_REQUESTED
            return None
        if won:
            return VerbResult(Outcome.CANCEL_REQUESTED, run)
        asked_before = live.rows[0]["n"] > 0
        return VerbResult(Outcome.ALREADY_REQUESTED if asked_before else Outcome.TERMINAL, run)

    return await races.until_decided(db, attempt)


def _lineage_write(
    db: Database,
    run_id: str,
    viewer: Principal | None,
    requester: Principal,
    token: str,
    now_ms: int | None,
) -> tuple[writes.Write, list[Statement]]:
    """The requests for all rounds but those that wait, and what records them."""
    member = {"run_id": run_id, **scope(viewer)}
    requested = {"requester_kind": requester.kind, "requester_id": requester.id}
    clock, keyed = {"token": token, "now_ms": now_ms}, requests.params(db)
    asked = {**member, **keyed, "token": token}
    write = writes.Write(
        [
            Statement(_CANCEL_LINEAGE, **member, **clock, **keyed),
            Statement(_AUDIT_CANCEL_LINEAGE, **member, **clock, **_principal(requester)),
            Statement(_REQUESTED_OF_LINEAGE, **member, **requested, token=token),
        ],
        [
            lineage.asked_statement(db, run_id, viewer, token),
            Statement(_LIVE, **member),
            Statement(_WAITING_MEMBERS, **member, now_ms=now_ms),
        ],
        Statement(_LINEAGE_RECEIPT, **asked),
    )
    if db.request is None:
        return write, []
    record = {**asked, **requests.recorded(db, Outcome.CANCEL_REQUESTED), "now_ms": now_ms}
    return write, [Statement(_RECORD_LINEAGE, **record)]
