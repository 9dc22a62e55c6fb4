"""Bearer tokens: who sends a request, and what it may do.

Tokens are stored as SHA-256 in the secret FENCEPOST_TOKENS, a JSON list of
`{"sha256": hex of the token, "principal": {"kind", "id"}, "scopes": [...], "expires_at"?}`. The
end is a time as RFC 3339 has it. Several tokens may name one principal, so a token can be replaced
without losing access to its runs. A list with an unknown member, or with a token twice, is refused
whole. Challenges: RFC 6750.
"""

from __future__ import annotations

import functools
import hashlib
import hmac
import re
import time
from datetime import datetime
from typing import NamedTuple

from fencepost import errors, limits
from fencepost.http import strictjson
from fencepost.http.exchange import Request
from fencepost.identifiers import Principal, PrincipalKind, is_principal_id

SCOPES = frozenset({"start", "work", "operate", "read"})
_SHA256 = re.compile("[0-9a-f]{64}")
_BEARER = re.compile(r"bearer +([A-Za-z0-9._~+/-]+=*) *", re.IGNORECASE)


_MEMBERS = frozenset({"sha256", "principal", "scopes", "expires_at"})
_RFC_3339 = re.compile(r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(?:\.\d{1,6})?(?:[Zz]|[+-]\d\d:\d\d)")


class TokenEntry(NamedTuple):
    """The principal and the scopes of one token. `expires_at_s`: seconds since 1970, if it does."""

    sha256: bytes
    principal: Principal
    scopes: frozenset[str]
    expires_at_s: float | None = None


def admit(request: Request, scopes: tuple[str, ...]) -> None:
    """Set the request's principal and scopes.

    Raises AuthError: 401 without a known token, 403 SCOPE_MISSING without one of `scopes`, and
    503 AUTH_UNCONFIGURED.
    """
    grant = authenticate(request.header("authorization"), request.setting("FENCEPOST_TOKENS"))
    request.principal, request.scopes = grant.principal, grant.scopes
    if not grant.scopes.intersection(scopes):
        raise errors.AuthError(
            f"The token lacks the scope: {' or '.join(scopes)}.",
            code="SCOPE_MISSING",
            challenge=f'Bearer error="insufficient_scope", scope="{" ".join(scopes)}"',
        )


def authenticate(header: str | None, tokens: str | None) -> TokenEntry:
    """The grant of the token in an `Authorization` header. Raises AuthError.

    Every stored token is compared, in constant time. Without a usable configuration every request
    is refused: AUTH_UNCONFIGURED (503).
    """
    grants = _configured(tokens)
    match = _BEARER.fullmatch(header or "")
    if match is None or len(match[1]) > limits.TOKEN_CHARS_MAX:
        raise errors.AuthError("Send Authorization: Bearer with a token of this service.")
    sent = hashlib.sha256(match[1].encode()).digest()
    granted = None
    for grant in grants:
        if hmac.compare_digest(grant.sha256, sent):
            granted = grant
    if granted is None:
        raise errors.AuthError("This service does not know the token.", challenge=_INVALID)
    if granted.expires_at_s is not None and granted.expires_at_s <= time.time():
        raise errors.AuthError("The token has expired.", challenge=_INVALID)
    return granted


_INVALID = 'Bearer error="invalid_token"'


@functools.lru_cache(maxsize=1)
def _parse(tokens: str) -> tuple[TokenEntry, ...] | None:
    """The grants of a configuration; None if any part of it is not valid."""
    try:
        grants = tuple(_grant(entry) for entry in strictjson.loads(tokens.encode()))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
    return grants if len({grant.sha256 for grant in grants}) == len(grants) else None


def _grant(entry: dict[str, object]) -> TokenEntry:
    principal, scopes, sha256 = entry["principal"], entry["scopes"], entry["sha256"]
    if not (isinstance(principal, dict) and isinstance(scopes, list) and isinstance(sha256, str)):
        raise ValueError("not a token entry")
    kind, id = principal["kind"], principal["id"]
    if (
        not entry.keys() <= _MEMBERS
        or principal.keys() != {"kind", "id"}
        or not _SHA256.fullmatch(sha256)
        or kind not in frozenset(PrincipalKind)
        or not is_principal_id(id)
        or not SCOPES.issuperset(scopes)
    ):
        raise ValueError("not a token entry")
    ends = _seconds(entry["expires_at"]) if "expires_at" in entry else None
    return TokenEntry(bytes.fromhex(sha256), Principal(kind, id), frozenset(scopes), ends)


def _seconds(expires_at: object) -> float:
    """Raises ValueError for what is no time of RFC 3339."""
    if not isinstance(expires_at, str) or not _RFC_3339.fullmatch(expires_at):
        raise ValueError("not a time")
    return datetime.fromisoformat(expires_at.upper()).timestamp()


def _configured(tokens: str | None) -> tuple[TokenEntry, ...]:
    grants = _parse(tokens) if tokens else None
    if not grants:
        raise errors.AuthError(
            "This deployment has no usable FENCEPOST_TOKENS, so it refuses every token.",
            code="AUTH_UNCONFIGURED",
        )
    return grants
