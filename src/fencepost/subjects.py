"""Subjects: names for what a run is about. A start may give one beside its key.

A subject has a stage, and a change or (in stage `design`) a provisional name with aliases. A start
whose subject already has a run joins that run: its key names that run from then on, and the
answer is `replayed`. In stage `design` only a run that has not ended counts; in other stages an
ended run counts too. Subjects belong to a principal, as keys do.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from fencepost import fence, journal, requests
from fencepost.identifiers import Principal, Target, mint_token
from fencepost.journal import Head
from fencepost.ownership import HELD_BY, holder
from fencepost.reservation import COLUMNS, meaning
from fencepost.runs import Outcome, Owner, Run, VerbResult
from fencepost.snapshot import (
    VISIBLE,
    RunReadBack,
    head_of,
    scope,
    verb,
    write_receipt,
)
from fencepost.storage import races
from fencepost.storage.d1 import Database
from fencepost.storage.sql import NOW_MS, Parameter, Statement, json_text

DESIGN = "design"


class Subject(NamedTuple):
    """It has either `change` or `provisional`. Only a `provisional` one may have aliases."""

    stage: str
    change: str | None = None
    provisional: str | None = None
    aliases: tuple[str, ...] = ()

    @property
    def lookup_keys(self) -> list[str]:
        """The names by which the run is found. Any one of them finds it."""
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
        """A hash to compare two subjects under the same key."""
        return journal.digest(self.as_json())


# Runs that the subject already has: by any of its names, in its stage, of this principal. A design
# run counts until it ends. :names is a JSON array of lookup keys.
_TAKEN = """
SELECT DISTINCT subject.run_id, run.status, run.finished_at_ms
FROM fencepost_subjects AS subject JOIN fencepost_runs AS run USING (run_id)
WHERE subject.principal_kind = :principal_kind AND subject.principal_id = :principal_id
  AND stage = :stage AND lookup_key IN (SELECT value FROM json_each(:names))
  AND (stage <> 'design' OR run.finished_at_ms IS NULL)"""

# Decides: the key is new, the fence admits the start, and the names lead to at most one run. The
# key then names that run (joined), or else the new one. The proof key joins no run.
_RESERVE = f"""
WITH taken AS MATERIALIZED ({_TAKEN})
INSERT INTO fencepost_reservations ({COLUMNS})
SELECT :key, :principal_kind, :principal_id, :target_kind, :target_id, :thread_id, :fingerprint,
  COALESCE(taken.run_id, :run_id),
  CASE WHEN taken.finished_at_ms IS NULL THEN 'started' ELSE 'terminal' END, 1, :claim_nonce,
  CASE WHEN taken.finished_at_ms IS NOT NULL THEN taken.status END,
  stamp.now_ms, stamp.now_ms, taken.run_id IS NOT NULL, :subject_sha256, {fence.REVISION}
FROM (SELECT COALESCE(:now_ms, {NOW_MS}) AS now_ms) AS stamp LEFT JOIN taken ON TRUE
WHERE {fence.admits_start_sql(":key", ":run_id", ":principal_kind", ":principal_id")}
  AND (SELECT COUNT(*) FROM taken) <= 1 AND (taken.run_id IS NULL OR {fence.NOT_PROVING})
ON CONFLICT (key) DO NOTHING
RETURNING run_id
"""


def reserve_statement(
    key: str,
    principal: Principal,
    target: Target,
    fingerprint: str,
    run_id: str,
    claim_nonce: str,
    now_ms: int | None,
    subject: Subject,
) -> Statement:
    """Returns a row if this statement made the reservation, of a new run or a joined one."""
    return Statement(
        _RESERVE,
        **meaning(key, principal, target, fingerprint),
        run_id=run_id,
        claim_nonce=claim_nonce,
        now_ms=now_ms,
        stage=subject.stage,
        names=json_text(subject.lookup_keys),
        subject_sha256=subject.digest,
    )


# Decides nothing: guarded by the claim nonce. From now on every name leads to the run.
_REGISTER = """
INSERT INTO fencepost_subjects (principal_kind, principal_id, stage, lookup_key, run_id)
SELECT owner_kind, owner_id, :stage, name.value, run_id
FROM fencepost_reservations AS held, json_each(:names) AS name
WHERE held.key = :key AND held.claim_nonce = :claim_nonce
ON CONFLICT (principal_kind, principal_id, stage, lookup_key) DO UPDATE SET run_id = excluded.run_id
"""


def register_statement(key: str, claim_nonce: str, subject: Subject) -> Statement:
    """For the batch of a start with a subject."""
    names = json_text(subject.lookup_keys)
    return Statement(_REGISTER, key=key, claim_nonce=claim_nonce, stage=subject.stage, names=names)


# --- Binding a change to a provisional run -----------------------------------------------

_NAMES = "SELECT stage, lookup_key FROM fencepost_subjects WHERE run_id = :run_id"

# Another design run that has not ended and that the change (:name) already has.
_RIVAL = """
SELECT rival.run_id FROM fencepost_runs AS own
JOIN fencepost_subjects AS rival ON rival.principal_kind = own.principal_kind
  AND rival.principal_id = own.principal_id AND rival.stage = 'design' AND lookup_key = :name
JOIN fencepost_runs AS run ON run.run_id = rival.run_id
WHERE own.run_id = :run_id AND rival.run_id <> :run_id AND run.finished_at_ms IS NULL"""

# Decides: the owner holds this design run, which has a provisional name and no change; no other
# run has the change; the history has no later event; and the fence admits existing work.
_BIND = f"""
UPDATE fencepost_runs SET head_sequence = :sequence, head_hash = :hash,
  write_token = :token, updated_at_ms = MAX(COALESCE(:now_ms, {NOW_MS}), updated_at_ms)
WHERE run_id = :run_id AND {VISIBLE} AND {fence.admits_existing_run_sql(":run_id")}
  AND status = 'running' AND {HELD_BY}
  AND head_sequence = :sequence - 1 AND head_hash = :prior_hash
  AND EXISTS (SELECT 1 FROM fencepost_subjects WHERE run_id = :run_id AND stage = 'design'
    AND lookup_key LIKE 'provisional:%')
  AND NOT EXISTS (
    SELECT 1 FROM fencepost_subjects WHERE run_id = :run_id AND lookup_key LIKE 'change:%')
  AND NOT EXISTS ({_RIVAL}) AND {requests.UNUSED}
RETURNING run_id
"""

# Decides nothing: guarded by the token of the bind.
_NAME = """
INSERT INTO fencepost_subjects (principal_kind, principal_id, stage, lookup_key, run_id)
SELECT principal_kind, principal_id, 'design', :name, run_id
FROM fencepost_runs WHERE run_id = :run_id AND write_token = :token
ON CONFLICT (principal_kind, principal_id, stage, lookup_key) DO UPDATE SET run_id = excluded.run_id
"""


async def bind_change(
    db: Database,
    run_id: str,
    viewer: Principal | None,
    owner: Owner,
    change: str,
    *,
    generation: int | None = None,
    head_hint: Head | None = None,
    now_ms: int | None = None,
) -> VerbResult:
    """Bind a change to a design run that was started by a provisional name. Two round trips.

    The same change again is `bound` and writes nothing. Losses, in order: fence_lost,
    change_binding_not_allowed (no design run, no provisional name, or another change),
    change_run_already_exists. `head_hint` saves a round trip, and never loses. Raises NotFound,
    Fenced, and Unavailable after a lost race.
    """
    head, name = head_hint or await head_of(db, run_id, viewer), f"change:{change}"

    async def attempt() -> VerbResult | None:
        nonlocal head
        back = await _bind(db, run_id, viewer, holder(owner, generation), name, head, now_ms)
        if back.won:
            return back.effect(Outcome.BOUND, owner)
        back.require_existing_run()
        if not back.run.held_by(owner, generation):
            return back.lost(Outcome.FENCE_LOST)
        first, head = head is journal.GENESIS, back.run.head
        outcome = None if first else await _bind_loss(db, back.run, name)
        if outcome is Outcome.BOUND:
            return VerbResult(outcome, back.run)
        return None if outcome is None else back.lost(outcome)

    return await races.until_decided(db, attempt)


async def _bind(
    db: Database,
    run_id: str,
    viewer: Principal | None,
    who: dict[str, Parameter],
    name: str,
    head: Head,
    now_ms: int | None,
) -> RunReadBack:
    token = mint_token()
    event = journal.next_event(head, "change-bound", {"change": name.removeprefix("change:")})
    what: dict[str, Parameter] = {"run_id": run_id, "token": token, "name": name}
    asked = {**scope(viewer), **who, **event.params, **requests.params(db)}
    statements = [
        Statement(_BIND, **what, **asked, now_ms=now_ms),
        Statement(_NAME, **what),
        journal.append_statement(run_id, token, event),
    ]
    return await verb(
        db,
        [] if head is journal.GENESIS else statements,
        token,
        run_id,
        viewer,
        now_ms,
        receipt=write_receipt(run_id, token, event.sequence),
        records=requests.of_run(db, run_id, token, Outcome.BOUND),
        could_win=lambda run: run.head == head,
    )


async def _bind_loss(db: Database, run: Run, name: str) -> Outcome | None:
    """Why a bind by the owner did not win; BOUND if it had before; None if it must try again."""
    names, rivals = await db.read(
        [
            Statement(_NAMES, run_id=run.run_id),
            Statement(_RIVAL, run_id=run.run_id, name=name),
        ]
    )
    keys = {row["lookup_key"] for row in names.rows if row["stage"] == DESIGN}
    if not any(key.startswith("provisional:") for key in keys):
        return Outcome.CHANGE_BINDING_NOT_ALLOWED
    if name in keys:
        return Outcome.BOUND
    if any(key.startswith("change:") for key in keys):
        return Outcome.CHANGE_BINDING_NOT_ALLOWED
    return Outcome.CHANGE_RUN_ALREADY_EXISTS if rivals.rows else None
