"""A race ends with a decision or with CONTENDED, and in no other way."""

from __future__ import annotations

import ast
import time
from pathlib import Path

import pytest

from conftest import ROOT
from fencepost import errors, limits
from fencepost.storage import races
from fencepost.storage.d1 import Database

SOURCES = sorted((ROOT / "src" / "fencepost").rglob("*.py"))
pytestmark = pytest.mark.anyio


class Unsent(Database):
    """A `Database` that nothing is sent to; the test counts for it."""

    def __init__(self) -> None:
        super().__init__(None)


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses that were made, none of them waited for."""
    made: list[float] = []

    async def pause(pause_s: float) -> None:
        made.append(pause_s)

    monkeypatch.setattr(races, "_pause", pause)
    return made


async def test_the_first_attempt_that_decides_is_the_result(pauses: list[float]) -> None:
    attempts = iter([None, None, None, None, "decided", "never asked"])

    async def attempt() -> str | None:
        return next(attempts)

    assert await races.until_decided(Unsent(), attempt) == "decided"
    assert len(pauses) == 2


async def test_pauses_are_random_and_their_bound_doubles_up_to_a_limit(
    pauses: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(races, "_random", lambda: 1.0)
    left = iter(range(30))

    async def attempt() -> bool | None:
        return None if next(left) < 29 else True

    await races.until_decided(Unsent(), attempt)
    pause_ms = limits.RACE_PAUSE_MS_MIN
    for pause_s in pauses:
        assert pause_s == pytest.approx(pause_ms / 1000)
        pause_ms = min(2 * pause_ms, limits.RACE_PAUSE_MS_MAX)
    assert pauses[-1] == limits.RACE_PAUSE_MS_MAX / 1000


async def test_a_pause_is_longer_by_each_other_verb_that_races_in_this_isolate(
    pauses: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(races, "_random", lambda: 1.0)
    monkeypatch.setattr(races, "_racing", 7)
    left = iter(range(3))

    async def attempt() -> bool | None:
        return None if next(left) < 2 else True

    await races.until_decided(Unsent(), attempt)
    assert pauses == [7 * limits.RACE_PAUSE_MS_EACH / 1000]
    assert races._racing == 7


async def test_a_race_that_no_attempt_decides_ends_contended_after_its_time(
    pauses: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = iter(range(100))
    monkeypatch.setattr(time, "monotonic", lambda: next(now_s))

    async def attempt() -> None:
        return None

    with pytest.raises(errors.Unavailable) as raised:
        await races.until_decided(Unsent(), attempt)
    assert (raised.value.code, raised.value.retry_after_s) == ("CONTENDED", 1)
    assert len(pauses) <= limits.RACE_MS / 1000


async def test_a_race_ends_contended_before_the_request_has_sent_too_many_statements(
    pauses: list[float],
) -> None:
    db = Unsent()

    async def attempt() -> None:
        db.statements_sent += 100

    with pytest.raises(errors.Unavailable):
        await races.until_decided(db, attempt)
    assert db.statements_sent == limits.RACE_STATEMENTS_MAX


def is_counted(loop: ast.AST) -> bool:
    """Whether it is `for ... in range(...)`: a loop that can run out."""
    return (
        isinstance(loop, ast.For)
        and isinstance(loop.iter, ast.Call)
        and isinstance(loop.iter.func, ast.Name)
        and loop.iter.func.id == "range"
    )


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.stem)
def test_no_loop_of_attempts_can_run_out_beside_until_decided(source: Path) -> None:
    for function in ast.walk(ast.parse(source.read_text())):
        if isinstance(function, ast.AsyncFunctionDef):
            assert not any(is_counted(node) for node in ast.walk(function)), function.name
