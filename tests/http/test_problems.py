"""The problem codes: documented, used, and all that there are."""

from __future__ import annotations

import re

import pytest

from conftest import ROOT
from fencepost import operations
from fencepost.problems import PROBLEMS, as_markdown
from fencepost.runs import LOSSES
from helpers import Client

SOURCE = "\n".join(
    path.read_text() for path in (ROOT / "src").rglob("*.py") if path.name != "problems.py"
)


def test_the_page_is_the_table(client: Client) -> None:
    assert (ROOT / "docs/errors.md").read_text() == as_markdown()
    assert client.get("/docs/errors").text == as_markdown()


@pytest.mark.parametrize("code", PROBLEMS)
def test_every_code_is_given_somewhere(code: str) -> None:
    losses = {outcome.upper() for outcome in (*LOSSES, *operations.LOSSES)}
    assert f'"{code}"' in SOURCE or code in losses


def test_every_code_given_is_in_the_table() -> None:
    given = set(re.findall(r'(?:code=|CODE(?:: ClassVar)? = )"([A-Z_]+)"', SOURCE))
    assert given <= set(PROBLEMS)
    assert {outcome.upper() for outcome in (*LOSSES, *operations.LOSSES)} <= set(PROBLEMS)
