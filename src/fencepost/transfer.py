"""The move: what makes one deployment follow another, so that no order of commands opens both.

Each deployment has one switch, its fence, and each command is one compare-and-set on it:

    command    on      from                 to                 and
    prepare    target  as seeded, locked    importing          it is empty, and was never open
    seal       source  migration-locked     sealed             for one target, which it names
    (import)   target  importing            importing          rows of the seal that it took first
    finish     target  importing            migration-locked   rows and digests are the seal's
    (open)     target  migration-locked     any                by a transition of the fence
    void       target  importing, finished  void               for good; answers a receipt
    unseal     source  sealed               migration-locked   with that receipt, or by force

A seal is triggers that refuse every write to every table: no late write, no older build and no
library changes a byte. A target has them too, from `finish` to its opening, and once it is void;
while it imports they refuse all but inserts. Each command can be sent again: it finds what it did.

Not guaranteed, after `unseal` by force: that only one of the two deployments starts a key.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Any, NamedTuple

from fencepost import audit, copies, errors, fence
from fencepost.copies import RowsPage, Sum, View
from fencepost.fence import Fence, FenceCommand, FenceOutcome, FenceState
from fencepost.identifiers import Principal, mint_token
from fencepost.schema import seal_triggers
from fencepost.storage import races
from fencepost.storage.d1 import Database, Result
from fencepost.storage.rows import Row
from fencepost.storage.sql import NOW_MS, Parameter, Statement, json_text


class Phase(StrEnum):
    """Where a deployment stands in a move: none, of a target, or of a source."""

    NONE = "none"
    IMPORTING = "importing"
    FINISHED = "finished"
    VOID = "void"
    SEALING = "sealing"
    SEALED = "sealed"


class Manifest(NamedTuple):
    """The tables as far as they are added up; `complete` once all are."""

    sums: dict[str, Sum]
    complete: bool

    @property
    def text(self) -> str:
        tables = {name: [*each[:2], each.last] for name, each in self.sums.items()}
        return json_text({"tables": tables, "complete": self.complete})

    @classmethod
    def of(cls, text: str | None) -> Manifest:
        if text is None:
            return cls({}, complete=False)
        read = json.loads(text)
        sums = {
            name: Sum(rows, digest, None if last is None else tuple(last))
            for name, (rows, digest, last) in read["tables"].items()
        }
        return cls(sums, read["complete"])


class Status(NamedTuple):
    """What a deployment knows of its move: its fence, and its row of fencepost_transfer.

    `deployment_id` is None before the first move. `seal` is the secret of the seal.
    """

    gate: Fence
    deployment_id: str | None = None
    target_id: str | None = None
    seal: str | None = None
    revision: int | None = None
    manifest_text: str | None = None

    @property
    def phase(self) -> Phase:
        if self.gate.state is FenceState.SEALED:
            return Phase.SEALED if self.manifest.complete else Phase.SEALING
        if self.gate.state in fence.MOVING:
            return Phase(self.gate.state)
        stands = self.revision == self.gate.revision and self.seal is not None
        return Phase.FINISHED if stands else Phase.NONE

    @property
    def manifest(self) -> Manifest:
        return Manifest.of(self.manifest_text)

    @property
    def view(self) -> View:
        """Which rows a move counts: those that came with it, in a target; all, in a source."""
        source = self.phase in (Phase.SEALING, Phase.SEALED)
        return View(self.deployment_id or "", brought=not source)


class Seal(NamedTuple):
    """What the sealed deployment says of itself, for the target that it names."""

    target_id: str
    seal: str
    revision: int
    last_admitted_revision: int | None
    sums: dict[str, Sum]


_READ = "SELECT * FROM fencepost_transfer"


def read_statements() -> list[Statement]:
    return [fence.read_statement(), Statement(_READ)]


def status_of(results: Sequence[Result]) -> Status:
    """Raises FenceUnreadable."""
    gate, rows = Fence.from_rows(results[0].rows), results[1].rows
    if not rows:
        return Status(gate)
    [row] = rows
    names = ("deployment_id", "target_id", "seal", "revision", "manifest")
    return Status(gate, *(row[name] for name in names))


async def read(db: Database) -> Status:
    """One round trip, which writes nothing. Raises FenceUnreadable."""
    try:
        return status_of(await db.read(read_statements()))
    except errors.MissingTable:
        return Status(await fence.read(db))


async def refusal(db: Database) -> errors.Unavailable:
    """Why the tables of this deployment take no writes."""
    status = await read(db)
    if status.phase is Phase.FINISHED:
        return errors.Fenced(
            "The deployment has been moved here, and is not open yet: only a transition of the "
            "fence, which opens it, or a void is taken. Nothing was written.",
            state=str(status.gate.state),
        )
    if status.gate.state not in fence.MOVING:
        return races.contended()  # it has been opened, or unsealed, since
    return status.gate.refusal()


# --- Refusals ----------------------------------------------------------------------------

_REASONS = {
    "not_locked": "The fence must be migration-locked.",
    "not_empty": "It has rows of its own. A move needs an empty database that was never open.",
    "not_prepared": "It is not the target of a move: prepare it first.",
    "not_sealed": "It is not sealed. Rows are given out by a sealed deployment alone.",
    "not_finished": "Its digests are not complete: send the seal again.",
    "not_opened": "It has been moved here, and is not open yet: open it, or make it void.",
    "opened": "It has been opened since, or was never the target of a move.",
    "void": "It is void, for good. Prepare another one.",
    "came_from": "It was moved here from that deployment, which is sealed for good.",
    "wrong_target": "The seal names another deployment.",
    "wrong_seal": "It has taken rows of another seal.",
    "wrong_receipt": "This is not the receipt of the target that the seal names.",
    "other_shape": "Its tables have other columns: bring both deployments to one build.",
    "out_of_order": "The row before this page is not here: import the pages in their order.",
}


def _refused(reason: str, status: Status) -> errors.Conflict:
    return errors.Conflict(
        f"{_REASONS[reason]} Nothing was written.",
        code="TRANSFER_REFUSED",
        reason=reason,
        phase=str(status.phase),
    )


def _require_here(status: Status, target_id: str) -> None:
    """The request is meant for this deployment, which is the target of a move."""
    if status.phase in (Phase.SEALING, Phase.SEALED):
        raise status.gate.refusal()
    if status.phase is Phase.VOID and status.deployment_id == target_id:
        raise _refused("void", status)
    if status.deployment_id is None:
        raise _refused("not_prepared", status)
    if status.deployment_id != target_id:
        raise _refused("wrong_target", status)


# --- Running a command -------------------------------------------------------------------

# Fails by its marker unless the fence and the transfer are those that the command was decided on.
# Whatever follows in the batch, DDL too, happens only behind it.
_STILL = """
SELECT CASE WHEN (SELECT state = :state AND revision = :revision FROM fencepost_fence)
  AND (SELECT COUNT(*) FROM fencepost_fence) = 1
  AND (SELECT json_array(deployment_id, target_id, seal, revision, manifest)
    FROM fencepost_transfer) IS :transfer
  THEN 1 ELSE json_extract('{}', 'FENCEPOST_MOVED_ON') END AS still
"""
_MOVED_ON = "FENCEPOST_MOVED_ON"


def still(status: Status) -> Statement:
    known = None if status.deployment_id is None else json_text(list(status[1:]))
    gate = status.gate
    return Statement(_STILL, state=gate.state, revision=gate.revision, transfer=known)


async def _command(
    db: Database,
    decide: Callable[[Status], list[Statement] | None],
) -> Status:
    """Read, decide, and write what was decided, if nothing has changed since.

    `decide` gives the statements of the command, or None if it has had its effect. After a lost
    reply it is decided again: what landed is found then. Raises Unknown if that cannot be
    known, and Unavailable (CONTENDED).
    """
    await db.ready()
    lost: errors.Unknown | None = None

    async def attempt() -> Status | None:
        nonlocal lost
        status = await read(db)
        statements = decide(status)
        if statements is None:
            return status
        try:
            await db.batch([still(status), *statements])
        except errors.Unknown as unknown:
            lost = unknown
        except errors.StorageError as failure:
            if _MOVED_ON not in failure.message and not isinstance(failure, errors.Sealed):
                raise
        return None

    try:
        return await races.until_decided(db, attempt)
    except (errors.StorageUnreadable, errors.Unavailable) as failure:
        if lost is not None and failure.code in ("STORAGE_UNREADABLE", "CONTENDED"):
            raise lost from None
        raise


# Decides nothing: behind _STILL. `:state` is that of the fence after the command.
_AUDIT = f"""
INSERT {audit.INTO}
SELECT :action, :principal_kind, :principal_id, 'deployment', :note,
  json_object('state', state, 'revision', revision),
  json_patch(json_object('state', :state, 'revision', CAST(:revision AS INTEGER)), :more), :token,
  MAX({NOW_MS}, updated_at_ms + 1)
FROM fencepost_fence
"""
_MOVE = f"""
UPDATE fencepost_fence SET state = :state, revision = :revision, moved_to = :moved_to,
  last_admitted_revision = :last_admitted_revision, updated_at_ms = {audit.LAST_AT_MS}
"""
_KEEP = """
INSERT INTO fencepost_transfer (id, deployment_id, target_id, seal, revision, manifest)
VALUES ('deployment', :deployment_id, :target_id, :seal, :revision, :manifest)
ON CONFLICT (id) DO UPDATE SET deployment_id = excluded.deployment_id,
  target_id = excluded.target_id, seal = excluded.seal, revision = excluded.revision,
  manifest = excluded.manifest
"""


def _keep(status: Status) -> Statement:
    known = ("deployment_id", "target_id", "seal", "revision")
    values = {name: getattr(status, name) for name in known}
    return Statement(_KEEP, **values, manifest=status.manifest_text)


def _act(
    principal: Principal, action: str, after: Status, note: str | None = None, **more: Any
) -> list[Statement]:
    """The audit of a command, and the fence and the transfer as it leaves them."""
    gate = after.gate
    left: dict[str, Parameter] = {"state": gate.state, "revision": gate.revision}
    who = {"principal_kind": principal.kind, "principal_id": principal.id}
    what = {"action": action, "note": note, "more": json_text(more)}
    kept = {"moved_to": gate.moved_to, "last_admitted_revision": gate.last_admitted_revision}
    return [
        Statement(_AUDIT, **left, **who, **what, token=mint_token()),
        Statement(_MOVE, **left, **kept),
        _keep(after),
    ]


def _moved(status: Status, state: FenceState, **changes: Any) -> Status:
    """The status after a command that leaves the fence in this state, at its next revision."""
    revision = changes.pop("revision", status.gate.revision + 1)
    gate = {name: changes.pop(name) for name in Fence._fields if name in changes}
    next_gate = status.gate._replace(state=state, revision=revision, **{"moved_to": None, **gate})
    return status._replace(gate=next_gate, revision=revision, **changes)


# --- Of a target -------------------------------------------------------------------------

_WAS_OPEN = """EXISTS (SELECT 1 FROM fencepost_audit WHERE action <> 'fence-transition'
  OR before ->> 'state' <> 'migration-locked' OR after ->> 'state' <> 'migration-locked')"""
_IS_EMPTY = " AND ".join(
    f"NOT EXISTS (SELECT 1 FROM fencepost_{name})" for name in copies.TABLES if name != "audit"
)
# Fails by its marker unless nothing was ever started here.
_UNUSED = f"""
SELECT CASE WHEN NOT {_WAS_OPEN} AND {_IS_EMPTY} THEN 1
  ELSE json_extract('{{}}', 'FENCEPOST_NOT_EMPTY') END AS unused
"""


async def prepare(db: Database, principal: Principal) -> Status:
    """Make an empty deployment the target of a move; it gets an id. Up to three trips.

    It is locked, or was seeded by schema/seed-target.sql, as `importing` from its first day: then
    not even a wrong command can have opened it before.

    From then on it takes nothing but import, finish and void. Raises Conflict (TRANSFER_REFUSED:
    not_locked, not_empty, void).
    """

    def decide(status: Status) -> list[Statement] | None:
        if status.phase is Phase.IMPORTING and status.deployment_id is not None:
            return None
        if status.phase is Phase.VOID:
            raise _refused("void", status)
        if status.phase in (Phase.SEALING, Phase.SEALED):
            raise status.gate.refusal()
        if status.phase is Phase.FINISHED or status.deployment_id is not None:
            raise _refused("not_empty", status)
        if status.gate.state not in (FenceState.IMPORTING, FenceState.MIGRATION_LOCKED):
            raise _refused("not_locked", status)
        after = _moved(status, FenceState.IMPORTING, deployment_id=mint_token())
        act = _act(principal, "transfer-prepare", after, deployment_id=after.deployment_id)
        return [
            Statement(_UNUSED),
            *act,
            *seal_triggers.create(copies.TABLES, ("update", "delete")),
        ]

    try:
        return await _command(db, decide)
    except errors.Refused as failure:
        if "FENCEPOST_NOT_EMPTY" not in failure.message:
            raise
        raise _refused("not_empty", await read(db)) from None


# Decides nothing: behind _STILL. What was added up is not so any more.
_BIND = "UPDATE fencepost_transfer SET seal = :seal, manifest = NULL"
_IN_ORDER = (
    "SELECT CASE WHEN {follows} THEN 1 ELSE json_extract('{{}}', 'FENCEPOST_GAP') END AS gap"
)
# Fails by its marker unless this deployment imports, for this seal.
_IMPORTS = """
SELECT CASE WHEN (SELECT state = 'importing' FROM fencepost_fence)
  AND (SELECT deployment_id = :target_id AND COALESCE(seal, :seal) = :seal FROM fencepost_transfer)
  THEN 1 ELSE json_extract('{}', 'FENCEPOST_MOVED_ON') END AS imports
"""


async def take(db: Database, target_id: str, seal: str, page: RowsPage) -> int:
    """Insert the rows of a page, if they are absent. Returns how many were. One round trip.

    Raises Conflict: TRANSFER_REFUSED (not_prepared, wrong_target, wrong_seal, void, opened,
    out_of_order), and TRANSFER_ROW_REFUSED for a row that the table does not take, or that differs
    from the one that stands there.
    """
    follows, before = copies.follows(page)
    guards = [
        Statement(_IMPORTS, target_id=target_id, seal=seal),
        Statement(_IN_ORDER.format(follows=follows), **before),
        Statement(_BIND, seal=seal),
    ]
    inserts = copies.insert_statements(page)
    stands = [copies.stands_statement(page)] if page.rows else []
    try:
        results = await db.batch([*guards, *inserts, *stands])
    except errors.ConstraintFailed as failure:
        raise await _invalid(db, page, failure) from None
    except errors.StorageError as failure:
        marked = _MOVED_ON in failure.message or "FENCEPOST_GAP" in failure.message
        if not marked and not isinstance(failure, errors.Sealed):
            raise
        raise await _not_taken(db, target_id, seal) from None
    if stands:
        copies.require_same(page, results[-1].rows)
    return sum(result.changes for result in results[len(guards) : len(guards) + len(inserts)])


async def _not_taken(db: Database, target_id: str, seal: str) -> errors.FencepostError:
    """Why a page was not taken."""
    status = await read(db)
    _require_importing(status, target_id, seal)
    return _refused("out_of_order", status)


def _require_importing(status: Status, target_id: str, seal: str) -> None:
    _require_here(status, target_id)
    if status.phase is not Phase.IMPORTING:
        raise _refused("opened", status)
    if status.seal not in (None, seal):
        raise _refused("wrong_seal", status)


# Fails by its marker, so that nothing of its batch stays.
_TAKE_BACK = "SELECT json_extract('{}', 'FENCEPOST_TAKEN_BACK')"


async def _invalid(
    db: Database, page: RowsPage, failure: errors.StorageError
) -> errors.FencepostError:
    """Which row the table does not take: each is inserted alone, and taken back."""
    of = copies.shape(page.name)
    for row, insert in zip(page.rows, copies.insert_statements(page), strict=True):
        try:
            await db.batch([insert, Statement(_TAKE_BACK)])
        except errors.ConstraintFailed:
            return copies.refused(page.name, of.key_of(row), "invalid")
        except errors.StorageError:
            continue
    return failure


async def finish(db: Database, principal: Principal, seal: Seal) -> Status:
    """Lock the target, if its rows are those of the seal. From then on it can be opened.

    It adds up as many pages as one request may read; send it again until the phase is `finished`.
    The fence goes on from the revision of the sealed one. Raises Conflict: TRANSFER_REFUSED, and
    TRANSFER_DIFFERS for the first table that is not as the seal says.
    """

    def is_done(status: Status) -> bool:
        _require_here(status, seal.target_id)
        if status.phase is Phase.IMPORTING and status.seal in (None, seal.seal):
            return False
        if status.seal != seal.seal:
            raise _refused("wrong_seal" if status.seal else "opened", status)
        return True

    def decide(status: Status) -> list[Statement] | None:
        if is_done(status) or not status.manifest.complete:
            return None
        _require_sums(seal, status.manifest.sums)
        revision = max(status.gate.revision, seal.revision) + 1
        known = {"revision": revision, "last_admitted_revision": seal.last_admitted_revision}
        after = _moved(status, FenceState.MIGRATION_LOCKED, seal=seal.seal, **known)
        counts = {name: each.rows for name, each in seal.sums.items()}
        return [
            *_act(principal, "transfer-finish", after, rows=counts),
            *seal_triggers.create(seal_triggers.ALL),
        ]

    await _add_up(db, lambda status: not is_done(status))
    return await _command(db, decide)


def _require_sums(seal: Seal, sums: dict[str, Sum]) -> None:
    for name in copies.TABLES:
        here, there = sums[name], seal.sums.get(name)
        if there is None or here[:2] != there[:2]:
            raise errors.Conflict(
                f"The rows of {name} are not those of the sealed deployment. Nothing was written.",
                code="TRANSFER_DIFFERS",
                table=name,
                rows=here.rows,
                sealed_rows=0 if there is None else there.rows,
            )


async def void(db: Database, principal: Principal, target_id: str) -> Status:
    """Close a target that has not opened, for good. Raises Conflict (TRANSFER_REFUSED)."""

    def decide(status: Status) -> list[Statement] | None:
        if status.phase is Phase.VOID and status.deployment_id == target_id:
            return None
        _require_here(status, target_id)
        if status.phase not in (Phase.IMPORTING, Phase.FINISHED):
            raise _refused("opened", status)
        after = _moved(status, FenceState.VOID)
        act = _act(principal, "transfer-void", after)
        return [*seal_triggers.drop(), *act, *seal_triggers.create(seal_triggers.ALL)]

    return await _command(db, decide)


def receipt(seal: str, target_id: str) -> str:
    """What a void target says to the holder of a seal: SHA-256 (hex) of both and the word."""
    return hashlib.sha256(f"{seal}:{target_id}:void".encode()).hexdigest()


async def transition(
    db: Database, principal: Principal, command: FenceCommand
) -> tuple[FenceOutcome, Fence]:
    """`fence.transition`; it opens a target that is finished. Raises DeploymentMoved, Fenced, and
    Unavailable (CONTENDED).
    """

    async def attempt() -> tuple[FenceOutcome, Fence] | None:
        try:
            return await fence.transition(db, principal, command)
        except errors.Sealed:
            status = await read(db)
        gate = status.gate
        if gate.state in fence.MOVING:
            raise gate.refusal()
        if status.phase is not Phase.FINISHED:
            return None  # it has been opened since
        if gate.state is not command.expected or command.revision not in (None, gate.revision):
            return FenceOutcome.CONFLICT, gate
        try:
            opening = [still(status), *seal_triggers.drop()]
            return await fence.transition(db, principal, command, opening=opening)
        except errors.Refused as failure:
            if _MOVED_ON not in failure.message:
                raise
            return None

    return await races.until_decided(db, attempt)


# --- Of a source -------------------------------------------------------------------------


# Fails by its marker if this deployment came from that one, which therefore is sealed for good.
_UNLESS_FROM = """
SELECT CASE WHEN EXISTS (SELECT 1 FROM fencepost_audit WHERE origin = :target_id)
  THEN json_extract('{}', 'FENCEPOST_CAME_FROM') END AS from_there
"""


async def seal(
    db: Database, principal: Principal, target_id: str, moved_to: str, revision: int | None = None
) -> Status:
    """Close a locked deployment for the target that it names, until that one is void.

    It adds up as many pages as one request may read; send it again until the phase is `sealed`.
    Raises DeploymentMoved if it is sealed for another target, and Conflict (TRANSFER_REFUSED).
    """

    def decide(status: Status) -> list[Statement] | None:
        if status.phase in (Phase.SEALING, Phase.SEALED) and status.target_id == target_id:
            return None
        _require_sealable(status, target_id, revision)
        after = _moved(
            status,
            FenceState.SEALED,
            deployment_id=status.deployment_id or mint_token(),
            target_id=target_id,
            seal=os.urandom(32).hex(),
            moved_to=moved_to,
            manifest_text=None,
        )
        act = _act(principal, "transfer-seal", after, target_id=target_id, moved_to=moved_to)
        triggers = seal_triggers.create((*copies.TABLES, "fence"))
        return [Statement(_UNLESS_FROM, target_id=target_id), *act, *triggers]

    try:
        await _command(db, decide)
    except errors.Refused as failure:
        if "FENCEPOST_CAME_FROM" not in failure.message:
            raise
        raise _refused("came_from", await read(db)) from None
    return await _add_up(db, lambda status: status.phase is Phase.SEALING)


def _require_sealable(status: Status, target_id: str, revision: int | None) -> None:
    if status.gate.state in fence.MOVING:
        raise status.gate.refusal()
    if status.deployment_id == target_id:
        raise _refused("wrong_target", status)
    if status.gate.state is not FenceState.MIGRATION_LOCKED:
        raise _refused("not_locked", status)
    if status.phase is Phase.FINISHED:
        raise _refused("not_opened", status)
    if revision not in (None, status.gate.revision):
        raise _fence_moved(status.gate)


def _fence_moved(gate: Fence) -> errors.Conflict:
    return errors.Conflict(
        f"The fence is {gate.state} at revision {gate.revision}. Nothing was written.",
        code="FENCE_CAS_CONFLICT",
        state=gate.state,
        revision=gate.revision,
    )


async def _add_up(db: Database, is_due: Callable[[Status], bool]) -> Status:
    """Add up the tables of a deployment that changes no more, and keep what was added."""
    status = await read(db)
    if not is_due(status):
        return status
    begun = status.manifest
    sums = {} if begun.complete else dict(begun.sums)
    stopped_at = await copies.add_up(db, status.view, sums)
    added = Manifest(sums, complete=stopped_at is None).text

    def decide(now: Status) -> list[Statement] | None:
        if not is_due(now) or now.manifest_text != status.manifest_text:
            return None
        kept = [_keep(now._replace(manifest_text=added))]
        sealed = now.gate.state is FenceState.SEALED and stopped_at is None
        return [*kept, *seal_triggers.create(("transfer",))] if sealed else kept

    return await _command(db, decide)


async def unseal(
    db: Database,
    principal: Principal,
    revision: int,
    receipt_of_void: str | None,
    note: str | None,
) -> Status:
    """Take back the seal that was set at this revision: with the receipt of its target, or without
    one, by force. `note` says why.

    Raises Conflict: FENCE_CAS_CONFLICT for another seal, TRANSFER_REFUSED (wrong_receipt).
    """

    def decide(status: Status) -> list[Statement] | None:
        gate = status.gate
        if gate.state is not FenceState.SEALED:
            ended = gate.revision == status.revision == revision + 1 and status.seal is None
            if ended and gate.state is FenceState.MIGRATION_LOCKED:
                return None
            raise _fence_moved(gate)
        if gate.revision != revision:
            raise _fence_moved(gate)
        assert status.seal is not None
        assert status.target_id is not None
        expected = receipt(status.seal, status.target_id)
        if receipt_of_void is not None and not hmac.compare_digest(receipt_of_void, expected):
            raise _refused("wrong_receipt", status)
        ended_seal = {"target_id": None, "seal": None, "manifest_text": None}
        after = _moved(status, FenceState.MIGRATION_LOCKED, **ended_seal)
        what = {"force": receipt_of_void is None, "target_id": status.target_id}
        return [*seal_triggers.drop(), *_act(principal, "transfer-unseal", after, note, **what)]

    return await _command(db, decide)


# --- Giving rows -------------------------------------------------------------------------


async def give(db: Database, name: str, after: copies.Key | None) -> tuple[Status, RowsPage]:
    """A page of a table, of a sealed deployment or of a target that has not opened.

    Two round trips. Raises Conflict (TRANSFER_REFUSED: not_sealed, not_finished).
    """
    status = await read(db)
    if status.phase is Phase.SEALING:
        raise _refused("not_finished", status)
    if status.phase not in (Phase.SEALED, Phase.IMPORTING, Phase.FINISHED):
        raise _refused("not_sealed", status)
    return status, await copies.page(db, name, status.view, after)


_LAST_OF_AUDIT = """SELECT origin, origin_sequence FROM fencepost_audit WHERE origin IS NOT NULL
ORDER BY sequence DESC LIMIT 1"""


async def taken(db: Database) -> dict[str, copies.Key | None]:
    """The last row of each table that a target has taken: where its import goes on."""
    statements = [Statement(_last_sql(name)) for name in copies.TABLES]
    results = await db.read(statements)
    return {
        name: _last_key(name, result.rows)
        for name, result in zip(copies.TABLES, results, strict=True)
    }


def _last_sql(name: str) -> str:
    if name == "audit":
        return _LAST_OF_AUDIT
    of = copies.shape(name)
    order = ", ".join(f"{key} DESC" for key in of.keys)
    return f"SELECT {', '.join(of.keys)} FROM {of.table} ORDER BY {order} LIMIT 1"


def _last_key(name: str, rows: Sequence[Row]) -> copies.Key | None:
    return tuple(rows[0][key] for key in copies.shape(name).keys) if rows else None
