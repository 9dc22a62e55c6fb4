"""No order of commands makes two deployments start one key: in a model, and for real."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from deployments import OF_A_SEAL, Deployment, import_all
from fencepost import copies
from fencepost.transfer import receipt
from helpers import Json, a_start, an_owner, new_key
from move_model import (
    ADMITS,
    GUARDS,
    OPERATED,
    SEALS_MAX,
    Command,
    Rules,
    Side,
    Step,
    World,
    commands,
    explore,
    first,
)

Worlds = dict[World, list[Step]]


@functools.cache
def worlds(sides: int, late: bool) -> Worlds:
    return dict(explore(Rules(), sides, late=late))


# Two deployments in which commands land late, and three in which they do not, or do.
ALL = pytest.mark.parametrize(
    ("sides", "late"), [(2, True), (3, False), pytest.param(3, True, marks=pytest.mark.soak)]
)

# One worker has the two deployments; it begins early, as others wait for it.
pytestmark = [pytest.mark.waits, pytest.mark.xdist_group("move")]


def broken(found: Iterable[tuple[World, list[Step]]]) -> Iterator[str]:
    """What the promises say, in every world and at every step."""
    for world, steps in found:
        if len(world.admitting) > 1:
            yield f"two admit: {world}"
        for at in world.opened:
            for before in world.sides[at].came_from:
                if world.sides[before].fence != "sealed":
                    yield f"{at} has opened, and {before} is not sealed: {world}"
        for command, after in steps:
            yield from broken_by(world, command, after)


def broken_by(world: World, command: Command | None, after: World) -> Iterator[str]:
    for at, (now, then) in enumerate(zip(world.sides, after.sides, strict=True)):
        if now.fence == "void" and then.fence != "void":
            yield f"{at} is not void any more: {world} {after}"
        if then.fence == "finished" != now.fence:
            whole = now.whole and now.seal == then.seal
            mine = then.seal is not None and world.seals[then.seal][1] == at
            if not (whole and mine):
                yield f"{at} is finished without its rows: {world}"


@ALL
def test_no_order_of_commands_breaks_a_promise(sides: int, late: bool) -> None:
    assert len(worlds(sides, late)) > 500
    assert list(broken(worlds(sides, late).items())) == []


def test_every_state_of_a_deployment_comes_about() -> None:
    states = {side.fence for world in worlds(3, False) for side in world.sides}
    assert states == {*OPERATED, "seeded", "importing", "finished", "void", "sealed"}
    assert any(len(world.opened) == 2 for world in worlds(3, False))
    assert any(world.late for world in worlds(2, True))


@ALL
def test_from_everywhere_a_deployment_can_be_opened_without_force(sides: int, late: bool) -> None:
    found, before = worlds(sides, late), dict[World, list[World]]()
    for world, steps in found.items():
        for _, after in steps:
            before.setdefault(after, []).append(world)
    alive = {world for world in found if world.admitting}
    todo = list(alive)
    while todo:
        for world in before.get(todo.pop(), []):
            if world not in alive:
                alive.add(world)
                todo.append(world)
    assert set(found) - alive == set()


def test_by_force_two_deployments_can_start_one_key() -> None:
    found = explore(Rules(), sides=2, force=True)
    assert any(len(world.admitting) > 1 for world, _ in found)


@pytest.mark.parametrize("guard", GUARDS)
def test_without_one_of_its_guards_the_model_breaks_a_promise(guard: str) -> None:
    late = "late" in guard
    found = explore(Rules(without=guard), sides=2 if late else 3, late=late)
    assert any(True for _ in broken(found))


# --- For real ----------------------------------------------------------------------------

STATE = {"proof": "proof-only", "locked": "migration-locked"}
PHASE = {"open": "none", "proof": "none", "draining": "none", "locked": "none"}
PHASE |= {"seeded": "importing"}


class Pair:
    """Two real deployments, and what they have given out."""

    def __init__(self, source: Deployment, target: Deployment) -> None:
        self.sides = (source, target)
        self.seals: list[Json] = []
        self.receipts: dict[int, str] = {}
        source.empty()
        target.empty("importing")
        source.sql.batch([("SELECT 1", ())])

    def send(self, command: Command) -> bool:
        """Whether the command was done."""
        send = getattr(self, command.name)
        status, said = send(self.sides[command.at], command.argument)
        assert status in (200, 409, 503), said
        return bool(status == 200)

    def transition(self, side: Deployment, state: Any) -> tuple[int, Json]:
        next = STATE.get(state, state)
        proof = {"proof_key": "proof"} if state == "proof" else {}
        now = side.client.get("/v1/fence").json()["state"]
        expected = now if now in ("open", "draining", *STATE.values()) else "migration-locked"
        body = {"expected": expected, "next": next, **proof}
        answer = side.client.post("/v1/fence/transitions", body)
        return answer.status_code, answer.json()

    def prepare(self, side: Deployment, _: Any) -> tuple[int, Json]:
        return side.command("prepare")

    def seal(self, side: Deployment, to: Any) -> tuple[int, Json]:
        known = self.sides[to].status()["deployment_id"]
        if known is None:
            return 409, {}
        was = side.status()["seal"]
        status, said = side.command("seal", target_id=known, moved_to=self.sides[to].url)
        if status == 200 and said["seal"] != was:
            self.seals.append(said)
        return status, said

    def begin(self, side: Deployment, number: Any) -> tuple[int, Json]:
        given = next(iter(given_by(self.seals[number], "reservations")))
        return side.take("reservations", given)

    def take(self, side: Deployment, number: Any) -> tuple[int, Json]:
        status, said = 409, dict[str, Any]()
        for table in self.seals[number]["manifest"]:
            for page in given_by(self.seals[number], table):
                status, said = side.take(table, page)
                if status != 200:
                    return status, said
        return status, said

    def finish(self, side: Deployment, number: Any) -> tuple[int, Json]:
        return side.command("finish", **{name: self.seals[number][name] for name in OF_A_SEAL})

    def void(self, side: Deployment, number: Any) -> tuple[int, Json]:
        known = side.status()["deployment_id"] or "0" * 32
        if number is None:
            return side.command("void", target_id=known)
        status, said = side.command("void", target_id=known, seal=self.seals[number]["seal"])
        if status == 200 and known == self.seals[number]["target_id"]:
            self.receipts[number] = said["receipt"]
        return status, said

    def unseal(self, side: Deployment, number: Any) -> tuple[int, Json]:
        seal = self.seals[number]
        said = self.receipts.get(number, receipt(seal["seal"], "f" * 32))
        return side.command("unseal", revision=seal["revision"], receipt=said)


_GIVEN: dict[str, dict[str, list[Json]]] = {}


def given_by(seal: Json, table: str) -> list[Json]:
    """The pages that were given out under a seal; whoever has them may send them at any time."""
    return _GIVEN[seal["seal"]][table]


def keep_pages(pair: Pair) -> None:
    """Read what a seal gives out, once."""
    for seal in pair.seals:
        if seal["seal"] in _GIVEN:
            continue
        source = next(side for side in pair.sides if side.status()["seal"] == seal["seal"])
        _GIVEN[seal["seal"]] = {name: list(source.pages(name)) for name in seal["manifest"]}


def shown(side: Side) -> tuple[str, str]:
    """The phase and the state of the fence that a side of the model has."""
    if side.fence in OPERATED:
        return "none", STATE.get(side.fence, side.fence)
    if side.fence == "finished":
        return "finished", "migration-locked"
    fence = "importing" if side.fence == "seeded" else side.fence
    return fence, fence


def paths(depth: int) -> list[list[tuple[Command, World]]]:
    """A way to every world of two deployments, with at most so many steps."""
    found = dict(explore(Rules(), sides=2, late=False))
    ways: dict[World, list[tuple[Command, World]]] = {first(2): []}
    todo = [first(2)]
    for world in todo:
        for command, after in found[world]:
            if command is not None and after not in ways and len(ways[world]) < depth:
                ways[after] = [*ways[world], (command, after)]
                todo.append(after)
    return list(ways.values())


def walk(pair: Pair, way: list[tuple[Command, World]]) -> None:
    """Go there, and then try every command that the model refuses, and a start on both sides."""
    world = first(2)
    for command, after in way:
        assert pair.send(command), (world, command)
        keep_pages(pair)
        world = after
        for side, real in zip(world.sides, pair.sides, strict=True):
            status = real.status()
            assert (status["phase"], status["state"]) == shown(side), (world, command)
    before = [stored(side) for side in pair.sides]
    for command in commands(world):
        bounded = command.name == "seal" and len(world.seals) == SEALS_MAX
        if Rules().after(world, command) is None and not command.force and not bounded:
            assert not pair.send(command), (world, command)
    assert [stored(side) for side in pair.sides] == before, world
    started_once(pair, world)


def stored(side: Deployment) -> list[Any]:
    """Every row, but for what a finish has added up so far."""
    kept = "SELECT deployment_id, target_id, seal, revision FROM fencepost_transfer"
    return [side.rows("fence"), side.sql(kept), *map(side.rows, copies.TABLES)]


def started_once(pair: Pair, world: World) -> None:
    key = "proof" if "proof" in [side.fence for side in world.sides] else new_key()
    body = a_start(owner=an_owner())
    answers = [side.alice.start(key, body) for side in pair.sides]
    started = [at for at, answer in enumerate(answers) if answer.status_code == 201]
    admitting = [at for at, side in enumerate(world.sides) if side.fence in ADMITS]
    assert started == admitting, (world, [answer.text for answer in answers])


@pytest.mark.parametrize("depth", [5, pytest.param(9, marks=pytest.mark.soak)])
def test_real_deployments_do_what_the_model_says(
    source: Deployment, target: Deployment, depth: int
) -> None:
    ways = paths(depth)
    # Those that are part of a longer one are walked with it.
    inner = {after for way in ways for _, after in way[:-1]}
    tried = [way for way in ways if way and (depth > 5 or way[-1][1] not in inner)]
    assert len(tried) >= 10
    for way in tried:
        walk(Pair(source, target), way)


WORDS = ("lost", "pass,lost", "pass,pass,lost", "drop", "pass,drop", "pass,pass,drop", "lost,lost")


@pytest.mark.parametrize("words", WORDS)
def test_a_command_whose_reply_is_lost_has_its_effect_once(
    source: Deployment, target: Deployment, words: str
) -> None:
    faults = {"X-Local-Fault": words}
    source.empty()
    target.empty("importing")
    source.alice.started()
    source.to("migration-locked")
    source.alice.look()
    target.alice.look(isolates=1)

    def sure(side: Deployment, verb: str, body: Json) -> Json:
        first = side.client.post(f"/v1/transfer/{verb}", body, headers=faults)
        assert first.status_code in (200, 503), first.text
        again = side.done(verb, **body)
        assert first.status_code == 503 or first.json() == again
        return again

    own = sure(target, "prepare", {})["deployment_id"]
    seal = sure(source, "seal", {"target_id": own, "moved_to": target.url})
    page = next(iter(source.pages("runs")))
    target.client.post("/v1/transfer/runs", page, headers=faults)
    import_all(source, target)
    sure(target, "finish", {name: seal[name] for name in OF_A_SEAL})
    said = sure(target, "void", {"target_id": own})
    undo = {"revision": seal["revision"], "receipt": said["receipt"]}
    assert sure(source, "unseal", undo)["state"] == "migration-locked"
    acts = [row["action"] for row in source.rows("audit")]
    assert acts == ["fence-transition", "transfer-seal", "transfer-unseal"]
    acts = [row["action"] for row in target.rows("audit") if row["origin"] is None]
    assert acts == ["transfer-prepare", "transfer-finish", "transfer-void"]
