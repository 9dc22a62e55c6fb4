"""What comes too late, or from another process, or on another history: refused, nothing written."""

from __future__ import annotations

import json

import pytest

from helpers import Client, Json, Sql, an_owner
from refusals import FENCE_LOST, Refusals, verbs


@pytest.mark.parametrize("to", ["completed", "failed", "cancelled"])
def test_a_run_that_ended_is_never_moved_again(
    refused: Refusals, client: Client, run: Json, to: str
) -> None:
    client.finish(run, to, result="the end").raise_for_status()
    for again in ("running", "suspended", "completed", "failed", "cancelled"):
        body = {"owner": run["owner"], "to": again}
        problem = refused.post(verbs(run)[2], body, FENCE_LOST)
        assert problem["outcome"] == "fence_lost"
        assert problem["run"]["status"] == to
    refused.post(verbs(run)[1], {"owner": run["owner"]}, FENCE_LOST)
    problem = refused.post(
        verbs(run)[0], {"owner": run["owner"]}, (409, "SNAPSHOT_CHANGED", "never")
    )
    assert problem["outcome"] == "snapshot_changed"
    release = f"/v1/starts/{run['key']}/release"
    refused.post(release, {"owner": run["owner"]}, FENCE_LOST)


def test_a_process_that_lost_its_lease_is_told_to_stop(
    refused: Refusals, client: Client, sql: Sql, run: Json
) -> None:
    sql.lapse(run["run_id"])
    evidence = {"kind": "lease-expired", "expected_owner": run["owner"]}
    taken = client.post(verbs(run)[0], {"owner": an_owner(), "evidence": evidence})
    assert taken.json()["outcome"] == "owned"
    for path, more in ((verbs(run)[1], {}), (verbs(run)[2], {"to": "completed"})):
        problem = refused.post(path, {"owner": run["owner"], **more}, FENCE_LOST)
        assert problem["outcome"] == "fence_lost"
        assert problem["run"]["generation"] == 2
        assert "state" not in problem["run"]
    release = f"/v1/starts/{run['key']}/release"
    refused.post(release, {"owner": run["owner"]}, FENCE_LOST)


@pytest.mark.parametrize("nearly", [{"pid": 8}, {"nonce": "other"}, {"host_id": "other"}])
def test_only_the_whole_owner_is_the_owner(refused: Refusals, run: Json, nearly: Json) -> None:
    for path, more in ((verbs(run)[1], {}), (verbs(run)[2], {"to": "completed"})):
        refused.post(path, {"owner": {**run["owner"], **nearly}, **more}, FENCE_LOST)


@pytest.mark.parametrize(
    "head",
    [
        {"sequence": 1, "hash": "0" * 64},
        {"sequence": 2},
        {"sequence": 9_007_199_254_740_990},
    ],
    ids=json.dumps,
)
def test_a_history_that_ends_elsewhere_than_expected_is_not_continued(
    refused: Refusals, run: Json, head: Json
) -> None:
    body = {"owner": run["owner"], "to": "completed", "expected_head": {**run["head"], **head}}
    problem = refused.post(verbs(run)[2], body, (409, "HEAD_CHANGED", "never"))
    assert problem["outcome"] == "head_changed"
    assert problem["run"]["head"] == run["head"]


def test_a_guard_that_does_not_hold_moves_nothing(refused: Refusals, run: Json) -> None:
    body = {"owner": run["owner"], "to": "cancelled", "guard": {"cancel_requested": "present"}}
    problem = refused.post(verbs(run)[2], body, (409, "GUARD_FAILED", "never"))
    assert problem["outcome"] == "guard_failed"
