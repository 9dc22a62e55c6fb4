"""Pages of other origins that may call (CORS, in the Fetch standard).

`FENCEPOST_CORS_ORIGINS` lists them, with commas between: `https://ops.example,http://localhost:5173`.
None may by default, and none if any part of the list is not an origin. Pages send their token in
`Authorization`; cookies and other credentials of a browser are never asked for.
"""

from __future__ import annotations

import functools
import re

from fencepost.http.exchange import Reply, Request

SETTING = "FENCEPOST_CORS_ORIGINS"
_ORIGIN = re.compile(r"https?://(?:[a-z0-9-]+(?:\.[a-z0-9-]+)*|\[[0-9a-f:.]+\])(?::[0-9]{1,5})?")

_TAKES = "Authorization, Content-Type, Idempotency-Key, Prefer, traceparent"
_SHOWS = (
    "Allow, Idempotent-Replayed, Location, Preference-Applied, Retry-After, Server-Timing, "
    "WWW-Authenticate"
)
# How long a browser may keep the answer to a preflight.
_KEPT_S = 600


@functools.lru_cache(maxsize=4)
def origins(setting: str) -> frozenset[str]:
    """The origins of the setting; none if any part of it is not one."""
    parts = [part.strip(" \t") for part in setting.split(",")]
    return frozenset(parts if all(map(_ORIGIN.fullmatch, parts)) else ())


def headers(request: Request) -> dict[str, str]:
    """What lets a page of a listed origin read the answer. Empty for any other request."""
    setting = request.setting(SETTING)
    if not setting:
        return {}
    origin = request.header("origin")
    if origin not in origins(setting):
        return {"Vary": "Origin"}
    shown = {"Access-Control-Expose-Headers": _SHOWS}
    return {"Vary": "Origin", "Access-Control-Allow-Origin": origin or "", **shown}


def preflight(request: Request) -> Reply[None] | None:
    """The answer to the question of a browser whether a page may send a request; None if this
    request is no such question, or comes from an origin that is not listed.
    """
    if request.method != "OPTIONS" or request.header("access-control-request-method") is None:
        return None
    if "Access-Control-Allow-Origin" not in headers(request):
        return None
    may = {
        "Access-Control-Allow-Methods": "GET, HEAD, POST",
        "Access-Control-Allow-Headers": _TAKES,
    }
    return Reply(204, None, {**may, "Access-Control-Max-Age": str(_KEPT_S)})
