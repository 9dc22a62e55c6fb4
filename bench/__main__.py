"""The benchmarks: prints what it found, and writes bench/results.md when all sections ran.

`npm run bench -- --only start,trips --rounds 5 --seconds 2 --sizes 100,10000,1000000`
"""

from __future__ import annotations

import argparse
import importlib
import sys
import time
from pathlib import Path

from bench.measure import PROJECT, Options, say

RESULTS = PROJECT / "bench" / "results.md"
# In the order of the results; each is a module with `run(options) -> Section`.
SECTIONS = (
    "start",
    "profile",
    "trips",
    "scale",
    "move",
    "contention",
    "races",
    "waiting",
    "ctrlrun",
    "cold",
)
MODULES = {"ctrlrun": "ctrlrun_peer", "cold": "cold_start"}


def main() -> None:
    arguments = _arguments()
    sys.path[:0] = [str(arguments.source), str(PROJECT / "python_modules")]
    times = (arguments.rounds, arguments.seconds)
    options = Options(*times, arguments.sizes, arguments.source, arguments.moved)
    from bench import report

    started, sections = time.monotonic(), []
    for name in arguments.only:
        say(f"{name} …")
        module = importlib.import_module(f"bench.{MODULES.get(name, name)}")
        sections.append(module.run(options))
        print(sections[-1].text(), end="\n\n", flush=True)
    text = report.document(sections, options, (time.monotonic() - started) / 60)
    if arguments.write or arguments.only == list(SECTIONS):
        RESULTS.write_text(text)
        say(f"written to {RESULTS.relative_to(PROJECT)}")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="npm run bench --", description=__doc__)
    parser.add_argument("--only", type=_names, default=list(SECTIONS), help=",".join(SECTIONS))
    parser.add_argument("--rounds", type=int, default=5, help="rounds in turns (default 5)")
    parser.add_argument("--seconds", type=float, default=2, help="length of a round (default 2)")
    parser.add_argument("--sizes", type=_sizes, default=[100, 10_000, 1_000_000], help="of `scale`")
    parser.add_argument("--moved", type=_sizes, default=[10_000, 100_000], help="runs of `move`")
    parser.add_argument("--source", type=Path, default=PROJECT / "src", help="Python sources")
    parser.add_argument("--write", action="store_true", help="write results.md even if not all ran")
    arguments = parser.parse_args()
    if arguments.rounds < 1 or arguments.seconds <= 0:
        parser.error("rounds and seconds are positive")
    arguments.source = arguments.source.resolve()
    return arguments


def _names(text: str) -> list[str]:
    names = text.split(",")
    if unknown := [name for name in names if name not in SECTIONS]:
        raise argparse.ArgumentTypeError(f"not sections: {', '.join(unknown)}")
    return [name for name in SECTIONS if name in names]


def _sizes(text: str) -> list[int]:
    sizes = [int(size) for size in text.split(",")]
    if min(sizes) < 100:
        raise argparse.ArgumentTypeError("a size is at least 100, so that pages are full")
    return sizes


if __name__ == "__main__":
    main()
