"""Round trips and rows of every operation, and what each trip costs when D1 is far away.

A delaying binding in the local runner makes each trip 5 ms longer, as a D1 in the same region is.
The naive sequence is the very same Worker with its batches taken apart by that binding: every
statement a trip (and a transaction) of its own, one awaited after the other. Not measured: a real
edge, whose distance varies; what the naive sequence loses by not being atomic.
"""

from __future__ import annotations

from typing import NamedTuple

from bench.measure import START, Answer, Options, ratio, say, serve, spread
from bench.operations import KEYED, Operation, World, perform
from bench.report import Section, Table

DELAY_MS = 5


class Found(NamedTuple):
    """The answers of one operation, as it is and taken apart."""

    operation: Operation
    ours: list[Answer]
    naive: list[Answer]


def run(options: Options) -> Section:
    with serve(source=options.source, tripDelayMs=DELAY_MS) as served:
        world = World(served.url)
        world.client.start("first", START)  # creates the tables
        found = [_find(world, operation, options.rounds) for operation in KEYED]
    over = [line for f in found for line in _over_budget(f)]
    header = (
        *("operation", "trips", "rows read", "rows written", "ms"),
        *("naive trips", "naive ms", "naive / ours"),
    )
    return Section(
        "trips",
        f"Round trips and rows, and time with {DELAY_MS} ms more a trip",
        [
            "Round trips and rows are exact and the same in every round. Behind a ≤ is the budget. "
            + ("All are within their budgets." if not over else "OVER BUDGET: " + "; ".join(over)),
            Table(header, [_row(f) for f in found]),
            f"Times are of one client, medians of {options.rounds} in turns, with D1 {DELAY_MS} ms "
            "away. The naive sequence is the same Worker, which sends each of the same statements "
            "in its own round trip; if it were interrupted, it would also leave half a start.",
        ],
    )


def _find(world: World, operation: Operation, rounds: int) -> Found:
    say(f"  {operation.name}")
    ours, naive = [], []
    for _ in range(rounds):
        ours += perform(world, operation, 1)
        naive += perform(world, operation, 1, **{"X-Local-One-By-One": "1"})
    return Found(operation, ours, naive)


def _over_budget(found: Found) -> list[str]:
    """What differs between rounds, and what is above its budget."""
    name, _, trips, written, *_ = found.operation
    counts = {(answer.trips, answer.read, answer.written) for answer in found.ours}
    lines = [] if len(counts) == 1 else [f"{name} varies: {sorted(counts)}"]
    for answer in found.ours:
        if trips is not None and answer.trips > trips:
            lines.append(f"{name}: {answer.trips} trips")
        if written is not None and answer.written > written:
            lines.append(f"{name}: {answer.written} rows written")
    return lines


def _row(found: Found) -> list[str]:
    operation, ours, naive = found
    times, slower = [answer.ms for answer in ours], [answer.ms for answer in naive]
    return [
        operation.name,
        _with_budget(ours[0].trips, operation.trips),
        str(ours[0].read),
        _with_budget(ours[0].written, operation.written),
        f"{spread(times).median:.1f}",
        str(naive[0].local_trips),
        f"{spread(slower).median:.1f}",
        ratio(slower, times).text(1),
    ]


def _with_budget(count: int, budget: int | None) -> str:
    return str(count) if budget is None else f"{count} ≤ {budget}"
