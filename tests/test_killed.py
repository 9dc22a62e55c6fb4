"""The Worker killed outright, again and again, between commits and their replies.

Lost replies are made elsewhere (test_lost_replies.py) and hit one request at a time. Here the
whole process dies, with every request that it was serving, and what a commit left on the disk is
all that is left. Clients do as a sensible client does: the same key, the same owner, until there
is an answer.
"""

from __future__ import annotations

import json
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from pathlib import Path

import httpx
import pytest

from helpers import Json, a_start, an_owner
from local_runner import DEV, wrangler_sql
from soak.runner import Runner, living

CLIENTS, RUNS, KILLS = 4, 200, 30
# A reply leaves some 2 ms after its commit.
KILL_WITHIN_S = 0.004
# Runs that are left for sure when the last kill is due, so that it meets requests.
LEFT_AT_LAST = 40
RETRY_EVERY_S = 0.1
GIVE_UP_AFTER_S = 900


class Fleet:
    """The clients. Each run is started and finished by one of them."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.lock = threading.Lock()
        self.numbers = iter(range(RUNS))
        self.finished = self.answered = 0
        self.seen: Counter[str] = Counter()
        self.run_ids: dict[str, str] = {}
        self.stopped = threading.Event()

    def note(self, what: str) -> None:
        with self.lock:
            self.seen[what] += 1

    def work(self) -> None:
        with httpx.Client(base_url=self.url, headers=DEV, timeout=30) as http:
            while True:
                with self.lock:
                    number = next(self.numbers, None)
                if number is None:
                    return
                self.one(http, number)
                with self.lock:
                    self.finished += 1

    def one(self, http: httpx.Client, number: int) -> None:
        """Start and finish one run, and take no answer that an undisturbed one would not get."""
        key, owner = f"key-{number}", an_owner(f"owner-{number}")
        body = json.dumps(a_start(input=number, owner=owner))
        headers = {"Idempotency-Key": key}
        answer, unsure = self.ask(lambda: http.post("/v1/starts", headers=headers, content=body))
        assert answer.status_code in ((200, 201) if unsure else (201,)), answer.text
        assert answer.json()["outcome"] == "started"
        if answer.status_code == 200:
            self.note("start had landed")
        run = answer.json()["run"]
        self.run_ids[key] = run["run_id"]

        path = f"/v1/runs/{run['run_id']}"
        end = json.dumps({"owner": owner, "to": "completed", "result": {"of": number}})
        answer, unsure = self.ask(lambda: http.post(f"{path}/transition", content=end))
        if unsure and answer.status_code == 409:
            assert answer.json()["outcome"] == "fence_lost", answer.text
            self.note("end had landed")
            answer, _ = self.ask(lambda: http.get(path))
            assert answer.json()["status"] == "completed", answer.text
            assert answer.json()["result"] == {"of": number}
            return
        assert answer.status_code == 200, answer.text

    def ask(self, send: Callable[[], httpx.Response]) -> tuple[httpx.Response, bool]:
        """Send until there is an answer. Also: whether a try before it may have had an effect."""
        unsure = False
        while not self.stopped.is_set():
            try:
                answer = send()
            except httpx.ConnectError:
                self.note("not connected")
            except httpx.TransportError:
                unsure = True
                self.note("reply lost")
            else:
                with self.lock:
                    self.answered += 1
                if answer.status_code != 503:
                    return answer, unsure
                assert answer.json()["retry"] == "same-key"
                unsure |= answer.json()["code"] == "WRITE_OUTCOME_UNKNOWN"
                self.note(answer.json()["code"])
            time.sleep(RETRY_EVERY_S)
        raise AssertionError("the test ended before there was an answer")


def kill_at_random(runner: Runner, fleet: Fleet, working: list[Future[None]], seed: int) -> int:
    """KILLS times, spread over the runs: see a commit, wait for less than its reply, kill."""
    chance = random.Random(seed)  # noqa: S311
    kills, answered, deadline = 0, 0, time.monotonic() + GIVE_UP_AFTER_S
    for due in sorted(chance.sample(range(RUNS - LEFT_AT_LAST), KILLS)):
        while fleet.finished < due or fleet.answered == answered:
            assert runner.process.poll() is None, "the runner ended by itself"
            assert not any(client.done() for client in working), "a client ended early"
            assert time.monotonic() < deadline, f"{fleet.finished} runs after {kills} kills"
            time.sleep(0.005)
        before = runner.commits()
        while runner.commits() == before:
            assert runner.process.poll() is None, "the runner ended by itself"
            assert not any(client.done() for client in working), "a client ended early"
        time.sleep(chance.uniform(0, KILL_WITHIN_S))
        runner.end(signal.SIGKILL)
        kills, answered = kills + 1, fleet.answered
        runner.start()
    return kills


@pytest.mark.soak
def test_a_worker_killed_30_times_loses_no_run_and_starts_none_twice(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    seed, began = random.SystemRandom().randrange(10**6), time.monotonic()
    runner = Runner(tmp_path)
    fleet = Fleet(runner.url)
    runner.start()
    try:
        with ThreadPoolExecutor(CLIENTS) as threads:
            try:
                working = [threads.submit(fleet.work) for _ in range(CLIENTS)]
                try:
                    kills = kill_at_random(runner, fleet, working, seed)
                    wait(working, timeout=GIVE_UP_AFTER_S, return_when=FIRST_EXCEPTION)
                finally:
                    fleet.stopped.set()
            finally:
                for client in working:
                    client.result(timeout=60)  # what a client saw says more than the killer
        assert (kills, fleet.finished) == (KILLS, RUNS)
        over_http(fleet)
    finally:
        runner.end(signal.SIGINT)
    branches = Counter(
        json.loads(line)["branch"]
        for line in runner.log.read_text().splitlines()
        if line.startswith("{") and line.endswith("}")
    )
    seconds = time.monotonic() - began
    with capsys.disabled():
        print(
            f"\nkills {kills}, seed {seed}, {dict(fleet.seen)}, "
            f"branches {dict(branches)}, {seconds:.0f} s"
        )
    # Kills came between a commit and its reply, not beside the work.
    assert fleet.seen["start had landed"] + fleet.seen["end had landed"] >= KILLS // 3
    in_the_database(fleet, runner.persist)
    assert not [name for group in runner.groups for name in living(group).values()]


def over_http(fleet: Fleet) -> None:
    with httpx.Client(base_url=fleet.url, headers=DEV, timeout=60) as http:
        for number in range(RUNS):
            run_id = fleet.run_ids[f"key-{number}"]
            run: Json = http.get(f"/v1/runs/{run_id}").json()
            assert (run["status"], run["result"]) == ("completed", {"of": number})
            assert (run["state"], run["generation"]) == (number, 1)
            integrity = http.get(f"/v1/runs/{run_id}/integrity").json()
            assert (integrity["intact"], integrity["events"]) == (True, 2), integrity
            again = http.post(
                "/v1/starts",
                headers={"Idempotency-Key": f"key-{number}"},
                content=json.dumps(a_start(input=number)),
            )
            assert (again.status_code, again.json()["outcome"]) == (200, "replayed")
            assert again.json()["run"]["run_id"] == run_id


def in_the_database(fleet: Fleet, persist: Path) -> None:
    reservations = wrangler_sql(
        persist, "SELECT key, run_id, state, attempt FROM fencepost_reservations"
    )
    assert {row["key"]: row["run_id"] for row in reservations} == fleet.run_ids
    assert len(reservations) == len({row["run_id"] for row in reservations}) == RUNS
    assert {(row["state"], row["attempt"]) for row in reservations} == {("terminal", 1)}
    [counts] = wrangler_sql(
        persist,
        "SELECT (SELECT COUNT(*) FROM fencepost_runs) AS runs, "
        "(SELECT COUNT(*) FROM fencepost_runs WHERE status = 'completed' AND generation = 1) "
        "AS completed, (SELECT COUNT(*) FROM fencepost_events) AS events, "
        "(SELECT COUNT(*) FROM fencepost_ownership WHERE type = 'activated') AS grants",
    )
    assert counts == {"runs": RUNS, "completed": RUNS, "events": 2 * RUNS, "grants": RUNS}
