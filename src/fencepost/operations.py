"""Operations: named, leased steps inside a run. The row, and reading it.

What may be done to one, and by whom, is `leases`. Reads never write: a lease that lapsed is
displayed as lapsed, and marked interrupted by the owner's next POST. A lease lapses by time, and
with the generation of the run in which it was granted.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import NamedTuple

from fencepost import errors, fence, requests, snapshot
from fencepost.fence import Fence
from fencepost.identifiers import Principal
from fencepost.ownership import HELD_BY, holder
from fencepost.runs import Beaten, Owner, Run
from fencepost.snapshot import SEEN, VISIBLE, scope
from fencepost.storage import writes
from fencepost.storage.d1 import Database, Result
from fencepost.storage.rows import Row, Rules, check_row, whole
from fencepost.storage.sql import NOW_MS, Parameter, Statement

TABLE = "fencepost_operations"


class OperationState(StrEnum):
    RUNNING = "running"
    COMMITTED = "committed"
    INTERRUPTED = "interrupted"


class Cause(StrEnum):
    """Why an operation is interrupted.

    `holder`: its holder ended the lease, and knows that the step is not to be counted as done.
    `lapse`: the lease was over, by time or with its generation: nobody knows.
    """

    HOLDER = "holder"
    LAPSE = "lapse"


class StepOutcome(StrEnum):
    """The result of a verb on an operation: first the wins, then the losses."""

    ACQUIRED = "acquired"
    SHARED = "shared"
    REPLAYED = "replayed"
    RENEWED = "renewed"
    ASSERTED = "asserted"
    COMMITTED = "committed"
    CONCLUDED = "concluded"
    INTERRUPTED = "interrupted"

    FENCE_LOST = "fence_lost"
    OPERATION_CONFLICT = "operation_conflict"
    OPERATION_ALREADY_RUNNING = "operation_already_running"
    LEASE_FENCED = "lease_fenced"
    STEP_UNRESOLVED = "step_unresolved"
    OVERTAKEN = "overtaken"


LOSSES = frozenset(
    {
        StepOutcome.STEP_UNRESOLVED,
        StepOutcome.OVERTAKEN,
        StepOutcome.FENCE_LOST,
        StepOutcome.OPERATION_CONFLICT,
        StepOutcome.OPERATION_ALREADY_RUNNING,
        StepOutcome.LEASE_FENCED,
    }
)


class Operation(NamedTuple):
    """A row of fencepost_operations. Times are ms of the database's clock; `now_ms` is that
    clock at the reading. `lease_token` is that of the last lease, held or not, and `generation`
    the run's when it was granted; `in_generation`: the run still runs in that one.
    """

    run_id: str
    id: str
    kind: str
    payload_fingerprint: str
    state: OperationState
    lease_token: str
    generation: int
    lease_expires_at_ms: int | None
    cause: Cause | None
    outcome_json: str | None
    write_token: str
    in_generation: bool
    now_ms: int

    @property
    def lapsed(self) -> bool:
        """Whether it is running under a lease that is over, by time or with its generation.

        A lease that ends exactly now is not over.
        """
        if self.lease_expires_at_ms is None:
            return False
        return not self.in_generation or self.lease_expires_at_ms < self.now_ms

    @property
    def unresolved(self) -> bool:
        """Whether its last lease ended without its holder saying what became of the step."""
        return self.lapsed or self.cause is Cause.LAPSE

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
            row["generation"],
            row["lease_expires_at_ms"],
            None if row["cause"] is None else Cause(row["cause"]),
            row["outcome"],
            row["write_token"],
            bool(row["in_generation"]),
            row["now_ms"],
        )


_STATES = frozenset(OperationState)
_CAUSES = frozenset(Cause)
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
    (
        "an interrupted operation, and no other, has a cause, holder or lapse",
        lambda row: row["cause"] in (_CAUSES if row["state"] == "interrupted" else (None,)),
    ),
    ("times are whole milliseconds", whole("lease_expires_at_ms", null=True)),
    ("times are whole milliseconds", whole("updated_at_ms")),
    ("generation is whole", whole("generation")),
)

# A column for `Operation.from_row`, of a `step` joined with its `run`.
IN_GENERATION = (
    "COALESCE(run.status = 'running' AND run.generation = step.generation, 0) AS in_generation"
)


class Step(NamedTuple):
    """An operation as the owner of its run names it; `id` is in lower case.

    With a `generation` it is the owner's only while the run is in it.
    """

    run_id: str
    viewer: Principal | None
    owner: Owner
    id: str
    generation: int | None = None

    @property
    def params(self) -> dict[str, Parameter]:
        """What every write binds: the run, who sees it, who holds it, and the operation."""
        run: dict[str, Parameter] = {"run_id": self.run_id, **scope(self.viewer)}
        return {**run, **holder(self.owner, self.generation), "operation_id": self.id}


# The run without its state and result, which are not needed here.
_READ_RUN = f"""
SELECT fencepost_runs.*, COALESCE(:now_ms, {NOW_MS}) AS now_ms FROM fencepost_runs
WHERE run_id = :run_id AND {VISIBLE}
"""
_READ = f"""
SELECT step.*, {IN_GENERATION}, COALESCE(:now_ms, {NOW_MS}) AS now_ms
FROM {SEEN} CROSS JOIN fencepost_operations AS step USING (run_id)
  LEFT JOIN fencepost_runs AS run ON run.run_id = step.run_id
WHERE step.operation_id = :operation_id
"""


def _reads(
    run_id: str, viewer: Principal | None, id: str, now_ms: int | None = None
) -> list[Statement]:
    return [
        Statement(_READ_RUN, run_id=run_id, **scope(viewer), now_ms=now_ms),
        Statement(_READ, run_id=run_id, **scope(viewer), operation_id=id, now_ms=now_ms),
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


# What took the run from whoever asks: its last ownership fact; no row while the asker holds it.
_TAKEN = f"""
SELECT type, fact.generation, sequence, at_ms
FROM {SEEN} CROSS JOIN fencepost_ownership AS fact USING (run_id)
WHERE sequence = (SELECT MAX(sequence) FROM fencepost_ownership WHERE run_id = :run_id)
  AND NOT EXISTS (SELECT 1 FROM fencepost_runs WHERE run_id = :run_id AND {HELD_BY})
"""


class ReadBack(NamedTuple):
    """What a verb left behind, read back in its batch.

    `rows`: of the statement that decides, or of the receipt after a lost reply; a row if the verb
    won. `taken_by`: the run's last ownership fact, if the asker does not hold the run.
    """

    rows: list[Row]
    run: Run
    operation: Operation | None
    fence_rows: list[Row]
    taken_by: Beaten | None

    @property
    def won(self) -> bool:
        return bool(self.rows)

    @property
    def won_just_now(self) -> bool:
        """Whether the verb won in this very batch: nothing can have come after it."""
        return self.won and bool(self.rows[0].get("just_now"))

    def holds(self, token: str) -> bool:
        """Whether the lease of this token holds, whoever asks."""
        return self.operation is not None and self.operation.held_under(token)

    def is_ours(self, step: Step) -> bool:
        """Whether whoever asks holds the run, whatever the fence says."""
        return self.run.held_by(step.owner, step.generation)

    def require_ours(self, step: Step) -> bool:
        """Whether whoever asks holds the run. Raises Fenced and FenceUnreadable."""
        Fence.from_rows(self.fence_rows).require_existing_run(step.run_id)
        return self.is_ours(step)


class StepWrite(NamedTuple):
    """One attempt of a verb: its statements. The one with index `decides` returns WON if it won.

    `receipt` returns a row if it has landed. `could_win` judges what was read back after
    a lost reply, if the run is still held by whoever asks. `records`: what records a keyed request
    (`token` is that of the attempt).
    """

    statements: list[Statement]
    receipt: Statement
    could_win: Callable[[ReadBack], bool]
    decides: int = 0
    token: str = ""
    records: Sequence[Statement] = ()


# What a deciding statement returns.
WON = "RETURNING 1 AS just_now"

_RECEIPT_OF_WRITE = """
SELECT 0 AS just_now FROM fencepost_operations
WHERE run_id = :run_id AND operation_id = :operation_id AND write_token = :token
"""
_RECEIPT_OF_LEASE = """
SELECT 0 AS just_now FROM fencepost_operations
WHERE run_id = :run_id AND operation_id = :operation_id AND lease_token = :token
"""
_RECEIPT_OF_EVENT = """
SELECT 0 AS just_now FROM fencepost_events
WHERE run_id = :run_id AND sequence = :sequence AND write_token = :token
"""


def write_receipt(step: Step, token: str) -> Statement:
    """Of the last write to an operation."""
    return Statement(_RECEIPT_OF_WRITE, run_id=step.run_id, operation_id=step.id, token=token)


def lease_receipt(step: Step, token: str) -> Statement:
    """Of the last lease, whatever became of it."""
    return Statement(_RECEIPT_OF_LEASE, run_id=step.run_id, operation_id=step.id, token=token)


def event_receipt(step: Step, token: str, sequence: int) -> Statement:
    """Of a write with an event, whatever came after it."""
    return Statement(_RECEIPT_OF_EVENT, run_id=step.run_id, sequence=sequence, token=token)


_NOTHING = StepWrite([], Statement("SELECT 1"), lambda back: False)


async def verb(db: Database, step: Step, write: StepWrite | None, now_ms: int | None) -> ReadBack:
    """Run one attempt of a verb, and read run, operation and fence back, in one batch.

    Without a write it only reads. A keyed request that had its effect before has won, and writes
    nothing. Raises NotFound when the run is not there, or is another principal's; MissingTable when
    the run is there and the table is not; Conflict (IDEMPOTENCY_KEY_REUSED).
    """
    who = {**scope(step.viewer), **holder(step.owner, step.generation)}
    taken = Statement(_TAKEN, run_id=step.run_id, **who)
    reads = _reads(step.run_id, step.viewer, step.id, now_ms)
    reads += [fence.read_statement(), taken]

    def could_win(seen: list[Result]) -> bool:
        if write is None or not seen[0].rows:
            return False
        back = _read_back([], seen)
        return back.run.held_by(step.owner, step.generation) and write.could_win(back)

    try:
        statements, receipt, _, decides, token, records = write or _NOTHING
        intent = writes.Write(statements, reads, receipt, decides=decides, could_win=could_win)
        written = await requests.write(db, intent, (token,), records)
    except errors.MissingTable:
        await snapshot.read(db, step.run_id, step.viewer)
        raise
    return _read_back(written.rows, written.reads)


def _read_back(rows: list[Row], reads: list[Result]) -> ReadBack:
    """Raises NotFound when the run is not there, or is another principal's."""
    row, stored, gate, taken = reads
    run = snapshot.found(row)
    operation = Operation.from_row(stored.rows[0]) if stored.rows else None
    taken_by = Beaten(**taken.rows[0]) if taken.rows else None
    return ReadBack(rows, run, operation, gate.rows, taken_by)
