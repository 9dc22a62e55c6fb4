"""What D1's failures mean, by their exact messages. Any other message means Unknown."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from fencepost import errors

_MISSING = re.compile(r"(?:D1_ERROR: )?no such table: (?:main\.)?(\w+)(?:: SQLITE_ERROR)?")
_MISSING_COLUMN = re.compile(
    r"(?:D1_ERROR: )?(?:no such column: [\w.]+|table \w+ has no column named \w+)"
    r"(?: at offset \d+)?(?:: SQLITE_ERROR)?"
)
# The triggers of a seal, and the same said by a SELECT.
_SEALED = re.compile(
    r"(?:D1_ERROR: )?(?:FENCEPOST_SEALED|bad JSON path: 'FENCEPOST_SEALED')"
    r": SQLITE_(?:CONSTRAINT|ERROR)(?: \(extended: \w+\))?"
)
_CONSTRAINT = re.compile(r"(?:D1_ERROR: )?.*: SQLITE_CONSTRAINT(?: \(extended: \w+\))?", re.DOTALL)
# SQL, type and limit errors: D1 says that the statement did not run.
_REFUSED = re.compile(
    r"(?:D1_ERROR: )?.*: SQLITE_(?:ERROR|TOOBIG|AUTH|MISMATCH|RANGE)(?: .*)?"
    r"|D1_(?:TYPE_ERROR|COLUMN_NOTFOUND|EXEC_ERROR).*"
    r"|(?:D1_ERROR: )?D1 DB is overloaded\. Requests queued for too long\."
    r"|(?:D1_ERROR: )?D1 DB is overloaded\. Too many requests queued\."
    r"|(?:D1_ERROR: )?Cannot resolve D1 DB due to transient issue on remote node\.",
    re.DOTALL,
)
_CAUSES_MAX = 8


def classify(messages: Sequence[str]) -> errors.StorageError:
    """The error for a failure, from its message and those of its causes, outermost first.

    Only the root of the chain may report a missing table: further out, such a text may be a
    quotation. Other refusals must stand at both ends of the chain. A failure that is not known to
    be a refusal is Unknown: the batch may have committed.
    """
    message, root = messages[0], messages[-1]
    if missing := _MISSING.fullmatch(root):
        return errors.MissingTable(message, missing[1])
    if _SEALED.fullmatch(message) and _SEALED.fullmatch(root):
        return errors.Sealed(message)
    if _CONSTRAINT.fullmatch(message) and _CONSTRAINT.fullmatch(root):
        return errors.ConstraintFailed(message)
    if _MISSING_COLUMN.fullmatch(message) and _MISSING_COLUMN.fullmatch(root):
        return errors.MissingColumn(message)
    if _REFUSED.fullmatch(message) and _REFUSED.fullmatch(root):
        return errors.Refused(message)
    return errors.Unknown(message)


def messages(failure: BaseException) -> list[str]:
    """The messages of a JavaScript error and its causes, outermost first; cycle-safe.

    Of a chain longer than _CAUSES_MAX the root is not known: the list ends in an empty message.
    """
    found: list[str] = []
    link: Any = failure
    while isinstance(message := getattr(link, "message", None), str):
        if len(found) == _CAUSES_MAX:
            return [*found, ""]
        found.append(message)
        link = getattr(link, "cause", None)
    return found or [str(failure)]
