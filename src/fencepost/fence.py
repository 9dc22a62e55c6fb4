"""The fence: one switch for the whole deployment, and what it admits in each state.

The fence is never cached. A write that it gates has the matching `..._sql` condition in its WHERE,
so the check and the write are one statement. When the write was refused, the methods of `Fence`
name the refusal, from the row that the same batch read back.

    work                                   open  draining  migration-locked  proof-only
    a new start                             yes     no            no         its key = proof_key,
                                                                               of proof_principal
    an existing run (heartbeat, ...)        yes     yes           no         the proof run
    arming future work                      yes     no            no         no
    queued work                             yes     yes           no         no

Reads, cancel, release and fence administration always pass. A deployment that was never
provisioned (no row, no table) is open.

In three more states, which only a move of the deployment sets and ends (`transfer`), nothing passes
but reads and the commands of the move: `importing` and `void` (a target), `sealed` (a source).
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Any, NamedTuple

from fencepost import audit, errors, limits, requests
from fencepost.identifiers import Principal, mint_token
from fencepost.storage import writes
from fencepost.storage.d1 import Database
from fencepost.storage.rows import Rules, check_row, whole
from fencepost.storage.sql import NOW_MS, Statement


class FenceState(StrEnum):
    OPEN = "open"
    DRAINING = "draining"
    MIGRATION_LOCKED = "migration-locked"
    PROOF_ONLY = "proof-only"
    IMPORTING = "importing"
    SEALED = "sealed"
    VOID = "void"


# The states of a move, and those between which an operator moves the fence.
MOVING = frozenset({FenceState.IMPORTING, FenceState.SEALED, FenceState.VOID})
OPERATED = tuple(state for state in FenceState if state not in MOVING)


class Fence(NamedTuple):
    """The fence row. `updated_at_ms` is None when there is no row.

    `proof_principal`: whose start the proof is, if the transition named one.
    `last_admitted_revision`: the last revision under which a run was started; None if none was, or
    if that is not known, as there was no row. `moved_to`: where to go, once it is sealed.
    """

    state: FenceState
    revision: int
    proof_key: str | None
    proof_run_id: str | None
    updated_at_ms: int | None
    proof_principal: Principal | None = None
    last_admitted_revision: int | None = None
    moved_to: str | None = None

    @classmethod
    def from_rows(cls, rows: Sequence[dict[str, Any]]) -> Fence:
        """The fence from the rows read. Raises FenceUnreadable when they are not understood."""
        if not rows:
            return cls(FenceState.OPEN, 0, None, None, None)
        if len(rows) > 1:
            raise errors.FenceUnreadable("There is more than one fence row.")
        row = rows[0]
        try:
            check_row("fencepost_fence", _RULES, row)
        except (errors.ColumnAbsent, errors.RowCorrupt) as broken:
            raise errors.FenceUnreadable(
                f"{broken.detail} This build does not know such a fence; nothing is admitted."
            ) from None
        kind, id = row.get("proof_principal_kind"), row.get("proof_principal_id")
        return cls(
            FenceState(row["state"]),
            row["revision"],
            row["proof_key"],
            row["proof_run_id"],
            row["updated_at_ms"],
            None if kind is None or id is None else Principal(kind, id),
            row.get("last_admitted_revision"),
            row.get("moved_to"),
        )

    def admits_start(self, key: str, principal: Principal, run_id: str | None = None) -> bool:
        """Whether the principal may start `key`; `run_id`: the run it is reserved for, if any."""
        if self.state is FenceState.PROOF_ONLY:
            asked = key == self.proof_key and self.proof_principal in (None, principal)
            return asked and self.proof_run_id in (None, run_id)
        return self.state is FenceState.OPEN

    def admits_existing_run(self, run_id: str) -> bool:
        """Whether a started run may continue."""
        if self.state is FenceState.PROOF_ONLY:
            return self.proof_run_id == run_id
        return self.state in (FenceState.OPEN, FenceState.DRAINING)

    def require_existing_run(self, run_id: str) -> None:
        """Raises Fenced unless a started run may continue."""
        if not self.admits_existing_run(run_id):
            raise self.refusal()

    def admits_arming(self) -> bool:
        """Whether work may be scheduled for later."""
        return self.state is FenceState.OPEN

    def admits_queued_work(self) -> bool:
        """Whether work that was queued earlier may begin."""
        return self.state in (FenceState.OPEN, FenceState.DRAINING)

    def refusal(self) -> errors.Unavailable:
        """The error of a request that this state does not admit."""
        if self.state is FenceState.SEALED:
            return errors.DeploymentMoved(self.moved_to)
        return errors.Fenced(
            f"The deployment is {self.state} and does not admit this work. Nothing was written.",
            state=str(self.state),
        )


def moved_to(rows: Sequence[dict[str, Any]] | None) -> str | None:
    """Where to go, if the rows read are those of a sealed fence."""
    sealed = bool(rows) and rows is not None and rows[0].get("state") == FenceState.SEALED
    to = rows[0].get("moved_to") if sealed and rows else None
    return to if isinstance(to, str) else None


def closed(rows: Sequence[dict[str, Any]] | None) -> errors.Unavailable | None:
    """The refusal of whatever writes, if the rows read are those of a deployment that moves."""
    if not rows or rows[0].get("state") not in MOVING:
        return None
    return Fence.from_rows(rows).refusal()


# What `Fence.from_rows` takes for a fence row: these rules, and then the same in SQL.
_STATES = frozenset(FenceState)
_RULES: Rules = (
    ("state is known", lambda row: row["state"] in _STATES),
    ("numbers are whole", whole("revision", "updated_at_ms")),
    (
        "proof_key and proof_run_id are texts",
        lambda row: {str, type(None)}.issuperset(
            {type(row["proof_key"]), type(row["proof_run_id"])}
        ),
    ),
    (
        "proof-only, and no other state, has a proof key",
        lambda row: (row["state"] == "proof-only") == (row["proof_key"] is not None),
    ),
)
_WHOLE = f"""typeof(gate.{{0}}) <> 'text' AND gate.{{0}} = CAST(gate.{{0}} AS INTEGER)
    AND gate.{{0}} BETWEEN 0 AND {limits.INTEGER_MAX}"""
_TEXT = "typeof(gate.{0}) IN ('text', 'null')"
_IS_READABLE = f"""{_WHOLE.format("revision")} AND {_WHOLE.format("updated_at_ms")}
    AND {_TEXT.format("proof_key")} AND {_TEXT.format("proof_run_id")}
    AND (gate.state = 'proof-only') = (gate.proof_key IS NOT NULL)"""


def _gate_sql(admits: str) -> str:
    """SQL: there is no fence row; or one alone, which can be read and for which `admits` holds.

    The columns are those of `gate`: a missing one is an error, and never one of the same name in
    the statement around.
    """
    return f"""(SELECT COUNT(*) <= 1 AND TOTAL(({_IS_READABLE}
    AND ({admits})) IS NOT TRUE) = 0 FROM fencepost_fence AS gate)"""


def admits_start_sql(key: str, run_id: str, kind: str, id: str) -> str:
    """`Fence.admits_start` as SQL, over SQL expressions. Doubt admits nothing.

    `kind` and `id` are those of the principal.
    """
    return _gate_sql(f"""gate.state = 'open' OR (gate.state = 'proof-only'
     AND gate.proof_key = {key} AND (gate.proof_run_id IS NULL OR gate.proof_run_id = {run_id})
     AND (gate.proof_principal_kind IS NULL
       OR (gate.proof_principal_kind = {kind} AND gate.proof_principal_id = {id})))""")


# The revision that admits what is written now.
REVISION = "COALESCE((SELECT revision FROM fencepost_fence), 0)"

# A start that joins the run of its subject proves nothing, and must not spend the proof key.
NOT_PROVING = "NOT EXISTS (SELECT 1 FROM fencepost_fence WHERE state = 'proof-only')"


def admits_existing_run_sql(run_id: str) -> str:
    """`Fence.admits_existing_run` as SQL. The argument is a SQL expression."""
    return _gate_sql(f"""gate.state IN ('open', 'draining')
    OR (gate.state = 'proof-only' AND gate.proof_run_id = {run_id})""")


# Without a WHERE, so that a second row would be noticed. `*`, because the fence must be readable
# in its earlier shapes too, before they are migrated.
_READ = "SELECT * FROM fencepost_fence"


def read_statement() -> Statement:
    """Returns one row or none, for `Fence.from_rows`."""
    return Statement(_READ)


async def read(db: Database) -> Fence:
    """The fence as it is now. A missing table or row means `open`. Writes nothing.

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


# Decides: the key is the proof key, and the proof has no run yet.
_PROOF_WAITS = """(state = 'proof-only' AND proof_key = :key AND proof_run_id IS NULL
    AND (proof_principal_kind IS NULL
      OR (proof_principal_kind = :principal_kind AND proof_principal_id = :principal_id)))"""

# The reservation of the key, with its run, if this request means it: not another's, not joined.
_MEANT = """SELECT held.run_id, held.claim_nonce = :token AS mine
  FROM fencepost_reservations AS held JOIN fencepost_runs USING (run_id)
  WHERE held.key = :key AND owner_kind = :principal_kind AND owner_id = :principal_id
    AND fingerprint = :fingerprint AND subject_sha256 IS :subject_sha256
    AND joined = 0 AND state <> 'reserved'"""

# Decides: the attempt `:token` started a run under this revision, the first one; or the run of the
# proof key, new or old, becomes the proof run. So it is written once a revision, not at each start.
_RECORD_START = f"""
UPDATE fencepost_fence SET
  last_admitted_revision = CASE
    WHEN (SELECT claim_nonce FROM fencepost_reservations WHERE key = :key) = :token
    THEN revision ELSE last_admitted_revision END,
  proof_run_id = CASE WHEN {_PROOF_WAITS}
    THEN (SELECT run_id FROM fencepost_reservations WHERE key = :key) ELSE proof_run_id END
WHERE (last_admitted_revision IS NOT revision OR {_PROOF_WAITS})
  AND EXISTS (SELECT 1 FROM ({_MEANT}) WHERE mine OR {_PROOF_WAITS})
"""


def record_start_statement(
    key: str, principal: Principal, fingerprint: str, subject_sha256: str | None, token: str
) -> Statement:
    """What a start leaves at the fence, for its batch: the revision that admitted it, and its run,
    if its key is the proof key. Sent again later, it binds the proof run again.
    """
    who = {"principal_kind": principal.kind, "principal_id": principal.id}
    what = {"fingerprint": fingerprint, "subject_sha256": subject_sha256}
    return Statement(_RECORD_START, key=key, **who, **what, token=token)


# --- Moving it ---------------------------------------------------------------------------

# Decides: there is no fence row yet. :state is the first state.
_SEED = f"""
INSERT INTO fencepost_fence (id, state, revision, updated_at_ms)
VALUES ('deployment', :state, 0, {NOW_MS}) ON CONFLICT (id) DO NOTHING
"""


def as_seed_file(state: FenceState) -> str:
    """The text of `schema/seed-<state>.sql`. It does not change an existing fence."""
    return _SEED.strip().replace(":state", f"'{state}'") + ";\n"


# Each decides: the fence is not of a move.
_OPERATED = "state IN ('open', 'draining', 'proof-only', 'migration-locked')"
_AUDIT_LOCK = f"""
INSERT INTO fencepost_audit (action, principal_kind, principal_id, subject, note, before, after,
  write_token, at_ms)
SELECT 'fence-lock', 'system', 'wrangler', 'deployment', 'schema/lock.sql',
  json_object('state', state, 'revision', revision),
  json_object('state', 'migration-locked', 'revision', revision + 1),
  lower(hex(randomblob(16))),
  MAX({NOW_MS}, updated_at_ms + 1)
FROM fencepost_fence WHERE {_OPERATED}
"""
_LOCK = f"""
INSERT INTO fencepost_fence (id, state, revision, updated_at_ms)
VALUES ('deployment', 'migration-locked', 0, {NOW_MS})
ON CONFLICT (id) DO UPDATE SET state = 'migration-locked', revision = revision + 1,
  proof_key = NULL, proof_run_id = NULL, proof_principal_kind = NULL, proof_principal_id = NULL,
  updated_at_ms = MAX(excluded.updated_at_ms, updated_at_ms + 1)
WHERE {_OPERATED}
"""


def as_lock_file() -> str:
    """The text of `schema/lock.sql`: it closes a deployment that takes no requests."""
    return f"{_AUDIT_LOCK.strip()};\n\n{_LOCK.strip()};\n"


class FenceCommand(NamedTuple):
    """A fence transition that an operator asks for."""

    expected: FenceState
    next: FenceState
    revision: int | None = None
    proof_key: str | None = None
    proof_principal: Principal | None = None


class FenceOutcome(StrEnum):
    """The result of a command."""

    MOVED = "moved"
    CONFLICT = "conflict"


# Decides: there is no fence row, which means `open` at revision 0, and the command expects that.
# Writes this row, so that the statements below can change it.
_MATERIALISE = f"""
INSERT INTO fencepost_fence (id, state, revision, updated_at_ms, last_admitted_revision)
SELECT 'deployment', 'open', 0, COALESCE(:now_ms, {NOW_MS}),
  (SELECT 0 FROM fencepost_reservations WHERE key > '' LIMIT 1)
WHERE :expected = 'open' AND (:revision IS NULL OR :revision = 0) AND {requests.UNUSED}
  AND NOT EXISTS (SELECT 1 FROM fencepost_fence)
"""

# Decides: the fence can be read, is in the expected state, and at the expected revision if one is
# given.
_AUDIT_TRANSITION = f"""
INSERT {audit.INTO}
SELECT 'fence-transition', :principal_kind, :principal_id, 'deployment', NULL,
  json_object('state', state, 'revision', revision, 'proof_run_id', proof_run_id),
  json_object('state', :next, 'revision', revision + 1, 'proof_run_id', NULL,
    'last_admitted_revision', last_admitted_revision),
  :token, MAX(COALESCE(:now_ms, {NOW_MS}), updated_at_ms + 1)
FROM fencepost_fence
WHERE state = :expected AND (:revision IS NULL OR revision = :revision)
  AND {_gate_sql("TRUE")} AND {requests.UNUSED}
RETURNING sequence
"""

# Decides nothing: guarded by the audit row just written. Every transition clears the proof run.
_TRANSITION = f"""
UPDATE fencepost_fence SET state = :next, revision = revision + 1, proof_key = :proof_key,
  proof_run_id = NULL, proof_principal_kind = :proof_principal_kind,
  proof_principal_id = :proof_principal_id,
  updated_at_ms = {audit.LAST_AT_MS}
WHERE {audit.last_is(":token")}
"""


async def transition(
    db: Database,
    principal: Principal,
    command: FenceCommand,
    now_ms: int | None = None,
    opening: Sequence[Statement] = (),
) -> tuple[FenceOutcome, Fence]:
    """Move the fence, if it is in the state that the command expects. Any two states are legal.

    A keyed command is remembered as long as its audit row: a retry gets the fence as the command
    left it, and moves nothing. One round trip. The first transition in a database creates the
    tables. `opening` comes first in its batch (`transfer`). Raises FenceUnreadable for a state that
    this build does not know, and Conflict (IDEMPOTENCY_KEY_REUSED).
    """
    token = mint_token()
    intent = _transition_write(db, principal, command, token, now_ms)
    intent = intent._replace(
        statements=[*opening, *intent.statements], decides=len(opening) + intent.decides
    )
    records = requests.of_audited(db, token, FenceOutcome.MOVED)
    try:
        await db.ready(creating=True)
        written = await requests.write(db, intent, (token,), records)
    except errors.NOT_READY:
        gate = await read(db)
        if gate.state is not command.expected or command.revision not in (None, gate.revision):
            return FenceOutcome.CONFLICT, gate
        await db.bring_schema_forward()
        written = await requests.write(db, intent, (token,), records)
    if db.replay:
        [left] = written.rows
        known = (command.next, left["revision"], command.proof_key, None, left["at_ms"])
        admitted = left.get("last_admitted_revision")
        return FenceOutcome.MOVED, Fence(*known, command.proof_principal, admitted)
    gate = Fence.from_rows(written.reads[0].rows)
    return FenceOutcome.MOVED if written.won else FenceOutcome.CONFLICT, gate


def _transition_write(
    db: Database, principal: Principal, command: FenceCommand, token: str, now_ms: int | None
) -> writes.Write:
    expected, revision = command.expected, command.revision
    principal_kind, principal_id = command.proof_principal or (None, None)
    keyed = requests.params(db)
    statements = [
        Statement(_MATERIALISE, expected=expected, revision=revision, now_ms=now_ms, **keyed),
        Statement(
            _AUDIT_TRANSITION,
            principal_kind=principal.kind,
            principal_id=principal.id,
            expected=expected,
            revision=revision,
            next=command.next,
            token=token,
            now_ms=now_ms,
            **keyed,
        ),
        Statement(
            _TRANSITION,
            next=command.next,
            proof_key=command.proof_key,
            proof_principal_kind=principal_kind,
            proof_principal_id=principal_id,
            token=token,
        ),
    ]
    return writes.Write(statements, [read_statement()], audit.receipt(token), decides=1)
