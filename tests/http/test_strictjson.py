"""JSON as the service takes it: what two parsers could read differently is refused."""

from __future__ import annotations

import json
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
        (b"1e-400", 0.0),
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
def test_128_levels_are_taken_and_129_refused(opening: bytes, closing: bytes) -> None:
    strictjson.loads(opening * 128 + b"0" + closing * 128)
    with pytest.raises(ValueError, match="128"):
        strictjson.loads(opening * 129 + b"0" + closing * 129)


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
        b"[" * 129 + b'"' + b'\\"' * 520_000,
        b"[" * 129 + b'"' + b"\\" * 1_000_001,
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
