"""JSON Schema (2020-12) of what the service takes and gives: of forms and parsers, and of types.

Runs when the API document is asked for, never for another request.
"""

from __future__ import annotations

import types
from collections.abc import Mapping
from enum import StrEnum
from typing import Annotated, Any, Literal, NotRequired, Union, get_args, get_origin, get_type_hints

from fencepost.http.forms import Form, Member, Parser

Json = dict[str, Any]
_PLAIN = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null"}


class Schemas:
    """`named` collects what has a name, each once; the rest is written where it stands."""

    def __init__(self) -> None:
        self.named: dict[str, Json] = {}

    # --- What comes in -------------------------------------------------------------------

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
        """The schema of a member of a form, with its default and what is said about it."""
        schema = self.of_parser(member.parser)
        said = " ".join(filter(None, (member.about, schema.get("description"))))
        if said:
            schema = {**schema, "description": said}
        if member.default not in (..., None):
            schema = {**schema, "default": _as_json(member.default)}
        return schema

    def _of_form(self, form: Form[Any]) -> Json:
        members = form.members.items()
        schema = self._object(
            {name: self.of_member(member) for name, member in members},
            [name for name, member in members if member.default is ...],
            form.about,
        )
        return {**schema, **self._resolved(form.rules)}

    def _resolved(self, schema: Any) -> Any:
        """A schema without the forms and parsers that stand for theirs in it."""
        if isinstance(schema, Form | Parser):
            return self.of_parser(schema)
        if isinstance(schema, list):
            return [self._resolved(entry) for entry in schema]
        if not isinstance(schema, Mapping):
            return schema
        found = {name: self._resolved(entry) for name, entry in schema.items()}
        reference = found.get("$ref")
        return {**found, **reference} if isinstance(reference, dict) else found

    # --- What goes out -------------------------------------------------------------------

    def of_type(self, hint: Any) -> Json:
        """The schema of a type as `representations` writes them."""
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
            name = f"{args[0].__name__}List"
            return self._reference(name, lambda: self.of_members(origin, args[0]))
        if hint in _PLAIN:
            return {"type": _PLAIN[hint]}
        if issubclass(hint, StrEnum):
            return {"type": "string", "enum": [str(value) for value in hint]}
        return self._reference(hint.__name__, lambda: self.of_members(hint))

    def of_members(self, typed_dict: Any, item: Any = None) -> Json:
        """The schema of a TypedDict; `item` is what a generic one is about."""
        properties, required = {}, []
        for name, hint in get_type_hints(typed_dict, include_extras=True).items():
            if get_origin(hint) is NotRequired:
                [hint] = get_args(hint)
            else:
                required.append(name)
            if item is not None and get_origin(hint) is list:
                hint = list[item]
            properties[name] = self.of_type(hint)
        return self._object(properties, required, typed_dict.__doc__ or "")

    def _any_of(self, schemas: list[Json]) -> Json:
        """Of one schema and null the one, made nullable; else `anyOf`."""
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


def _as_json(default: Any) -> Any:
    return list(default) if isinstance(default, tuple) else default
