"""Runs schemathesis over a deployment: `python tests/schemathesis_run.py URL` prints JSON.

A process of its own, since schemathesis alters Hypothesis for all of its process.
"""

from __future__ import annotations

import json
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

import jsonschema_rs
import schemathesis
from schemathesis.config import SchemathesisConfig
from schemathesis.engine import events, from_schema
from schemathesis.specs.openapi import definitions

from fencepost.http import openapi, queries, routes

# Random requests to each operation, besides those at the edges.
EXAMPLES = 4


def configuration(url: str) -> SchemathesisConfig:
    return SchemathesisConfig.from_dict(
        {
            "base-url": url,
            "headers": {"Authorization": "Bearer operator"},
            "seed": 1,
            "continue-on-failure": True,
            "generation": {
                "max-examples": EXAMPLES,
                "deterministic": True,
                "no-shrink": True,
                "database": "none",
            },
            # A key that is used again for something else is refused by 422, whatever is sent.
            "checks": {
                "positive_data_acceptance": {
                    "expected-statuses": ["2xx", "401", "403", "404", "409", "422"]
                }
            },
            "phases": {"coverage": {"unexpected-methods": ["DELETE"]}},
            "operations": [
                {"include-name": name, "phases": {"coverage": {"enabled": False}}}
                for name in again()
            ],
        }
    )


def again() -> Iterator[str]:
    """Operations whose body or query another one takes, too: its edges are tried there."""
    seen = set()
    for route in routes.ROUTES:
        if id(route.takes) in seen and not route.headers:
            yield f"{route.method} {route.pattern}"
        seen.add(id(route.takes))


def document() -> Any:
    """The document, in which a cursor can only be empty: nobody makes one."""
    real = f'"^{queries._CURSOR}$"'
    text = openapi.text()
    assert real in text
    return json.loads(text.replace(real, '"^$"'))


def sensible(context: Any, case: Any) -> bool:
    """What JSON Schema cannot say, and what would hold up all others: a wait, a closed fence."""
    wait, body = str((case.query or {}).get("wait", "")), case.body
    if wait.isdecimal() and int(wait) > 1:
        return False
    if not isinstance(body, dict):
        return True
    if body.get("next") in ("draining", "migration-locked", "proof-only"):
        return False
    bindings = body.get("bindings")
    if isinstance(bindings, list):  # no place twice
        places = [(b.get("gate"), b.get("revision")) for b in bindings if isinstance(b, dict)]
        return len({str(place) for place in places}) == len(places)
    return True


def whole(value: Any) -> Any:
    """To JSON Schema 1.0 is an integer; this service takes integers without a fraction."""
    if isinstance(value, float) and value.is_integer() and abs(value) < 2**53:
        return int(value)
    if isinstance(value, list):
        return [whole(item) for item in value]
    if isinstance(value, dict):
        return {name: whole(item) for name, item in value.items()}
    return value


def run(url: str) -> dict[str, Any]:
    """What failed, in words, and how often each operation answered each status."""
    schema = schemathesis.openapi.from_dict(document(), config=configuration(url))
    schema.hook("filter_case")(sensible)
    schema.hook("map_body")(lambda context, body: whole(body))
    failures: list[str] = []
    statuses: dict[str, Counter[int]] = defaultdict(Counter)
    for event in from_schema(schema).execute():
        if isinstance(event, events.NonFatalError):
            failures.append(f"{event.label}: {event.value!r}")
        if isinstance(event, events.FatalError):
            raise event.exception
        if isinstance(event, events.ScenarioFinished):
            failures += failed(event.recorder)
            for seen in event.recorder.interactions.values():
                if seen.response is not None:
                    statuses[event.recorder.label][seen.response.status_code] += 1
    return {"failures": failures, "statuses": statuses}


def failed(recorder: Any) -> Iterator[str]:
    for id, checks in recorder.checks.items():
        for check in checks:
            if check.failure_info is not None:
                case, seen = recorder.cases[id].value, recorder.interactions[id].response
                asked = f"{case.method} {case.formatted_path} {case.query} {case.body!r}"
                answer = seen and f"{seen.status_code} {seen.text}"
                yield f"{check.name}: {check.failure_info.failure.message}\n{asked}\n{answer}"


def validate() -> None:
    """The document is OpenAPI 3.1, and its schemas are JSON Schema. Raises what is wrong."""
    whole_document = json.loads(openapi.text())
    definitions.OPENAPI_31_VALIDATOR.validate(whole_document)
    for schema in whole_document["components"]["schemas"].values():
        jsonschema_rs.meta.validate(schema)


if __name__ == "__main__":
    validate()
    print(json.dumps(run(sys.argv[1])))
