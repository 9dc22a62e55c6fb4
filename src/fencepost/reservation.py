"""Reservations: which run an idempotency key names.

`reserved → started → terminal`; docs/states.md has every transition. A start is compared with the
reservation of its key in this order: principal, target, fingerprint. So another principal learns
only that the key is used. No timer ever frees a key.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Any, NamedTuple

from fencepost import errors, fence, identifiers, requests, snapshot
from fencepost.identifiers import Principal, PrincipalKind, Target, TargetKind
from fencepost.runs import Run
from fencepost.storage import writes
from fencepost.storage.d1 import Database, Result
from fencepost.storage.rows import Rules, check_row, whole
from fencepost.storage.sql import NOW_MS, Parameter, Statement, json_text

TABLE = "fencepost_reservations"


class ReservationState(StrEnum):
    RESERVED = "reserved"
    STARTED = "started"
    TERMINAL = "terminal"


class Match(StrEnum):
    """The result of comparing a start with the reservation that its key already has."""

    SAME = "same"
    OWNER_MISMATCH = "owner_mismatch"
    TARGET_MISMATCH = "target_mismatch"
    INPUT_MISMATCH = "input_mismatch"


class Reservation(NamedTuple):
    """A row of fencepost_reservations. Times are milliseconds of the database's clock.

    `claim_nonce` is the token of the attempt that started it. `principal` is stored in the columns
    owner_…. `admitted_revision`: the revision of the fence that admitted its last attempt.
    """

    key: str
    principal: Principal
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
    admitted_revision: int | None = None

    @classmethod
    def from_row(cls, row: dict[str, Any]) -> Reservation:
        """The reservation of a row. Raises RowCorrupt for a row that breaks a rule."""
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
            row["admitted_revision"],
        )

    def match(self, principal: Principal, target: Target, fingerprint: str) -> Match:
        """Compare, in this order: principal, target, fingerprint."""
        if self.principal != principal:
            return Match.OWNER_MISMATCH
        if self.target != target:
            return Match.TARGET_MISMATCH
        if self.fingerprint != fingerprint:
            return Match.INPUT_MISMATCH
        return Match.SAME


_KINDS = frozenset(PrincipalKind)
_TARGETS = frozenset(TargetKind)
_STATES = frozenset(ReservationState)

_RULES: Rules = (
    ("owner_kind is human, service, agent or system", lambda row: row["owner_kind"] in _KINDS),
    (
        "owner_id is 1–200 printable characters",
        lambda row: identifiers.is_principal_id(row["owner_id"]),
    ),
    ("target_kind is workflow or agent", lambda row: row["target_kind"] in _TARGETS),
    (
        "an agent has a thread, a workflow has none",
        lambda row: (row["target_kind"] == "agent") == (row["thread_id"] is not None),
    ),
    ("run_id is path-safe", lambda row: identifiers.is_identifier(row["run_id"])),
    ("state is reserved, started or terminal", lambda row: row["state"] in _STATES),
    ("attempt is at least 1", lambda row: isinstance(row["attempt"], int) and row["attempt"] >= 1),
    (
        "a started reservation has a claim nonce",
        lambda row: row["state"] != "started" or row["claim_nonce"] is not None,
    ),
    ("times are whole milliseconds", whole("created_at_ms", "updated_at_ms")),
    ("a revision is whole", whole("admitted_revision", null=True)),
    ("joined is 0 or 1", lambda row: row["joined"] in (0, 1)),
)


COLUMNS = (
    "key, owner_kind, owner_id, target_kind, target_id, thread_id, fingerprint, run_id, state,"
    " attempt, claim_nonce, outcome, created_at_ms, updated_at_ms, joined, subject_sha256,"
    " admitted_revision"
)

# Decides: the key is new, and the fence admits the start. With a :claim_nonce the row is inserted
# as started, which saves a second write.
_RESERVE = f"""
INSERT INTO fencepost_reservations ({COLUMNS})
SELECT :key, :principal_kind, :principal_id, :target_kind, :target_id, :thread_id, :fingerprint,
  :run_id, CASE WHEN :claim_nonce IS NULL THEN 'reserved' ELSE 'started' END, 1, :claim_nonce,
  NULL, stamp.now_ms, stamp.now_ms, 0, NULL, {fence.REVISION}
FROM (SELECT COALESCE(:now_ms, {NOW_MS}) AS now_ms) AS stamp
WHERE {fence.admits_start_sql(":key", ":run_id", ":principal_kind", ":principal_id")}
ON CONFLICT (key) DO NOTHING
RETURNING run_id
"""


def reserve_statement(
    key: str,
    principal: Principal,
    target: Target,
    fingerprint: str,
    run_id: str,
    claim_nonce: str | None,
    now_ms: int | None,
) -> Statement:
    """Returns a row if this statement made the reservation."""
    asked = meaning(key, principal, target, fingerprint)
    return Statement(_RESERVE, **asked, run_id=run_id, claim_nonce=claim_nonce, now_ms=now_ms)


def meaning(
    key: str, principal: Principal, target: Target, fingerprint: str
) -> dict[str, Parameter]:
    """Key, principal, target and fingerprint, as parameters of the statement that reserves."""
    who = {"principal_kind": principal.kind, "principal_id": principal.id}
    what = {"target_kind": target.kind, "target_id": target.id, "thread_id": target.thread_id}
    return {"key": key, **who, **what, "fingerprint": fingerprint}


# Decides: this attempt, and no other, gets to start the reserved run, which waits and which
# nobody claims.
_START = f"""
UPDATE fencepost_reservations
SET state = 'started', claim_nonce = :claim_nonce, admitted_revision = {fence.REVISION},
  updated_at_ms = MAX(COALESCE(:now_ms, {NOW_MS}), updated_at_ms + 1)
WHERE key = :key AND run_id = :run_id AND state = 'reserved' AND attempt = :attempt
  AND {fence.admits_start_sql(":key", "run_id", "owner_kind", "owner_id")}
  AND NOT EXISTS (SELECT 1 FROM fencepost_runs WHERE run_id = :run_id
    AND (status <> 'pending' OR claim_host_id IS NOT NULL OR cancel_requested_at_ms IS NOT NULL))
RETURNING run_id
"""


def start_statement(
    key: str, run_id: str, attempt: int, claim_nonce: str, now_ms: int | None
) -> Statement:
    """Returns a row if this statement moved reserved → started."""
    which: dict[str, Parameter] = {"key": key, "run_id": run_id, "attempt": attempt}
    return Statement(_START, **which, claim_nonce=claim_nonce, now_ms=now_ms)


_START_RECEIPT = """
SELECT 1 AS landed FROM fencepost_reservations WHERE key = :key AND claim_nonce = :claim_nonce
"""


def start_receipt(key: str, claim_nonce: str) -> Statement:
    """Returns a row if the attempt `claim_nonce` started the reservation."""
    return Statement(_START_RECEIPT, key=key, claim_nonce=claim_nonce)


# Decides: every unsettled reservation of the run becomes terminal, from `reserved` too. Guarded by
# the token of the write that ended the run.
_SETTLE = """
UPDATE fencepost_reservations
SET state = 'terminal', outcome = :outcome,
  updated_at_ms = MAX(updated_at_ms + 1,
    (SELECT updated_at_ms FROM fencepost_runs WHERE run_id = :run_id))
WHERE run_id = :run_id AND state <> 'terminal'
  AND EXISTS (SELECT 1 FROM fencepost_runs WHERE run_id = :run_id AND write_token = :token)
RETURNING key
"""


def settle_statement(run_id: str, token: str, outcome: str) -> Statement:
    """Returns a row for each reservation that it settled; none when it is sent again."""
    return Statement(_SETTLE, run_id=run_id, token=token, outcome=outcome)


_READ = f"SELECT {COLUMNS} FROM fencepost_reservations WHERE key = :key"


def read_statement(key: str) -> Statement:
    """Returns one row or none, for `from_row`."""
    return Statement(_READ, key=key)


async def read(db: Database, key: str) -> Reservation | None:
    """The reservation of `key`; None if there is none, or no table. Writes nothing."""
    try:
        [result] = await db.read([read_statement(key)])
    except errors.MissingTable:
        return None
    return Reservation.from_row(result.rows[0]) if result.rows else None


def find_statements(key: str, viewer: Principal | None, now_ms: int | None) -> list[Statement]:
    """The reservation of a key and its run, for `found`."""
    return [read_statement(key), snapshot.read_by_key(key, viewer, now_ms)]


async def read_for_request(db: Database, statements: list[Statement]) -> list[Result]:
    """The reads of a start, and behind them the look for a keyed request, if it is one.

    For `found` and then `requests.replayed`. Raises NotFound if a table of starts is absent.
    """
    try:
        return await db.read([*statements, *requests.look(db)])
    except errors.MissingTable as missing:
        if missing.table == requests.TABLE:
            raise
        raise not_found() from None


def found(results: list[Result], viewer: Principal | None) -> tuple[Reservation, Run | None]:
    """What `find_statements` found. Raises NotFound if there is no reservation."""
    held_rows, run_rows = results[0].rows, results[1].rows
    if not held_rows:
        raise not_found()
    held = Reservation.from_row(held_rows[0])
    if viewer is not None and held.principal != viewer:
        raise not_found()
    return held, Run.from_row(run_rows[0]) if run_rows else None


def not_found() -> errors.NotFound:
    return errors.NotFound("There is no such start.", code="START_NOT_FOUND")


# Unsettled and settled reservations have an index each. :run_ids is a JSON array.
_FOR_RUNS = f"""
SELECT {COLUMNS} FROM fencepost_reservations
WHERE state <> 'terminal' AND run_id IN (SELECT value FROM json_each(:run_ids))
UNION ALL
SELECT {COLUMNS} FROM fencepost_reservations
WHERE state = 'terminal' AND run_id IN (SELECT value FROM json_each(:run_ids))
"""


async def for_runs(db: Database, run_ids: Sequence[str]) -> list[Reservation]:
    """All reservations that name one of `run_ids`. Writes nothing."""
    try:
        [result] = await db.read([Statement(_FOR_RUNS, run_ids=json_text(list(run_ids)))])
    except errors.MissingTable:
        return []
    return [Reservation.from_row(row) for row in result.rows]


_RESERVE_RECEIPT = """
SELECT 1 AS landed FROM fencepost_reservations WHERE key = :key AND run_id = :run_id
"""


async def reserve(
    db: Database,
    key: str,
    principal: Principal,
    target: Target,
    fingerprint: str,
    *,
    run_id: str,
    now_ms: int | None = None,
) -> Reservation | None:
    """Reserve a key without starting it. None when the fence does not admit it.

    The row returned may be an older one, with another run id: compare it with `match`. Raises
    MissingTable when there are no tables: only a start creates them.
    """
    # It is not started, so it has no nonce. The run id, made for this attempt, is the token.
    receipt = Statement(_RESERVE_RECEIPT, key=key, run_id=run_id)
    reserve = [reserve_statement(key, principal, target, fingerprint, run_id, None, now_ms)]
    write = writes.Write(reserve, [read_statement(key)], receipt, inserts=True)
    [result] = (await writes.write(db, write)).reads
    return Reservation.from_row(result.rows[0]) if result.rows else None
