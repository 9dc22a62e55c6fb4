"""The API document (OpenAPI 3.1), made of the route table: it shows what is parsed and proved.

Bodies and queries come from the forms that read them, answers from what the handlers say that
they reply, which the type checker proves; what else a route answers is in its row of the table,
or follows from what the route is (`problems_of`). A test holds every answer of the suite to it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, get_args, get_type_hints

import fencepost
from fencepost import inventory
from fencepost.http import operator_representations, representations
from fencepost.http.extensions import EXTENSIONS
from fencepost.http.forms import IDENTIFIER, Parser, one_of
from fencepost.http.json_schema import Json, Schemas
from fencepost.http.representations import OPERATION_ID
from fencepost.http.route import Route
from fencepost.problems import PROBLEMS

_ABOUT = """\
Exactly one start per `Idempotency-Key`, behind an operator's fence, with one owner at a time and
a durable history per run. A request has a bearer token; any one of the scopes that a route lists
admits. Every error is a problem document (RFC 9457), whose `code` names it and whose `retry` says
what to do: `same-key`: send the same request with the same key again, after `Retry-After` seconds
where given; `new-key`: this key cannot serve this request; `never`: it will not succeed as it is.
Another path answers `NOT_FOUND`, another method `METHOD_NOT_ALLOWED` with `Allow`. Unknown query
parameters are ignored, unknown members of a body refused. Lists go on with their `cursor`."""

TAGS = {
    "starts": "One run per key.",
    "runs": "Owning a run, moving it along its life, its history.",
    "operations": "Leased, replayable steps inside a run.",
    "operators": "The fence, the work that a drain waits for, retention, the audit.",
    "service": "What needs no token.",
}

# Path parameters, and what their absence answers.
_PARAMS: dict[str, tuple[Parser[str], str, str]] = {
    "key": (IDENTIFIER, "START_NOT_FOUND", "The Idempotency-Key of the start."),
    "run_id": (IDENTIFIER, "RUN_NOT_FOUND", "The run."),
    "op": (OPERATION_ID, "OPERATION_NOT_FOUND", "The operation; case does not matter."),
    "category": (one_of(*inventory.CATEGORIES), "NOT_FOUND", "The kind of work."),
}

_TEXT = {"type": "string"}
_HEADERS: dict[str, tuple[Json, str]] = {
    "Allow": (_TEXT, "The methods that the path takes."),
    "Cache-Control": ({"const": "no-store"}, "Nothing is to be kept."),
    "Content-Security-Policy": (_TEXT, "No script, nothing from anywhere else."),
    "Idempotent-Replayed": ({"const": "true"}, "On a replay: nothing happened now."),
    "Location": ({"type": "string", "pattern": "^/v1/runs/"}, "The run."),
    "Preference-Applied": ({"type": "string", "pattern": "^wait=[0-9]+$"}, "On a wait."),
    "Retry-After": ({"type": "integer", "minimum": 1}, "Seconds, where a wait makes sense."),
    "Server-Timing": (_TEXT, "Round trips to the database, rows read and written."),
    "WWW-Authenticate": ({"const": "Bearer"}, "What is asked for."),
}
_ALWAYS = ("Cache-Control", "Server-Timing")
# Headers of refusals, by their statuses.
_GIVEN_WITH = {"Allow": (405,), "Retry-After": (409, 503), "WWW-Authenticate": (401,)}

_DOCUMENTED = {"shown": representations, "operators": operator_representations}


def as_text(routes: Iterable[Route[Any]]) -> str:
    """What `GET /openapi.json` answers, and `docs/openapi.json` holds."""
    return json.dumps(document(routes), ensure_ascii=False, indent=1) + "\n"


def document(routes: Iterable[Route[Any]]) -> Json:
    schemas = Schemas()
    paths: dict[str, Json] = {}
    for route in routes:
        paths.setdefault(route.pattern, {})[route.method.lower()] = _operation(route, schemas)
    problems = {code: _problem(code, schemas) for code in PROBLEMS}
    about = " ".join(_ABOUT.split())
    license = {"name": "MIT", "identifier": "MIT"}
    title = {"title": "Fencepost", "version": fencepost.__version__}
    return {
        "openapi": "3.1.0",
        "info": {**title, "description": about, "license": license},
        "servers": [{"url": "/"}],
        "tags": [{"name": name, "description": text} for name, text in TAGS.items()],
        "paths": paths,
        "components": {
            "schemas": {**dict(sorted(schemas.named.items())), **problems},
            "responses": {code: _refusal(PROBLEMS[code].status, [code]) for code in PROBLEMS},
            "headers": {
                name: {"description": text, "schema": schema, "required": name in _ALWAYS}
                for name, (schema, text) in _HEADERS.items()
            },
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def problems_of(route: Route[Any]) -> list[str]:
    """The codes that a route can answer, in the order of PROBLEMS: its own, and by rule those
    of paths, of tokens and the database behind them, of queries and bodies, of writes, and of
    the fence, which gates all work.
    """
    codes = {"INTERNAL", *route.problems}
    codes |= {code for name, (_, code, _) in _PARAMS.items() if f"{{{name}}}" in route.pattern}
    if route.scopes:
        codes |= {"UNAUTHORIZED", "SCOPE_MISSING", "AUTH_UNCONFIGURED"}
        codes |= {"STORAGE_UNREADABLE", "ROW_CORRUPT", "SCHEMA_MISMATCH"}
    if route.takes.members:
        codes |= {"INVALID_REQUEST"}
    if route.method == "POST":
        codes |= {"INVALID_REQUEST", "TOO_LARGE", "STORAGE_REFUSED", "WRITE_OUTCOME_UNKNOWN"}
        if "work" in route.scopes:
            codes |= {"EXECUTION_FENCED", "EXECUTION_FENCE_UNREADABLE"}
    return [code for code in PROBLEMS if code in codes]


def _tag(route: Route[Any]) -> str:
    if "/operations/" in route.pattern:
        return "operations"
    if not route.scopes:
        return "service"
    first = route.pattern.split("/")[2]
    return first if first in TAGS else "operators"


def _operation(route: Route[Any], schemas: Schemas) -> Json:
    summary, _, more = (route.handler.__doc__ or "").partition("\n\n")
    operation: Json = {
        "operationId": route.handler.__name__,
        "summary": " ".join(summary.split()),
        "tags": [_tag(route)],
        "security": [{"token": [scope]} for scope in route.scopes],
        "parameters": _parameters(route, schemas),
    }
    if more:
        operation["description"] = " ".join(more.split())
    if route.method == "POST":
        content = {"application/json": {"schema": schemas.of_parser(route.takes)}}
        operation["requestBody"] = {"required": True, "content": content}
    operation["responses"] = {
        **{str(status): _success(route, status, schemas) for status in route.statuses},
        **_refusals(route),
    }
    return operation


def _parameters(route: Route[Any], schemas: Schemas) -> list[Json]:
    found = [
        {"name": name, "in": "path", "required": True, "description": about}
        | {"schema": schemas.of_parser(parser)}
        for name, (parser, _, about) in _PARAMS.items()
        if f"{{{name}}}" in route.pattern
    ]
    if route.method == "GET":
        for name, member in route.takes.members.items():
            schema = schemas.of_member(member)
            about = schema.pop("description", "")
            found.append({"name": name, "in": "query", "description": about, "schema": schema})
    found += [
        {"name": header.name, "in": "header", "required": header.required}
        | {"description": header.about, "schema": dict(header.schema)}
        for header in route.headers
    ]
    return found


def _success(route: Route[Any], status: int, schemas: Schemas) -> Json:
    [replied] = get_args(get_type_hints(route.handler, localns=_DOCUMENTED)["return"])
    media, text = route.media.partition(";")[0], replied is str
    schema = schemas.of_type(replied)
    if text and media == "application/json":
        schema = {"type": "object"}
    return {
        "description": "Started now: execute it." if status == 201 else "Done.",
        "headers": _headers(*_ALWAYS, *route.gives),
        "content": {media: {"schema": schema}},
    }


def _headers(*names: str) -> Json:
    return {name: {"$ref": f"#/components/headers/{name}"} for name in sorted(names)}


def _refusals(route: Route[Any]) -> Json:
    """By status. What is but one code is described once, under its name."""
    by_status: dict[int, list[str]] = {}
    for code in problems_of(route):
        by_status.setdefault(PROBLEMS[code].status, []).append(code)
    return {
        str(status): {"$ref": f"#/components/responses/{codes[0]}"}
        if len(codes) == 1
        else _refusal(status, codes)
        for status, codes in sorted(by_status.items())
    }


def _refusal(status: int, codes: list[str]) -> Json:
    references = [{"$ref": f"#/components/schemas/{code}"} for code in codes]
    several: Json = {"anyOf": references, "discriminator": {"propertyName": "code"}}
    more = [name for name, given in _GIVEN_WITH.items() if status in given]
    return {
        "description": ", ".join(codes),
        "headers": _headers(*_ALWAYS, *more),
        "content": {
            "application/problem+json": {"schema": several if len(codes) > 1 else references[0]}
        },
    }


def _problem(code: str, schemas: Schemas) -> Json:
    """The document of one code: RFC 9457, `code` and `retry`, and what this code adds."""
    problem = PROBLEMS[code]
    fixed = {
        "type": f"/docs/errors#{code}",
        "title": problem.title,
        "status": problem.status,
        "code": code,
        "retry": str(problem.retry),
    }
    schema = schemas.of_members(EXTENSIONS[code]) if code in EXTENSIONS else {}
    properties = {name: {"const": value} for name, value in fixed.items()}
    properties = {**properties, "detail": {"type": "string"}, **schema.get("properties", {})}
    if "outcome" in properties:
        properties["outcome"] = {"const": code.lower()}
    return {
        "type": "object",
        "description": problem.meaning,
        "properties": properties,
        "required": [*fixed, "detail", *schema.get("required", [])],
        "additionalProperties": False,
    }
