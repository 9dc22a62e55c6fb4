"""The inventory: the work that a drain must wait for.

Only SELECTs, through a `Reader` that cannot write. Pages are keyset pages in the order of an index,
so that new or deleted rows do not shift the others. A row that breaks a rule counts as work, and
is listed with the rule.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from fencepost import errors, limits
from fencepost.operations import IN_GENERATION, Operation
from fencepost.reservation import Reservation
from fencepost.runs import Run
from fencepost.storage.d1 import Reader, Result
from fencepost.storage.rows import Listed, Row, listed
from fencepost.storage.sql import NOW_MS, Statement

# Tables that are no category of work, and why. A test checks that every table is in one of both.
EXCUSED = {
    "fencepost_fence": "the switch itself",
    "fencepost_snapshots": "content of runs",
    "fencepost_events": "history of runs",
    "fencepost_ownership": "history of runs",
    "fencepost_subjects": "names of runs",
    "fencepost_bindings": "content of runs",
    "fencepost_audit": "history of the deployment",
    "fencepost_requests": "answers to retries, of runs and of the deployment",
    "fencepost_transfer": "what the deployment knows of its move",
}

_ENOUGH = limits.COUNT_MAX + 1

# Statuses of runs that have not ended, in the order of the index. A page has no condition
# `status >= 'pending'` beside its position: SQLite would begin every page there.
_COUNT_RUNS = f"""
SELECT COUNT(*) AS n FROM (
  SELECT 1 FROM fencepost_runs WHERE status >= 'pending' LIMIT {_ENOUGH})
"""
_PAGE_RUNS = f"""
SELECT *, {NOW_MS} AS now_ms FROM fencepost_runs
WHERE (status, principal_kind, principal_id, run_id) > (MAX(:after_status, 'pending'),
  :after_principal_kind, :after_principal_id, :after_run_id)
ORDER BY status, principal_kind, principal_id, run_id LIMIT :limit
"""

_COUNT_RESERVATIONS = f"""
SELECT COUNT(*) AS n FROM (
  SELECT 1 FROM fencepost_reservations WHERE state <> 'terminal' LIMIT {_ENOUGH})
"""
_PAGE_RESERVATIONS = """
SELECT * FROM fencepost_reservations
WHERE state <> 'terminal' AND (run_id, key) > (:after_run_id, :after_key)
ORDER BY run_id, key LIMIT :limit
"""

# An operation that runs in a run that has ended can do nothing any more: nobody owns its run. One
# whose lease is of an earlier generation is owed, as one whose lease has ended.
_COUNT_OPERATIONS = f"""
SELECT COUNT(*) AS n FROM (
  SELECT 1 FROM fencepost_operations AS step LEFT JOIN fencepost_runs AS run USING (run_id)
  WHERE step.state = 'running' AND run.finished_at_ms IS NULL LIMIT {_ENOUGH})
"""
_PAGE_OPERATIONS = f"""
SELECT step.*, {IN_GENERATION}, {NOW_MS} AS now_ms
FROM fencepost_operations AS step LEFT JOIN fencepost_runs AS run USING (run_id)
WHERE step.state = 'running' AND run.finished_at_ms IS NULL
  AND (step.run_id, step.operation_id) > (:after_run_id, :after_operation_id)
ORDER BY step.run_id, step.operation_id LIMIT :limit
"""


Owed = Run | Reservation | Operation


class Category(NamedTuple):
    """A category of work. `keys`: the columns of its cursor, in the order of its index."""

    name: str
    table: str
    keys: tuple[str, ...]
    count_sql: str
    page_sql: str
    from_row: Callable[[Row], Owed]
    kind: str = "work"


CATEGORIES = {
    category.name: category
    for category in (
        Category(
            "runs",
            "fencepost_runs",
            ("status", "principal_kind", "principal_id", "run_id"),
            _COUNT_RUNS,
            _PAGE_RUNS,
            Run.from_row,
        ),
        Category(
            "start-reservations",
            "fencepost_reservations",
            ("run_id", "key"),
            _COUNT_RESERVATIONS,
            _PAGE_RESERVATIONS,
            Reservation.from_row,
        ),
        Category(
            "operations",
            "fencepost_operations",
            ("run_id", "operation_id"),
            _COUNT_OPERATIONS,
            _PAGE_OPERATIONS,
            Operation.from_row,
        ),
    )
}


class Counted(NamedTuple):
    """How many there are, up to limits.COUNT_MAX; `more` if there are more than that."""

    number: int
    more: bool

    @classmethod
    def of(cls, result: Result) -> Counted:
        n = result.rows[0]["n"]
        return cls(min(n, limits.COUNT_MAX), n > limits.COUNT_MAX)


class CategoryPage(NamedTuple):
    """`counted` is on the first page only. `more`: the page is full, so there may be another."""

    items: list[Listed[Owed]]
    more: bool
    counted: Counted | None


async def page(
    reader: Reader, category: Category, after: tuple[str, ...] | None, limit: int
) -> CategoryPage:
    """A page of one category. A missing table gives an empty page without a count."""
    first = after is None
    place = zip(category.keys, after or ("",) * len(category.keys), strict=True)
    values = {f"after_{key}": value for key, value in place}
    statements = [Statement(category.page_sql, **values, limit=limit)]
    if first:
        statements.append(Statement(category.count_sql))
    try:
        results = await reader.read(statements)
    except errors.MissingTable:
        return CategoryPage([], False, None)
    rows = results[0].rows
    counted = Counted.of(results[1]) if first else None
    return CategoryPage(listed(rows, category.from_row), len(rows) == limit, counted)


async def counts(reader: Reader) -> dict[str, Counted]:
    """How much work each category has, in one transaction. A missing table has none."""
    try:
        results = await reader.read([Statement(c.count_sql) for c in CATEGORIES.values()])
    except errors.MissingTable:
        return {
            name: (await page(reader, category, None, 1)).counted or Counted(0, False)
            for name, category in CATEGORIES.items()
        }
    return {name: Counted.of(result) for name, result in zip(CATEGORIES, results, strict=True)}
