"""Reservations: which run an `Idempotency-Key` means, for ever.

`reserved → started → terminal` (contracts 1.1). A reservation is compared in this order: owner,
then target, then fingerprint; a foreign owner learns nothing else. No timer ever frees one.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Any, NamedTuple

from fencepost import errors, fence
from fencepost.identifiers import (
    Principal,
    PrincipalKind,
    Target,
    TargetKind,
    is_identifier,
    is_principal_id,
)
from fencepost.storage import writes
from fencepost.storage.d1 import Database
from fencepost.storage.rows import Rules, check_row, whole
from fencepost.storage.sql import NOW_MS, Statement

TABLE = "fencepost_reservations"


class ReservationState(StrEnum):
    RESERVED = "reserved"
    STARTED = "started"
    TERMINAL = "terminal"


class Match(StrEnum):
    """How an intent compares with the reservation that its key already has."""

    SAME = "same"
    OWNER_MISMATCH = "owner_mismatch"
    TARGET_MISMATCH = "target_mismatch"
    INPUT_MISMATCH = "input_mismatch"


class Intent(NamedTuple):
    """What a caller means by a key. `run_id` is used only if the key is new."""

    key: str
    owner: Principal
    target: Target
    fingerprint: str
    run_id: str


class Reservation(NamedTuple):
    """A row of fencepost_reservations. Times are ms of the database's clock."""

    key: str
    owner: Principal
    target: Target
    fingerprint: str
    run_id: str
    state: ReservationState
    attempt: int
    claim_nonce: str | None
    outcome: str | None
    created_at_ms: int
    updated_at_ms: int
    # Whether the key joined the run of its subject, which another key had started.
    joined: bool = False
    subject_sha256: str | None = None

    @classmethod
    def from_row(cls, row: dict[str, Any]) -> Reservation:
        """Raises RowCorrupt for a row that breaks a rule; it is never repaired."""
        check_row(TABLE, _RULES, row)
        return cls(
            row["key"],
            Principal(row["owner_kind"], row["owner_id"]),
            Target(row["target_kind"], row["target_id"], row["thread_id"]),
            row["fingerprint"],
            row["run_id"],
            ReservationState(row["state"]),
            row["attempt"],
            row["claim_nonce"],
            row["outcome"],
            row["created_at_ms"],
            row["updated_at_ms"],
            bool(row["joined"]),
            row["subject_sha256"],
        )

    def match(self, intent: Intent) -> Match:
        """The order is the contract: owner, target, fingerprint."""
        if self.owner != intent.owner:
            return Match.OWNER_MISMATCH
        if self.target != intent.target:
            return Match.TARGET_MISMATCH
        if self.fingerprint != intent.fingerprint:
            return Match.INPUT_MISMATCH
        return Match.SAME


_KINDS = frozenset(PrincipalKind)
_TARGETS = frozenset(TargetKind)
_STATES = frozenset(ReservationState)

_RULES: Rules = (
    ("owner_kind is human, service, agent or system", lambda row: row["owner_kind"] in _KINDS),
    ("owner_id is 1–200 printable characters", lambda row: is_principal_id(row["owner_id"])),
    ("target_kind is workflow or agent", lambda row: row["target_kind"] in _TARGETS),
    (
        "an agent has a thread, a workflow has none",
        lambda row: (row["target_kind"] == "agent") == (row["thread_id"] is not None),
    ),
    ("run_id is path-safe", lambda row: is_identifier(row["run_id"])),
    ("state is reserved, started or terminal", lambda row: row["state"] in _STATES),
    ("attempt is at least 1", lambda row: isinstance(row["attempt"], int) and row["attempt"] >= 1),
    (
        "only a claimed reservation is started",
        lambda row: row["state"] != "started" or row["claim_nonce"] is not None,
    ),
    ("times are whole milliseconds", whole("created_at_ms", "updated_at_ms")),
    ("joined is 0 or 1", lambda row: row["joined"] in (0, 1)),
)


COLUMNS = (
    "key, owner_kind, owner_id, target_kind, target_id, thread_id, fingerprint, run_id, state,"
    " attempt, claim_nonce, outcome, created_at_ms, updated_at_ms, joined, subject_sha256"
)

# Decides: the key is new, and the fence admits the start. With a claim nonce (?9) the
# reservation is born started, which saves the start a second write.
_RESERVE = f"""
INSERT INTO fencepost_reservations ({COLUMNS})
SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, CASE WHEN ?9 IS NULL THEN 'reserved' ELSE 'started' END,
  1, ?9, NULL, stamp.now_ms, stamp.now_ms, 0, NULL
FROM (SELECT COALESCE(?10, {NOW_MS}) AS now_ms) AS stamp
WHERE {fence.admits_start_sql("?1", "?8")}
ON CONFLICT (key) DO NOTHING
RETURNING run_id
"""


def reserve_statement(intent: Intent, claim_nonce: str | None, now_ms: int | None) -> Statement:
    """One row back if this very statement made the reservation."""
    kind, owner_id = intent.owner
    return Statement(
        _RESERVE,
        (
            intent.key,
            kind,
            owner_id,
            *intent.target,
            intent.fingerprint,
            intent.run_id,
            claim_nonce,
            now_ms,
        ),
    )


# Decides: this attempt, and no other, gets to start the reserved run.
_CLAIM = f"""
UPDATE fencepost_reservations
SET state = 'started', claim_nonce = ?3,
  updated_at_ms = MAX(COALESCE(?4, {NOW_MS}), updated_at_ms + 1)
WHERE key = ?1 AND state = 'reserved' AND attempt = ?2
  AND {fence.admits_start_sql("?1", "run_id")}
  AND NOT EXISTS (SELECT 1 FROM fencepost_runs
    WHERE run_id = fencepost_reservations.run_id AND status <> 'pending')
RETURNING run_id
"""


def claim_statement(key: str, attempt: int, claim_nonce: str, now_ms: int | None) -> Statement:
    """One row back if this statement moved reserved → started."""
    return Statement(_CLAIM, (key, attempt, claim_nonce, now_ms))


_CLAIM_RECEIPT = """
SELECT 1 AS landed FROM fencepost_reservations WHERE key = ?1 AND claim_nonce = ?2
"""


def claim_receipt(key: str, claim_nonce: str) -> Statement:
    """Whether the attempt named by `claim_nonce` holds the claim of the key."""
    return Statement(_CLAIM_RECEIPT, (key, claim_nonce))


# Decides: started → reserved with the next attempt. Guarded by the token of the write that
# put the run back to pending in the same batch.
_RELEASE = """
UPDATE fencepost_reservations
SET state = 'reserved', claim_nonce = NULL, attempt = attempt + 1,
  updated_at_ms = MAX(updated_at_ms + 1,
    (SELECT updated_at_ms FROM fencepost_runs WHERE run_id = ?2))
WHERE key = ?1 AND run_id = ?2 AND state = 'started' AND joined = 0
  AND EXISTS (SELECT 1 FROM fencepost_runs WHERE run_id = ?2 AND write_token = ?3)
RETURNING run_id
"""


def release_statement(key: str, run_id: str, token: str) -> Statement:
    """One row back if the key may be started again."""
    return Statement(_RELEASE, (key, run_id, token))


# Decides: every unsettled reservation of a run that ended becomes terminal; from `reserved`
# too. Guarded by the token of the write that ended the run.
_SETTLE = """
UPDATE fencepost_reservations
SET state = 'terminal', outcome = ?3,
  updated_at_ms = MAX(updated_at_ms + 1,
    (SELECT updated_at_ms FROM fencepost_runs WHERE run_id = ?1))
WHERE run_id = ?1 AND state <> 'terminal'
  AND EXISTS (SELECT 1 FROM fencepost_runs WHERE run_id = ?1 AND write_token = ?2)
RETURNING key
"""


def settle_statement(run_id: str, token: str, outcome: str) -> Statement:
    """One row back for each reservation that was settled; none on a repeat."""
    return Statement(_SETTLE, (run_id, token, outcome))


_READ = f"SELECT {COLUMNS} FROM fencepost_reservations WHERE key = ?1"


def read_statement(key: str) -> Statement:
    """One row or none, for `from_row`."""
    return Statement(_READ, (key,))


async def read(db: Database, key: str) -> Reservation | None:
    """The reservation of `key`; an absent table is an absent row. Writes nothing."""
    try:
        [result] = await db.read([read_statement(key)])
    except errors.MissingTable:
        return None
    return Reservation.from_row(result.rows[0]) if result.rows else None


# Unsettled and settled reservations have an index each; ?1 is a JSON array of run ids.
_BY_RUNS = f"""
SELECT {COLUMNS} FROM fencepost_reservations
WHERE state <> 'terminal' AND run_id IN (SELECT value FROM json_each(?1))
UNION ALL
SELECT {COLUMNS} FROM fencepost_reservations
WHERE state = 'terminal' AND run_id IN (SELECT value FROM json_each(?1))
"""


async def reservations_for_runs(db: Database, run_ids: Sequence[str]) -> list[Reservation]:
    """All reservations that name one of `run_ids`. Writes nothing."""
    import json

    try:
        [result] = await db.read([Statement(_BY_RUNS, (json.dumps(list(run_ids)),))])
    except errors.MissingTable:
        return []
    return [Reservation.from_row(row) for row in result.rows]


_RESERVE_RECEIPT = """
SELECT 1 AS landed FROM fencepost_reservations WHERE key = ?1 AND run_id = ?2
"""


async def reserve(db: Database, intent: Intent, now_ms: int | None = None) -> Reservation | None:
    """Reserve a key without starting it. None when the fence does not admit it.

    The row returned may be an older one: compare it with `match`. Does not create tables:
    only a start does (raises MissingTable).
    """
    # A reservation without a claim has no token; the run id, minted for this attempt, is it.
    receipt = Statement(_RESERVE_RECEIPT, (intent.key, intent.run_id))
    reserve = [reserve_statement(intent, None, now_ms)]
    written = await writes.write(
        db, writes.Write(reserve, [read_statement(intent.key)], receipt, inserts=True)
    )
    [result] = written.reads
    return Reservation.from_row(result.rows[0]) if result.rows else None
