"""The earlier shapes of the tables, and how they become the present one.

SQLite cannot add a CHECK to an existing table, so a migration rebuilds the table: create, copy,
drop, rename. Every earlier shape is migrated to the present one directly, in one batch. Digests
and columns of earlier shapes never change. `tests/schemas` holds a database of each shape.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from fencepost.schema import tables
from fencepost.schema.ddl import table, tokens
from fencepost.storage.sql import Statement


class Earlier(NamedTuple):
    """A shape that a table once had: `ddl.digest` of its DDL, and its columns, which are copied.

    `fills`: for each later column that may not be NULL, the SQL expression of its value in old
    rows. Every other new column is NULL in them, or has its DEFAULT. `drops`: those of its columns
    that are not copied.
    """

    table: str
    digest: str
    columns: tuple[str, ...]
    fills: tuple[tuple[str, str], ...] = ()
    drops: tuple[str, ...] = ()


# Before the fence knew under which revision the last run was started: under the present one at the
# latest.
_ADMITTED = (
    "last_admitted_revision",
    "CASE WHEN EXISTS (SELECT 1 FROM fencepost_reservations) THEN revision END",
)

# This shape came back in 7-requests.
_FENCE_1 = Earlier(
    "fencepost_fence",
    "e9b7eba087566ed28ebf8af4e99f44fbd43e3f7a3f50b79c0cf20a28e01124ff",
    ("id", "state", "revision", "proof_key", "proof_run_id", "updated_at_ms"),
    fills=(_ADMITTED,),
)

_RUNS_1 = Earlier(
    "fencepost_runs",
    "de69580d709365c73f9881f8fff09a12252e96312955a2ea817df0ba56e28d2b",
    (
        *("run_id", "principal_kind", "principal_id", "target_kind", "target_id", "thread_id"),
        *("status", "owner_host_id", "owner_pid", "owner_nonce", "generation"),
        *("heartbeat_at_ms", "lease_ms", "lease_expires_at_ms"),
        *("claim_host_id", "claim_pid", "claim_nonce", "claimed_at_ms"),
        *("cancel_requested_at_ms", "cancel_acknowledged_at_ms"),
        *("parent_run_id", "lineage_id", "lineage_round", "head_sequence", "head_hash"),
        *("write_token", "updated_at_ms", "created_at_ms", "started_at_ms", "finished_at_ms"),
    ),
)

# Before there were subjects, no key could join the run of another key.
_RESERVATIONS_1 = Earlier(
    "fencepost_reservations",
    "e1247e816cedd3ac7a680568fa8ae609294f787d6f7c77d38b7e623451ea2044",
    (
        *("key", "owner_kind", "owner_id", "target_kind", "target_id", "thread_id"),
        *("fingerprint", "run_id", "state", "attempt", "claim_nonce", "outcome"),
        *("created_at_ms", "updated_at_ms"),
    ),
    fills=(("joined", "0"),),
)

_RUNS_3 = Earlier(
    "fencepost_runs",
    "04b371889875572be935494d280494f5cf9a956f100dc7918c360ab511cfe183",
    (
        *("run_id", "principal_kind", "principal_id", "target_kind", "target_id", "thread_id"),
        *("status", "owner_host_id", "owner_pid", "owner_nonce", "generation"),
        *("heartbeat_at_ms", "lease_ms", "lease_expires_at_ms"),
        *("claim_host_id", "claim_pid", "claim_nonce", "claimed_at_ms", "claim_heartbeat_at_ms"),
        *("cancel_requested_at_ms", "cancel_acknowledged_at_ms"),
        *("parent_run_id", "lineage_id", "lineage_round", "head_sequence", "head_hash"),
        *("write_token", "updated_at_ms", "created_at_ms", "started_at_ms", "finished_at_ms"),
    ),
)

# Before a run kept the trace context of its start.
_RUNS_4 = Earlier(
    "fencepost_runs",
    "498b31ded89a31b6ee9db84ae360c1901c73a75bb38e3fa3818a6e7e0370da68",
    (
        *("run_id", "principal_kind", "principal_id", "target_kind", "target_id", "thread_id"),
        *("status", "owner_host_id", "owner_pid", "owner_nonce", "generation"),
        *("heartbeat_at_ms", "lease_ms", "lease_expires_at_ms"),
        *("claim_host_id", "claim_pid", "claim_nonce", "claimed_at_ms", "claim_heartbeat_at_ms"),
        *("cancel_requested_at_ms", "cancel_acknowledged_at_ms"),
        *("parent_run_id", "lineage_id", "lineage_round"),
        *("machine", "machine_state", "machine_code", "head_sequence", "head_hash"),
        *("write_token", "updated_at_ms", "created_at_ms", "started_at_ms", "finished_at_ms"),
    ),
)

# Before a reservation kept the revision of the fence that admitted it.
_RESERVATIONS_2 = Earlier(
    "fencepost_reservations",
    "cfb2963b7c93dde0a087c1b25c1433bd15bb53b1f69d6c99472d0d41d202a27e",
    (
        *("key", "owner_kind", "owner_id", "target_kind", "target_id", "thread_id"),
        *("fingerprint", "run_id", "state", "attempt", "claim_nonce", "outcome"),
        *("created_at_ms", "updated_at_ms", "joined", "subject_sha256"),
    ),
)

# Before events had a token, the hash identified the event.
_EVENTS_1 = Earlier(
    "fencepost_events",
    "c01daac8344c47ed3004c0c9ecc44aeebfd30379b416e45140fcbb583e61b016",
    ("run_id", "sequence", "type", "payload", "prior_hash", "hash", "created_at_ms"),
    fills=(("write_token", "''"),),
)

# Before facts of cancels, a fact always named a process.
_OWNERSHIP_1 = Earlier(
    "fencepost_ownership",
    "ea8725307b078176c08d7b0421daf9be5963250de064e5b3e2a2eb32e2018705",
    (
        *("run_id", "sequence", "type", "owner_host_id", "owner_pid", "owner_nonce"),
        *("generation", "granted_at_ms", "write_token", "at_ms"),
    ),
)

# Before leases ended with the generation of their run. A lease of then counts as one of the
# present generation: its step has been recorded in it, which is the careful way to read it.
_OPERATIONS_1 = Earlier(
    "fencepost_operations",
    "fd2897cd7f50341bd2b4d874e25281a66c08426dbb6c08c2b4d6a309dba856af",
    (
        *("run_id", "operation_id", "kind", "payload_fingerprint", "state", "lease_token"),
        *("lease_expires_at_ms", "outcome", "write_token", "created_at_ms", "updated_at_ms"),
    ),
    fills=(
        (
            "generation",
            "COALESCE((SELECT run.generation FROM fencepost_runs AS run"
            " WHERE run.run_id = fencepost_operations.run_id), 0)",
        ),
        ("cause", "CASE WHEN state = 'interrupted' THEN 'lapse' END"),
    ),
)

# Before every keyed request had its row, the fence kept the key of its last command.
_FENCE_2 = Earlier(
    "fencepost_fence",
    "ddc065f04cc2c9ffc40e91ca904981959d3f4d4bbf0c0b88b26d9e75c97b4b83",
    (
        *("id", "state", "revision", "proof_key", "proof_run_id"),
        *("transition_key", "transition_receipt", "updated_at_ms"),
    ),
    fills=(_ADMITTED,),
    drops=("transition_key", "transition_receipt"),
)

# Before an interruption had a cause. One of then counts as a lapse, which is the careful way to
# read it: whoever may not repeat the step looks first.
_OPERATIONS_2 = Earlier(
    "fencepost_operations",
    "2db0e36571f24bc150871429c5cd28089409af262ba1942bb81f563017442bc6",
    (
        *("run_id", "operation_id", "kind", "payload_fingerprint", "state", "lease_token"),
        *("generation", "lease_expires_at_ms", "outcome"),
        *("write_token", "created_at_ms", "updated_at_ms"),
    ),
    fills=(("cause", "CASE WHEN state = 'interrupted' THEN 'lapse' END"),),
)

# Before every write of an operator to another principal's run was audited.
_AUDIT_1 = Earlier(
    "fencepost_audit",
    "9aa1ad0e82e25055107e35b6f9612c6d9d098e09f3a8f726b0f676e75aee1ba1",
    (
        *("sequence", "action", "principal_kind", "principal_id", "subject", "note"),
        *("before", "after", "write_token", "at_ms"),
    ),
)

# Before audit rows were moved from one deployment to another.
_AUDIT_2 = Earlier(
    "fencepost_audit",
    "821d78c3b3502f5c25bc5ac398cb40f9d5d37b29bca87ea72f0ce7b11470f035",
    (
        *("sequence", "action", "principal_kind", "principal_id", "subject", "note"),
        *("before", "after", "write_token", "at_ms"),
    ),
)

# Before a deployment could be sealed.
_FENCE_3 = Earlier(
    "fencepost_fence",
    "3c5eb39f24c7f256608fb2586221a62c5ed82cb9a7164b9d71ce0ed182f10dce",
    (
        *("id", "state", "revision", "proof_key", "proof_run_id", "updated_at_ms"),
        *("proof_principal_kind", "proof_principal_id", "last_admitted_revision"),
    ),
)

_BEFORE_8 = (_FENCE_2, _RESERVATIONS_2, _RUNS_4)

# The earlier shapes of a database, oldest first: those of its tables that differ from the present
# ones. A table that was added later is missing there. An index belongs to its table.
MIGRATIONS = {
    "1-starts": (_FENCE_1, _RESERVATIONS_1, _RUNS_1, _EVENTS_1, _OWNERSHIP_1),
    "2-operators": (_FENCE_2, _RESERVATIONS_1, _RUNS_1, _EVENTS_1, _OWNERSHIP_1, _AUDIT_1),
    "3-ownership": (_FENCE_2, _RESERVATIONS_1, _RUNS_3, _EVENTS_1, _OWNERSHIP_1, _AUDIT_1),
    "4-history": (*_BEFORE_8, _EVENTS_1, _OWNERSHIP_1, _OPERATIONS_1, _AUDIT_1),
    "5-tokens": (*_BEFORE_8, _OWNERSHIP_1, _OPERATIONS_1, _AUDIT_1),
    "6-grants": (*_BEFORE_8, _OPERATIONS_2, _AUDIT_1),
    "7-requests": (_FENCE_1, _RESERVATIONS_2, _RUNS_4, _AUDIT_2),
    "8-admitted": (_FENCE_3, _AUDIT_2),
}

# Of the tables that the oldest shape lacks: the first shape that has them.
_CAME_WITH = {
    "fencepost_audit": "2-operators",
    "fencepost_subjects": "4-history",
    "fencepost_bindings": "4-history",
    "fencepost_operations": "4-history",
    "fencepost_requests": "7-requests",
    "fencepost_transfer": "9-moved",
}

EARLIER = {earlier.digest: earlier for shape in MIGRATIONS.values() for earlier in shape}


def _created(kind: str) -> dict[str, str]:
    """The statements of `tables` that create this kind, by the name of what they create."""
    plain = ((ddl.replace(" UNIQUE ", " ", 1), ddl) for ddl in tables.STATEMENTS)
    words = ((text.split(None, 6), ddl) for text, ddl in plain)
    return {word[5]: ddl for word, ddl in words if word[1] == kind}


DDL, INDEXES = _created("TABLE"), _created("INDEX")

# Decides: the table still has the shape for which the migration was chosen. If another request
# migrated it first, the malformed JSON fails, and D1 rolls the whole batch back.
_STILL = """
SELECT json(CASE
  WHEN (SELECT sql FROM sqlite_master WHERE type = 'table' AND name = :name) = :stored
  THEN '{}' ELSE 'moved' END)
"""


def statements(earlier: Earlier, stored: str) -> list[Statement]:
    """Rebuild a table whose stored SQL is `stored`. Its indexes and triggers are dropped."""
    still = Statement(_STILL, name=earlier.table, stored=stored)
    return [still, *(Statement(sql) for sql in _rebuild(earlier))]


def _rebuild(earlier: Earlier) -> list[str]:
    name = earlier.table
    kept = [column for column in earlier.columns if column not in earlier.drops]
    into = ", ".join([*kept, *(column for column, _ in earlier.fills)])
    values = ", ".join([*kept, *(expression for _, expression in earlier.fills)])
    created = DDL[name].replace(f"TABLE IF NOT EXISTS {name}", f"TABLE {name}_next", 1)
    return [
        created,
        f"INSERT INTO {name}_next ({into}) SELECT {values} FROM {name}",
        f"DROP TABLE {name}",
        f"ALTER TABLE {name}_next RENAME TO {name}",
    ]


def shape_of(found: Iterable[Earlier]) -> str:
    """The name of the shape with these earlier tables; the oldest of several."""
    tables_found = set(found)
    return next((name for name, shape in MIGRATIONS.items() if set(shape) >= tables_found), "?")


def table_of(name: str) -> str:
    """The table of an index; a table itself."""
    words = () if name in DDL else tokens(INDEXES[name])
    return words[words.index("on") + 1] if words else name


def lacking(names: Iterable[str]) -> list[str]:
    """The names of this build's tables and indexes that are not among `names`."""
    found = set(names)
    return [name for name in (*DDL, *INDEXES) if name not in found]


def as_sql_files() -> dict[str, str]:
    """The texts of `schema/migrate-<shape>.sql`, for a database too large for one request.

    Each file fails as a whole in a database of another shape.
    """
    return {f"schema/migrate-{shape}.sql": _as_sql(shape) for shape in MIGRATIONS}


def _as_sql(shape: str) -> str:
    """Rebuilds the tables that changed since, and creates what is then missing."""
    parts = []
    for earlier in MIGRATIONS[shape]:
        columns = ",".join(earlier.columns)
        still = (
            "SELECT json(CASE WHEN (SELECT group_concat(name) FROM "
            f"pragma_table_info('{earlier.table}'))\n  = '{columns}'\n"
            "  THEN '{}' ELSE 'another shape' END)"
        )
        parts += [still, *_rebuild(earlier)]
    rebuilt = {earlier.table for earlier in MIGRATIONS[shape]}
    later = {table for table, first in _CAME_WITH.items() if shape < first}
    parts += [DDL[name] for name in DDL if name in later]
    parts += [INDEXES[name] for name in INDEXES if table_of(name) in rebuilt | later]
    return "".join(f"{sql};\n\n" for sql in parts).rstrip("\n") + "\n"


def columns_of(name: str) -> tuple[str, ...]:
    """The columns of a table as this build knows it."""
    known = table(DDL[name])
    assert known is not None
    return tuple(known.columns)
