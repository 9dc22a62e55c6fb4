"""Metrics: what a monitor watches, as OpenMetrics 1.0 text.

Every number is of the moment, from one round trip, and every count ends at limits.COUNT_MAX, which
then means as many or more: a monitor asks often, and D1 bills the rows read.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from fencepost import errors, fence, inventory, limits
from fencepost.fence import Fence, FenceState
from fencepost.inventory import Counted
from fencepost.runs import RunStatus
from fencepost.storage.d1 import Reader
from fencepost.storage.sql import NOW_MS, Statement

MEDIA = "application/openmetrics-text; version=1.0.0; charset=utf-8"

_ENOUGH = limits.COUNT_MAX + 1

_COUNT_RUNS = f"""
SELECT COUNT(*) AS n FROM (
  SELECT 1 FROM fencepost_runs WHERE status = :status LIMIT {_ENOUGH})
"""

# Unsettled starts that a person must look at, among the first of all unsettled ones: they have no
# run, or one whose lease lapsed, and no claim that is younger than a lease.
_COUNT_UNRESOLVABLE = f"""
SELECT COUNT(*) AS n FROM (
  SELECT run_id, state FROM fencepost_reservations
  WHERE state <> 'terminal' AND joined = 0 LIMIT {_ENOUGH}) AS first
LEFT JOIN fencepost_runs AS run USING (run_id)
WHERE first.state = 'started'
  AND (run.run_id IS NULL OR (run.status = 'running' AND run.lease_expires_at_ms < {NOW_MS}
    AND (run.claimed_at_ms IS NULL OR run.claimed_at_ms + run.lease_ms < {NOW_MS})))
"""


async def read(reader: Reader) -> str:
    """The text of all metrics. One round trip. Raises FenceUnreadable."""
    statements = [
        fence.read_statement(),
        Statement(_COUNT_UNRESOLVABLE),
        *(Statement(_COUNT_RUNS, status=status) for status in RunStatus),
        *(Statement(category.count_sql) for category in inventory.CATEGORIES.values()),
    ]
    try:
        gate, *counted = await reader.read(statements)
    except errors.MissingTable:
        return _text(Fence.from_rows([]), [0] * (len(statements) - 1))
    return _text(Fence.from_rows(gate.rows), [Counted.of(each).number for each in counted])


def _text(gate: Fence, counted: list[int]) -> str:
    unresolvable, *rest = counted
    by_status, owed = rest[: len(RunStatus)], rest[len(RunStatus) :]
    most = f"{limits.COUNT_MAX} means as many or more."
    lines = [
        "# TYPE fencepost_fence_state stateset",
        "# HELP fencepost_fence_state The state of the fence.",
        *_samples("fencepost_fence_state", "fencepost_fence_state", FenceState, _is(gate.state)),
        "# TYPE fencepost_fence_revision gauge",
        "# HELP fencepost_fence_revision The number of transitions of the fence so far.",
        f"fencepost_fence_revision {gate.revision}",
        "# TYPE fencepost_runs gauge",
        f"# HELP fencepost_runs Runs by status. {most}",
        *_samples("fencepost_runs", "status", RunStatus, by_status),
        "# TYPE fencepost_inventory gauge",
        f"# HELP fencepost_inventory Work that a drain waits for, by category. {most}",
        *_samples("fencepost_inventory", "category", inventory.CATEGORIES, owed),
        "# TYPE fencepost_starts_unresolvable gauge",
        "# HELP fencepost_starts_unresolvable Starts that a person must resolve, among the first "
        f"{limits.COUNT_MAX} that are not settled.",
        f"fencepost_starts_unresolvable {unresolvable}",
        "# EOF",
    ]
    return "\n".join(lines) + "\n"


def _is(state: FenceState) -> Iterator[int]:
    return (int(state is each) for each in FenceState)


def _samples(name: str, label: str, values: Iterable[str], numbers: Iterable[int]) -> list[str]:
    pairs = zip(values, numbers, strict=True)
    return [f'{name}{{{label}="{value}"}} {number}' for value, number in pairs]
