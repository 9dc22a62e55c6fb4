"""The switches of a move as a small model, written from docs/states.md: every order of commands.

A is open, B and C are as seeded for a target. Each command can be sent to each, at any time, with
everything that was ever given out; and one that was decided can land later, if the deployment is
still as it was. Revisions are left out: a late command then lands in more worlds than it really
does, so what holds here holds for the product as well.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

OPERATED = ("open", "proof", "draining", "locked")
ADMITS = ("open", "proof")
SEALS_MAX = 3
# Guards that a test takes away, to see that the checker misses them.
GUARDS = (
    "a seal names its target",
    "only a target that imports is finished",
    "a finished target has every row",
    "a target that has opened is not made void",
    "void is for good",
    "a seal ends by the receipt of its target",
    "a sealed deployment does not move",
    "a target is seeded as one",
    "a late command lands only where nothing has changed",
)


class Side(NamedTuple):
    """`fence`: one of OPERATED, or seeded, importing, finished, void, sealed.

    `seal`: the own one of a source, that of the rows in a target; `whole`: all of its rows are
    here. `came_from`: the deployments before this one. `ended`: the seal that was just taken back.
    """

    fence: str
    seal: int | None = None
    whole: bool = False
    came_from: frozenset[int] = frozenset()
    ended: int | None = None


class Late(NamedTuple):
    """A command that was decided, and has not landed."""

    at: int
    before: Side
    after: Side
    receipt: int | None


class World(NamedTuple):
    """`seals`: the source and the target of each; `receipts`: of which the target has said that it
    is void; `opened`: which targets have opened.
    """

    sides: tuple[Side, ...]
    seals: tuple[tuple[int, int], ...] = ()
    receipts: frozenset[int] = frozenset()
    opened: frozenset[int] = frozenset()
    forced: bool = False
    late: Late | None = None

    def with_side(self, at: int, side: Side) -> World:
        sides = (*self.sides[:at], side, *self.sides[at + 1 :])
        was = self.sides[at].fence
        opens = at > 0 and was not in OPERATED and side.fence in OPERATED and was != "sealed"
        opened = self.opened | {at} if opens else self.opened
        return self._replace(sides=sides, opened=opened)

    @property
    def admitting(self) -> list[int]:
        return [at for at, side in enumerate(self.sides) if side.fence in ADMITS]


class Command(NamedTuple):
    """`argument`: a state, the number of a seal, or of a target. `force` of an unseal."""

    name: str
    at: int
    argument: str | int | None = None
    force: bool = False


def commands(world: World) -> Iterator[Command]:
    """All that anybody could send."""
    seals = range(len(world.seals))
    for at in range(len(world.sides)):
        yield from (Command("transition", at, state) for state in OPERATED)
        yield Command("prepare", at)
        yield from (Command("seal", at, to) for to in range(len(world.sides)))
        yield Command("void", at)
        for name in ("begin", "take", "finish", "void"):
            yield from (Command(name, at, seal) for seal in seals)
        yield from (Command("unseal", at, seal) for seal in seals)
        yield Command("unseal", at, None, force=True)


class Rules:
    """What each command does to a side, or that it is refused (None). `without`: a guard."""

    def __init__(self, without: str = "") -> None:
        assert without in (*GUARDS, "")
        self.without = without

    def has(self, guard: str) -> bool:
        return guard != self.without

    def after(self, world: World, command: Command) -> Side | None:
        """The side as the command leaves it; as it is if it had its effect before."""
        side = world.sides[command.at]
        done: Side | None = getattr(self, command.name)(world, side, command)
        return done

    def transition(self, world: World, side: Side, command: Command) -> Side | None:
        frozen = {"importing", "void"}
        if self.has("a target is seeded as one"):
            frozen.add("seeded")
        if self.has("a sealed deployment does not move"):
            frozen.add("sealed")
        if side.fence in frozen:
            return None
        return side._replace(fence=str(command.argument), ended=None)

    def prepare(self, world: World, side: Side, command: Command) -> Side | None:
        if side.fence == "importing":
            return side
        again = side.fence == "void" and not self.has("void is for good")
        return Side("importing") if side.fence == "seeded" or again else None

    def seal(self, world: World, side: Side, command: Command) -> Side | None:
        to = command.argument
        if side.fence == "sealed":
            assert side.seal is not None
            return side if world.seals[side.seal][1] == to else None
        known = to not in (0, command.at) and world.sides[int(str(to))].fence != "seeded"
        allowed = side.fence == "locked" and to not in side.came_from
        if not (known and allowed and len(world.seals) < SEALS_MAX):
            return None
        return Side("sealed", len(world.seals), came_from=side.came_from)

    def _may_take(self, world: World, side: Side, command: Command) -> bool:
        seal = int(str(command.argument))
        mine = world.seals[seal][1] == command.at or not self.has("a seal names its target")
        return mine and side.seal in (None, seal)

    def begin(self, world: World, side: Side, command: Command) -> Side | None:
        """A page, and not the last one."""
        if side.fence != "importing" or not self._may_take(world, side, command):
            return None
        return side._replace(seal=int(str(command.argument)))

    def take(self, world: World, side: Side, command: Command) -> Side | None:
        """All pages."""
        taken = self.begin(world, side, command)
        return None if taken is None else taken._replace(whole=True)

    def finish(self, world: World, side: Side, command: Command) -> Side | None:
        seal = int(str(command.argument))
        if side.fence in ("finished", *OPERATED) and side.seal == seal:
            return side
        states = ["importing"]
        if not self.has("only a target that imports is finished"):
            states.append("void")
        if side.fence not in states or not self._may_take(world, side, command):
            return None
        whole = side.whole and side.seal == seal
        if not whole and self.has("a finished target has every row"):
            return None
        source = world.seals[seal][0]
        before = world.sides[source].came_from | {source}
        return Side("finished", seal, whole=True, came_from=before)

    def void(self, world: World, side: Side, command: Command) -> Side | None:
        if side.fence == "void":
            return side
        states = ["importing", "finished"]
        if not self.has("a target that has opened is not made void") and command.at in world.opened:
            states += OPERATED
        return side._replace(fence="void") if side.fence in states else None

    def unseal(self, world: World, side: Side, command: Command) -> Side | None:
        if side.fence != "sealed":
            again = side.fence == "locked" and side.ended == command.argument is not None
            return side if again else None
        said = side.seal == command.argument and side.seal in world.receipts
        any_will_do = not self.has("a seal ends by the receipt of its target")
        if not (said or command.force or any_will_do):
            return None
        return Side("locked", came_from=side.came_from, ended=side.seal)

    # --- Landing -------------------------------------------------------------------------

    def land(self, world: World, command: Command, after: Side) -> World:
        """The world once the command, decided just now, has landed."""
        at, side = command.at, world.sides[command.at]
        if command.name == "seal" and side.fence != "sealed":
            world = world._replace(seals=(*world.seals, (at, int(str(command.argument)))))
        receipt = self.receipt(world, command, after)
        if receipt is not None:
            world = world._replace(receipts=world.receipts | {receipt})
        if command.force and after != side:
            world = world._replace(forced=True)
        return world.with_side(at, after)

    def receipt(self, world: World, command: Command, after: Side) -> int | None:
        """The seal to whose holder the answer is a receipt."""
        if command.name != "void" or after.fence != "void" or command.argument is None:
            return None
        seal = int(str(command.argument))
        return seal if world.seals[seal][1] == command.at else None


def successors(world: World, rules: Rules, *, late: bool) -> Iterator[tuple[Command | None, World]]:
    """Every world that one more step leads to; None: what was late lands, or is lost."""
    if world.late is not None:
        at, before, after, receipt = world.late
        lost = world._replace(late=None)
        yield None, lost
        guarded = rules.has("a late command lands only where nothing has changed")
        if world.sides[at] == before or not guarded:
            receipts = lost.receipts if receipt is None else lost.receipts | {receipt}
            yield None, lost._replace(receipts=receipts).with_side(at, after)
    for command in commands(world):
        side, done = world.sides[command.at], rules.after(world, command)
        if done is None:
            continue
        landed = rules.land(world, command, done)
        if landed != world:
            yield command, landed
        waits = late and world.late is None and done != side
        if waits and command.name != "seal" and not command.force:
            receipt = rules.receipt(world, command, done)
            yield command, world._replace(late=Late(command.at, side, done, receipt))


def first(sides: int = 3) -> World:
    return World((Side("open"), *[Side("seeded")] * (sides - 1)))


Step = tuple[Command | None, World]


def explore(
    rules: Rules, sides: int = 3, *, late: bool = True, force: bool = False
) -> Iterator[tuple[World, list[Step]]]:
    """Every world that can come about, the nearest first, and where each leads. Without `force`
    none was used.
    """
    todo = deque([first(sides)])
    found = set(todo)
    while todo:
        world = todo.popleft()
        steps = successors(world, rules, late=late)
        taken = [step for step in steps if force or not step[1].forced]
        yield world, taken
        new = dict.fromkeys(after for _, after in taken if after not in found)
        found.update(new)
        todo.extend(new)
