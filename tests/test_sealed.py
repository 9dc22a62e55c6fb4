"""A deployment that moves: not a byte changes where none may, whoever writes, however late."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest

from deployments import Deployment, import_all, moved
from fencepost import errors
from fencepost.http import routes
from fencepost.schema import guard
from helpers import BridgeDatabase, Client, Json, a_start, an_owner, connect_async, new_key
from mutations import KEYED, ROWS, Row
from worlds import World

# One worker has the two deployments; it begins early, as others wait for it.
pytestmark = [pytest.mark.waits, pytest.mark.xdist_group("move")]

TARGET_ID = "0" * 32
SEAL = {"target_id": TARGET_ID, "moved_to": "https://new.example"}
GETS = [route for route in routes.ROUTES if route.method == "GET" and route.scopes]


def worlds_of(source: Deployment) -> dict[str, World]:
    """A run made ready for each mutating route, in one database."""
    found = {}
    for name, row in ROWS.items():
        found[name] = World(source.alice, source.sql, row)
    source.sql("DELETE FROM fencepost_fence")
    return found


def sealed(source: Deployment, target_id: str = TARGET_ID) -> Json:
    source.sql.fence("migration-locked", revision=5)
    return source.done("seal", **{**SEAL, "target_id": target_id})


def is_moved(answer: httpx.Response) -> bool:
    said = answer.json()
    assert answer.headers["Fencepost-Moved"] == said["moved_to"] == SEAL["moved_to"]
    return (answer.status_code, said["code"]) == (503, "DEPLOYMENT_MOVED")


def test_every_post_to_a_sealed_deployment_is_told_where_it_has_moved(source: Deployment) -> None:
    worlds = worlds_of(source)
    acted = {}
    for name, row in KEYED.items():  # had their effect, and are sent again
        acted[name] = World(source.alice, source.sql, row)
        assert acted[name].act(acted[name].key()).status_code == row.won, name
    sealed(source)
    before = source.sql.dump()
    for name, world in worlds.items():
        assert is_moved(world.act()), name
        assert is_moved(world.act(world.key())), name
    for name, world in acted.items():
        assert is_moved(world.act(world.key())), name
    run = source.alice.get("/v1/runs").json()["items"][0]
    nobody = {"run_id": "none", "owner": an_owner()}
    for answer in (
        source.alice.verb(nobody, "heartbeat"),
        source.alice.verb(nobody, "transition", to="completed"),
        source.alice.operation(run, "assert", token=TARGET_ID),
        source.client.post("/v1/starts/none/release", {"owner": an_owner()}),
        source.client.post("/v1/transfer/prepare", {}),
        source.client.post("/v1/transfer/void", {"target_id": TARGET_ID}),
    ):
        assert is_moved(answer), answer.text
    assert source.sql.dump() == before


def test_every_get_of_a_sealed_deployment_is_answered_as_before_and_says_where_it_has_moved(
    source: Deployment,
) -> None:
    run = source.alice.started()
    source.alice.operation(run, "acquire", "step", ttl_ms=60_000).raise_for_status()
    paths = [
        route.pattern.format(op="step", category="runs", table="runs", **run) for route in GETS
    ]
    paths += ["/v1/runs/none", "/v1/starts/none", "/v1/health?deep=1"]
    before = {path: source.client.get(path) for path in paths}
    sealed(source)
    own = ("/v1/fence", "/v1/transfer", "/v1/health?deep=1", "/metrics", "/v1/audit")
    for path, was in before.items():
        answer = source.client.get(path)
        touched = path not in ("/v1/whoami", "/v1/health")  # these do not look at the database
        assert answer.headers.get("Fencepost-Moved") == (SEAL["moved_to"] if touched else None)
        if not path.startswith(own):
            assert (answer.status_code, answer.json()) == (was.status_code, was.json())
        head = source.client.http.head(path, headers={"Authorization": "Bearer operator"})
        assert head.headers.get("Fencepost-Moved") == answer.headers.get("Fencepost-Moved")


# Those that a locked fence admits; CI sends the others as well.
UNGATED = ("/v1/starts/", "cancel", "/v1/retention", "/v1/fence")
LATE = [
    pytest.param(name, marks=[] if any(each in name for each in UNGATED) else pytest.mark.soak)
    for name in ROWS
]


@pytest.mark.parametrize("name", LATE)
def test_a_write_that_lands_after_the_seal_comes_to_nothing(source: Deployment, name: str) -> None:
    row = ROWS[name]
    world = World(source.alice, source.sql, row)
    source.sql.fence("migration-locked", revision=5)
    faults = ["pass"] * row.reads_first + ["drop"]
    headers = {"Authorization": "Bearer operator"}
    rival = {"path": "/v1/transfer/seal", "headers": headers, "body": json.dumps(SEAL)}
    answer = world.act({"X-Local-Fault": ",".join(faults), "X-Local-Rival": json.dumps(rival)})
    if "X-Local-Rival" in answer.headers:
        assert answer.status_code == 503, answer.text
        assert answer.json()["code"] in ("DEPLOYMENT_MOVED", "WRITE_OUTCOME_UNKNOWN")
    else:  # it had no write to send under this fence
        sealed(source)
    before = source.sql.dump()
    assert is_moved(world.act())
    assert source.sql.dump() == before
    [act] = [entry for entry in source.rows("audit") if entry["action"] != "fence-transition"]
    assert act["action"] == "transfer-seal"


async def answered(answers: list[httpx.Response], number: int) -> None:
    for _ in range(6_000):
        if len(answers) >= number:
            return
        await asyncio.sleep(0.01)
    raise AssertionError("no answers")


@pytest.mark.anyio
async def test_under_load_nothing_changes_once_the_seal_is_set(source: Deployment) -> None:
    runs = [source.alice.started(lease_ms=3_600_000) for _ in range(8)]
    source.to("migration-locked")
    answers: list[httpx.Response] = []
    stop = asyncio.Event()

    async def load(http: httpx.AsyncClient, number: int) -> None:
        run = runs[number % len(runs)]
        path = f"/v1/runs/{run['run_id']}"
        requests: list[tuple[str, Json]] = [
            ("/v1/starts", a_start(owner=an_owner())),
            (f"{path}/heartbeat", {"owner": run["owner"]}),
            (f"/v1/starts/{run['key']}/release", {"owner": run["owner"]}),
            (f"{path}/cancel", {}),
            ("/v1/retention/purge", {}),
        ]
        while not stop.is_set():
            for at, body in requests:
                headers = {"Authorization": "Bearer operator", "Idempotency-Key": new_key()}
                answers.append(await http.post(at, json=body, headers=headers))

    async with connect_async(source.url, 20) as http:
        clients = [asyncio.create_task(load(http, number)) for number in range(10)]
        await answered(answers, 60)
        headers = {"Authorization": "Bearer operator"}
        seal = await http.post("/v1/transfer/seal", json=SEAL, headers=headers)
        assert seal.json()["phase"] == "sealed", seal.text
        before, sent = source.sql.dump(), len(answers)
        await answered(answers, sent + 120)
        stop.set()
        await asyncio.gather(*clients)
    assert source.sql.dump() == before
    late = [answer.json()["code"] for answer in answers[sent + 10 :]]
    assert set(late) == {"DEPLOYMENT_MOVED"}
    assert {answer.status_code for answer in answers} <= {200, 409, 503}


def test_the_cron_rests(source: Deployment, target: Deployment) -> None:
    source.alice.finish(source.alice.started()).raise_for_status()
    source.sql("UPDATE fencepost_runs SET finished_at_ms = 5")
    own = target.prepared()
    sealed(source, own)
    import_all(source, target)
    before = [side.sql.dump() for side in (source, target)]
    for side in (source, target):
        side.client.http.get("/cdn-cgi/handler/scheduled").raise_for_status()
    assert [side.sql.dump() for side in (source, target)] == before
    assert target.finish(source.status())[0] == 200
    before = [side.sql.dump() for side in (source, target)]
    target.client.http.get("/cdn-cgi/handler/scheduled").raise_for_status()
    assert [side.sql.dump() for side in (source, target)] == before
    target.to("open")
    target.client.http.get("/cdn-cgi/handler/scheduled").raise_for_status()
    assert target.rows("runs") == []


@pytest.mark.anyio
async def test_no_table_of_a_sealed_deployment_is_created_or_migrated(source: Deployment) -> None:
    sealed(source)
    source.sql("DROP INDEX fencepost_runs_by_age")
    before = source.sql.dump()
    async with connect_async(str(source.sql._http.base_url)) as http:
        with pytest.raises(errors.Sealed):
            await guard.ensure(BridgeDatabase(http))
    assert source.sql.dump() == before


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE fencepost_fence SET state = 'open', moved_to = NULL",
        "DELETE FROM fencepost_fence",
        "INSERT OR REPLACE INTO fencepost_fence (id, state, updated_at_ms) "
        "VALUES ('deployment', 'open', 1)",
        "DELETE FROM fencepost_transfer",
        "UPDATE fencepost_runs SET status = 'completed'",
        "INSERT OR IGNORE INTO fencepost_requests SELECT * FROM fencepost_requests",
        "DELETE FROM fencepost_reservations",
        "UPDATE OR IGNORE fencepost_snapshots SET state = '1'",
        "UPDATE fencepost_audit SET note = 'x'",
    ],
)
def test_plain_sql_cannot_write_to_a_sealed_deployment(source: Deployment, statement: str) -> None:
    """As an older build, a library or wrangler would send it."""
    run = source.alice.started()
    keyed = {"Idempotency-Key": new_key()}
    source.client.post(f"/v1/runs/{run['run_id']}/cancel", {}, headers=keyed).raise_for_status()
    sealed(source)
    before = source.sql.dump()
    with pytest.raises(Exception, match="FENCEPOST_SEALED"):
        source.sql(statement)
    assert source.sql.dump() == before


# --- A target ----------------------------------------------------------------------------


def refused(answer: httpx.Response, state: str) -> bool:
    said: Any = answer.json()
    return bool((answer.status_code, said.get("code"), said.get("state")) == (503, FENCED, state))


FENCED = "EXECUTION_FENCED"


def test_a_target_takes_nothing_but_the_commands_of_the_move_while_it_imports_and_when_it_is_void(
    source: Deployment, target: Deployment
) -> None:
    worlds = worlds_of(source)
    acted: dict[str, tuple[Row, World]] = {}
    for name, row in KEYED.items():
        world = World(source.alice, source.sql, row)
        world.act(world.key())
        acted[name] = row, world
    own = target.prepared()
    sealed(source, own)
    import_all(source, target)
    for world in [*worlds.values(), *(world for _, world in acted.values())]:
        world.client = target.alice
    for state in ("importing", "void"):
        before = target.sql.dump()
        for name, world in worlds.items():
            assert refused(world.act(), state), (state, name)
        for name, (_, world) in acted.items():
            assert refused(world.act(world.key()), state), (state, name)
        assert target.sql.dump() == before
        target.done("void", target_id=own)


def test_a_finished_target_that_is_not_open_writes_nothing_and_replays(
    source: Deployment, target: Deployment
) -> None:
    worlds = worlds_of(source)
    ended = source.alice.started()
    source.alice.finish(ended, result=1).raise_for_status()
    moved(source, target)
    before = target.sql.dump()
    for name, world in worlds.items():
        world.client = target.alice
        if name == "/v1/fence/transitions":
            continue  # which opens it
        answer = world.act()
        assert answer.status_code in (409, 503), (name, answer.text)
    assert target.alice.start(ended["key"]).json()["run"]["result"] == 1
    purged = Client(target.client.http, "operator").post("/v1/retention/purge", {})
    assert purged.status_code in (200, 503)
    assert target.sql.dump() == before
