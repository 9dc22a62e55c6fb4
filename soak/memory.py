"""The memory of the Worker's process, sampled while nobody kills it."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import NamedTuple

# What JavaScript may hold in an isolate. Without a limit V8 lets garbage lie for tens of thousands
# of requests, up to some 250 MB, which hides a leak; a deployed isolate has 128 MB for everything.
HEAP_MAX_MB = 64
SAMPLE_EVERY_S = 2.0
# Of the segment without kills: caches, the heap of each isolate and its JIT fill up first.
WARM_UP_SHARE = 0.25
# Medians of the first and the last third after the warm-up may differ by so much.
GROWTH_MAX_MB = 40.0
SAMPLES_MIN = 9


class Sample(NamedTuple):
    second: float
    rss_mb: float
    answers: int


class Growth(NamedTuple):
    """Medians of the thirds after the warm-up, and the answers given meanwhile."""

    start_mb: float
    middle_mb: float
    end_mb: float
    answers: int

    @property
    def mb(self) -> float:
        return self.end_mb - self.start_mb


def rss_mb(pid: int) -> float | None:
    """What the process holds in memory; None when it is gone."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return None
    found = [line.split()[1] for line in status.splitlines() if line.startswith("VmRSS:")]
    return int(found[0]) / 1024 if found else None


def growth(samples: list[Sample]) -> Growth | None:
    """None when there are too few samples to say anything."""
    warm = samples[int(len(samples) * WARM_UP_SHARE) :]
    if len(warm) < SAMPLES_MIN:
        return None
    third = len(warm) // 3
    parts = warm[:third], warm[third:-third], warm[-third:]
    start, middle, end = (statistics.median(sample.rss_mb for sample in part) for part in parts)
    return Growth(start, middle, end, warm[-1].answers - warm[0].answers)


def memory_is_flat(grown: Growth | None) -> str | None:
    """The process does not grow with the requests that it has served, beyond GROWTH_MAX_MB."""
    if grown is None or grown.mb <= GROWTH_MAX_MB:
        return None
    return f"{grown.mb:.0f} MB more after {grown.answers} answers: {grown}"
