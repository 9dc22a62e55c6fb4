"""The API document as one HTML page, without scripts, pictures or other files.

The page is made from the document only, and all text in it is escaped. Its Content-Security-Policy
lets a browser load nothing.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import json
import re
from collections.abc import Iterable
from html import escape
from typing import Any

from fencepost.http import openapi

Json = dict[str, Any]

_STYLE = """
body{font:16px/1.5 system-ui,sans-serif;max-width:60rem;margin:0 auto;padding:1rem;color:#1a1a1a}
h2{margin-top:3rem;border-bottom:2px solid #1a1a1a}h3{margin:2rem 0 .3rem;font-size:1.05rem}
code{font:.9em ui-monospace,monospace;background:#f0f0ec;padding:0 .2em;overflow-wrap:anywhere}
h3 code{background:none;padding:0}b.m{display:inline-block;min-width:3.2rem}
table{border-collapse:collapse;width:100%;margin:.5rem 0}
th,td{text-align:left;vertical-align:top;padding:.25rem .6rem .25rem 0;border-top:1px solid #ddd}
details>*{margin-left:1rem}summary{cursor:pointer}p{margin:.4rem 0}a{color:#0645ad}
.q{color:#666}nav a{display:block}:target{background:#fff6cc}
@media(prefers-color-scheme:dark){body{background:#161616;color:#e6e6e6}code{background:#2a2a28}
h2{border-color:#e6e6e6}th,td{border-color:#444}a{color:#8ab4f8}.q{color:#aaa}
:target{background:#4a4212}}
"""
_HASH = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
POLICY = f"default-src 'none'; style-src 'sha256-{_HASH}'; frame-ancestors 'none'"


@functools.cache
def text() -> str:
    """The answer of `GET /docs`."""
    return as_html(json.loads(openapi.text()))


def as_html(document: Json) -> str:
    """The page of an API document that `openapi` made."""
    info, tags = document["info"], document["tags"]
    title = f"{info['title']} {info['version']}"
    described = "".join(_tag(tag, document) for tag in tags)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body>"
        f"<h1>{escape(title)}</h1><p>{_text(info['description'])}</p>"
        '<p><a href="openapi.json">openapi.json</a> is this page for programs.</p>'
        f"<nav>{_contents(document)}</nav>{described}"
        f'<h2 id="schemas">Schemas</h2>{"".join(_schemas(document, problems=False))}'
        f'<h2 id="problems">Problems</h2>{"".join(_schemas(document, problems=True))}'
        "</body></html>\n"
    )


def _operations(document: Json, tag: str) -> Iterable[tuple[str, str, Json]]:
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            if tag in operation["tags"]:
                yield method.upper(), path, operation


def _contents(document: Json) -> str:
    lines = []
    for tag in document["tags"]:
        lines.append(f"<p><b>{escape(tag['name'])}</b></p>")
        lines += [
            f'<a href="#{escape(operation["operationId"])}"><b class="m">{method}</b> '
            f"<code>{escape(path)}</code></a>"
            for method, path, operation in _operations(document, tag["name"])
        ]
    lines.append('<p><a href="#schemas">schemas</a><a href="#problems">problems</a></p>')
    return "".join(lines)


def _tag(tag: Json, document: Json) -> str:
    name = escape(tag["name"])
    operations = _operations(document, tag["name"])
    described = "".join(_operation(*operation, document) for operation in operations)
    return f'<h2 id="{name}">{name}</h2><p>{_text(tag["description"])}</p>{described}'


def _operation(method: str, path: str, operation: Json, document: Json) -> str:
    scopes = [scope for entry in operation["security"] for scope in entry.get("token", ())]
    said = " ".join(operation[part] for part in ("summary", "description") if part in operation)
    needs = " or ".join(f"<code>{escape(scope)}</code>" for scope in scopes) or "no token"
    rows = [_parameter(parameter) for parameter in operation["parameters"]]
    if "requestBody" in operation:
        schema = operation["requestBody"]["content"]["application/json"]["schema"]
        rows.append(f'<tr><td>body</td><td class="q">required</td><td>{_schema(schema)}</td></tr>')
    takes = f"<table>{''.join(rows)}</table>" if rows else ""
    answers = "".join(
        _answer(status, response, document) for status, response in operation["responses"].items()
    )
    return (
        f'<h3 id="{escape(operation["operationId"])}"><b class="m">{method}</b> '
        f"<code>{escape(path)}</code></h3><p>{_text(said)} Scope: {needs}.</p>{takes}"
        f"<details><summary>answers</summary><table>{answers}</table></details>"
    )


def _parameter(parameter: Json) -> str:
    need = "required" if parameter.get("required") else "optional"
    shape = _schema(parameter["schema"])
    return (
        f"<tr><td><code>{escape(parameter['name'])}</code></td>"
        f'<td class="q">{escape(parameter["in"])}, {need}</td>'
        f"<td>{shape} {_text(parameter.get('description', ''))}</td></tr>"
    )


def _answer(status: str, response: Json, document: Json) -> str:
    if "$ref" in response:
        response = document["components"]["responses"][response["$ref"].rpartition("/")[2]]
    [(media, content)] = response["content"].items()
    headers = ", ".join(f"<code>{escape(name)}</code>" for name in response["headers"])
    return (
        f"<tr><td><b>{status}</b></td><td>{_schema(content['schema'])}"
        f'<div class="q">{escape(media)}; {headers}</div></td></tr>'
    )


# --- Schemas -----------------------------------------------------------------------------


def _schemas(document: Json, *, problems: bool) -> Iterable[str]:
    for name, schema in document["components"]["schemas"].items():
        code = schema.get("properties", {}).get("code", {})
        if ("const" in code) is not problems:
            continue
        fixed = [schema["properties"][part]["const"] for part in ("status", "retry") if problems]
        facts = "".join(f" <code>{escape(str(value))}</code>" for value in fixed)
        yield (
            f'<h3 id="{escape(name)}"><code>{escape(name)}</code>{facts}</h3>'
            f"{_paragraph(schema.get('description', ''))}{_members(schema, problems)}"
        )


def _members(schema: Json, problem: bool) -> str:
    """A table of an object's members. Of a problem: without those that all problems have."""
    required = schema.get("required", [])
    rows = [
        f'<tr><td><code>{escape(name)}</code></td><td class="q">'
        f"{'required' if name in required else 'optional'}</td><td>{_schema(member)} "
        f"{_text(member.get('description', ''))}</td></tr>"
        for name, member in schema.get("properties", {}).items()
        if not (problem and ("const" in member or name == "detail"))
    ]
    whole = "" if schema.get("properties") or problem else f"<p>{_schema(schema)}</p>"
    return f"<table>{''.join(rows)}</table>" if rows else whole


def _schema(schema: Json | bool) -> str:
    """A schema on one line."""
    if isinstance(schema, bool) or not schema:
        return "nothing" if schema is False else "any JSON"
    if "$ref" in schema:
        name = escape(schema["$ref"].rpartition("/")[2])
        return f'<a href="#{name}"><code>{name}</code></a>'
    if "const" in schema:
        return f"<code>{escape(json.dumps(schema['const'], ensure_ascii=False))}</code>"
    if "anyOf" in schema and "properties" not in schema:
        return " or ".join(map(_schema, schema["anyOf"]))
    types = schema.get("type", "any")
    shown = types if isinstance(types, str) else " or ".join(types)
    if "items" in schema:
        shown = f"list of {_schema(schema['items'])}"
    return " ".join([shown, *_limits(schema)])


def _limits(schema: Json) -> Iterable[str]:
    if "enum" in schema:
        yield ", ".join(f"<code>{escape(str(value))}</code>" for value in schema["enum"] if value)
    low = schema.get("minimum", schema.get("minItems", schema.get("minLength")))
    high = schema.get("maximum", schema.get("maxItems", schema.get("maxLength")))
    if low is not None or high is not None:
        yield f"{'' if low is None else low}…{'' if high is None else high}"
    if "pattern" in schema:
        yield f"<code>{escape(schema['pattern'])}</code>"
    if "default" in schema:
        yield f"default <code>{escape(json.dumps(schema['default'], ensure_ascii=False))}</code>"


def _paragraph(text: str) -> str:
    return f"<p>{_text(text)}</p>" if text else ""


def _text(text: str) -> str:
    """The text escaped, with `code` as HTML code."""
    return re.sub(r"`([^`]*)`", r"<code>\1</code>", escape(text))
