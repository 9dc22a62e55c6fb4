"""Deployments of a move: each a Worker of its own, over a database of its own."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import httpx

from conftest import start_bridge, stop_bridge
from fencepost import copies
from fencepost.schema import seal_triggers, tables
from helpers import Client, Json, Sql, connect

COMMANDS = ("prepare", "seal", "finish", "void", "unseal")
OF_A_SEAL = ("target_id", "seal", "revision", "last_admitted_revision", "manifest")


class Deployment:
    """`client` is an operator who may start and work, too."""

    def __init__(self, http: httpx.Client, sql: Sql) -> None:
        self.url = str(http.base_url).rstrip("/")
        self.sql = sql
        self.client = Client(http, "operator")
        self.alice = self.client.as_("alice")

    def unchecked(self) -> Client:
        """Alice, whose answers are not compared with the API document: of thousands of them, most
        of the time would go into that.
        """
        return Client(self.alice.http, "alice", lambda *_: None)

    def empty(self, state: str = "open") -> None:
        """No rows, no triggers, and the fence as it is provisioned."""
        drops = [(statement.sql, ()) for statement in seal_triggers.drop()]
        creates = [(ddl, ()) for ddl in tables.STATEMENTS]
        rows = [(f"DELETE FROM {table}", ()) for table in tables.TABLES]
        self.sql.batch([*creates, *drops, *rows])
        self.sql.fence(state, revision=0)

    def to(self, state: str) -> Json:
        """Move the fence there, from wherever it is."""
        now = self.client.get("/v1/fence").json()["state"]
        answer = self.client.post("/v1/fence/transitions", {"expected": now, "next": state})
        assert answer.status_code == 200, answer.text
        moved: Json = answer.json()
        return moved

    def command(self, verb: str, **body: Any) -> tuple[int, Json]:
        answer = self.client.post(f"/v1/transfer/{verb}", body)
        return answer.status_code, answer.json()

    def done(self, verb: str, **body: Any) -> Json:
        status, said = self.command(verb, **body)
        assert status == 200, said
        return said

    def status(self) -> Json:
        said: Json = self.client.get("/v1/transfer").json()
        return said

    def prepared(self) -> str:
        """The id of this deployment, emptied and made a target."""
        self.empty("migration-locked")
        target_id: str = self.done("prepare")["deployment_id"]
        return target_id

    def sealed(self, target: Deployment, target_id: str) -> Json:
        """Lock and seal this deployment for a target: what it says then."""
        if self.client.get("/v1/fence").json()["state"] != "migration-locked":
            self.to("migration-locked")
        said = self.done("seal", target_id=target_id, moved_to=target.url)
        assert said["phase"] == "sealed"
        return said

    def pages(self, table: str) -> Iterator[Json]:
        cursor: str | None = ""
        while cursor is not None:
            query = {"cursor": cursor} if cursor else {}
            answer = self.client.get(f"/v1/transfer/{table}", params=query)
            assert answer.status_code == 200, answer.text
            page: Json = answer.json()
            yield page
            cursor = page["cursor"]

    def take(self, table: str, page: Json) -> tuple[int, Json]:
        answer = self.client.post(f"/v1/transfer/{table}", page)
        return answer.status_code, answer.json()

    def finish(self, seal: Json) -> tuple[int, Json]:
        return self.command("finish", **{name: seal[name] for name in OF_A_SEAL})

    def rows(self, table: str) -> list[Json]:
        return self.sql(f"SELECT * FROM fencepost_{table} ORDER BY 1, 2")


def import_all(
    source: Deployment, target: Deployment, names: Sequence[str] = copies.TABLES
) -> dict[str, int]:
    """Bring the rows of these tables over: how many were inserted."""
    inserted = dict.fromkeys(names, 0)
    for table in names:
        for page in source.pages(table):
            status, said = target.take(table, page)
            assert status == 200, said
            inserted[table] += said["inserted"]
    return inserted


def moved(source: Deployment, target: Deployment) -> Json:
    """The whole move, up to `finish`: the seal."""
    seal = source.sealed(target, target.prepared())
    import_all(source, target)
    status, said = target.finish(seal)
    assert (status, said["phase"]) == (200, "finished"), said
    return seal


@contextmanager
def deployment(**options: Any) -> Iterator[Deployment]:
    process, addresses = start_bridge(tokens=Client.TOKENS, **options)
    try:
        with connect(addresses["url"]) as http, connect(addresses["sql"]) as sql:
            yield Deployment(http, Sql(sql))
    finally:
        stop_bridge(process)


def text_of(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
