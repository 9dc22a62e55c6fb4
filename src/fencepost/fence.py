"""The fence: the deployment's one switch, and what it admits in each state.

The fence is never memoised. A write that it gates carries the matching `..._SQL` condition in
its own WHERE, so nothing can happen between looking at the fence and acting on it; the
predicates of `Fence` then name the refusal from the row read back in the same batch.

    work                                   open  draining  migration-locked  proof-only
    a new start                             yes     no            no         its key = proof_key
    an existing run (heartbeat, ...)        yes     yes           no         the proof run
    arming future work                      yes     no            no         no
    queued work                             yes     yes           no         no

Reads, cancel, release and fence administration always pass (contracts 1.4). A deployment that
was never provisioned (no row, no table) is open.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from enum import StrEnum
from typing import Any, NamedTuple

from fencepost import audit, errors
from fencepost.identifiers import Principal, mint_token
from fencepost.storage import writes
from fencepost.storage.d1 import Database
from fencepost.storage.sql import NOW_MS, Statement


class FenceState(StrEnum):
    OPEN = "open"
    DRAINING = "draining"
    MIGRATION_LOCKED = "migration-locked"
    PROOF_ONLY = "proof-only"


class Fence(NamedTuple):
    """The fence row. `updated_at_ms` is None when it was never provisioned."""

    state: FenceState
    revision: int
    proof_key: str | None
    proof_run_id: str | None
    updated_at_ms: int | None
    transition_key: str | None = None
    transition_receipt: str | None = None

    @classmethod
    def from_rows(cls, rows: Sequence[dict[str, Any]]) -> Fence:
        """The fence from what READ returned. Raises FenceUnreadable: closed when in doubt."""
        if not rows:
            return cls(FenceState.OPEN, 0, None, None, None)
        if len(rows) > 1:
            raise errors.FenceUnreadable("There is more than one fence row.")
        row = rows[0]
        try:
            state = FenceState(row["state"])
            revision, updated_at_ms = int(row["revision"]), int(row["updated_at_ms"])
        except (KeyError, TypeError, ValueError):
            raise errors.FenceUnreadable(
                "The fence row holds something this build does not know; nothing is admitted."
            ) from None
        if (state is FenceState.PROOF_ONLY) != (row["proof_key"] is not None):
            raise errors.FenceUnreadable(
                "The fence row's state and proof key do not belong together."
            )
        receipt = (row.get("transition_key"), row.get("transition_receipt"))
        return cls(state, revision, row["proof_key"], row["proof_run_id"], updated_at_ms, *receipt)

    def admits_start(self, key: str, run_id: str | None = None) -> bool:
        """Whether `key` may start; `run_id` is the run it is already reserved for, if any."""
        if self.state is FenceState.PROOF_ONLY:
            return key == self.proof_key and self.proof_run_id in (None, run_id)
        return self.state is FenceState.OPEN

    def admits_existing_run(self, run_id: str) -> bool:
        """Whether a run that was started may go on."""
        if self.state is FenceState.PROOF_ONLY:
            return self.proof_run_id == run_id
        return self.state in (FenceState.OPEN, FenceState.DRAINING)

    def require_existing_run(self, run_id: str) -> None:
        """Raises Fenced unless a run that was started may go on."""
        if not self.admits_existing_run(run_id):
            raise self.refusal()

    def admits_arming(self) -> bool:
        """Whether work may be scheduled for later."""
        return self.state is FenceState.OPEN

    def admits_queued_work(self) -> bool:
        """Whether work that was queued earlier may be taken up."""
        return self.state in (FenceState.OPEN, FenceState.DRAINING)

    def refusal(self) -> errors.Fenced:
        """The error that names this state; nothing was written."""
        return errors.Fenced(
            f"The deployment is {self.state} and does not admit this work. Nothing was written.",
            state=str(self.state),
        )


def admits_start_sql(key: str, run_id: str) -> str:
    """`Fence.admits_start` as SQL over two SQL expressions. Unknown states admit nothing."""
    return f"""NOT EXISTS (SELECT 1 FROM fencepost_fence WHERE (
    state = 'open'
    OR (state = 'proof-only' AND proof_key = {key}
        AND (proof_run_id IS NULL OR proof_run_id = {run_id}))
  ) IS NOT TRUE)"""


def admits_existing_run_sql(run_id: str) -> str:
    """`Fence.admits_existing_run` as SQL over a SQL expression."""
    return f"""NOT EXISTS (SELECT 1 FROM fencepost_fence WHERE (
    state IN ('open', 'draining') OR (state = 'proof-only' AND proof_run_id = {run_id})
  ) IS NOT TRUE)"""


# Reads the one row; without a WHERE, so that a second row would be seen. Every column that
# there is: the fence must be readable in its earlier shapes too, before they are moved forward.
_READ = "SELECT * FROM fencepost_fence"


def read_statement() -> Statement:
    """One row or none, for `Fence.from_rows`."""
    return Statement(_READ)


async def read(db: Database) -> Fence:
    """The fence as it is now. Writes nothing; a missing table or row is `open`.

    Raises FenceUnreadable when D1 does not answer or the row is not understood.
    """
    try:
        [result] = await db.read([read_statement()])
    except errors.MissingTable as missing:
        if missing.table != "fencepost_fence":
            raise errors.FenceUnreadable("The fence could not be read.") from missing
        return Fence.from_rows([])
    except errors.StorageError as failure:
        raise errors.FenceUnreadable("The fence could not be read.") from failure
    return Fence.from_rows(result.rows)


# Decides: this run becomes the proof run, if its key is the proof key and no run was it yet.
# Guarded by the token of the write that made the run's owner.
_RECORD_PROOF_RUN = """
UPDATE fencepost_fence SET proof_run_id = ?2
WHERE state = 'proof-only' AND proof_key = ?1 AND proof_run_id IS NULL
  AND EXISTS (SELECT 1 FROM fencepost_runs WHERE run_id = ?2 AND write_token = ?3)
"""


def record_proof_run_statement(key: str, run_id: str, token: str) -> Statement:
    """Binds a start with the proof key to the proof, inside the batch of that start."""
    return Statement(_RECORD_PROOF_RUN, (key, run_id, token))


# --- Moving it ---------------------------------------------------------------------------

# Decides: nobody provisioned a fence yet. ?1 is the state to begin with.
_SEED = f"""
INSERT INTO fencepost_fence (id, state, revision, updated_at_ms)
VALUES ('deployment', ?1, 0, {NOW_MS}) ON CONFLICT (id) DO NOTHING
"""


def as_seed_file(state: FenceState) -> str:
    """The text of `schema/seed-<state>.sql`; a fence that exists is left as it is."""
    return _SEED.strip().replace("?1", f"'{state}'") + ";\n"


class Transition(NamedTuple):
    """What an operator asks of the fence. `key` makes a retry of this very command converge."""

    expected: FenceState
    next: FenceState
    revision: int | None = None
    proof_key: str | None = None
    key: str | None = None

    @property
    def receipt(self) -> str | None:
        """What tells a retry of this command from another one with the same key."""
        if self.key is None:
            return None
        command = [1, self.expected, self.next, self.revision, self.proof_key]
        return json.dumps(command, separators=(",", ":"))


class Moved(StrEnum):
    """What became of a transition."""

    MOVED = "moved"
    CONFLICT = "conflict"
    KEY_REUSED = "key_reused"


# Decides: the fence was never provisioned, which is `open` at revision 0, and that is what the
# command expects: then there is a row to move.
_MATERIALISE = f"""
INSERT INTO fencepost_fence (id, state, revision, updated_at_ms)
SELECT 'deployment', 'open', 0, COALESCE(?3, {NOW_MS})
WHERE ?1 = 'open' AND (?2 IS NULL OR ?2 = 0) ON CONFLICT (id) DO NOTHING
"""

# Decides: the fence is in the expected state, at the expected revision if one is given, and
# this command did not move it before.
_AUDIT_TRANSITION = f"""
INSERT {audit.INTO}
SELECT 'fence-transition', ?1, ?2, 'deployment', NULL,
  json_object('state', state, 'revision', revision, 'proof_run_id', proof_run_id),
  json_object('state', ?5, 'revision', revision + 1, 'proof_run_id', NULL),
  ?7, MAX(COALESCE(?8, {NOW_MS}), updated_at_ms + 1)
FROM fencepost_fence
WHERE state = ?3 AND (?4 IS NULL OR revision = ?4) AND transition_key IS NOT COALESCE(?6, '')
RETURNING sequence
"""

# Decides nothing: guarded by the audit row just written. Every transition clears the proof run.
_TRANSITION = f"""
UPDATE fencepost_fence SET state = ?1, revision = revision + 1, proof_key = ?2,
  proof_run_id = NULL, transition_key = ?3, transition_receipt = ?4,
  updated_at_ms = {audit.LAST_AT_MS}
WHERE {audit.last_is("?5")}
"""


async def transition(
    db: Database, principal: Principal, command: Transition, now_ms: int | None = None
) -> tuple[Moved, Fence]:
    """Move the fence, if it is where the command expects it; any pair of states is legal.

    A retry with the same key converges on the same answer, while no other command with a key
    has moved the fence since. One round trip; the first transition of all creates the tables.
    Raises FenceUnreadable for a state that this build does not know.
    """
    intent = _transition_write(principal, command, now_ms)
    try:
        await db.ready(creating=True)
        written = await writes.write(db, intent)
    except errors.NOT_READY:
        gate = await read(db)
        if gate.state is not command.expected or command.revision not in (None, gate.revision):
            return _converged(command, gate), gate
        await db.bring_schema_forward()
        written = await writes.write(db, intent)
    gate = Fence.from_rows(written.reads[0].rows)
    if written.won:
        return Moved.MOVED, gate
    return _converged(command, gate), gate


def _converged(command: Transition, gate: Fence) -> Moved:
    """What a command that did not move the fence finds: perhaps that it did so before."""
    if command.key is None or gate.transition_key != command.key:
        return Moved.CONFLICT
    same = gate.transition_receipt == command.receipt
    return Moved.MOVED if same else Moved.KEY_REUSED


def _transition_write(
    principal: Principal, command: Transition, now_ms: int | None
) -> writes.Write:
    token, expected = mint_token(), command.expected
    who, move = tuple(principal), (expected, command.revision, command.next, command.key)
    receipt = (command.key, command.receipt, token)
    statements = [
        Statement(_MATERIALISE, (expected, command.revision, now_ms)),
        Statement(_AUDIT_TRANSITION, (*who, *move, token, now_ms)),
        Statement(_TRANSITION, (command.next, command.proof_key, *receipt)),
    ]
    return writes.Write(statements, [read_statement()], writes.audit_receipt(token), decides=1)
