"""The API document (OpenAPI 3.1), generated from the route table.

Bodies and queries come from the forms that read them. Answers come from the return types of the
handlers, which the type checker checks. Problem codes come from the route, or from its kind
(`problems_of`). A test compares every answer of the test suite with the document. It is generated
only when it is requested.
"""

from __future__ import annotations

import functools
import json
import types
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Annotated, Any, Literal, NotRequired, Union, get_args, get_origin, get_type_hints

import fencepost
from fencepost.http import representations
from fencepost.http.exchange import Route
from fencepost.http.forms import Form, Member, Parser
from fencepost.http.queries import REQUEST_KEY
from fencepost.http.representations import PROBLEM_MEMBERS
from fencepost.http.routes import PATH_PARAMETERS, ROUTES
from fencepost.problems import PROBLEMS

Json = dict[str, Any]

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

_TEXT = {"type": "string"}
_HEADERS: dict[str, tuple[Json, str]] = {
    "Allow": (_TEXT, "The methods that the path takes."),
    "Cache-Control": ({"const": "no-store"}, "Nothing is to be kept."),
    "Content-Security-Policy": (_TEXT, "No script, nothing from anywhere else."),
    "Idempotent-Replayed": ({"const": "true"}, "On a replay: nothing happened now."),
    "Fencepost-Moved": (_TEXT, "Where to go, on each answer of a sealed deployment."),
    "Location": ({"type": "string", "pattern": "^/v1/runs/"}, "The run."),
    "Preference-Applied": ({"type": "string", "pattern": "^wait=[0-9]+$"}, "On a wait."),
    "Retry-After": ({"type": "integer", "minimum": 1}, "Seconds, where a wait makes sense."),
    "Server-Timing": (_TEXT, "Round trips to the database; for scope `operate`, rows, too."),
    "WWW-Authenticate": (_TEXT, "What is wrong with the token (RFC 6750)."),
}
_ALWAYS = ("Cache-Control", "Server-Timing")
# Headers of refusals, and the statuses that have them.
_GIVEN_WITH = {
    "Allow": (405,),
    "Fencepost-Moved": (404, 409, 503),
    "Retry-After": (409, 503),
    "WWW-Authenticate": (401, 403),
}

_DOCUMENTED = {"shown": representations}


@functools.cache
def text() -> str:
    """The answer of `GET /openapi.json`, and the text of `docs/openapi.json`."""
    return json.dumps(document(ROUTES), ensure_ascii=False, indent=1) + "\n"


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
    """The problem codes that a route can answer, in the order of PROBLEMS.

    Its own codes; and those that follow from its path, its scopes, its body, from writing, and from
    being gated by the fence.
    """
    codes = {"INTERNAL", "INVALID_REQUEST", *route.problems}
    codes |= {
        parameter.absent
        for name, parameter in PATH_PARAMETERS.items()
        if f"{{{name}}}" in route.pattern
    }
    if route.scopes:
        codes |= {"UNAUTHORIZED", "SCOPE_MISSING", "AUTH_UNCONFIGURED"}
        codes |= {"STORAGE_UNREADABLE", "ROW_CORRUPT", "SCHEMA_MISMATCH"}
    if route.method == "POST" and route.scopes:
        codes |= {"DEPLOYMENT_MOVED", "EXECUTION_FENCED"}
    if route.method == "POST":
        codes |= {"TOO_LARGE", "CONTENT_ENCODING_UNSUPPORTED"}
        codes |= {"STORAGE_REFUSED", "WRITE_OUTCOME_UNKNOWN"}
        if "work" in route.scopes:
            codes |= {"EXECUTION_FENCED", "EXECUTION_FENCE_UNREADABLE"}
    if REQUEST_KEY in route.headers:
        codes |= {"IDEMPOTENCY_KEY_INVALID", "IDEMPOTENCY_KEY_REUSED"}
    return [code for code in PROBLEMS if code in codes]


def _tag(route: Route[Any]) -> str:
    if "/operations/" in route.pattern:
        return "operations"
    if not route.scopes:
        return "service"
    first = route.pattern.removeprefix("/v1").split("/")[1]
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
        {"name": name, "in": "path", "required": True, "description": parameter.about}
        | {"schema": schemas.of_parser(parameter.parser)}
        for name, parameter in PATH_PARAMETERS.items()
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
    replayed = ["Idempotent-Replayed"] if REQUEST_KEY in route.headers else []
    moved = ["Fencepost-Moved"] if route.scopes or route.takes.members else []
    [replied] = get_args(get_type_hints(route.handler, localns=_DOCUMENTED)["return"])
    media, text = route.media.partition(";")[0], replied is str
    schema = schemas.of_type(replied)
    if text and media == "application/json":
        schema = {"type": "object"}
    return {
        "description": "Started now: execute it." if status == 201 else "Done.",
        "headers": _headers(*{*_ALWAYS, *route.response_headers, *replayed, *moved}),
        "content": {media: {"schema": schema}},
    }


def _headers(*names: str) -> Json:
    return {name: {"$ref": f"#/components/headers/{name}"} for name in sorted(names)}


def _refusals(route: Route[Any]) -> Json:
    """The refusals by status. A status with a single code refers to a shared response."""
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
    """The schema of one code: RFC 9457, `code`, `retry`, and the members of this code."""
    problem = PROBLEMS[code]
    fixed = {
        "type": f"/docs/errors#{code}",
        "title": problem.title,
        "status": problem.status,
        "code": code,
        "retry": str(problem.retry),
    }
    schema = schemas.of_members(PROBLEM_MEMBERS[code]) if code in PROBLEM_MEMBERS else {}
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


# --- JSON Schema -------------------------------------------------------------------------

_PLAIN = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null"}


class Schemas:
    """JSON Schemas (2020-12) of forms, parsers and types.

    `named` collects each schema that has a name once; the others are written in place.
    """

    def __init__(self) -> None:
        self.named: dict[str, Json] = {}

    # --- Requests -----------------------------------------------------------------------

    def of_parser(self, parser: Parser[Any] | Form[Any]) -> Json:
        if not parser.name:
            return self._of_schema(parser)
        if isinstance(parser, Form):
            return self._reference(parser.name, lambda: self._of_form(parser))
        return self._reference(parser.name, lambda: self._of_schema(parser))

    def _of_schema(self, parser: Parser[Any] | Form[Any]) -> Json:
        assert isinstance(parser, Parser)
        schema: Json = self._resolved(parser.schema)
        return schema

    def of_member(self, member: Member) -> Json:
        """The schema of a form's member, with its default and its description."""
        schema = self.of_parser(member.parser)
        said = " ".join(filter(None, (member.about, schema.get("description"))))
        if said:
            schema = {**schema, "description": said}
        if member.default not in (..., None):
            schema = {**schema, "default": _as_json(member.default)}
        return schema

    def _of_form(self, form: Form[Any]) -> Json:
        members = form.members.items()
        absent = {name for name, member in members if member.null_is_absent}
        properties = {name: self.of_member(member) for name, member in members}
        schema = self._object(
            {
                name: self._or_null(property) if name in absent else property
                for name, property in properties.items()
            },
            [name for name, member in members if member.default is ...],
            form.about,
        )
        return {**schema, **self._with_nulls(self._resolved(form.rules), absent)}

    def _or_null(self, schema: Json) -> Json:
        about: Json = {name: schema[name] for name in ("description", "default") if name in schema}
        rest = {name: value for name, value in schema.items() if name not in about}
        return {**about, "anyOf": [rest, {"type": "null"}]}

    def _with_nulls(self, rule: Any, absent: set[str]) -> Any:
        """A rule on several members, where null means that one of `absent` is not there."""
        if isinstance(rule, list):
            return [self._with_nulls(part, absent) for part in rule]
        if not isinstance(rule, dict):
            return rule
        found = {name: self._with_nulls(part, absent) for name, part in rule.items()}
        asked = found.get("properties", {})
        properties = {
            name: {"anyOf": [part, {"type": "null"}]} if name in absent else part
            for name, part in asked.items()
        }
        for name in sorted(absent.intersection(found.get("required", []))):
            there = {"not": {"type": "null"}}
            properties[name] = {"allOf": [asked[name], there]} if name in asked else there
        return {**found, "properties": properties} if properties else found

    def _resolved(self, schema: Any) -> Any:
        """A schema in which forms and parsers are replaced by their schemas."""
        if isinstance(schema, Form | Parser):
            return self.of_parser(schema)
        if isinstance(schema, list):
            return [self._resolved(entry) for entry in schema]
        if not isinstance(schema, Mapping):
            return schema
        found = {name: self._resolved(entry) for name, entry in schema.items()}
        reference = found.get("$ref")
        return {**found, **reference} if isinstance(reference, dict) else found

    # --- Answers ------------------------------------------------------------------------

    def of_type(self, hint: Any) -> Json:
        """The schema of a type in `representations`."""
        origin, args = get_origin(hint), get_args(hint)
        if hint is Any:
            return {}
        if origin is Annotated:
            return self.of_parser(args[1])
        if origin in (Union, types.UnionType):
            return self._any_of([self.of_type(arg) for arg in args])
        if origin is Literal:
            return {"type": "string", "enum": list(args)}
        if origin is list:
            return {"type": "array", "items": self.of_type(args[0])}
        if origin is dict:
            return {"type": "object"}
        if origin is not None:
            name = f"{_name(args[0])}List"
            return self._reference(name, lambda: self.of_members(origin, args[0]))
        if hint in _PLAIN:
            return {"type": _PLAIN[hint]}
        if issubclass(hint, StrEnum):
            return {"type": "string", "enum": [str(value) for value in hint]}
        return self._reference(_name(hint), lambda: self.of_members(hint))

    def of_members(self, typed_dict: Any, item: Any = None) -> Json:
        """The schema of a TypedDict; `item` is the argument of a generic one."""
        properties, required = {}, []
        for name, hint in get_type_hints(typed_dict, include_extras=True).items():
            if get_origin(hint) is NotRequired:
                [hint] = get_args(hint)
            else:
                required.append(name)
            if item is not None and get_origin(hint) is list:
                hint = hint[item]
            properties[name] = self.of_type(hint)
        return self._object(properties, required, typed_dict.__doc__ or "")

    def _any_of(self, schemas: list[Json]) -> Json:
        """One schema or null: that schema, made nullable. Otherwise `anyOf`."""
        if len(schemas) == 2 and schemas[1] == {"type": "null"}:
            schema = schemas[0]
            if isinstance(schema.get("type"), str):
                values = {"enum": [*schema["enum"], None]} if "enum" in schema else {}
                return {**schema, **values, "type": [schema["type"], "null"]}
        return {"anyOf": schemas}

    # --- Both ----------------------------------------------------------------------------

    def _object(self, properties: Json, required: list[str], about: str) -> Json:
        described = {"description": " ".join(about.split())} if about else {}
        needed = {"required": required} if required else {}
        closed = {"properties": properties, **needed, "additionalProperties": False}
        return {"type": "object", **described, **closed}

    def _reference(self, name: str, describe: Any) -> Json:
        if name not in self.named:
            self.named[name] = {}  # before its schema, which may refer to it
            self.named[name] = describe()
        return {"$ref": f"#/components/schemas/{name}"}


def _name(shape: Any) -> str:
    """The name of a type in the document."""
    name: str = shape.__name__
    return name.removesuffix("Json")


def _as_json(default: Any) -> Any:
    return list(default) if isinstance(default, tuple) else default
