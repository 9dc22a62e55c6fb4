"""Reading a definition: what differs between two, and what does not matter."""

from __future__ import annotations

import json
import re

import pytest

from fencepost.schema import ddl
from fencepost.schema.migrations import DDL

RUNS, EVENTS = "fencepost_runs", "fencepost_events"


@pytest.mark.parametrize("name", DDL)
def test_comments_case_spaces_and_quotes_do_not_matter(name: str) -> None:
    written = re.sub(r"--[^\n]*", "/* other; ' */", DDL[name])
    written = written.replace("IF NOT EXISTS ", "").replace(name, f'"{name}"', 1)
    written = written.replace("TEXT NOT NULL", "text\n\tnot  null").replace("  ", "\n")
    assert ddl.compare(name, DDL[name], written) is None
    assert ddl.digest(written) == ddl.digest(DDL[name])


def test_the_case_of_a_text_matters() -> None:
    other = DDL["fencepost_events"].replace("STRICT,", "strict,")
    assert ddl.compare("t", DDL["fencepost_events"], other) is None
    other = DDL[RUNS].replace("'human'", "'Human'", 1)
    found = ddl.compare(RUNS, DDL[RUNS], other)
    assert found is not None
    assert json.dumps(found[1:]) == '["principal_kind", "CHECK"]'


def test_a_foreign_key_is_a_difference() -> None:
    ours = DDL[EVENTS]
    other = ours.replace("run_id TEXT NOT NULL", "run_id TEXT NOT NULL REFERENCES fencepost_runs")
    assert ddl.compare(EVENTS, ours, other) == (EVENTS, "run_id", "REFERENCES")
    key = "FOREIGN KEY (run_id) REFERENCES fencepost_runs (run_id), PRIMARY KEY"
    other = ours.replace("PRIMARY KEY", key)
    assert ddl.compare(EVENTS, ours, other) == (EVENTS, "run_id", "FOREIGN KEY")
