"""A client, and what all clients share: their tokens, and the starts that they know of."""

from __future__ import annotations

import hashlib
import itertools
import json
from collections import deque
from dataclasses import dataclass, field
from random import Random
from typing import Any

from soak.caller import Caller
from soak.client_knowledge import ENDED, Json
from soak.requests_and_answers import Answer, Request

PEOPLE = {
    "alice": ("service", "alice", ["start", "work", "read"]),
    "bob": ("agent", "bob", ["start", "work", "read"]),
    "operator": ("human", "olga", ["start", "work", "read", "operate"]),
}
TOKENS = json.dumps(
    [
        {
            "sha256": hashlib.sha256(token.encode()).hexdigest(),
            "principal": {"kind": kind, "id": id},
            "scopes": scopes,
        }
        for token, (kind, id, scopes) in PEOPLE.items()
    ]
)

RECENT_MAX = 200
OLD_MAX = 200


@dataclass(eq=False)
class Job:
    """A start: its key, whose it is, its body without an owner, and its run as last told."""

    key: str
    token: str
    body: Json
    run: Json = field(default_factory=dict)

    @property
    def run_id(self) -> str:
        return str(self.run["run_id"])

    @property
    def ended(self) -> bool:
        return self.run.get("status") in ENDED


class SharedStarts:
    """Starts that any client may take up: the recent ones, and some of all the old ones."""

    def __init__(self) -> None:
        self.recent: deque[Job] = deque(maxlen=RECENT_MAX)
        self.old: list[Job] = []
        self.added = 0
        # Runs that a purge may take, and those that it has taken from under a client.
        self.purgeable: set[str] = set()
        self.numbers = itertools.count()

    def add(self, job: Job, rng: Random) -> None:
        self.added += 1
        self.recent.append(job)
        if len(self.old) < OLD_MAX:
            self.old.append(job)
        elif rng.random() < OLD_MAX / self.added:
            self.old[rng.randrange(OLD_MAX)] = job

    def any_job(self, rng: Random) -> Job | None:
        jobs = self.recent if rng.random() < 0.8 else self.old
        return rng.choice(jobs) if jobs else None

    def live_job(self, rng: Random) -> Job | None:
        """One that had not ended when last seen."""
        jobs = [job for job in self.recent if not job.ended]
        return rng.choice(jobs) if jobs else None


class Client:
    """A client: its own chance, the way to the Worker, what all clients share."""

    def __init__(self, name: str, seed: int, caller: Caller, shared: SharedStarts) -> None:
        self.name = name
        self.rng = Random(f"{seed}/{name}")
        self.caller = caller
        self.shared = shared

    def new(self, word: str) -> str:
        """A name that nobody else uses."""
        return f"{word}-{next(self.shared.numbers)}"

    def new_owner(self) -> Json:
        host = f"host-{self.rng.randrange(3)}"
        return {"host_id": host, "pid": self.rng.randrange(9), "nonce": self.new("nonce")}

    async def post(self, path: str, body: Json | None = None, **options: Any) -> Answer:
        return await self.caller.ask(Request("POST", path, body or {}, **options), self.rng)

    async def post_of_a_run(self, path: str, body: Json, job: Job) -> Answer:
        """A verb of a run; half of them have a key, and some of those are sent once more."""
        options: dict[str, Any] = {"token": job.token, "may": self.gone(job)}
        if self.rng.random() < 0.5:
            return await self.post(path, body, **options)
        request = Request("POST", path, body, key=self.new("request"), **options)
        first = await self.caller.ask(request, self.rng)
        renewal = request.verb in ("heartbeat", "reconfirm", "renew", "assert")
        if first.won and not renewal and self.rng.random() < 0.3:
            again = await self.caller.ask(request, self.rng)
            wrote_nothing = first.outcome in ("shared", "replayed")
            if again.code not in ("RUN_NOT_FOUND", "EXECUTION_FENCED") and not wrote_nothing:
                self.caller.checker.saw_again(request, first, again)
        return first

    async def get(self, path: str, **options: Any) -> Answer:
        return await self.caller.ask(Request("GET", path, **options), self.rng)

    async def verb(self, job: Job, verb: str, **body: Any) -> Answer:
        """A verb on the run of a job; keeps the run in the answer."""
        path = f"/v1/runs/{job.run_id}/{verb}"
        return self.told(job, await self.post_of_a_run(path, body, job))

    def told(self, job: Job, answer: Answer) -> Answer:
        of_this_job = answer.run and answer.run["run_id"] == job.run.get("run_id", "")
        if answer.run is not None and of_this_job and not answer.replayed:
            job.run = answer.run
        return answer

    def gone(self, job: Job) -> frozenset[str]:
        """What may be answered about a run that a purge may take at any time."""
        purgeable = job.run.get("run_id") in self.shared.purgeable
        return frozenset({"RUN_NOT_FOUND", "START_ALREADY_SETTLED"} if purgeable else ())
