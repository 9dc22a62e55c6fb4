"""Operations: named, leased steps inside a run. The row, and reading it.

`leases` has the verbs. Reads never write: an operation whose lease has lapsed is shown as lapsed,
and a later POST of the owner marks it interrupted.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from fencepost import errors, fence, snapshot
from fencepost.fence import Fence
from fencepost.identifiers import Principal
from fencepost.runs import Owner, Run, RunStatus
from fencepost.snapshot import VISIBLE, scope
from fencepost.storage import writes
from fencepost.storage.d1 import Database
from fencepost.storage.rows import Row, Rules, check_row, whole
from fencepost.storage.sql import NOW_MS, Parameter, Statement

TABLE = "fencepost_operations"


class OperationState(StrEnum):
    RUNNING = "running"
    COMMITTED = "committed"
    INTERRUPTED = "interrupted"


class StepOutcome(StrEnum):
    """The result of a verb on an operation: first the wins, then the losses."""

    ACQUIRED = "acquired"
    SHARED = "shared"
    REPLAYED = "replayed"
    RENEWED = "renewed"
    ASSERTED = "asserted"
    COMMITTED = "committed"
    INTERRUPTED = "interrupted"

    FENCE_LOST = "fence_lost"
    OPERATION_CONFLICT = "operation_conflict"
    OPERATION_ALREADY_RUNNING = "operation_already_running"
    LEASE_FENCED = "lease_fenced"


LOSSES = frozenset(
    {
        StepOutcome.FENCE_LOST,
        StepOutcome.OPERATION_CONFLICT,
        StepOutcome.OPERATION_ALREADY_RUNNING,
        StepOutcome.LEASE_FENCED,
    }
)


class Operation(NamedTuple):
    """A row of fencepost_operations. Times are milliseconds of the database's clock.

    `now_ms` is the time at which the row was read. `lease_token` is the token of the last lease,
    which may have ended.
    """

    run_id: str
    id: str
    kind: str
    payload_fingerprint: str
    state: OperationState
    lease_token: str
    lease_expires_at_ms: int | None
    outcome_json: str | None
    write_token: str
    now_ms: int

    @property
    def lapsed(self) -> bool:
        """Whether it is running and its lease has ended. In its last millisecond it has not."""
        return self.lease_expires_at_ms is not None and self.lease_expires_at_ms < self.now_ms

    def held_under(self, token: str) -> bool:
        """Whether the lease with this token holds."""
        running = self.state is OperationState.RUNNING and not self.lapsed
        return running and self.lease_token == token

    @classmethod
    def from_row(cls, row: Row) -> Operation:
        """The operation of a row. Raises RowCorrupt for a row that breaks a rule."""
        check_row(TABLE, _RULES, row)
        return cls(
            row["run_id"],
            row["operation_id"],
            row["kind"],
            row["payload_fingerprint"],
            OperationState(row["state"]),
            row["lease_token"],
            row["lease_expires_at_ms"],
            row["outcome"],
            row["write_token"],
            row["now_ms"],
        )


_STATES = frozenset(OperationState)
_RULES: Rules = (
    ("state is running, committed or interrupted", lambda row: row["state"] in _STATES),
    (
        "an operation that runs, and no other, has a lease that ends",
        lambda row: (row["state"] == "running") == (row["lease_expires_at_ms"] is not None),
    ),
    (
        "a committed operation, and no other, has an outcome",
        lambda row: (row["state"] == "committed") == (row["outcome"] is not None),
    ),
    ("times are whole milliseconds", whole("lease_expires_at_ms", null=True)),
    ("times are whole milliseconds", whole("updated_at_ms")),
)


class Step(NamedTuple):
    """Which operation, of which run, for which owner. `id` is in lower case."""

    run_id: str
    viewer: Principal | None
    owner: Owner
    id: str

    @property
    def params(self) -> dict[str, Parameter]:
        """Values that every write binds: the run, its viewer, its owner, and the operation."""
        run: dict[str, Parameter] = {"run_id": self.run_id, **scope(self.viewer)}
        return {**run, **self.owner.params, "operation_id": self.id}


# The run without its state and result, which are not needed here.
_READ_RUN = f"""
SELECT fencepost_runs.*, COALESCE(:now_ms, {NOW_MS}) AS now_ms FROM fencepost_runs
WHERE run_id = :run_id AND {VISIBLE}
"""
_READ = f"""
SELECT *, COALESCE(:now_ms, {NOW_MS}) AS now_ms FROM fencepost_operations
WHERE run_id = :run_id AND operation_id = :operation_id
"""


def _reads(
    run_id: str, viewer: Principal | None, id: str, now_ms: int | None = None
) -> list[Statement]:
    return [
        Statement(_READ_RUN, run_id=run_id, **scope(viewer), now_ms=now_ms),
        Statement(_READ, run_id=run_id, operation_id=id, now_ms=now_ms),
    ]


async def read(
    db: Database, run_id: str, viewer: Principal | None, id: str, *, now_ms: int | None = None
) -> Operation:
    """The operation. Raises NotFound if the run or the operation does not exist."""
    try:
        results = await db.read(_reads(run_id, viewer, id, now_ms))
    except errors.MissingTable:
        await snapshot.read(db, run_id, viewer)
        raise not_found() from None
    snapshot.found(results[0])
    if not results[1].rows:
        raise not_found()
    return Operation.from_row(results[1].rows[0])


def not_found() -> errors.NotFound:
    return errors.NotFound("There is no such operation in this run.", code="OPERATION_NOT_FOUND")


class ReadBack(NamedTuple):
    """The rows after a verb, read back in the same batch."""

    run: Run
    operation: Operation | None
    gate: Fence

    def require_ours(self, step: Step) -> bool:
        """Whether the run is running and the owner who asks holds it. Raises Fenced."""
        self.gate.require_existing_run(step.run_id)
        return self.run.status is RunStatus.RUNNING and self.run.owner == step.owner


_RECEIPT = """
SELECT 1 AS landed FROM fencepost_operations
WHERE run_id = :run_id AND operation_id = :operation_id AND write_token = :token
"""


async def verb(
    db: Database, step: Step, statements: list[Statement], token: str, now_ms: int | None
) -> ReadBack:
    """Run a verb's statements, which write `token`, and read run, operation and fence back.

    One batch; without statements it only reads. The verb won if the row read back has `token`.

    Raises NotFound when the run does not exist or is another principal's, and MissingTable when
    the run exists and the table of operations does not.
    """
    reads = [*_reads(step.run_id, step.viewer, step.id, now_ms), fence.read_statement()]
    receipt = Statement(_RECEIPT, run_id=step.run_id, operation_id=step.id, token=token)
    try:
        written = await writes.write(db, writes.Write(statements, reads, receipt))
    except errors.MissingTable:
        await snapshot.read(db, step.run_id, step.viewer)
        raise
    row, stored, gate = written.reads
    run = snapshot.found(row)
    operation = Operation.from_row(stored.rows[0]) if stored.rows else None
    return ReadBack(run, operation, Fence.from_rows(gate.rows))
