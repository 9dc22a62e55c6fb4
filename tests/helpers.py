"""What the tests share: a client, SQL, and a `Database` over the bridge (no fake of D1)."""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
import os
import re
import ssl
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import httpx

import conformance
from fencepost.schema import tables
from fencepost.storage.d1 import Database
from fencepost.storage.sql import Statement

_COUNTER = itertools.count()
Json = dict[str, Any]


# The Worker is spoken to in plain HTTP. A client without this loads all certificates: 40 ms.
NO_TLS = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


def connect(url: str, timeout: float = 60, **options: Any) -> httpx.Client:
    return httpx.Client(base_url=url, timeout=timeout, verify=NO_TLS, **options)


def connect_async(url: str, connections: int = 100) -> httpx.AsyncClient:
    limits = httpx.Limits(max_connections=connections)
    return httpx.AsyncClient(base_url=url, timeout=60, verify=NO_TLS, limits=limits)


def new_key(word: str = "key") -> str:
    """A key that no other test uses."""
    return f"{word}-{os.getpid()}-{next(_COUNTER)}"


def opaque(text: str) -> str:
    """A text as a cursor has it."""
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def an_owner(name: str = "") -> Json:
    return {"host_id": "host", "pid": 7, "nonce": name or new_key("nonce")}


def a_start(**members: Any) -> Json:
    return {"target": {"kind": "workflow", "id": "charge"}, "input": {"cents": 500}, **members}


class D1Failure(Exception):
    """As a JavaScript exception looks in Python: a message, and a chain of causes."""

    def __init__(self, message: str, causes: Sequence[str] = ()) -> None:
        super().__init__(message)
        self.message = message
        self.cause = D1Failure(causes[0], causes[1:]) if causes else None


class BridgeDatabase(Database):
    """The product's own `Database`; only the way to JavaScript is HTTP instead of the FFI."""

    def __init__(self, http: httpx.AsyncClient) -> None:
        super().__init__(binding=None)
        self._http = http
        self.statements: list[Statement] = []

    async def _send(self, statements: Sequence[Statement]) -> str:
        self.statements += statements
        body = [{"sql": each.sql, "params": each.params} for each in statements]
        answer = await self._http.post("/batch", json=body)
        if answer.status_code != 200:
            failure = answer.json()
            raise D1Failure(failure["message"], failure["causes"])
        return answer.text


# Rows of earlier tests do no harm: what is refused must leave them as they are, too.
RUNS_KEPT = 50
_COUNT_RUNS = "SELECT COUNT(*) AS n FROM fencepost_runs"
_CHANGES = "SELECT total_changes() AS n"
_SHAPE = "SELECT type, name, sql FROM sqlite_master ORDER BY name"
_ALTERS = re.compile(r"\b(CREATE|ALTER|DROP)\b", re.IGNORECASE)


def alters(statement: str) -> bool:
    """Whether an isolate may not know the schema any more after this."""
    return _ALTERS.search(statement) is not None


class Sql:
    """`sql("SELECT ...", value, ...)` gives the rows."""

    def __init__(self, http: httpx.Client) -> None:
        self._http = http
        # Whether a table, an index, ... has been made, altered or dropped since `restore`.
        self.altered = True
        # Whether all isolates have looked at the schema since then.
        self.trusted = False
        self._dumped: tuple[list[list[Json]], str] | None = None

    def __call__(self, text: str, *params: Any) -> list[Json]:
        rows: list[Json] = self.batch([(text, params)])[0]["results"]
        return rows

    def batch(self, statements: Sequence[tuple[str, Sequence[Any]]]) -> list[Json]:
        body = [{"sql": text, "params": list(params)} for text, params in statements]
        if any(alters(text) for text, _ in statements):
            self.altered, self._dumped = True, None
        answer = self._http.post("/batch", json=body)
        if answer.status_code != 200:
            failure = answer.json()
            raise D1Failure(failure["message"], failure["causes"])
        results: list[Json] = answer.json()
        return results

    def dump(self) -> str:
        """Every row of every table, as text: equal dumps are equal databases.

        One round trip while SQLite has counted no row as inserted, updated or deleted since the
        last dump, and the tables are the same: then so is the dump.
        """
        state = [result["results"] for result in self.batch([(_CHANGES, ()), (_SHAPE, ())])]
        if self._dumped is None or self._dumped[0] != state:
            shape = state[1]
            names = [row["name"] for row in shape if row["type"] == "table"]
            names = [name for name in names if name.startswith("fencepost")]
            selects = [(f"SELECT * FROM {name} ORDER BY 1, 2", ()) for name in names]
            rows = [result["results"] for result in self.batch(selects)] if selects else []
            self._dumped = state, json.dumps([shape, names, rows])
        return self._dumped[1]

    def restore(self) -> None:
        """The tables exist, if a test has dropped or altered any."""
        if self.altered:
            self.batch([(ddl, ()) for ddl in tables.STATEMENTS])
            self.altered = self.trusted = False

    def tidy(self) -> None:
        """The tables exist, the fence is open, and no more rows are left than a dump can bear."""
        self.restore()
        [_, runs] = self.batch([("DELETE FROM fencepost_fence", ()), (_COUNT_RUNS, ())])
        if runs["results"][0]["n"] > RUNS_KEPT:
            self.batch([(f"DELETE FROM {table}", ()) for table in tables.TABLES])

    def fence(self, state: str, **columns: Any) -> None:
        """Put the fence into a state; moving it over HTTP is not what the tests here are about."""
        row = {"proof_key": None, "proof_run_id": None, "revision": 1, **columns}
        self(
            "INSERT OR REPLACE INTO fencepost_fence "
            "(id, state, revision, proof_key, proof_run_id, updated_at_ms) "
            "VALUES ('deployment', ?1, ?2, ?3, ?4, 1000)",
            state,
            row["revision"],
            row["proof_key"],
            row["proof_run_id"],
        )

    def lapse(self, run_id: str) -> None:
        """Let the lease of a run end long ago."""
        self(
            "UPDATE fencepost_runs SET heartbeat_at_ms = 1, lease_expires_at_ms = 2 "
            "WHERE run_id = ?1",
            run_id,
        )


class Client:
    """HTTP to the Worker with a token; verbs named as in the routes. Every answer must be as the
    API document says.
    """

    PEOPLE: ClassVar = {
        "alice": ("service", "alice", ["start", "work", "read"]),
        "alice-rotated": ("service", "alice", ["start", "work", "read"]),
        "bob": ("service", "bob", ["start", "work", "read"]),
        "operator": ("human", "olga", ["start", "work", "read", "operate"]),
        "resolver": ("human", "rita", ["operate"]),
        "reader": ("service", "alice", ["read"]),
        "starter": ("service", "alice", ["start"]),
        "worker": ("service", "alice", ["work"]),
        "overseer": ("human", "olga", ["operate"]),
    }
    TOKENS: ClassVar = json.dumps(
        [
            {
                "sha256": hashlib.sha256(name.encode()).hexdigest(),
                "principal": {"kind": kind, "id": id},
                "scopes": scopes,
            }
            for name, (kind, id, scopes) in PEOPLE.items()
        ]
    )

    def __init__(
        self,
        http: httpx.Client,
        token: str = "alice",  # noqa: S107
        check: Callable[[str, str, httpx.Response], None] = conformance.check,
        more: dict[str, str] | None = None,
    ) -> None:
        """`check` looks at each answer; a test whose answers are not the Worker's gives its own.
        `more`: headers of every request.
        """
        self.http = http
        self.token = token
        self.check = check
        self.more = more or {}

    def as_(self, token: str) -> Client:
        return Client(self.http, token, self.check, self.more)

    def counting(self) -> Client:
        """This client, whose answers have `rows`."""
        return Client(self.http, self.token, self.check, {"X-Local-Rows": "1"})

    def request(self, method: str, path: str, **options: Any) -> httpx.Response:
        headers = {"Authorization": f"Bearer {self.token}", **self.more}
        headers |= options.pop("headers", {})
        answer = self.http.request(method, path, headers=headers, **options)
        self.check(method, answer.request.url.raw_path.decode(), answer)
        return answer

    def get(self, path: str, **options: Any) -> httpx.Response:
        return self.request("GET", path, **options)

    def post(self, path: str, body: Any = None, **options: Any) -> httpx.Response:
        content = json.dumps({} if body is None else body)
        return self.request("POST", path, content=content, **options)

    def start(self, key: str, body: Json | None = None, **headers: str) -> httpx.Response:
        all_headers = {"Idempotency-Key": key} | {
            name.replace("_", "-"): value for name, value in headers.items()
        }
        return self.post("/v1/starts", body or a_start(), headers=all_headers)

    def look(self, isolates: int = 2) -> None:
        """Let every isolate make a write that changes nothing: it looks at the schema before."""
        for isolate in range(isolates):
            headers = {"X-Local-Isolate": str(isolate)}
            body = {"expected": "open", "next": "open", "revision": 2**53 - 1}
            self.as_("operator").post("/v1/fence/transitions", body, headers=headers)

    def settle(self, sql: Sql) -> None:
        """Every isolate has found the schema current; nothing to do while nobody alters it."""
        if sql.altered or not sql.trusted:
            self.look()
            sql.trusted = not sql.altered

    def started(self, **members: Any) -> Json:
        """A new run that the caller owns: its RUN, with the key in `key`."""
        key = new_key()
        answer = self.start(key, a_start(**{"owner": an_owner(), **members}))
        assert answer.status_code == 201, answer.text
        run: Json = answer.json()["run"]
        return {**run, "key": key}

    def verb(self, run: Json, verb: str, **members: Any) -> httpx.Response:
        body = {"owner": run["owner"], **members}
        return self.post(f"/v1/runs/{run['run_id']}/{verb}", body)

    def operation(
        self, run: Json, verb: str, operation: str = "step", **members: Any
    ) -> httpx.Response:
        """A verb on an operation of the run, by the run's owner unless another is given."""
        path = f"/v1/runs/{run['run_id']}/operations/{operation}/{verb}"
        return self.post(path, {"owner": run["owner"], **members})

    def finish(self, run: Json, to: str = "completed", **members: Any) -> httpx.Response:
        return self.verb(run, "transition", to=to, **members)


def acquired(client: Client, run: Json, operation: str = "step", **members: Any) -> Json:
    answer = client.operation(run, "acquire", operation, **{"ttl_ms": 60_000, **members})
    assert answer.status_code == 200, answer.text
    body: Json = answer.json()
    return body


def round_trips(answer: httpx.Response) -> int:
    found = re.search(r'd1;desc="(\d+) round trips"', answer.headers["Server-Timing"])
    assert found
    return int(found[1])


def rows(answer: httpx.Response) -> tuple[int, int]:
    """(read, written) of the D1 batches of a request of a `counting` client."""
    found = re.search(r"(\d+) read, (\d+) written", answer.headers["X-Local-Rows"])
    assert found
    return int(found[1]), int(found[2])
