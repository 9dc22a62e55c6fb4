"""Writes whose reply may be lost. A lost reply never starts a second execution.

Every mutation goes through `write` (docs/guarantees.md). Each attempt has its own token, which is
stored in the rows that it writes. A batch is sent again only together with a look for that token,
which takes the batch back if the first one has landed by then. When D1's reply is lost:

    found on reading back               branch                      then
    this attempt's token                landed                      the write won
    its token, when it is sent again    landed                      the write won
    another token, or none, and rows
    in which it can only lose           decided                     the write lost
    else the batch is sent once more
      and it wins                       reinserted / reissued       the write won
      and it loses                      refused                     the write lost
    reading back fails, or the
    second attempt fails too            unreadable                  503, nothing more is written

A definite failure (MissingTable, ConstraintFailed, Refused) of the first attempt is raised at
once: nothing was written, and the same request may be sent again.

Not guaranteed: an answer. When reading back fails the caller gets a 503. The same request with
the same key then has the same effect as one whose reply was not lost.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import NamedTuple

from fencepost import errors
from fencepost.storage.d1 import Database, Result
from fencepost.storage.rows import Row
from fencepost.storage.sql import Statement


class Branch(StrEnum):
    """How a write whose reply was lost ended. Shown in the log line and in Server-Timing."""

    LANDED = "landed"
    REISSUED = "reissued"
    REINSERTED = "reinserted"
    REFUSED = "refused"
    DECIDED = "decided"
    UNREADABLE = "unreadable"


class Write(NamedTuple):
    """One batch: first `statements`, then `reads`.

    The statement with index `decides` returns a row if the write won. `receipt` is a SELECT that
    returns a row only if this attempt has committed: it looks for the attempt's token, never for
    an id that a caller chose. `inserts`: the branch is called `reinserted`, not `reissued`.
    `could_win` judges what the reads returned: False if the write, sent again, can only lose.
    """

    statements: Sequence[Statement]
    reads: Sequence[Statement]
    receipt: Statement
    inserts: bool = False
    decides: int = 0
    could_win: Callable[[list[Result]], bool] = lambda reads: True


class Written(NamedTuple):
    """`rows`: what the deciding statement, or else the receipt, returned; a row if the write won.

    `reads`: what the reads of the batch returned after it.
    """

    rows: list[Row]
    reads: list[Result]

    @property
    def won(self) -> bool:
        return bool(self.rows)


async def write(db: Database, intent: Write) -> Written:
    """Run a write until it is known whether it won. One round trip; up to three after a lost reply.

    Without statements it only reads, and `won` is False. Raises MissingTable, ConstraintFailed or
    Refused if it did not run, Unknown if it cannot be known whether it ran, and StorageUnreadable
    if a read without statements failed.
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
        if not intent.could_win(results[:-1]):
            db.branch = Branch.DECIDED
            return Written([], results[:-1])
        return await _again(db, intent, lost)


async def _run(db: Database, intent: Write) -> Written:
    results = await db.batch([*intent.statements, *intent.reads])
    return Written(results[intent.decides].rows, results[len(intent.statements) :])


# An error in a SELECT takes the whole batch back. Its message has the marker.
_MARKER = "FENCEPOST_LANDED"
_UNLESS_LANDED = ("SELECT CASE WHEN EXISTS (", f") THEN json_extract('{{}}', '{_MARKER}') END")


async def _again(db: Database, intent: Write, lost: errors.Unknown) -> Written:
    """Send the same statements once more, unless the first attempt has committed since it was
    looked for: then nothing of the second one happens, and the first has landed.

    Even a definite failure of the second attempt says nothing about the first, so it is Unknown.
    """
    unless_landed = intent.receipt.within(*_UNLESS_LANDED)
    try:
        _, *results = await db.batch([unless_landed, *intent.statements, *intent.reads])
    except errors.StorageError as failure:
        if _MARKER in failure.message:
            return await _landed_late(db, intent, lost)
        raise _unreadable(db, lost) from lost
    written = Written(results[intent.decides].rows, results[len(intent.statements) :])
    again = Branch.REINSERTED if intent.inserts else Branch.REISSUED
    db.branch = again if written.won else Branch.REFUSED
    return written


async def _landed_late(db: Database, intent: Write, lost: errors.Unknown) -> Written:
    try:
        results = await db.read([*intent.reads, intent.receipt])
    except errors.StorageError:
        raise _unreadable(db, lost) from lost
    db.branch = Branch.LANDED
    return Written(results[-1].rows, results[:-1])


def _unreadable(db: Database, lost: errors.Unknown) -> errors.Unknown:
    db.branch = Branch.UNREADABLE
    return errors.Unknown(lost.message)
