"""Dates ended runs back while the Worker is down, so that a purge has something to delete.

All times of a run are moved by the same amount, so its history stays what it was.
"""

from __future__ import annotations

import sqlite3
from random import Random

from fencepost.limits import RUN_RETENTION_DAYS_DEFAULT
from soak.client_knowledge import ClientKnowledge

BACKDATED_BY_MS = (RUN_RETENTION_DAYS_DEFAULT + 1) * 86_400_000
RUNS_MAX = 30

_TIMES = {
    "runs": "heartbeat_at_ms lease_expires_at_ms claimed_at_ms claim_heartbeat_at_ms "
    "cancel_requested_at_ms cancel_acknowledged_at_ms updated_at_ms created_at_ms started_at_ms "
    "finished_at_ms",
    "reservations": "created_at_ms updated_at_ms",
    "events": "created_at_ms",
    "ownership": "granted_at_ms at_ms",
    "operations": "lease_expires_at_ms created_at_ms updated_at_ms",
    "bindings": "created_at_ms",
}


def backdate(db: sqlite3.Connection, knowledge: ClientKnowledge, rng: Random) -> set[str]:
    """Dates some ended runs back until they are old enough to be purged; returns their ids."""
    ended = [
        run_id
        for run_id, told in knowledge.runs.items()
        if told.reached[-1].ended and not told.backdated
    ]
    chosen = set(rng.sample(ended, min(RUNS_MAX, len(ended) // 2)))
    with db:
        for table, names in _TIMES.items():
            moves = ", ".join(f"{name} = {name} - {BACKDATED_BY_MS}" for name in names.split())
            sql = f"UPDATE fencepost_{table} SET {moves} WHERE run_id = ?"
            db.executemany(sql, [(run_id,) for run_id in chosen])
    for run_id in chosen:
        knowledge.run(run_id).backdated = True
    return chosen
