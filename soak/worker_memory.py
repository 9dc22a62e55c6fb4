"""The memory of the Worker's process, sampled while nobody kills it."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

# What JavaScript may hold in an isolate. Without a limit V8 lets garbage lie for tens of thousands
# of requests, up to some 250 MB, which hides a leak; a deployed isolate has 128 MB for everything.
HEAP_MAX_MB = 64
SAMPLE_EVERY_S = 2.0
# Until then the heaps, their caches and the JIT fill up, some 200 MB for two isolates: so many
# answers, and this share of the segment.
WARM_UP_ANSWERS, WARM_UP_SHARE = 4000, 1 / 3
# Afterwards what garbage collection leaves in the first and in the last third may differ by so
# much; it differed by 0 to 100 MB, most on a busy machine. So a leak of some 40 KB a request shows
# within three minutes, and one of 10 KB within ten.
GROWTH_MAX_MB = 120.0
SAMPLES_MIN = 9


class Sample(NamedTuple):
    second: float
    rss_mb: float
    answers: int


class Growth(NamedTuple):
    """The least memory in each third after the warm-up, and the answers given meanwhile."""

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
    """None when there are too few samples after the warm-up to say anything."""
    if not samples:
        return None
    first, last = samples[0].answers, samples[-1].answers
    cold = max(WARM_UP_ANSWERS, (last - first) * WARM_UP_SHARE)
    warm = [each for each in samples if each.answers >= first + cold]
    if len(warm) < SAMPLES_MIN:
        return None
    third = len(warm) // 3
    parts = warm[:third], warm[third:-third], warm[-third:]
    start, middle, end = (min(sample.rss_mb for sample in part) for part in parts)
    return Growth(start, middle, end, warm[-1].answers - warm[0].answers)


def memory_is_flat(grown: Growth | None) -> str | None:
    """The process does not grow with the requests that it has served, beyond GROWTH_MAX_MB."""
    if grown is None or grown.mb <= GROWTH_MAX_MB:
        return None
    return f"{grown.mb:.0f} MB more after {grown.answers} answers"
