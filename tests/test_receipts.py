"""Receipts: a history that was replaced as a whole is proved to be another one."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Iterator

import pytest

from conftest import start_bridge, stop_bridge
from fencepost import journal, receipts
from fencepost.journal import GENESIS, Head
from fencepost.receipts import Receipts
from helpers import Client, Json, Sql, connect, new_key

pytestmark = pytest.mark.xdist_group("receipts")
OLD, NEW = "a" * 32, "b" * 64


@pytest.fixture(scope="module")
def signing() -> Iterator[tuple[Client, Sql]]:
    """A deployment with two keys, of which the second one was the first before."""
    variables = {"FENCEPOST_RECEIPT_KEY": f"{NEW},{OLD}"}
    process, addresses = start_bridge(tokens=Client.TOKENS, variables=variables)
    with connect(addresses["url"]) as http, connect(addresses["sql"]) as sql:
        yield Client(http), Sql(sql)
    stop_bridge(process)


def signed(key: str, run_id: str, head: Json) -> str:
    text = f"{run_id} {head['sequence']} {head['hash']}"
    return hmac.new(key.encode(), text.encode(), hashlib.sha256).hexdigest()


def verify(client: Client, run: Json, head: Json) -> Json:
    answer = client.post(f"/v1/runs/{run['run_id']}/receipts/verify", head)
    assert answer.status_code == 200, answer.text
    said: Json = answer.json()
    return said


def test_every_head_that_is_given_out_has_a_receipt(signing: tuple[Client, Sql]) -> None:
    client, _ = signing
    run = client.started()
    path = f"/v1/runs/{run['run_id']}"
    heads = [run["head"], client.finish(run, "running", state=1).json()["run"]["head"]]
    heads += [client.get(path).json()["head"], client.get(f"{path}/integrity").json()["head"]]
    heads += [client.get("/v1/runs").json()["items"][-1]["head"]]
    heads += [client.finish(run, expected_head=run["head"]).json()["run"]["head"]]
    for head in heads:
        assert head["receipt"] == signed(NEW, run["run_id"], head)
        assert verify(client, run, head)["valid"]


def test_a_head_goes_back_with_its_receipt_or_without_it(signing: tuple[Client, Sql]) -> None:
    client, _ = signing
    run = client.started()
    moved = client.finish(run, "running", state=1, expected_head=run["head"]).json()["run"]
    bare = {name: moved["head"][name] for name in ("sequence", "hash")}
    assert client.finish(run, expected_head=bare).status_code == 200


def test_a_receipt_of_a_key_that_was_replaced_is_valid_as_long_as_it_is_in_the_list(
    signing: tuple[Client, Sql],
) -> None:
    client, _ = signing
    run = client.started()
    for key, valid in ((NEW, True), (OLD, True), ("c" * 32, False)):
        head = {**run["head"], "receipt": signed(key, run["run_id"], run["head"])}
        assert verify(client, run, head) == {"valid": valid, "kept": True, "head": run["head"]}


def test_a_history_that_was_forged_as_a_whole_is_intact_and_proved_to_be_another(
    signing: tuple[Client, Sql],
) -> None:
    client, sql = signing
    run = client.started()
    told = client.verb(run, "events", type="paid", payload={"cents": 500}).json()["run"]["head"]
    rows = sql("SELECT * FROM fencepost_events WHERE run_id = ?1 ORDER BY 2", run["run_id"])
    head: Head = GENESIS
    for row in rows:
        payload = {"cents": 5} if row["type"] == "paid" else json.loads(row["payload"])
        event = journal.next_event(head, row["type"], payload)
        sql(
            "UPDATE fencepost_events SET payload = ?3, prior_hash = ?4, hash = ?5 "
            "WHERE run_id = ?1 AND sequence = ?2",
            *(run["run_id"], row["sequence"], event.payload_json, event.prior_hash, event.hash),
        )
        head = event.head
    sql("UPDATE fencepost_runs SET head_hash = ?2 WHERE run_id = ?1", run["run_id"], head.hash)
    path = f"/v1/runs/{run['run_id']}"
    assert client.get(f"{path}/integrity").json()["intact"]
    assert verify(client, run, told) | {"head": None} == {
        "valid": True,
        "kept": False,
        "head": None,
    }
    assert verify(client, run, run["head"])["kept"]  # the first event is as it was
    sql("DELETE FROM fencepost_events WHERE run_id = ?1 AND sequence = 2", run["run_id"])
    assert not verify(client, run, told)["kept"]


def test_a_receipt_is_of_its_run_sequence_and_hash_alone(signing: tuple[Client, Sql]) -> None:
    client, _ = signing
    run, other = client.started(), client.started()
    head = run["head"]
    assert not verify(client, other, head)["valid"]
    for changed in ({"sequence": 2}, {"hash": "0" * 64}, {"receipt": "0" * 64}):
        said = verify(client, run, {**head, **changed})
        assert said["valid"] is False
        assert said["kept"] is ("receipt" in changed)


def test_nobody_verifies_the_receipt_of_a_run_that_he_may_not_see(
    signing: tuple[Client, Sql],
) -> None:
    client, _ = signing
    run = client.started()
    path = f"/v1/runs/{run['run_id']}/receipts/verify"
    answer = client.as_("bob").post(path, run["head"])
    assert (answer.status_code, answer.json()["code"]) == (404, "RUN_NOT_FOUND")


def test_without_a_key_heads_have_no_receipt_and_none_is_known(client: Client, sql: Sql) -> None:
    run = client.started()
    assert run["head"].keys() == {"sequence", "hash"}
    path = f"/v1/runs/{run['run_id']}/receipts/verify"
    answer = client.post(path, {**run["head"], "receipt": "0" * 64})
    assert (answer.status_code, answer.json()["code"]) == (503, "RECEIPTS_UNCONFIGURED")


@pytest.mark.parametrize(
    "setting", ["", "short", f"{NEW},", f",{NEW}", f"{NEW},{NEW}", f"{NEW}, {OLD}", "é" * 40]
)
def test_a_list_with_a_key_that_is_none_has_none(setting: str) -> None:
    assert Receipts(setting).sign("run", Head(1, "0" * 64)) is None


def test_an_isolate_takes_the_keys_that_the_deployment_has() -> None:
    before = receipts.given.setting
    receipts.use(NEW)
    assert receipts.given.sign(new_key(), Head(1, "0" * 64)) is not None
    receipts.use(before)
