"""A lost reply never costs a second execution: every mutating route, every fault,
alone and with a rival's write in the window between the fault and the reading back.

What must come of it is not written down but made: the same requests sent one after another,
undisturbed, in the order in which they reached the database. A mutating route without a row in
`mutations.py` fails the suite.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any, NamedTuple
from urllib.parse import unquote

import httpx
import pytest

import mutations
from conftest import ROOT
from fencepost import errors, ownership
from fencepost.http import routes
from fencepost.runs import Owner
from fencepost.storage.d1 import Result
from fencepost.storage.sql import Statement
from fencepost.storage.writes import Branch
from helpers import BridgeDatabase, Client, Sql, connect_async, new_key
from mutations import KEYED, ROWS, WRITE_NOTHING, Row, Send
from worlds import World, said, spelled

# What each fault comes to, from the write on: the order in which the mutation and its rival reach
# the database, and what becomes of the mutation. The rival acts in the window of the first fault.
FAULTS: dict[str, tuple[tuple[str, ...], str]] = {
    "lost": (("act", "rival"), "landed"),
    "drop": (("rival", "act"), "issued again"),
    "lost,lost": (("act", "rival"), "unreadable"),
    "lost,drop": (("act", "rival"), "unreadable"),
    "drop,drop": (("rival",), "unreadable"),
    "lost,pass,drop": (("act", "rival"), "landed"),
    "drop,pass,lost": (("rival", "act"), "unreadable"),
    "drop,pass,drop": (("rival",), "unreadable"),
}


# A mutation that goes on from what its rival did: a second write, for the faults that are left.
GOES_ON = {
    "drop": (("rival", "act"), "decided"),
    "drop,pass,lost": (("rival", "act"), "landed"),
    "drop,pass,drop": (("rival", "act"), "issued again"),
}


def expected(row: Row, against: str, fault: str) -> tuple[tuple[str, ...], str]:
    history, taken = FAULTS[fault]
    if against != "its rival":
        return history, taken
    if row.covered and taken == "landed":
        # There is no trace of it, so it is answered as another one: it can only lose.
        return (*history, "act"), "decided"
    if row.goes_on and fault in GOES_ON:
        return GOES_ON[fault]
    if row.decided and fault == "drop":
        return history, "decided"
    if row.decided and fault.startswith("drop,pass"):
        # It is not issued again, so that the last fault meets nothing, or the look at why.
        return (("rival",), "not said why") if row.asks_why else (("rival", "act"), "decided")
    if row.beaten and fault == "drop,pass,lost":
        return ("rival",), taken
    return history, taken


def test_every_mutating_route_has_a_row() -> None:
    mutating = {
        route.pattern
        for route in routes.ROUTES
        if route.method == "POST" and not route.of_a_move  # test_transfer.py has these
    }
    rows = {name.split(" ")[0] for name in ROWS}
    assert rows == mutating - set(WRITE_NOTHING)


def test_no_mutation_talks_to_d1_around_the_protocol() -> None:
    for path in (ROOT / "src/fencepost").rglob("*.py"):
        if path.name in ("d1.py", "writes.py", "guard.py", "transfer.py"):
            continue  # the commands of a move are decided anew: test_transfer.py
        assert not re.search(r"\.batch(_unguarded)?\(", path.read_text()), path.name


def branch(answer: httpx.Response) -> str | None:
    found = re.search(r'commit;desc="(\w+)"', answer.headers["Server-Timing"])
    return found and found[1]


class Told(NamedTuple):
    answers: dict[str, Any]
    effects: list[str]
    retried: Any
    final: list[str]


_MODELS: dict[Any, Told] = {}


def undisturbed(
    client: Client, sql: Sql, name: str, rival: Send | None, history: tuple[str, ...], keyed: bool
) -> Told:
    """What the same requests come to one after another, and the mutation sent again then."""
    if (found := _MODELS.get((name, rival, history, keyed))) is not None:
        return found
    world = World(client, sql, ROWS[name])
    headers = world.key() if keyed else {}
    answers = {}
    for step in history:
        if step == "rival" and rival is not None:
            answers[step] = said(rival(client, world.run, {}))
            assert step != history[0] or answers[step][0] < 300, "a rival that writes nothing"
        if step == "act":
            answers[step] = said(world.act(headers))
    effects = world.effects()
    told = _MODELS[name, rival, history, keyed] = Told(
        answers, effects, said(world.act(headers)), world.effects()
    )
    return told


# --- The table ---------------------------------------------------------------------------


AGAINST = [(against, fault) for against in ("nobody", "its rival") for fault in FAULTS]
AGAINST += [("the fence", "lost"), ("the fence", "drop")]
OVERTAKEN = [("its overtaker", fault) for fault in ("lost", "lost,lost", "lost,pass,drop")]
# A group stays in one process, where its `_MODELS` are.
# With a key every other fault is CI's.
OF_THE_SUITE = ("lost", "drop", "lost,lost")
CASES = [
    pytest.param(
        name,
        *case,
        keyed,
        marks=[pytest.mark.xdist_group(name)]
        + [pytest.mark.soak] * (keyed and case[1] not in OF_THE_SUITE),
    )
    for name, row in ROWS.items()
    for case in AGAINST + (OVERTAKEN if row.overtaker else [])
    for keyed in ([False, True] if name in KEYED else [False])
]


@pytest.mark.parametrize(("name", "against", "fault", "keyed"), CASES)
def test_a_lost_reply_has_one_effect_or_none_and_the_same_request_converges(
    client: Client, sql: Sql, name: str, against: str, fault: str, keyed: bool
) -> None:
    row = ROWS[name]
    rival = mutations.rivals(name)[against]
    world = World(client, sql, row)
    key = world.key() if keyed else {}
    headers = {"X-Local-Fault": ",".join(["pass"] * row.reads_first + [fault]), **key}
    if rival is not None:
        headers["X-Local-Rival"] = spelled(rival, world.run)
    answer = world.act(headers)
    effects, retried, final = world.effects(), said(world.act(key)), world.effects()

    history, taken = expected(row, against, fault)
    model = undisturbed(client, sql, name, rival, history, keyed)
    assert effects == model.effects
    if rival is not None:
        assert said(json.loads(unquote(answer.headers["X-Local-Rival"]))) == model.answers["rival"]
    if taken in ("unreadable", "not said why"):
        unknown = taken == "unreadable"
        code = "WRITE_OUTCOME_UNKNOWN" if unknown else "STORAGE_UNREADABLE"
        assert said(answer) == (503, code)
        assert answer.json()["retry"] == "same-key"
        taken = "unreadable" if unknown else "decided"
    elif against == "its overtaker":
        # It had its effect, and was told so when undisturbed; what it granted is over.
        assert model.answers["act"][0] == row.won
        assert said(answer) == (409, "overtaken")
        assert keyed or "granted" in answer.json()
    else:
        assert said(answer) == model.answers["act"]
        lost = row.beaten and against == "its rival"
        if taken == "issued again" and (answer.status_code != row.won or lost):
            taken = "refused"
    took = branch(answer)
    assert ("issued again" if took in ("reissued", "reinserted") else took) == taken
    assert (retried, final) == (model.retried, model.final)
    if keyed:
        _check_replay(model, retried, effects, final)
    elif against == "nobody" and "act" in history:
        assert (model.answers["act"][0], retried[0]) == (row.won, row.again)


def _check_replay(model: Told, retried: Any, effects: list[str], final: list[str]) -> None:
    """With a key a retry is answered as the undisturbed request was, and writes nothing; but for a
    grant that is over.
    """
    first = model.answers.get("act")
    if first is None or first[0] != 200 or first[1] in ("shared", "replayed"):
        return
    assert retried in (first, (409, "overtaken"), (409, "lease_lapsed"))
    assert final == effects


def test_an_undisturbed_write_takes_no_branch(client: Client) -> None:
    assert branch(client.start(new_key())) is None


class Refusing(BridgeDatabase):
    """Loses the first batch that writes, and refuses the second."""

    async def batch(self, statements: Sequence[Statement]) -> list[Result]:
        self.wrote = getattr(self, "wrote", 0) + 1
        lost = errors.Unknown("D1_ERROR: Network connection lost.")
        raise lost if self.wrote == 1 else errors.Refused("D1_ERROR: D1 DB is overloaded.")


@pytest.mark.anyio
async def test_a_refusal_of_the_second_attempt_says_nothing_about_the_first(
    bridge: dict[str, str], client: Client
) -> None:
    run = client.started()
    async with connect_async(bridge["sql"]) as http:
        db = Refusing(http)
        with pytest.raises(errors.Unknown):
            await ownership.heartbeat(db, run["run_id"], None, Owner(**run["owner"]))
    assert (db.wrote, db.branch) == (2, Branch.UNREADABLE)
