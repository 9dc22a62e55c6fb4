"""`npm run soak`: runs one soak, prints what it did and found; exit code 0 when all held."""

from __future__ import annotations

import argparse
import asyncio
import random
import shutil
import signal
import sys
import tempfile
from pathlib import Path

from soak import worker_memory
from soak.soak import Options, Soak


def main() -> None:
    options = _options()
    print(f"soak: {options.minutes:g} minutes, {options.clients} clients, --seed {options.seed}")
    folder = Path(tempfile.mkdtemp(prefix="fencepost-soak-"))
    soak, keep = Soak(options, folder), True
    try:
        asyncio.run(_until_signalled(soak))
        _summary(soak)
        keep = bool(soak.findings.counts)
    except asyncio.CancelledError:
        keep = bool(soak.findings.counts)
        sys.exit("stopped")
    finally:
        if keep:
            print(f"the database and the log are in {folder}")
        else:
            shutil.rmtree(folder)
    sys.exit(1 if keep else 0)


def _options() -> Options:
    parser = argparse.ArgumentParser(prog="npm run soak --", description=__doc__)
    parser.add_argument("--minutes", type=float, default=3, help="how long (default 3)")
    parser.add_argument("--seed", type=int, help="of the clients' choices (default: a random one)")
    parser.add_argument("--clients", type=int, default=12, help="at once (default 12)")
    given = parser.parse_args()
    if given.minutes <= 0 or given.clients < 1:
        parser.error("minutes and clients are positive")
    seed = random.SystemRandom().randrange(10**6) if given.seed is None else given.seed
    return Options(given.minutes, seed, given.clients)


async def _until_signalled(soak: Soak) -> None:
    """Ctrl-C and the like cancel the soak, once: it then ends what it started."""
    running = asyncio.ensure_future(soak.run())
    loop = asyncio.get_running_loop()
    for name in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(name, running.cancel)
    await running


def _summary(soak: Soak) -> None:
    counts, grown = soak.caller.counts, worker_memory.growth(soak.samples)
    lines = {
        "kills": soak.kills,
        "answers": counts["answers"],
        "with faults": counts["faults"],
        "cut off by a kill": counts["cut off"],
        "slowest answer": f"{soak.caller.slowest_s:.1f} s",
        "starts": soak.shared.added,
        "runs intact": soak.intact,
        "purged": counts["purged"],
        "fence transitions": len(soak.caller.knowledge.fence),
        "lost replies": _counted(soak.branches()),
        "answers by code": _counted(soak.caller.codes),
        "memory": "too few answers to say" if grown is None else _memory(grown),
        "violations": _counted(soak.findings.counts) or "none",
    }
    print("\n".join(f"{name:>20}  {value}" for name, value in lines.items()), flush=True)


def _counted(counter: dict[str, int]) -> str:
    ranked = sorted(counter.items(), key=lambda item: -item[1])
    return ", ".join(f"{name} {count}" for name, count in ranked)


def _memory(grown: worker_memory.Growth) -> str:
    return (
        f"at least {grown.start_mb:.0f}, {grown.middle_mb:.0f}, {grown.end_mb:.0f} MB in the three "
        f"thirds of {grown.answers} answers"
    )


if __name__ == "__main__":
    main()
