"""The error classes. Each error has a problem code (see `problems`).

    FencepostError
    ├── RequestError           the request itself: 4xx, nothing was written
    │   ├── InvalidRequest     path, query or body
    │   ├── IdempotencyKeyError
    │   ├── AuthError
    │   └── NotFound           not there, or another principal's
    ├── Conflict               what is stored does not allow the request; nothing was written
    ├── Unavailable            not now; nothing was written
    │   ├── Fenced             the operator's fence does not admit it
    │   ├── DeploymentMoved    the deployment is sealed: it lives elsewhere
    │   ├── FenceUnreadable    the fence cannot be read, so nothing is admitted
    │   ├── TooManyWaiters     too many requests wait for the end of a run
    │   ├── RowCorrupt         a stored row breaks a rule of its table
    │   └── SchemaMismatch     a stored table is not as this build knows it
    │       ├── SchemaBehind   it is of an earlier shape, or missing
    │       └── ColumnAbsent   a row came without a column that this build reads
    └── StorageError           D1 failed
        ├── MissingTable       it did not run
        ├── ConstraintFailed   it did not run
        ├── Sealed             it did not run: the deployment moves, or has moved
        ├── Refused            it did not run
        │   └── MissingColumn  a table is not as this build knows it
        ├── StorageUnreadable  a read failed
        └── Unknown            the reply was lost: it may have committed

A verb on a run that is refused (another process owns the run, its history has a later event, ...)
raises nothing. It returns a value, the outcome; `http/outcomes.py` makes a `Conflict` of it.
"""

from __future__ import annotations

from typing import Any, ClassVar

from fencepost import limits
from fencepost.problems import PROBLEMS, Problem


class FencepostError(Exception):
    """Base of all errors. `members` become extension members of the problem document."""

    CODE: ClassVar = "INTERNAL"

    def __init__(
        self,
        detail: str,
        *,
        code: str | None = None,
        retry_after_s: int | None = None,
        **members: Any,
    ) -> None:
        super().__init__(detail)
        self.detail = detail
        self.code = code or self.CODE
        self.retry_after_s = retry_after_s
        self.members = members

    @property
    def problem(self) -> Problem:
        return PROBLEMS[self.code]


class RequestError(FencepostError):
    """The request itself is at fault; nothing was written."""

    CODE = "INVALID_REQUEST"


class InvalidRequest(RequestError):
    """The path, the query or the body is not what the route takes."""


class IdempotencyKeyError(RequestError):
    """The `Idempotency-Key` is missing or outside its grammar."""

    CODE = "IDEMPOTENCY_KEY_INVALID"


class AuthError(RequestError):
    """No token, a wrong one, one without the scope, or no tokens configured at all.

    `challenge`: the value of `WWW-Authenticate` (RFC 6750).
    """

    CODE = "UNAUTHORIZED"

    def __init__(self, detail: str, *, challenge: str = "Bearer", code: str | None = None) -> None:
        super().__init__(detail, code=code)
        self.challenge = challenge


class NotFound(RequestError):
    """It does not exist, or it is another principal's: the answer is the same for both."""

    CODE = "NOT_FOUND"


class Conflict(FencepostError):
    """The request is well formed, and what is stored does not allow it. Always has a code."""


class Unavailable(FencepostError):
    """Not possible now. This request wrote nothing."""

    CODE = "CONTENDED"

    def __init__(self, detail: str, **options: Any) -> None:
        options.setdefault("retry_after_s", limits.UNAVAILABLE_RETRY_AFTER_S)
        super().__init__(detail, **options)


class TooManyWaiters(Unavailable):
    """This isolate holds as many waiting requests as it may."""

    CODE = "TOO_MANY_WAITERS"


class Fenced(Unavailable):
    """The deployment's fence, in its present state, does not admit this work."""

    CODE = "EXECUTION_FENCED"


class DeploymentMoved(Unavailable):
    """The deployment is sealed. `moved_to`: where it lives now, if that is known."""

    CODE = "DEPLOYMENT_MOVED"

    def __init__(self, moved_to: str | None) -> None:
        super().__init__(
            "This deployment is sealed: it has moved, or is being moved. Nothing was written. Send "
            "the same request with the same key to `moved_to`.",
            moved_to=moved_to,
        )


class FenceUnreadable(Unavailable):
    """The fence cannot be read, or has a state unknown to this build. Nothing is admitted."""

    CODE = "EXECUTION_FENCE_UNREADABLE"


class RowCorrupt(Unavailable):
    """A stored row breaks a rule. The error names the rule, never the row's content."""

    CODE = "ROW_CORRUPT"

    def __init__(self, table: str, rule: str) -> None:
        super().__init__(f"A row of {table} breaks the rule: {rule}.", table=table, rule=rule)


class SchemaMismatch(Unavailable):
    """A table is not as this build knows it. The error names table and column, never SQL."""

    CODE = "SCHEMA_MISMATCH"
    ADVICE: ClassVar = "Nothing was written. It is not repaired; an operator must look."

    def __init__(self, table: str, column: str | None, difference: str) -> None:
        where = table if column is None else f"{table}.{column}"
        detail = f"The database differs at {where} ({difference}). "
        members = {"table": table, "column": column, "difference": difference}
        super().__init__(detail + self.ADVICE, **members)


class SchemaBehind(SchemaMismatch):
    """A table is of a known earlier shape, or missing."""

    ADVICE = (
        "Nothing was written. The next start or fence transition brings it forward: while the "
        "fence admits no start, a transition to the state that it has."
    )


class ColumnAbsent(SchemaMismatch):
    """A row came without a column that this build reads. The batch may have written."""

    ADVICE = "It is not repaired; an operator must look."


class StorageError(FencepostError):
    """D1 failed. `message` is D1's own text, which no answer shows."""

    CODE = "STORAGE_REFUSED"
    DETAIL: ClassVar = "The database did not execute the request; nothing was written."

    def __init__(self, message: str) -> None:
        super().__init__(self.DETAIL, retry_after_s=limits.UNAVAILABLE_RETRY_AFTER_S)
        self.message = message


class MissingTable(StorageError):
    """A table of the schema does not exist (yet). The batch did not run."""

    def __init__(self, message: str, table: str) -> None:
        super().__init__(message)
        self.table = table


class ConstraintFailed(StorageError):
    """A constraint of the schema was violated. The batch was rolled back."""


class Sealed(StorageError):
    """The tables take no writes: the deployment moves, or has moved. The batch did not run."""


class Refused(StorageError):
    """D1 answered that the batch did not run: overloaded, SQL error or type error."""


class MissingColumn(Refused):
    """A statement names a column that the stored table does not have. It did not run."""


class Unknown(StorageError):
    """The reply was lost: the batch may have committed, or not."""

    CODE = "WRITE_OUTCOME_UNKNOWN"
    DETAIL = (
        "The database's reply was lost, so the write may or may not have happened. "
        "Sending the same request with the same key is safe."
    )


class StorageUnreadable(StorageError):
    """A read failed. It wrote nothing."""

    CODE = "STORAGE_UNREADABLE"
    DETAIL = "The database could not be read; nothing was written."


# After these a start and a fence transition bring the schema forward, and try again.
NOT_READY = (MissingTable, MissingColumn, SchemaBehind)
