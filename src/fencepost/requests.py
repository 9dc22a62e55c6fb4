"""Keyed requests: a verb that comes with an `Idempotency-Key` has one effect, however often it is
sent.

A verb that wrote leaves a row in the same batch: what was asked, and what it granted. The row is
inserted last. The statement that decides requires that no such row stands (`UNUSED`), so that of
two requests with one key, in two isolates at once, one writes. A retry finds the row, before the
fence, the owner and the head are looked at, and is answered from it; it writes nothing. The row is
also the receipt after a lost reply.

A key belongs to a principal and a run; `release`, `resolve`, the fence and the purge are requests
of the deployment. The rows of a run are purged with it, those of the deployment stay as the audit
does.

Not guaranteed: that a request that lost, or that found nothing to write, is remembered. Sent again
it is judged again.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from fencepost import audit, errors, journal
from fencepost.identifiers import KeyedRequest, Principal, Replay
from fencepost.storage import writes
from fencepost.storage.d1 import Database, Result
from fencepost.storage.rows import Row, Rules, check_row, is_json_object
from fencepost.storage.sql import Parameter, Statement, json_text

TABLE = "fencepost_requests"

MINE = """run_id = :request_run_id AND principal_kind = :request_kind
    AND principal_id = :request_id AND key = :request_key"""

# A condition of every statement that decides: this request has had no effect yet.
UNUSED = f"(:request_key IS NULL OR NOT EXISTS (SELECT 1 FROM {TABLE} WHERE {MINE}))"


# The token of the write by which this request had its effect; NULL without a key, or an effect.
TOKEN = f"(SELECT write_token FROM {TABLE} WHERE {MINE})"


def params(db: Database) -> dict[str, Parameter]:
    """The parameters of UNUSED. All are NULL for a request without a key."""
    asked = db.request
    if asked is None:
        return _UNKEYED
    return {
        "request_run_id": asked.run_id,
        "request_kind": asked.principal.kind,
        "request_id": asked.principal.id,
        "request_key": asked.key,
    }


_UNKEYED: dict[str, Parameter] = dict.fromkeys(
    ("request_run_id", "request_kind", "request_id", "request_key")
)


def keyed(
    key: str,
    principal: Principal,
    viewer: Principal | None,
    verb: str,
    params: dict[str, str],
    body: Any,
) -> KeyedRequest:
    """What a request with a key asks for. `params`: those of its path; `body`: its JSON.

    Two requests are the same if their verb, path and body are, but for `head_hint`.
    """
    run_id, members = params.get("run_id", ""), dict(body) if isinstance(body, dict) else {}
    members.pop("head_hint", None)
    # The names of operations ignore case.
    path = {name: value.lower() if name == "op" else value for name, value in params.items()}
    asked = {"path": {**path, "run_id": run_id}, "body": members}
    return KeyedRequest(run_id, principal, viewer, key, verb, journal.digest(asked))


# --- Recording ---------------------------------------------------------------------------

INTO = f"""INTO {TABLE} (run_id, principal_kind, principal_id, key, verb, fingerprint, outcome,
  answer, write_token, at_ms)
SELECT :request_run_id, :request_kind, :request_id, :request_key, :verb, :fingerprint, :outcome,"""

# Each decides nothing: guarded by the token of the write that it records. `:more` is a JSON object.
_OF_RUN = f"""
INSERT {INTO}
  json_patch(json_object('generation', generation, 'claimed_at_ms', claimed_at_ms,
    'at_ms', updated_at_ms), :more), :token, updated_at_ms
FROM fencepost_runs WHERE run_id = :run_id AND write_token = :token
ON CONFLICT DO NOTHING
"""
_OF_STEP = f"""
INSERT {INTO}
  json_object('lease_token', lease_token, 'generation', generation), :token, updated_at_ms
FROM fencepost_operations
WHERE run_id = :run_id AND operation_id = :operation_id AND write_token = :token
ON CONFLICT DO NOTHING
"""
_OF_AUDITED = f"""
INSERT {INTO}
  json_patch(COALESCE(after, '{{}}'), json_object('at_ms', at_ms)), :token, at_ms
FROM fencepost_audit
WHERE {audit.IS_LAST} AND write_token = :token
ON CONFLICT DO NOTHING
"""


def recorded(db: Database, outcome: str) -> dict[str, Parameter]:
    """The parameters of a statement that records the request. Only for one with a key."""
    assert db.request is not None
    asked = {"verb": db.request.verb, "fingerprint": db.request.fingerprint}
    return {**params(db), **asked, "outcome": outcome}


def of_run(db: Database, run_id: str, token: str, outcome: str, **more: Any) -> list[Statement]:
    """What a write to a run leaves beside its effect: the record, if the request has a key, and the
    audit, if an operator asks and the run is another's.

    The answer holds `generation`, `claimed_at_ms` and `at_ms`, and what is given in `more`.
    """
    audited = audit.of_run(db, run_id, token)
    if db.request is None:
        return audited
    what = {"run_id": run_id, "token": token, "more": json_text(more)}
    return [Statement(_OF_RUN, **recorded(db, outcome), **what), *audited]


def of_step(
    db: Database, run_id: str, operation_id: str, token: str, outcome: str
) -> list[Statement]:
    """As `of_run`, of a write to an operation; the answer holds `lease_token` and `generation`."""
    audited = audit.of_step(db, run_id, operation_id, token)
    if db.request is None:
        return audited
    what = {"run_id": run_id, "operation_id": operation_id, "token": token}
    return [Statement(_OF_STEP, **recorded(db, outcome), **what), *audited]


def of_audited(db: Database, token: str, outcome: str) -> list[Statement]:
    """The record of an audited act; its answer is what the audit says in `after`, and `at_ms`."""
    if db.request is None:
        return []
    return [Statement(_OF_AUDITED, **recorded(db, outcome), token=token)]


# --- Replaying ---------------------------------------------------------------------------

# The row of this request, if its run may be seen.
_LOOK = f"""
SELECT verb, fingerprint, outcome, answer, write_token FROM {TABLE}
WHERE {MINE} AND (run_id = '' OR EXISTS (
  SELECT 1 FROM fencepost_runs AS run WHERE run.run_id = {TABLE}.run_id
    AND (:viewer_kind IS NULL
      OR (run.principal_kind = :viewer_kind AND run.principal_id = :viewer_id))))
"""


def look(db: Database) -> list[Statement]:
    """The read that shows whether this request has had its effect; none without a key."""
    if db.request is None:
        return []
    kind, id = db.request.viewer or (None, None)
    return [Statement(_LOOK, **params(db), viewer_kind=kind, viewer_id=id)]


def replayed(db: Database, results: list[Result]) -> list[Row]:
    """What the request was answered before, as its deciding statement returned it; else nothing.

    `results` ends with that of `look`. Marks the replay in `db.replay`. Raises Conflict
    (IDEMPOTENCY_KEY_REUSED) if the key stands for another request.
    """
    if db.request is None or not results[-1].rows:
        return []
    row = results[-1].rows[0]
    check_row(TABLE, _RULES, row)
    if (row["verb"], row["fingerprint"]) != (db.request.verb, db.request.fingerprint):
        raise errors.Conflict(
            "This key was sent with another request: another verb, or another body. Nothing was "
            "written.",
            code="IDEMPOTENCY_KEY_REUSED",
        )
    db.replay = Replay(row["outcome"], row["write_token"])
    return [_answer(row)]


def _answer(row: Row) -> Row:
    return {**json.loads(row["answer"]), "outcome": row["outcome"]}


_RULES: Rules = (
    ("verb and outcome are texts", lambda row: isinstance(row["outcome"], str)),
    ("answer is a JSON object", lambda row: is_json_object(row["answer"])),
)


async def write(
    db: Database, intent: writes.Write, tokens: tuple[str, ...], records: Sequence[Statement]
) -> writes.Written:
    """`writes.write`, with the `records` of `of_run` and others in the same batch.

    If the request had its effect before, nothing is written, and the rows are those of that time.
    `tokens` are those of this attempt: a write that wins has left one of them. Raises Conflict as
    `replayed`.
    """
    if intent.statements:
        intent = intent._replace(statements=[*intent.statements, *records])
    if db.request is None:
        return _noted(db, await writes.write(db, intent), tokens)
    could_win = intent.could_win
    written = await writes.write(
        db,
        intent._replace(
            reads=[*intent.reads, *look(db)],
            could_win=lambda reads: not reads[-1].rows and could_win(reads[:-1]),
        ),
    )
    before, reads = written.reads[-1].rows, written.reads[:-1]
    if before and before[0]["write_token"] in tokens:
        mine = writes.Written(written.rows or [_answer(before[0])], reads)
        return _noted(db, mine, tokens)
    if before:
        return writes.Written(replayed(db, written.reads), reads)
    return _noted(db, writes.Written(written.rows, reads), tokens)


def _noted(db: Database, written: writes.Written, tokens: tuple[str, ...]) -> writes.Written:
    if written.won and tokens:
        db.won_token = tokens[0]
    return written
