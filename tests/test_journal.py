"""Canonical JSON (RFC 8785) and the chain of hashes over it."""

from __future__ import annotations

import hashlib
import json
import struct
from typing import Any

import pytest
import rfc8785
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fencepost import decision, journal, limits
from fencepost.http import strictjson
from fencepost.identifiers import Target
from fencepost.journal import GENESIS, Head
from fencepost.runs import Lineage

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


# --- RFC 8785 ------------------------------------------------------------------------------


def test_the_sample_of_section_3_2_2() -> None:
    given = rb"""{
      "numbers": [333333333.33333329, 1E30, 4.50, 2e-3, 0.000000000000000000000000001],
      "string": "\u20ac$\u000F\u000aA'\u0042\u0022\u005c\\\"\/",
      "literals": [null, true, false]
    }"""
    expected = (
        '{"literals":[null,true,false],'
        '"numbers":[333333333.3333333,1e+30,4.5,0.002,1e-27],'
        '"string":"€$\\u000f\\nA\'B\\"\\\\\\\\\\"/"}'
    )
    # As a body it would be refused: its first number has digits that a double loses.
    assert journal.canonical(json.loads(given)).decode() == expected


def test_the_sample_of_section_3_2_3_sorts_by_utf_16_units() -> None:
    given = rb"""{
      "\u20ac": "Euro Sign",
      "\r": "Carriage Return",
      "\ufb33": "Hebrew Letter Dalet With Dagesh",
      "1": "One",
      "\ud83d\ude00": "Emoji: Grinning Face",
      "\u0080": "Control",
      "\u00f6": "Latin Small Letter O With Diaeresis"
    }"""
    text = journal.canonical(strictjson.loads(given)).decode()
    assert list(json.loads(text).values()) == [
        "Carriage Return",
        "One",
        "Control",
        "Latin Small Letter O With Diaeresis",
        "Euro Sign",
        # Before U+FB33, although its code point is larger: its first unit is D83D.
        "Emoji: Grinning Face",
        "Hebrew Letter Dalet With Dagesh",
    ]


@pytest.mark.parametrize(
    ("bits", "text"),
    [
        ("0000000000000000", "0"),
        ("8000000000000000", "0"),
        ("0000000000000001", "5e-324"),
        ("8000000000000001", "-5e-324"),
        ("7fefffffffffffff", "1.7976931348623157e+308"),
        ("ffefffffffffffff", "-1.7976931348623157e+308"),
        ("4340000000000000", "9007199254740992"),
        ("c340000000000000", "-9007199254740992"),
        ("4430000000000000", "295147905179352830000"),
        ("44b52d02c7e14af5", "9.999999999999997e+22"),
        ("44b52d02c7e14af6", "1e+23"),
        ("44b52d02c7e14af7", "1.0000000000000001e+23"),
        ("444b1ae4d6e2ef4e", "999999999999999700000"),
        ("444b1ae4d6e2ef4f", "999999999999999900000"),
        ("444b1ae4d6e2ef50", "1e+21"),
        ("3eb0c6f7a0b5ed8c", "9.999999999999997e-7"),
        ("3eb0c6f7a0b5ed8d", "0.000001"),
        ("41b3de4355555553", "333333333.3333332"),
        ("41b3de4355555554", "333333333.33333325"),
        ("41b3de4355555555", "333333333.3333333"),
        ("41b3de4355555556", "333333333.3333334"),
        ("41b3de4355555557", "333333333.33333343"),
        ("becbf647612f3696", "-0.0000033333333333333333"),
        ("43143ff3c1cb0959", "1424953923781206.2"),
    ],
)
def test_the_numbers_of_appendix_b(bits: str, text: str) -> None:
    [number] = struct.unpack(">d", bytes.fromhex(bits))
    assert journal.canonical(number).decode() == text


@pytest.mark.parametrize(
    "value",
    [
        float("nan"),
        float("inf"),
        -float("inf"),
        SAFE + 1,
        -SAFE - 1,
        "\ud800",
        {"\udc00": 1},
        {1: 2},
        [{"a": {-5: 2}}],
        {"a": 1, "b": {1.5: 2}},
        {None: 1},
        {True: 1},
        [{False: 1}],
    ],
    ids=ascii,
)
def test_what_canonical_json_cannot_express_is_a_value_error(value: Any) -> None:
    with pytest.raises(ValueError):
        journal.canonical(value)


# --- Where Python differs from JavaScript ------------------------------------------------


def test_whole_numbers_look_the_same_however_they_were_written() -> None:
    same = [strictjson.loads(text) for text in (b"12345", b"12345.0", b"1.2345e4")]
    assert {journal.canonical(value) for value in same} == {b"12345"}
    assert journal.canonical([0, -0.0, strictjson.loads(b"-0")]) == b"[0,0,0]"
    assert journal.canonical(True) != journal.canonical(1)


def test_only_quotes_backslashes_and_control_characters_are_escaped() -> None:
    controls = "".join(map(chr, range(0x20)))
    escapes = (
        r"\u0000\u0001\u0002\u0003\u0004\u0005\u0006\u0007\b\t\n\u000b\f\r\u000e\u000f"
        r"\u0010\u0011\u0012\u0013\u0014\u0015\u0016\u0017\u0018\u0019\u001a\u001b\u001c"
        r"\u001d\u001e\u001f"
    )
    assert journal.canonical(controls).decode() == f'"{escapes}"'
    assert journal.canonical('"\\/').decode() == r'"\"\\/"'
    plain = "\x7f\u00a0é€\u2028\u2029\ufeff\uffff\U0001f600"
    assert journal.canonical(plain).decode() == f'"{plain}"'


@settings(max_examples=100, deadline=None)
@given(st.lists(st.text(max_size=3), unique=True))
@example(["\U00010000", "\uffff", "\ue000", "\ud7ff"])
def test_members_stand_in_the_order_of_their_utf_16_units(names: list[str]) -> None:
    text = journal.canonical(dict.fromkeys(names)).decode()
    units = [[*memoryview(name.encode("utf-16-le")).cast("H")] for name in json.loads(text)]
    assert units == sorted(units)


# --- Properties ----------------------------------------------------------------------------


@settings(max_examples=300, deadline=None)
@given(values)
@example({"\U00010000": 1.0, "\uffff": [1e21, -0.0, 5e-324, 1e16, 0.1, 123456.789e3]})
@example({'"1.0"\\': 1, "e": [True, None, "1e5", limits.INTEGER_MAX], "": {"b": {}, "a": []}})
@example([1e-05, 1e-4, 1.05, 10.0, 100, 1e15, 1e22, 2.0**53])
@example({"1": 1, "-1.5": {"null": "true", "false": ",1e5"}, "a": ":1.0,"})
@example([-1.0, -1e-7, -1e21, [0.5e-6], {"a": -10.0}])
def test_the_fast_way_to_canonical_json_agrees_with_the_reference(value: Any) -> None:
    assert journal.canonical(value) == rfc8785.dumps(value)


@settings(max_examples=200, deadline=None)
@given(values)
@example({"\U00010000": 1.0, "\uffff": [1e21, -0.0, 5e-324, 1e16]})
def test_canonical_text_read_again_gives_the_same_canonical_text(value: Any) -> None:
    once = journal.canonical(value)
    # As JavaScript reads it: every number a double.
    assert journal.canonical(json.loads(once, parse_int=float)) == once


@settings(max_examples=100, deadline=None)
@given(values, st.randoms(use_true_random=False))
def test_a_digest_does_not_depend_on_the_order_of_members_or_on_white_space(
    value: Any, chance: Any
) -> None:
    text = json.dumps(shuffled(value, chance), indent=chance.choice([None, 0, 3]))
    assert journal.digest(strictjson.loads(text.encode())) == journal.digest(value)


def shuffled(value: Any, chance: Any) -> Any:
    if isinstance(value, list):
        return [shuffled(item, chance) for item in value]
    if isinstance(value, dict):
        names = list(value)
        chance.shuffle(names)
        return {name: shuffled(value[name], chance) for name in names}
    return value


@settings(max_examples=100, deadline=None)
@given(values, values)
def test_two_values_share_a_digest_only_if_they_are_the_same_json(one: Any, other: Any) -> None:
    same = journal.canonical(one) == journal.canonical(other)
    assert (journal.digest(one) == journal.digest(other)) == same


# --- Fingerprints --------------------------------------------------------------------------


def test_the_fingerprint_covers_target_input_and_lineage() -> None:
    workflow = Target("workflow", "charge")
    prints = {
        decision.fingerprint(*what)
        for what in [
            (workflow, {"f": None}, None),
            (workflow, {}, None),
            (workflow, None, None),
            (workflow, "1", None),
            (workflow, 1, None),
            (workflow, True, None),
            (workflow, 1, Lineage("l", 0)),
            (workflow, 1, Lineage("l", 1)),
            (Target("workflow", "other"), 1, None),
            (Target("agent", "charge", "t"), 1, None),
            (Target("agent", "charge", "u"), 1, None),
        ]
    }
    assert len(prints) == 11
    expected = b'{"input":{"cents":500},"lineage":null,"target":{"id":"charge","kind":"workflow"}}'
    found = decision.fingerprint(workflow, {"cents": 500.0}, None)
    assert found == hashlib.sha256(expected).hexdigest()


# --- The chain -----------------------------------------------------------------------------


def test_the_first_event_hangs_on_64_zeros() -> None:
    event = journal.next_event(GENESIS, "run-created", {"b": 1, "a": "é"})
    text = (
        '{"payload":{"a":"é","b":1},"prior_hash":"' + "0" * 64 + '",'
        '"sequence":1,"type":"run-created"}'
    )
    assert (event.sequence, event.prior_hash) == (1, "0" * 64)
    assert event.payload_json == '{"a":"é","b":1}'
    assert event.hash == hashlib.sha256(text.encode()).hexdigest()
    assert event.head == Head(1, event.hash)


def test_every_event_names_the_one_before_it() -> None:
    head, hashes = GENESIS, {GENESIS.hash}
    for number in range(1, 6):
        event = journal.next_event(head, "same", {})
        assert (event.sequence, event.prior_hash) == (number, head.hash)
        head = event.head
        hashes.add(head.hash)
    assert len(hashes) == 6


@pytest.mark.parametrize(
    ("head", "type", "payload"),
    [
        (Head(2, "a" * 64), "t", {}),
        (Head(1, "b" * 64), "t", {}),
        (Head(1, "a" * 64), "u", {}),
        (Head(1, "a" * 64), "t", {"x": None}),
    ],
    ids=["sequence", "prior hash", "type", "payload"],
)
def test_whatever_is_changed_in_an_event_changes_its_hash(
    head: Head, type: str, payload: dict[str, Any]
) -> None:
    original = journal.next_event(Head(1, "a" * 64), "t", {})
    assert journal.next_event(head, type, payload).hash != original.hash
