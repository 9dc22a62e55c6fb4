"""The pages of a move: cut by rows and bytes, taken in order, again, and by two at once."""

from __future__ import annotations

import asyncio
import json

import httpx
import pytest

from deployments import OF_A_SEAL, Deployment, import_all
from fencepost import limits
from helpers import Json, connect_async
from test_transfer import again, not_taken

# One worker has the two deployments; it begins early, as others wait for it.
pytestmark = [pytest.mark.waits, pytest.mark.xdist_group("move")]

ROWS = 950


@pytest.fixture
def pages(source: Deployment, target: Deployment) -> list[Json]:
    """Three pages of subjects, of a sealed source, for a target that imports."""
    source.sql(
        "WITH RECURSIVE counted(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM counted "
        f"WHERE n < {ROWS}) INSERT INTO fencepost_subjects "
        "SELECT 'service', 'a''é' || (n % 3), 'build', 'change:' || n, 'run-' || n FROM counted"
    )
    source.sealed(target, target.prepared())
    found = list(source.pages("subjects"))
    assert [len(page["rows"]) for page in found] == [400, 400, 150]
    return found


def cursor_of(target: Deployment, table: str) -> str | None:
    [cursor] = [each["cursor"] for each in target.status()["imported"] if each["table"] == table]
    return None if cursor is None else str(cursor)


def test_pages_are_taken_in_their_order_and_again(
    source: Deployment, target: Deployment, pages: list[Json]
) -> None:
    first, second, third = pages
    assert not_taken(target, third, "subjects") == "out_of_order"
    assert not_taken(target, second, "subjects") == "out_of_order"
    assert target.take("subjects", first) == (200, {"rows": 400, "inserted": 400})
    assert target.take("subjects", first) == (200, {"rows": 400, "inserted": 0})
    assert not_taken(target, third, "subjects") == "out_of_order"
    assert cursor_of(target, "subjects") == first["cursor"]
    assert target.take("subjects", second)[1]["inserted"] == 400
    assert target.take("subjects", first)[1]["inserted"] == 0
    assert target.take("subjects", third)[1]["inserted"] == 150
    assert target.rows("subjects") == source.rows("subjects")


def test_stopped_at_any_page_a_move_goes_on_behind_it(
    source: Deployment, target: Deployment, pages: list[Json]
) -> None:
    taken = 0
    while (cursor := cursor_of(target, "subjects")) is not None or taken == 0:
        query = {} if cursor is None else {"cursor": cursor}
        page = source.client.get("/v1/transfer/subjects", params=query).json()
        assert target.take("subjects", page)[0] == 200
        taken += len(page["rows"])
        if page["cursor"] is None:
            break
    assert taken == ROWS
    assert target.rows("subjects") == source.rows("subjects")


@pytest.mark.anyio
async def test_two_movers_and_a_finish_at_once_bring_every_row_once(
    source: Deployment, target: Deployment, pages: list[Json]
) -> None:
    import_all(source, target, ["audit"])
    seal = source.status()
    headers = {"Authorization": "Bearer operator"}
    asked = {name: seal[name] for name in OF_A_SEAL}

    async def mover(http: httpx.AsyncClient) -> None:
        for page in pages:
            answer = await http.post("/v1/transfer/subjects", json=page, headers=headers)
            assert answer.json().get("reason") in (None, "opened"), answer.text

    async def finisher(http: httpx.AsyncClient) -> None:
        while True:
            answer = await http.post("/v1/transfer/finish", json=asked, headers=headers)
            assert answer.json().get("code") in (None, "TRANSFER_DIFFERS", "CONTENDED")
            if answer.status_code == 200 and answer.json()["phase"] == "finished":
                return

    async with connect_async(target.url) as http:
        await asyncio.gather(mover(http), mover(http), finisher(http), finisher(http))
    assert target.rows("subjects") == source.rows("subjects")
    acts = [row["action"] for row in target.rows("audit") if row["origin"] is None]
    assert acts == ["transfer-prepare", "transfer-finish"]


def test_a_row_that_stands_in_the_target_and_not_in_the_source_is_found_and_named(
    source: Deployment, target: Deployment, pages: list[Json]
) -> None:
    target.sql(
        "INSERT INTO fencepost_subjects VALUES ('service', 'a''é0', 'build', 'change:3x', 'r')"
    )
    said = [target.take("subjects", page) for page in pages]
    [(status, problem)] = [each for each in said if each[0] != 200]
    assert (status, problem["reason"]) == (409, "unexpected")
    assert problem["row"]["lookup_key"] == "change:3x"


def test_a_page_ends_at_its_bytes_and_has_one_row_at_least(
    source: Deployment, target: Deployment
) -> None:
    for number in range(4):
        source.alice.started(input='"' * (500_000 if number else 10))
    source.sealed(target, target.prepared())
    found = list(source.pages("snapshots"))
    assert 2 <= len(found) <= 4
    assert all(page["rows"] for page in found)
    assert max(len(json.dumps(page)) for page in found) <= limits.PAGE_BYTES_MAX
    for page in found:
        assert target.take("snapshots", page)[0] == 200
    assert target.rows("snapshots") == source.rows("snapshots")


@pytest.mark.parametrize(
    "value", ["a\0b", True, 1.5, [1], {"a": 1}, 2**53, "x" * (limits.VALUE_BYTES_MAX + 1)]
)
def test_a_value_that_no_column_holds_is_not_taken(
    source: Deployment, target: Deployment, pages: list[Json], value: object
) -> None:
    page = json.loads(json.dumps(pages[0]))
    page["rows"][3]["values"][1] = value
    again(page)
    assert not_taken(target, page, "subjects") == "INVALID_REQUEST"


def test_a_body_over_eight_mebibytes_is_not_read(target: Deployment, pages: list[Json]) -> None:
    page = json.dumps({**pages[0], "cursor": "A" * limits.TRANSFER_BODY_BYTES_MAX})
    answer = target.client.request("POST", "/v1/transfer/subjects", content=page)
    assert (answer.status_code, answer.json()["code"]) == (413, "TOO_LARGE")


@pytest.mark.parametrize("cursor", ["x", "WyJhIl0", "WyJhIiwiYiIsImMiLCJkIiwiZSJd"])
def test_a_cursor_of_another_table_is_not_one_of_this(
    source: Deployment, pages: list[Json], cursor: str
) -> None:
    answer = source.client.get("/v1/transfer/subjects", params={"cursor": cursor})
    assert (answer.status_code, answer.json()["code"]) == (400, "INVALID_REQUEST")


def test_a_cursor_with_a_text_for_a_number_is_refused(
    source: Deployment, pages: list[Json]
) -> None:
    cursor = "WyJydW4iLCJ4Il0"  # ["run","x"]
    answer = source.client.get("/v1/transfer/events", params={"cursor": cursor})
    assert (answer.status_code, answer.json()["code"]) == (400, "INVALID_REQUEST")
