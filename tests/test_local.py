"""The local runtime as a new user starts it."""

from __future__ import annotations

import csv
import json
import os
import re
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from conftest import ROOT, start_bridge, stop_bridge
from helpers import NO_TLS, a_start, new_key
from local_runner import QUIET, WRANGLER, Served, npm_start, wrangler_sql

pytestmark = pytest.mark.waits


def group_is_gone(process_group: int) -> bool:
    for _ in range(50):
        try:
            os.killpg(process_group, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.1)
    return False


def test_npm_start_prints_address_and_token_and_ctrl_c_ends_everything() -> None:
    with npm_start(FENCEPOST_PERSIST="memory") as served:
        assert served.start(new_key()).status_code == 201
    assert "dev-token" in "".join(served.output)
    assert group_is_gone(served.process.pid)


@pytest.mark.parametrize(
    "setting",
    [
        {"PORT": "many"},
        {"FENCEPOST_ISOLATES": "0"},
        {"FENCEPOST_TOKENS": "{"},
        {"FENCEPOST_FAULTS": "perhaps"},
    ],
    ids=lambda setting: next(iter(setting)),
)
def test_a_setting_that_is_no_setting_is_said_in_one_line(setting: dict[str, str]) -> None:
    ended = subprocess.run(
        ["npm", "start", "--silent"],
        cwd=ROOT,
        env={**os.environ, "FENCEPOST_PERSIST": "memory", **setting},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    said = (ended.stdout + ended.stderr).strip().splitlines()
    assert ended.returncode == 1
    assert len(said) == 1, said
    assert next(iter(setting)) in said[0]


def test_wrangler_and_the_running_worker_see_the_same_database(tmp_path: Path) -> None:
    with npm_start(FENCEPOST_PERSIST=str(tmp_path)) as served:
        key = new_key()
        run_id = served.start(key, json.dumps(a_start(lease_ms=3_600_000))).json()["run"]["run_id"]
        found = wrangler_sql(tmp_path, "SELECT key, run_id FROM fencepost_reservations")
        assert found == [{"key": key, "run_id": run_id}]
        columns, values = "(id, state, updated_at_ms)", "('deployment', 'draining', 1)"
        wrangler_sql(tmp_path, f"INSERT INTO fencepost_fence {columns} VALUES {values}")
        assert served.start(new_key()).json()["state"] == "draining"
    with npm_start(FENCEPOST_PERSIST=str(tmp_path)) as again:
        assert again.start(key).json()["code"] == "START_PENDING"


@pytest.fixture(scope="module")
def faulty() -> Iterator[Served]:
    """Two isolates that make faults when asked to."""
    settings = {"FENCEPOST_ISOLATES": "2", "FENCEPOST_FAULTS": "1"}
    with npm_start(FENCEPOST_PERSIST="memory", **settings) as served:
        yield served


@pytest.mark.xdist_group("faulty")
def test_isolates_share_one_database_and_can_be_named(faulty: Served) -> None:
    key = new_key()
    assert faulty.start(key, x_local_isolate="1").status_code == 201
    assert faulty.start(key, x_local_isolate="0").status_code == 409
    assert faulty.start(key).status_code == 409
    assert faulty.start(key, x_local_isolate="2").status_code == 400
    assert faulty.start(key, x_local_isolate="one").status_code == 400


def test_faults_are_made_only_when_the_setting_says_so() -> None:
    with npm_start(FENCEPOST_PERSIST="memory") as served:
        assert served.start(new_key(), x_local_fault="drop").status_code == 201


@pytest.mark.xdist_group("faulty")
def test_a_lost_reply_was_executed_and_a_dropped_batch_was_not(faulty: Served) -> None:
    one = {"x_local_isolate": "0"}
    faulty.start(new_key(), **one).raise_for_status()
    for fault, expected in (("drop,drop", 201), ("lost,lost", 409)):
        key = new_key()
        answer = faulty.start(key, x_local_fault=fault, **one)
        assert answer.json()["code"] == "WRITE_OUTCOME_UNKNOWN"
        assert faulty.start(key, **one).status_code == expected
    assert faulty.start(new_key(), x_local_fault="perhaps", **one).status_code == 400


@pytest.mark.xdist_group("faulty")
def test_faults_of_concurrent_requests_do_not_mix(faulty: Served) -> None:
    """Each event has its own environment, though the module that hands it out is one."""
    one = {"x_local_isolate": "0"}
    faulty.start(new_key(), **one).raise_for_status()
    faults = [None, "lost,lost", "pass,lost"] * 20

    def start(fault: str | None) -> int:
        headers = one if fault is None else {**one, "x_local_fault": fault}
        return faulty.start(new_key(), **headers).status_code

    with ThreadPoolExecutor(12) as threads:
        assert list(threads.map(start, faults)) == [201, 503, 201] * 20


BROKEN_ENTRY = """
from workers import WorkerEntrypoint

class Default(WorkerEntrypoint):
    async def fetch(self, request):
        raise LookupError("a secret of the inside")
"""


def test_an_unhandled_exception_prints_a_traceback_and_answers_a_plain_problem(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "entry.py").write_text(BROKEN_ENTRY)
    process, addresses = start_bridge(source=str(tmp_path))
    answer = httpx.get(addresses["url"], verify=NO_TLS)
    stop_bridge(process)
    assert answer.status_code == 500
    assert answer.headers["Content-Type"] == "application/problem+json"
    assert answer.json()["code"] == "INTERNAL"
    assert "secret" not in answer.text
    console = capfd.readouterr().err
    assert "Traceback" in console
    assert "LookupError: a secret of the inside" in console


@pytest.fixture(scope="module")
def dry_run(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, set[str]]:
    """What `wrangler deploy --dry-run` says, and the files that it would upload."""
    folder = tmp_path_factory.mktemp("dry-run")
    done = subprocess.run(
        [*WRANGLER, "deploy", "--dry-run", "--outdir", str(folder)],
        cwd=ROOT,
        env={**os.environ, **QUIET},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    return done.stdout, found - {"README.md"}  # wrangler's own, about the folder


def test_wrangler_accepts_the_tree_for_deployment(dry_run: tuple[str, set[str]]) -> None:
    said, uploaded = dry_run
    assert re.search(r"env\.DB \(fencepost\)", said)
    assert "entry.py" in uploaded


def test_a_deployment_uploads_the_sources_and_the_locked_packages_and_nothing_else(
    dry_run: tuple[str, set[str]],
) -> None:
    _, uploaded = dry_run
    sources = {str(path.relative_to(ROOT / "src")) for path in (ROOT / "src").rglob("*.py")}
    packages = locked_package_files()
    assert uploaded - packages == sources
    # Beside Python, the SDK's hook into the start of the interpreter.
    hook = "python_modules/_workers_sdk_patch_loader.pth"
    python = {name for name in packages if name.endswith(".py")}
    assert uploaded - sources == python | {hook}


def locked_package_files() -> set[str]:
    """What the packages of python-worker.lock brought, by their own records."""
    lock = (ROOT / "python-worker.lock").read_text()
    files: set[str] = set()
    for name, version in re.findall(r"^([\w-]+)==(\S+)", lock, re.MULTILINE):
        [record] = (ROOT / "python_modules").glob(
            f"{name.replace('-', '_')}-{version}.dist-info/RECORD"
        )
        files |= {f"python_modules/{row[0]}" for row in csv.reader(record.read_text().splitlines())}
    return files
