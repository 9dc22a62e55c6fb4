"""docs/operations.md, run section by section on two local deployments."""

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
SECTIONS = {
    text.split("\n", 1)[0]: re.findall(r"^```sh\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    for text in re.split(r"^## ", f"# {PAGE[2:]}", flags=re.MULTILINE)
}
[SETUP] = SECTIONS.pop("# Operating a deployment")
LOCAL = SECTIONS["Provision"].pop()
MOVE = SECTIONS["Move to another deployment"]
# Those for which the old deployment is not sealed: they have two others.
LATER = ("Roll back", "Restore", "Resolve", "Purge and audit")


class Rehearsal:
    """The commands of the page, with the addresses of two deployments of this test."""

    def __init__(self, folder: Path, stack: ExitStack, token: str = "dev-token") -> None:  # noqa: S107
        self.folder = folder
        self.stack = stack
        self.token = token
        self.urls = {"OLD": "", "NEW": ""}
        self.served: dict[str, Served] = {}
        for name in ("schema", "client", "package.json", "wrangler.toml", "node_modules"):
            (folder / name).symlink_to(ROOT / name)
        for name in ("old", "new"):
            (folder / name).mkdir()
            shutil.copy(ROOT / "wrangler.toml", folder / name)

    def run(self, block: str, code: int = 0) -> str:
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
                f"export FENCEPOST_TOKEN={self.token}",
                f'ask() {{ {alias[1]} "$@" && echo; }}',
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
            timeout=300,
            check=False,
        )
        assert done.returncode == code, f"{block}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def start(self, *names: str) -> None:
        """What the block with `npm start` does, on free ports."""
        for name in names:
            state = self.folder / name / ".wrangler/state"
            assert f"FENCEPOST_PERSIST={name}/.wrangler/state npm start" in LOCAL
            stack = self.stack.enter_context(ExitStack())
            served = stack.enter_context(npm_start(FENCEPOST_PERSIST=str(state)))
            served.stop = stack.close
            self.served[name] = served
            self.urls[name.upper()] = served.url

    def provision(self) -> None:
        for block in SECTIONS["Provision"]:
            self.run(block)
            assert self.run(block)  # again, changing nothing
        self.start("old", "new")


@pytest.fixture
def rehearsal(tmp_path: Path) -> Iterator[Rehearsal]:
    with ExitStack() as stack:
        yield Rehearsal(tmp_path, stack)


def test_every_section_of_the_page_is_run() -> None:
    first = ("Provision", "The fence", "Upgrade", "Watch", "Move to another deployment")
    assert tuple(SECTIONS) == (*first, *LATER)


def test_every_command_up_to_the_move_runs_and_the_move_succeeds(rehearsal: Rehearsal) -> None:
    rehearsal.provision()
    work_before_the_move(rehearsal)
    said = [
        rehearsal.run(block)
        for title in ("The fence", "Upgrade", "Watch", "Move to another deployment")
        for block in SECTIONS[title]
    ]
    everything = "\n".join(said)
    drained = json.loads((rehearsal.folder / "drained.json").read_text())
    moved = json.loads((rehearsal.folder / "moved.json").read_text())
    assert (drained["proved"], moved["moved"], moved["drain"]) == (True, True, drained)
    assert moved["tables"]["runs"]["rows"] == 1
    assert '"phase":"finished"' in everything
    assert '"result":"proved"' in everything
    assert '"state":"open"' in said[-1]
    old, new = rehearsal.served["old"], rehearsal.served["new"]
    replay = new.start("before-the-move").json()
    assert (replay["outcome"], replay["run"]["result"]) == ("replayed", "done")
    moved_to = old.start("before-the-move").json()
    assert (moved_to["code"], moved_to["moved_to"]) == ("DEPLOYMENT_MOVED", new.url)


def work_before_the_move(rehearsal: Rehearsal) -> None:
    """A run on the old deployment, finished; its key must replay on the new one."""
    old, new = rehearsal.served["old"], rehearsal.served["new"]
    assert new.start("too-early").json()["state"] == "importing"
    run = old.start("before-the-move").json()["run"]
    end = {"owner": run["owner"], "to": "completed", "result": "done"}
    old.post(f"/v1/runs/{run['run_id']}/transition", end).raise_for_status()


def test_every_command_from_the_way_back_on_runs(rehearsal: Rehearsal) -> None:
    rehearsal.provision()
    [move] = [block for block in MOVE if "npm run --silent move" in block]
    move = move.replace('"draining"', '"open"').replace("--drain-proof drained.json", "")
    old = rehearsal.served["old"]
    old.start("before").raise_for_status()
    assert '"phase":"finished"' in rehearsal.run(move)
    for block in SECTIONS["Roll back"]:
        assert '"state":"open"' in rehearsal.run(block)
    assert old.start("after-rollback").status_code == 201
    restored(rehearsal)
    an_abandoned_start(rehearsal)
    for block in [*SECTIONS["Resolve"], *SECTIONS["Purge and audit"]]:
        said = rehearsal.run(block)
        assert "resolve" not in block or '"outcome":"resolved"' in said


def restored(rehearsal: Rehearsal) -> None:
    """A key that is spent after the backup was taken does not execute again after the restore."""
    state, backup = rehearsal.folder / "old/.wrangler/state", rehearsal.folder / "backup"
    rehearsal.served["old"].stop()
    shutil.copytree(state, backup)
    rehearsal.start("old")
    first = rehearsal.served["old"].start("forgotten-1")
    assert first.status_code == 201
    line = next(line for line in rehearsal.served["old"].lines() if "forgotten-1" in line)
    assert json.loads(line)["run"] == first.json()["run"]["run_id"]
    rehearsal.served["old"].stop()
    shutil.rmtree(state)
    shutil.copytree(backup, state)
    lock, health, forgotten, reopen = SECTIONS["Restore"]
    rehearsal.run(lock)
    rehearsal.start("old")
    closed = rehearsal.served["old"].start("forgotten-1").json()
    assert (closed["code"], closed["state"]) == ("EXECUTION_FENCED", "migration-locked")
    assert '"went_back":["fence","audit"]' in rehearsal.run(health)
    said = rehearsal.run(forgotten)
    assert "not known" in said
    assert '"state":"open"' in rehearsal.run(reopen)
    replay = rehearsal.served["old"].start("forgotten-1", json.dumps(a_start(owner=None))).json()
    assert (replay["outcome"], replay["run"]["result"]) == ("replayed", "ch_1, by the ledger")


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
