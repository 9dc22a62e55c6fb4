"""Reading a run's history, appending a caller's event, and checking the integrity of a history.

Starts, releases, resolutions and transitions append their own events in their own batches. This
module appends those of callers. An append is a compare-and-set on the head in the run row, so that
a history never forks, even with several writers at once.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from fencepost import errors, fence, journal, limits, requests
from fencepost.identifiers import Principal, mint_token
from fencepost.journal import Event, Head
from fencepost.ownership import HELD_BY
from fencepost.projection import Projection
from fencepost.runs import Outcome, Owner, Run, VerbResult
from fencepost.snapshot import (
    SEEN,
    VISIBLE,
    RunReadBack,
    found,
    head_of,
    not_found,
    read_statement,
    scope,
    verb,
    write_receipt,
)
from fencepost.storage import races
from fencepost.storage.d1 import Database
from fencepost.storage.rows import Listed, Row, Rules, check_row, listed, whole
from fencepost.storage.sql import NOW_MS, Parameter, Statement


class Stored(NamedTuple):
    """A row of fencepost_events."""

    event: Event
    created_at_ms: int

    @classmethod
    def from_row(cls, row: Row) -> Stored:
        """The event of a row. Raises RowCorrupt when a column has a wrong type."""
        check_row("fencepost_events", _RULES, row)
        hashes = (row["prior_hash"], row["hash"])
        event = Event(row["sequence"], row["type"], row["payload"], *hashes)
        return cls(event, row["created_at_ms"])


_RULES: Rules = (
    ("sequence and time are whole numbers", whole("sequence", "created_at_ms")),
    (
        "type, payload and hashes are texts",
        lambda row: all(
            isinstance(row[name], str) for name in ("type", "payload", "prior_hash", "hash")
        ),
    ),
)


# --- Appending ---------------------------------------------------------------------------


class Append(NamedTuple):
    """What a caller adds. With an `owner` only as long as that owner holds the run, in the
    `generation` if one is given. `head_hint` saves a read, and never loses.
    """

    type: str
    payload: Any
    owner: Owner | None = None
    expected_head: Head | None = None
    generation: int | None = None
    head_hint: Head | None = None


# Decides: the run has not ended; its history ends at the expected event; the owner, if there is
# one, holds the run; and the fence admits existing work.
_MOVE_HEAD = f"""
UPDATE fencepost_runs SET head_sequence = :sequence, head_hash = :hash,
  write_token = :token, updated_at_ms = MAX(COALESCE(:now_ms, {NOW_MS}), updated_at_ms)
WHERE run_id = :run_id AND {VISIBLE} AND {fence.admits_existing_run_sql(":run_id")}
  AND finished_at_ms IS NULL AND head_sequence = :sequence - 1 AND head_hash = :prior_hash
  AND (:host_id IS NULL OR (status = 'running' AND {HELD_BY})) AND {requests.UNUSED}
RETURNING updated_at_ms AS at_ms
"""


class Appended(NamedTuple):
    """What became of an append; the event as it is stored, if it won."""

    result: VerbResult
    stored: Stored | None = None


async def append(
    db: Database,
    run_id: str,
    viewer: Principal | None,
    addition: Append,
    now_ms: int | None = None,
) -> Appended:
    """Append an event. One round trip with the head given or hinted, two without.

    Losses, in order: run_ended (without an owner), fence_lost, head_changed (against an expected
    head). Raises NotFound and
    Fenced, and Unavailable (CONTENDED) after lost races without an expected head.
    """
    head = addition.expected_head or addition.head_hint or await head_of(db, run_id, viewer)

    async def attempt() -> Appended | None:
        nonlocal head
        appended = await _attempt(db, run_id, viewer, addition, head, now_ms)
        result, head = appended.result, appended.result.run.head
        raced = result.outcome is Outcome.HEAD_CHANGED and addition.expected_head is None
        return None if raced else appended

    return await races.until_decided(db, attempt)


async def _attempt(
    db: Database,
    run_id: str,
    viewer: Principal | None,
    addition: Append,
    head: Head,
    now_ms: int | None,
) -> Appended:
    token, owner, generation = mint_token(), addition.owner, addition.generation
    event = journal.next_event(head, addition.type, addition.payload)
    who = dict.fromkeys(Owner._fields) if owner is None else owner.params
    write: dict[str, Parameter] = {"run_id": run_id, "token": token, "now_ms": now_ms}
    chain = {**event.params, "generation": generation}

    def holds(run: Run) -> bool:
        return owner is None or run.held_by(owner, generation)

    moved = {**write, **scope(viewer), **chain, **who, **requests.params(db)}
    statements = [
        Statement(_MOVE_HEAD, **moved),
        journal.append_statement(run_id, token, event),
    ]
    back = await verb(
        db,
        [] if head is journal.GENESIS else statements,
        token,
        run_id,
        viewer,
        now_ms,
        receipt=write_receipt(run_id, token, event.sequence),
        records=requests.of_run(db, run_id, token, Outcome.APPENDED, **event.params),
        could_win=lambda run: holds(run) and run.head == head and run.finished_at_ms is None,
    )
    if back.won:
        result = back.effect(Outcome.APPENDED, owner) if owner else None
        return Appended(result or VerbResult(Outcome.APPENDED, back.run), _stored(event, back))
    back.require_existing_run()
    if owner is None and back.run.finished_at_ms is not None:
        return Appended(back.lost(Outcome.RUN_ENDED))
    return Appended(back.lost(Outcome.HEAD_CHANGED if holds(back.run) else Outcome.FENCE_LOST))


def _stored(event: Event, back: RunReadBack) -> Stored:
    """The event as it was stored: a keyed request may have appended it earlier, at another head."""
    told = back.rows[0]
    chained = {name: told[name] for name in event.params if name in told}
    return Stored(event._replace(**chained), told["at_ms"])


# --- Reading -----------------------------------------------------------------------------

# At most `:limit` events; and of these only as many, but at least one, as have `:bytes_max` bytes
# of payload. `there`: how many there are up to the limit.
_PAGE = f"""
SELECT event.*, there FROM (
  SELECT sequence, bytes, SUM(bytes) OVER (ORDER BY sequence) AS total, COUNT(*) OVER () AS there
  FROM (SELECT sequence, octet_length(payload) AS bytes
    FROM {SEEN} CROSS JOIN fencepost_events USING (run_id)
    WHERE sequence > :after ORDER BY sequence LIMIT :limit)) AS page
JOIN fencepost_events AS event ON event.run_id = :run_id AND event.sequence = page.sequence
WHERE total <= :bytes_max OR total = bytes
"""


async def page(
    db: Database, run_id: str, viewer: Principal | None, after: int, limit: int
) -> tuple[Run, list[Listed[Stored]], bool]:
    """The run, and at most `limit` events after sequence `after`; and whether there may be more.

    It ends at limits.TRIP_BYTES_MAX of payload, and has one event at least. Raises NotFound and
    RowCorrupt.
    """
    run, rows = await _page(db, run_id, viewer, after, limit)
    return run, listed(rows, Stored.from_row), not _is_last(rows, limit)


def _is_last(rows: list[Row], limit: int) -> bool:
    """Whether a page is the last one: neither its limit nor its bytes ended it."""
    return not rows or len(rows) == rows[0]["there"] < limit


async def _page(
    db: Database, run_id: str, viewer: Principal | None, after: int, limit: int
) -> tuple[Run, list[Row]]:
    place: dict[str, Parameter] = {"run_id": run_id, "after": after, "limit": limit}
    place |= scope(viewer)
    events_after = Statement(_PAGE, **place, bytes_max=limits.TRIP_BYTES_MAX)
    try:
        run, events = await db.read([read_statement(run_id, viewer), events_after])
    except errors.MissingTable:
        raise not_found() from None
    # Sorted here: the database would copy the payloads once more to do it.
    return found(run), sorted(events.rows, key=lambda row: int(row["sequence"]))


_EVENT = f"""
SELECT hash FROM {SEEN} CROSS JOIN fencepost_events USING (run_id) WHERE sequence = :sequence
"""


async def has(db: Database, run_id: str, viewer: Principal | None, head: Head) -> tuple[Run, bool]:
    """The run, and whether its history has this event. Raises NotFound and RowCorrupt."""
    place: dict[str, Parameter] = {"run_id": run_id, **scope(viewer)}
    event = Statement(_EVENT, **place, sequence=head.sequence)
    try:
        run, events = await db.read([read_statement(run_id, viewer), event])
    except errors.MissingTable:
        raise not_found() from None
    return found(run), [row["hash"] for row in events.rows] == [head.hash]


# --- Integrity ---------------------------------------------------------------------------


class Integrity(NamedTuple):
    """Whether a history is intact and agrees with the run row.

    `sequence`: the first event that breaks a rule; None if the run row does.
    """

    events: int
    head: Head
    sequence: int | None = None
    rule: str | None = None

    @property
    def intact(self) -> bool:
        return self.rule is None


async def integrity(db: Database, run_id: str, viewer: Principal | None) -> Integrity:
    """Read the whole history, compute every hash again, rebuild the run, and compare.

    Writes nothing. It checks what the events record: target, principal, lineage, parent, status,
    state, result, ends. Not checked: leases, claims, cancels and generations, which have no
    events; and the exact time of an event, which is not part of its hash: a time is only checked
    against those of the events before and after.
    """
    history = History()
    run, rows = await _page(db, run_id, viewer, 0, limits.INTEGRITY_PAGE_ITEMS)
    while rows:
        broken = history.take(rows, run.run_id)
        if broken is not None:
            return Integrity(history.count, run.head, history.head.sequence + 1, broken)
        if _is_last(rows, limits.INTEGRITY_PAGE_ITEMS):
            break
        run, rows = await _page(
            db, run_id, viewer, history.head.sequence, limits.INTEGRITY_PAGE_ITEMS
        )
    return Integrity(history.count, run.head, None, history.mismatch(run))


class History:
    """The part of a history that was read: its head, and the run that it describes."""

    def __init__(self) -> None:
        self.head = journal.GENESIS
        self.count = 0
        self.at_ms = 0
        self.projection = Projection()

    def take(self, rows: list[Row], run_id: str) -> str | None:
        """Add rows. Returns the first rule that one of them breaks, or None."""
        for row in rows:
            try:
                stored = Stored.from_row(row)
            except errors.RowCorrupt as corrupt:
                return str(corrupt.members["rule"])
            broken = self._check(stored) or self.projection.apply(
                stored.event, run_id, stored.created_at_ms
            )
            if broken is not None:
                return broken
            self.head, self.at_ms = stored.event.head, stored.created_at_ms
            self.count += 1
        return None

    def _check(self, stored: Stored) -> str | None:
        event = stored.event
        if event.sequence != self.head.sequence + 1:
            return "sequences are contiguous from 1"
        if event.prior_hash != self.head.hash:
            return "the prior hash is the hash of the event before"
        if event.hash != journal.event_hash(self.head, event.type, event.payload_json):
            return "the hash is that of the event's content"
        if stored.created_at_ms < self.at_ms:
            return "events are in the order of their times"
        return None

    def mismatch(self, run: Run) -> str | None:
        """The first rule by which the run row differs from its history, or None."""
        if self.count == 0:
            return "a history begins with run-created"
        if run.head != self.head:
            return "the run's head is its last event"
        return self.projection.mismatch(run)
