"""Headers, query and bodies, into values: everything that comes in is checked here."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from fencepost import errors, fence, limits, machines, nouns
from fencepost.body import (
    Body,
    anything,
    guard,
    identifier,
    integer,
    movement,
    note,
    one_of,
    parse,
    stored_json,
)
from fencepost.d1 import Database
from fencepost.decision import Start, fingerprint
from fencepost.exchange import Request
from fencepost.fence import FenceState
from fencepost.identifiers import (
    Principal,
    is_identifier,
    is_well_formed,
    mint_token,
)
from fencepost.ownership import Evidence
from fencepost.resolve import Resolution, Verdict
from fencepost.retention import Retention
from fencepost.runs import TERMINAL, Owner
from fencepost.transition import Transition

# --- Headers and query -------------------------------------------------------------------


def idempotency_key(header: str | None) -> str:
    """The key in an `Idempotency-Key` header: an RFC 8941 String, or the bare key.

    Raises IdempotencyKeyError: IDEMPOTENCY_KEY_MISSING for none, IDEMPOTENCY_KEY_INVALID for
    two headers (they arrive joined by a comma), and for anything outside the grammar.
    """
    if header is None:
        raise errors.IdempotencyKeyError(
            "Send an Idempotency-Key header that names this one start. Nothing was written.",
            code="IDEMPOTENCY_KEY_MISSING",
        )
    key = _structured_string(header) if header.startswith('"') else header.strip(" \t")
    if key is None or not is_identifier(key):
        raise errors.IdempotencyKeyError(
            "An Idempotency-Key is one key of 1–200 characters of A–Z a–z 0–9 . _ ~ -, bare or "
            'in double quotes, and not "." or "..". Nothing was written.'
        )
    return key


def _structured_string(header: str) -> str | None:
    import http_sf

    try:
        item: Any = http_sf.parse(header.encode(), tltype="item")
    except (http_sf.StructuredFieldError, UnicodeEncodeError):
        return None
    value, parameters = item
    return value if isinstance(value, str) and not parameters else None


_WAIT = re.compile(r"(?:^|[,;])\s*wait\s*=\s*\"?(\d{1,9})\"?\s*(?=$|[,;])", re.IGNORECASE)


def preferred_wait_s(header: str | None) -> int:
    """Seconds of `Prefer: wait=N` (RFC 7240), at most 30; a malformed preference is ignored."""
    found = _WAIT.search(header or "")
    return min(int(found[1]), limits.WAIT_S_MAX) if found else 0


def query_integer(query: Mapping[str, str], name: str, default: int, low: int, high: int) -> int:
    """An integer query parameter; one above `high` is taken as `high`."""
    text = query.get(name)
    if text is None:
        return default
    if not re.fullmatch(r"[0-9]{1,4}", text) or int(text) < low:
        raise errors.InvalidRequest(f"Query parameter {name} is an integer from {low} to {high}.")
    return min(int(text), high)


def page_limit(query: Mapping[str, str]) -> int:
    """How many items a page may hold."""
    return query_integer(query, "limit", limits.PAGE_ITEMS_DEFAULT, 1, limits.PAGE_ITEMS_MAX)


def position(text: str) -> int:
    """A sequence number in a cursor; −1 stands for what comes before the first."""
    if not re.fullmatch(r"-1|[0-9]{1,15}", text):
        raise errors.InvalidRequest("Query parameter cursor is not one that a list gave out.")
    return int(text)


def cursor_text(keys: tuple[str, ...] | None) -> str | None:
    """The text that `cursor` reads."""
    return None if keys is None else json.dumps(keys, separators=(",", ":"))


def cursor(text: str | None, arity: int) -> tuple[str, ...] | None:
    """The position a list goes on from: a JSON array of strings (contracts 1.5)."""
    if not text:
        return None
    try:
        keys = json.loads(text) if len(text) <= limits.CURSOR_CHARS_MAX else None
    except (ValueError, RecursionError):
        keys = None
    if (
        not isinstance(keys, list)
        or len(keys) != arity
        or not all(isinstance(key, str) and "\0" not in key and is_well_formed(key) for key in keys)
    ):
        raise errors.InvalidRequest("Query parameter cursor is not one that a list gave out.")
    return tuple(keys)


# --- Bodies -----------------------------------------------------------------------------


lease_ms = integer(limits.LEASE_MS_MIN, limits.LEASE_MS_MAX)


def start(key: str, principal: Principal, body: Body) -> Start:
    """The body of POST /v1/starts. Without an owner, one is minted: nobody else knows it."""
    to = body.take("target", nouns.target)
    value = body.take("input", anything, None)
    rounds = body.take("lineage", nouns.lineage, None)
    result = Start(
        key=key,
        principal=principal,
        target=to,
        fingerprint=fingerprint(to, value, rounds),
        input_json=stored_json(limits.STATE_BYTES_MAX)(value, "input"),
        owner=body.take("owner", nouns.owner, None) or Owner("fencepost", 0, mint_token()),
        lease_ms=body.take("lease_ms", lease_ms, limits.LEASE_MS_DEFAULT),
        parent_run_id=body.take("parent_run_id", identifier, None),
        machine=body.take("machine", one_of(*machines.MACHINES), None),
        lineage=rounds,
        subject=body.take("subject", nouns.subject, None),
    )
    body.done()
    return result


def transition(body: Body) -> Transition:
    """The body of POST /v1/runs/{id}/transition."""
    to, move = movement(body)
    result = Transition(
        owner=body.take("owner", nouns.owner),
        to=to,
        move=move,
        state_json=body.take("state", stored_json(limits.STATE_BYTES_MAX), None),
        result_json=body.take("result", stored_json(limits.RESULT_BYTES_MAX), None),
        cancel_requested=body.take("guard", guard, None),
        expected_head=body.take("expected_head", nouns.head, None),
    )
    body.done()
    if result.result_json is not None and result.to not in TERMINAL:
        raise errors.InvalidRequest("A 'result' belongs to completed, failed or cancelled.")
    return result


def fence_transition(key: str | None, body: Body) -> fence.Transition:
    """The body of POST /v1/fence/transitions."""
    state = one_of(*FenceState)
    result = fence.Transition(
        expected=FenceState(body.take("expected", state)),
        next=FenceState(body.take("next", state)),
        revision=body.take("revision", integer(0, limits.INTEGER_MAX), None),
        proof_key=body.take("proof_key", identifier, None),
        key=key,
    )
    body.done()
    if (result.next is FenceState.PROOF_ONLY) != (result.proof_key is not None):
        raise errors.InvalidRequest("A 'proof_key' belongs to 'next' = 'proof-only' alone.")
    return result


def resolution(body: Body) -> Resolution:
    """The body of POST /v1/starts/{key}/resolve."""
    result = Resolution(
        decision=Verdict(body.take("decision", one_of(*Verdict))),
        attempt=body.take("attempt", integer(1, limits.INTEGER_MAX)),
        note=body.take("note", note),
        result_json=body.take("result", stored_json(limits.RESULT_BYTES_MAX), None),
    )
    body.done()
    if result.result_json is not None and result.decision is not Verdict.EXECUTED:
        raise errors.InvalidRequest("A 'result' belongs to the decision 'executed'.")
    return result


def retention(setting: Callable[[str], str | None]) -> Retention:
    """FENCEPOST_RUN_RETENTION_DAYS and FENCEPOST_KEY_RETENTION_DAYS, whole days from 1 on.

    A setting that is no such number stops the purge (ValueError): better nothing is deleted.
    """
    return Retention(
        _days(setting, "FENCEPOST_RUN_RETENTION_DAYS", limits.RUN_RETENTION_DAYS_DEFAULT),
        _days(setting, "FENCEPOST_KEY_RETENTION_DAYS", limits.KEY_RETENTION_DAYS_DEFAULT),
    )


def _days(setting: Callable[[str], str | None], name: str, default: int) -> int:
    text = setting(name)
    if text is None:
        return default
    if not re.fullmatch(r"[0-9]{1,5}", text) or not 1 <= int(text) <= limits.RETENTION_DAYS_MAX:
        raise ValueError(f"{name} is not a number of days from 1 to {limits.RETENTION_DAYS_MAX}")
    return int(text)


class Verb(NamedTuple):
    """The body of a verb on a run; `where` is what every verb takes first."""

    where: tuple[Database, str, Principal | None, Owner]
    lease_ms: int | None
    evidence: Evidence | None


async def verb(request: Request, *, lease: bool = False, evidence: bool = False) -> Verb:
    """The body of POST /v1/runs/{id}/…: an owner, and what the verb takes besides."""
    body = parse(await request.read_body())
    by = body.take("owner", nouns.owner)
    result = Verb(
        where=(request.db, request.params["run_id"], request.viewer, by),
        lease_ms=body.take("lease_ms", lease_ms, None) if lease else None,
        evidence=body.take("evidence", nouns.evidence, None) if evidence else None,
    )
    body.done()
    return result
