"""Purging runs and keys that are past their retention.

A run is deleted when it ended longer ago than the run retention, with its state, events,
operations, bindings and facts, in one transaction. Its reservation is kept with a new time: from
then the key retention counts, and the key cannot be started again meanwhile. Never purged: a run
that has not ended, an unsettled reservation, the audit.
"""

from __future__ import annotations

import json
from typing import NamedTuple

from fencepost import audit, errors, limits
from fencepost.identifiers import Principal, mint_token
from fencepost.settings import Retention
from fencepost.storage import writes
from fencepost.storage.d1 import Database
from fencepost.storage.sql import NOW_MS, Parameter, Statement

DAY_MS = 86_400_000


class Purged(NamedTuple):
    """How much a purge deleted; `more` if it stopped at its limit."""

    runs: int
    reservations: int
    more: bool


# The runs of this chunk: ended before :runs_before_ms, oldest first, at most :size of them. Every
# statement of the chunk selects the same runs, so the runs themselves are deleted last.
_DUE_RUNS = """
SELECT run_id FROM fencepost_runs WHERE finished_at_ms IS NOT NULL
  AND finished_at_ms < :runs_before_ms ORDER BY finished_at_ms LIMIT :size"""
_DUE_RESERVATIONS = """
SELECT key FROM fencepost_reservations AS held
WHERE state = 'terminal' AND updated_at_ms < :keys_before_ms
  AND NOT EXISTS (SELECT 1 FROM fencepost_runs WHERE run_id = held.run_id)
  ORDER BY updated_at_ms LIMIT :size"""

_NOW = f"SELECT {NOW_MS} AS now_ms"

# Decides: there is anything to purge.
_AUDIT_PURGE = f"""
INSERT {audit.INTO}
SELECT 'purge', :principal_kind, :principal_id, 'deployment', NULL, NULL,
  json_object('runs', due.runs, 'reservations', due.reservations), :token, :now_ms
FROM (SELECT
  (SELECT COUNT(*) FROM ({_DUE_RUNS})) AS runs,
  (SELECT COUNT(*) FROM ({_DUE_RESERVATIONS})) AS reservations) AS due
WHERE due.runs + due.reservations > 0
RETURNING after
"""

_DELETE_EVENTS = f"DELETE FROM fencepost_events WHERE run_id IN ({_DUE_RUNS})"
_DELETE_OWNERSHIP = f"DELETE FROM fencepost_ownership WHERE run_id IN ({_DUE_RUNS})"
_DELETE_SUBJECTS = f"DELETE FROM fencepost_subjects WHERE run_id IN ({_DUE_RUNS})"
_DELETE_BINDINGS = f"DELETE FROM fencepost_bindings WHERE run_id IN ({_DUE_RUNS})"
_DELETE_OPERATIONS = f"DELETE FROM fencepost_operations WHERE run_id IN ({_DUE_RUNS})"
_DELETE_SNAPSHOTS = f"DELETE FROM fencepost_snapshots WHERE run_id IN ({_DUE_RUNS})"
# The key's retention begins now. If the run ended and its reservation is unsettled, which no path
# of this build leaves behind, it is settled here.
_RESTAMP_SETTLED = f"""
UPDATE fencepost_reservations SET updated_at_ms = MAX(updated_at_ms, :now_ms)
WHERE state = 'terminal' AND run_id IN ({_DUE_RUNS})
"""
_SETTLE_UNSETTLED = f"""
UPDATE fencepost_reservations SET state = 'terminal', updated_at_ms = MAX(updated_at_ms, :now_ms),
  outcome = (SELECT status FROM fencepost_runs WHERE run_id = fencepost_reservations.run_id)
WHERE state <> 'terminal' AND run_id IN ({_DUE_RUNS})
"""
_DELETE_RUNS = f"DELETE FROM fencepost_runs WHERE run_id IN ({_DUE_RUNS})"
_DELETE_RESERVATIONS = f"DELETE FROM fencepost_reservations WHERE key IN ({_DUE_RESERVATIONS})"


async def purge(
    db: Database,
    principal: Principal,
    retention: Retention,
    limit: int,
    now_ms: int | None = None,
) -> Purged:
    """Delete at most `limit` runs and `limit` reservations that are past their retention.

    It works in chunks of limits.PURGE_CHUNK_ROWS. Each chunk is one transaction with its audit
    row, so a purge that stops leaves no run half-deleted. A missing table has nothing to purge.
    """
    runs = reservations = 0
    try:
        if now_ms is None:
            [clock] = await db.read([Statement(_NOW)])
            now_ms = int(clock.rows[0]["now_ms"])
        while limit > 0:
            size = min(limit, limits.PURGE_CHUNK_ROWS)
            written = await writes.write(db, _chunk(principal, retention, size, now_ms))
            if not written.won:
                return Purged(runs, reservations, more=False)
            due = json.loads(written.rows[0]["after"])
            runs, reservations = runs + due["runs"], reservations + due["reservations"]
            limit -= size
    except errors.MissingTable:
        return Purged(runs, reservations, more=False)
    return Purged(runs, reservations, more=True)


def _chunk(principal: Principal, retention: Retention, size: int, now_ms: int) -> writes.Write:
    token, keep_key_days = mint_token(), max(retention.key_days, retention.run_days)
    runs: dict[str, Parameter] = {
        "runs_before_ms": now_ms - retention.run_days * DAY_MS,
        "size": size,
    }
    keys_before_ms = now_ms - keep_key_days * DAY_MS
    statements = [
        Statement(
            _AUDIT_PURGE,
            **runs,
            keys_before_ms=keys_before_ms,
            principal_kind=principal.kind,
            principal_id=principal.id,
            token=token,
            now_ms=now_ms,
        ),
        Statement(_DELETE_RESERVATIONS, keys_before_ms=keys_before_ms, size=size),
        Statement(_DELETE_EVENTS, **runs),
        Statement(_DELETE_OWNERSHIP, **runs),
        Statement(_DELETE_SUBJECTS, **runs),
        Statement(_DELETE_BINDINGS, **runs),
        Statement(_DELETE_OPERATIONS, **runs),
        Statement(_DELETE_SNAPSHOTS, **runs),
        Statement(_RESTAMP_SETTLED, **runs, now_ms=now_ms),
        Statement(_SETTLE_UNSETTLED, **runs, now_ms=now_ms),
        Statement(_DELETE_RUNS, **runs),
    ]
    return writes.Write(statements, [], audit.receipt(token))
