"""schemathesis against the live Worker: requests made of the API document, answers held to it.

All of its checks, every operation, each form of a body or query at the edges of its schema, and
a few random requests beyond. Always the same ones: the seed is fixed, the database new.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import schemathesis
from schemathesis.config import SchemathesisConfig
from schemathesis.engine import events, from_schema

from conftest import start_bridge, stop_bridge
from fencepost import table, wire
from helpers import Client

# Random requests to each operation, besides those at the edges.
EXAMPLES = 4


@pytest.fixture
def url() -> Iterator[str]:
    """A deployment of its own, in which every kind of thing that can be looked at exists."""
    process, addresses = start_bridge(isolates=1, faults=False, tokens=Client.TOKENS)
    with httpx.Client(base_url=addresses["url"], timeout=60) as http:
        client = Client(http, "operator")
        run = client.started(lineage={"id": "line", "round": 1}, machine="delivery")
        client.operation(run, "acquire", ttl_ms=60_000)
        binding = {"gate": "a", "revision": 1, "receipt_hash": "a" * 64}
        client.verb(run, "bindings", bindings=[binding])
    yield addresses["url"]
    stop_bridge(process)


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
    for route in table.ROUTES:
        if id(route.takes) in seen and not route.headers:
            yield f"{route.method} {route.pattern}"
        seen.add(id(route.takes))


def document() -> Any:
    """The document, with a simpler pattern for the texts of cursors: the real one is slow to
    make strings of.
    """
    real, simple = json.dumps(wire.TEXT.pattern)[1:-1], "[a-z0-9:]{0,9}"
    text = table.openapi_text()
    assert real in text
    return json.loads(text.replace(real, simple))


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


def test_every_answer_to_what_the_document_allows_and_forbids_is_documented(url: str) -> None:
    schema = schemathesis.openapi.from_dict(document(), config=configuration(url))
    schema.hook("filter_case")(sensible)
    schema.hook("map_body")(lambda context, body: whole(body))
    failures: list[str] = []
    statuses: dict[str, Counter[int]] = defaultdict(Counter)
    for event in from_schema(schema).execute():
        if isinstance(event, events.NonFatalError | events.FatalError):
            failures.append(repr(vars(event) if hasattr(event, "__dict__") else event))
        if isinstance(event, events.ScenarioFinished):
            failures += failed(event.recorder)
            for seen in event.recorder.interactions.values():
                if seen.response is not None:
                    statuses[event.recorder.label][seen.response.status_code] += 1
    assert not failures, "\n\n".join(failures[:10])
    assert sum(statuses.pop("Stateful tests").values()) > 0
    assert set(statuses) == {f"{route.method} {route.pattern}" for route in table.ROUTES}
    assert not [label for label, seen in statuses.items() if max(seen) >= 500]
    # It gets past what is not there: to what the route does, or to what it refuses to do.
    beyond = [label for label, seen in statuses.items() if set(seen) & {200, 201, 409}]
    assert set(statuses) - set(beyond) == set()


def failed(recorder: Any) -> Iterator[str]:
    for id, checks in recorder.checks.items():
        for check in checks:
            if check.failure_info is not None:
                case, seen = recorder.cases[id].value, recorder.interactions[id].response
                asked = f"{case.method} {case.formatted_path} {case.query} {case.body!r}"
                answer = seen and f"{seen.status_code} {seen.text}"
                yield f"{check.name}: {check.failure_info.failure.message}\n{asked}\n{answer}"
