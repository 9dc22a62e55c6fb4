"""Lineages: the rounds of one logical run.

The lineage L of a run is its lineage id, or its run id if it has none. The members of L are the
principal's runs with lineage id L, and the run with id L if its lineage id is none or L. A run
with id L and another lineage id is not a member; forks by `parent_run_id` are not members either.
The order is by round, then run id. The run L without a round comes first.
"""

from __future__ import annotations

from fencepost import errors, requests
from fencepost.identifiers import Principal
from fencepost.runs import Run
from fencepost.snapshot import VISIBLE, not_found, scope
from fencepost.storage.d1 import Database
from fencepost.storage.rows import Listed, listed
from fencepost.storage.sql import NOW_MS, Statement

# The lineage of the run `:run_id`, if its viewer may see it. One row, or none.
ROOT = f"""
SELECT COALESCE(lineage_id, run_id) AS id, principal_kind AS kind, principal_id AS who
FROM fencepost_runs WHERE run_id = :run_id AND {VISIBLE}"""

# Members with a round, and the one without. Each query uses an index.
_ROUNDS = (
    "lineage_id = root.id AND member.principal_kind = root.kind AND member.principal_id = root.who"
)
_SELF = (
    "member.run_id = root.id AND lineage_id IS NULL"
    " AND member.principal_kind = root.kind AND member.principal_id = root.who"
)

_PAGE = f"""
SELECT member.*, -1 AS position, {NOW_MS} AS now_ms
FROM ({ROOT}) AS root JOIN fencepost_runs AS member ON {_SELF}
WHERE (-1, member.run_id) > (:after_round, :after_run_id)
UNION ALL
SELECT * FROM (
  SELECT member.*, lineage_round AS position, {NOW_MS} AS now_ms
  FROM ({ROOT}) AS root JOIN fencepost_runs AS member ON {_ROUNDS}
  WHERE (lineage_round, member.run_id) > (:after_round, :after_run_id)
  ORDER BY lineage_round, member.run_id LIMIT :limit)
"""

_EXISTS = f"SELECT 1 AS one FROM ({ROOT})"


async def page(
    db: Database,
    run_id: str,
    viewer: Principal | None,
    after: tuple[int, str] | None,
    limit: int,
) -> list[Listed[Run]]:
    """At most `limit` members of a run's lineage, without state and result. Raises NotFound.

    `after` is (round, run id) of the last one seen; the round of the run L itself is −1.
    """
    member = {"run_id": run_id, **scope(viewer)}
    round, last = after or (-2, "")
    statements = [
        Statement(_EXISTS, **member),
        Statement(_PAGE, **member, after_round=round, after_run_id=last, limit=limit),
    ]
    try:
        exists, members = await db.read(statements)
    except errors.MissingTable:
        raise not_found() from None
    if not exists.rows:
        raise not_found()
    return listed(members.rows[:limit], Run.from_row)


LATEST_ID = f"""
SELECT COALESCE(
  (SELECT member.run_id FROM ({ROOT}) AS root JOIN fencepost_runs AS member ON {_ROUNDS}
    ORDER BY lineage_round DESC, member.run_id DESC LIMIT 1),
  (SELECT member.run_id FROM ({ROOT}) AS root JOIN fencepost_runs AS member ON {_SELF}))"""

_LATEST = f"""
SELECT fencepost_runs.*, state, result, {NOW_MS} AS now_ms
FROM fencepost_runs LEFT JOIN fencepost_snapshots USING (run_id)
WHERE run_id = ({LATEST_ID})
"""


def latest_statement(run_id: str, viewer: Principal | None) -> Statement:
    """The last round of a run's lineage. Returns one row or none, for `Run.from_row`."""
    return Statement(_LATEST, run_id=run_id, **scope(viewer))


def _last_of(condition: str) -> str:
    """SQL: the last member, by round, for which `condition` holds of `member`; NULL if none."""
    return f"""COALESCE(
  (SELECT member.run_id FROM ({ROOT}) AS root JOIN fencepost_runs AS member ON {_ROUNDS}
    WHERE {condition} ORDER BY lineage_round DESC, member.run_id DESC LIMIT 1),
  (SELECT member.run_id FROM ({ROOT}) AS root JOIN fencepost_runs AS member ON {_SELF}
    WHERE {condition}))"""


# The last member with a fact of the request that `:token` names; or of that which had its effect
# before under the same key.
ASKED = _last_of(f"""EXISTS (SELECT 1 FROM fencepost_ownership AS fact
      WHERE fact.run_id = member.run_id
        AND fact.write_token = COALESCE({requests.TOKEN}, :token))""")
_OPEN_REQUEST = _last_of("member.finished_at_ms IS NULL AND cancel_requested_at_ms IS NOT NULL")

# Decides nothing: shows the run that the outcome of a request is about.
_READ_ASKED = f"""
SELECT fencepost_runs.*, state, result, {NOW_MS} AS now_ms
FROM fencepost_runs LEFT JOIN fencepost_snapshots USING (run_id)
WHERE run_id = COALESCE({ASKED}, {_OPEN_REQUEST}, ({LATEST_ID}))
"""


def asked_statement(db: Database, run_id: str, viewer: Principal | None, token: str) -> Statement:
    """The last round that the request named by `token` was made of; else the last round that has
    not ended and had one before; else the last round. One row or none, for `Run.from_row`.
    """
    asked = {"run_id": run_id, **scope(viewer), **requests.params(db)}
    return Statement(_READ_ASKED, **asked, token=token)


async def latest(db: Database, run_id: str, viewer: Principal | None) -> Run:
    """The last round of the lineage of a run, with state and result. Raises NotFound."""
    try:
        [result] = await db.read([latest_statement(run_id, viewer)])
    except errors.MissingTable:
        raise not_found() from None
    if not result.rows:
        raise not_found()
    return Run.from_row(result.rows[0])


# A condition for an UPDATE of fencepost_runs: every member that has not ended.
LIVE_MEMBERS = f"""
SELECT member.run_id FROM ({ROOT}) AS root JOIN fencepost_runs AS member ON {_ROUNDS}
WHERE member.finished_at_ms IS NULL
UNION ALL
SELECT member.run_id FROM ({ROOT}) AS root JOIN fencepost_runs AS member ON {_SELF}
WHERE member.finished_at_ms IS NULL"""
