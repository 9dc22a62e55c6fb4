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

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from fencepost import errors
from fencepost.d1 import Database, Statement


class FenceState(StrEnum):
    OPEN = "open"
    DRAINING = "draining"
    MIGRATION_LOCKED = "migration-locked"
    PROOF_ONLY = "proof-only"


@dataclass(frozen=True, slots=True)
class Fence:
    """The fence row. `updated_at_ms` is None when it was never provisioned."""

    state: FenceState
    revision: int
    proof_key: str | None
    proof_run_id: str | None
    updated_at_ms: int | None

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
        return cls(state, revision, row["proof_key"], row["proof_run_id"], updated_at_ms)

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


# Reads the one row; without a WHERE, so that a second row would be seen.
_READ = "SELECT state, revision, proof_key, proof_run_id, updated_at_ms FROM fencepost_fence"


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
