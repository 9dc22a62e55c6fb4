"""Reads headers and query parameters into values."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

from fencepost import errors, limits
from fencepost.http.exchange import Header
from fencepost.http.forms import Form, Member, Parser
from fencepost.identifiers import IDENTIFIER_PATTERN, is_identifier, is_well_formed

T = TypeVar("T")

# --- Headers -----------------------------------------------------------------------------


def idempotency_key(header: str | None) -> str:
    """The key in an `Idempotency-Key` header: an RFC 8941 String, or the bare key.

    Raises IdempotencyKeyError: IDEMPOTENCY_KEY_MISSING without a header, IDEMPOTENCY_KEY_INVALID
    for two headers (they arrive joined by a comma) and for a text outside the grammar.
    """
    if header is None:
        raise errors.IdempotencyKeyError(
            "Send an Idempotency-Key header that names this one start. Nothing was written.",
            code="IDEMPOTENCY_KEY_MISSING",
        )
    key = _structured_string(header) if header.startswith('"') else header.strip(" \t")
    if key is None or not is_identifier(key):
        raise errors.IdempotencyKeyError(
            "An Idempotency-Key is one key of 1–200 characters of A–Z a–z 0–9 . _ ~ -, bare or "
            'in double quotes, and not "." or "..". Nothing was written.'
        )
    return key


def _structured_string(header: str) -> str | None:
    import http_sf

    try:
        item: Any = http_sf.parse(header.encode(), tltype="item")
    except (http_sf.StructuredFieldError, UnicodeEncodeError):
        return None
    value, parameters = item
    return value if isinstance(value, str) and not parameters else None


_PLAIN = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_WORD = rf'(?:{_PLAIN}|"(?:[^"\\]|\\.)*")'
_PREFERENCE = re.compile(
    rf"[ \t]*(?:({_PLAIN})(?:[ \t]*=[ \t]*({_WORD})?)?"
    rf"(?:[ \t]*;[ \t]*(?:{_PLAIN}(?:[ \t]*=[ \t]*{_WORD}?)?)?)*)?[ \t]*(?:,|\Z)"
)


def preferred_wait_s(header: str | None) -> int:
    """Seconds of the first `wait` in a `Prefer` header (RFC 7240), at most 30.

    0 without one, and for one that is no number; what comes behind a malformed preference is not
    read.
    """
    text, at = header or "", 0
    while at < len(text) and (found := _PREFERENCE.match(text, at)):
        name, value = found[1], found[2] or ""
        if name is not None and name.lower() == "wait":
            digits = value.strip('"')
            if not re.fullmatch("[0-9]+", digits):
                return 0
            return limits.WAIT_S_MAX if len(digits) > 9 else min(int(digits), limits.WAIT_S_MAX)
        at = found.end()
    return 0


_QUOTED = IDENTIFIER_PATTERN.replace("$", '"', 1)
_KEY_SCHEMA = {"type": "string", "pattern": f'^(?:{IDENTIFIER_PATTERN}|"{_QUOTED}")$'}
IDEMPOTENCY_KEY = Header(
    "Idempotency-Key", idempotency_key, _KEY_SCHEMA, True, "Names this one start."
)
REQUEST_KEY = Header(
    "Idempotency-Key",
    lambda header: None if header is None else idempotency_key(header),
    _KEY_SCHEMA,
    False,
    "Names this request, of this principal on this run (or on the deployment): it has one effect, "
    "however often it is sent, and a retry is answered as the first one was.",
)
_TRACEPARENT = re.compile(
    r"(?!ff)[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}"
)


def traceparent(header: str | None) -> str | None:
    """The trace context of a request (W3C Trace Context, version 00). None for any other text."""
    return header if header and _TRACEPARENT.fullmatch(header) else None


TRACEPARENT = Header(
    "traceparent",
    traceparent,
    {"type": "string"},
    False,
    "The trace context (W3C). The run keeps that of its start; one that is not valid is ignored.",
)
PREFER_WAIT = Header(
    "Prefer",
    preferred_wait_s,
    {"type": "string"},
    False,
    f"`wait=N` (RFC 7240) waits for the end of a run that is being executed, N seconds, at most "
    f"{limits.WAIT_S_MAX}. Other preferences are ignored.",
)

# --- Queries -----------------------------------------------------------------------------


def query_integer(low: int, high: int) -> Parser[int]:
    """A parser of an integer query parameter. A value above `high` is read as `high`."""

    def read(text: str, name: str) -> int:
        if not re.fullmatch(r"[0-9]{1,4}", text) or int(text) < low:
            raise ValueError(f"Query parameter {name} is an integer from {low} to {high}.")
        return min(int(text), high)

    about = f"More than {high} is taken as {high}."
    schema = {"type": "integer", "minimum": low, "maximum": 9999, "description": about}
    return Parser(read, schema)


# How one of the strings in a cursor is read. Raises ValueError.
Key = Callable[[str], Any]


def _position(text: str) -> int:
    """A sequence number; −1 is the position before the first."""
    if not re.fullmatch(r"-1|[0-9]{1,16}", text) or int(text) > limits.INTEGER_MAX:
        raise ValueError
    return int(text)


def _is_text(key: Any) -> bool:
    return isinstance(key, str) and "\0" not in key and is_well_formed(key)


POSITION: Key = _position
# Without NUL and lone surrogates, which no stored text has.
TEXT: Key = str


def cursor_text(keys: tuple[str, ...] | None) -> str | None:
    """The text of a cursor, as `cursor` reads it: base64url of a JSON array."""
    if keys is None:
        return None
    array = json.dumps(keys, ensure_ascii=False, separators=(",", ":"))
    return base64.urlsafe_b64encode(array.encode()).decode().rstrip("=")


def _keys_of(text: str) -> list[str]:
    """The strings in a cursor. Raises ValueError for any other text."""
    if len(text) > limits.CURSOR_CHARS_MAX or not re.fullmatch(_CURSOR, text):
        raise ValueError
    found = json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
    if not isinstance(found, list) or not all(map(_is_text, found)):
        raise ValueError
    return found


_CURSOR = "[A-Za-z0-9_-]*"


def is_cursor_text(value: Any, name: str) -> str:
    """Reads a cursor that is not looked at. Raises ValueError."""
    if not isinstance(value, str) or not re.fullmatch(_CURSOR, value):
        raise ValueError(f"{name!r} is a cursor.")
    return value


def cursor(*shapes: tuple[Key, ...]) -> Parser[tuple[Any, ...] | None]:
    """A parser of cursors that hold strings in one of these shapes."""
    keys_of = {len(shape): shape for shape in shapes}

    def read(text: str, name: str) -> tuple[Any, ...] | None:
        if not text:
            return None
        try:
            found = _keys_of(text)
            return tuple(key(part) for key, part in zip(keys_of[len(found)], found, strict=True))
        except (ValueError, KeyError, RecursionError):
            refusal = f"Query parameter {name} is not one that a list gave out."
            raise ValueError(refusal) from None

    return Parser(
        read,
        {
            "type": "string",
            "maxLength": limits.CURSOR_CHARS_MAX,
            "pattern": f"^{_CURSOR}$",
            "description": "The cursor of the page before, as it is.",
        },
    )


NO_QUERY: Form[None] = Form("", lambda: None, {})


class Page(NamedTuple):
    """A page of a list: at most `limit` items, after the position in `cursor`, if any."""

    limit: int
    cursor: Any


class AnyPage(Protocol):
    """A `Page`, or a value that has more members than it."""

    @property
    def limit(self) -> int: ...


def next_cursor(
    page: AnyPage, found: Sequence[T], keys: Callable[[T], tuple[str, ...]]
) -> str | None:
    """The cursor of the next page; None if `found` is the last page, as it is not full."""
    return cursor_text(keys(found[-1])) if len(found) == page.limit else None


LIMIT = Member(
    query_integer(1, limits.PAGE_ITEMS_MAX), limits.PAGE_ITEMS_DEFAULT, "Items a page may hold."
)


def page(*shapes: tuple[Key, ...]) -> Form[Page]:
    """The form of a list's query. Its cursors have one of these shapes."""
    return Form("", Page, {"limit": LIMIT, "cursor": Member(cursor(*shapes), None)})


AFTER_SEQUENCE = page((POSITION,))
