"""Named parameters of SQL: each name has a value, each value a name."""

from __future__ import annotations

import pytest

from fencepost import limits
from fencepost.storage.sql import Statement


def test_names_become_numbers_in_the_order_in_which_they_first_appear() -> None:
    text = "SELECT :b, :a, :b FROM t WHERE a = :a AND c = :c"
    statement = Statement(text, a=1, b="x", c=None)
    assert statement.sql == "SELECT ?1, ?2, ?1 FROM t WHERE a = ?2 AND c = ?3"
    assert statement.params == ("x", 1, None)


@pytest.mark.parametrize("count", [0, 1, 2, limits.PARAMETERS_MAX])
def test_every_number_of_names_is_bound_in_order(count: int) -> None:
    names = [f"p{number}" for number in range(count)]
    statement = Statement(
        "SELECT " + ", ".join([*(f":{name}" for name in names), "1"]),
        **{name: number for number, name in reversed(list(enumerate(names)))},
    )
    assert statement.params == tuple(range(count))


def test_a_name_without_a_value_raises_at_once() -> None:
    with pytest.raises(ValueError, match="no value for :run_id"):
        Statement("SELECT :run_id, :at_ms", at_ms=1)


def test_a_value_without_a_name_raises_at_once() -> None:
    with pytest.raises(ValueError, match="no parameter for at_m"):
        Statement("SELECT :at_ms", at_ms=1, at_m=1)


def test_a_misspelt_name_is_both() -> None:
    with pytest.raises(ValueError, match="no value for :at_ms and no parameter for at_m"):
        Statement("SELECT :at_ms", at_m=1)


@pytest.mark.parametrize(
    "text",
    [
        "SELECT 'change:name', '12:30', 'it''s :this'",
        'SELECT "a:b" FROM t',
        "SELECT 1 -- not :this\n",
        "SELECT /* nor :this */ 1",
        "SELECT 1 WHERE a > 1::2",
    ],
)
def test_a_colon_that_begins_no_name_is_left_as_it_is(text: str) -> None:
    assert Statement(text).sql == text


def test_the_text_that_D1_gets_is_one_object_a_text() -> None:  # noqa: N802
    text = "SELECT :value"
    assert Statement(text, value=1).sql is Statement(text, value=2).sql
