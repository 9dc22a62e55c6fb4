"""The grammars of keys, principals and owners; and ids that nobody minted before."""

from __future__ import annotations

import hashlib
import re
import string

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from fencepost import identifiers, limits
from fencepost.identifiers import Target

PATH_SAFE = string.ascii_letters + string.digits + "._~-"
quick = settings(max_examples=200, deadline=None)


@quick
@given(st.text(PATH_SAFE, min_size=1, max_size=200))
@example("a" * 200)
@example("...")
@example(".a")
def test_an_identifier_is_up_to_200_path_safe_characters(text: str) -> None:
    assert identifiers.is_identifier(text) == (text not in (".", ".."))


@quick
@given(st.text(max_size=210))
@example("")
@example("a" * 201)
@example("key\n")
@example("clé")
@example("\u0661")  # a digit, but not an ASCII one
@example("\ud800")
def test_nothing_else_is_an_identifier(text: str) -> None:
    fits = 1 <= len(text) <= 200 and set(text) <= set(PATH_SAFE) and text not in (".", "..")
    assert identifiers.is_identifier(text) == fits


@pytest.mark.parametrize(
    ("text", "valid"),
    [
        ("olga", True),
        ("Olga Ñandú", True),
        ("x" * 200, True),
        ("x" * 201, False),
        ("", False),
        (" ", False),
        ("\u2003\u00a0", False),
        ("a\x1fb", False),
        ("a\x7fb", False),
        ("a\x00b", False),
        ("a\ud800b", False),
    ],
)
def test_a_principal_id_is_not_blank_and_has_no_control_characters(text: str, valid: bool) -> None:
    assert identifiers.is_principal_id(text) == valid


@pytest.mark.parametrize(
    ("text", "valid"),
    [
        ("host", True),
        ("x" * limits.OWNER_FIELD_UNITS_MAX, True),
        ("x" * (limits.OWNER_FIELD_UNITS_MAX + 1), False),
        ("\U0001f600" * (limits.OWNER_FIELD_UNITS_MAX // 2), True),
        ("\U0001f600" * (limits.OWNER_FIELD_UNITS_MAX // 2) + "x", False),
        ("", False),
        ("a\0b", False),
        ("\udfff", False),
    ],
)
def test_an_owner_field_is_measured_in_utf_16_units(text: str, valid: bool) -> None:
    assert identifiers.is_owner_field(text) == valid


@quick
@given(st.text(st.characters(codec=None, categories=None)))
@example("\ud83d\ude00")  # two escapes that were never joined
def test_well_formed_text_is_exactly_what_utf_8_can_carry(text: str) -> None:
    lone = any(0xD800 <= ord(character) <= 0xDFFF for character in text)
    assert identifiers.is_well_formed(text) == (not lone)


def test_run_ids_are_identifiers_that_sort_by_their_time_and_end_with_the_slot_of_the_key() -> None:
    keys = [f"key-{n}" for n in range(100)]
    ids = [identifiers.mint_run_id(key) for key in keys]
    assert len(set(ids)) == 100
    assert all(re.fullmatch("run_[0-9a-f]{32}~[0-9a-f]{3}", id) for id in ids)
    assert [id[-3:] for id in ids] == [identifiers.slot(key) for key in keys]
    assert all(identifiers.is_identifier(id) for id in ids)
    times = [id[4:16] for id in ids]
    assert times == sorted(times)


@pytest.mark.parametrize(
    ("key", "placed_by"),
    [
        ("order-42", "order-42"),
        ("order-42~7", "order-42"),
        ("order-42~7~8", "order-42"),
        ("order-42~", "order-42"),
        ("~order-42", ""),
        ("~", ""),
    ],
)
def test_a_slot_is_twelve_bits_of_the_hash_of_the_part_before_the_first_tilde(
    key: str, placed_by: str
) -> None:
    assert identifiers.slot(key) == hashlib.sha256(placed_by.encode()).hexdigest()[:3]


def test_tokens_are_never_minted_twice() -> None:
    assert len({identifiers.mint_token() for _ in range(1000)}) == 1000


def test_a_workflow_has_no_thread_on_the_wire_not_even_an_empty_one() -> None:
    assert Target("workflow", "w").as_json() == {"kind": "workflow", "id": "w"}
    assert Target("agent", "a", "t").as_json() == {"kind": "agent", "id": "a", "thread_id": "t"}
