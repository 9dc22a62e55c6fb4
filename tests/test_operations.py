"""Operations: leased, replayable steps of a run; a sentence a rule.

They drive the module with a clock of its own (`now_ms`), over the real D1. Its routes are in
test_operation_routes.py, its races in test_operation_races.py.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest

from fencepost import journal, leases, operations, ownership, starts, transition
from fencepost.decision import Attempt, fingerprint
from fencepost.errors import Fenced, MissingTable, NotFound, Unavailable, Unknown
from fencepost.identifiers import Principal, Target, mint_run_id
from fencepost.operations import Operation, OperationState, Step, StepOutcome
from fencepost.ownership import Evidence
from fencepost.runs import Owner, RunStatus
from fencepost.storage.d1 import Result
from fencepost.storage.sql import Statement
from fencepost.storage.writes import Branch
from helpers import BridgeDatabase, Client, Json, Sql, connect_async, new_key

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
        result: leases.StepResult = await verb(
            self.db, step, *values, now_ms=self.now_ms, **options
        )
        self.found = result.operation
        return result.outcome

    async def acquire(self, payload: str = NOTHING, ttl_ms: int = TTL_MS, **options: Any) -> Any:
        return await self.verb(leases.acquire, payload, ttl_ms, **options)

    async def leased(self) -> str:
        assert await self.acquire() is StepOutcome.ACQUIRED
        return self.operation.lease_token

    async def read(self) -> Operation:
        run_id, viewer, _, id, _ = self.step
        return await operations.read(self.db, run_id, viewer, id, now_ms=self.now_ms)


async def taken_over(bench: Bench, by: Owner = ELSEWHERE) -> None:
    """The run's lease lapsed, and another process owns it (or the same one anew)."""
    run_id, evidence = bench.step.run_id, Evidence("lease-expired", HOST)
    owned = await ownership.own(bench.db, run_id, ALICE, by, evidence=evidence, now_ms=bench.now_ms)
    assert owned.outcome == "owned"


@pytest.fixture
async def bench(db: BridgeDatabase) -> Bench:
    target = Target("workflow", "w")
    key = new_key()
    meaning = (key, ALICE, target, fingerprint(target, None, None))
    attempt = Attempt(*meaning, mint_run_id(key), "null", HOST, 30_000)
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


async def test_preempt_with_exclusive_preempts(bench: Bench) -> None:
    await bench.leased()
    assert await bench.acquire(preempt=True, exclusive=True) is StepOutcome.ACQUIRED


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


async def test_an_outcome_is_compared_as_json_and_not_as_text(bench: Bench, sql: Sql) -> None:
    token = await bench.leased()
    stored = '{"cents":500,"to":["é",null]}'
    assert await bench.verb(leases.commit, token, stored) is StepOutcome.COMMITTED
    before = sql.dump()
    for same in (
        '{"to":["é",null],"cents":500}',
        '{"cents":500.0,"to":["\\u00e9",null]}',
        '{ "cents": 5e2, "to": ["é", null] }',
    ):
        assert await bench.verb(leases.commit, token, same) is StepOutcome.COMMITTED
        assert bench.operation.outcome_json == stored
    for other in ('{"cents":500}', '{"cents":"500","to":["é",null]}', "null"):
        assert await bench.verb(leases.commit, token, other) is StepOutcome.LEASE_FENCED
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
    causes = [event["payload"] for event in events]
    assert causes == [{"operation": "step", "cause": why} for why in ("holder", "lapse", "lapse")]
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
    await taken_over(bench)
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


# --- A lease belongs to the generation that took it --------------------------------------

DAY_MS = 86_400_000


async def test_a_lease_ends_with_the_generation_of_the_run_however_long_it_was(
    bench: Bench,
) -> None:
    assert await bench.acquire(ttl_ms=DAY_MS) is StepOutcome.ACQUIRED
    assert (bench.operation.generation, bench.operation.lapsed) == (1, False)
    bench.now_ms = T0 + 30_001
    await taken_over(bench)
    assert (await bench.read()).lapsed
    assert await bench.acquire(as_={"owner": ELSEWHERE}) is StepOutcome.ACQUIRED
    assert (bench.operation.generation, bench.operation.lapsed) == (2, False)


VERBS = {**WITH_TOKEN, "acquire": (leases.acquire, (), StepOutcome.ACQUIRED)}


@pytest.mark.parametrize("name", VERBS)
@pytest.mark.parametrize("lapsed", [False, True])
async def test_a_stale_generation_loses_the_run_and_writes_nothing(
    bench: Bench, sql: Sql, name: str, lapsed: bool
) -> None:
    verb, more, won = VERBS[name]
    bench.now_ms = T0 + 30_001
    await taken_over(bench, by=HOST)
    token = await bench.leased()
    more = (NOTHING, TTL_MS) if name == "acquire" else (token, *more)
    bench.now_ms += (TTL_MS + 1) * lapsed
    before = sql.dump()
    for stale in (1, 3):
        outcome = await bench.verb(verb, *more, as_={"generation": stale})
        assert outcome is StepOutcome.FENCE_LOST
    stranger = {"owner": ELSEWHERE, "generation": 2}
    assert await bench.verb(verb, *more, as_=stranger) is StepOutcome.FENCE_LOST
    assert sql.dump() == before
    if name == "acquire" and not lapsed:
        won = StepOutcome.SHARED
    elif name != "acquire" and lapsed:
        won = StepOutcome.LEASE_FENCED
    assert await bench.verb(verb, *more, as_={"generation": 2}) is won


@pytest.mark.parametrize("options", [{}, {"preempt": True}, {"exclusive": True}], ids=str)
async def test_an_acquisition_with_a_stale_generation_takes_no_lease(
    bench: Bench, sql: Sql, options: Json
) -> None:
    bench.now_ms = T0 + 30_001
    await taken_over(bench, by=HOST)
    before = sql.dump()
    as_ = {"generation": 1}
    assert await bench.acquire(as_=as_, **options) is StepOutcome.FENCE_LOST
    assert bench.found is None
    assert sql.dump() == before
    await bench.leased()
    before = sql.dump()
    assert await bench.acquire(as_=as_, **options) is StepOutcome.FENCE_LOST
    assert sql.dump() == before


async def test_a_verb_that_lost_the_run_says_what_took_it(bench: Bench) -> None:
    await bench.leased()
    bench.now_ms = T0 + 30_001
    await taken_over(bench)
    lost = await leases.acquire(bench.db, bench.step, NOTHING, TTL_MS, now_ms=bench.now_ms)
    assert lost.outcome is StepOutcome.FENCE_LOST
    assert lost.beaten_by is not None
    assert lost.beaten_by[:2] == ("activated", 2)


# --- After a lost reply ------------------------------------------------------------------


class Losing(BridgeDatabase):
    """Loses the reply of its first write, which has landed, and then lets `then` happen."""

    then: Callable[[], Awaitable[Any]] | None = None

    async def batch(self, statements: Sequence[Statement]) -> list[Result]:
        results = await super().batch(statements)
        if self.then is None or statements[0].sql.lstrip().startswith("SELECT"):
            return results
        then, self.then = self.then, None
        await then()
        raise Unknown("D1_ERROR: Network connection lost.")


@pytest.fixture
async def losing(bridge: dict[str, str]) -> Any:
    async with connect_async(bridge["sql"]) as http:
        yield Losing(http)


async def lost(
    bench: Bench, losing: Losing, meanwhile: Callable[[], Awaitable[Any]], verb: Any, *values: Any
) -> StepOutcome:
    """A verb whose reply is lost; other requests come before it reads back."""
    losing.then = meanwhile
    undisturbed, bench.db = bench.db, losing
    try:
        return await bench.verb(verb, *values)
    finally:
        bench.db = undisturbed


class Meanwhile:
    """What may come of a step between a landed write and its reading back."""

    def __init__(self, bench: Bench) -> None:
        # A bench of its own: another thread of the same process.
        self.bench = Bench(bench.db, bench.step.run_id)

    async def nothing(self) -> None:
        """The reply is lost, no more."""

    async def token(self) -> str:
        assert await self.bench.acquire() is StepOutcome.SHARED
        return self.bench.operation.lease_token

    async def shared(self) -> None:
        await self.token()

    async def renewed(self) -> None:
        await self.bench.verb(leases.renew, await self.token(), 9000)

    async def preempted(self) -> None:
        assert await self.bench.acquire(preempt=True) is StepOutcome.ACQUIRED

    async def committed(self) -> None:
        await self.bench.verb(leases.commit, await self.token(), '"theirs"')

    async def interrupted(self) -> None:
        await self.bench.verb(leases.interrupt, await self.token())

    async def lapsed(self) -> None:
        past = "UPDATE fencepost_operations SET lease_expires_at_ms = 5 WHERE run_id = :run_id"
        await self.bench.db.batch([Statement(past, run_id=self.bench.step.run_id)])

    async def taken_over(self) -> None:
        self.bench.now_ms += 30_001
        await taken_over(self.bench)

    async def owned_anew(self) -> None:
        self.bench.now_ms += 30_001
        await taken_over(self.bench, by=HOST)


AFTER_AN_ACQUISITION = {
    "nothing": StepOutcome.ACQUIRED,
    "shared": StepOutcome.ACQUIRED,
    "renewed": StepOutcome.ACQUIRED,
    "preempted": StepOutcome.SHARED,
    "committed": StepOutcome.REPLAYED,
    "taken_over": StepOutcome.FENCE_LOST,
    # There is no lease that holds, and so one is taken, as by any acquisition.
    "interrupted": StepOutcome.ACQUIRED,
    "lapsed": StepOutcome.ACQUIRED,
    "owned_anew": StepOutcome.ACQUIRED,
}


@pytest.mark.parametrize("then", AFTER_AN_ACQUISITION)
async def test_an_acquisition_whose_reply_was_lost_is_answered_from_the_row_as_it_is(
    bench: Bench, losing: Losing, then: str
) -> None:
    meanwhile = Meanwhile(bench)
    happens = getattr(meanwhile, then)
    outcome = await lost(bench, losing, happens, leases.acquire, NOTHING, TTL_MS)
    assert outcome is AFTER_AN_ACQUISITION[then]
    found = bench.operation
    assert await bench.read() == found
    if outcome in (StepOutcome.ACQUIRED, StepOutcome.SHARED):
        assert found.held_under(found.lease_token)
    if then == "preempted":
        assert found.lease_token == meanwhile.bench.operation.lease_token
        assert losing.branch == Branch.DECIDED
    if outcome is StepOutcome.FENCE_LOST:
        assert found.lapsed
    if then in ("interrupted", "lapsed", "owned_anew"):
        events = await bench.db.read(
            [
                Statement(
                    "SELECT type FROM fencepost_events WHERE run_id = :run_id ORDER BY sequence",
                    run_id=bench.step.run_id,
                )
            ]
        )
        types = [row["type"] for row in events[0].rows]
        assert types == ["run-created", "operation-interrupted"]


async def test_whoever_wanted_it_alone_is_refused_after_its_lost_acquisition_was_preempted(
    bench: Bench, losing: Losing
) -> None:
    losing.then = Meanwhile(bench).preempted
    result = await leases.acquire(
        losing, bench.step, NOTHING, TTL_MS, exclusive=True, now_ms=bench.now_ms
    )
    assert result.outcome is StepOutcome.OPERATION_ALREADY_RUNNING
    assert losing.branch == Branch.DECIDED


AFTER_A_RENEWAL = {
    "nothing": StepOutcome.RENEWED,
    "shared": StepOutcome.RENEWED,
    "renewed": StepOutcome.RENEWED,
    "preempted": StepOutcome.LEASE_FENCED,
    "committed": StepOutcome.LEASE_FENCED,
    "interrupted": StepOutcome.LEASE_FENCED,
    "lapsed": StepOutcome.LEASE_FENCED,
    "taken_over": StepOutcome.FENCE_LOST,
    "owned_anew": StepOutcome.LEASE_FENCED,
}


@pytest.mark.parametrize("then", AFTER_A_RENEWAL)
async def test_a_renewal_whose_reply_was_lost_is_won_only_while_the_lease_holds(
    bench: Bench, losing: Losing, then: str
) -> None:
    token, happens = await bench.leased(), getattr(Meanwhile(bench), then)
    outcome = await lost(bench, losing, happens, leases.renew, token, TTL_MS)
    assert outcome is AFTER_A_RENEWAL[then]
    assert await bench.read() == bench.operation


@pytest.mark.parametrize("then", ["nothing", "taken_over", "owned_anew", "locked"])
async def test_a_commit_that_landed_stays_committed_whatever_came_after_it(
    bench: Bench, losing: Losing, sql: Sql, then: str
) -> None:
    token = await bench.leased()

    async def locked() -> None:
        sql.fence("migration-locked")

    happens = locked if then == "locked" else getattr(Meanwhile(bench), then)
    assert await lost(bench, losing, happens, leases.commit, token, "1") is StepOutcome.COMMITTED
    assert bench.operation.outcome_json == "1"
    assert losing.branch == Branch.LANDED


async def test_an_interruption_that_landed_stays_one_when_the_step_is_leased_again(
    bench: Bench, losing: Losing
) -> None:
    token, other = await bench.leased(), Bench(bench.db, bench.step.run_id)
    outcome = await lost(bench, losing, other.leased, leases.interrupt, token)
    assert outcome is StepOutcome.INTERRUPTED
    assert losing.branch == Branch.LANDED
    assert bench.operation.held_under(other.operation.lease_token)


class Busy(BridgeDatabase):
    """Before each write another event gets into the history of the run."""

    busy = False

    async def batch(self, statements: Sequence[Statement]) -> list[Result]:
        if self.busy and not statements[0].sql.lstrip().startswith("SELECT"):
            moved = "UPDATE fencepost_runs SET head_sequence = head_sequence + 1"
            await super().batch([Statement(moved)])
        return await super().batch(statements)


@pytest.mark.parametrize("name", ["acquire", "renew", "commit", "interrupt"])
async def test_a_race_that_is_lost_too_often_is_contended_and_never_an_ordinary_answer(
    bench: Bench, bridge: dict[str, str], name: str
) -> None:
    token = await bench.leased()
    bench.now_ms += TTL_MS + 1
    async with connect_async(bridge["sql"]) as http:
        bench.db = db = Busy(http)
        db.busy = True
        verb, more, _ = VERBS[name]
        values = (NOTHING, TTL_MS) if name == "acquire" else (token, *more)
        with pytest.raises(Unavailable) as contended:
            await bench.verb(verb, *values)
    assert contended.value.code == "CONTENDED"
