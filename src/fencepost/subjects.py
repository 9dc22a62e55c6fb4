"""Subjects: starting a run by what it is about, beside the key of the request (contracts 4).

A subject has a stage, and a change or (in stage `design`) a provisional name with aliases. A
start whose subject already has a run joins that run: the key then means it, and is answered
`replayed`. A design run that has ended makes room for a new one; of other stages the ended run
stays the one. Subjects belong to a principal, as keys do.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from fencepost import fence, journal, limits
from fencepost.identifiers import Principal, mint_token
from fencepost.reservation import COLUMNS, Intent
from fencepost.runs import Outcome, Owner, Run
from fencepost.snapshot import VISIBLE, contended, read, scope, verb
from fencepost.storage.d1 import Database
from fencepost.storage.sql import NOW_MS, Statement

DESIGN = "design"


class Subject(NamedTuple):
    """Exactly one of `change` and `provisional` is given; aliases belong to the latter."""

    stage: str
    change: str | None = None
    provisional: str | None = None
    aliases: tuple[str, ...] = ()

    @property
    def lookup_keys(self) -> list[str]:
        """What the run is found by; any one of them is enough."""
        if self.change is not None:
            return [f"change:{self.change}"]
        return sorted({f"provisional:{name}" for name in (self.provisional, *self.aliases)})

    def as_json(self) -> dict[str, Any]:
        if self.change is not None:
            return {"stage": self.stage, "change": self.change}
        names = {"stage": self.stage, "provisional": self.provisional}
        return {**names, "aliases": sorted(self.aliases)} if self.aliases else names

    @property
    def digest(self) -> str:
        """What tells one subject from another under the same key."""
        return journal.digest(self.as_json())


# Runs that the subject already has: any of its names, in its stage, of this principal; a design
# run only as long as it lives. ?2, ?3: the principal; ?11: the stage; ?12: the names (JSON).
_TAKEN = """
SELECT DISTINCT subject.run_id, run.status, run.finished_at_ms
FROM fencepost_subjects AS subject JOIN fencepost_runs AS run USING (run_id)
WHERE subject.principal_kind = ?2 AND subject.principal_id = ?3 AND stage = ?11
  AND lookup_key IN (SELECT value FROM json_each(?12))
  AND (stage <> 'design' OR run.finished_at_ms IS NULL)"""

# Decides: the key is new, the fence admits the start, and the names lead to one run at most:
# to that one, joined, or to the new one.
_RESERVE = f"""
WITH taken AS MATERIALIZED ({_TAKEN})
INSERT INTO fencepost_reservations ({COLUMNS})
SELECT ?1, ?2, ?3, ?4, ?5, ?6, ?7, COALESCE(taken.run_id, ?8),
  CASE WHEN taken.finished_at_ms IS NULL THEN 'started' ELSE 'terminal' END, 1, ?9,
  CASE WHEN taken.finished_at_ms IS NOT NULL THEN taken.status END,
  stamp.now_ms, stamp.now_ms, taken.run_id IS NOT NULL, ?13
FROM (SELECT COALESCE(?10, {NOW_MS}) AS now_ms) AS stamp LEFT JOIN taken ON TRUE
WHERE {fence.admits_start_sql("?1", "?8")} AND (SELECT COUNT(*) FROM taken) <= 1
ON CONFLICT (key) DO NOTHING
RETURNING run_id
"""


def reserve_statement(
    intent: Intent, subject: Subject, claim_nonce: str, now_ms: int | None
) -> Statement:
    """One row back if this very statement made the reservation, of a new run or a joined one."""
    kind, owner_id = intent.owner
    asked = (intent.key, kind, owner_id, *intent.target, intent.fingerprint, intent.run_id)
    names = json.dumps(subject.lookup_keys)
    return Statement(_RESERVE, (*asked, claim_nonce, now_ms, subject.stage, names, subject.digest))


# Decides nothing: guarded by the claim nonce. Every name leads to the run from now on.
_REGISTER = """
INSERT INTO fencepost_subjects (principal_kind, principal_id, stage, lookup_key, run_id)
SELECT owner_kind, owner_id, ?3, name.value, run_id
FROM fencepost_reservations AS held, json_each(?4) AS name
WHERE held.key = ?1 AND held.claim_nonce = ?2
ON CONFLICT (principal_kind, principal_id, stage, lookup_key) DO UPDATE SET run_id = excluded.run_id
"""


def register_statement(key: str, claim_nonce: str, subject: Subject) -> Statement:
    """For the batch of a start with a subject."""
    names = json.dumps(subject.lookup_keys)
    return Statement(_REGISTER, (key, claim_nonce, subject.stage, names))


# --- Binding a change to a provisional run -----------------------------------------------

_NAMES = "SELECT stage, lookup_key FROM fencepost_subjects WHERE run_id = ?1"

# The live design run of another id that the change already has. ?1: the run; ?2: the name.
_RIVAL = """
SELECT rival.run_id FROM fencepost_runs AS own
JOIN fencepost_subjects AS rival ON rival.principal_kind = own.principal_kind
  AND rival.principal_id = own.principal_id AND rival.stage = 'design' AND lookup_key = ?2
JOIN fencepost_runs AS run ON run.run_id = rival.run_id
WHERE own.run_id = ?1 AND rival.run_id <> ?1 AND run.finished_at_ms IS NULL"""

# Decides: the owner holds this design run, which has a provisional name and no change, nobody
# else has the change, the history ends where it was read, and the fence admits existing work.
_BIND = f"""
UPDATE fencepost_runs SET head_sequence = ?8, head_hash = ?9,
  write_token = ?4, updated_at_ms = MAX(COALESCE(?12, {NOW_MS}), updated_at_ms)
WHERE run_id = ?1 AND {VISIBLE} AND {fence.admits_existing_run_sql("?1")}
  AND status = 'running' AND owner_host_id = ?5 AND owner_pid = ?6 AND owner_nonce = ?7
  AND head_sequence = ?8 - 1 AND head_hash = ?10
  AND EXISTS (SELECT 1 FROM fencepost_subjects WHERE run_id = ?1 AND stage = 'design')
  AND NOT EXISTS (SELECT 1 FROM fencepost_subjects WHERE run_id = ?1 AND lookup_key LIKE 'change:%')
  AND NOT EXISTS ({_RIVAL.replace("?2", "?11")})
RETURNING run_id
"""

# Decides nothing: guarded by the token of the bind.
_NAME = """
INSERT INTO fencepost_subjects (principal_kind, principal_id, stage, lookup_key, run_id)
SELECT principal_kind, principal_id, 'design', ?3, run_id
FROM fencepost_runs WHERE run_id = ?1 AND write_token = ?2
ON CONFLICT (principal_kind, principal_id, stage, lookup_key) DO UPDATE SET run_id = excluded.run_id
"""


async def bind_change(
    db: Database,
    run_id: str,
    viewer: Principal | None,
    owner: Owner,
    change: str,
    now_ms: int | None = None,
) -> tuple[Outcome, Run]:
    """Give a provisional design run the change that it turned out to be. Two round trips.

    The same change again is `bound` and writes nothing. Losses, in order: fence_lost,
    change_binding_not_allowed (no design run, no provisional name, or another change),
    change_run_already_exists. Raises NotFound, Fenced, and Unavailable after lost races.
    """
    head, name = (await read(db, run_id, viewer)).head, f"change:{change}"
    for _ in range(limits.RACE_ATTEMPTS_MAX):
        token = mint_token()
        event = journal.next_event(head, "change-bound", {"change": change})
        who = owner.columns
        chain = (event.sequence, event.hash, head.hash, name, now_ms)
        statements = [
            Statement(_BIND, (run_id, *scope(viewer), token, *who, *chain)),
            Statement(_NAME, (run_id, token, name)),
            journal.append_statement(run_id, token, event),
        ]
        won, run, gate = await verb(db, statements, token, run_id, viewer, now_ms, event.sequence)
        if won:
            return Outcome.BOUND, run
        gate.require_existing_run(run_id)
        outcome = await _bind_loss(db, run, owner, name)
        if outcome is not None:
            return outcome, run
        head = run.head
    raise contended()


async def _bind_loss(db: Database, run: Run, owner: Owner, name: str) -> Outcome | None:
    """Why a bind did not win; BOUND if it had won before, None if it lost a race."""
    if run.owner != owner:
        return Outcome.FENCE_LOST
    names, rivals = await db.read(
        [Statement(_NAMES, (run.run_id,)), Statement(_RIVAL, (run.run_id, name))]
    )
    keys = {row["lookup_key"] for row in names.rows if row["stage"] == DESIGN}
    if name in keys:
        return Outcome.BOUND
    if not keys or any(key.startswith("change:") for key in keys):
        return Outcome.CHANGE_BINDING_NOT_ALLOWED
    return Outcome.CHANGE_RUN_ALREADY_EXISTS if rivals.rows else None
