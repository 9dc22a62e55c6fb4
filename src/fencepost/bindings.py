"""Delivery bindings: what was delivered at a gate in a revision, by the hash of its receipt.

A binding is written once and never changed. The same binding again is replayed; another one for
the same gate and revision is a conflict. Each binding is an event of the run's history.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any, NamedTuple

from fencepost import errors, fence, journal, limits, requests
from fencepost.identifiers import Principal, mint_token
from fencepost.journal import Event, Head
from fencepost.ownership import HELD_BY, holder
from fencepost.runs import Outcome, Owner, VerbResult
from fencepost.snapshot import (
    SEEN,
    VISIBLE,
    RunReadBack,
    found,
    not_found,
    read,
    read_back,
    read_back_statements,
    read_statement,
    scope,
    write_receipt,
)
from fencepost.storage import races, writes
from fencepost.storage.d1 import Database
from fencepost.storage.rows import Listed, Row, Rules, check_row, is_json_object, listed
from fencepost.storage.sql import NOW_MS, Parameter, Statement, json_text

TABLE = "fencepost_bindings"
GATES = ("a", "b")


class Binding(NamedTuple):
    """One delivery. `approval_proof_json` is canonical JSON of an object, or None.

    `created_at_ms` (milliseconds) is None until it is stored, and is not compared.
    """

    gate: str
    revision: int
    receipt_hash: str
    approval_proof_json: str | None = None
    created_at_ms: int | None = None

    @property
    def place(self) -> tuple[int, str]:
        """Revision and gate. One binding each in a run; lists are in this order."""
        return self.revision, self.gate

    def same(self, other: Binding) -> bool:
        return self._replace(created_at_ms=None) == other._replace(created_at_ms=None)

    @classmethod
    def from_row(cls, row: Row) -> Binding:
        """The binding of a row. Raises RowCorrupt for a row that breaks a rule."""
        check_row(TABLE, _RULES, row)
        columns = ("gate", "revision", "receipt_hash", "approval_proof", "created_at_ms")
        return cls(*(row[name] for name in columns))

    def as_json(self) -> dict[str, Any]:
        """The payload of its event."""
        proof = self.approval_proof_json
        shape = {
            "gate": self.gate,
            "revision": self.revision,
            "receipt_hash": self.receipt_hash,
        }
        return shape if proof is None else {**shape, "approval_proof": json.loads(proof)}


_RULES: Rules = (
    ("gate is a or b", lambda row: row["gate"] in GATES),
    (
        "revision is whole, from 1 to 2^53−1",
        lambda row: isinstance(row["revision"], int) and 1 <= row["revision"] <= limits.INTEGER_MAX,
    ),
    (
        "receipt_hash is 64 lowercase hexadecimal digits",
        lambda row: re.fullmatch("[0-9a-f]{64}", row["receipt_hash"]) is not None,
    ),
    (
        "approval_proof is a JSON object",
        lambda row: row["approval_proof"] is None or is_json_object(row["approval_proof"]),
    ),
)


class Bound(NamedTuple):
    """`bindings`: those of the request, as stored; after a conflict, the one that is stored."""

    result: VerbResult
    bindings: list[Binding]


# Decides: the run is running, this owner holds it, its history ends at the expected event, none of
# the revisions and gates has a binding, and the fence admits existing work.
_BIND = f"""
UPDATE fencepost_runs SET head_sequence = :sequence, head_hash = :hash, write_token = :token,
  updated_at_ms = MAX(COALESCE(:now_ms, {NOW_MS}), updated_at_ms)
WHERE run_id = :run_id AND {VISIBLE}
  AND status = 'running' AND {HELD_BY}
  AND head_sequence = :prior_sequence AND head_hash = :prior_hash
  AND NOT EXISTS (
    SELECT 1 FROM json_each(:bindings) CROSS JOIN fencepost_bindings AS held
    WHERE held.run_id = :run_id AND held.revision = value ->> 'revision'
      AND held.gate = value ->> 'gate')
  AND {fence.admits_existing_run_sql(":run_id")} AND {requests.UNUSED}
RETURNING run_id
"""

# Decides nothing: guarded by the token of the write that moved the head.
_STORE = """
INSERT INTO fencepost_bindings
  (run_id, gate, revision, receipt_hash, approval_proof, created_at_ms)
SELECT run_id, value ->> 'gate', value ->> 'revision', value ->> 'receipt_hash',
  value ->> 'approval_proof', updated_at_ms
FROM fencepost_runs, json_each(:bindings) WHERE run_id = :run_id AND write_token = :token
"""

# The bindings that exist for the revisions and gates of a request.
_READ_PLACES = f"""
SELECT held.* FROM {SEEN} CROSS JOIN json_each(:bindings) CROSS JOIN fencepost_bindings AS held
WHERE held.run_id = seen.run_id AND held.revision = value ->> 'revision'
  AND held.gate = value ->> 'gate'
"""


def _rows_json(bindings: Iterable[Binding]) -> str:
    return json_text(
        [
            {
                "gate": binding.gate,
                "revision": binding.revision,
                "receipt_hash": binding.receipt_hash,
                "approval_proof": binding.approval_proof_json,
            }
            for binding in bindings
        ],
    )


def bind_statements(
    db: Database,
    run_id: str,
    viewer: Principal | None,
    who: dict[str, Parameter],
    bindings: list[Binding],
    head: Head,
    token: str,
    now_ms: int | None,
) -> list[Statement]:
    """All of `bindings`, each with its event, or none; the first returns one row if it won.

    `who`: the parameters of ownership.HELD_BY.
    """
    if not bindings:
        return []
    events: list[Event] = []
    for binding in bindings:
        last = events[-1].head if events else head
        events.append(journal.next_event(last, "delivery-bound", binding.as_json()))
    last = events[-1].head
    write = {"run_id": run_id, "token": token, "bindings": _rows_json(bindings)}
    chain: dict[str, Parameter] = {"sequence": last.sequence, "hash": last.hash}
    asked = {**scope(viewer), **who, **requests.params(db)}
    chain |= {"prior_sequence": head.sequence, "prior_hash": head.hash}
    return [
        Statement(_BIND, **write, **asked, **chain, now_ms=now_ms),
        Statement(_STORE, **write),
        *[journal.append_statement(run_id, token, event) for event in events],
    ]


async def bind(
    db: Database,
    run_id: str,
    viewer: Principal | None,
    owner: Owner,
    bindings: list[Binding],
    *,
    generation: int | None = None,
    expected_head: Head | None = None,
    head_hint: Head | None = None,
    now_ms: int | None = None,
) -> Bound:
    """Bind deliveries to a run that `owner` holds: all of them, or none.

    `bindings` has an item, and no two with the same revision and gate. Wins: bound; replayed, if
    all of them were bound before (whatever the head). Losses, in order: fence_lost,
    delivery_revision_conflict, head_changed (against an expected head). One round trip with the
    head given or hinted, if all or none are new, else two. Raises as `events.append`.
    """
    head = expected_head or head_hint or journal.GENESIS
    # Without a head the first batch only reads. With one it assumes that all are new.
    new = [] if head is journal.GENESIS else bindings
    who = holder(owner, generation)

    async def attempt() -> Bound | None:
        nonlocal new, head
        back, held = await _attempt(db, run_id, viewer, who, new, head, bindings, now_ms)
        if back.won:
            return Bound(back.effect(Outcome.BOUND, owner), held)
        back.require_existing_run()
        if not back.run.held_by(owner, generation):
            return Bound(back.lost(Outcome.FENCE_LOST), [])
        loss = _loss(back, bindings, held)
        assumed, new = new, [one for one in bindings if one.place not in _places(held)]
        head = back.run.head
        same = expected_head is None or (head == expected_head and new != assumed)
        return None if loss.result.outcome is Outcome.HEAD_CHANGED and same else loss

    return await races.until_decided(db, attempt)


async def _attempt(
    db: Database,
    run_id: str,
    viewer: Principal | None,
    who: dict[str, Parameter],
    new: list[Binding],
    head: Head,
    bindings: list[Binding],
    now_ms: int | None,
) -> tuple[RunReadBack, list[Binding]]:
    """What binding `new` at `head` left behind, and what is bound to all the places afterwards."""
    token = mint_token()
    statements = bind_statements(db, run_id, viewer, who, new, head, token, now_ms)
    reads = [
        *read_back_statements(run_id, viewer, token, now_ms),
        Statement(_READ_PLACES, run_id=run_id, **scope(viewer), bindings=_rows_json(bindings)),
    ]
    intent = writes.Write(statements, reads, write_receipt(run_id, token))
    try:
        records = requests.of_run(db, run_id, token, Outcome.BOUND)
        written = await requests.write(db, intent, (token,), records)
    except errors.MissingTable:
        await read(db, run_id, viewer)
        raise
    *reads_back, places = written.reads
    held = sorted((Binding.from_row(row) for row in places.rows), key=lambda b: b.place)
    return read_back(written.rows, reads_back), held


def _places(bindings: Iterable[Binding]) -> dict[tuple[int, str], Binding]:
    return {binding.place: binding for binding in bindings}


def _loss(back: RunReadBack, bindings: list[Binding], held: list[Binding]) -> Bound:
    """Why the owner bound nothing; head_changed where nothing but the head can be in the way."""
    stored = _places(held)
    for binding in bindings:
        if not binding.same(stored.get(binding.place, binding)):
            conflict = back.lost(Outcome.DELIVERY_REVISION_CONFLICT)
            return Bound(conflict, [stored[binding.place]])
    if len(held) == len(bindings):
        return Bound(VerbResult(Outcome.REPLAYED, back.run), held)
    return Bound(back.lost(Outcome.HEAD_CHANGED), held)


_PAGE = f"""
SELECT bound.* FROM {SEEN} CROSS JOIN fencepost_bindings AS bound USING (run_id)
WHERE (revision, gate) > (:after_revision, :after_gate)
ORDER BY revision, gate LIMIT :limit
"""


async def page(
    db: Database, run_id: str, viewer: Principal | None, after: tuple[int, str], limit: int
) -> list[Listed[Binding]]:
    """At most `limit` bindings of a run, by revision and gate, after `after`. Raises NotFound."""
    revision, gate = after
    place = {"run_id": run_id, **scope(viewer), "after_gate": gate}
    bound = Statement(_PAGE, **place, after_revision=revision, limit=limit)
    try:
        results = await db.read([read_statement(run_id, viewer), bound])
    except errors.MissingTable:
        raise not_found() from None
    found(results[0])
    return listed(results[1].rows, Binding.from_row)
