"""Headers and JSON bodies, to values and back.

Everything that comes in is checked here, against shapes that refuse what they do not know;
everything that goes out is shaped here. Errors say which member is wrong, never its content.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from fencepost import errors, limits, strictjson
from fencepost.decision import Start, fingerprint
from fencepost.identifiers import (
    Principal,
    Target,
    TargetKind,
    is_identifier,
    is_owner_field,
    mint_token,
)
from fencepost.journal import Head
from fencepost.ownership import EVIDENCE_KINDS, Evidence
from fencepost.reservation import Reservation
from fencepost.runs import TERMINAL, Lineage, Owner, Run, RunStatus
from fencepost.snapshot import Transition

Json = dict[str, Any]
T = TypeVar("T")


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
            title="The Idempotency-Key is missing",
        )
    key = _structured_string(header) if header.startswith('"') else header.strip()
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
        or not all(isinstance(key, str) and "\0" not in key for key in keys)
    ):
        raise errors.InvalidRequest("Query parameter cursor is not one that a list gave out.")
    return tuple(keys)


# --- Bodies ------------------------------------------------------------------------------


class Body:
    """A JSON object whose members are taken one by one; what is left over is refused."""

    def __init__(self, value: Any, where: str = "The body") -> None:
        if not isinstance(value, dict):
            raise errors.InvalidRequest(f"{where} is not a JSON object.")
        self._members: Json = value
        self._known: set[str] = set()
        self._where = where

    def take(self, name: str, read: Callable[[Any, str], T], default: Any = ...) -> T:
        """The member `name` read by `read`; without a default it is required."""
        self._known.add(name)
        if name not in self._members:
            if default is ...:
                raise errors.InvalidRequest(f"{self._where} lacks the member {name!r}.")
            return default  # type: ignore[no-any-return]
        try:
            return read(self._members[name], name)
        except ValueError as error:
            raise errors.InvalidRequest(str(error)) from None

    def done(self) -> None:
        """Refuse members that nobody took."""
        if unknown := sorted(self._members.keys() - self._known):
            names = ", ".join(repr(name[:40]) for name in unknown[:5])
            raise errors.InvalidRequest(f"{self._where} has unknown members: {names}.")


def parse_body(data: bytes) -> Body:
    """Raises InvalidRequest for what is not a JSON object in the sense of `strictjson`."""
    try:
        return Body(strictjson.loads(data))
    except ValueError as error:
        raise errors.InvalidRequest(f"{error} Nothing was written.") from None


def integer(low: int, high: int) -> Callable[[Any, str], int]:
    def read(value: Any, name: str) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise ValueError(f"{name!r} is an integer from {low} to {high}.")
        return value

    return read


def one_of(*choices: str) -> Callable[[Any, str], str]:
    def read(value: Any, name: str) -> str:
        if not isinstance(value, str) or value not in choices:
            raise ValueError(f"{name!r} is one of {', '.join(choices)}.")
        return value

    return read


def identifier(value: Any, name: str) -> str:
    if not isinstance(value, str) or not is_identifier(value):
        raise ValueError(f"{name!r} is 1–200 characters of A–Z a–z 0–9 . _ ~ - (not . or ..).")
    return value


def owner_field(value: Any, name: str) -> str:
    if not isinstance(value, str) or not is_owner_field(value):
        raise ValueError(f"{name!r} is a text of 1–1024 UTF-16 units without NUL.")
    return value


def hash_text(value: Any, name: str) -> str:
    if not isinstance(value, str) or not re.fullmatch("[0-9a-f]{64}", value):
        raise ValueError(f"{name!r} is 64 lowercase hexadecimal digits.")
    return value


def owner(value: Any, name: str) -> Owner:
    body = Body(value, repr(name))
    result = Owner(
        body.take("host_id", owner_field),
        body.take("pid", integer(0, limits.INTEGER_MAX)),
        body.take("nonce", owner_field),
    )
    body.done()
    return result


def target(value: Any, name: str) -> Target:
    body = Body(value, repr(name))
    kind = body.take("kind", one_of(*TargetKind))
    id = body.take("id", identifier)
    thread_id = body.take("thread_id", identifier, None)
    body.done()
    if (kind == TargetKind.AGENT) != (thread_id is not None):
        raise ValueError("A target of kind agent has a 'thread_id', a workflow has none.")
    return Target(kind, id, thread_id)


def lineage(value: Any, name: str) -> Lineage:
    body = Body(value, repr(name))
    result = Lineage(
        body.take("id", identifier), body.take("round", integer(0, limits.INTEGER_MAX))
    )
    body.done()
    return result


def head(value: Any, name: str) -> Head:
    body = Body(value, repr(name))
    result = Head(
        body.take("sequence", integer(1, limits.INTEGER_MAX)), body.take("hash", hash_text)
    )
    body.done()
    return result


def evidence(value: Any, name: str) -> Evidence:
    body = Body(value, repr(name))
    result = Evidence(
        body.take("kind", one_of(*EVIDENCE_KINDS)), body.take("expected_owner", owner)
    )
    body.done()
    return result


lease_ms = integer(limits.LEASE_MS_MIN, limits.LEASE_MS_MAX)


def stored_json(bytes_max: int) -> Callable[[Any, str], str]:
    """Any JSON value, as the text that is stored."""

    def read(value: Any, name: str) -> str:
        text = strictjson.dumps(value)
        if len(text) * 4 > bytes_max < len(text.encode()):
            raise errors.InvalidRequest(
                f"{name!r} is longer than {bytes_max} bytes. Nothing was written.",
                status=413,
                code="TOO_LARGE",
                title="Too large",
            )
        return text

    return read


def _as_is(value: Any, name: str) -> Any:
    return value


def start(key: str, principal: Principal, body: Body) -> Start:
    """The body of POST /v1/starts. Without an owner, one is minted: nobody else knows it."""
    to = body.take("target", target)
    value = body.take("input", _as_is, None)
    rounds = body.take("lineage", lineage, None)
    result = Start(
        key=key,
        principal=principal,
        target=to,
        fingerprint=fingerprint(to, value, rounds),
        input_json=stored_json(limits.STATE_BYTES_MAX)(value, "input"),
        owner=body.take("owner", owner, None) or Owner("fencepost", 0, mint_token()),
        lease_ms=body.take("lease_ms", lease_ms, limits.LEASE_MS_DEFAULT),
        parent_run_id=body.take("parent_run_id", identifier, None),
        lineage=rounds,
    )
    body.done()
    return result


def transition(body: Body) -> Transition:
    """The body of POST /v1/runs/{id}/transition."""
    choices = [status for status in RunStatus if status is not RunStatus.PENDING]
    result = Transition(
        owner=body.take("owner", owner),
        to=RunStatus(body.take("to", one_of(*choices))),
        state_json=body.take("state", stored_json(limits.STATE_BYTES_MAX), None),
        result_json=body.take("result", stored_json(limits.RESULT_BYTES_MAX), None),
        cancel_requested=body.take("guard", _guard, None),
        expected_head=body.take("expected_head", head, None),
    )
    body.done()
    if result.result_json is not None and result.to not in TERMINAL:
        raise errors.InvalidRequest("A 'result' belongs to completed, failed or cancelled.")
    return result


def _guard(value: Any, name: str) -> Any:
    body = Body(value, repr(name))
    requested = body.take("cancel_requested", one_of("absent", "present"))
    body.done()
    return requested


# --- Answers -----------------------------------------------------------------------------


def encode_owner(owner: Owner | None) -> Json | None:
    if owner is None:
        return None
    return {"host_id": owner.host_id, "pid": owner.pid, "nonce": owner.nonce}


def encode_run(run: Run, *, content: bool = True) -> Json:
    """RUN of design 11; without `content`, state and result are left out (lists, losses)."""
    claim, rounds = run.claim, run.lineage
    shape: Json = {
        "run_id": run.run_id,
        "status": run.status,
        "target": run.target.as_json(),
        "owner": encode_owner(run.owner),
        "generation": run.generation,
        "heartbeat_at_ms": run.heartbeat_at_ms,
        "lease_expires_at_ms": run.lease_expires_at_ms,
        "claim": claim
        and {"owner": encode_owner(claim.owner), "claimed_at_ms": claim.claimed_at_ms},
        "created_at_ms": run.created_at_ms,
        "started_at_ms": run.started_at_ms,
        "finished_at_ms": run.finished_at_ms,
        "cancel_requested_at_ms": run.cancel_requested_at_ms,
        "cancel_acknowledged_at_ms": run.cancel_acknowledged_at_ms,
        "parent_run_id": run.parent_run_id,
        "lineage": rounds and {"id": rounds.id, "round": rounds.round},
        "head": {"sequence": run.head.sequence, "hash": run.head.hash},
        "machine": None,
    }
    if content:
        shape["state"] = None if run.state_json is None else json.loads(run.state_json)
        shape["result"] = None if run.result_json is None else json.loads(run.result_json)
    return shape


def encode_reservation(held: Reservation) -> Json:
    return {
        "key": held.key,
        "owner": {"kind": held.owner.kind, "id": held.owner.id},
        "target": held.target.as_json(),
        "run_id": held.run_id,
        "state": held.state,
        "attempt": held.attempt,
        "outcome": held.outcome,
        "created_at_ms": held.created_at_ms,
        "updated_at_ms": held.updated_at_ms,
    }
