"""Every write of an operator to another principal's run is audited, in its batch; but renewals."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from helpers import Client, Json, Sql
from mutations import KEYED, ROWS, Row
from worlds import World, said

# Of the deployment, and audited whoever's run it is about.
OF_THE_DEPLOYMENT = ("/v1/fence/transitions", "/v1/retention/purge", "/v1/starts/{key}/resolve")
RELEASE = "/v1/starts/{key}/release"  # sent as its owner, in `mutations`
OF_RUNS = {name: row for name, row in KEYED.items() if name not in (*OF_THE_DEPLOYMENT, RELEASE)}
RENEWALS = {name: row for name, row in ROWS.items() if name not in KEYED and "runs" in name}


def params(rows: dict[str, Row]) -> list[Any]:
    return [pytest.param(name, row, id=name) for name, row in rows.items()]


def audited(sql: Sql, run: Json) -> list[Json]:
    return sql(
        "SELECT action, principal_id, subject FROM fencepost_audit WHERE principal_id = 'olga' "
        "AND subject = ?1 ORDER BY sequence",
        run["run_id"],
    )


def verb_of(name: str) -> str:
    path = name.split(" ")[0].removeprefix("/v1/").removeprefix("runs/{run_id}/")
    return (
        path.replace("{op}/", "").replace("{key}/", "").replace("lineage/cancel", "lineage-cancel")
    )


@pytest.mark.parametrize(("name", "row"), params(OF_RUNS))
def test_a_write_of_an_operator_to_a_foreign_run_is_audited_once(
    client: Client, sql: Sql, name: str, row: Row
) -> None:
    world = World(client, sql, row)
    before = audited(sql, world.run)
    for _ in range(2):  # with a key: the retry writes nothing
        answer = world.act(world.key(), "operator")
        assert answer.status_code == row.won, answer.text
    [entry] = audited(sql, world.run)[len(before) :]
    assert entry["action"] == verb_of(name)


@pytest.mark.parametrize(("name", "row"), params(dict(itertools.islice(OF_RUNS.items(), 4))))
def test_its_own_runs_are_no_matter_for_the_audit(
    client: Client, sql: Sql, name: str, row: Row
) -> None:
    world = World(client.as_("operator"), sql, row)
    before = audited(sql, world.run)
    assert world.act().status_code == row.won
    assert audited(sql, world.run) == before


def test_a_release_by_an_operator_is_audited(client: Client, sql: Sql) -> None:
    run = client.started()
    answer = client.as_("operator").post(
        f"/v1/starts/{run['key']}/release", {"owner": run["owner"]}
    )
    assert answer.json()["outcome"] == "released"
    [entry] = audited(sql, run)
    assert entry["action"] == "starts/release"


@pytest.mark.parametrize(("name", "row"), params(RENEWALS))
def test_a_renewal_is_not_audited(client: Client, sql: Sql, name: str, row: Row) -> None:
    world = World(client, sql, row)
    assert said(world.act({}, "operator"))[0] == 200
    assert not audited(sql, world.run)


def test_what_lost_or_wrote_nothing_is_not_audited(client: Client, sql: Sql) -> None:
    run, operator = client.started(), client.as_("operator")
    sql("DELETE FROM fencepost_audit")
    assert operator.verb(run, "own").status_code == 200  # the present holder's, and no write
    assert operator.verb(run, "activate", claimed_at_ms=1).status_code == 409
    assert (
        operator.post(f"/v1/runs/{run['run_id']}/claim", {"owner": run["owner"]}).status_code == 409
    )
    assert not audited(sql, run)
