"""Reads JSON bodies and queries. The API document shows the same declarations.

A `Parser` reads one value and has its JSON Schema. A `Form` reads an object, member by member, and
refuses unknown members. Errors say which member is wrong and what it must be, never the value that
was sent. `values` has the parsers that several routes use.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

from fencepost import errors
from fencepost.http import strictjson

T = TypeVar("T")
Schema = Mapping[str, Any]


@dataclass(frozen=True, slots=True, eq=False)
class Parser(Generic[T]):
    """How a value is read, and its JSON Schema.

    Inside `schema`, a Form or Parser means its own schema. `read` takes the value and its name for
    error messages; it raises ValueError with a sentence. With a `name`, the document has the
    schema once, under that name. `takes_null`: null is a value of its own.
    """

    read: Callable[[Any, str], T]
    schema: Schema
    name: str = ""
    takes_null: bool = False


class Member(NamedTuple):
    """A member of a form, required unless it has a default. `about` is for the document.

    If it is not required, null means that it is absent, unless its parser takes null.
    """

    parser: Parser[Any] | Form[Any]
    default: Any = ...
    about: str = ""

    @property
    def null_is_absent(self) -> bool:
        takes_null = isinstance(self.parser, Parser) and self.parser.takes_null
        return self.default is not ... and not takes_null


class Form(Generic[T]):
    """An object with known members, and the value that is made of them.

    `make` takes the members by name. A ValueError from it is shown to the client. `rules` are more
    keywords of the schema: the conditions of `make` on several members at once.
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
            (name, member.parser.read, member.default, member.null_is_absent)
            for name, member in members.items()
        ]

    def read(self, value: Any, name: str) -> T:
        """The value of an object. Raises InvalidRequest."""
        if not isinstance(value, dict):
            raise errors.InvalidRequest(f"{_where(name)} is not a JSON object.")
        taken = self.take(value, name)
        if not value.keys() <= taken.keys():
            raise errors.InvalidRequest(_unknown(value.keys() - taken.keys(), name))
        return self._made(taken)

    def take(self, members: Mapping[str, Any], name: str) -> dict[str, Any]:
        """The known members, each read by its parser. Raises InvalidRequest."""
        taken = {}
        try:
            for member, read, default, null_is_absent in self._plan:
                if member in members and not (null_is_absent and members[member] is None):
                    taken[member] = read(members[member], member)
                elif default is ...:
                    raise errors.InvalidRequest(f"{_where(name)} lacks the member {member!r}.")
                else:
                    taken[member] = default
        except ValueError as error:
            raise errors.InvalidRequest(str(error)) from None
        return taken

    def query(self, query: Mapping[str, str]) -> T:
        """The value of a query. Unknown parameters are ignored. Raises InvalidRequest."""
        return self._made(self.take(query, ""))

    def _made(self, taken: dict[str, Any]) -> T:
        try:
            return self.make(**taken)
        except ValueError as error:
            raise errors.InvalidRequest(str(error)) from None


def loads(data: bytes) -> Any:
    """The JSON value of a body. Raises InvalidRequest for what `strictjson` refuses."""
    try:
        return strictjson.loads(data)
    except ValueError as error:
        raise errors.InvalidRequest(f"{error} Nothing was written.") from None


def _where(name: str) -> str:
    return repr(name) if name else "The body"


def _unknown(members: Iterable[str], name: str) -> str:
    names = ", ".join(repr(member[:40]) for member in sorted(members)[:5])
    return f"{_where(name)} has unknown members: {names}."
