"""The benchmarks measure what they say: the peer does the same job, with the product's own SQL."""

from __future__ import annotations

import ast
import importlib
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from bench import alike, plans, report, seed
from bench.measure import Spread, ratio, serve
from conftest import ROOT
from fencepost.schema import tables
from test_budgets import STATEMENTS


def test_the_peer_answers_as_the_worker_does_with_the_same_trips_and_rows() -> None:
    with serve(plans.plans()) as served:
        assert served.peer
        assert alike.differences(served.url, served.peer) == []


@pytest.mark.parametrize("verb", plans.plans())
def test_a_plan_is_made_of_the_products_sql_and_knows_each_value_that_varies(verb: str) -> None:
    plan = plans.plans()[verb]
    assert plan == plans.plans()[verb]  # what is minted anew each time has a name
    assert {each["sql"] for each in plan} <= {known.sql for known in STATEMENTS.values()}


def test_what_is_seeded_has_every_column_of_every_table_that_it_fills(tmp_path: Path) -> None:
    file = tmp_path / "seeded.sqlite"
    with closing(sqlite3.connect(file)) as database:
        for ddl in tables.STATEMENTS:
            database.execute(ddl)
    seed.write(file, seed.Seed(100, at_ms=1_700_000_000_000))
    with closing(sqlite3.connect(file)) as database:
        empty = {
            table
            for table in tables.TABLES
            if not database.execute(f"SELECT COUNT(*) FROM {table}").fetchone()[0]
        }
    assert empty == {"fencepost_fence", "fencepost_requests", "fencepost_transfer"}


def test_every_stage_that_is_clocked_is_there() -> None:
    tree = ast.parse((ROOT / "bench/workers/clocks/entry.py").read_text())
    [stages] = (
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "STAGES"
    )
    for name in (name for names in stages.values() for name in names):
        path, _, attribute = name.partition(":")
        place = importlib.import_module(f"fencepost.{path}")
        for part in attribute.split("."):
            place = getattr(place, part)


def test_a_ratio_is_of_rounds_and_a_table_is_markdown() -> None:
    assert ratio([1, 9, 4], [2, 3, 4]) == Spread(1, 0.5, 3)
    table = report.Table(("a", "n"), [["one", "1"], ["two", "22"]])
    assert table.text().splitlines() == [
        "| a   |  n |",
        "| --- | -: |",
        "| one |  1 |",
        "| two | 22 |",
    ]
