"""The audit: the acts of operators, each written in the same batch as the act.

An audit row is the first row of its batch. It is inserted only if the act is admitted. The other
statements of the batch run only if it was inserted: `last_is` is true in that batch alone.
"""

from __future__ import annotations

from typing import NamedTuple

from fencepost import errors
from fencepost.identifiers import Deed, Principal
from fencepost.storage.d1 import Database
from fencepost.storage.rows import Listed, Row, Rules, check_row, listed, whole
from fencepost.storage.sql import Parameter, Statement

TABLE = "fencepost_audit"


class Entry(NamedTuple):
    """A row of fencepost_audit. `before_json` and `after_json` are JSON texts, or None.

    `origin`: the deployment that wrote it, if a move has brought it, with its sequence there.
    """

    sequence: int
    action: str
    principal: Principal
    subject: str
    note: str | None
    before_json: str | None
    after_json: str | None
    at_ms: int
    origin: str | None = None
    origin_sequence: int | None = None

    @classmethod
    def from_row(cls, row: Row) -> Entry:
        """Raises RowCorrupt for a row that breaks a rule."""
        check_row(TABLE, _RULES, row)
        return cls(
            row["sequence"],
            row["action"],
            Principal(row["principal_kind"], row["principal_id"]),
            row["subject"],
            row["note"],
            row["before"],
            row["after"],
            row["at_ms"],
            row.get("origin"),
            row.get("origin_sequence"),
        )


_RULES: Rules = (
    ("numbers are whole", whole("sequence", "at_ms")),
    (
        "an origin has a sequence there",
        lambda row: (
            (isinstance(row.get("origin"), str) and isinstance(row.get("origin_sequence"), int))
            or row.get("origin") is row.get("origin_sequence") is None
        ),
    ),
)

INTO = (
    "INTO fencepost_audit (action, principal_kind, principal_id, subject, note, before,"
    " after, write_token, at_ms)"
)


IS_LAST = "sequence = (SELECT MAX(sequence) FROM fencepost_audit)"


def last_is(token: str) -> str:
    """SQL that is true if the batch with this token (a SQL expression) wrote the last row."""
    return f"(SELECT write_token FROM fencepost_audit WHERE {IS_LAST}) = {token}"


# The time of the last row, which is the time of the whole batch.
LAST_AT_MS = f"(SELECT at_ms FROM fencepost_audit WHERE {IS_LAST})"


_RECEIPT = """
SELECT sequence, after FROM fencepost_audit
WHERE sequence > (SELECT MAX(sequence) - 1000 FROM fencepost_audit) AND write_token = :token
"""


def receipt(token: str) -> Statement:
    """The receipt of an audited act, if it is among the last thousand. Also reads its `after`."""
    return Statement(_RECEIPT, token=token)


# Each decides nothing: guarded by the token of the write, to a run of another principal.
_OF_RUN = f"""
INSERT {INTO}
SELECT :verb, :operator_kind, :operator_id, run_id, NULL, NULL,
  json_object('status', status, 'generation', generation), :token, updated_at_ms
FROM fencepost_runs WHERE run_id = :run_id AND write_token = :token
  AND NOT (principal_kind = :operator_kind AND principal_id = :operator_id)
"""
_OF_STEP = f"""
INSERT {INTO}
SELECT :verb, :operator_kind, :operator_id, run.run_id, NULL, NULL,
  json_object('operation', operation_id, 'state', step.state, 'generation', run.generation),
  :token, step.updated_at_ms
FROM fencepost_operations AS step JOIN fencepost_runs AS run USING (run_id)
WHERE step.run_id = :run_id AND step.operation_id = :operation_id AND step.write_token = :token
  AND NOT (principal_kind = :operator_kind AND principal_id = :operator_id)
"""


def of_run(db: Database, run_id: str, token: str) -> list[Statement]:
    """The audit of a write to a run, in its batch, if an operator asks and the run is another's."""
    if db.deed is None:
        return []
    return [Statement(_OF_RUN, **_deed(db.deed), run_id=run_id, token=token)]


def of_step(db: Database, run_id: str, operation_id: str, token: str) -> list[Statement]:
    """As `of_run`, of a write to an operation."""
    if db.deed is None:
        return []
    what = {"run_id": run_id, "operation_id": operation_id, "token": token}
    return [Statement(_OF_STEP, **_deed(db.deed), **what)]


def _deed(deed: Deed) -> dict[str, Parameter]:
    kind, id = deed.operator
    return {"verb": deed.verb, "operator_kind": kind, "operator_id": id}


_PAGE = "SELECT * FROM fencepost_audit WHERE sequence > :after ORDER BY sequence LIMIT :limit"


async def page(db: Database, after: int, limit: int) -> list[Listed[Entry]]:
    """At most `limit` entries, in order, after sequence `after`."""
    try:
        [result] = await db.read([Statement(_PAGE, after=after, limit=limit)])
    except errors.MissingTable:
        return []
    return listed(result.rows, Entry.from_row)
