"""A run made ready for a row of `mutations.ROWS`, what its rows come to, what an answer says."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

import httpx

from fencepost.schema import tables
from helpers import Client, Json, Sql, an_owner, connect, new_key
from mutations import Row, Send


class World:
    """One run, made ready for a row."""

    def __init__(self, client: Client, sql: Sql, row: Row) -> None:
        self.client, self.sql, self.row = client, sql, row
        sql.batch([("DELETE FROM fencepost_fence", ()), ("DELETE FROM fencepost_audit", ())])
        self.run = client.started()
        self.run |= {name: new_key(name) for name in ("new", "new2", "named", "provisional")}
        self.run |= {name: an_owner() for name in ("other", "third")}
        row.prepare(client, sql, self.run)

    def act(self, headers: dict[str, str] | None = None, token: str = "") -> httpx.Response:
        """The mutation; by another token of its sender if one is given."""
        client = self.client.as_(token) if token else self.client
        return self.row.send(client, self.run, headers or {})

    def key(self) -> dict[str, str]:
        """The header that names the mutation, once and for all of its retries."""
        return {"Idempotency-Key": self.run["named"]}

    def effects(self) -> list[str]:
        """All rows of the run, of what its new key started, of the fence and the audit: without
        what differs from run to run (times, hashes, tokens), and with roles for the names.
        """
        run, names = self.run, ("key", "new", "new2", "named", "provisional")
        about = (run["run_id"], run["key"], run["new"])
        batch = [(sql, about if "?1" in sql else ()) for sql in (_RUNS, *_ROWS)]
        runs, *results = (result["results"] for result in self.sql.batch(batch))
        rows = [row for result in results for row in result]
        _check_chains(rows)
        roles = {row["run_id"]: f"<run {number}>" for number, row in enumerate(runs)}
        roles |= {run[name]: f"<{name}>" for name in names}
        roles |= {run[name]["nonce"]: f"<{name}>" for name in ("owner", "other", "third")}
        named = re.compile("|".join(map(re.escape, roles)))
        return sorted(
            timeless(named.sub(lambda match: roles[match[0]], _plain(row))) for row in rows
        )


_RUNS = """
SELECT ?1 AS run_id UNION ALL
SELECT DISTINCT run_id FROM fencepost_reservations WHERE key IN (?2, ?3) AND run_id <> ?1
"""
_WHOLE = ("fencepost_fence", "fencepost_audit", "fencepost_transfer")
_ROWS = [
    f"SELECT '{name}' AS of, * FROM {name}"
    + ("" if name in _WHOLE else f" WHERE run_id IN ({_RUNS})")
    for name in tables.TABLES
]


def _check_chains(rows: Sequence[Json]) -> None:
    events = [row for row in rows if row["of"] == "fencepost_events"]
    hashes = {(event["run_id"], event["sequence"]): event["hash"] for event in events}
    for event in events:
        before = (event["run_id"], event["sequence"] - 1)
        assert event["sequence"] == 1 or event["prior_hash"] == hashes[before]


def _plain(row: Json) -> str:
    drop = re.compile(r".*(hash|token|sha256|receipt)|claim_nonce|id|note|answer")
    if row["of"] == "fencepost_requests":
        row = {**row, "fingerprint": ""}  # of a body that names other runs
    shown = {
        name: value is not None if name.endswith("_ms") else value
        for name, value in row.items()
        if not drop.fullmatch(name)
    }
    return json.dumps(shown)


def said(answer: httpx.Response | Json) -> Any:
    """What an answer says: its status, and the outcome or what the problem is."""
    if isinstance(answer, httpx.Response):
        answer = {"status": answer.status_code, "body": answer.json()}
    body = answer["body"]
    return answer["status"], body.get("outcome") or body.get("code") or timeless(json.dumps(body))


def timeless(text: str) -> str:
    return re.sub(r"\b\d{13}\b", "<time>", text)


def spelled(send: Send, run: Json) -> str:
    """A request as the runner's header X-Local-Rival takes it."""
    sent: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        sent.append(request)
        return httpx.Response(200, json={})

    with connect("http://rival", transport=httpx.MockTransport(answer)) as http:
        send(Client(http, check=lambda *_: None), run, {})
    headers = {name: value for name, value in sent[0].headers.items() if name != "host"}
    body = sent[0].content.decode()
    return json.dumps({"path": sent[0].url.raw_path.decode(), "headers": headers, "body": body})
