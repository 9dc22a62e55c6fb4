"""The commands of a move, one by one: what each takes, refuses, leaves, and answers again."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import Any

import pytest

from deployments import COMMANDS, OF_A_SEAL, Deployment, import_all, moved
from fencepost import copies
from fencepost.fence import OPERATED
from fencepost.http import routes
from fencepost.schema import seal_triggers
from helpers import Client, Json, new_key, round_trips
from test_census import a_run_with_everything

# One worker has the two deployments; it begins early, as others wait for it.
pytestmark = [pytest.mark.waits, pytest.mark.xdist_group("move")]

OTHER_ID, OTHER_SEAL = "0" * 32, "f" * 64
SEAL: Json = {
    "target_id": OTHER_ID,
    "seal": OTHER_SEAL,
    "revision": 1,
    "last_admitted_revision": None,
    "manifest": {name: {"rows": 0, "digest": OTHER_SEAL} for name in copies.TABLES},
}
# Of each command a body that it takes.
BODIES: dict[str, Json] = {
    "prepare": {},
    "seal": {"target_id": OTHER_ID, "moved_to": "https://new.example"},
    "finish": SEAL,
    "void": {"target_id": OTHER_ID},
    "unseal": {"revision": 1, "receipt": OTHER_SEAL},
}


def refused(deployment: Deployment, verb: str, **body: Any) -> str:
    """The reason, of a command that has written nothing."""
    before = deployment.sql.dump()
    status, said = deployment.command(verb, **{**BODIES[verb], **body})
    assert status in (409, 503), said
    assert deployment.sql.dump() == before
    return str(said.get("reason") or said["code"])


def a_page(source: Deployment, table: str = "runs") -> Json:
    return next(iter(source.pages(table)))


def test_every_command_of_a_move_is_a_route_of_it() -> None:
    of_a_move = {route.pattern for route in routes.ROUTES if route.of_a_move}
    assert of_a_move == {f"/v1/transfer/{name}" for name in (*COMMANDS, "{table}")}


# --- Preparing ---------------------------------------------------------------------------


def test_a_prepared_target_has_an_id_and_keeps_it(target: Deployment) -> None:
    first = target.done("prepare")
    assert (first["phase"], first["state"], len(first["deployment_id"])) == (
        *("importing", "importing"),
        32,
    )
    assert target.done("prepare") == first
    assert [entry["action"] for entry in target.rows("audit")] == ["transfer-prepare"]


@pytest.mark.parametrize("state", [state for state in OPERATED if state != "migration-locked"])
def test_only_a_locked_deployment_is_prepared(target: Deployment, state: str) -> None:
    proof = "k" if state == "proof-only" else None
    target.sql.fence(state, proof_key=proof, revision=0)
    assert refused(target, "prepare") == "not_locked"


def test_a_deployment_without_a_fence_is_open_and_not_prepared(target: Deployment) -> None:
    target.sql("DELETE FROM fencepost_fence")
    assert refused(target, "prepare") == "not_locked"


def test_a_deployment_that_was_ever_open_is_not_prepared(target: Deployment) -> None:
    target.to("open")
    target.to("migration-locked")
    assert refused(target, "prepare") == "not_empty"


def test_a_locked_deployment_whose_schema_was_brought_forward_is_prepared(
    target: Deployment,
) -> None:
    target.to("migration-locked")
    assert target.done("prepare")["phase"] == "importing"


def test_a_deployment_with_a_row_of_any_table_is_not_prepared(
    source: Deployment, target: Deployment
) -> None:
    a_run_with_everything(source.alice)
    for table in copies.TABLES:
        if table == "audit":
            continue
        [row, *_] = source.rows(table)
        marks = ", ".join(f"?{number + 1}" for number in range(len(row)))
        insert = f"INSERT INTO fencepost_{table} ({', '.join(row)}) VALUES ({marks})"
        target.sql(insert, *row.values())
        assert refused(target, "prepare") == "not_empty", table
        target.sql(f"DELETE FROM fencepost_{table}")
    assert target.done("prepare")["phase"] == "importing"


# --- Sealing -----------------------------------------------------------------------------


@pytest.mark.parametrize("state", [state for state in OPERATED if state != "migration-locked"])
def test_only_a_locked_deployment_is_sealed(source: Deployment, state: str) -> None:
    source.sql.fence(state, proof_key="k" if state == "proof-only" else None)
    assert refused(source, "seal") == "not_locked"


def test_a_seal_names_one_target_and_is_answered_again(source: Deployment) -> None:
    source.to("migration-locked")
    body = BODIES["seal"]
    first = source.done("seal", **body, revision=1)
    assert (first["phase"], first["target_id"]) == ("sealed", OTHER_ID)
    assert first["moved_to"] == "https://new.example"
    before = source.sql.dump()
    assert source.done("seal", **body) == first
    assert refused(source, "seal", target_id="1" * 32) == "DEPLOYMENT_MOVED"
    assert source.status() == first
    assert source.sql.dump() == before


def test_a_seal_may_say_which_revision_it_expects(source: Deployment) -> None:
    source.to("migration-locked")
    assert refused(source, "seal", revision=2) == "FENCE_CAS_CONFLICT"


def test_a_sealed_deployment_refuses_every_write_to_every_table(source: Deployment) -> None:
    a_run_with_everything(source.alice)
    source.to("migration-locked")
    source.done("seal", **BODIES["seal"])
    stored = source.sql("SELECT name FROM sqlite_master WHERE type = 'trigger'")
    expected = {
        f"fencepost_sealed_{table}_{event}"
        for table in seal_triggers.ALL
        for event in seal_triggers.EVENTS
    }
    assert {row["name"] for row in stored} == expected


@pytest.mark.parametrize(
    "moved_to",
    [
        *("", "new.example", "ftp://new.example", "https://", "https://a b", "//new.example"),
        *("https://user:secret@new.example", "https://new.example/?a=1", "https://new.example/#a"),
        *("https://new.example/\r\nSet-Cookie: a=1", "https://né.example", 5, None),
        "https://new.example/" + "a" * 1000,
    ],
)
def test_moved_to_is_an_address(source: Deployment, moved_to: Any) -> None:
    source.to("migration-locked")
    before = source.sql.dump()
    status, said = source.command("seal", target_id=OTHER_ID, moved_to=moved_to)
    assert (status, said["code"]) == (400, "INVALID_REQUEST")
    assert source.sql.dump() == before


# --- The rows ----------------------------------------------------------------------------


def test_a_table_is_known_by_its_key_and_all_its_columns(source: Deployment) -> None:
    for name in copies.TABLES:
        of = copies.shape(name)
        stored = source.sql(f"SELECT name, pk FROM pragma_table_info('{of.table}')")
        keys = [each["name"] for each in sorted(stored, key=lambda each: each["pk"]) if each["pk"]]
        columns = [each["name"] for each in stored]
        if name == "audit":
            keys, columns = list(of.keys), [each for each in columns if each != "sequence"]
        assert (list(of.keys), list(of.columns)) == (keys, columns)


def test_every_row_of_every_table_arrives_as_it_is(source: Deployment, target: Deployment) -> None:
    for _ in range(3):
        a_run_with_everything(source.alice)
    brought = moved(source, target)["manifest"]
    assert all(each["rows"] for each in brought.values())
    for name in copies.TABLES:
        if name != "audit":
            assert target.rows(name) == source.rows(name)


def test_rows_of_the_audit_keep_their_origin_and_sequence_through_two_moves(
    source: Deployment, target: Deployment
) -> None:
    source.alice.started()
    first = moved(source, target)
    origin = {"deployment_id": first["deployment_id"]}
    entries = target.client.get("/v1/audit").json()["items"]
    old = source.client.get("/v1/audit").json()["items"]
    brought = [entry for entry in entries if entry["origin"]]
    assert [{**entry, "origin": None} for entry in brought] == old
    assert [entry["origin"] for entry in brought] == [
        {**origin, "sequence": number + 1} for number in range(len(old))
    ]
    here = [entry["action"] for entry in entries if not entry["origin"]]
    assert here == ["transfer-prepare", "transfer-finish"]
    # The target becomes a source: its rows of its own get its name, the others keep theirs.
    target.to("migration-locked")
    second = target.done("seal", **{**BODIES["seal"], "target_id": OTHER_ID})
    given = a_page(target, "audit")
    at = [given["columns"].index(name) for name in ("origin", "origin_sequence")]
    named = [[row["values"][place] for place in at] for row in given["rows"]]
    assert [name for name, _ in named].count(first["deployment_id"]) == len(old)
    own = [number for name, number in named if name == second["deployment_id"]]
    assert own == [1, len(old) + 2, len(old) + 3, len(old) + 4]


def test_an_open_deployment_gives_no_rows(source: Deployment, target: Deployment) -> None:
    source.alice.started()
    answer = source.client.get("/v1/transfer/runs")
    assert (answer.status_code, answer.json()["reason"]) == (409, "not_sealed")
    source.to("migration-locked")
    assert source.client.get("/v1/transfer/runs").json()["reason"] == "not_sealed"


def not_taken(target: Deployment, page: Json, table: str = "runs") -> str:
    before = target.sql.dump()
    status, said = target.take(table, page)
    assert status in (400, 409, 503), said
    assert target.sql.dump() == before
    return str(said.get("reason") or said["code"])


def test_rows_are_taken_by_the_target_that_the_seal_names_alone(
    source: Deployment, target: Deployment
) -> None:
    source.alice.started()
    seal = source.sealed(target, OTHER_ID)
    page = a_page(source)
    assert not_taken(target, page) == "not_prepared"
    own = target.done("prepare")["deployment_id"]
    assert not_taken(target, page) == "wrong_target"
    mine = {**page, "target_id": own}
    assert target.take("runs", mine)[0] == 200
    assert not_taken(target, {**mine, "seal": OTHER_SEAL}) == "wrong_seal"
    assert not_taken(source, page) == "DEPLOYMENT_MOVED"
    other = {**seal_of(seal), "target_id": own, "seal": OTHER_SEAL}
    assert refused(target, "finish", **other) == "wrong_seal"


def seal_of(seal: Json) -> Json:
    return {name: seal[name] for name in OF_A_SEAL}


ALTERED: dict[str, tuple[Callable[[Json], Any], str]] = {
    "a value": (lambda page: page["rows"][0]["values"].__setitem__(1, "human"), "changed"),
    "a digest": (lambda page: page["rows"][0].update(digest="0" * 64), "changed"),
    "a row less": (lambda page: page["rows"].pop(), "INVALID_REQUEST"),
    "a row twice": (lambda page: page["rows"].append(page["rows"][0]), "INVALID_REQUEST"),
    "another order": (lambda page: page["rows"].reverse(), "INVALID_REQUEST"),
    "another place": (lambda page: page.update(after=["run_0"]), "INVALID_REQUEST"),
    "other columns": (lambda page: page["columns"].reverse(), "other_shape"),
    "a column less": (lambda page: page["columns"].pop(), "other_shape"),
    "another table": (lambda page: page.update(table="events"), "INVALID_REQUEST"),
}


@pytest.mark.parametrize("name", ALTERED)
def test_a_page_that_was_changed_on_the_way_is_not_taken(
    source: Deployment, target: Deployment, name: str
) -> None:
    runs = sorted(source.alice.started()["run_id"] for _ in range(2))
    source.sealed(target, target.prepared())
    page = a_page(source)
    change, reason = ALTERED[name]
    change(page)
    assert not_taken(target, page) == reason
    if reason == "changed":
        assert target.take("runs", page)[1]["row"] == {"run_id": runs[0]}


def test_a_row_that_differs_is_refused_and_named(source: Deployment, target: Deployment) -> None:
    run = source.alice.started()
    source.sealed(target, target.prepared())
    import_all(source, target)
    target.sql("DROP TRIGGER fencepost_sealed_runs_update")
    target.sql("UPDATE fencepost_runs SET target_id = 'other'")
    status, said = target.take("runs", a_page(source))
    assert (status, said["code"], said["reason"]) == (409, "TRANSFER_ROW_REFUSED", "differs")
    assert said["row"] == {"run_id": run["run_id"]}
    assert target.rows("runs")[0]["target_id"] == "other"


def test_a_row_that_the_table_does_not_take_is_refused_and_named(
    source: Deployment, target: Deployment
) -> None:
    run = source.alice.started()
    source.sealed(target, target.prepared())
    page = a_page(source)
    row = page["rows"][0]
    row["values"][page["columns"].index("status")] = "odd"
    again(page)
    assert not_taken(target, page) == "invalid"
    assert target.take("runs", page)[1]["row"] == {"run_id": run["run_id"]}


def again(page: Json) -> None:
    """Make the digests of a page anew."""

    def digest(value: Any) -> str:
        text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()

    chain = digest([page["table"], *page["columns"]])
    for each in [
        digest(page["after"] or []),
        *(digest(row["values"]) for row in page["rows"]),
    ]:
        chain = hashlib.sha256(f"{chain}{each}".encode()).hexdigest()
    for row in page["rows"]:
        row["digest"] = digest(row["values"])
    page["digest"] = chain


def test_digests_are_as_the_page_says_they_are(source: Deployment, target: Deployment) -> None:
    source.alice.started(input={"é": "\U0001f600", "quote": '"\\'})
    source.sealed(target, target.prepared())
    for name in ("snapshots", "runs", "events"):
        page = a_page(source, name)
        same = json.loads(json.dumps(page))
        again(same)
        assert same == page


# --- Finishing, opening, making void ------------------------------------------------------


def test_a_target_is_finished_when_every_row_is_there_and_not_before(
    source: Deployment, target: Deployment
) -> None:
    a_run_with_everything(source.alice)
    seal = source.sealed(target, target.prepared())
    for name in copies.TABLES:
        before = target.sql("SELECT state, revision FROM fencepost_fence")
        status, said = target.finish(seal)
        assert (status, said["code"], said["table"]) == (409, "TRANSFER_DIFFERS", name)
        assert said["sealed_rows"] == seal["manifest"][name]["rows"] > said["rows"] == 0
        assert target.sql("SELECT state, revision FROM fencepost_fence") == before
        import_all(source, target, [name])
    status, said = target.finish(seal)
    assert (status, said["phase"], said["state"]) == (200, "finished", "migration-locked")
    assert said["revision"] > seal["revision"]
    assert said["last_admitted_revision"] == seal["last_admitted_revision"]
    assert target.finish(seal) == (200, said)


@pytest.mark.parametrize("next", OPERATED)
def test_any_move_of_its_fence_opens_a_finished_target(
    source: Deployment, target: Deployment, next: str
) -> None:
    run = source.alice.started()
    seal = moved(source, target)
    assert refused(target, "void", target_id=OTHER_ID) == "wrong_target"
    proof = {"proof_key": "proof"} if next == "proof-only" else {}
    body = {"expected": "migration-locked", "next": next, **proof}
    wrong = target.client.post("/v1/fence/transitions", {**body, "revision": 1})
    assert (wrong.status_code, wrong.json()["code"]) == (409, "FENCE_CAS_CONFLICT")
    assert target.status()["phase"] == "finished"
    headers = {"Idempotency-Key": new_key()}
    answer = target.client.post("/v1/fence/transitions", body, headers=headers)
    assert (answer.status_code, answer.json()["state"]) == (200, next)
    told = target.client.post("/v1/fence/transitions", body, headers=headers)
    assert (told.json(), told.headers["Idempotent-Replayed"]) == (answer.json(), "true")
    assert target.status()["phase"] == "none"
    assert not target.sql("SELECT name FROM sqlite_master WHERE type = 'trigger'")
    assert refused(target, "void", target_id=seal["target_id"]) == "opened"
    assert target.finish(seal)[0] == 200  # again, as it was
    cancelled = target.client.post(f"/v1/runs/{run['run_id']}/cancel", {})
    assert cancelled.status_code == 200


def test_a_void_target_answers_a_receipt_which_unseals_the_source(
    source: Deployment, target: Deployment
) -> None:
    run = source.alice.started()
    seal = moved(source, target)
    secret, target_id = seal["seal"], seal["target_id"]
    said = target.done("void", target_id=target_id)
    expected = hashlib.sha256(f"{secret}:{target_id}:void".encode()).hexdigest()
    assert (said["phase"], said["receipt"]) == ("void", expected)
    assert target.done("void", target_id=target_id) == said
    revision = seal["revision"]
    assert refused(source, "unseal", revision=revision) == "wrong_receipt"
    assert refused(source, "unseal", revision=revision - 1) == "FENCE_CAS_CONFLICT"
    unsealed = source.done("unseal", revision=revision, receipt=expected)
    assert (unsealed["phase"], unsealed["state"]) == ("none", "migration-locked")
    assert source.done("unseal", revision=revision, receipt=expected) == unsealed
    source.to("open")
    assert refused(source, "unseal", revision=revision, receipt=expected) == "FENCE_CAS_CONFLICT"
    assert source.alice.verb(run, "heartbeat").status_code == 200
    assert refused(target, "prepare") == "void"
    assert refused(target, "finish", **seal_of(seal)) == "void"


def test_a_target_that_has_taken_nothing_answers_the_receipt_to_who_holds_the_seal(
    source: Deployment, target: Deployment
) -> None:
    seal = source.sealed(target, target.prepared())
    bare = target.done("void", target_id=seal["target_id"])
    assert bare["receipt"] is None
    said = target.done("void", target_id=seal["target_id"], seal=seal["seal"])
    done = source.done("unseal", revision=seal["revision"], receipt=said["receipt"])
    assert done["state"] == "migration-locked"


def test_by_force_a_source_is_unsealed_with_a_note_which_is_audited(source: Deployment) -> None:
    source.to("migration-locked")
    revision = source.done("seal", **BODIES["seal"])["revision"]
    for body in ({"force": True}, {"force": True, "note": "x", "receipt": OTHER_SEAL}, {}):
        status, said = source.command("unseal", revision=revision, **body)
        assert (status, said["code"]) == (400, "INVALID_REQUEST")
    source.done("unseal", revision=revision, force=True, note="the new one is lost")
    last = source.client.get("/v1/audit").json()["items"][-1]
    assert (last["action"], last["note"]) == ("transfer-unseal", "the new one is lost")
    assert last["after"]["force"] == 1
    assert not source.sql("SELECT name FROM sqlite_master WHERE type = 'trigger'")


@pytest.mark.parametrize("verb", ["finish", "void", "unseal"])
def test_a_deployment_that_no_move_has_named_refuses(source: Deployment, verb: str) -> None:
    expected = "FENCE_CAS_CONFLICT" if verb == "unseal" else "not_prepared"
    assert refused(source, verb) == expected


# --- Who may, and what it costs -----------------------------------------------------------


@pytest.mark.parametrize("verb", COMMANDS)
@pytest.mark.parametrize("token", ["alice", "reader", "starter", "worker"])
def test_only_an_operator_moves_a_deployment(source: Deployment, verb: str, token: str) -> None:
    before = source.sql.dump()
    answer = Client(source.client.http, token).post(f"/v1/transfer/{verb}", BODIES[verb])
    assert answer.status_code == 403
    assert source.sql.dump() == before


def test_a_seal_and_a_page_cost_few_round_trips(source: Deployment, target: Deployment) -> None:
    source.alice.started()
    source.to("migration-locked")
    own = target.prepared()
    answers = {
        "seal": source.client.post("/v1/transfer/seal", {**BODIES["seal"], "target_id": own}),
        "give": source.client.get("/v1/transfer/runs"),
        "take": target.client.post("/v1/transfer/runs", a_page(source)),
    }
    trips = {name: round_trips(answer) for name, answer in answers.items()}
    # Of a seal: a look at the schema, read, seal, read, the ten tables, read, keep.
    assert trips["seal"] <= 6 + len(copies.TABLES) + 1
    assert (trips["give"], trips["take"]) == (2, 1)
