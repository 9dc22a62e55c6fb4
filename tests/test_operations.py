"""Operations: leased, replayable steps of a run; a sentence a rule.

They drive the module with a clock of its own (`now_ms`), over the real D1. Its routes are in
test_operation_routes.py, its races in test_operation_races.py.
"""

from __future__ import annotations

from typing import Any

import pytest

from fencepost import journal, leases, operations, ownership, starts, transition
from fencepost.decision import Attempt, fingerprint
from fencepost.errors import Fenced, MissingTable, NotFound
from fencepost.identifiers import Principal, Target, mint_run_id
from fencepost.operations import Operation, OperationState, Step, StepOutcome
from fencepost.ownership import Evidence
from fencepost.runs import Owner, RunStatus
from helpers import BridgeDatabase, Client, Json, Sql, new_key

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

    async def verb(self, verb: Any, *values: Any, **options: Any) -> StepOutcome:
        step = self.step._replace(**options.pop("as_", {}))
        outcome, self.found = await verb(self.db, step, *values, now_ms=self.now_ms, **options)
        result: StepOutcome = outcome
        return result

    async def acquire(self, payload: str = NOTHING, ttl_ms: int = TTL_MS, **options: Any) -> Any:
        return await self.verb(leases.acquire, payload, ttl_ms, **options)

    async def leased(self) -> str:
        assert await self.acquire() is StepOutcome.ACQUIRED
        return self.operation.lease_token

    async def read(self) -> Operation:
        run_id, viewer, _, id = self.step
        return await operations.read(self.db, run_id, viewer, id, now_ms=self.now_ms)


@pytest.fixture
async def bench(db: BridgeDatabase) -> Bench:
    target = Target("workflow", "w")
    meaning = (new_key(), ALICE, target, fingerprint(target, None, None))
    attempt = Attempt(*meaning, mint_run_id(), "null", HOST, 30_000)
    _, seen = await starts.start(db, attempt, now_ms=T0)
    assert seen.run is not None
    return Bench(db, seen.run.run_id)


# --- Acquiring ---------------------------------------------------------------------------


async def test_a_new_operation_is_leased_from_now_on(bench: Bench) -> None:
    assert await bench.acquire(SOMETHING) is StepOutcome.ACQUIRED
    found = bench.operation
    assert (found.id, found.kind, found.state) == ("step", "lease", OperationState.RUNNING)
    assert (found.payload_fingerprint, found.outcome_json) == (SOMETHING, None)
    assert found.lease_expires_at_ms == T0 + TTL_MS


async def test_a_live_lease_is_shared_as_it_is(bench: Bench, sql: Sql) -> None:
    token, before = await bench.leased(), sql.dump()
    bench.now_ms += TTL_MS
    assert await bench.acquire(ttl_ms=9000) is StepOutcome.SHARED
    assert (bench.operation.lease_token, bench.operation.lease_expires_at_ms) == (
        token,
        T0 + TTL_MS,
    )
    assert sql.dump() == before


async def test_a_live_lease_is_preempted_and_its_token_is_stale(bench: Bench) -> None:
    token = await bench.leased()
    assert await bench.acquire(preempt=True) is StepOutcome.ACQUIRED
    replacement = bench.operation.lease_token
    assert replacement != token
    assert await bench.verb(leases.assert_held, token) is StepOutcome.LEASE_FENCED
    assert await bench.verb(leases.commit, token, "1") is StepOutcome.LEASE_FENCED
    assert await bench.verb(leases.commit, replacement, "2") is StepOutcome.COMMITTED


async def test_whoever_wants_it_alone_is_refused_while_a_lease_holds(
    bench: Bench, sql: Sql
) -> None:
    token, before = await bench.leased(), sql.dump()
    bench.now_ms += TTL_MS
    assert await bench.acquire(exclusive=True) is StepOutcome.OPERATION_ALREADY_RUNNING
    assert sql.dump() == before
    bench.now_ms += 1
    assert await bench.acquire(exclusive=True) is StepOutcome.ACQUIRED
    assert bench.operation.lease_token != token


@pytest.mark.parametrize("options", [{}, {"preempt": True}, {"exclusive": True}], ids=str)
async def test_an_interrupted_operation_is_leased_anew(bench: Bench, options: Json) -> None:
    token = await bench.leased()
    assert await bench.verb(leases.interrupt, token) is StepOutcome.INTERRUPTED
    assert bench.operation.state is OperationState.INTERRUPTED
    assert await bench.acquire(**options) is StepOutcome.ACQUIRED
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
    assert await bench.acquire(SOMETHING, **options) is StepOutcome.OPERATION_CONFLICT
    assert bench.operation.payload_fingerprint == NOTHING


@pytest.mark.parametrize("options", [{}, {"preempt": True}, {"exclusive": True}], ids=str)
async def test_a_committed_outcome_is_replayed_and_never_erased(
    bench: Bench, sql: Sql, options: Json
) -> None:
    await bench.verb(leases.commit, await bench.leased(), '{"a":1}')
    before = sql.dump()
    bench.now_ms += 86_400_000
    assert await bench.acquire(**options) is StepOutcome.REPLAYED
    assert bench.operation.outcome_json == '{"a":1}'
    assert sql.dump() == before


# --- The verbs with a token --------------------------------------------------------------


async def test_renewing_lengthens_and_never_shortens(bench: Bench) -> None:
    token = await bench.leased()
    bench.now_ms += 10
    assert await bench.verb(leases.renew, token, TTL_MS) is StepOutcome.RENEWED
    assert bench.operation.lease_expires_at_ms == T0 + TTL_MS + 10
    assert await bench.verb(leases.renew, token, 1) is StepOutcome.RENEWED
    assert bench.operation.lease_expires_at_ms == T0 + TTL_MS + 10


WITH_TOKEN = {
    "renew": (leases.renew, (9000,), StepOutcome.RENEWED),
    "assert": (leases.assert_held, (), StepOutcome.ASSERTED),
    "commit": (leases.commit, ("1",), StepOutcome.COMMITTED),
    "interrupt": (leases.interrupt, (), StepOutcome.INTERRUPTED),
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
    assert await bench.verb(verb, token, *more) is StepOutcome.LEASE_FENCED
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
        assert await bench.verb(verb, wrong, *more) is StepOutcome.LEASE_FENCED
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
    assert await bench.verb(verb, token, *more) is StepOutcome.LEASE_FENCED
    assert sql.dump() == before


async def test_a_retry_of_ones_own_commit_converges_and_another_outcome_does_not(
    bench: Bench, sql: Sql
) -> None:
    token = await bench.leased()
    assert await bench.verb(leases.commit, token, "1") is StepOutcome.COMMITTED
    before = sql.dump()
    bench.now_ms += TTL_MS + 1
    assert await bench.verb(leases.commit, token, "1") is StepOutcome.COMMITTED
    assert await bench.verb(leases.commit, token, "2") is StepOutcome.LEASE_FENCED
    assert await bench.verb(leases.commit, "other", "1") is StepOutcome.LEASE_FENCED
    assert sql.dump() == before


async def test_asserting_writes_nothing(bench: Bench, sql: Sql) -> None:
    token, before = await bench.leased(), sql.dump()
    assert await bench.verb(leases.assert_held, token) is StepOutcome.ASSERTED
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
    assert await bench.verb(leases.commit, token, '"stale"') is StepOutcome.LEASE_FENCED
    assert await bench.verb(leases.commit, replacement, '"mine"') is StepOutcome.COMMITTED
    assert (await bench.read()).outcome_json == '"mine"'


async def test_taking_over_a_lapsed_lease_interrupts_it_in_the_same_batch(bench: Bench) -> None:
    await bench.leased()
    bench.now_ms += TTL_MS + 1
    trips = bench.db.round_trips
    bench.db.statements.clear()
    await bench.leased()
    # One that finds the lapsed lease, one that interrupts it with its event and takes over.
    assert bench.db.round_trips == trips + 2
    kinds = [statement.sql.split()[:3] for statement in bench.db.statements]
    interrupted = kinds.index(["UPDATE", "fencepost_operations", "SET"])
    assert kinds[interrupted + 3] == ["INSERT", "INTO", "fencepost_operations"]


def test_an_interruption_has_its_event_whether_said_lapsed_or_taken_over(
    client: Client, sql: Sql
) -> None:
    run = client.started()
    path = f"/v1/runs/{run['run_id']}"

    def lapse() -> None:
        sql(
            "UPDATE fencepost_operations SET lease_expires_at_ms = 1 WHERE run_id = ?1",
            run["run_id"],
        )

    token = client.operation(run, "acquire", ttl_ms=60_000).json()["lease"]["token"]
    client.operation(run, "interrupt", token=token).raise_for_status()
    token = client.operation(run, "acquire", ttl_ms=60_000).json()["lease"]["token"]
    lapse()
    assert client.operation(run, "renew", token=token, ttl_ms=1).json()["code"] == "LEASE_FENCED"
    client.operation(run, "acquire", ttl_ms=60_000).raise_for_status()
    lapse()
    client.operation(run, "acquire", ttl_ms=60_000, preempt=True).raise_for_status()
    events = client.get(f"{path}/events").json()["items"][1:]
    assert [event["type"] for event in events] == ["operation-interrupted"] * 3
    assert all(event["payload"] == {"operation": "step"} for event in events)
    assert client.get(f"{path}/integrity").json()["intact"]
    assert client.finish(run).json()["outcome"] == "transitioned"


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
        assert await bench.acquire(as_=as_, **options) is StepOutcome.FENCE_LOST
    assert await bench.acquire(as_={**as_, "id": "new"}) is StepOutcome.FENCE_LOST
    for verb, more, _ in WITH_TOKEN.values():
        assert await bench.verb(verb, token, *more, as_=as_) is StepOutcome.FENCE_LOST
    assert sql.dump() == before


@pytest.mark.parametrize("to", [RunStatus.SUSPENDED, RunStatus.COMPLETED])
async def test_a_run_that_does_not_run_has_nobody_to_drive_its_operations(
    bench: Bench, sql: Sql, to: RunStatus
) -> None:
    token = await bench.leased()
    change = transition.Transition(HOST, to)
    await transition.transition(bench.db, bench.step.run_id, ALICE, change, now_ms=T0)
    before = sql.dump()
    assert await bench.acquire() is StepOutcome.FENCE_LOST
    for verb, more, _ in WITH_TOKEN.values():
        assert await bench.verb(verb, token, *more) is StepOutcome.FENCE_LOST
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
    assert await bench.acquire() is StepOutcome.FENCE_LOST
    assert await bench.acquire(as_={"owner": ELSEWHERE}) is StepOutcome.REPLAYED
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
    assert await bench.acquire(SOMETHING, as_={"id": "step:2"}) is StepOutcome.ACQUIRED
    assert (
        await bench.verb(leases.commit, token, "1", as_={"id": "step:2"})
        is StepOutcome.LEASE_FENCED
    )
    assert await bench.verb(leases.commit, token, "1") is StepOutcome.COMMITTED
