"""What refusals have in common: the documented answer, and not one row changed."""

from __future__ import annotations

import json
from typing import Any

from helpers import Client, Json, Sql, new_key

KEY_MISSING = (400, "IDEMPOTENCY_KEY_MISSING", "new-key")
KEY_INVALID = (400, "IDEMPOTENCY_KEY_INVALID", "new-key")
INVALID = (400, "INVALID_REQUEST", "never")
TOO_LARGE = (413, "TOO_LARGE", "never")
UNAUTHORIZED = (401, "UNAUTHORIZED", "never")
SCOPE_MISSING = (403, "SCOPE_MISSING", "never")
RUN_NOT_FOUND = (404, "RUN_NOT_FOUND", "never")
START_NOT_FOUND = (404, "START_NOT_FOUND", "never")
FENCE_LOST = (409, "FENCE_LOST", "never")

AGENT = {"kind": "agent", "id": "a", "thread_id": "t"}
OWNER = {"host_id": "h", "pid": 1, "nonce": "n"}


def verbs(run: Json) -> list[str]:
    return [f"/v1/runs/{run['run_id']}/{verb}" for verb in ("own", "heartbeat", "transition")]


class Refusals:
    """Sends something bad and checks everything that all refusals have in common."""

    def __init__(self, client: Client, sql: Sql) -> None:
        self.client = client
        self.sql = sql

    def __call__(
        self, method: str, path: str, expected: tuple[int, str, str], **options: Any
    ) -> Json:
        before = self.sql.dump()
        answer = self.client.request(method, path, **options)
        problem = check(answer.status_code, answer.headers, answer.text, expected)
        assert self.sql.dump() == before
        return problem

    def post(self, path: str, body: Any, expected: tuple[int, str, str], **options: Any) -> Json:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self("POST", path, expected, content=content, **options)

    def start(self, body: Any, expected: tuple[int, str, str]) -> Json:
        headers = {"Idempotency-Key": new_key()}
        return self.post("/v1/starts", body, expected, headers=headers)


def check(status: int, headers: Any, text: str, expected: tuple[int, str, str]) -> Json:
    problem: Json = json.loads(text)
    assert (status, problem["code"], problem["retry"]) == expected, text
    assert problem["status"] == status
    assert headers["Content-Type"] == "application/problem+json"
    assert headers["Cache-Control"] == "no-store"
    assert problem["type"].endswith(f"#{problem['code']}")
    assert problem["title"]
    assert problem["detail"]
    for word in ("Traceback", "SQLITE", "D1_", "SELECT"):
        assert word not in text
    return problem
