"""Reads JSON strictly: it refuses what two parsers could read differently.

I-JSON (RFC 7493): no duplicate members, no lone surrogates, no integers beyond ±(2^53−1). Also no
NaN or Infinity, no number that a double cannot hold without losing digits; and depth and number of
values are limited.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any

from fencepost import limits

# A string, also one without an end. It matches in every case, so the search never backtracks.
_STRINGS = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*\\?(?:"|\Z)', re.DOTALL)
_EMPTY = re.compile(r"\[\s*\]|\{\s*\}")
_SURROGATE_ESCAPE = re.compile(r"\\u[dD][89abAB]|\\u[dD][c-fC-F]")


# A value in the body may have as many levels as the limit says; the body itself is one more.
_LEVELS_MAX = limits.JSON_DEPTH_MAX + 1


def loads(data: bytes) -> Any:
    """The value of a JSON text. Raises ValueError; its message is shown to the client."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise ValueError("The body is not UTF-8.") from None
    if text.startswith("\ufeff"):
        raise ValueError("The body begins with a byte order mark (BOM); send it without one.")
    _check_shape(text)
    try:
        value = _decode(text)
    except json.JSONDecodeError as error:
        raise ValueError(f"The body is not JSON: {error.msg} at character {error.pos}.") from None
    if _SURROGATE_ESCAPE.search(text):
        _check_surrogates(value)
    return value


def dumps(value: Any) -> str:
    """Compact JSON text of a value that `loads` returned. Non-ASCII characters stay."""
    return _encode(value)


def _check_shape(text: str) -> None:
    """Check depth and number of values before parsing, which could use too much memory."""
    opened = text.count("[") + text.count("{")
    if opened + text.count(",") < limits.JSON_VALUES_MAX and opened <= _LEVELS_MAX:
        return
    bare = _STRINGS.sub("0", text)
    depth = 0
    for character in bare:
        if character in "[{":
            depth += 1
            if depth > _LEVELS_MAX:
                raise ValueError(f"The body nests deeper than {_LEVELS_MAX} levels.")
        elif character in "]}":
            depth -= 1
    # The root, one for each comma, and one for each container that is not empty.
    filled = bare.count("[") + bare.count("{") - len(_EMPTY.findall(bare))
    if 1 + bare.count(",") + filled > limits.JSON_VALUES_MAX:
        raise ValueError(f"The body holds more than {limits.JSON_VALUES_MAX} values.")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("The body has an object with a member twice.")
    return members


def _constant(word: str) -> Any:
    raise ValueError(f"{word} is not JSON.")


def _integer(digits: str) -> int:
    # 17 characters hold every integer in range. int() of a very long text is slow, or fails.
    value = int(digits) if len(digits) <= 17 else limits.INTEGER_MAX + 1
    if abs(value) > limits.INTEGER_MAX:
        raise ValueError("The body has an integer beyond ±(2^53−1); send it as a string.")
    return value


def _float(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise ValueError("The body has a number that no double can hold.")
    if repr(value) != digits and _significant(digits) != _significant(_printed(value, digits)):
        raise ValueError(
            "The body has a number of which a double would lose digits; send it as a string."
        )
    return value


def _printed(value: float, digits: str) -> str:
    """The double with as many significant digits as were written; 17 tell all doubles apart."""
    written = len(_significant(digits, trailing=True)[0])
    return f"{value:.{min(max(written, 1), 17) - 1}e}"


_NUMBER = re.compile(r"-?(\d+)(?:\.(\d+))?(?:[eE]([+-]?\d{1,6})\d*)?")


def _significant(digits: str, *, trailing: bool = False) -> tuple[str, int]:
    """The significant digits of a number, and the power of ten of the last one."""
    match = _NUMBER.fullmatch(digits)
    assert match is not None
    whole, part, power = match[1], match[2] or "", int(match[3] or 0)
    shown = (whole + part).lstrip("0")
    kept = shown if trailing else shown.rstrip("0")
    return kept, 0 if not kept else power - len(part) + len(shown) - len(kept)


# Made once. `json.loads` and `json.dumps` would make them for each call.
_decode = json.JSONDecoder(
    object_pairs_hook=_object, parse_constant=_constant, parse_int=_integer, parse_float=_float
).decode
_encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode


def _check_surrogates(value: Any) -> None:
    try:
        dumps(value).encode()
    except UnicodeEncodeError:
        raise ValueError("The body has a string with a lone surrogate.") from None
