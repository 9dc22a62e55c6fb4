"""Rows read and time of every keyed operation and every list, in small and in large tables.

One Worker a size, all of them up at once and measured in turns. Not measured: databases that do
not fit into memory, many clients at once, D1's own storage.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from bench import seed as seeds
from bench.measure import (
    AUTHORIZATION,
    START,
    Answer,
    Client,
    Json,
    Options,
    ratio,
    say,
    serve,
    spread,
)
from bench.operations import KEYED, Call, Operation, World, perform, send
from bench.report import Section, Table
from bench.seed import LONG_RUN, MINE, Seed
from fencepost import limits

LIMIT = 5  # a page that is full also in the smallest tables
MINE_TOKEN = "Bearer seeder-token"  # noqa: S105
FILES = "v3/d1/miniflare-D1DatabaseObject"


class Place(NamedTuple):
    """A Worker over a seeded database, and two ways to it: everybody's and MINE alone."""

    seed: Seed
    world: World
    mine: Client


class Look(NamedTuple):
    """A request that writes nothing, on what was seeded; `mine`: by the principal MINE."""

    name: str
    call: Callable[[Seed], Call]
    mine: bool = False


class Measured(NamedTuple):
    """Answers of one operation by size, a list of the rounds each."""

    name: str
    answers: dict[int, list[Answer]]

    @property
    def flat_from(self) -> int | None:
        """The least size from which on the same rows are read, if there is one but the last."""
        *smaller, last = self.answers
        flat = None
        for size in reversed(smaller):
            if self._read(size) != self._read(last):
                break
            flat = size
        return flat

    def _read(self, size: int) -> set[int]:
        return {answer.read for answer in self.answers[size]}


def run(options: Options) -> Section:
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        seeded = [_seeded(folder, size, options) for size in options.sizes]
        places = [stack.enter_context(_place(folder, seed, options)) for seed in seeded]
        keyed = [_perform(places, operation, options.rounds) for operation in KEYED]
        looks = [_look(places, look, options.rounds) for look in LOOKS]
    measured = [*keyed, *looks]
    flat = sum(m.flat_from == options.sizes[0] for m in measured)
    sizes = [f"{size:,}" for size in options.sizes]
    header = (
        "operation",
        *(f"rows read at {size}" for size in sizes),
        *(f"ms at {size}" for size in sizes),
        "time, last / first",
        "flat",
    )
    return Section(
        "scale",
        f"Rows read and time at {', '.join(sizes)} reservations and runs",
        [
            f"Flat means: exactly as many rows read at every size, or from one on. {flat} of "
            f"{len(measured)} are flat at every size. A page has {LIMIT} items, so that it is full "
            "at every size.",
            Table(header, [_row(m, options.sizes[0]) for m in measured]),
            _why(measured, options.sizes[0]),
        ],
    )


def _why(measured: list[Measured], least: int) -> str:
    growing = [m.name for m in measured if m.flat_from is None]
    later = [m.name for m in measured if m.flat_from not in (None, least)]
    return (
        f"Growing: {'; '.join(growing) or 'nothing'}. Flat once there is more than it looks at: "
        f"{'; '.join(later) or 'nothing'}. An inventory counts the work that is left, here two "
        f"fifths of all, up to {limits.COUNT_MAX:,}."
    )


# --- Seeding -----------------------------------------------------------------------------


def _seeded(folder: Path, size: int, options: Options) -> Seed:
    started = time.monotonic()
    with serve(**_settings(folder, size, options)) as served:
        Client(served.url).start("first", START)  # creates the tables, and the file
    [file] = (p for p in (folder / str(size) / FILES).glob("*.sqlite") if p.stem != "metadata")
    seed = Seed(size, time.time_ns() // 1_000_000)
    seeds.write(file, seed)
    megabytes = file.stat().st_size / 2**20
    say(f"  {size:,} runs: {megabytes:.0f} MiB in {time.monotonic() - started:.0f} s")
    return seed


@contextlib.contextmanager
def _place(folder: Path, seed: Seed, options: Options) -> Iterator[Place]:
    with serve(**_settings(folder, seed.size, options)) as served:
        place = Place(seed, World(served.url), Client(served.url, MINE_TOKEN))
        _check(place)
        place.world.run()  # the isolate looks at the schema before its first write
        yield place


def _settings(folder: Path, size: int, options: Options) -> Json:
    return {"source": options.source, "persist": folder / str(size), "tokens": _tokens()}


def _tokens() -> list[dict[str, object]]:
    def entry(authorization: str, id: str, scopes: list[str]) -> dict[str, object]:
        token = authorization.removeprefix("Bearer ")
        sha256 = hashlib.sha256(token.encode()).hexdigest()
        return {"sha256": sha256, "principal": {"kind": "service", "id": id}, "scopes": scopes}

    scopes = ["start", "work", "read"]
    return [
        entry(AUTHORIZATION, "dev", [*scopes, "operate"]),
        entry(MINE_TOKEN, MINE, scopes),
    ]


def _check(place: Place) -> None:
    """What was seeded is what the Worker would have written, as far as it can tell."""
    seed = place.seed
    for number in range(seed.middle, seed.middle + 10):
        history = place.world.client.get(f"/v1/runs/{seed.run_id(number)}/integrity").body
        assert history["intact"], history
    history = place.world.client.get(f"/v1/runs/{LONG_RUN}/integrity").body
    assert history["intact"], history
    assert history["events"] == seed.long + 1


# --- Looks at what was seeded --------------------------------------------------------------


def _get(path: str, *cursor: str, **query: str | int) -> Call:
    if cursor:
        query["cursor"] = quote(json.dumps(cursor, separators=(",", ":")))
    pairs = [f"{name}={value}" for name, value in {"limit": LIMIT, **query}.items()]
    return Call("GET", f"{path}?{'&'.join(pairs)}")


def _after(seed: Seed) -> tuple[str, str, str]:
    return "service", MINE, seed.run_id(seed.middle)


def _round(seed: Seed) -> tuple[str, str]:
    return str(seed.lineage(seed.middle)[1]), seed.run_id(seed.middle)


def _replay(seed: Seed) -> Call:
    """Of a run of MINE that was completed."""
    number = seed.middle + 6
    id, round = seed.lineage(number)
    body = {**START, "lineage": {"id": id, "round": round}}
    return Call("POST", "/v1/starts", body, seed.key(number))


def _list(
    name: str, path: str, cursor: Callable[[Seed], tuple[str, ...]], *, mine: bool = False
) -> list[Look]:
    """A first and a middle page; `{middle}` in the path is the run in the middle."""
    status = {"status": "running"} if "status" in name else {}

    def page(seed: Seed, *after: str) -> Call:
        return _get(path.replace("{middle}", seed.run_id(seed.middle)), *after, **status)

    return [
        Look(f"{name}, first page", page, mine),
        Look(f"{name}, middle page", lambda seed: page(seed, *cursor(seed)), mine),
    ]


_LONG = f"/v1/runs/{LONG_RUN}"
_INVENTORY = "/v1/inventory"

LOOKS = [
    Look("start in the middle, replayed", _replay, mine=True),
    Look("start in the middle, read", lambda s: _get(f"/v1/starts/{s.key(s.middle)}"), mine=True),
    Look("run in the middle, read", lambda s: _get(f"/v1/runs/{s.run_id(s.middle)}"), mine=True),
    *_list("runs", "/v1/runs", _after),
    *_list("runs of a principal", "/v1/runs", _after, mine=True),
    *_list("runs of a status", "/v1/runs", _after),
    *_list("runs of a principal and status", "/v1/runs", _after, mine=True),
    *_list("events of a long run", f"{_LONG}/events", lambda s: (str(s.long // 2),)),
    *_list("ownership of a long run", f"{_LONG}/ownership", lambda s: (str(s.long // 2),)),
    *_list("bindings of a long run", f"{_LONG}/bindings", lambda s: (str(s.long // 2), "a")),
    *_list("a long lineage", "/v1/runs/{middle}/lineage", _round),
    Look("latest of a long lineage", lambda s: _get(f"/v1/runs/{s.run_id(s.middle)}/latest")),
    *_list("audit", "/v1/audit", lambda s: (str(s.long // 2),)),
    *_list("inventory of runs", f"{_INVENTORY}/runs", lambda s: ("running", *_after(s))),
    *_list(
        "inventory of start-reservations",
        f"{_INVENTORY}/start-reservations",
        lambda s: (s.run_id(s.middle), ""),
    ),
    *_list(
        "inventory of operations",
        f"{_INVENTORY}/operations",
        lambda s: (s.run_id(s.middle), ""),
    ),
    Look("inventory", lambda seed: Call("GET", _INVENTORY)),
]


# --- Measuring ---------------------------------------------------------------------------


def _perform(places: list[Place], operation: Operation, rounds: int) -> Measured:
    say(f"  {operation.name}")
    measured = Measured(operation.name, {place.seed.size: [] for place in places})
    for _ in range(rounds):
        for place in places:
            measured.answers[place.seed.size] += perform(place.world, operation, 1)
    return measured


def _look(places: list[Place], look: Look, rounds: int) -> Measured:
    say(f"  {look.name}")
    measured = Measured(look.name, {place.seed.size: [] for place in places})
    for _ in range(rounds):
        for place in places:
            client = place.mine if look.mine else place.world.client
            measured.answers[place.seed.size].append(send(client, look.call(place.seed)))
    return measured


def _row(measured: Measured, least: int) -> list[str]:
    some = list(measured.answers.values())
    times = [[answer.ms for answer in answers] for answers in some]
    return [
        measured.name,
        *(_range([answer.read for answer in answers]) for answers in some),
        *(f"{spread(ms).median:.1f}" for ms in times),
        ratio(times[-1], times[0]).text(),
        _flat(measured.flat_from, least),
    ]


def _flat(size: int | None, least: int) -> str:
    if size is None:
        return "NO"
    return "yes" if size == least else f"from {size:,}"


def _range(counts: list[int]) -> str:
    low, high = min(counts), max(counts)
    return f"{low:,}" if low == high else f"{low:,}–{high:,}"
