"""Purging runs and keys that are past their retention.

A run is deleted when it ended longer ago than the run retention, with its state, events,
operations, bindings and facts, in one transaction. Its reservation is kept with a new time: from
then the key retention counts, and the key cannot be started again meanwhile. Never purged: a run
that has not ended, an unsettled reservation, the audit.
"""

from __future__ import annotations

import json
from typing import NamedTuple

from fencepost import audit, errors, limits, requests
from fencepost.identifiers import Principal, mint_token
from fencepost.settings import Retention
from fencepost.storage import writes
from fencepost.storage.d1 import Database
from fencepost.storage.rows import Row
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

# The statements after the first act only if that wrote: guarded by the token of its audit row.
_CHUNK_RUNS = f"SELECT run_id FROM ({_DUE_RUNS}) WHERE {audit.last_is(':token')}"
_CHUNK_RESERVATIONS = f"SELECT key FROM ({_DUE_RESERVATIONS}) WHERE {audit.last_is(':token')}"

# As requests.UNUSED, for each chunk of one request.
_UNUSED = f"""(:request_key IS NULL OR NOT EXISTS (SELECT 1 FROM fencepost_requests
    WHERE {requests.MINE} AND write_token <> :request_token))"""

# Decides: there is anything to purge.
_AUDIT_PURGE = f"""
INSERT {audit.INTO}
SELECT 'purge', :principal_kind, :principal_id, 'deployment', NULL, NULL,
  json_object('runs', due.runs, 'reservations', due.reservations), :token, :now_ms
FROM (SELECT
  (SELECT COUNT(*) FROM ({_DUE_RUNS})) AS runs,
  (SELECT COUNT(*) FROM ({_DUE_RESERVATIONS})) AS reservations) AS due
WHERE due.runs + due.reservations > 0 AND {_UNUSED}
RETURNING after
"""

_DELETE_EVENTS = f"DELETE FROM fencepost_events WHERE run_id IN ({_CHUNK_RUNS})"
_DELETE_OWNERSHIP = f"DELETE FROM fencepost_ownership WHERE run_id IN ({_CHUNK_RUNS})"
_DELETE_SUBJECTS = f"DELETE FROM fencepost_subjects WHERE run_id IN ({_CHUNK_RUNS})"
_DELETE_BINDINGS = f"DELETE FROM fencepost_bindings WHERE run_id IN ({_CHUNK_RUNS})"
_DELETE_REQUESTS = f"DELETE FROM fencepost_requests WHERE run_id IN ({_CHUNK_RUNS})"
_DELETE_OPERATIONS = f"DELETE FROM fencepost_operations WHERE run_id IN ({_CHUNK_RUNS})"
_DELETE_SNAPSHOTS = f"DELETE FROM fencepost_snapshots WHERE run_id IN ({_CHUNK_RUNS})"
_DELETE_PARTS = (
    _DELETE_EVENTS,
    _DELETE_OWNERSHIP,
    _DELETE_SUBJECTS,
    _DELETE_BINDINGS,
    _DELETE_REQUESTS,
    _DELETE_OPERATIONS,
    _DELETE_SNAPSHOTS,
)
# The key's retention begins now. If the run ended and its reservation is unsettled, which no path
# of this build leaves behind, it is settled here.
_RESTAMP_SETTLED = f"""
UPDATE fencepost_reservations SET updated_at_ms = MAX(updated_at_ms, :now_ms)
WHERE state = 'terminal' AND run_id IN ({_CHUNK_RUNS})
"""
_SETTLE_UNSETTLED = f"""
UPDATE fencepost_reservations SET state = 'terminal', updated_at_ms = MAX(updated_at_ms, :now_ms),
  outcome = (SELECT status FROM fencepost_runs WHERE run_id = fencepost_reservations.run_id)
WHERE state <> 'terminal' AND run_id IN ({_CHUNK_RUNS})
"""
_DELETE_RUNS = f"DELETE FROM fencepost_runs WHERE run_id IN ({_CHUNK_RUNS})"
_DELETE_RESERVATIONS = f"DELETE FROM fencepost_reservations WHERE key IN ({_CHUNK_RESERVATIONS})"

# Decides nothing: guarded as the rest. Adds up over the chunks of a keyed request. There may be
# more if the `:last` chunk that the limit allows was full.
_RECORD = f"""
INSERT {requests.INTO} json_object('runs', after ->> 'runs', 'reservations',
  after ->> 'reservations', 'more', json(CASE WHEN :last = 1 AND
    (after ->> 'runs' = :size OR after ->> 'reservations' = :size) THEN 'true' ELSE 'false' END)),
  :request_token, at_ms
FROM fencepost_audit WHERE {audit.IS_LAST} AND write_token = :token
ON CONFLICT DO UPDATE SET answer = json_object(
  'runs', (answer ->> 'runs') + (excluded.answer ->> 'runs'),
  'reservations', (answer ->> 'reservations') + (excluded.answer ->> 'reservations'),
  'more', json(excluded.answer -> 'more'))
WHERE write_token = excluded.write_token
"""


async def purge(
    db: Database,
    principal: Principal,
    retention: Retention,
    limit: int,
    now_ms: int | None = None,
) -> Purged:
    """Delete at most `limit` runs and `limit` reservations that are past their retention.

    It works in chunks of limits.PURGE_CHUNK_ROWS. Each chunk is one transaction with its audit
    row, so a purge that stops leaves no run half-deleted. A missing table has nothing to purge. A
    keyed request that purged before is answered as then: with what it has purged so far, if it
    still runs, or was cut off.
    """
    runs = reservations = 0
    try:
        [clock, *before] = await db.read([Statement(_NOW), *requests.look(db)])
        if told := requests.replayed(db, before):
            return _told(told)
        now_ms = int(clock.rows[0]["now_ms"]) if now_ms is None else now_ms
        request_token = mint_token()
        while limit > 0:
            size = min(limit, limits.PURGE_CHUNK_ROWS)
            last = size == limit
            chunk = _chunk(db, principal, retention, size, request_token, last, now_ms)
            written = await writes.write(db, chunk)
            if not written.won:
                first = runs + reservations == 0
                told = requests.replayed(db, written.reads) if first else []
                return _told(told) if told else Purged(runs, reservations, more=False)
            due = json.loads(written.rows[0]["after"])
            runs, reservations = runs + due["runs"], reservations + due["reservations"]
            limit -= size
            if max(due["runs"], due["reservations"]) < size:
                return Purged(runs, reservations, more=False)
    except errors.MissingTable as missing:
        if missing.table == requests.TABLE:
            raise
        return Purged(runs, reservations, more=False)
    return Purged(runs, reservations, more=True)


def _told(rows: list[Row]) -> Purged:
    [answer] = rows
    return Purged(answer["runs"], answer["reservations"], answer["more"])


def _chunk(
    db: Database,
    principal: Principal,
    retention: Retention,
    size: int,
    request_token: str,
    last: bool,
    now_ms: int,
) -> writes.Write:
    token, keep_key_days = mint_token(), max(retention.key_days, retention.run_days)
    due: dict[str, Parameter] = {"runs_before_ms": now_ms - retention.run_days * DAY_MS}
    due |= {"size": size}
    keys = {"keys_before_ms": now_ms - keep_key_days * DAY_MS}
    who = {"principal_kind": principal.kind, "principal_id": principal.id}
    asked = {**requests.params(db), "request_token": request_token}
    runs = {**due, "token": token}
    statements = [
        Statement(_AUDIT_PURGE, **runs, **keys, **who, **asked, now_ms=now_ms),
        Statement(_DELETE_RESERVATIONS, **keys, size=size, token=token),
        *(Statement(sql, **runs) for sql in _DELETE_PARTS),
        Statement(_RESTAMP_SETTLED, **runs, now_ms=now_ms),
        Statement(_SETTLE_UNSETTLED, **runs, now_ms=now_ms),
        Statement(_DELETE_RUNS, **runs),
    ]
    if db.request is not None:
        record = {**requests.recorded(db, "purged"), "request_token": request_token}
        statements.append(Statement(_RECORD, **record, size=size, last=int(last), token=token))
    return writes.Write(statements, requests.look(db), audit.receipt(token))
