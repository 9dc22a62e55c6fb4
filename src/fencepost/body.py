"""JSON bodies, taken apart member by member.

What is not known is refused. Errors say which member is wrong and what it should be, never
what it was.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, TypeVar

from fencepost import errors, limits, machines, strictjson
from fencepost.identifiers import is_identifier, is_owner_field, is_well_formed
from fencepost.machines import Move
from fencepost.runs import RunStatus

T = TypeVar("T")


class Body:
    """A JSON object whose members are taken one by one; what is left over is refused."""

    def __init__(self, value: Any, where: str = "The body") -> None:
        if not isinstance(value, dict):
            raise errors.InvalidRequest(f"{where} is not a JSON object.")
        self._members: dict[str, Any] = value
        self._known: set[str] = set()
        self._where = where

    def take(self, name: str, read: Callable[[Any, str], T], default: Any = ...) -> T:
        """The member `name` read by `read`; without a default it is required."""
        self._known.add(name)
        if name not in self._members:
            if default is ...:
                raise errors.InvalidRequest(f"{self._where} lacks the member {name!r}.")
            return default  # type: ignore[no-any-return]
        try:
            return read(self._members[name], name)
        except ValueError as error:
            raise errors.InvalidRequest(str(error)) from None

    def done(self) -> None:
        """Refuse members that nobody took."""
        if unknown := sorted(self._members.keys() - self._known):
            names = ", ".join(repr(name[:40]) for name in unknown[:5])
            raise errors.InvalidRequest(f"{self._where} has unknown members: {names}.")


def parse(data: bytes) -> Body:
    """Raises InvalidRequest for what is not a JSON object in the sense of `strictjson`."""
    try:
        return Body(strictjson.loads(data))
    except ValueError as error:
        raise errors.InvalidRequest(f"{error} Nothing was written.") from None


def integer(low: int, high: int) -> Callable[[Any, str], int]:
    def read(value: Any, name: str) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise ValueError(f"{name!r} is an integer from {low} to {high}.")
        return value

    return read


def boolean(value: Any, name: str) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{name!r} is true or false.")
    return value


def one_of(*choices: str) -> Callable[[Any, str], str]:
    def read(value: Any, name: str) -> str:
        if not isinstance(value, str) or value not in choices:
            raise ValueError(f"{name!r} is one of {', '.join(choices)}.")
        return value

    return read


def identifier(value: Any, name: str) -> str:
    if not isinstance(value, str) or not is_identifier(value):
        raise ValueError(f"{name!r} is 1–200 characters of A–Z a–z 0–9 . _ ~ - (not . or ..).")
    return value


def owner_field(value: Any, name: str) -> str:
    if not isinstance(value, str) or not is_owner_field(value):
        raise ValueError(f"{name!r} is a text of 1–1024 UTF-16 units without NUL.")
    return value


def note(value: Any, name: str) -> str:
    if (
        not isinstance(value, str)
        or not 1 <= len(value.strip()) <= len(value) <= limits.NOTE_CHARS_MAX
        or "\0" in value
        or not is_well_formed(value)
    ):
        raise ValueError(f"{name!r} is a text of 1–{limits.NOTE_CHARS_MAX} characters.")
    return value


def hash_text(value: Any, name: str) -> str:
    if not isinstance(value, str) or not re.fullmatch("[0-9a-f]{64}", value):
        raise ValueError(f"{name!r} is 64 lowercase hexadecimal digits.")
    return value


def stored_json(bytes_max: int) -> Callable[[Any, str], str]:
    """Any JSON value, as the text that is stored."""

    def read(value: Any, name: str) -> str:
        text = strictjson.dumps(value)
        if len(text) * 4 > bytes_max < len(text.encode()):
            raise errors.InvalidRequest(
                f"{name!r} is longer than {bytes_max} bytes. Nothing was written.",
                code="TOO_LARGE",
            )
        return text

    return read


def anything(value: Any, name: str) -> Any:
    return value


def guard(value: Any, name: str) -> Any:
    """The guard of a transition on the request for a cancel."""
    body = Body(value, repr(name))
    requested = body.take("cancel_requested", one_of("absent", "present"))
    body.done()
    return requested


_STATUSES = tuple(status for status in RunStatus if status is not RunStatus.PENDING)


def movement(body: Body) -> tuple[RunStatus, Move | None]:
    """Where a transition leads: `to`, or `machine` (with its `code`), or both.

    A `machine` alone keeps the run running, or ends it in the status that the state stands for.
    """
    state: Any = body.take("machine", one_of(*sorted(machines.STATES)), None)
    code = body.take("code", identifier, None)
    if code is not None and state not in machines.CODED:
        coded = ", ".join(sorted(machines.CODED))
        raise errors.InvalidRequest(f"A 'code' belongs to a 'machine' of {coded}.")
    if state is None:
        return RunStatus(body.take("to", one_of(*_STATUSES))), None
    end = machines.ENDS.get(state)
    to = RunStatus(body.take("to", one_of(*_STATUSES), end or RunStatus.RUNNING))
    if to is RunStatus.COMPLETED and end is None:
        raise errors.InvalidRequest("A run is completed with a 'machine' that has ended.")
    return to, Move(state, code)
