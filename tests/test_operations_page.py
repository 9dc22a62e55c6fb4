"""docs/operations.md, run from top to bottom on two local deployments."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from conftest import ROOT
from helpers import a_start
from local_runner import QUIET, Served, npm_start

pytestmark = pytest.mark.waits
PAGE = (ROOT / "docs/operations.md").read_text()
BLOCKS = re.findall(r"^```sh\n(.*?)^```", PAGE, re.DOTALL | re.MULTILINE)
SETUP, STARTS = BLOCKS[0], next(block for block in BLOCKS if "npm start" in block)


class Rehearsal:
    """The commands of the page, with the addresses of two deployments of this test."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.folder = folder
        self.stack = stack
        self.urls = {"OLD": "", "NEW": ""}
        self.served: dict[str, Served] = {}
        for name in ("schema", "client", "package.json", "wrangler.toml", "node_modules"):
            (folder / name).symlink_to(ROOT / name)
        for name in ("old", "new"):
            (folder / name).mkdir()
            shutil.copy(ROOT / "wrangler.toml", folder / name)

    def run(self, block: str) -> str:
        """The output of a block's commands; the first that fails fails the test."""
        alias = re.search(r"^alias ask='(.*)'$", SETUP, re.MULTILINE)
        assert alias
        databases = [
            f'export {n.upper()}_DB="--local --config {n}/wrangler.toml"' for n in ("old", "new")
        ]
        script = "\n".join(
            [
                "set -euo pipefail",
                *(f"export {name}={url}" for name, url in self.urls.items()),
                *databases,
                "export FENCEPOST_TOKEN=dev-token",
                f'ask() {{ {alias[1]} "$@"; echo; }}',
                block,
            ]
        )
        bin_first = f"{ROOT / 'node_modules/.bin'}:{os.environ['PATH']}"
        done = subprocess.run(
            ["bash", "-c", script],
            cwd=self.folder,
            env={**os.environ, **QUIET, "PATH": bin_first},
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
        )
        assert done.returncode == 0, f"{block}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def start(self, *names: str) -> None:
        """What the block with `npm start` does, on free ports."""
        for name in names:
            state = self.folder / name / ".wrangler/state"
            assert f"FENCEPOST_PERSIST={name}/.wrangler/state npm start" in STARTS
            served = self.stack.enter_context(npm_start(FENCEPOST_PERSIST=str(state)))
            self.served[name] = served
            self.urls[name.upper()] = served.url


@pytest.fixture
def rehearsal(tmp_path: Path) -> Iterator[Rehearsal]:
    with ExitStack() as stack:
        yield Rehearsal(tmp_path, stack)


def test_every_command_of_the_page_runs_and_the_move_succeeds(rehearsal: Rehearsal) -> None:
    said: dict[str, str] = {}
    for block in BLOCKS[1:]:
        if block == STARTS:
            rehearsal.start("old", "new")
            work_before_the_move(rehearsal)
            continue
        if "order-7" in block:
            an_abandoned_start(rehearsal)
        said[block] = rehearsal.run(block)
        if "seed-" in block:
            assert rehearsal.run(block)  # again, changing nothing
    everything = "\n".join(said.values())
    assert '"proved":true' in everything
    assert '"result":"proved"' in everything
    assert '"outcome":"resolved"' in everything
    moved = [part for block, part in said.items() if "move-4-open" in block]
    assert '"state":"open"' in moved[0]
    replay = rehearsal.served["new"].start("before-the-move").json()
    assert (replay["outcome"], replay["run"]["result"]) == ("replayed", "done")
    assert rehearsal.served["new"].start("after-rollback").json()["state"] == "migration-locked"
    assert rehearsal.served["old"].start("after-rollback").status_code == 201


def work_before_the_move(rehearsal: Rehearsal) -> None:
    """A run on the old deployment, finished; its key must replay on the new one."""
    old, new = rehearsal.served["old"], rehearsal.served["new"]
    assert new.start("too-early").json()["state"] == "migration-locked"
    run = old.start("before-the-move").json()["run"]
    end = {"owner": run["owner"], "to": "completed", "result": "done"}
    old.post(f"/v1/runs/{run['run_id']}/transition", end).raise_for_status()


def an_abandoned_start(rehearsal: Rehearsal) -> None:
    body = json.dumps(a_start(lease_ms=1000))
    old = rehearsal.served["old"]
    old.start("order-7", body).raise_for_status()
    while old.start("order-7", body).json()["code"] != "START_UNRESOLVABLE":
        pass


def test_a_drain_is_not_proved_while_the_fence_is_open_or_work_is_left(
    rehearsal: Rehearsal,
) -> None:
    rehearsal.start("old")
    old = rehearsal.served["old"]
    old.start("left-over").raise_for_status()
    proof = ["node", "client/drain-proof.mjs", "--url", old.url]
    environment = {**os.environ, "FENCEPOST_TOKEN": "dev-token"}

    def prove() -> tuple[int, str]:
        done = subprocess.run(
            proof,
            cwd=rehearsal.folder,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        return done.returncode, done.stdout

    code, said = prove()
    assert (code, "not draining" in said) == (1, True)
    old.post("/v1/fence/transitions", {"expected": "open", "next": "draining"}).raise_for_status()
    code, said = prove()
    assert (code, "2 pieces of work are left" in said) == (1, True)
