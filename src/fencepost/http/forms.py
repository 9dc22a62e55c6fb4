"""JSON bodies: each is read by the declaration that the API document shows.

A `Parser` reads one value and knows its JSON Schema; a `Form` is a parser of objects, member by
member. What is not known is refused. Errors say which member is wrong and what it should be,
never what it was.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

from fencepost import errors, limits
from fencepost.http import strictjson
from fencepost.identifiers import IDENTIFIER_PATTERN, is_identifier, is_owner_field, is_well_formed

T = TypeVar("T")
Schema = Mapping[str, Any]


@dataclass(frozen=True, slots=True, eq=False)
class Parser(Generic[T]):
    """How a value is read, and its JSON Schema, in which a Form or a Parser stands for its own.

    `read` takes the value and the name to complain about; it raises ValueError with a sentence.
    What has a `name` the document describes once, under that name.
    """

    read: Callable[[Any, str], T]
    schema: Schema
    name: str = ""


class Member(NamedTuple):
    """A member of a form. Without a default it is required; `about` is for the document."""

    parser: Parser[Any] | Form[Any]
    default: Any = ...
    about: str = ""


class Form(Generic[T]):
    """An object with known members, and what is made of them.

    `make` takes the members by name; its ValueErrors are complaints, too. `rules` are further
    keywords of its schema: what `make` demands of several members at once.
    """

    def __init__(
        self,
        name: str,
        make: Callable[..., T],
        members: Mapping[str, Member],
        rules: Schema | None = None,
        about: str = "",
    ) -> None:
        self.name = name
        self.members = members
        self.rules = rules or {}
        self.about = about
        self.make = make
        self._plan = [
            (name, parser.read, default) for name, (parser, default, _) in members.items()
        ]

    def read(self, value: Any, name: str) -> T:
        """What the object says. Raises InvalidRequest."""
        if not isinstance(value, dict):
            raise errors.InvalidRequest(f"{_where(name)} is not a JSON object.")
        taken = self.take(value, name)
        if not value.keys() <= taken.keys():
            raise errors.InvalidRequest(_unknown(value.keys() - taken.keys(), name))
        return self._made(taken)

    def take(self, members: Mapping[str, Any], name: str) -> dict[str, Any]:
        """The known members, read. Raises InvalidRequest."""
        taken = {}
        try:
            for member, read, default in self._plan:
                if member in members:
                    taken[member] = read(members[member], member)
                elif default is ...:
                    raise errors.InvalidRequest(f"{_where(name)} lacks the member {member!r}.")
                else:
                    taken[member] = default
        except ValueError as error:
            raise errors.InvalidRequest(str(error)) from None
        return taken

    def parse(self, data: bytes) -> T:
        """A body. Raises InvalidRequest, also for what is no JSON in the sense of `strictjson`."""
        try:
            value = strictjson.loads(data)
        except ValueError as error:
            raise errors.InvalidRequest(f"{error} Nothing was written.") from None
        return self.read(value, "")

    def query(self, query: Mapping[str, str]) -> T:
        """A query string, in which unknown parameters are ignored. Raises InvalidRequest."""
        return self._made(self.take(query, ""))

    def _made(self, taken: dict[str, Any]) -> T:
        try:
            return self.make(**taken)
        except ValueError as error:
            raise errors.InvalidRequest(str(error)) from None


def _where(name: str) -> str:
    return repr(name) if name else "The body"


def _unknown(members: Iterable[str], name: str) -> str:
    names = ", ".join(repr(member[:40]) for member in sorted(members)[:5])
    return f"{_where(name)} has unknown members: {names}."


# --- Values ------------------------------------------------------------------------------


def integer(low: int, high: int) -> Parser[int]:
    def read(value: Any, name: str) -> int:
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


def _note(value: Any, name: str) -> str:
    if (
        not isinstance(value, str)
        or not 1 <= len(value.strip()) <= len(value) <= limits.NOTE_CHARS_MAX
        or "\0" in value
        or not is_well_formed(value)
    ):
        raise ValueError(f"{name!r} is a text of 1–{limits.NOTE_CHARS_MAX} characters.")
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
        "pattern": r"^[^\x00]*[^\s\x00][^\x00]*$",
        "description": "A text that is not blank, without NUL.",
    },
)
HASH = Parser(_hash_text, {"type": "string", "pattern": "^[0-9a-f]{64}$"})
POSITIVE = integer(1, limits.INTEGER_MAX)
COUNT = integer(0, limits.INTEGER_MAX)
LEASE_MS = integer(limits.LEASE_MS_MIN, limits.LEASE_MS_MAX)


# Any JSON value that strictjson takes; the integers are the point.
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
)


def stored_json(bytes_max: int) -> Parser[str]:
    """Any JSON value, as the text that is stored."""

    def read(value: Any, name: str) -> str:
        text = strictjson.dumps(value)
        if len(text) * 4 > bytes_max < len(text.encode()):
            raise too_large(name, bytes_max)
        return text

    about = f"At most {bytes_max} bytes of compact JSON."
    return Parser(read, {"$ref": ANYTHING, "description": about})


def too_large(name: str, bytes_max: int) -> errors.InvalidRequest:
    return errors.InvalidRequest(
        f"{name!r} is longer than {bytes_max} bytes. Nothing was written.", code="TOO_LARGE"
    )
