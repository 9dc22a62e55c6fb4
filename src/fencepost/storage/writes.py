"""Writes whose reply may be lost (design 9, contracts 2): no lost reply costs a second execution.

Every mutation goes through `write`. Each attempt has a token of its own, stored in what it
writes; the conditional statements of a batch decide for themselves, so issuing them again is
safe at any time. When D1's reply is lost:

    seen on reading back                branch                      then
    this attempt's token                landed                      it won; go on
    not its token: issued once more
      and won                           reinserted / reissued       go on
      and lost                          refused                     the row decides, as for anyone
    reading back fails, or the
    second attempt fails as well        unreadable                  503, nothing more is written

A definite failure (MissingTable, ConstraintFailed, Refused) is raised at once: nothing was
written, and the same request may be sent again.

Not guaranteed: to answer. A failed re-read costs availability, never a second effect; the same
request with the same key then ends where an undisturbed one does.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

from fencepost import errors
from fencepost.storage.d1 import Database, Result
from fencepost.storage.rows import Row
from fencepost.storage.sql import Statement


class Branch(StrEnum):
    """What became of a write whose reply was lost; in the log line and in Server-Timing."""

    LANDED = "landed"
    REISSUED = "reissued"
    REINSERTED = "reinserted"
    REFUSED = "refused"
    UNREADABLE = "unreadable"


class Write(NamedTuple):
    """One batch: `statements`, of which number `decides` returns a row if the write won, and
    then `reads`.

    `receipt` is a SELECT that returns a row only if this very attempt has landed: it looks for
    the attempt's token, never for an id that a caller chose. `inserts` names the branch.
    """

    statements: Sequence[Statement]
    reads: Sequence[Statement]
    receipt: Statement
    inserts: bool = False
    decides: int = 0


class Written(NamedTuple):
    """What the statement that decided returned, or its receipt: a row if the write won. And what
    its reads returned afterwards.
    """

    rows: list[Row]
    reads: list[Result]

    @property
    def won(self) -> bool:
        return bool(self.rows)


async def write(db: Database, intent: Write) -> Written:
    """Run a write to a known end. One round trip; up to three when a reply is lost. Without
    statements it is a read, which nobody wins.

    Raises MissingTable, ConstraintFailed or Refused if it did not run, and Unknown when it
    cannot be known whether it did: nothing more has been written then. StorageUnreadable if a
    read failed.
    """
    if not intent.statements:
        return Written([], await db.read(intent.reads))
    try:
        return await _run(db, intent)
    except errors.Unknown as lost:
        try:
            results = await db.read([*intent.reads, intent.receipt])
        except errors.StorageError:
            raise _unreadable(db, lost) from lost
        if results[-1].rows:
            db.branch = Branch.LANDED
            return Written(results[-1].rows, results[:-1])
        return await _again(db, intent, lost)


async def _run(db: Database, intent: Write) -> Written:
    results = await db.batch([*intent.statements, *intent.reads])
    return Written(results[intent.decides].rows, results[len(intent.statements) :])


async def _again(db: Database, intent: Write, lost: errors.Unknown) -> Written:
    """Issue the same statements once more. A first attempt that lands late is recognised; so
    even a definite failure of the second says nothing about the first.
    """
    statements = [*intent.statements, *intent.reads, intent.receipt]
    try:
        results = await db.batch(statements)
    except errors.StorageError:
        raise _unreadable(db, lost) from lost
    rows = results[intent.decides].rows or results[-1].rows
    written = Written(rows, results[len(intent.statements) : -1])
    again = Branch.REINSERTED if intent.inserts else Branch.REISSUED
    db.branch = again if written.won else Branch.REFUSED
    return written


def _unreadable(db: Database, lost: errors.Unknown) -> errors.Unknown:
    db.branch = Branch.UNREADABLE
    return errors.Unknown(lost.message)


# Whether a write to a run landed: its token is in the row, unless somebody has written since;
# then in the fact or the event that it left behind. ?3: the sequence of its event, if any.
_RUN_RECEIPT = """
SELECT 1 AS landed WHERE EXISTS (
    SELECT 1 FROM fencepost_runs WHERE run_id = ?1 AND write_token = ?2)
  OR EXISTS (SELECT 1 FROM fencepost_ownership WHERE run_id = ?1 AND write_token = ?2)
  OR EXISTS (SELECT 1 FROM fencepost_events
    WHERE run_id = ?1 AND sequence = ?3 AND write_token = ?2)
"""


def run_receipt(run_id: str, token: str, sequence: int | None = None) -> Statement:
    """The receipt of a write to a run."""
    return Statement(_RUN_RECEIPT, (run_id, token, sequence))


_AUDIT_RECEIPT = """
SELECT sequence, after FROM fencepost_audit
WHERE sequence > (SELECT MAX(sequence) - 1000 FROM fencepost_audit) AND write_token = ?1
"""


def audit_receipt(token: str) -> Statement:
    """The receipt of an audited deed, among the last thousand; also reads its `after`."""
    return Statement(_AUDIT_RECEIPT, (token,))
