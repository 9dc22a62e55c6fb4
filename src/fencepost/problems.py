"""Every problem code of the HTTP surface: what it means, and what a caller should do next.

`docs/errors.md` and `GET /docs/errors` are made of this table.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class Retry(StrEnum):
    """Whether sending again makes sense, and with which key."""

    SAME_KEY = "same-key"  # the same request with the same key, after Retry-After if given
    NEW_KEY = "new-key"  # this key cannot serve this request; another key can
    NEVER = "never"  # this request will not succeed, however often it is sent


class Problem(NamedTuple):
    status: int
    title: str
    retry: Retry
    meaning: str


_SAME, _NEW, _NEVER = Retry.SAME_KEY, Retry.NEW_KEY, Retry.NEVER

PROBLEMS = {
    # The request itself; nothing was written.
    "IDEMPOTENCY_KEY_MISSING": Problem(
        400, "The Idempotency-Key is missing", _NEW, "A start needs a key that names it."
    ),
    "IDEMPOTENCY_KEY_INVALID": Problem(
        400,
        "The Idempotency-Key is not valid",
        _NEW,
        "The header holds no key, more than one, or one outside the grammar.",
    ),
    "INVALID_REQUEST": Problem(
        400,
        "The request is not what this route takes",
        _NEVER,
        "The query or the body breaks a rule; the detail names it.",
    ),
    "UNAUTHORIZED": Problem(
        401, "A valid bearer token is required", _NEVER, "No token, or one nobody knows."
    ),
    "SCOPE_MISSING": Problem(
        403, "The token lacks a scope", _NEVER, "The token is known and may not do this."
    ),
    "NOT_FOUND": Problem(404, "No such path", _NEVER, "The service has no such route."),
    "RUN_NOT_FOUND": Problem(
        404, "No such run", _NEVER, "It does not exist, or it is another principal's."
    ),
    "START_NOT_FOUND": Problem(
        404, "No such start", _NEVER, "The key was never used, or it is another principal's."
    ),
    "OPERATION_NOT_FOUND": Problem(
        404,
        "No such operation",
        _NEVER,
        "The run has no operation of this name, or it is no name of one: 1–128 letters, digits "
        "and . _ : -, with a letter or digit at both ends.",
    ),
    "METHOD_NOT_ALLOWED": Problem(
        405, "Method not allowed", _NEVER, "The path exists and takes another method."
    ),
    "TOO_LARGE": Problem(
        413, "Too large", _NEVER, "The body, or a part of it, is larger than can be stored."
    ),
    # A start against what its key already means; nothing was written.
    "START_OWNER_MISMATCH": Problem(
        403, "The key is not yours", _NEW, "Another principal used this key."
    ),
    "START_TARGET_MISMATCH": Problem(
        422, "The key names another start", _NEW, "The key was used for another target."
    ),
    "START_INPUT_MISMATCH": Problem(
        422, "The key names another start", _NEW, "The key was used with other input or lineage."
    ),
    "START_PENDING": Problem(
        409, "The run is being executed", _SAME, "Ask again later; the key replays its end."
    ),
    "START_UNRESOLVABLE": Problem(
        409,
        "The run was abandoned",
        _SAME,
        "It started, may have executed, and nobody executes it now. It must be taken over or "
        "resolved; until then the key answers this. A new key could execute the work twice.",
    ),
    "START_ALREADY_SETTLED": Problem(
        409, "The key is spent", _NEVER, "Its run ended, and the record of it was purged."
    ),
    "OPERATION_ID_CONFLICT": Problem(
        409, "The key names another start", _NEW, "The key was used with another subject."
    ),
    "RUN_LOOKUP_CONFLICT": Problem(
        409,
        "The subject's names lead to different runs",
        _NEVER,
        "Start it by one name, or bind the names apart first.",
    ),
    # A verb on a run that lost; nothing was written.
    "CHANGE_BINDING_NOT_ALLOWED": Problem(
        409, "The verb lost", _NEVER, "Only a design run with a provisional name takes one change."
    ),
    "CHANGE_RUN_ALREADY_EXISTS": Problem(
        409, "The verb lost", _NEVER, "The change already has a live design run."
    ),
    "ALREADY_CLAIMED": Problem(
        409, "The verb lost", _SAME, "Somebody else holds a claim on the run."
    ),
    "HEARTBEAT_FRESH": Problem(
        409, "The verb lost", _SAME, "The run's owner is alive: its lease has not ended."
    ),
    "EVIDENCE_REQUIRED": Problem(
        409, "The verb lost", _NEVER, "The run has an owner; say why it is believed dead."
    ),
    "SNAPSHOT_CHANGED": Problem(
        409, "The verb lost", _NEVER, "The run is not, or no longer, in a state that admits this."
    ),
    "FENCE_LOST": Problem(
        409, "The verb lost", _NEVER, "This owner does not hold the run; it must stop its work."
    ),
    "GUARD_FAILED": Problem(
        409, "The verb lost", _NEVER, "The guard on the cancel request does not hold."
    ),
    "HEAD_CHANGED": Problem(
        409, "The verb lost", _NEVER, "The run's history does not end where the request expects."
    ),
    "ILLEGAL_TRANSITION": Problem(
        409,
        "The verb lost",
        _NEVER,
        "The run's machine does not move from `from` to `to`, or the run names no machine.",
    ),
    "DELIVERY_REVISION_CONFLICT": Problem(
        409,
        "The verb lost",
        _NEVER,
        "The gate has another delivery in this revision; what was bound stays.",
    ),
    "CLAIM_LOST": Problem(
        409, "The verb lost", _NEVER, "The run is not claimed by this claimant (any more)."
    ),
    "CLAIM_CHANGED": Problem(
        409,
        "The verb lost",
        _NEVER,
        "The claimant that is believed dead holds no claim on the run.",
    ),
    "CLAIM_FRESH": Problem(
        409, "The verb lost", _SAME, "The claim is younger than the run's lease is long."
    ),
    "LIVENESS_UNCONFIRMED": Problem(
        409, "The verb lost", _NEVER, "The evidence is missing, or breaks its own rule about hosts."
    ),
    "TERMINAL": Problem(409, "The verb lost", _NEVER, "The run has ended; its status says how."),
    "ALREADY_REQUESTED": Problem(
        409, "The verb lost", _NEVER, "A cancel was requested before; the first request is kept."
    ),
    "ALREADY_ACKNOWLEDGED": Problem(
        409, "The verb lost", _NEVER, "The request was acknowledged before; the first one is kept."
    ),
    "CANCEL_NOT_REQUESTED": Problem(
        409, "The verb lost", _NEVER, "Nobody has requested a cancel of this run."
    ),
    "OVERTAKEN": Problem(
        409,
        "The grant is over",
        _NEVER,
        "The grant was made, its reply was lost, and another process has taken the run since. The "
        "caller holds nothing: `granted` is what it had, and it must not execute.",
    ),
    "LEASE_LAPSED": Problem(
        409,
        "The granted lease has ended",
        _NEVER,
        "The grant was made, its reply was lost, and its lease has ended since; nobody has taken "
        "the run. A heartbeat with the owner and the generation in `granted` goes on with it.",
    ),
    "WORK_RECORDED": Problem(
        409,
        "The start cannot be given back",
        _NEVER,
        "Only the process that this attempt's start granted may release it, and only while the "
        "attempt has recorded nothing. An operator resolves it.",
    ),
    "KEY_JOINED": Problem(
        409,
        "The key joined the run of another key",
        _NEVER,
        "The key that started the run releases or resolves it.",
    ),
    # A verb on an operation that lost.
    "OPERATION_CONFLICT": Problem(
        409,
        "The verb lost",
        _NEVER,
        "The operation was acquired with another payload; another payload is another operation.",
    ),
    "OPERATION_ALREADY_RUNNING": Problem(
        409, "The verb lost", _SAME, "Its lease holds, and the request wants it alone."
    ),
    "LEASE_FENCED": Problem(
        409,
        "The verb lost",
        _NEVER,
        "The token does not, or no longer, hold the operation's lease: stop that work, or acquire "
        "again. A write under a lease that lapsed also marks the operation interrupted.",
    ),
    # The fence; nothing was written.
    "FENCE_CAS_CONFLICT": Problem(
        409,
        "The fence is not where the command expects it",
        _NEVER,
        "Another command moved it; its present state and revision are in the answer.",
    ),
    "IDEMPOTENCY_KEY_REUSED": Problem(
        422, "The key names another command", _NEW, "The last transition had this key."
    ),
    # Not now.
    "EXECUTION_FENCED": Problem(
        503,
        "The fence does not admit this work",
        _SAME,
        "The operator has closed the deployment for it; nothing was written.",
    ),
    "EXECUTION_FENCE_UNREADABLE": Problem(
        503,
        "The fence cannot be read",
        _SAME,
        "Whether the work is admitted cannot be known, so it is not; nothing was written.",
    ),
    "AUTH_UNCONFIGURED": Problem(
        503,
        "No tokens are configured",
        _SAME,
        "The deployment has no usable FENCEPOST_TOKENS, so nobody is let in.",
    ),
    "ROW_CORRUPT": Problem(
        503,
        "A stored row breaks a rule",
        _SAME,
        "The rule is named, the row's content never; an operator must look.",
    ),
    "SCHEMA_MISMATCH": Problem(
        503,
        "The database has another shape",
        _SAME,
        "A table is not as this build knows it; the table and, where it is one, the column are "
        "named. Nothing was written or repaired. An earlier shape is brought forward by the next "
        "start or fence transition.",
    ),
    "CONTENDED": Problem(
        503, "Others keep winning the race", _SAME, "Nothing was written; send it again."
    ),
    "STORAGE_REFUSED": Problem(
        503, "The database did not take the request", _SAME, "Nothing was written."
    ),
    "STORAGE_UNREADABLE": Problem(
        503, "The database could not be read", _SAME, "Nothing was written, nor was to be."
    ),
    "WRITE_OUTCOME_UNKNOWN": Problem(
        503,
        "It is not known whether the write happened",
        _SAME,
        "The database's reply was lost. The same request with the same key is safe to send.",
    ),
    "INTERNAL": Problem(500, "Internal error", _SAME, "A fault of the service; its log says more."),
}


def as_markdown() -> str:
    """The text of `docs/errors.md`."""
    lines = [
        "# Problem codes",
        "",
        "Errors are RFC 9457 problem documents; `code` names the problem, and `retry` says what",
        "a caller should do: `same-key`: send the same request with the same key again, after",
        "`Retry-After` seconds where given; `new-key`: this key cannot serve this request;",
        "`never`: this request will not succeed as it is. `CONTENDED`, every 4xx and every 503",
        "but `WRITE_OUTCOME_UNKNOWN` mean that nothing that was asked for was written.",
        "",
        "| code | status | retry | meaning |",
        "|---|---|---|---|",
    ]
    lines += [
        f'| <a id="{code}"></a>`{code}` | {problem.status} | `{problem.retry}` '
        f"| {problem.meaning} |"
        for code, problem in PROBLEMS.items()
    ]
    return "\n".join(lines) + "\n"
