"""The HTTP surface: from the runtime's request to the runtime's response.

`serve` makes a `Request` of the runtime's request, answers it, writes one log line (JSON), and
makes the runtime's response of the `Reply`. `answer` takes these steps: route, token, path
parameters, headers, query or body, handler. Errors become problem documents (RFC 9457).
"""

from __future__ import annotations

import functools
import json
import re
import time
import traceback
from typing import Any, NamedTuple
from urllib.parse import parse_qsl

from fencepost import (
    errors,
    fence,
    limits,
    receipts,
    requests,
    retention,
    settings,
    transfer,
)
from fencepost.http import auth, cors, forms, queries, routes
from fencepost.http.exchange import Reply, Request, Route
from fencepost.identifiers import Deed, Principal
from fencepost.storage.d1 import Database, SchemaMemory
from fencepost.storage.event_loop import promptly

# Made once. `json.dumps` would make an encoder for each call.
_dumps = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode

# An isolate has one binding `DB`, so one memory of its schema is enough.
_SCHEMA = SchemaMemory()


async def answer(request: Request) -> tuple[Reply[Any], str | None]:
    """The reply to a request, and the pattern of its route. Never raises an Exception."""
    pattern = None
    try:
        if asked := cors.preflight(request):
            return asked, None
        receipts.use(request.setting("FENCEPOST_RECEIPT_KEY"))
        _check_target(request)
        route, request.params = routes.find(request.method, request.path)
        pattern = route.pattern
        if route.scopes:
            auth.admit(request, route.scopes)
        routes.check_params(request.params)
        for header in route.headers:
            request.named[header.name] = header.read(request.header(header.name))
        takes = route.takes
        if route.method == "GET":
            asked = takes.query(request.query)
        else:
            body = forms.loads(await request.read_body(route.body_bytes_max))
            asked = takes.read(body, "")
            request.owner = getattr(asked, "owner", None)
            _name(request, route, body)
        return _encoded(await _handled(request, route, asked)), pattern
    except errors.FencepostError as failure:
        error = failure
        if isinstance(failure, errors.StorageError):
            _complain(failure.message)
        if isinstance(failure, errors.MissingColumn | errors.ColumnAbsent):
            request.db.forget_schema()
            error = await _explained(request, failure)
        return problem_reply(error), pattern
    except Exception:
        _complain(traceback.format_exc())
        return problem_reply(await _failure(request)), pattern


async def _handled(request: Request, route: Route[Any], asked: Any) -> Reply[Any]:
    """What the handler answers; a POST only if the deployment neither moves nor has moved.

    The fence is read with the first statements of the request. A write that had an effect all the
    same is not possible then: the fence admits none, and the tables take none.
    """
    if route.of_a_move:
        return await route.handler(request, asked)
    request.db.rider = fence.read_statement()
    try:
        reply = await route.handler(request, asked)
    except errors.Sealed:
        raise await transfer.refusal(request.db) from None
    except errors.FencepostError:
        if request.method == "POST" and (closed := fence.closed(request.db.ridden)):
            raise closed from None
        raise
    if request.method == "POST" and (closed := fence.closed(request.db.ridden)):
        raise closed
    return reply


async def _failure(request: Request) -> errors.FencepostError:
    """The error of a request on which the service failed. A table of a shape that this build does
    not know may hold what nothing here expects: then it is that.
    """
    failed = errors.FencepostError("The service failed on this request.")
    found = await request.db.explain(failed)
    if isinstance(found, errors.SchemaMismatch) and request.method != "GET":
        members = found.members
        return errors.ColumnAbsent(members["table"], members["column"], members["difference"])
    return found


def _encoded(reply: Reply[Any]) -> Reply[Any]:
    """The reply with its body as bytes. Raises RowCorrupt for what no JSON text can hold."""
    body = reply.body
    if not isinstance(body, bytes):
        try:
            reply.body = (body if isinstance(body, str) else _dumps(body)).encode()
        except (ValueError, RecursionError):
            raise errors.RowCorrupt("fencepost_snapshots", "content is JSON") from None
    return reply


# Audited by themselves.
_AUDITED = ("cancel", "lineage/cancel")


def _name(request: Request, route: Route[Any], body: Any) -> None:
    """Tell the database who asks, on a route that takes a key: which renewals do not."""
    if queries.REQUEST_KEY not in route.headers:
        return
    if request.viewer is None and route.verb not in _AUDITED:
        request.db.deed = Deed(
            request.sender, route.verb.replace("{op}/", "").replace("{key}/", "")
        )
    if (key := queries.REQUEST_KEY.of(request)) is not None:
        who = (request.sender, request.viewer)
        request.db.request = requests.keyed(key, *who, route.verb, request.params, body)


_HOST = re.compile(r"(?:[A-Za-z0-9._~-]+|\[[0-9A-Fa-f:.]+\])(?::[0-9]{0,5})?")


def _check_target(request: Request) -> None:
    """Refuse what could be read in two ways, before anything is looked up.

    The runtime makes the URL of the Host header and the request target: an odd Host would change
    the path. A parameter that is given twice, or a body that is encoded, would be misread.
    """
    host = request.header("host")
    if host is not None and not _HOST.fullmatch(host):
        raise errors.InvalidRequest("The Host header is not a host with a port.")
    if request.repeated is not None:
        raise errors.InvalidRequest(f"Query parameter {request.repeated[:40]} is given twice.")
    encoding = request.header("content-encoding")
    if request.method == "POST" and encoding and encoding.strip().lower() not in ("", "identity"):
        raise errors.InvalidRequest(
            f"The body is sent with Content-Encoding {encoding[:40]!r}; send it as it is.",
            code="CONTENT_ENCODING_UNSUPPORTED",
        )


async def _explained(request: Request, failure: errors.FencepostError) -> errors.FencepostError:
    """The SchemaMismatch that caused a missing column, if it is sure that nothing was written.

    A SchemaMismatch says that nothing was written. A ColumnAbsent of a POST stays as it is: the
    row may have been returned by a write.
    """
    if isinstance(failure, errors.ColumnAbsent) and request.method != "GET":
        return failure
    return await request.db.explain(failure)


def problem_reply(error: errors.FencepostError) -> Reply[Any]:
    """The problem document of an error, with `code` and `retry` (docs/errors.md)."""
    problem = error.problem
    body = {
        "type": f"/docs/errors#{error.code}",
        "title": problem.title,
        "status": problem.status,
        "detail": error.detail,
        "code": error.code,
        "retry": problem.retry,
        **error.members,
    }
    headers, run_id = {}, error.members.get("run_id")
    if error.retry_after_s is not None:
        headers["Retry-After"] = str(error.retry_after_s)
    if error.members.get("moved_to"):
        headers["Fencepost-Moved"] = error.members["moved_to"]
    if "allow" in error.members:
        headers["Allow"] = ", ".join(error.members["allow"])
    if problem.status in (401, 403) and isinstance(error, errors.AuthError):
        headers["WWW-Authenticate"] = error.challenge
    return Reply(problem.status, body, headers, "application/problem+json", error.code, run_id)


def log_line(request: Request, reply: Reply[Any], pattern: str | None, elapsed_ms: float) -> str:
    """One JSON line for a request. It never holds a token, an input or a state."""
    principal = request.principal
    return _dumps(
        {
            "method": request.method,
            "route": pattern,
            "status": reply.status,
            "code": reply.code,
            "principal": None if principal is None else str(principal),
            "run": reply.run_id or request.params.get("run_id"),
            "key": _key_of(request, pattern),
            "traceparent": queries.traceparent(request.header("traceparent")),
            "d1_round_trips": request.db.round_trips,
            "branch": request.db.branch,
            "ms": round(elapsed_ms),
        }
    )


def _key_of(request: Request, pattern: str | None) -> str | None:
    """The key of the start that the request is about."""
    if pattern == "/v1/starts":
        key: str | None = request.named.get(queries.IDEMPOTENCY_KEY.name)
        return key
    return request.params.get("key")


# --- The runtime: JavaScript -------------------------------------------------------------


class _Javascript(NamedTuple):
    parse: Any
    response: Any
    log: Any
    error: Any
    to_js: Any
    null: Any


@functools.cache
def _javascript() -> _Javascript:
    """The JavaScript functions that a request needs, fetched once."""
    from js import JSON, Response, console
    from pyodide.ffi import jsnull, to_js

    return _Javascript(JSON.parse, Response.new, console.log, console.error, to_js, jsnull)


async def serve(js_request: Any, env: Any) -> Any:
    """Answer a runtime request with a runtime response, and log one line."""
    started = time.perf_counter()
    request = _receive(js_request, env)
    reply, pattern = await answer(request)
    _log(log_line(request, reply, pattern, (time.perf_counter() - started) * 1000))
    return _send(request, reply, with_body=str(js_request.method) != "HEAD")


_CRON = Principal("system", "cron")


async def purge(env: Any) -> None:
    """One purge for the cron trigger, as the principal system:cron, and one log line.

    It goes on until nothing is due, within limits.PURGE_CRON_ROWS; `more`: something is left. In a
    deployment that moves, or has moved, it rests.
    """
    db = Database(env.DB, _SCHEMA)
    kept = settings.retention(lambda name: getattr(env, name, None))
    try:
        if (gate := await fence.read(db)).state in fence.MOVING:
            raise gate.refusal()
        purged = await retention.purge(db, _CRON, kept, limits.PURGE_CRON_ROWS)
    except (errors.Sealed, errors.Fenced, errors.DeploymentMoved) as rests:
        _log(json.dumps({"cron": "purge", "code": rests.code}))
        return
    _log(json.dumps({"cron": "purge", **purged._asdict(), "d1_round_trips": db.round_trips}))


def _receive(js_request: Any, env: Any) -> Request:
    url, method = str(js_request.url), str(js_request.method)
    address, _, query = url.partition("#")[0].partition("?")
    path = "/" + (address.split("/", 3) + [""] * 3)[3]
    pairs = parse_qsl(query, keep_blank_values=True) if query else []
    names = [name for name, _ in pairs]
    get, null = js_request.headers.get, _javascript().null

    def header(name: str) -> str | None:
        value = get(name)
        return None if value is null else value

    async def read_body(bytes_max: int) -> bytes:
        return await _read_body(js_request, header("content-length"), bytes_max)

    return Request(
        method="GET" if method == "HEAD" else method,
        path=path,
        query=dict(pairs),
        repeated=next((name for name in names if names.count(name) > 1), None),
        header=header,
        read_body=read_body,
        db=Database(env.DB, _SCHEMA),
        setting=lambda name: getattr(env, name, None),
        gone=lambda: bool(js_request.signal.aborted),
    )


async def _read_body(js_request: Any, length: str | None, bytes_max: int) -> bytes:
    """The body. Raises InvalidRequest (413) as soon as it is known to be too large."""
    if length is not None and length.isdecimal():
        if len(length) > 15 or int(length) > bytes_max:
            raise _too_large(bytes_max)
        try:
            data: bytes = (await promptly(js_request.arrayBuffer)).to_bytes()
        except Exception as failure:
            raise errors.InvalidRequest("The body ended before its length.") from failure
        return data
    stream = js_request.body
    if not hasattr(stream, "getReader"):
        return b""
    reader, parts, total = stream.getReader(), [], 0
    while not (chunk := await _chunk(reader)).done:
        parts.append(chunk.value.to_bytes())
        total += len(parts[-1])
        if total > bytes_max:
            await reader.cancel()
            raise _too_large(bytes_max)
    return b"".join(parts)


async def _chunk(reader: Any) -> Any:
    """The next chunk of a body. Raises InvalidRequest if the client has gone away."""
    try:
        return await promptly(reader.read)
    except Exception as failure:
        raise errors.InvalidRequest("The body ended before its last chunk.") from failure


def _too_large(bytes_max: int) -> errors.InvalidRequest:
    return errors.InvalidRequest(
        f"A body is at most {bytes_max} bytes. Nothing was written.",
        code="TOO_LARGE",
    )


def _timing(request: Request) -> str:
    """`Server-Timing`: round trips; and for `operate` alone what tells rows that others have."""
    db = request.db
    branch = f', commit;desc="{db.branch}"' if db.branch else ""
    if "operate" not in request.scopes:
        return f'd1;desc="{db.round_trips} round trips"{branch}'
    return (
        f'd1;desc="{db.round_trips} round trips";dur={db.elapsed_ms:.0f}, '
        f'rows;desc="{db.rows_read} read, {db.rows_written} written"{branch}'
    )


def _send(request: Request, reply: Reply[Any], *, with_body: bool) -> Any:
    javascript = _javascript()
    headers = {
        "Content-Type": reply.content_type,
        "Cache-Control": "no-store",
        "Server-Timing": _timing(request),
        **reply.headers,
        **cors.headers(request),
    }
    if moved_to := fence.moved_to(request.db.ridden):
        headers["Fencepost-Moved"] = moved_to
    if request.db.replay and reply.status == 200:
        headers["Idempotent-Replayed"] = "true"
    options = javascript.parse(_dumps({"status": reply.status, "headers": headers}))
    if not with_body or reply.status == 204:
        return javascript.response(javascript.null, options)
    # Bytes are copied to JavaScript in one piece, a str character by character.
    return javascript.response(javascript.to_js(_encoded(reply).body), options)


def _log(line: str) -> None:
    _javascript().log(line)


def _complain(text: str) -> None:
    """Write to the operator's log. This text is never part of an answer."""
    _javascript().error(text)
