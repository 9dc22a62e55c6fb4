"""Operations (contracts 4): leased, replayable steps of a run; a sentence a rule.

The first part drives the module with a clock of its own (`now_ms`), over the real D1; the second
is HTTP; the last races over two isolates.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from typing import Any

import httpx
import pytest

from fencepost import journal, leases, operations, ownership, starts, transition
from fencepost.decision import Start, fingerprint
from fencepost.errors import Fenced, MissingTable, NotFound
from fencepost.identifiers import Principal, Target, is_operation_id
from fencepost.operations import Operation, OperationState, Outcome, Step
from fencepost.ownership import Evidence
from fencepost.runs import Owner, RunStatus
from helpers import BridgeDatabase, Client, Json, Sql, an_owner, new_key

pytestmark = pytest.mark.anyio

ALICE, BOB = Principal("service", "alice"), Principal("service", "bob")
HOST, ELSEWHERE = Owner("host", 1, "first"), Owner("elsewhere", 2, "second")
TTL_MS = 50
T0 = 2_000_000_000_000
NOTHING, SOMETHING = journal.digest(None), journal.digest({"cents": 500})


class Bench:
    """A run that HOST started at T0, a clock, and the verbs on its operation `step`."""

    def __init__(self, db: BridgeDatabase, run_id: str) -> None:
        self.db, self.now_ms = db, T0
        self.step = Step(run_id, ALICE, HOST, "step")
        self.found: Operation | None = None

    @property
    def operation(self) -> Operation:
        assert self.found is not None
        return self.found

    async def verb(self, verb: Any, *values: Any, **options: Any) -> Outcome:
        step = self.step._replace(**options.pop("as_", {}))
        outcome, self.found = await verb(self.db, step, *values, now_ms=self.now_ms, **options)
        result: Outcome = outcome
        return result

    async def acquire(self, payload: str = NOTHING, ttl_ms: int = TTL_MS, **options: Any) -> Any:
        return await self.verb(leases.acquire, payload, ttl_ms, **options)

    async def leased(self) -> str:
        assert await self.acquire() is Outcome.ACQUIRED
        return self.operation.lease_token

    async def read(self) -> Operation:
        run_id, viewer, _, id = self.step
        return await operations.read(self.db, run_id, viewer, id, now_ms=self.now_ms)


@pytest.fixture
async def bench(db: BridgeDatabase) -> Bench:
    target = Target("workflow", "w")
    start = Start(new_key(), ALICE, target, fingerprint(target, None, None), "null", HOST, 30_000)
    _, seen = await starts.start(db, start, now_ms=T0)
    assert seen.run is not None
    return Bench(db, seen.run.run_id)


# --- Acquiring ---------------------------------------------------------------------------


async def test_a_new_operation_is_leased_from_now_on(bench: Bench) -> None:
    assert await bench.acquire(SOMETHING) is Outcome.ACQUIRED
    found = bench.operation
    assert (found.id, found.kind, found.state) == ("step", "lease", OperationState.RUNNING)
    assert (found.payload_fingerprint, found.outcome_json) == (SOMETHING, None)
    assert found.lease_expires_at_ms == T0 + TTL_MS


async def test_a_live_lease_is_shared_as_it_is(bench: Bench, sql: Sql) -> None:
    token, before = await bench.leased(), sql.dump()
    bench.now_ms += TTL_MS
    assert await bench.acquire(ttl_ms=9000) is Outcome.SHARED
    assert (bench.operation.lease_token, bench.operation.lease_expires_at_ms) == (
        token,
        T0 + TTL_MS,
    )
    assert sql.dump() == before


async def test_a_live_lease_is_preempted_and_its_token_is_stale(bench: Bench) -> None:
    token = await bench.leased()
    assert await bench.acquire(preempt=True) is Outcome.ACQUIRED
    replacement = bench.operation.lease_token
    assert replacement != token
    assert await bench.verb(leases.assert_held, token) is Outcome.LEASE_FENCED
    assert await bench.verb(leases.commit, token, "1") is Outcome.LEASE_FENCED
    assert await bench.verb(leases.commit, replacement, "2") is Outcome.COMMITTED


async def test_whoever_wants_it_alone_is_refused_while_a_lease_holds(
    bench: Bench, sql: Sql
) -> None:
    token, before = await bench.leased(), sql.dump()
    bench.now_ms += TTL_MS
    assert await bench.acquire(exclusive=True) is Outcome.OPERATION_ALREADY_RUNNING
    assert sql.dump() == before
    bench.now_ms += 1
    assert await bench.acquire(exclusive=True) is Outcome.ACQUIRED
    assert bench.operation.lease_token != token


@pytest.mark.parametrize("options", [{}, {"preempt": True}, {"exclusive": True}], ids=str)
async def test_an_interrupted_operation_is_leased_anew(bench: Bench, options: Json) -> None:
    token = await bench.leased()
    assert await bench.verb(leases.interrupt, token) is Outcome.INTERRUPTED
    assert bench.operation.state is OperationState.INTERRUPTED
    assert await bench.acquire(**options) is Outcome.ACQUIRED
    assert bench.operation.lease_token != token


@pytest.mark.parametrize("state", ["running", "lapsed", "interrupted", "committed"])
@pytest.mark.parametrize("options", [{}, {"preempt": True}, {"exclusive": True}], ids=str)
async def test_another_payload_conflicts_in_every_state(
    bench: Bench, state: str, options: Json
) -> None:
    token = await bench.leased()
    if state == "interrupted":
        await bench.verb(leases.interrupt, token)
    elif state == "committed":
        await bench.verb(leases.commit, token, "1")
    elif state == "lapsed":
        bench.now_ms += TTL_MS + 1
    assert await bench.acquire(SOMETHING, **options) is Outcome.OPERATION_CONFLICT
    assert bench.operation.payload_fingerprint == NOTHING


@pytest.mark.parametrize("options", [{}, {"preempt": True}, {"exclusive": True}], ids=str)
async def test_a_committed_outcome_is_replayed_and_never_erased(
    bench: Bench, sql: Sql, options: Json
) -> None:
    await bench.verb(leases.commit, await bench.leased(), '{"a":1}')
    before = sql.dump()
    bench.now_ms += 86_400_000
    assert await bench.acquire(**options) is Outcome.REPLAYED
    assert bench.operation.outcome_json == '{"a":1}'
    assert sql.dump() == before


# --- The verbs with a token --------------------------------------------------------------


async def test_renewing_lengthens_and_never_shortens(bench: Bench) -> None:
    token = await bench.leased()
    bench.now_ms += 10
    assert await bench.verb(leases.renew, token, TTL_MS) is Outcome.RENEWED
    assert bench.operation.lease_expires_at_ms == T0 + TTL_MS + 10
    assert await bench.verb(leases.renew, token, 1) is Outcome.RENEWED
    assert bench.operation.lease_expires_at_ms == T0 + TTL_MS + 10


WITH_TOKEN = {
    "renew": (leases.renew, (9000,), Outcome.RENEWED),
    "assert": (leases.assert_held, (), Outcome.ASSERTED),
    "commit": (leases.commit, ("1",), Outcome.COMMITTED),
    "interrupt": (leases.interrupt, (), Outcome.INTERRUPTED),
}


@pytest.mark.parametrize("name", WITH_TOKEN)
async def test_a_lease_that_ends_exactly_now_holds(bench: Bench, name: str) -> None:
    verb, more, won = WITH_TOKEN[name]
    token = await bench.leased()
    bench.now_ms += TTL_MS
    assert await bench.verb(verb, token, *more) is won


@pytest.mark.parametrize("name", WITH_TOKEN)
async def test_a_lease_that_lapsed_is_fenced_and_every_write_marks_it(
    bench: Bench, name: str
) -> None:
    verb, more, _ = WITH_TOKEN[name]
    token = await bench.leased()
    bench.now_ms += TTL_MS + 1
    assert await bench.verb(verb, token, *more) is Outcome.LEASE_FENCED
    marked = name != "assert"
    assert ((await bench.read()).state is OperationState.INTERRUPTED) is marked
    assert (await bench.read()).outcome_json is None


@pytest.mark.parametrize("name", WITH_TOKEN)
async def test_a_wrong_token_is_fenced_and_writes_nothing(
    bench: Bench, sql: Sql, name: str
) -> None:
    verb, more, _ = WITH_TOKEN[name]
    token = await bench.leased()
    before = sql.dump()
    for wrong in ("0" * 32, token.upper() + "x", token + " "):
        assert await bench.verb(verb, wrong, *more) is Outcome.LEASE_FENCED
    assert sql.dump() == before


@pytest.mark.parametrize("name", WITH_TOKEN)
@pytest.mark.parametrize("end", ["commit", "interrupt"])
async def test_after_the_end_of_a_lease_its_token_is_fenced(
    bench: Bench, sql: Sql, name: str, end: str
) -> None:
    verb, more, _ = WITH_TOKEN[name]
    token = await bench.leased()
    ending, values, _ = WITH_TOKEN[end]
    await bench.verb(ending, token, *(["2"] if values else []))
    before = sql.dump()
    assert await bench.verb(verb, token, *more) is Outcome.LEASE_FENCED
    assert sql.dump() == before


async def test_a_retry_of_ones_own_commit_converges_and_another_outcome_does_not(
    bench: Bench, sql: Sql
) -> None:
    token = await bench.leased()
    assert await bench.verb(leases.commit, token, "1") is Outcome.COMMITTED
    before = sql.dump()
    bench.now_ms += TTL_MS + 1
    assert await bench.verb(leases.commit, token, "1") is Outcome.COMMITTED
    assert await bench.verb(leases.commit, token, "2") is Outcome.LEASE_FENCED
    assert await bench.verb(leases.commit, "other", "1") is Outcome.LEASE_FENCED
    assert sql.dump() == before


async def test_asserting_writes_nothing(bench: Bench, sql: Sql) -> None:
    token, before = await bench.leased(), sql.dump()
    assert await bench.verb(leases.assert_held, token) is Outcome.ASSERTED
    assert sql.dump() == before


async def test_a_lease_51_ms_past_its_50_ms_ttl_is_seen_as_lapsed_and_its_token_is_fenced(
    bench: Bench, sql: Sql
) -> None:
    """Contract case 30; only that looking at it writes nothing."""
    token = await bench.leased()
    bench.now_ms += 51
    before = sql.dump()
    assert (await bench.read()).lapsed
    assert sql.dump() == before
    replacement = await bench.leased()
    assert await bench.verb(leases.commit, token, '"stale"') is Outcome.LEASE_FENCED
    assert await bench.verb(leases.commit, replacement, '"mine"') is Outcome.COMMITTED
    assert (await bench.read()).outcome_json == '"mine"'


async def test_taking_over_a_lapsed_lease_interrupts_it_first_in_the_same_batch(
    bench: Bench,
) -> None:
    await bench.leased()
    bench.now_ms += TTL_MS + 1
    bench.db.statements.clear()
    trips = bench.db.round_trips
    await bench.leased()
    assert bench.db.round_trips == trips + 1
    first, second = (statement.sql for statement in bench.db.statements[:2])
    assert "state = 'interrupted'" in first
    assert second.lstrip().startswith("INSERT INTO fencepost_operations")


# --- Whose it is -------------------------------------------------------------------------

NOT_THE_OWNER = {
    "another host": Owner("h", HOST.pid, HOST.nonce),
    "another pid": Owner(HOST.host_id, 9, HOST.nonce),
    "another nonce": Owner(HOST.host_id, HOST.pid, "n"),
}


@pytest.mark.parametrize("who", NOT_THE_OWNER)
async def test_only_the_whole_owner_of_the_run_drives_it(bench: Bench, sql: Sql, who: str) -> None:
    token = await bench.leased()
    bench.now_ms += TTL_MS + 1
    before, as_ = sql.dump(), {"owner": NOT_THE_OWNER[who]}
    wishes: list[Json] = [{}, {"preempt": True}, {"exclusive": True}]
    for options in wishes:
        assert await bench.acquire(as_=as_, **options) is Outcome.FENCE_LOST
    assert await bench.acquire(as_={**as_, "id": "new"}) is Outcome.FENCE_LOST
    for verb, more, _ in WITH_TOKEN.values():
        assert await bench.verb(verb, token, *more, as_=as_) is Outcome.FENCE_LOST
    assert sql.dump() == before


@pytest.mark.parametrize("to", [RunStatus.SUSPENDED, RunStatus.COMPLETED])
async def test_a_run_that_does_not_run_has_nobody_to_drive_its_operations(
    bench: Bench, sql: Sql, to: RunStatus
) -> None:
    token = await bench.leased()
    change = transition.Transition(HOST, to)
    await transition.transition(bench.db, bench.step.run_id, ALICE, change, now_ms=T0)
    before = sql.dump()
    assert await bench.acquire() is Outcome.FENCE_LOST
    for verb, more, _ in WITH_TOKEN.values():
        assert await bench.verb(verb, token, *more) is Outcome.FENCE_LOST
    assert sql.dump() == before


async def test_a_process_that_took_the_run_over_replays_what_the_dead_one_committed(
    bench: Bench,
) -> None:
    await bench.verb(leases.commit, await bench.leased(), "7")
    bench.now_ms = T0 + 30_001
    owned, _ = await ownership.own(
        bench.db,
        bench.step.run_id,
        ALICE,
        ELSEWHERE,
        evidence=Evidence("lease-expired", HOST),
        now_ms=bench.now_ms,
    )
    assert owned == "owned"
    assert await bench.acquire() is Outcome.FENCE_LOST
    assert await bench.acquire(as_={"owner": ELSEWHERE}) is Outcome.REPLAYED
    assert bench.operation.outcome_json == "7"


async def test_a_strangers_run_is_not_there(bench: Bench) -> None:
    token, as_ = await bench.leased(), {"viewer": BOB}
    for verb, more, _ in WITH_TOKEN.values():
        with pytest.raises(NotFound) as lost:
            await bench.verb(verb, token, *more, as_=as_)
        assert lost.value.code == "RUN_NOT_FOUND"
    with pytest.raises(NotFound):
        await bench.acquire(as_=as_)
    with pytest.raises(NotFound) as lost:
        await operations.read(bench.db, bench.step.run_id, BOB, "step")
    assert lost.value.code == "RUN_NOT_FOUND"


async def test_an_operation_that_nobody_acquired_is_not_there(bench: Bench) -> None:
    for verb, more, _ in WITH_TOKEN.values():
        with pytest.raises(NotFound) as lost:
            await bench.verb(verb, "t", *more)
        assert lost.value.code == "OPERATION_NOT_FOUND"
    with pytest.raises(NotFound) as lost:
        await bench.read()
    assert lost.value.code == "OPERATION_NOT_FOUND"


async def test_a_closed_fence_marks_nothing_and_refuses_every_verb(bench: Bench, sql: Sql) -> None:
    token = await bench.leased()
    bench.now_ms += TTL_MS + 1
    sql.fence("migration-locked")
    before = sql.dump()
    with pytest.raises(Fenced):
        await bench.acquire()
    for verb, more, _ in WITH_TOKEN.values():
        with pytest.raises(Fenced):
            await bench.verb(verb, token, *more)
    assert (await bench.read()).lapsed
    assert sql.dump() == before


async def test_without_its_table_a_read_finds_nothing_and_a_write_fails_whole(
    bench: Bench, sql: Sql
) -> None:
    sql("DROP TABLE fencepost_operations")
    before = sql.dump()
    with pytest.raises(NotFound) as lost:
        await bench.read()
    assert lost.value.code == "OPERATION_NOT_FOUND"
    with pytest.raises(MissingTable):
        await bench.acquire()
    with pytest.raises(NotFound) as lost:
        await bench.acquire(as_={"run_id": "no-run"})
    assert lost.value.code == "RUN_NOT_FOUND"
    assert sql.dump() == before


async def test_operations_of_a_run_do_not_know_each_other(bench: Bench) -> None:
    token = await bench.leased()
    assert await bench.acquire(SOMETHING, as_={"id": "step:2"}) is Outcome.ACQUIRED
    assert await bench.verb(leases.commit, token, "1", as_={"id": "step:2"}) is Outcome.LEASE_FENCED
    assert await bench.verb(leases.commit, token, "1") is Outcome.COMMITTED


# --- HTTP --------------------------------------------------------------------------------


def acquired(client: Client, run: Json, operation: str = "step", **members: Any) -> Json:
    answer = client.operation(run, "acquire", operation, **{"ttl_ms": 60_000, **members})
    assert answer.status_code == 200, answer.text
    body: Json = answer.json()
    return body


def loss(answer: httpx.Response) -> tuple[int, str, str, str]:
    problem = answer.json()
    assert problem["code"] == problem["outcome"].upper()
    assert answer.headers["Content-Type"] == "application/problem+json"
    assert "token" not in json.dumps(problem["operation"])
    return answer.status_code, problem["outcome"], problem["retry"], problem["operation"]["state"]


def test_an_operation_from_its_acquisition_to_its_replay(client: Client) -> None:
    run = client.started()
    payload = {"b": 1, "a": [1.0, "é"]}
    body = acquired(client, run, payload=payload)
    lease = body["lease"]
    assert body == {
        "outcome": "acquired",
        "operation": {
            "id": "step",
            "kind": "lease",
            "state": "running",
            "outcome": None,
            "payload_fingerprint": journal.digest(payload),
        },
        "lease": {"token": lease["token"], "expires_at_ms": lease["expires_at_ms"]},
    }
    path = f"/v1/runs/{run['run_id']}/operations/step"
    assert client.get(path).json() == {"operation": body["operation"], "lease": lease}
    shared = acquired(client, run, payload={"a": [1, "é"], "b": 1.0})
    assert (shared["outcome"], shared["lease"]) == ("shared", lease)
    token = lease["token"]
    renewed = client.operation(run, "renew", token=token, ttl_ms=90_000).json()
    assert renewed["outcome"] == "renewed"
    assert renewed["lease"]["expires_at_ms"] > lease["expires_at_ms"]
    asserted = client.operation(run, "assert", token=token).json()
    assert (asserted["outcome"], asserted["lease"]) == ("asserted", renewed["lease"])
    committed = client.operation(run, "commit", token=token, outcome={"id": "ch_1"}).json()
    assert (committed["outcome"], committed["lease"]) == ("committed", None)
    answer = client.operation(run, "acquire", ttl_ms=1, payload=payload)
    assert answer.headers["Idempotent-Replayed"] == "true"
    assert answer.json() == {**committed, "outcome": "replayed"}
    assert answer.json()["operation"]["outcome"] == {"id": "ch_1"}
    assert client.get(path).json() == {"operation": committed["operation"], "lease": None}


@pytest.mark.parametrize("outcome", [0, False, "", {}, [], None, -0.5, "\0", "é"], ids=repr)
def test_any_json_outcome_is_replayed(client: Client, outcome: object) -> None:
    run = client.started()
    token = acquired(client, run)["lease"]["token"]
    client.operation(run, "commit", token=token, outcome=outcome).raise_for_status()
    wishes: list[Json] = [{}, {"preempt": True}, {"exclusive": True}]
    for options in wishes:
        body = acquired(client, run, **options)
        assert (body["outcome"], body["lease"]) == ("replayed", None)
        assert body["operation"]["state"] == "committed"
        found = body["operation"]["outcome"]
        assert (type(found), found) == (type(outcome), outcome)


def test_every_loss_names_its_outcome_and_what_to_do(client: Client, sql: Sql) -> None:
    run = client.started()
    token = acquired(client, run)["lease"]["token"]
    refused = client.operation(run, "acquire", ttl_ms=1, exclusive=True)
    assert loss(refused) == (409, "operation_already_running", "same-key", "running")
    assert 1 <= int(refused.headers["Retry-After"]) <= 5
    other = client.operation(run, "acquire", ttl_ms=1, payload=1)
    assert loss(other) == (409, "operation_conflict", "never", "running")
    stranger = client.operation(run, "commit", token=token, outcome=1, owner=an_owner())
    assert loss(stranger) == (409, "fence_lost", "never", "running")
    stale = client.operation(run, "commit", token="0" * 32, outcome=1)
    assert loss(stale) == (409, "lease_fenced", "never", "running")
    sql("UPDATE fencepost_operations SET lease_expires_at_ms = 5 WHERE state = 'running'")
    asserted = client.operation(run, "assert", token=token)
    assert loss(asserted) == (409, "lease_fenced", "never", "lapsed")
    renewed = client.operation(run, "renew", token=token, ttl_ms=1000)
    assert loss(renewed) == (409, "lease_fenced", "never", "interrupted")


def test_a_lapsed_lease_is_displayed_without_a_write_and_marked_by_the_next_post(
    client: Client, sql: Sql
) -> None:
    run = client.started()
    token = acquired(client, run)["lease"]["token"]
    sql("UPDATE fencepost_operations SET lease_expires_at_ms = 5 WHERE state = 'running'")
    before, path = sql.dump(), f"/v1/runs/{run['run_id']}/operations/step"
    found = client.get(path).json()
    assert (found["operation"]["state"], found["lease"]) == ("lapsed", None)
    assert sql.dump() == before
    client.operation(run, "commit", token=token, outcome=1)
    assert client.get(path).json()["operation"]["state"] == "interrupted"
    body = acquired(client, run, exclusive=True)
    assert body["outcome"] == "acquired"
    assert body["lease"]["token"] != token


def test_the_case_of_its_name_does_not_matter(client: Client) -> None:
    run = client.started()
    first = acquired(client, run, "Charge:Card.1_a-B")
    assert first["operation"]["id"] == "charge:card.1_a-b"
    again = acquired(client, run, "charge%3Acard.1_A-b")
    assert (again["outcome"], again["lease"]) == ("shared", first["lease"])
    found = client.get(f"/v1/runs/{run['run_id']}/operations/CHARGE:CARD.1_A-B")
    assert found.json()["operation"] == first["operation"]


BAD_NAMES = [".a", "a.", "-a", "a:", "_", "a b", "a~b", "a%2Fb", "%C3%A9", "K%E2%84%AA", "a" * 129]


@pytest.mark.parametrize("name", BAD_NAMES)
def test_a_name_that_is_none_is_not_there(client: Client, sql: Sql, name: str) -> None:
    run = client.started()
    before = sql.dump()
    for answer in (
        client.operation(run, "acquire", name, ttl_ms=1000),
        client.operation(run, "interrupt", name, token=new_key()),
        client.get(f"/v1/runs/{run['run_id']}/operations/{name}"),
    ):
        assert (answer.status_code, answer.json()["code"]) == (404, "OPERATION_NOT_FOUND")
    assert sql.dump() == before


def test_a_name_has_1_to_128_characters() -> None:
    assert all(is_operation_id(name) for name in ("a", "7", "aB", "a..b", "a" * 128))
    assert not any(is_operation_id(name) for name in ("", "a" * 129, "a\n", "é", "\u212a"))


TTL_S: list[Any] = [0, -1, 1.5, 86_400_001, True, "1000", None, 2**53, []]


@pytest.mark.parametrize("ttl_ms", TTL_S, ids=repr)
@pytest.mark.parametrize("verb", ["acquire", "renew"])
def test_a_ttl_is_an_integer_from_1_ms_to_a_day(
    client: Client, sql: Sql, verb: str, ttl_ms: object
) -> None:
    run = client.started()
    members = {"token": acquired(client, run)["lease"]["token"]} if verb == "renew" else {}
    before = sql.dump()
    answer = client.operation(run, verb, **members, ttl_ms=ttl_ms)
    assert (answer.status_code, answer.json()["code"]) == (400, "INVALID_REQUEST")
    assert sql.dump() == before


@pytest.mark.parametrize("ttl_ms", [1, 86_400_000])
def test_the_shortest_and_the_longest_ttl_are_taken(client: Client, ttl_ms: int) -> None:
    run = client.started()
    token = acquired(client, run, ttl_ms=ttl_ms)["lease"]["token"]
    if ttl_ms > 1:
        assert client.operation(run, "renew", token=token, ttl_ms=ttl_ms).status_code == 200


BAD_BODIES: list[tuple[str, Json]] = [
    ("acquire", {}),
    ("acquire", {"ttl_ms": 1, "preempt": True, "exclusive": True}),
    ("acquire", {"ttl_ms": 1, "preempt": 1}),
    ("acquire", {"ttl_ms": 1, "exclusive": "true"}),
    ("acquire", {"ttl_ms": 1, "exclusive": None}),
    ("acquire", {"ttl_ms": 1, "token": "t"}),
    ("acquire", {"ttl_ms": 1, "owner": None}),
    ("renew", {"ttl_ms": 1}),
    ("renew", {"token": 1, "ttl_ms": 1}),
    ("renew", {"token": "", "ttl_ms": 1}),
    ("renew", {"token": "t", "ttl_ms": 1, "now_ms": 1}),
    ("assert", {}),
    ("assert", {"token": "t", "ttl_ms": 1}),
    ("commit", {"token": "t"}),
    ("commit", {"outcome": 1}),
    ("interrupt", {"token": None}),
]


@pytest.mark.parametrize(("verb", "members"), BAD_BODIES, ids=str)
def test_a_body_that_is_none_is_refused(client: Client, sql: Sql, verb: str, members: Json) -> None:
    run = client.started()
    before = sql.dump()
    answer = client.operation(run, verb, **members)
    assert (answer.status_code, answer.json()["code"]) == (400, "INVALID_REQUEST")
    assert sql.dump() == before


def test_an_outcome_too_large_to_store_is_refused(client: Client, sql: Sql) -> None:
    run = client.started()
    token = acquired(client, run)["lease"]["token"]
    before = sql.dump()
    answer = client.operation(run, "commit", token=token, outcome="x" * 900_000)
    assert (answer.status_code, answer.json()["code"]) == (413, "TOO_LARGE")
    assert sql.dump() == before
    answer = client.operation(run, "commit", token=token, outcome="x" * 899_998)
    assert answer.status_code == 200


def test_verbs_need_the_scope_work_and_looking_the_scope_read(client: Client) -> None:
    run = client.started()
    assert client.as_("reader").operation(run, "acquire", ttl_ms=1).status_code == 403
    assert acquired(client.as_("worker"), run)["outcome"] == "acquired"
    path = f"/v1/runs/{run['run_id']}/operations/step"
    assert client.as_("worker").get(path).status_code == 403
    assert client.as_("reader").get(path).status_code == 200


def test_a_strangers_operation_is_not_there_and_an_operator_sees_it(client: Client) -> None:
    run = client.started()
    acquired(client, run)
    path = f"/v1/runs/{run['run_id']}/operations/step"
    for answer in (
        client.as_("bob").get(path),
        client.as_("bob").operation(run, "acquire", ttl_ms=1),
        client.get("/v1/runs/no-run/operations/step"),
    ):
        assert (answer.status_code, answer.json()["code"]) == (404, "RUN_NOT_FOUND")
    assert client.as_("operator").get(path).status_code == 200
    unknown = client.get(f"/v1/runs/{run['run_id']}/operations/other")
    assert (unknown.status_code, unknown.json()["code"]) == (404, "OPERATION_NOT_FOUND")


def test_a_lost_reply_is_safe_to_send_again(client: Client) -> None:
    run, lost = client.started(), {"X-Local-Fault": "lost,lost"}
    path = f"/v1/runs/{run['run_id']}/operations/step"
    body = {"owner": run["owner"], "ttl_ms": 60_000}
    answer = client.post(f"{path}/acquire", body, headers=lost)
    assert answer.json()["code"] == "WRITE_OUTCOME_UNKNOWN"
    token = acquired(client, run)["lease"]["token"]
    body = {"owner": run["owner"], "token": token, "outcome": [1]}
    answer = client.post(f"{path}/commit", body, headers=lost)
    assert answer.json()["code"] == "WRITE_OUTCOME_UNKNOWN"
    assert client.post(f"{path}/commit", body).json()["outcome"] == "committed"


# --- Races -------------------------------------------------------------------------------

ROUNDS = 10


@pytest.fixture
async def http(bridge: dict[str, str]) -> Any:
    limits = httpx.Limits(max_connections=60)
    async with httpx.AsyncClient(base_url=bridge["url"], timeout=60, limits=limits) as session:
        yield session


async def send(
    http: httpx.AsyncClient, number: int, run: Json, verb: str, **members: Any
) -> httpx.Response:
    headers = {"Authorization": "Bearer alice", "X-Local-Isolate": str(number % 2)}
    body = json.dumps({"owner": run["owner"], **members})
    path = f"/v1/runs/{run['run_id']}/operations/step/{verb}"
    return await http.post(path, content=body, headers=headers)


@pytest.mark.parametrize("lapsed", [False, True])
async def test_of_16_concurrent_acquisitions_that_want_it_alone_one_gets_it(
    http: httpx.AsyncClient, client: Client, sql: Sql, lapsed: bool
) -> None:
    for _ in range(ROUNDS):
        run = client.started()
        if lapsed:
            acquired(client, run)
            sql("UPDATE fencepost_operations SET lease_expires_at_ms = 5 WHERE state = 'running'")
        members = {"ttl_ms": 60_000, "exclusive": True}
        answers = await asyncio.gather(
            *[send(http, n, run, "acquire", **members) for n in range(16)]
        )
        seen = Counter(answer.json()["outcome"] for answer in answers)
        assert seen == {"acquired": 1, "operation_already_running": 15}


async def test_of_16_concurrent_acquisitions_that_share_all_hold_one_token(
    http: httpx.AsyncClient, client: Client
) -> None:
    for _ in range(ROUNDS):
        run = client.started()
        answers = await asyncio.gather(
            *[send(http, n, run, "acquire", ttl_ms=60_000) for n in range(16)]
        )
        bodies = [answer.json() for answer in answers]
        assert Counter(body["outcome"] for body in bodies) == {"acquired": 1, "shared": 15}
        assert len({body["lease"]["token"] for body in bodies}) == 1


async def test_an_acquisition_against_the_commit_never_erases_the_outcome(
    http: httpx.AsyncClient, client: Client
) -> None:
    for round in range(ROUNDS):
        run = client.started()
        token = acquired(client, run)["lease"]["token"]
        rivals = [
            send(http, n, run, "acquire", ttl_ms=60_000, preempt=n % 2 == 0) for n in range(6)
        ]
        commits = [send(http, n, run, "commit", token=token, outcome=n) for n in range(2)]
        order = commits + rivals if round % 2 else rivals[:3] + commits + rivals[3:]
        bodies = [answer.json() for answer in await asyncio.gather(*order)]
        won = [body for body in bodies if body["outcome"] == "committed"]
        found = client.get(f"/v1/runs/{run['run_id']}/operations/step").json()
        assert len(won) <= 1
        if won:
            assert found["operation"] == won[0]["operation"]
            replays = [body for body in bodies if body["outcome"] == "replayed"]
            assert all(body["operation"] == won[0]["operation"] for body in replays)
        else:
            assert found["operation"]["state"] == "running"
            assert found["lease"]["token"] != token
