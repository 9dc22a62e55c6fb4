"""Reading runs, listing them, waiting for their end; and the batch that every verb on a run uses.

`runs` defines the row, `ownership` and `claims` who may own it, `transition` how it moves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from fencepost import errors, fence, limits, requests, waiting
from fencepost.fence import Fence
from fencepost.identifiers import Principal
from fencepost.journal import GENESIS, Head
from fencepost.runs import Beaten, Grant, Outcome, Owner, Run, RunStatus, VerbResult
from fencepost.storage import writes
from fencepost.storage.d1 import Database, Result
from fencepost.storage.rows import Listed, Row, listed
from fencepost.storage.sql import NOW_MS, Parameter, Statement

# A principal sees its own runs. Without a viewer (scope `operate`) all runs are visible.
VISIBLE = "(:viewer_kind IS NULL OR (principal_kind = :viewer_kind AND principal_id = :viewer_id))"

# For what belongs to a run (CROSS JOIN): none of it is read for whoever may not see the run.
SEEN = f"(SELECT run_id FROM fencepost_runs WHERE run_id = :run_id AND {VISIBLE}) AS seen"

_READ = f"""
SELECT fencepost_runs.*, state, result, COALESCE(:now_ms, {NOW_MS}) AS now_ms
FROM fencepost_runs LEFT JOIN fencepost_snapshots USING (run_id)
WHERE run_id = :run_id AND {VISIBLE}
"""


def read_statement(run_id: str, viewer: Principal | None, now_ms: int | None = None) -> Statement:
    """Returns one row or none, for `Run.from_row`. `viewer` None sees every run."""
    return Statement(_READ, run_id=run_id, **scope(viewer), now_ms=now_ms)


def scope(viewer: Principal | None) -> dict[str, str | None]:
    """The parameters of VISIBLE. `viewer` None sees every principal's runs."""
    kind, id = (None, None) if viewer is None else viewer
    return {"viewer_kind": kind, "viewer_id": id}


# The run of a key. It belongs to the principal of the reservation.
_READ_BY_KEY = f"""
SELECT run.*, content.state, content.result, COALESCE(:now_ms, {NOW_MS}) AS now_ms
FROM fencepost_reservations CROSS JOIN fencepost_runs AS run USING (run_id)
  LEFT JOIN fencepost_snapshots AS content USING (run_id)
WHERE key = :key
  AND (:viewer_kind IS NULL OR (owner_kind = :viewer_kind AND owner_id = :viewer_id))
"""


def read_by_key(key: str, viewer: Principal | None, now_ms: int | None = None) -> Statement:
    """The run of a key. Returns one row or none, for `Run.from_row`."""
    return Statement(_READ_BY_KEY, key=key, **scope(viewer), now_ms=now_ms)


async def read(db: Database, run_id: str, viewer: Principal | None) -> Run:
    """The run, with state and result. Raises NotFound, also for another principal's run."""
    try:
        [result] = await db.read([read_statement(run_id, viewer)])
    except errors.MissingTable:
        raise not_found() from None
    return found(result)


def found(result: Result) -> Run:
    """The run that a read statement returned. Raises NotFound if there is none."""
    if not result.rows:
        raise not_found()
    return Run.from_row(result.rows[0])


def not_found() -> errors.NotFound:
    return errors.NotFound("There is no such run.", code="RUN_NOT_FOUND")


# What a waiting request looks at: whether the run has ended, and whether somebody executes it or
# is about to. Of its content, which may be a megabyte, only the length, which the row's head has.
_GLANCE = f"""
SELECT finished_at_ms IS NOT NULL AS ended,
  COALESCE(status = 'running' AND lease_expires_at_ms >= {NOW_MS}, 0)
    OR COALESCE(claimed_at_ms + lease_ms >= {NOW_MS}, 0) AS busy,
  COALESCE(octet_length(content.state), 0) + COALESCE(octet_length(content.result), 0) AS bytes
FROM fencepost_runs LEFT JOIN fencepost_snapshots AS content USING (run_id)
WHERE run_id = :run_id AND {VISIBLE}
"""


class Glance(NamedTuple):
    """A run as a waiting request sees it; `busy`: under a lease or a claim that has not ended."""

    ended: bool
    busy: bool
    bytes: int


async def glance(db: Database, run_id: str, viewer: Principal | None) -> Glance | None:
    """None if there is no such run (any more), or it is another principal's."""
    [result] = await db.read([Statement(_GLANCE, run_id=run_id, **scope(viewer))])
    if not result.rows:
        return None
    [row] = result.rows
    return Glance(bool(row["ended"]), bool(row["busy"]), row["bytes"])


async def wait_for_end(
    db: Database,
    run_id: str,
    viewer: Principal | None,
    wait_s: float,
    gone: Callable[[], bool] = lambda: False,
) -> Run:
    """The run, once it has ended or `wait_s` seconds have passed, or the caller is `gone`.

    Raises NotFound, and TooManyWaiters.
    """
    with waiting.patience(wait_s, gone) as patience:
        while wait_s and (seen := await glance(db, run_id, viewer)) and not seen.ended:
            patience.answer_s = limits.WAIT_PAUSE_S_EACH + seen.bytes / limits.WAIT_BYTES_EACH_S
            if not await patience.pause():
                break
    return await read(db, run_id, viewer)


_PAGE = f"""
SELECT fencepost_runs.*, {NOW_MS} AS now_ms FROM fencepost_runs
WHERE run_id > :after_run_id ORDER BY run_id LIMIT :limit
"""
_PAGE_OF_PRINCIPAL = f"""
SELECT fencepost_runs.*, {NOW_MS} AS now_ms FROM fencepost_runs
WHERE run_id > :after_run_id
  AND principal_kind = :principal_kind AND principal_id = :principal_id
ORDER BY run_id LIMIT :limit
"""
_PAGE_BY_STATUS = f"""
SELECT fencepost_runs.*, {NOW_MS} AS now_ms FROM fencepost_runs
WHERE status = :status
  AND (principal_kind, principal_id, run_id) > (:after_kind, :after_id, :after_run_id)
ORDER BY principal_kind, principal_id, run_id LIMIT :limit
"""
_PAGE_OF_PRINCIPAL_BY_STATUS = f"""
SELECT fencepost_runs.*, {NOW_MS} AS now_ms FROM fencepost_runs
WHERE status = :status AND principal_kind = :principal_kind AND principal_id = :principal_id
  AND run_id > :after_run_id
ORDER BY run_id LIMIT :limit
"""


async def page(
    db: Database,
    viewer: Principal | None,
    status: RunStatus | None,
    after: tuple[str, str, str] | None,
    limit: int,
) -> list[Listed[Run]]:
    """At most `limit` runs, without state and result, oldest first.

    With a status, and for all principals, they are grouped by principal. `after` is (principal
    kind, principal id, run id) of the last run seen. A keyset page: new or deleted runs do not
    shift the others. Not guaranteed: that all pages show the same point in time.
    """
    try:
        [result] = await db.read([_page_statement(viewer, status, after or ("", "", ""), limit)])
    except errors.MissingTable:
        return []
    return listed(result.rows, Run.from_row)


def _page_statement(
    viewer: Principal | None, status: RunStatus | None, after: tuple[str, str, str], limit: int
) -> Statement:
    kind, id, run_id = after
    place: dict[str, Parameter] = {"after_run_id": run_id, "limit": limit}
    if viewer is not None:
        place |= {"principal_kind": viewer.kind, "principal_id": viewer.id}
        if status is None:
            return Statement(_PAGE_OF_PRINCIPAL, **place)
        return Statement(_PAGE_OF_PRINCIPAL_BY_STATUS, status=status, **place)
    if status is None:
        return Statement(_PAGE, **place)
    return Statement(_PAGE_BY_STATUS, status=status, after_kind=kind, after_id=id, **place)


async def head_of(db: Database, run_id: str, viewer: Principal | None) -> Head:
    """Where an attempt to append is to begin: at the end of the run's history. Raises NotFound.

    For a keyed request GENESIS, without a read: its first attempt only looks, since it may have
    had its effect before.
    """
    return GENESIS if db.request else (await read(db, run_id, viewer)).head


# Decides: whether a write to a run landed. Its token is in the row; or, if another write came
# since, in the fact or in the event (at `:sequence`, if it has one) that it left behind.
_RECEIPT = """
SELECT (SELECT created_at_ms FROM fencepost_events
    WHERE run_id = :run_id AND sequence = :sequence AND write_token = :token) AS at_ms
WHERE EXISTS (
    SELECT 1 FROM fencepost_runs WHERE run_id = :run_id AND write_token = :token)
  OR EXISTS (SELECT 1 FROM fencepost_ownership WHERE run_id = :run_id AND write_token = :token)
  OR EXISTS (SELECT 1 FROM fencepost_events
    WHERE run_id = :run_id AND sequence = :sequence AND write_token = :token)
"""


def write_receipt(run_id: str, token: str, sequence: int | None = None) -> Statement:
    """The receipt of a write to a run. `sequence`: that of its event, if it has one."""
    return Statement(_RECEIPT, run_id=run_id, token=token, sequence=sequence)


# What beat a verb: the last fact and the last event of a run that this attempt was not the last
# to write; no rows after a verb that won. For `Beaten`.
_BEATEN = f"""
SELECT 'fact' AS source, type, fact.generation, sequence, at_ms
FROM (SELECT run_id FROM fencepost_runs
    WHERE run_id = :run_id AND write_token <> :token AND {VISIBLE}) AS seen
  CROSS JOIN fencepost_ownership AS fact USING (run_id)
WHERE sequence = (SELECT MAX(sequence) FROM fencepost_ownership WHERE run_id = :run_id)
UNION ALL
SELECT 'event', type, NULL, sequence, created_at_ms
FROM (SELECT run_id, head_sequence FROM fencepost_runs
    WHERE run_id = :run_id AND write_token <> :token AND {VISIBLE}) AS seen
  CROSS JOIN fencepost_events AS last USING (run_id)
WHERE last.sequence = seen.head_sequence
"""


class RunReadBack(NamedTuple):
    """What a verb left behind, read back in its batch.

    `rows`: of the statement that decides, or of the receipt after a lost reply; a row if the verb
    won. `fact` and `event`: the last ones of the run, unless this verb was the last to write.
    """

    rows: list[Row]
    run: Run
    fence_rows: list[Row]
    fact: Beaten | None = None
    event: Beaten | None = None

    @property
    def won(self) -> bool:
        return bool(self.rows)

    def require_existing_run(self) -> None:
        """Raises Fenced unless the fence admits the run's work, and FenceUnreadable."""
        Fence.from_rows(self.fence_rows).require_existing_run(self.run.run_id)

    def lost(self, outcome: Outcome, granted: Grant | None = None) -> VerbResult:
        """A loss, with what beat the verb: an event if its head was beaten, else a fact."""
        beaten = self.event if outcome is Outcome.HEAD_CHANGED else self.fact
        return VerbResult(outcome, self.run, beaten, granted)

    def effect(self, outcome: Outcome, owner: Owner) -> VerbResult:
        """A win whose effect stays; if another process holds the run now, with what took it."""
        taken = self.run.owner not in (None, owner)
        return VerbResult(outcome, self.run, self.fact if taken else None)


def read_back_statements(
    run_id: str, viewer: Principal | None, token: str, now_ms: int | None
) -> list[Statement]:
    """The reads of a verb, for `read_back`."""
    return [
        read_statement(run_id, viewer, now_ms),
        fence.read_statement(),
        Statement(_BEATEN, run_id=run_id, token=token, **scope(viewer)),
    ]


def read_back(rows: list[Row], reads: list[Result]) -> RunReadBack:
    """Raises NotFound when the run is not there, or is another principal's."""
    run, gate, beaten = reads
    last = {
        row["source"]: Beaten(row["type"], row["generation"], row["sequence"], row["at_ms"])
        for row in beaten.rows
    }
    return RunReadBack(rows, found(run), gate.rows, last.get("fact"), last.get("event"))


async def verb(
    db: Database,
    statements: list[Statement],
    token: str,
    run_id: str,
    viewer: Principal | None,
    now_ms: int | None,
    *,
    receipt: Statement | None = None,
    records: Sequence[Statement] = (),
    also: tuple[str, ...] = (),
    could_win: Callable[[Run], bool] = lambda run: not run.ended,
) -> RunReadBack:
    """Run a verb's statements, which write `token`, and read the run back, in one batch.

    `also`: further tokens that it may write instead. `records`: what it leaves beside its effect
    (`requests.of_run`). A keyed request that had its effect before has won, and writes nothing.
    `could_win` judges the run as it is read after a lost reply (`writes.Write`). Without statements
    it only reads. Raises NotFound when the run is not there, or is another principal's,
    and Conflict (IDEMPOTENCY_KEY_REUSED).
    """

    def open_still(reads: list[Result]) -> bool:
        return bool(reads[0].rows) and could_win(Run.from_row(reads[0].rows[0]))

    reads = read_back_statements(run_id, viewer, token, now_ms)
    intent = writes.Write(
        statements, reads, receipt or write_receipt(run_id, token), could_win=open_still
    )
    try:
        written = await requests.write(db, intent, (token, *also), records)
    except errors.MissingTable:
        await read(db, run_id, viewer)
        raise
    return read_back(written.rows, written.reads)
