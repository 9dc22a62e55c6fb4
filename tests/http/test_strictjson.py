"""JSON as the service takes it: what two parsers could read differently is refused."""

from __future__ import annotations

import json
import math
import random
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fencepost import limits
from fencepost.http import strictjson

ROOT = Path(__file__).parent.parent.parent
SAFE = limits.INTEGER_MAX
values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-SAFE, SAFE)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@settings(max_examples=100, deadline=None)
@given(values, st.booleans())
def test_what_json_can_say_comes_through_unchanged(value: Any, ascii: bool) -> None:
    data = json.dumps(value, ensure_ascii=ascii).encode()
    assert strictjson.loads(data) == value
    assert strictjson.loads(strictjson.dumps(value).encode()) == value


@settings(max_examples=200, deadline=None)
@given(
    st.binary(max_size=40) | st.text('{}[]",:0123456789.eE+-\\utfnrdDals\ud7ff ').map(str.encode)
)
@example(b"1" * 5000)
@example(b"-" + b"9" * 5000)
@example(b"1." + b"9" * 5000)
@example(b'"\\')
@example(b'"\\u')
def test_any_bytes_are_a_value_or_a_value_error(data: bytes) -> None:
    try:
        value = strictjson.loads(data)
    except ValueError:
        return
    # Whatever came in can be stored, and read again.
    assert strictjson.loads(strictjson.dumps(value).encode()) == value


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "not JSON"),
        (b" \n", "not JSON"),
        (b'{"a":1} x', "not JSON"),
        (b"{}{}", "not JSON"),
        (b"[1,]", "not JSON"),
        (b"{'a':1}", "not JSON"),
        (b"01", "not JSON"),
        (b"+1", "not JSON"),
        (b".5", "not JSON"),
        (b'"a\nb"', "not JSON"),
        (b'"\\x41"', "not JSON"),
        ("[\u0661]".encode(), "not JSON"),
        ("\u00a0{}".encode(), "not JSON"),
        (b"\xef\xbb\xbf{}", "byte order mark"),
        (b'"\xff"', "UTF-8"),
        (b'"\xc0\x80"', "UTF-8"),
        (b'"\xed\xa0\x80"', "UTF-8"),
        ('{"a":1}'.encode("utf-16"), "UTF-8"),
        (b'{"a":1,"a":1}', "twice"),
        (b'{"a":1,"\\u0061":2}', "twice"),
        (b'[{"x":{"b":null,"b":null}}]', "twice"),
        (b"NaN", "NaN"),
        (b"[Infinity]", "Infinity"),
        (b'{"a":-Infinity}', "-Infinity"),
        (b"1e400", "double"),
        (b"-1e400", "double"),
        (b"9007199254740992", "integer"),
        (b"-9007199254740992", "integer"),
        (b"9007199254740993", "integer"),
        (b"1" + b"0" * 100_000, "integer"),
        (b'"\\ud800"', "surrogate"),
        (b'["\\uDFFF"]', "surrogate"),
        (b'{"\\ud800":1}', "surrogate"),
        (b'"\\ude00\\ud83d"', "surrogate"),
        (b'"\\ud83d\\\\ude00"', "surrogate"),
    ],
    ids=lambda value: ascii(value)[:30],
)
def test_ambiguous_or_broken_json_is_refused_with_its_reason(data: bytes, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        strictjson.loads(data)


@pytest.mark.parametrize(
    ("data", "value"),
    [
        (b"9007199254740991", SAFE),
        (b"-9007199254740991", -SAFE),
        (b"-0", 0),
        (b"1e308", 1e308),
        (b'"\\ud83d\\ude00"', "\U0001f600"),
        (b'{"\\ud83d\\ude00":"\\uD83D\\uDE00"}', {"\U0001f600": "\U0001f600"}),
        (b'"\\\\ud800"', "\\ud800"),
        (b'"\\u0000"', "\0"),
        (b"\t\r\n {} ", {}),
    ],
    ids=lambda value: ascii(value)[:30],
)
def test_the_last_value_inside_each_bound_is_taken(data: bytes, value: Any) -> None:
    assert strictjson.loads(data) == value


@pytest.mark.parametrize(("opening", "closing"), [(b"[", b"]"), (b'{"a":', b"}")])
def test_128_levels_in_a_body_are_taken_and_more_are_refused(
    opening: bytes, closing: bytes
) -> None:
    strictjson.loads(opening * 129 + b"0" + closing * 129)
    with pytest.raises(ValueError, match="129"):
        strictjson.loads(opening * 130 + b"0" + closing * 130)


def test_many_shallow_levels_are_not_deep() -> None:
    assert len(strictjson.loads(b"[" + b",".join([b"[0]"] * 1000) + b"]")) == 1000


def test_100000_values_are_taken_and_one_more_refused() -> None:
    # The array itself is a value too.
    assert len(strictjson.loads(b"[" + b",".join([b"0"] * 99_999) + b"]")) == 99_999
    with pytest.raises(ValueError, match="100000"):
        strictjson.loads(b"[" + b",".join([b"0"] * 100_000) + b"]")


@pytest.mark.parametrize("empty", [b"[]", b"{}"])
def test_an_empty_container_is_one_value_like_any_other(empty: bytes) -> None:
    assert len(strictjson.loads(b"[" + b",".join([empty] * 60_000) + b"]")) == 60_000


@pytest.mark.parametrize("text", ["[" * 1000, "{" * 1000, "," * 100_001, '\\"[' * 500, '"[' * 500])
def test_brackets_and_commas_inside_strings_do_not_count(text: str) -> None:
    value = {text: [text]}
    assert strictjson.loads(json.dumps(value).encode()) == value


@pytest.mark.parametrize(
    "data",
    [
        b"[" * 500_000,
        b'{"a":' * 200_000,
        b"[" * 400_000 + b'"' * 100_001,
        # Every quote could begin a string that never ends.
        b"[" * 130 + b'"' + b'\\"' * 520_000,
        b"[" * 130 + b'"' + b"\\" * 1_000_001,
        b"," * 1_000_000,
    ],
    ids=lambda data: f"{data[:6]!r}...{data[-4:]!r}",
)
def test_a_hostile_megabyte_is_refused_in_a_moment(data: bytes) -> None:
    # A process of its own: a regular expression that runs for hours cannot be interrupted.
    code = (
        "import sys; sys.path.insert(0, 'src')\n"
        "from fencepost.http import strictjson\n"
        "try: strictjson.loads(sys.stdin.buffer.read())\n"
        "except ValueError: sys.exit(3)"
    )
    try:
        parser = subprocess.run([sys.executable, "-c", code], input=data, timeout=5, cwd=ROOT)
    except subprocess.TimeoutExpired:
        pytest.fail("still at it after five seconds")
    assert parser.returncode == 3


def test_a_refusal_never_repeats_the_content() -> None:
    for data in (
        b'{"secret":1,"secret":1}',
        b'["secret" secret]',
        b'"secret\\ud800"',
        b'"secret\xff"',
    ):
        with pytest.raises(ValueError) as refusal:
            strictjson.loads(data)
        assert "secret" not in str(refusal.value)


@pytest.mark.parametrize(
    "number",
    [
        *("0.1234567890123456789012345", "12345678901234567890.5", "9007199254740993.0"),
        *("1.00000000000000000001", "123456789.123456789012", "-0.30000000000000000004"),
        *("1e-400", "5e-325", "1.2345678901234567891e5", "9007199254740993e0"),
    ],
)
def test_a_number_that_would_lose_digits_is_refused(number: str) -> None:
    with pytest.raises(ValueError, match="send it as a string"):
        strictjson.loads(f"[{number}]".encode())


@pytest.mark.parametrize(
    "number",
    [
        *("0.1", "0.10", "1.10", "0.10000000000000001", "0.30000000000000004", "-0.0", "0.000"),
        *("1e2", "1E+2", "1.0e-7", "100.000", "123456789.12345679", "1e16", "1.50e3", "0e5"),
        *("5e-324", "1.7976931348623157e308", "2.2250738585072014e-308", "0.1e1"),
    ],
)
def test_a_number_that_keeps_its_digits_is_taken_as_the_double_that_it_is(number: str) -> None:
    assert strictjson.loads(f"[{number}]".encode()) == [float(number)]


def test_every_double_is_taken_as_python_and_javascript_print_it() -> None:
    chance = random.Random(4)  # noqa: S311
    for _ in range(2_000):
        [value] = struct.unpack("d", chance.randbytes(8))
        if math.isfinite(value):
            for text in (repr(value), f"{value:.16e}", f"{value:.17g}"):
                if any(sign in text for sign in ".e"):
                    assert strictjson.loads(text.encode()) == value, text
