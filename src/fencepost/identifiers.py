"""Grammars of identifiers; Principal and Target, which most modules use."""

from __future__ import annotations

import hashlib
import os
import re
import time
from enum import StrEnum
from typing import NamedTuple

from fencepost import limits

# Path-safe, 1–200 characters, and not `.` or `..`, which URLs resolve away. The patterns are valid
# in JavaScript too, because the API document shows them.
IDENTIFIER_PATTERN = rf"(?!\.{{1,2}}$)[A-Za-z0-9._~-]{{1,{limits.IDENTIFIER_CHARS_MAX}}}"
_IDENTIFIER = re.compile(IDENTIFIER_PATTERN)
# A letter or digit at both ends.
OPERATION_ID_PATTERN = (
    rf"[A-Za-z0-9](?:[A-Za-z0-9._:-]{{0,{limits.OPERATION_ID_CHARS_MAX - 2}}}[A-Za-z0-9])?"
)
_OPERATION_ID = re.compile(OPERATION_ID_PATTERN)
_CONTROL = re.compile("[\x00-\x1f\x7f]")


class PrincipalKind(StrEnum):
    HUMAN = "human"
    SERVICE = "service"
    AGENT = "agent"
    SYSTEM = "system"


class TargetKind(StrEnum):
    WORKFLOW = "workflow"
    AGENT = "agent"


class Principal(NamedTuple):
    """Who sent a request."""

    kind: str
    id: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.id}"


class KeyedRequest(NamedTuple):
    """A request with an `Idempotency-Key`, of one verb on a run (`run_id` is empty for one of the
    deployment). `viewer`: whose runs the sender may see, None for all. `requests` says what it
    does.
    """

    run_id: str
    principal: Principal
    viewer: Principal | None
    key: str
    verb: str
    fingerprint: str


class Deed(NamedTuple):
    """That an operator sends the request, and its verb. A write to another principal's run is
    audited (`audit.of_run`).
    """

    operator: Principal
    verb: str


class Replay(NamedTuple):
    """That a keyed request had its effect before: its outcome then, and the token of its write."""

    outcome: str
    write_token: str


class Target(NamedTuple):
    """What a run executes. An agent has a thread, a workflow has none."""

    kind: str
    id: str
    thread_id: str | None = None

    def as_json(self) -> dict[str, str]:
        """The wire shape; `thread_id` is left out where there is none."""
        shape = {"kind": self.kind, "id": self.id}
        return shape if self.thread_id is None else {**shape, "thread_id": self.thread_id}


def is_identifier(text: str) -> bool:
    """`[A-Za-z0-9._~-]`, 1–200 characters, not `.` or `..`."""
    return _IDENTIFIER.fullmatch(text) is not None


def is_operation_id(text: str) -> bool:
    """`[A-Za-z0-9._:-]`, 1–128 characters, letter or digit at both ends. Case is ignored."""
    return _OPERATION_ID.fullmatch(text) is not None


def is_principal_id(text: str) -> bool:
    """1–200 characters, not blank, no control characters."""
    return (
        0 < len(text) <= limits.IDENTIFIER_CHARS_MAX
        and not text.isspace()
        and not _CONTROL.search(text)
        and is_well_formed(text)
    )


def is_owner_field(text: str) -> bool:
    """1–1024 UTF-16 units, no NUL, no lone surrogate."""
    return (
        text != ""
        and "\0" not in text
        and is_well_formed(text)
        and len(text.encode("utf-16-le")) // 2 <= limits.OWNER_FIELD_UNITS_MAX
    )


def is_well_formed(text: str) -> bool:
    """Whether it has no lone surrogate, which UTF-8 cannot encode."""
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def slot(key: str) -> str:
    """Where a key belongs among 4,096 slots: three hexadecimal digits.

    The first twelve bits of SHA-256 over the placement of the key, which is the part before its
    first `~`, or all of it.
    """
    placement = key.partition("~")[0]
    return hashlib.sha256(placement.encode()).hexdigest()[:3]


def mint_run_id(key: str) -> str:
    """A new run id for a key: `run_`, creation time in ms and 80 random bits (hex), `~`, its slot.

    Ids sort roughly by creation, which keeps pages in order. The time is a hint for sorting
    only: it is this isolate's clock, not the database's. Ids of earlier builds have no slot.
    """
    return f"run_{time.time_ns() // 1_000_000:012x}{os.urandom(10).hex()}~{slot(key)}"


def mint_token() -> str:
    """128 random bits (hex), to name one attempt to write, or one owner."""
    return os.urandom(16).hex()
