"""The start: reservation, run, owner and first snapshot, in one D1 round trip.

Exactly one start per key: the reservation is inserted as `started` by the first request, in
the same transaction as its run. Every other request reads those rows, and `decision.decide` picks
its answer. No timer ever frees a key.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fencepost import errors, fence, journal, machines, reservation, snapshot, subjects, waiting
from fencepost.decision import Attempt, Decision, Seen, decide
from fencepost.fence import Fence
from fencepost.identifiers import mint_token
from fencepost.journal import GENESIS, Event
from fencepost.reservation import Reservation
from fencepost.runs import Run
from fencepost.storage import races, writes
from fencepost.storage.d1 import Database, Result
from fencepost.storage.sql import NOW_MS, Statement

# --- The batch of a new key --------------------------------------------------------------

# Decides nothing: guarded by the token of this attempt, the reservation's claim nonce.
_CREATE_RUN = """
INSERT INTO fencepost_runs (run_id, principal_kind, principal_id, target_kind, target_id,
  thread_id, status, owner_host_id, owner_pid, owner_nonce, generation, heartbeat_at_ms, lease_ms,
  lease_expires_at_ms, parent_run_id, lineage_id, lineage_round, machine, machine_state,
  head_sequence, head_hash, write_token, updated_at_ms, created_at_ms, started_at_ms, traceparent)
SELECT run_id, owner_kind, owner_id, target_kind, target_id, thread_id,
  'running', :host_id, :pid, :nonce, 1, updated_at_ms, :lease_ms, updated_at_ms + :lease_ms,
  :parent_run_id, :lineage_id, :lineage_round, :machine, :machine_state,
  :sequence, :hash, :token, updated_at_ms, updated_at_ms, updated_at_ms, :traceparent
FROM fencepost_reservations WHERE key = :key AND claim_nonce = :token AND run_id = :run_id
"""

_CREATE_SNAPSHOT = """
INSERT INTO fencepost_snapshots (run_id, state)
SELECT run_id, :state_json FROM fencepost_runs WHERE run_id = :run_id AND write_token = :token
"""

# A start grants ownership at once, without a claim: one fact.
_ACTIVATED = """
INSERT INTO fencepost_ownership (run_id, sequence, type, owner_host_id, owner_pid, owner_nonce,
  generation, granted_at_ms, write_token, at_ms)
SELECT run_id,
  1 + COALESCE((SELECT MAX(sequence) FROM fencepost_ownership WHERE run_id = :run_id), 0),
  'activated', owner_host_id, owner_pid, owner_nonce, generation, updated_at_ms, :token,
  updated_at_ms
FROM fencepost_runs WHERE run_id = :run_id AND write_token = :token
"""


def create_statements(attempt: Attempt, run_id: str, token: str) -> list[Statement]:
    """A run with its first state, event and ownership fact, for the attempt named by `token`."""
    event = _created_event(attempt, run_id)
    lineage = attempt.lineage
    machine, machine_state = machines.start_of(attempt.machine)
    return [
        Statement(
            _CREATE_RUN,
            key=attempt.key,
            token=token,
            **attempt.owner.params,
            lease_ms=attempt.lease_ms,
            parent_run_id=attempt.parent_run_id,
            lineage_id=lineage and lineage.id,
            lineage_round=lineage and lineage.round,
            machine=machine,
            machine_state=machine_state,
            sequence=event.sequence,
            hash=event.hash,
            run_id=run_id,
            traceparent=attempt.traceparent,
        ),
        Statement(_CREATE_SNAPSHOT, run_id=run_id, token=token, state_json=attempt.input_json),
        *_granted_statements(attempt, run_id, token, event),
    ]


def _created_event(attempt: Attempt, run_id: str) -> Event:
    lineage = attempt.lineage
    payload: dict[str, Any] = {
        "run_id": run_id,
        "target": attempt.target.as_json(),
        "fingerprint": attempt.fingerprint,
        "principal": {"kind": attempt.principal.kind, "id": attempt.principal.id},
        "lineage": lineage and {"id": lineage.id, "round": lineage.round},
        "parent_run_id": attempt.parent_run_id,
        "subject": attempt.subject and attempt.subject.as_json(),
        "state_sha256": journal.sha256(attempt.input_json),
    }
    if attempt.machine is not None:
        payload["machine"] = attempt.machine
    return journal.next_event(GENESIS, "run-created", payload)


def _granted_statements(attempt: Attempt, run_id: str, token: str, event: Event) -> list[Statement]:
    subject = attempt.subject and attempt.subject.digest
    meant = (attempt.key, attempt.principal, attempt.fingerprint, subject)
    return [
        journal.append_statement(run_id, token, event),
        Statement(_ACTIVATED, run_id=run_id, token=token),
        fence.record_start_statement(*meant, token),
    ]


# The run of a key, for its start, if the key is the caller's. Content is left out where no answer
# shows it: of a run that another process executes.
_READ_RUN = f"""
SELECT run.*, COALESCE(:now_ms, {NOW_MS}) AS now_ms, held.joined = 0 AND run.status = 'running'
    AND NOT (owner_host_id = :host_id AND owner_pid = :pid AND owner_nonce = :nonce) AS bare,
  CASE WHEN held.joined = 0 AND run.status = 'running'
    AND NOT (owner_host_id = :host_id AND owner_pid = :pid AND owner_nonce = :nonce)
    THEN NULL ELSE content.state END AS state,
  content.result
FROM fencepost_reservations AS held CROSS JOIN fencepost_runs AS run USING (run_id)
  LEFT JOIN fencepost_snapshots AS content USING (run_id)
WHERE key = :key AND owner_kind = :viewer_kind AND owner_id = :viewer_id
"""


def _read_statements(attempt: Attempt, now_ms: int | None) -> list[Statement]:
    key, owner, whose = attempt.key, attempt.owner, snapshot.scope(attempt.principal)
    return [
        fence.read_statement(),
        reservation.read_statement(key),
        Statement(_READ_RUN, key=key, **whose, **owner.params, now_ms=now_ms),
    ]


def _seen(results: list[Result], created: bool) -> Seen:
    gate, held, run = results
    return Seen(
        _fence(gate),
        Reservation.from_row(held.rows[0]) if held.rows else None,
        Run.from_row(run.rows[0]) if run.rows else None,
        created,
    )


def _fence(gate: Result) -> Fence | errors.FenceUnreadable:
    try:
        return Fence.from_rows(gate.rows)
    except errors.FenceUnreadable as unreadable:
        return unreadable


def _reserve_statements(attempt: Attempt, token: str, now_ms: int | None) -> list[Statement]:
    key, subject = attempt.key, attempt.subject
    what = (key, attempt.principal, attempt.target, attempt.fingerprint, attempt.run_id)
    if subject is None:
        return [reservation.reserve_statement(*what, token, now_ms)]
    return [
        subjects.reserve_statement(*what, token, now_ms, subject),
        subjects.register_statement(key, token, subject),
    ]


async def _start_new(db: Database, attempt: Attempt, token: str, now_ms: int | None) -> Seen:
    statements = [
        *_reserve_statements(attempt, token, now_ms),
        *create_statements(attempt, attempt.run_id, token),
    ]
    receipt = reservation.start_receipt(attempt.key, token)
    reads = _read_statements(attempt, now_ms)
    write = writes.Write(
        statements,
        reads,
        receipt,
        inserts=True,
        could_win=lambda seen: _seen(seen, created=False).reservation is None,
    )
    written = await writes.write(db, write)
    return _seen(written.reads, created=written.won)


# --- The batch of a key that was reserved, or released, before ---------------------------

# Decides: the run still waits, nobody claims it, no cancel was requested, and its history is as it
# was read. Guarded by the token of the attempt that started the reservation, its claim nonce.
_RESTART = """
UPDATE fencepost_runs SET status = 'running',
  owner_host_id = :host_id, owner_pid = :pid, owner_nonce = :nonce, generation = generation + 1,
  heartbeat_at_ms = held.at_ms, lease_ms = :lease_ms, lease_expires_at_ms = held.at_ms + :lease_ms,
  started_at_ms = COALESCE(started_at_ms, held.at_ms),
  head_sequence = :sequence, head_hash = :hash, write_token = :token, updated_at_ms = held.at_ms
FROM (SELECT MAX(updated_at_ms, (SELECT updated_at_ms FROM fencepost_runs WHERE run_id = :run_id))
    AS at_ms FROM fencepost_reservations WHERE key = :key AND claim_nonce = :token) AS held
WHERE run_id = :run_id AND status = 'pending' AND claim_host_id IS NULL
  AND cancel_requested_at_ms IS NULL AND head_sequence = :sequence - 1 AND head_hash = :prior_hash
RETURNING run_id
"""

# A reservation is not started without its run. If the run was not written, this statement breaks
# the CHECK `attempt >= 1`, and D1 rolls the whole batch back.
_ABORT_UNLESS_GRANTED = """
UPDATE fencepost_reservations SET attempt = 0
WHERE key = :key AND claim_nonce = :token
  AND NOT EXISTS (SELECT 1 FROM fencepost_runs WHERE run_id = :run_id AND write_token = :token)
"""


def _restart_statements(attempt: Attempt, seen: Seen, token: str) -> list[Statement]:
    held, run = seen.reservation, seen.run
    assert held is not None
    if run is None:
        return create_statements(attempt, held.run_id, token)
    event = journal.next_event(run.head, "run-restarted", {"attempt": held.attempt})
    return [
        Statement(
            _RESTART,
            key=attempt.key,
            token=token,
            **attempt.owner.params,
            lease_ms=attempt.lease_ms,
            sequence=event.sequence,
            hash=event.hash,
            run_id=run.run_id,
            prior_hash=run.head.hash,
        ),
        *_granted_statements(attempt, run.run_id, token, event),
    ]


async def _start_reserved(
    db: Database, attempt: Attempt, seen: Seen, token: str, now_ms: int | None
) -> Seen:
    key, held = attempt.key, seen.reservation
    assert held is not None
    statements = [
        reservation.start_statement(key, held.run_id, held.attempt, token, now_ms),
        *_restart_statements(attempt, seen, token),
        Statement(_ABORT_UNLESS_GRANTED, key=key, token=token, run_id=held.run_id),
    ]
    reads = _read_statements(attempt, now_ms)
    receipt = reservation.start_receipt(key, token)
    try:
        written = await writes.write(
            db,
            writes.Write(
                statements,
                reads,
                receipt,
                could_win=lambda found: (
                    decide(attempt, _seen(found, created=False)) is Decision.RESERVED
                ),
            ),
        )
    except errors.ConstraintFailed:
        return _seen(await db.read(reads), created=False)
    return _seen(written.reads, created=written.won)


# --- Starting ----------------------------------------------------------------------------


async def start(
    db: Database,
    attempt: Attempt,
    *,
    wait_s: float = 0,
    gone: Callable[[], bool] = lambda: False,
    now_ms: int | None = None,
) -> tuple[Decision, Seen]:
    """Start the run that the key names, or answer with the run that it already has.

    Returns the decision and the rows that it was made from. One round trip, also for a replay and
    a refusal; two when the key was reserved or released before. While the decision is PENDING it
    waits up to `wait_s` seconds, or until the caller is `gone`. A request that has waited never
    starts: if the key is free again, PENDING is the answer. The first start in a database creates
    the tables.

    Raises FenceUnreadable, RowCorrupt, SchemaMismatch, and the StorageErrors of `writes.write`.
    Not guaranteed: an answer. After Unknown the run may have started; the same key tells.
    """
    decision, seen = await _start(db, attempt, now_ms)
    if decision is Decision.PENDING and wait_s > 0:
        with waiting.patience(wait_s, gone) as patience:
            return await _wait(db, attempt, seen, patience, now_ms)
    return decision, seen


async def _wait(
    db: Database, attempt: Attempt, seen: Seen, patience: waiting.Patience, now_ms: int | None
) -> tuple[Decision, Seen]:
    """Look at the run until nobody executes it any more, and only then decide anew."""
    decision = Decision.PENDING
    while decision is Decision.PENDING and await patience.pause():
        assert seen.reservation is not None
        glance = await snapshot.glance(db, seen.reservation.run_id, attempt.principal)
        if glance is not None and glance.busy and not glance.ended:
            continue
        found = _seen(await db.read(_read_statements(attempt, now_ms)), created=False)
        if found.reservation is None:
            break
        decision, seen = decide(attempt, found), found
    return (Decision.PENDING if decision is Decision.RESERVED else decision), seen


async def _start_not_ready(db: Database, attempt: Attempt, token: str, now_ms: int | None) -> Seen:
    """Bring the schema forward, but only if the fence admits the start.

    If it does not, an incomplete schema may still hold the rows of a replay.
    """
    try:
        gate = await fence.read(db)
    except errors.FenceUnreadable as unreadable:
        return await _seen_without_writing(db, attempt, unreadable, now_ms)
    if gate.admits_start(attempt.key, attempt.principal):
        await db.bring_schema_forward()
        return await _start_new(db, attempt, token, now_ms)
    try:
        return await _start_new(db, attempt, token, now_ms)
    except errors.MissingTable:
        return Seen(gate, None, None, created=False)
    except errors.SchemaBehind as behind:
        if (
            behind.members["table"] != reservation.TABLE
            or behind.members["difference"] != "missing"
        ):
            raise
        return Seen(gate, None, None, created=False)


async def _seen_without_writing(
    db: Database, attempt: Attempt, refusal: errors.FencepostError, now_ms: int | None
) -> Seen:
    """What the key means, where the database takes no writes. Raises `refusal` if the answer would
    be a start.
    """
    try:
        results = await db.read(_read_statements(attempt, now_ms))
    except errors.StorageError:
        raise refusal from None
    seen = _seen(results, created=False)
    free = seen.reservation is None and seen.gate.admits_start(attempt.key, attempt.principal)
    if free or decide(attempt, seen) is Decision.RESERVED:
        raise refusal
    return seen


async def _start(db: Database, attempt: Attempt, now_ms: int | None) -> tuple[Decision, Seen]:
    token = mint_token()
    try:
        await db.ready(creating=True)
        seen = await _start_new(db, attempt, token, now_ms)
    except errors.NOT_READY:
        seen = await _start_not_ready(db, attempt, token, now_ms)
    except (errors.Refused, errors.ConstraintFailed) as refusal:
        seen = await _seen_without_writing(db, attempt, refusal, now_ms)

    async def decided() -> tuple[Decision, Seen] | None:
        nonlocal seen
        if (decision := decide(attempt, seen)) is Decision.RESERVED:
            seen = await _start_reserved(db, attempt, seen, token, now_ms)
            decision = decide(attempt, seen)
        return None if decision is Decision.RESERVED else (decision, seen)

    return await races.until_decided(db, decided)
