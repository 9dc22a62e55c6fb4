"""Sends a request as a sensible client does: the same one again, until there is an answer."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from random import Random

import httpx

from soak.answer_checker import AnswerChecker
from soak.client_knowledge import ClientKnowledge
from soak.requests_and_answers import FAULTY, Answer, Request

FAULT_SHARE = 0.15
FAULTS = ("pass", "lost", "drop")
FAULTS_MAX = 4
# Longer than any wait that a client asks for, on a busy machine.
ANSWER_WITHIN_S = 60
RETRY_AFTER_S = 0.05
# The fence opens again soon; a client that meets it asks this often, then goes its way.
FENCED_TRIES, FENCED_RETRY_AFTER_S = 8, 0.3


class Stopped(Exception):
    """The soak ends: clients stop where they are."""


class Caller:
    """The way of all clients to the Worker; every answer is checked before it is handed on."""

    def __init__(self, url: str, checker: AnswerChecker) -> None:
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=40)
        self._http = httpx.AsyncClient(base_url=url, timeout=ANSWER_WITHIN_S, limits=limits)
        self.checker = checker
        self.stopped = False
        self.counts: Counter[str] = Counter()
        self.codes: Counter[str] = Counter()
        self.slowest_s = 0.0

    @property
    def knowledge(self) -> ClientKnowledge:
        return self.checker.knowledge

    async def close(self) -> None:
        await self._http.aclose()

    async def ask(
        self,
        request: Request,
        rng: Random,
        *,
        faulty: bool = True,
        fenced_tries: int = FENCED_TRIES,
    ) -> Answer:
        """Raises Stopped at the end of the soak."""
        unsure, fenced = False, 0
        while not self.stopped:
            faults = _faults(rng) if faulty else None
            answer, may_have_landed = await self._try(request, faults, unsure)
            unsure |= may_have_landed
            if answer is not None and answer.code == "EXECUTION_FENCED":
                fenced += 1
                if fenced < fenced_tries:
                    await asyncio.sleep(FENCED_RETRY_AFTER_S)
                    continue
            if answer is not None and answer.code not in {*FAULTY, "CONTENDED"}:
                return answer
            await asyncio.sleep(RETRY_AFTER_S)
        raise Stopped

    async def _try(
        self, request: Request, faults: str | None, unsure: bool
    ) -> tuple[Answer | None, bool]:
        """One try: the answer, if there is one, and whether it may have had an unknown effect."""
        sent, began = self.knowledge.tick(), time.monotonic()
        try:
            response = await self._send(request, faults)
            body = response.json() if "json" in response.headers["content-type"] else response.text
        except httpx.ConnectError:
            self.counts["not connected"] += 1
            return None, False
        except httpx.TimeoutException:
            self.checker.findings.add("every_request_is_answered", f"{request} was not")
            return None, True
        except httpx.TransportError:
            self.counts["cut off"] += 1
            return None, True
        self.slowest_s = max(self.slowest_s, time.monotonic() - began - (request.wait_s or 0))
        self.counts["answers"] += 1
        self.counts["faults"] += faults is not None
        replayed = "Idempotent-Replayed" in response.headers
        answer = Answer(response.status_code, body, sent, faults, unsure, replayed)
        self.codes[answer.code or str(answer.status)] += 1
        self.checker.answered(request, answer)
        return answer, answer.code == "WRITE_OUTCOME_UNKNOWN"

    async def _send(self, request: Request, faults: str | None) -> httpx.Response:
        headers = {"Authorization": f"Bearer {request.token}"}
        if request.key is not None:
            headers["Idempotency-Key"] = request.key
        if request.wait_s is not None:
            headers["Prefer"] = f"wait={request.wait_s}"
        if faults is not None:
            headers["X-Local-Fault"] = faults
        content = None if request.body is None else json.dumps(request.body)
        return await self._http.request(
            request.method, request.path, headers=headers, content=content
        )


def _faults(rng: Random) -> str | None:
    if rng.random() >= FAULT_SHARE:
        return None
    return ",".join(rng.choice(FAULTS) for _ in range(rng.randint(1, FAULTS_MAX)))
