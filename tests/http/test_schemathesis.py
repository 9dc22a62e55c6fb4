"""schemathesis against the live Worker: requests made of the API document, answers held to it.

All of its checks, every operation, each form of a body or query at the edges of its schema, and
a few random requests beyond. Always the same ones: the seed is fixed, the database new.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from conftest import ROOT, start_bridge, stop_bridge
from fencepost.http import routes
from helpers import Client, connect

pytestmark = pytest.mark.soak


@pytest.fixture
def url() -> Iterator[str]:
    """A deployment of its own, in which every kind of thing that can be looked at exists."""
    variables = {"FENCEPOST_RECEIPT_KEY": "k" * 32}
    process, addresses = start_bridge(
        isolates=1, faults=False, tokens=Client.TOKENS, variables=variables
    )
    with connect(addresses["url"]) as http:
        client = Client(http, "operator")
        run = client.started(lineage={"id": "line", "round": 1}, machine="delivery")
        client.operation(run, "acquire", ttl_ms=60_000)
        binding = {"gate": "a", "revision": 1, "receipt_hash": "a" * 64}
        client.verb(run, "bindings", bindings=[binding])
    yield addresses["url"]
    stop_bridge(process)


def test_every_answer_to_what_the_document_allows_and_forbids_is_documented(url: str) -> None:
    done = subprocess.run(
        [sys.executable, ROOT / "tests/schemathesis_run.py", url],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    said = json.loads(done.stdout)
    assert not said["failures"], "\n\n".join(said["failures"][:10])
    statuses = {name: set(map(int, seen)) for name, seen in said["statuses"].items()}
    assert statuses.pop("Stateful tests")
    assert statuses.keys() == {f"{route.method} {route.pattern}" for route in routes.ROUTES}
    assert not [name for name, seen in statuses.items() if max(seen) >= 500]
    # It gets past what is not there: to what the route does, or to what it refuses to do.
    assert not [name for name, seen in statuses.items() if not seen & {200, 201, 409}]
