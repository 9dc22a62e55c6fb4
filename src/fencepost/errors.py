"""The error tree. Each error is a fault or bad input, and knows its HTTP answer.

    FencepostError
    ├── RequestError                      the request itself: 4xx, nothing was written
    │   ├── InvalidRequest                400, 413, 404, 405, 415
    │   ├── IdempotencyKeyError           400
    │   └── AuthError                     401, 403, 503
    ├── Conflict                          409, 422, 403: the request lost against what is stored
    ├── Unavailable                       503: not now; nothing was written
    │   ├── Fenced                        the operator's fence does not admit it
    │   ├── FenceUnreadable               the fence cannot be read, so nothing is admitted
    │   └── RowCorrupt                    a stored row breaks a rule of its table
    └── StorageError                      D1 failed
        ├── MissingTable                  it did not run
        ├── ConstraintFailed              it did not run
        ├── Refused                       it did not run
        └── Unknown                       the reply was lost: it may have committed

Competition lost in a verb on a run (somebody else owns it, its head moved, ...) is a value, a
named outcome; it becomes a `Conflict` only at the HTTP surface.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from fencepost import limits


class Retry(StrEnum):
    """Whether sending again makes sense, and with which key."""

    SAME_KEY = "same-key"  # the same request with the same key, after Retry-After if given
    NEW_KEY = "new-key"  # this key cannot serve this request; another key can
    NEVER = "never"  # this request will not succeed, however often it is sent


class FencepostError(Exception):
    """Base of all errors. `members` become extension members of the problem document."""

    status = 500
    code = "INTERNAL"
    title = "Internal error"
    retry = Retry.SAME_KEY

    def __init__(
        self,
        detail: str,
        *,
        code: str | None = None,
        status: int | None = None,
        title: str | None = None,
        retry: Retry | None = None,
        retry_after_s: int | None = None,
        **members: Any,
    ) -> None:
        super().__init__(detail)
        self.detail = detail
        self.code = code or self.code
        self.status = status or self.status
        self.title = title or self.title
        self.retry = retry or self.retry
        self.retry_after_s = retry_after_s
        self.members = members


class RequestError(FencepostError):
    """The request itself is at fault; nothing was written."""

    status = 400
    retry = Retry.NEVER


class InvalidRequest(RequestError):
    """The path, the query or the body is not what the route takes."""

    code = "INVALID_REQUEST"
    title = "The request is not what this route takes"


class IdempotencyKeyError(RequestError):
    """The `Idempotency-Key` is missing or outside its grammar."""

    code = "IDEMPOTENCY_KEY_INVALID"
    title = "The Idempotency-Key is not valid"
    retry = Retry.NEW_KEY


class AuthError(RequestError):
    """No token, a wrong one, one without the scope, or no tokens configured at all."""

    status = 401
    code = "UNAUTHORIZED"
    title = "A valid bearer token is required"


class NotFound(RequestError):
    """No such thing, or it is another principal's: the two are not told apart."""

    status = 404
    code = "NOT_FOUND"
    title = "Not found"


class Conflict(FencepostError):
    """The request is well formed and lost against what is stored."""

    status = 409
    code = "CONFLICT"
    title = "The request conflicts with what is stored"
    retry = Retry.NEVER


class Unavailable(FencepostError):
    """Not now. Nothing was written by this request."""

    status = 503
    code = "UNAVAILABLE"
    title = "Not available now"

    def __init__(self, detail: str, **options: Any) -> None:
        options.setdefault("retry_after_s", limits.UNAVAILABLE_RETRY_AFTER_S)
        super().__init__(detail, **options)


class Fenced(Unavailable):
    """The deployment's fence does not admit this work in its present state."""

    code = "EXECUTION_FENCED"
    title = "The fence does not admit this work"


class FenceUnreadable(Unavailable):
    """The fence cannot be read, or holds a state unknown to this build: closed."""

    code = "EXECUTION_FENCE_UNREADABLE"
    title = "The fence cannot be read"


class RowCorrupt(Unavailable):
    """A stored row breaks a rule. The rule is named, the row's content never."""

    code = "ROW_CORRUPT"
    title = "A stored row breaks a rule of its table"

    def __init__(self, table: str, rule: str) -> None:
        super().__init__(f"A row of {table} breaks the rule: {rule}.", table=table, rule=rule)


class StorageError(FencepostError):
    """D1 failed. `message` is D1's own and stays out of every answer."""

    status = 503
    code = "STORAGE_REFUSED"
    title = "The database did not take the request"

    def __init__(self, message: str) -> None:
        super().__init__(
            "The database did not execute the request; nothing was written.",
            retry_after_s=limits.UNAVAILABLE_RETRY_AFTER_S,
        )
        self.message = message


class MissingTable(StorageError):
    """A table of the schema does not exist (yet). The batch did not run."""

    def __init__(self, message: str, table: str) -> None:
        super().__init__(message)
        self.table = table


class ConstraintFailed(StorageError):
    """A constraint of the schema was violated. The batch was rolled back."""


class Refused(StorageError):
    """D1 said, in band, that it did not run: overloaded, SQL or type error."""


class Unknown(StorageError):
    """The reply was lost: the batch may have committed, or not."""

    code = "WRITE_OUTCOME_UNKNOWN"
    title = "It is not known whether the write happened"

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.detail = (
            "The database's reply was lost, so the write may or may not have happened. "
            "Sending the same request with the same key is safe."
        )


class StorageUnreadable(StorageError):
    """A read failed. Nothing was written, since nothing was to be."""

    code = "STORAGE_UNREADABLE"
    title = "The database could not be read"

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.detail = "The database could not be read; nothing was written."
