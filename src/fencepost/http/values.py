"""The values that several routes take, each with its parser and its JSON Schema."""

from __future__ import annotations

import re
from typing import Any

from fencepost import errors, limits
from fencepost.http import strictjson
from fencepost.http.forms import Form, Member, Parser
from fencepost.identifiers import (
    IDENTIFIER_PATTERN,
    OPERATION_ID_PATTERN,
    Principal,
    PrincipalKind,
    Target,
    TargetKind,
    is_identifier,
    is_owner_field,
    is_principal_id,
    is_well_formed,
)
from fencepost.journal import Head
from fencepost.runs import Lineage, Owner


def integer(low: int, high: int) -> Parser[int]:
    def read(value: Any, name: str) -> int:
        if isinstance(value, float) and value.is_integer():  # 5000.0 is an integer (JSON Schema)
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise ValueError(f"{name!r} is an integer from {low} to {high}.")
        return value

    return Parser(read, {"type": "integer", "minimum": low, "maximum": high})


def one_of(*choices: str) -> Parser[str]:
    def read(value: Any, name: str) -> str:
        if not isinstance(value, str) or value not in choices:
            raise ValueError(f"{name!r} is one of {', '.join(choices)}.")
        return value

    return Parser(read, {"type": "string", "enum": [str(choice) for choice in choices]})


def _boolean(value: Any, name: str) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"{name!r} is true or false.")
    return value


def _identifier(value: Any, name: str) -> str:
    if not isinstance(value, str) or not is_identifier(value):
        raise ValueError(f"{name!r} is 1–200 characters of A–Z a–z 0–9 . _ ~ - (not . or ..).")
    return value


def _owner_field(value: Any, name: str) -> str:
    if not isinstance(value, str) or not is_owner_field(value):
        raise ValueError(f"{name!r} is a text of 1–1024 UTF-16 units without NUL.")
    return value


# One line that is not blank, without characters that hide or reorder others.
_HIDDEN = r"\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff"
_NOTE_PATTERN = rf"[^{_HIDDEN}]*[^\s{_HIDDEN}][^{_HIDDEN}]*"


def _note(value: Any, name: str) -> str:
    if (
        not isinstance(value, str)
        or not 1 <= len(value) <= limits.NOTE_CHARS_MAX
        or not re.fullmatch(_NOTE_PATTERN, value)
        or not is_well_formed(value)
    ):
        raise ValueError(
            f"{name!r} is one line of 1–{limits.NOTE_CHARS_MAX} characters, not blank, without "
            "control and direction characters."
        )
    return value


def _hash_text(value: Any, name: str) -> str:
    if not isinstance(value, str) or not re.fullmatch("[0-9a-f]{64}", value):
        raise ValueError(f"{name!r} is 64 lowercase hexadecimal digits.")
    return value


def _anything(value: Any, name: str) -> Any:
    return value


BOOLEAN = Parser(_boolean, {"type": "boolean"})
IDENTIFIER = Parser(_identifier, {"type": "string", "pattern": f"^{IDENTIFIER_PATTERN}$"})
OWNER_FIELD = Parser(
    _owner_field,
    {
        "type": "string",
        "minLength": 1,
        "maxLength": limits.OWNER_FIELD_UNITS_MAX,
        "pattern": r"^[^\x00]*$",
        "description": f"1–{limits.OWNER_FIELD_UNITS_MAX} UTF-16 units without NUL.",
    },
)
NOTE = Parser(
    _note,
    {
        "type": "string",
        "minLength": 1,
        "maxLength": limits.NOTE_CHARS_MAX,
        "pattern": f"^{_NOTE_PATTERN}$",
        "description": "One line that is not blank, without control and direction characters.",
    },
)
OPERATION_ID: Parser[str] = Parser(
    lambda value, name: str(value), {"type": "string", "pattern": f"^{OPERATION_ID_PATTERN}$"}
)


def _seen(value: Any, name: str) -> str:
    if not isinstance(value, str) or not re.fullmatch("[A-Za-z0-9_-]{43}", value):
        raise ValueError(f"{name!r} is one that the start gave out.")
    return value


SEEN = Parser(_seen, {"type": "string", "pattern": "^[A-Za-z0-9_-]{43}$"})
HASH = Parser(_hash_text, {"type": "string", "pattern": "^[0-9a-f]{64}$"})


def _token(value: Any, name: str) -> str:
    if not isinstance(value, str) or not re.fullmatch("[0-9a-f]{32}", value):
        raise ValueError(f"{name!r} is 32 lowercase hexadecimal digits.")
    return value


TOKEN = Parser(_token, {"type": "string", "pattern": "^[0-9a-f]{32}$"})
POSITIVE = integer(1, limits.INTEGER_MAX)
COUNT = integer(0, limits.INTEGER_MAX)
LEASE_MS = integer(limits.LEASE_MS_MIN, limits.LEASE_MS_MAX)


# Any JSON value that strictjson takes. Its schema limits integers to ±(2^53−1).
_JSON = {"$ref": "#/components/schemas/Json"}
ANYTHING = Parser(
    _anything,
    {
        "anyOf": [
            {"type": ["null", "boolean", "string"]},
            {"type": "number", "minimum": -limits.INTEGER_MAX, "maximum": limits.INTEGER_MAX},
            {"type": "array", "items": _JSON},
            {"type": "object", "additionalProperties": _JSON},
        ],
        "description": (
            "Any JSON value without integers beyond ±(2^53−1), duplicate members and lone "
            "surrogates. Numbers with a fraction or an exponent may be as large as a double is."
        ),
    },
    "Json",
    takes_null=True,
)


def stored_json(bytes_max: int) -> Parser[str]:
    """A parser of any JSON value, which gives the text that is stored."""

    def read(value: Any, name: str) -> str:
        text = strictjson.dumps(value)
        if len(text) * 4 > bytes_max < len(text.encode()):
            raise too_large(name, bytes_max)
        return text

    about = f"At most {bytes_max} bytes of compact JSON."
    return Parser(read, {"$ref": ANYTHING, "description": about}, takes_null=True)


def too_large(name: str, bytes_max: int) -> errors.InvalidRequest:
    return errors.InvalidRequest(
        f"{name!r} is longer than {bytes_max} bytes. Nothing was written.", code="TOO_LARGE"
    )


# --- Nouns -------------------------------------------------------------------------------

OWNER = Form(
    "Owner",
    Owner,
    {"host_id": Member(OWNER_FIELD), "pid": Member(COUNT), "nonce": Member(OWNER_FIELD)},
    about="The process that executes a run. Its nonce identifies this process, or this attempt.",
)


def _target(kind: str, id: str, thread_id: str | None) -> Target:
    if (kind == TargetKind.AGENT) != (thread_id is not None):
        raise ValueError("A target of kind agent has a 'thread_id', a workflow has none.")
    return Target(kind, id, thread_id)


TARGET = Form(
    "Target",
    _target,
    {
        "kind": Member(one_of(*TargetKind)),
        "id": Member(IDENTIFIER),
        "thread_id": Member(IDENTIFIER, None),
    },
    {
        "anyOf": [
            {"properties": {"kind": {"const": "agent"}}, "required": ["thread_id"]},
            {"properties": {"kind": {"const": "workflow"}, "thread_id": False}},
        ]
    },
    "What a run executes. An agent has a thread, a workflow has none.",
)

LINEAGE = Form(
    "Lineage",
    Lineage,
    {"id": Member(IDENTIFIER), "round": Member(COUNT)},
    about="The rounds of one logical run.",
)

_CHANGE = "[a-z0-9](?:[a-z0-9-]{0,126}[a-z0-9])?"


def _change(value: Any, name: str) -> str:
    """A change, a stage or a provisional name."""
    if not isinstance(value, str) or not re.fullmatch(_CHANGE, value):
        raise ValueError(f"{name!r} is 1–128 of a–z 0–9 and, inside, hyphens.")
    return value


_PRINCIPAL_ID = {"type": "string", "minLength": 1, "maxLength": limits.IDENTIFIER_CHARS_MAX}


def _principal_id(value: Any, name: str) -> str:
    if not isinstance(value, str) or not is_principal_id(value):
        raise ValueError(
            f"{name!r} is 1–{limits.IDENTIFIER_CHARS_MAX} characters, not blank, without control "
            "characters."
        )
    return value


CHANGE = Parser(_change, {"type": "string", "pattern": f"^{_CHANGE}$"})


def _head(sequence: int, hash: str, receipt: str | None) -> Head:
    return Head(sequence, hash)


HEAD = Form(
    "Head",
    _head,
    {
        "sequence": Member(integer(1, limits.INTEGER_MAX - 1)),
        "hash": Member(HASH),
        "receipt": Member(
            HASH, None, "What proves later that the history ended here, if it is given out."
        ),
    },
    about="The last event of a run's history.",
)

PRINCIPAL = Form(
    "Principal",
    Principal,
    {"kind": Member(one_of(*PrincipalKind)), "id": Member(Parser(_principal_id, _PRINCIPAL_ID))},
    about="Who sends a request, as its token says.",
)

# --- Members of many bodies --------------------------------------------------------------

BY_OWNER = Member(OWNER)
GENERATION = Member(POSITIVE, None, "The caller's generation; given, the run must still be in it.")
CLAIMED_AT_MS = Member(COUNT, None, "When the claim was made; given, it must be that very claim.")
EXPECTED_HEAD = Member(HEAD, None, "Where the run's history must end, or the request loses.")
HEAD_HINT = Member(
    HEAD, None, "Where the history ended when the caller last saw it. Saves a read; never loses."
)
RESULT = Member(stored_json(limits.RESULT_BYTES_MAX), None)
