"""docs/guarantees.md promises nothing that no test holds."""

from __future__ import annotations

import ast
import re

import pytest

from conftest import ROOT

_PROMISED = (
    (ROOT / "docs/guarantees.md")
    .read_text()
    .partition("\n## Promised\n")[2]
    .partition("\n## Not promised\n")[0]
)
PROMISES = {
    item.split("**")[1]: re.findall(r"`([^`]*::[^`]*)`", item)
    for item in re.split(r"^- ", _PROMISED, flags=re.MULTILINE)[1:]
}
TESTS = {
    f"{path.name}::{node.name}"
    for path in (ROOT / "tests").rglob("test_*.py")
    for node in ast.parse(path.read_text()).body
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_")
}


def test_the_page_has_promises() -> None:
    assert len(PROMISES) >= 20
    assert len(PROMISES) == _PROMISED.count("\n- **")


@pytest.mark.parametrize("promise", PROMISES)
def test_a_promise_names_the_tests_that_hold_it_and_they_exist(promise: str) -> None:
    assert PROMISES[promise]
    assert set(PROMISES[promise]) <= TESTS
