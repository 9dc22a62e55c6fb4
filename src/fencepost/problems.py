"""Every problem code of the HTTP API: what it means, and what a client should do next.

`docs/errors.md` and `GET /docs/errors` are made from this table.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from fencepost import limits


class Retry(StrEnum):
    """Whether a client should send the request again, and with which key."""

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
    # The request is wrong; nothing was written.
    "IDEMPOTENCY_KEY_MISSING": Problem(
        400, "The Idempotency-Key is missing", _NEW, "A start needs the header Idempotency-Key."
    ),
    "IDEMPOTENCY_KEY_INVALID": Problem(
        400,
        "The Idempotency-Key is not valid",
        _NEW,
        "The header has more than one key, or a key outside the grammar.",
    ),
    "INVALID_REQUEST": Problem(
        400,
        "The request is not what this route takes",
        _NEVER,
        "The query or the body breaks a rule; the detail names it.",
    ),
    "CONTENT_ENCODING_UNSUPPORTED": Problem(
        415,
        "The body is encoded",
        _NEVER,
        "The service takes bodies without a Content-Encoding.",
    ),
    "UNAUTHORIZED": Problem(
        401,
        "A valid bearer token is required",
        _NEVER,
        "There is no token, or the service does not know it.",
    ),
    "SCOPE_MISSING": Problem(
        403,
        "The token lacks a scope",
        _NEVER,
        "The token is valid, and none of its scopes allows this request.",
    ),
    "NOT_FOUND": Problem(404, "No such path", _NEVER, "The service has no route with this path."),
    "RUN_NOT_FOUND": Problem(
        404, "No such run", _NEVER, "The run does not exist, or it belongs to another principal."
    ),
    "START_NOT_FOUND": Problem(
        404, "No such start", _NEVER, "The key was never used, or it belongs to another principal."
    ),
    "OPERATION_NOT_FOUND": Problem(
        404,
        "No such operation",
        _NEVER,
        "The run has no operation with this name. A name has 1–128 letters, digits and . _ : -, "
        "with a letter or digit at both ends.",
    ),
    "METHOD_NOT_ALLOWED": Problem(
        405, "Method not allowed", _NEVER, "The path exists, with other methods."
    ),
    "TOO_LARGE": Problem(
        413, "The body is too large", _NEVER, "The body, or a value in it, is over its limit."
    ),
    # The key of a start is used already; nothing was written.
    "START_OWNER_MISMATCH": Problem(
        403, "The key belongs to another principal", _NEW, "Another principal used this key before."
    ),
    "START_TARGET_MISMATCH": Problem(
        422, "The key has another target", _NEW, "The key was used before, for another target."
    ),
    "START_INPUT_MISMATCH": Problem(
        422,
        "The key has another input",
        _NEW,
        "The key was used before, with another input or lineage.",
    ),
    "START_PENDING": Problem(
        409,
        "The run is being executed",
        _SAME,
        "Send it again later. When the run has ended, the answer is the run.",
    ),
    "START_UNRESOLVABLE": Problem(
        409,
        "The run was abandoned",
        _SAME,
        "The run started and may have executed, and no owner holds a lease on it. Another process "
        "must own it, or an operator must resolve it; until then the key gets this answer. A new "
        "key could execute the work twice.",
    ),
    "START_ALREADY_SETTLED": Problem(
        409,
        "The run of this key was purged",
        _NEVER,
        "The run of this key has ended and was purged (by default 30 days after its end). The key "
        "starts nothing until it is purged as well (365 days later); then it is a new one.",
    ),
    "START_SUBJECT_MISMATCH": Problem(
        422,
        "The key has another subject",
        _NEW,
        "The key was used before, with another subject.",
    ),
    "RUN_LOOKUP_CONFLICT": Problem(
        409,
        "The names of the subject belong to different runs",
        _NEVER,
        "The change or the names of this subject were used for more than one run. Send a subject "
        "whose names belong to one run at most.",
    ),
    # A verb on a run was refused; nothing was written.
    "CHANGE_BINDING_NOT_ALLOWED": Problem(
        409,
        "The run takes no change, or has another one",
        _NEVER,
        "A change can be bound only to a design run with a provisional name, and only one.",
    ),
    "CHANGE_RUN_ALREADY_EXISTS": Problem(
        409,
        "The change already has a run",
        _NEVER,
        "Another design run of this change has not ended.",
    ),
    "ALREADY_CLAIMED": Problem(
        409, "The run is already claimed", _SAME, "A claim stands on the run."
    ),
    "HEARTBEAT_FRESH": Problem(
        409,
        "The owner's lease has not ended",
        _SAME,
        "The run has an owner, whose lease still holds.",
    ),
    "EVIDENCE_REQUIRED": Problem(
        409,
        "Evidence about the owner is required",
        _NEVER,
        "The run has another owner. The request must say why it is believed dead.",
    ),
    "SNAPSHOT_CHANGED": Problem(
        409,
        "The run is in another state",
        _NEVER,
        "The state of the run does not allow this request, or no longer does.",
    ),
    "FENCE_LOST": Problem(
        409,
        "This owner does not hold the run",
        _NEVER,
        "The run has another owner, or none. This process must stop its work on the run.",
    ),
    "GUARD_FAILED": Problem(
        409,
        "The guard on the cancel request failed",
        _NEVER,
        "The guard is `present` and no cancel was requested, or it is `absent` and one was.",
    ),
    "HEAD_CHANGED": Problem(
        409,
        "The history has a later event",
        _NEVER,
        "The last event of the run's history is not the `expected_head` of the request.",
    ),
    "ILLEGAL_TRANSITION": Problem(
        409,
        "The machine does not allow this move",
        _NEVER,
        "The run's machine does not move from `from` to `to`, or the run has no machine.",
    ),
    "DELIVERY_REVISION_CONFLICT": Problem(
        409,
        "Another delivery is bound here",
        _NEVER,
        "This gate and revision already have another delivery binding, which does not change.",
    ),
    "CLAIM_LOST": Problem(
        409,
        "This process does not hold the claim",
        _NEVER,
        "The run is not claimed by this process, or no longer.",
    ),
    "CLAIM_CHANGED": Problem(
        409,
        "The claim has changed",
        _NEVER,
        "The claimant in the evidence has no claim on the run.",
    ),
    "CLAIM_FRESH": Problem(
        409, "The claim is too new", _SAME, "The claim is not older than the run's lease length."
    ),
    "LIVENESS_UNCONFIRMED": Problem(
        409,
        "The evidence is missing or not valid",
        _NEVER,
        "There is no evidence, or its kind does not fit the host of the owner that it names.",
    ),
    "TERMINAL": Problem(
        409, "The run has ended", _NEVER, "The run has ended. Its status says how."
    ),
    "RUN_ENDED": Problem(
        409, "The history is closed", _NEVER, "The history of a run that has ended takes no events."
    ),
    "ALREADY_REQUESTED": Problem(
        409,
        "A cancel was requested before",
        _NEVER,
        "A cancel was requested before. The first request is kept.",
    ),
    "CANCEL_NOT_REQUESTED": Problem(
        409, "No cancel was requested", _NEVER, "There is no cancel request to acknowledge."
    ),
    "OVERTAKEN": Problem(
        409,
        "The grant is over",
        _NEVER,
        "The grant was made, and is over by the time of this answer: another process has taken the "
        "run since, or the lease of the operation has ended. The caller holds nothing: `granted` "
        "is what it had, and it must not execute.",
    ),
    "LEASE_LAPSED": Problem(
        409,
        "The granted lease has ended",
        _NEVER,
        "The grant was made, and its lease has ended by the time of this answer; nobody has taken "
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
    # A verb on an operation was refused.
    "OPERATION_CONFLICT": Problem(
        409,
        "The operation has another payload",
        _NEVER,
        "The operation was acquired with another payload. Use another name for another payload.",
    ),
    "OPERATION_ALREADY_RUNNING": Problem(
        409,
        "The operation is already running",
        _SAME,
        "The operation's lease holds, and the request is `exclusive`.",
    ),
    "LEASE_FENCED": Problem(
        409,
        "This token does not hold the lease",
        _NEVER,
        "The operation's lease has another token, or has ended. Stop the work, or acquire again. "
        "If the lease had lapsed, the request has also marked the operation interrupted.",
    ),
    "STEP_UNRESOLVED": Problem(
        409,
        "Nobody knows whether the step was done",
        _NEVER,
        "The last lease of the operation ended without its holder saying what became of the step, "
        "and the request is `if_lapsed: refuse`. Find out; then conclude the operation with its "
        "outcome, by the token in `lapsed`, or acquire it with `if_lapsed: take` to do it again.",
    ),
    # The fence; nothing was written.
    "FENCE_CAS_CONFLICT": Problem(
        409,
        "The fence is in another state",
        _NEVER,
        "The fence is not in the expected state or revision. The answer has the present ones.",
    ),
    "TRANSFER_REFUSED": Problem(
        409,
        "This step of a move is not open here",
        _NEVER,
        "The deployment is in another phase of a move, or in none, or the request is meant for "
        "another one; `reason` says which. Nothing was written.",
    ),
    "TRANSFER_ROW_REFUSED": Problem(
        409,
        "A row was not taken",
        _NEVER,
        "`row` names it. `reason`: `changed` (it is not as its digest says), `differs` (another "
        "one stands here), `unexpected` (it stands here, and the page has none), `invalid` (the "
        "table does not take it). Of `changed` and `invalid` nothing was written; otherwise the "
        "other rows of the page may have been.",
    ),
    "TRANSFER_DIFFERS": Problem(
        409,
        "A table is not as the seal says",
        _NEVER,
        "The rows of `table` are not those of the sealed deployment. Import the rows that are "
        "missing, or void this deployment. Nothing was written.",
    ),
    "IDEMPOTENCY_KEY_REUSED": Problem(
        422,
        "The key was sent with another request",
        _NEW,
        "This principal sent the key before with another verb, path or body. Nothing was written. "
        "One key names one request on a run, or one on the deployment.",
    ),
    # Not now.
    "EXECUTION_FENCED": Problem(
        503,
        "The fence does not admit this work",
        _SAME,
        "The fence is in a state that does not admit this work; nothing was written.",
    ),
    "EXECUTION_FENCE_UNREADABLE": Problem(
        503,
        "The fence cannot be read",
        _SAME,
        "It is not known whether the fence admits the work, so it is refused; nothing was written.",
    ),
    "DEPLOYMENT_MOVED": Problem(
        503,
        "The deployment has moved",
        _SAME,
        "The deployment is sealed; nothing is written here any more. Send the same request with "
        "the same key to `moved_to`.",
    ),
    "AUTH_UNCONFIGURED": Problem(
        503,
        "No tokens are configured",
        _SAME,
        "The deployment has no usable FENCEPOST_TOKENS, so every token is refused.",
    ),
    "RECEIPTS_UNCONFIGURED": Problem(
        503,
        "No receipt key is configured",
        _SAME,
        "The deployment has no usable FENCEPOST_RECEIPT_KEY, so it gives out no receipts and knows "
        "none.",
    ),
    "ROW_CORRUPT": Problem(
        503,
        "A stored row breaks a rule",
        _SAME,
        "A stored row breaks a rule, which the answer names. It never shows the row's content. An "
        "operator must examine the row.",
    ),
    "SCHEMA_MISMATCH": Problem(
        503,
        "The database has another shape",
        _SAME,
        "A table is not as this build knows it. The answer names the table and, if it is one, the "
        "column. Nothing was written or repaired. The next start or fence transition migrates an "
        "earlier shape: while the fence admits no start, a transition to the state that it has.",
    ),
    "CONTENDED": Problem(
        503,
        "Other requests came first",
        _SAME,
        "Other requests wrote first, several times. Nothing was written; send it again.",
    ),
    "TOO_MANY_WAITERS": Problem(
        503,
        "Too many requests wait here",
        _SAME,
        f"{limits.WAITERS_MAX} requests wait in this isolate already. Nothing was written; send "
        "the same request again, or without `Prefer: wait`.",
    ),
    "STORAGE_REFUSED": Problem(
        503,
        "The database refused the request",
        _SAME,
        "The database did not execute the request. Nothing was written.",
    ),
    "STORAGE_UNREADABLE": Problem(
        503, "The database could not be read", _SAME, "A read failed; nothing was written."
    ),
    "WRITE_OUTCOME_UNKNOWN": Problem(
        503,
        "It is not known whether the write happened",
        _SAME,
        "The database's reply was lost. It is safe to send the same request with the same key.",
    ),
    "INTERNAL": Problem(500, "Internal error", _SAME, "The service failed. Its log has the cause."),
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
        "but `WRITE_OUTCOME_UNKNOWN` mean that the request was not carried out.",
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
