"""Holds every answer that the suite gets to the API document.

Status, problem code, media type, headers and body: what a route answers and does not document,
or documents otherwise, fails the test that saw it.
"""

from __future__ import annotations

import functools
import json
import re
from typing import Any

import httpx
import jsonschema_rs

from fencepost.http import openapi

DOCUMENT: dict[str, Any] = json.loads(openapi.text())
_URI = "https://fencepost.invalid/openapi.json"
_REGISTRY = jsonschema_rs.Registry([(_URI, DOCUMENT)])
_HEADERS: dict[str, Any] = DOCUMENT["components"]["headers"]
_PATHS = [(re.compile(re.sub(r"\{\w+\}", "[^/]+", path)), path) for path in DOCUMENT["paths"]]


def check(method: str, path: str, answer: httpx.Response) -> None:
    """Raises AssertionError where `answer` is not as the document says."""
    pointer, response = _response(method, path.partition("?")[0], answer)
    media = answer.headers["Content-Type"].partition(";")[0]
    told = f"{method} {path}: {answer.status_code} {answer.text[:500]}"
    assert list(response["content"]) == [media], told
    for name, header in _HEADERS.items():
        if header["required"] or name in answer.headers:
            assert name in answer.headers, f"{name}: {told}"
            assert name in response["headers"], f"{name}: {told}"
    if media.endswith("json"):
        body, validator = answer.json(), _validator(pointer, media)
        if not validator.is_valid(body):
            raise AssertionError(f"{next(validator.iter_errors(body))}\n{told}")


def _response(method: str, path: str, answer: httpx.Response) -> tuple[str, Any]:
    """Where the document describes the answer, and how."""
    pattern = next((pattern for known, pattern in _PATHS if known.fullmatch(path)), None)
    if pattern is None:
        return _elsewhere("NOT_FOUND")
    operation = DOCUMENT["paths"][pattern].get(method.lower())
    if operation is None:
        return _elsewhere("METHOD_NOT_ALLOWED")
    status = str(answer.status_code)
    assert status in operation["responses"], f"{method} {path}: {status} is not documented"
    response = operation["responses"][status]
    if "$ref" in response:
        return _elsewhere(_name(response["$ref"]))
    escaped = pattern.replace("~", "~0").replace("/", "~1")
    return f"/paths/{escaped}/{method.lower()}/responses/{status}", response


def _elsewhere(code: str) -> tuple[str, Any]:
    return f"/components/responses/{code}", DOCUMENT["components"]["responses"][code]


def _name(reference: str) -> str:
    return reference.rpartition("/")[2]


@functools.cache
def _validator(pointer: str, media: str) -> jsonschema_rs.Draft202012Validator:
    escaped = media.replace("/", "~1")
    reference = f"{_URI}#{pointer}/content/{escaped}/schema".replace("{", "%7B").replace("}", "%7D")
    return jsonschema_rs.Draft202012Validator({"$ref": reference}, registry=_REGISTRY)
