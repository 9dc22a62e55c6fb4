"""`npm start` for tests that meet the local runtime as a newcomer does."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from conftest import ROOT
from helpers import a_start, connect
from soak.runner import free_port

WRANGLER = [ROOT / "node_modules/.bin/node", ROOT / "node_modules/wrangler/bin/wrangler.js"]
QUIET = {"WRANGLER_SEND_METRICS": "false", "WRANGLER_HIDE_BANNER": "true", "CI": "1"}
DEV = {"Authorization": "Bearer dev-token"}


class Served:
    """`stop` ends it before its test ends; `output` has what it said up to then."""

    stop: Callable[[], None]

    def __init__(self, process: subprocess.Popen[str], url: str, output: list[str]) -> None:
        self.process, self.url, self.output = process, url, output

    def lines(self) -> Iterator[str]:
        """What it says next, line by line."""
        assert self.process.stdout is not None
        yield from self.process.stdout

    def start(self, key: str, body: str | None = None, **headers: str) -> httpx.Response:
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        headers = {"Idempotency-Key": key, **names}
        return self.send("/v1/starts", body or json.dumps(a_start()), headers)

    def post(self, path: str, body: Any) -> httpx.Response:
        return self.send(path, json.dumps(body))

    def send(self, path: str, body: str, headers: dict[str, str] | None = None) -> httpx.Response:
        with connect(self.url, 30, headers=DEV) as http:
            return http.post(path, content=body, headers=headers)


@contextmanager
def npm_start(**settings: str) -> Iterator[Served]:
    """`npm start`, until it says that it is ready; ended like Ctrl-C does."""
    port = free_port()
    process = subprocess.Popen(
        ["npm", "start"],
        cwd=ROOT,
        env={**os.environ, "PORT": str(port), **settings},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    output: list[str] = []
    assert process.stdout is not None
    try:
        for line in process.stdout:
            output.append(line)
            if f":{port}" in line:
                break
        else:
            raise AssertionError("".join(output))
        yield Served(process, f"http://127.0.0.1:{port}", output)
    finally:
        os.killpg(process.pid, signal.SIGINT)
        rest, _ = process.communicate(timeout=20)
        output.append(rest)


def wrangler_sql(persist: Path, statement: str) -> list[dict[str, object]]:
    """The rows of a statement, by wrangler, in the database that the folder holds."""
    done = subprocess.run(
        [
            *WRANGLER,
            *("d1", "execute", "fencepost", "--local", "--json", "--command", statement),
            *("--persist-to", str(persist)),
        ],
        cwd=ROOT,
        env={**os.environ, **QUIET},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    [result] = json.loads(done.stdout)
    rows: list[dict[str, object]] = result["results"]
    return rows
