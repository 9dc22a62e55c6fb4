"""Fifty clients at the same moment: on one key, and on fifty keys, over one and two isolates.

Each burst is sent over fifty connections that are already open; the latency of a request counts
from the moment at which the burst is sent. Not measured: clients that come one after the other,
isolates on several machines (these share one workerd, and so one thread for JavaScript).
"""

from __future__ import annotations

import contextlib
import itertools
from functools import partial
from typing import NamedTuple

from bench import plans
from bench.measure import (
    START,
    Client,
    Json,
    Load,
    Options,
    in_turns,
    load,
    ratio,
    request,
    serve,
    spread,
)
from bench.report import Section, Table

CLIENTS = 50
BURSTS = 5  # of a round
_NUMBERS = itertools.count()


class Place(NamedTuple):
    """Where bursts go to."""

    name: str
    url: str


def run(options: Options) -> Section:
    with contextlib.ExitStack() as stack:
        one = stack.enter_context(serve(plans.plans(), source=options.source))
        two = stack.enter_context(serve(source=options.source, isolates=2))
        generator = stack.enter_context(load())
        assert one.peer
        for url in (one.url, two.url):
            Client(url).start("first", START)  # creates the tables
        places = [
            Place("1 isolate", one.url),
            Place("2 isolates", two.url),
            Place("JavaScript", one.peer),
        ]
        rows = [
            row
            for name, is_one_key in (("one key", True), ("50 keys", False))
            for row in _measure(generator, places, name, is_one_key, options.rounds)
        ]
    header = ("50 clients", "answers", "p50 ms", "p99 ms", "requests/s", "/ JavaScript")
    return Section(
        "contention",
        "Contention: 50 clients at once",
        [
            f"Statuses are of all {options.rounds} rounds of {BURSTS} bursts: one start of "
            "a key gets 201, the others get 409 (it is being executed). A 5xx would "
            "end the benchmark.",
            Table(header, rows),
            "The last requests of a burst wait for the first: p99 is close to the time that fifty "
            "take together. Two isolates share one workerd and its thread here, so they prove that "
            "the answers are right, not that two are faster than one.",
        ],
    )


def _measure(
    generator: Load, places: list[Place], name: str, is_one_key: bool, rounds: int
) -> list[list[str]]:
    bursts = {place.name: partial(_round, generator, place.url, is_one_key) for place in places}
    for burst in bursts.values():
        burst()
    results = in_turns(rounds, bursts)
    theirs = [result["rate"] for result in results["JavaScript"]]
    return [
        [f"{name}, {place}", _statuses(found, is_one_key), *_numbers(found, theirs)]
        for place, found in results.items()
    ]


def _round(generator: Load, url: str, is_one_key: bool) -> Json:
    """Without an owner in the body each client is another one."""
    bursts = []
    for _ in range(BURSTS):
        key = f"burst-{next(_NUMBERS)}"
        keys = [key if is_one_key else f"{key}-{client}" for client in range(CLIENTS)]
        bursts.append([request("POST", "/v1/starts", START, key) for key in keys])
    return generator.burst(url, bursts)


def _statuses(results: list[Json], is_one_key: bool) -> str:
    """The sum over the rounds. Fails where it is not what was promised."""
    started = sum(result["statuses"].get("201", 0) for result in results)
    pending = sum(result["statuses"].get("409", 0) for result in results)
    bursts = len(results) * BURSTS
    expected = (bursts, bursts * (CLIENTS - 1)) if is_one_key else (bursts * CLIENTS, 0)
    assert (started, pending) == expected, results
    return f"{started} × 201" + (f", {pending} × 409" if pending else "")


def _numbers(results: list[Json], theirs: list[float]) -> list[str]:
    rates = [result["rate"] for result in results]
    return [
        spread([result["p50_ms"] for result in results]).text(0),
        spread([result["p99_ms"] for result in results]).text(0),
        spread(rates).text(0),
        ratio(rates, theirs).text(),
    ]
