"""The checker of the soak reports each kind of fault: one that cannot fail would be worthless.

Made-up answers go through the checker of answers, and made-up rows through the checks of the
database; everything but the last of each is sound.
"""

from __future__ import annotations

import contextlib
import inspect
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from fencepost import journal
from fencepost.http.routes import ROUTES
from fencepost.schema import tables
from soak import (
    answer_invariants,
    database_consistency,
    database_matches_answers,
    requests_and_answers,
    worker_memory,
)
from soak.answer_checker import AnswerChecker, Findings
from soak.client_knowledge import ClientKnowledge, Closed, Json
from soak.requests_and_answers import Answer, Request
from soak.worker_memory import Sample

A = {"host_id": "host", "pid": 1, "nonce": "a"}
B = {"host_id": "host", "pid": 1, "nonce": "b"}


def a_run(**members: Any) -> Json:
    return {
        "run_id": "r",
        "status": "running",
        "owner": A,
        "claim": None,
        "generation": 1,
        "heartbeat_at_ms": 100,
        "lease_expires_at_ms": 200,
        "cancel_requested_at_ms": None,
        "cancel_acknowledged_at_ms": None,
        "head": {"sequence": 1, "hash": "h1"},
        "machine": None,
        "state": 1,
        "result": None,
        **members,
    }


def ended(**members: Any) -> Json:
    return a_run(**{"status": "completed", "owner": None, "result": "done", **members})


def a_start(owner: Json = A, status: int = 201, **members: Any) -> tuple[Request, Answer]:
    held = {"key": "k", "run_id": "r", "state": "started", "attempt": 1, "outcome": None}
    held |= members.pop("reservation", {})
    run = {**a_run(owner=owner), **members.pop("run", {})}
    body = {"outcome": "started", "reservation": held, "run": run, **members}
    return Request("POST", "/v1/starts", {"owner": owner}, key="k"), Answer(status, body, 0)


def seen(run: Json) -> tuple[Request, Answer]:
    return Request("GET", f"/v1/runs/{run['run_id']}"), Answer(200, run, 0)


def verb(name: str, body: Json, **sent: Any) -> tuple[Request, Answer]:
    return Request("POST", f"/v1/runs/r/{name}", {"owner": A, **sent}), Answer(200, body, 0)


def by_claim(name: str, outcome: str, claimant: Json) -> tuple[Request, Answer]:
    claim = {"owner": claimant, "claimed_at_ms": 1}
    run = a_run(status="suspended", owner=None, claim=claim)
    return verb(name, {"outcome": outcome, "run": run})


def appended(answer: Json, **sent: Any) -> tuple[Request, Answer]:
    event = {"sequence": 2, "hash": "h2", "type": "noted", "payload": 1}
    return verb("events", {"outcome": "appended", "event": event, **answer}, **sent)


def late(exchange: tuple[Request, Answer]) -> tuple[Request, Answer]:
    """The same answer, after a reply of the database was lost."""
    request, answer = exchange
    return request, Answer(answer.status, answer.body, answer.sent, "lost")


BEATEN = {"type": "activated", "generation": 2, "sequence": 3, "at_ms": 1}


def step(name: str, state: str, outcome: Any = None, owner: Json = A) -> tuple[Request, Answer]:
    operation = {"id": "s", "state": state, "outcome": outcome}
    body = {"outcome": name, "operation": operation, "lease": {"token": "t"}}
    return verb("operations/s/acquire", body, owner=owner)


def bound(receipt: str) -> tuple[Request, Answer]:
    binding = {"gate": "a", "revision": 1, "receipt_hash": receipt, "approval_proof": None}
    return verb("bindings", {"outcome": "bound", "bindings": [binding], "run": a_run()})


def problem(status: int, code: str, **members: Any) -> tuple[Request, Answer]:
    body = {"code": code, "retry": "same-key", "detail": "…", **members}
    return Request("POST", "/v1/runs/r/own", {"owner": A}), Answer(status, body, 0)


def moved(state: str) -> tuple[Request, Answer]:
    body = {"state": state, "revision": 1}
    return Request("POST", "/v1/fence/transitions", {}), Answer(200, body, 0)


Exchange = tuple[Request, Answer]
# The last answer of each breaks the invariant.
TOLD: list[tuple[str, list[Exchange]]] = [
    ("a_generation_has_one_owner", [seen(a_run()), seen(a_run(owner=B))]),
    ("generations_only_rise", [seen(a_run(generation=2)), seen(a_run(owner=B))]),
    ("a_history_is_one_line", [seen(a_run()), seen(a_run(head={"sequence": 1, "hash": "x"}))]),
    (
        "a_history_is_one_line",
        [seen(a_run(head={"sequence": 2, "hash": "h2"})), seen(a_run())],
    ),
    ("a_run_that_ended_stays_as_it_ended", [seen(ended()), seen(ended(result="other"))]),
    ("a_run_that_ended_stays_as_it_ended", [seen(ended()), seen(ended(status="failed"))]),
    ("a_run_that_ended_stays_as_it_ended", [seen(ended()), seen(a_run())]),
    (
        "a_cancel_is_asked_and_acknowledged_once",
        [seen(a_run(cancel_requested_at_ms=5)), seen(a_run(cancel_requested_at_ms=6))],
    ),
    ("one_run_a_key", [a_start(), a_start(run={"run_id": "r2"}, reservation={"run_id": "r2"})]),
    (
        "one_execution_an_attempt",
        [a_start(), a_start(B, run={"generation": 2})],
    ),
    (
        "attempts_only_rise_and_the_end_is_kept",
        [a_start(reservation={"attempt": 2}), a_start(status=200)],
    ),
    (
        "attempts_only_rise_and_the_end_is_kept",
        [a_start(reservation={"state": "terminal", "outcome": "completed"}), a_start(status=200)],
    ),
    ("only_an_owner_is_told_to_execute", [a_start(B, run={"owner": A})]),
    ("only_an_owner_is_told_to_execute", [a_start(run=ended())]),
    ("a_grant_names_its_owner", [verb("own", {"outcome": "owned", "run": a_run(owner=B)})]),
    ("a_grant_names_its_owner", [late(verb("own", {"outcome": "owned", "run": a_run(owner=B)}))]),
    ("a_grant_names_its_owner", [verb("claim", {"outcome": "claimed", "run": a_run(owner=None)})]),
    ("a_grant_names_its_owner", [late(by_claim("claim", "claimed", B))]),
    ("a_grant_names_its_owner", [by_claim("steal", "stolen", A), by_claim("steal", "stolen", B)]),
    (
        "a_generation_is_held_by_whom_it_was_granted",
        [seen(a_run(owner=B)), appended({"run": a_run(owner=None)}, generation=1)],
    ),
    (
        "a_generation_is_held_by_whom_it_was_granted",
        [
            appended({"run": a_run(owner=None)}, generation=1),
            verb("operations/s/renew", {"outcome": "renewed"}, owner=B, generation=1),
        ],
    ),
    (
        "whoever_lost_the_run_since_is_told",
        [
            appended({"run": a_run(owner=B, generation=2), "beaten_by": BEATEN}),
            appended({"run": a_run(owner=B, generation=2)}),
        ],
    ),
    (
        "whoever_lost_the_run_since_is_told",
        [appended({"run": a_run()}), appended({"run": a_run(), "beaten_by": BEATEN})],
    ),
    ("a_committed_outcome_stays", [step("committed", "committed", 1), step("acquired", "running")]),
    (
        "a_committed_outcome_stays",
        [step("committed", "committed", 1), step("replayed", "committed", 2)],
    ),
    (
        "a_token_is_acquired_once",
        [step("acquired", "running"), step("acquired", "running", owner=B)],
    ),
    ("a_binding_is_never_changed", [bound("0"), bound("1")]),
    (
        "a_history_is_intact",
        [verb("integrity", {"intact": False, "first_broken": {"sequence": 2, "rule": "…"}})],
    ),
    ("a_revision_of_the_fence_has_one_state", [moved("open"), moved("draining")]),
    ("an_answer_is_documented", [problem(500, "INTERNAL")]),
    ("an_answer_is_documented", [problem(418, "TEAPOT")]),
    ("an_answer_is_documented", [problem(503, "WRITE_OUTCOME_UNKNOWN")]),
    ("an_answer_is_documented", [problem(503, "EXECUTION_FENCED", state="open")]),
    ("an_answer_is_documented", [problem(409, "CLAIM_FRESH")]),
    ("an_answer_is_documented", [problem(409, "OVERTAKEN")]),
    ("an_answer_is_documented", [late(problem(409, "WORK_RECORDED"))]),
    ("an_answer_is_documented", [(problem(500, "INTERNAL")[0], Answer(502, "bad gateway", 0))]),
]


@pytest.mark.parametrize(("invariant", "exchanges"), TOLD)
def test_an_answer_that_breaks_an_invariant_is_reported(
    invariant: str, exchanges: list[Exchange]
) -> None:
    knowledge, findings = ClientKnowledge(), Findings(say=lambda text: None)
    checker = AnswerChecker(knowledge, findings)
    for number, (request, answer) in enumerate(exchanges, 1):
        assert not findings.counts
        sent = Answer(answer.status, answer.body, knowledge.tick(), answer.faults)
        checker.answered(request, sent)
        assert bool(findings.counts) == (number == len(exchanges))
    assert invariant in findings.counts


@pytest.mark.parametrize(
    ("closed", "exchange"),
    [
        (Closed("draining", 0, None, None), a_start()),
        (Closed("migration-locked", 0, None, None), a_start(status=200)),
        (Closed("migration-locked", 0, None, None), verb("heartbeat", {"run": a_run()})),
        (Closed("proof-only", 0, "proof", "p"), a_start()),
        (Closed("proof-only", 0, "proof", None), verb("own", {"run": a_run()})),
    ],
)
def test_work_that_a_closed_fence_admitted_is_reported(closed: Closed, exchange: Exchange) -> None:
    for since, count in ((0, 1), (99, 0)):
        knowledge, findings = ClientKnowledge(), Findings(say=lambda text: None)
        knowledge.closed = closed._replace(since=since)
        request, answer = exchange
        AnswerChecker(knowledge, findings).answered(request, Answer(answer.status, answer.body, 1))
        assert findings.counts["a_closed_fence_admits_nothing"] == count


def test_an_answer_that_was_sent_for_earlier_may_know_less() -> None:
    knowledge, findings = ClientKnowledge(), Findings()
    checker, sent = AnswerChecker(knowledge, findings), knowledge.tick()
    for run in (ended(generation=2, head={"sequence": 3, "hash": "h3"}), a_run()):
        checker.answered(Request("GET", "/v1/runs/r"), Answer(200, run, sent))
    assert not findings.counts


def test_the_losses_that_it_allows_are_those_of_the_routes() -> None:
    asked_for = {"STEP_UNRESOLVED", "FENCE_CAS_CONFLICT", "CONTENDED", *requests_and_answers.FAULTY}
    for route in ROUTES:
        verb = route.pattern.rsplit("/", 1)[1]
        losses = requests_and_answers.LOSSES.get(verb)
        # What a start may lose by besides, its client says: it depends on what it sends.
        if route.method == "POST" and losses is not None and verb != "starts":
            late = requests_and_answers.LATE.get(verb, "").split()
            allowed = {*losses.split(), *late} - {"CONTENDED"}
            assert allowed - asked_for == {*route.problems} - asked_for, verb


def test_lists_and_facts_that_break_are_reported() -> None:
    listed = [{"run_id": "a"}, {"run_id": "b"}]
    assert answer_invariants.a_list_holds_what_stays({"a"}, listed) is None
    assert answer_invariants.a_list_holds_what_stays({"a", "c"}, listed) is not None
    assert answer_invariants.a_list_holds_what_stays(set(), [*listed, *listed]) is not None
    facts = [{"type": "activated", "generation": n} for n in (1, 2)]
    assert answer_invariants.each_generation_is_activated_once(facts) is None
    assert answer_invariants.each_generation_is_activated_once([*facts, facts[1]]) is not None
    assert answer_invariants.each_generation_is_activated_once(facts[::-1]) is not None


def test_a_retry_that_is_answered_otherwise_is_reported() -> None:
    same = answer_invariants.a_retry_is_answered_as_the_first
    owned: Json = {"outcome": "owned", "granted": {"generation": 2}}
    noted: Json = {"outcome": "appended", "event": {"sequence": 2}}
    over: Json = {"code": "OVERTAKEN", "outcome": "overtaken"}
    for first, again, status in ((owned, owned, 200), (owned, over, 409), (noted, noted, 200)):
        assert same(first, again, status) is None
    for first, again, status in (
        (noted, over, 409),
        (noted, {**noted, "event": {"sequence": 3}}, 200),
        (owned, {**owned, "granted": {"generation": 3}}, 200),
        (owned, {"code": "HEARTBEAT_FRESH"}, 409),
    ):
        assert same(first, again, status) is not None


def test_memory_that_grows_is_reported() -> None:
    def samples(mb: float) -> list[Sample]:
        return [Sample(n, 300 + n * mb, n * 1000) for n in range(50)]

    assert worker_memory.memory_is_flat(worker_memory.growth(samples(1))) is None
    assert worker_memory.memory_is_flat(worker_memory.growth(samples(10))) is not None
    assert worker_memory.growth(samples(10)[:12]) is None


# --- Rows --------------------------------------------------------------------------------


TOKEN, LEASE = {"write_token": "t"}, {"lease_token": "t", "generation": 1}


def insert(db: sqlite3.Connection, table: str, **columns: Any) -> None:
    marks = ", ".join("?" * len(columns))
    sql = f"INSERT INTO fencepost_{table} ({', '.join(columns)}) VALUES ({marks})"
    db.execute(sql, list(columns.values()))


FIRST = journal.next_event(journal.GENESIS, "run-created", {"run_id": "r"})
LAST = journal.next_event(FIRST.head, "state-transitioned", {"to": "completed"})
CREATED = journal.next_event(journal.GENESIS, "run-created", {"run_id": "g"})
RELEASED = journal.next_event(CREATED.head, "run-released", {"attempt": 1})


def insert_run(db: sqlite3.Connection) -> None:
    who = {"target_kind": "workflow", "target_id": "t", "created_at_ms": 1000}
    insert(
        db, "reservations", key="k", owner_kind="service", owner_id="a", fingerprint="0" * 64,
        run_id="r", state="terminal", attempt=1, claim_nonce="t", outcome="completed",
        updated_at_ms=4000, joined=0, **who,
    )  # fmt: skip
    insert(
        db, "runs", run_id="r", principal_kind="service", principal_id="a", status="completed",
        generation=2, lease_ms=1000, head_sequence=2, head_hash=LAST.hash, **TOKEN,
        updated_at_ms=4000, finished_at_ms=4000, **who,
    )  # fmt: skip
    insert(db, "snapshots", run_id="r", state="1", result='"done"')


def insert_history(db: sqlite3.Connection) -> None:
    for event in (FIRST, LAST):
        insert(
            db, "events", run_id="r", sequence=event.sequence, type=event.type,
            payload=event.payload_json, prior_hash=event.prior_hash, hash=event.hash,
            **TOKEN, created_at_ms=event.sequence * 1000,
        )  # fmt: skip
    facts = [("activated", "a", 1, 1000), ("stolen", "b", 1, 3000), ("activated", "b", 2, 3000)]
    for sequence, (type, nonce, generation, at_ms) in enumerate(facts, 1):
        insert(
            db, "ownership", run_id="r", sequence=sequence, type=type, owner_host_id="host",
            owner_pid=1, owner_nonce=nonce, generation=generation, **TOKEN, at_ms=at_ms,
        )  # fmt: skip


def insert_a_released_run(db: sqlite3.Connection) -> None:
    who = {"target_kind": "workflow", "target_id": "t", "created_at_ms": 1000}
    insert(
        db, "reservations", key="kg", owner_kind="service", owner_id="a", fingerprint="0" * 64,
        run_id="g", state="reserved", attempt=2, updated_at_ms=1500, joined=0, **who,
    )  # fmt: skip
    insert(
        db, "runs", run_id="g", principal_kind="service", principal_id="a", status="pending",
        generation=1, lease_ms=1000, head_sequence=2, head_hash=RELEASED.hash,
        **{**TOKEN, "write_token": "t2"}, updated_at_ms=1500, **who,
    )  # fmt: skip
    insert(db, "snapshots", run_id="g", state="1")
    for event, type in ((CREATED, "activated"), (RELEASED, "released")):
        token, at_ms = f"t{event.sequence}", 500 + event.sequence * 500
        insert(
            db, "events", run_id="g", sequence=event.sequence, type=event.type,
            payload=event.payload_json, prior_hash=event.prior_hash, hash=event.hash,
            write_token=token, created_at_ms=at_ms,
        )  # fmt: skip
        insert(
            db, "ownership", run_id="g", sequence=event.sequence, type=type, owner_host_id="host",
            owner_pid=1, owner_nonce="a", generation=1, write_token=token, at_ms=at_ms,
        )  # fmt: skip


def insert_the_rest(db: sqlite3.Connection) -> None:
    insert(
        db, "operations", run_id="r", operation_id="s", kind="lease", payload_fingerprint="0" * 64,
        state="committed", outcome="1", created_at_ms=2000, updated_at_ms=2000,
        **LEASE, **TOKEN,
    )  # fmt: skip
    insert(
        db, "bindings", run_id="r", revision=1, gate="a", receipt_hash="0" * 64,
        created_at_ms=2000,
    )  # fmt: skip
    for at_ms, state in ((5000, "draining"), (6000, "open")):
        insert(
            db, "audit", action="fence-transition", principal_kind="human", principal_id="o",
            subject="deployment", before='{"proof_run_id": null}',
            after=f'{{"state": "{state}"}}', **TOKEN, at_ms=at_ms,
        )  # fmt: skip


@pytest.fixture
def db() -> Iterator[sqlite3.Connection]:
    """A run: started, stolen after its lease, ended, with an operation and a binding; and another
    one, which was started and released.

    The fence was draining from 5000 to 6000; all that happened to them happened before.
    """
    with contextlib.closing(sqlite3.connect(":memory:")) as db:
        db.row_factory = sqlite3.Row
        db.execute("PRAGMA ignore_check_constraints = ON")
        for ddl in tables.STATEMENTS:
            db.execute(ddl)
        insert_run(db)
        insert_history(db)
        insert_the_rest(db)
        insert_a_released_run(db)
        yield db


@pytest.fixture
def knowledge() -> ClientKnowledge:
    """What clients were told of that run."""
    knowledge = ClientKnowledge()
    checker = AnswerChecker(knowledge, Findings())
    head, end = ({"sequence": each.sequence, "hash": each.hash} for each in (FIRST, LAST))
    binding = {"gate": "a", "revision": 1, "receipt_hash": "0" * 64, "approval_proof": None}
    leases = {"heartbeat_at_ms": 1000, "lease_expires_at_ms": 2000}
    done = ended(head=end, generation=2)
    settled = {"state": "terminal", "outcome": "completed"}
    for request, answer in (
        a_start(run={"head": head, **leases}),
        verb("own", {"outcome": "owned", "run": a_run(owner=B, generation=2, head=head)}, owner=B),
        step("committed", "committed", 1),
        verb("bindings", {"outcome": "bound", "bindings": [binding]}),
        a_start(status=200, outcome="replayed", reservation=settled, run=done),
    ):
        checker.answered(request, Answer(answer.status, answer.body, knowledge.tick()))
    assert not checker.findings.counts
    told = knowledge.run("r")
    told.events[1] = {"sequence": 1, "type": "run-created", "payload": {"run_id": "r"}}
    told.events[1]["hash"] = FIRST.hash
    return knowledge


ROWS = {
    "histories_are_linear": [
        "UPDATE fencepost_events SET payload = '{}' WHERE sequence = 2",
        "DELETE FROM fencepost_events WHERE sequence = 1",
        "DELETE FROM fencepost_events WHERE sequence = 2",
        "DELETE FROM fencepost_events",
        f"UPDATE fencepost_runs SET head_hash = '{'0' * 64}'",
    ],
    "generations_are_given_once": [
        "UPDATE fencepost_ownership SET generation = 1",
        "UPDATE fencepost_runs SET generation = 3",
        "DELETE FROM fencepost_ownership",
    ],
    "one_key_a_run": [
        "UPDATE fencepost_reservations SET state = 'started'",
        "UPDATE fencepost_reservations SET joined = 1",
        "DELETE FROM fencepost_reservations",
        "UPDATE fencepost_runs SET finished_at_ms = NULL",
        "INSERT INTO fencepost_reservations SELECT 'k2', owner_kind, owner_id, target_kind, "
        "target_id, thread_id, fingerprint, run_id, state, attempt, claim_nonce, outcome, "
        "created_at_ms, updated_at_ms, joined, subject_sha256, admitted_revision "
        "FROM fencepost_reservations WHERE key = 'k'",
    ],
    "an_attempt_begins_once": [
        "UPDATE fencepost_reservations SET attempt = 2",
        "UPDATE fencepost_reservations SET attempt = 1",
        "UPDATE fencepost_events SET type = 'run-resolved', payload = '{\"to\": \"cancelled\"}' "
        "WHERE type = 'run-released'",
        "UPDATE fencepost_events SET type = 'run-released', payload = '{}' WHERE sequence = 2",
        "UPDATE fencepost_events SET type = 'run-restarted', payload = '{\"attempt\": 1}' "
        "WHERE sequence = 2",
    ],
    "a_released_attempt_recorded_nothing": [
        "UPDATE fencepost_events SET type = 'noted' WHERE type = 'run-created'",
        "UPDATE fencepost_operations SET run_id = 'g'",
        "UPDATE fencepost_ownership SET write_token = 'other' WHERE type = 'released'",
        "INSERT INTO fencepost_ownership (run_id, sequence, type, owner_host_id, owner_pid, "
        "owner_nonce, generation, write_token, at_ms) "
        "VALUES ('g', 3, 'cancel-acknowledged', 'host', 1, 'a', 1, 't', 1200)",
    ],
    "each_claim_ends_once": [
        "UPDATE fencepost_ownership SET owner_nonce = 'c' WHERE type = 'stolen'",
        "UPDATE fencepost_ownership SET type = 'stolen' WHERE run_id = 'r' AND sequence = 3",
        "UPDATE fencepost_ownership SET type = 'stolen' WHERE run_id = 'r' AND sequence = 1",
        "UPDATE fencepost_runs SET claim_host_id = 'host', claim_pid = 1, claim_nonce = 'c'",
        "DELETE FROM fencepost_ownership WHERE run_id = 'r' AND sequence = 3",
    ],
    "nothing_is_half_deleted": ["DELETE FROM fencepost_runs"],
    "the_fence_is_respected": [
        "UPDATE fencepost_reservations SET created_at_ms = 5500",
        'UPDATE fencepost_audit SET after = \'{"state": "migration-locked"}\', '
        "at_ms = at_ms - 4500",
        'UPDATE fencepost_audit SET after = \'{"state": "proof-only"}\', at_ms = at_ms - 4500',
    ],
    "runs_are_kept": ["DELETE FROM fencepost_runs"],
    "keys_are_kept": [
        "DELETE FROM fencepost_reservations",
        "UPDATE fencepost_reservations SET run_id = 'other'",
        "UPDATE fencepost_reservations SET attempt = 0",
        "UPDATE fencepost_reservations SET outcome = 'failed'",
    ],
    "events_are_kept": [
        "DELETE FROM fencepost_events WHERE sequence = 2",
        f"UPDATE fencepost_events SET hash = '{'0' * 64}' WHERE sequence = 1",
        "UPDATE fencepost_events SET payload = '{}' WHERE sequence = 1",
    ],
    "ends_are_kept": [
        "UPDATE fencepost_runs SET status = 'failed'",
        "UPDATE fencepost_runs SET generation = 1",
        "UPDATE fencepost_snapshots SET result = '\"other\"'",
        "DELETE FROM fencepost_snapshots",
    ],
    "outcomes_are_kept": [
        "UPDATE fencepost_operations SET outcome = '2'",
        "UPDATE fencepost_operations SET state = 'interrupted'",
        "DELETE FROM fencepost_operations",
    ],
    "bindings_are_kept": [
        f"UPDATE fencepost_bindings SET receipt_hash = '{'1' * 64}'",
        "DELETE FROM fencepost_bindings",
    ],
    "no_lease_was_cut_short": ["UPDATE fencepost_ownership SET at_ms = 1500 WHERE sequence = 2"],
    "nobody_held_what_it_was_not_granted": [
        "UPDATE fencepost_ownership SET owner_nonce = 'c' WHERE sequence = 1 AND run_id = 'r'",
        "DELETE FROM fencepost_ownership WHERE sequence = 3",
    ],
    "owners_are_kept": ["UPDATE fencepost_ownership SET owner_nonce = 'c' WHERE sequence = 3"],
}


def broken(db: sqlite3.Connection, knowledge: ClientKnowledge) -> set[str]:
    every = (*database_consistency.INVARIANTS, *database_matches_answers.INVARIANTS)
    return {each.__name__ for each in every if list(each(db, knowledge))}


@pytest.mark.parametrize(
    ("invariant", "sql"), [(name, sql) for name, texts in ROWS.items() for sql in texts]
)
def test_a_row_that_breaks_an_invariant_is_reported(
    db: sqlite3.Connection, knowledge: ClientKnowledge, invariant: str, sql: str
) -> None:
    assert broken(db, knowledge) == set()
    db.execute(sql)
    assert invariant in broken(db, knowledge)


@pytest.mark.parametrize("times", [0, 1, 2])
def test_a_keyed_event_that_is_not_there_once_is_reported(
    db: sqlite3.Connection, knowledge: ClientKnowledge, times: int
) -> None:
    knowledge.run("r").keyed_notes.add("note-1")
    for sequence in range(3, 3 + times):
        insert(
            db, "events", run_id="r", sequence=sequence, type="noted", payload='{"n": "note-1"}',
            prior_hash="0" * 64, hash="0" * 64, created_at_ms=1000, **TOKEN,
        )  # fmt: skip
    found = list(database_matches_answers.keyed_events_are_appended_once(db, knowledge))
    assert bool(found) == (times != 1)


@pytest.mark.parametrize("page", [2, 3])
def test_a_damaged_page_is_reported(tmp_path: Path, knowledge: ClientKnowledge, page: int) -> None:
    file = tmp_path / "db.sqlite"
    with contextlib.closing(sqlite3.connect(file)) as db, db:
        db.execute("CREATE TABLE t (a UNIQUE)")
        db.executemany("INSERT INTO t VALUES (?)", [(n,) for n in range(1000)])
    with contextlib.closing(database_consistency.opened(file)) as db:
        assert list(database_consistency.the_file_is_sound(db, knowledge)) == []
    pages = bytearray(file.read_bytes())
    pages[4096 * (page - 1) : 4096 * page] = bytes(4096)
    file.write_bytes(pages)
    with contextlib.closing(database_consistency.opened(file)) as db:
        assert list(database_consistency.the_file_is_sound(db, knowledge)) != []


def test_every_invariant_has_a_case_here() -> None:
    elsewhere = {
        "a_closed_fence_admits_nothing",
        "a_list_holds_what_stays",
        "each_generation_is_activated_once",
        "a_retry_is_answered_as_the_first",
        "keyed_events_are_appended_once",
        "memory_is_flat",
        "the_file_is_sound",
    }
    cases = {name for name, _ in TOLD} | ROWS.keys() | elsewhere
    said = {
        requests_and_answers.an_answer_is_documented,
        worker_memory.memory_is_flat,
        *functions(answer_invariants),
    }
    assert {
        each.__name__
        for each in (*said, *database_consistency.INVARIANTS, *database_matches_answers.INVARIANTS)
    } <= cases


def functions(module: ModuleType) -> list[Callable[..., Any]]:
    found = inspect.getmembers(module, inspect.isfunction)
    return [value for _, value in found if value.__module__ == module.__name__]
