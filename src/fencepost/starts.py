"""The start: reserve, claim, own and first snapshot, in one D1 round trip.

Exactly one start per key: the reservation is inserted as `started` by whoever comes first, in
the same transaction as its run. Everyone else reads what that one left, and `decision.decide`
says what it means. A key is never freed by a timer.
"""

from __future__ import annotations

from typing import Any

from fencepost import errors, fence, journal, limits, machines, reservation, snapshot, subjects
from fencepost.decision import Decision, Seen, Start, decide
from fencepost.fence import Fence
from fencepost.identifiers import mint_run_id, mint_token
from fencepost.journal import GENESIS, Event
from fencepost.reservation import Intent, Reservation
from fencepost.runs import Run
from fencepost.storage import writes
from fencepost.storage.d1 import Database, Result
from fencepost.storage.sql import Statement

# --- The batch of a new key --------------------------------------------------------------

# Decides nothing: guarded by the claim nonce of this very request.
_CREATE_RUN = """
INSERT INTO fencepost_runs (run_id, principal_kind, principal_id, target_kind, target_id,
  thread_id, status, owner_host_id, owner_pid, owner_nonce, generation, heartbeat_at_ms, lease_ms,
  lease_expires_at_ms, parent_run_id, lineage_id, lineage_round, machine, machine_state,
  head_sequence, head_hash, write_token, updated_at_ms, created_at_ms, started_at_ms)
SELECT run_id, owner_kind, owner_id, target_kind, target_id, thread_id,
  'running', ?3, ?4, ?5, 1, updated_at_ms, ?6, updated_at_ms + ?6, ?7, ?8, ?9, ?13, ?14,
  ?10, ?11, ?2, updated_at_ms, updated_at_ms, updated_at_ms
FROM fencepost_reservations WHERE key = ?1 AND claim_nonce = ?2 AND run_id = ?12
"""

_CREATE_SNAPSHOT = """
INSERT INTO fencepost_snapshots (run_id, state)
SELECT run_id, ?3 FROM fencepost_runs WHERE run_id = ?1 AND write_token = ?2
"""

# A start grants ownership at once, without a tentative claim: one fact.
_ACTIVATED = """
INSERT INTO fencepost_ownership (run_id, sequence, type, owner_host_id, owner_pid, owner_nonce,
  generation, granted_at_ms, write_token, at_ms)
SELECT run_id,
  1 + COALESCE((SELECT MAX(sequence) FROM fencepost_ownership WHERE run_id = ?1), 0),
  'activated', owner_host_id, owner_pid, owner_nonce, generation, updated_at_ms, ?2, updated_at_ms
FROM fencepost_runs WHERE run_id = ?1 AND write_token = ?2
"""


def create_statements(start: Start, run_id: str, token: str) -> list[Statement]:
    """A run with its first state, event and ownership fact, for the claim named by `token`."""
    event = _created_event(start, run_id)
    owner, lineage = start.owner, start.lineage
    rounds = (None, None) if lineage is None else (lineage.id, lineage.round)
    run = (start.key, token, *owner.columns, start.lease_ms)
    head = (event.sequence, event.hash, run_id, *machines.start_of(start.machine))
    return [
        Statement(_CREATE_RUN, (*run, start.parent_run_id, *rounds, *head)),
        Statement(_CREATE_SNAPSHOT, (run_id, token, start.input_json)),
        *_granted_statements(start, run_id, token, event),
    ]


def _created_event(start: Start, run_id: str) -> Event:
    lineage = start.lineage
    payload: dict[str, Any] = {
        "run_id": run_id,
        "target": start.target.as_json(),
        "fingerprint": start.fingerprint,
        "principal": {"kind": start.principal.kind, "id": start.principal.id},
        "lineage": lineage and {"id": lineage.id, "round": lineage.round},
        "parent_run_id": start.parent_run_id,
        "subject": start.subject and start.subject.as_json(),
        "state_sha256": journal.sha256(start.input_json),
    }
    if start.machine is not None:
        payload["machine"] = start.machine
    return journal.next_event(GENESIS, "run-created", payload)


def _granted_statements(start: Start, run_id: str, token: str, event: Event) -> list[Statement]:
    return [
        journal.append_statement(run_id, token, event),
        Statement(_ACTIVATED, (run_id, token)),
        fence.record_proof_run_statement(start.key, run_id, token),
    ]


def _read_statements(key: str, now_ms: int | None) -> list[Statement]:
    return [
        fence.read_statement(),
        reservation.read_statement(key),
        snapshot.read_by_key(key, now_ms),
    ]


def _seen(results: list[Result], created: bool) -> Seen:
    gate, held, run = results
    return Seen(
        Fence.from_rows(gate.rows),
        Reservation.from_row(held.rows[0]) if held.rows else None,
        Run.from_row(run.rows[0]) if run.rows else None,
        created,
    )


async def _start_new(
    db: Database, start: Start, intent: Intent, token: str, now_ms: int | None
) -> Seen:
    subject = start.subject
    if subject is None:
        reserve = [reservation.reserve_statement(intent, token, now_ms)]
    else:
        reserve = [
            subjects.reserve_statement(intent, subject, token, now_ms),
            subjects.register_statement(start.key, token, subject),
        ]
    statements = [
        *reserve,
        *create_statements(start, intent.run_id, token),
    ]
    receipt = reservation.claim_receipt(start.key, token)
    reads = _read_statements(start.key, now_ms)
    written = await writes.write(db, writes.Write(statements, reads, receipt, inserts=True))
    return _seen(written.reads, created=written.won)


# --- The batch of a key that was reserved, or released, before ---------------------------

# Decides: the run still waits, with the history that was read. Guarded by the claim nonce.
_RESTART = """
UPDATE fencepost_runs SET status = 'running',
  owner_host_id = ?3, owner_pid = ?4, owner_nonce = ?5, generation = generation + 1,
  heartbeat_at_ms = claim.at_ms, lease_ms = ?6, lease_expires_at_ms = claim.at_ms + ?6,
  started_at_ms = COALESCE(started_at_ms, claim.at_ms),
  claim_host_id = NULL, claim_pid = NULL, claim_nonce = NULL, claimed_at_ms = NULL,
  claim_heartbeat_at_ms = NULL,
  head_sequence = ?7, head_hash = ?8, write_token = ?2, updated_at_ms = claim.at_ms
FROM (SELECT MAX(updated_at_ms, (SELECT updated_at_ms FROM fencepost_runs WHERE run_id = ?9))
    AS at_ms FROM fencepost_reservations WHERE key = ?1 AND claim_nonce = ?2) AS claim
WHERE run_id = ?9 AND status = 'pending' AND head_sequence = ?7 - 1 AND head_hash = ?10
RETURNING run_id
"""

# A claim whose run was not granted must not stand: the batch that does not reach its end is
# taken back by this failing CHECK (attempt >= 1).
_ABORT_UNLESS_GRANTED = """
UPDATE fencepost_reservations SET attempt = 0
WHERE key = ?1 AND claim_nonce = ?2
  AND NOT EXISTS (SELECT 1 FROM fencepost_runs WHERE run_id = ?3 AND write_token = ?2)
"""


def _restart_statements(start: Start, seen: Seen, token: str) -> list[Statement]:
    held, run, owner = seen.reservation, seen.run, start.owner
    assert held is not None
    if run is None:
        return create_statements(start, held.run_id, token)
    payload = {"attempt": held.attempt}
    event = journal.next_event(run.head, "run-restarted", payload)
    who = (*owner.columns, start.lease_ms)
    values = (start.key, token, *who, event.sequence, event.hash, run.run_id, run.head.hash)
    return [
        Statement(_RESTART, values),
        *_granted_statements(start, run.run_id, token, event),
    ]


async def _start_reserved(
    db: Database, start: Start, seen: Seen, token: str, now_ms: int | None
) -> Seen:
    held = seen.reservation
    assert held is not None
    statements = [
        reservation.claim_statement(start.key, held.attempt, token, now_ms),
        *_restart_statements(start, seen, token),
        Statement(_ABORT_UNLESS_GRANTED, (start.key, token, held.run_id)),
    ]
    reads = _read_statements(start.key, now_ms)
    receipt = reservation.claim_receipt(start.key, token)
    try:
        written = await writes.write(db, writes.Write(statements, reads, receipt))
    except errors.ConstraintFailed:
        return _seen(await db.read(reads), created=False)
    return _seen(written.reads, created=written.won)


# --- Starting ----------------------------------------------------------------------------


async def start(
    db: Database, start: Start, *, wait_s: float = 0, now_ms: int | None = None
) -> tuple[Decision, Seen]:
    """Start the run that the key means, or say what became of it.

    One round trip, also for a replay and a refusal; two when the key was released before. With
    `wait_s`, a pending run is waited for. The first start of all creates the tables.
    """
    intent = Intent(start.key, start.principal, start.target, start.fingerprint, mint_run_id())
    decision, seen = await _start(db, start, intent, now_ms)
    patience = snapshot.Patience(wait_s)
    while decision is Decision.PENDING and await patience.pause():
        seen = _seen(await db.read(_read_statements(start.key, now_ms)), created=False)
        decision = decide(start, intent, seen)
        if decision is Decision.RESERVED or seen.reservation is None:
            decision, seen = await _start(db, start, intent, now_ms)
    return decision, seen


async def _start_not_ready(
    db: Database, start: Start, intent: Intent, token: str, now_ms: int | None
) -> Seen:
    """Brings the schema forward, but only if the fence admits the start.

    Otherwise an incomplete schema may still hold what a replay needs.
    """
    gate = await fence.read(db)
    if gate.admits_start(start.key):
        await db.bring_schema_forward()
        return await _start_new(db, start, intent, token, now_ms)
    try:
        return await _start_new(db, start, intent, token, now_ms)
    except errors.MissingTable:
        return Seen(gate, None, None, created=False)


async def _start(
    db: Database, start: Start, intent: Intent, now_ms: int | None
) -> tuple[Decision, Seen]:
    token = mint_token()
    try:
        await db.ready(creating=True)
        seen = await _start_new(db, start, intent, token, now_ms)
    except errors.NOT_READY:
        seen = await _start_not_ready(db, start, intent, token, now_ms)
    decision = decide(start, intent, seen)
    for _ in range(limits.RACE_ATTEMPTS_MAX):
        if decision is not Decision.RESERVED:
            break
        seen = await _start_reserved(db, start, seen, token, now_ms)
        decision = decide(start, intent, seen)
    return decision, seen
