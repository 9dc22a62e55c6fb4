"""The rules of the tree: which module may import what, how long a file may grow."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

import pytest

from conftest import ROOT

MODULES = sorted((ROOT / "src").rglob("*.py"))
MAY_TOUCH_JAVASCRIPT = {"d1.py", "routes.py", "entry.py"}
# Imports point one way: a module imports only what stands to its left.
ORDER = [
    *("limits", "identifiers", "problems", "errors", "failures", "rows", "promptly"),
    *("d1", "commit", "run_tables"),
    *("schema", "shape", "migrations", "schema_guard", "audit", "fence"),
    *("journal", "reservation", "runs", "machines", "projection", "snapshot", "ownership"),
    *("transition", "events", "subjects", "claims", "bindings", "operations", "leases"),
    *("lineage", "cancellation", "release", "resolve", "retention", "decision", "starts"),
    *("strictjson", "exchange", "auth", "body", "nouns", "wire", "bodies", "representations"),
    *("operator_representations", "extensions", "shapes", "inventory", "answers", "handlers"),
    *("history_handlers", "delivery_handlers", "operation_handlers", "administration"),
    *("route", "json_schema", "openapi", "docs_page", "table", "routes", "entry"),
]


def imports(module: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.add(node.module)
            if node.module == "fencepost":
                found |= {f"fencepost.{alias.name}" for alias in node.names}
    return found


@pytest.mark.parametrize("module", MODULES, ids=lambda path: path.name)
def test_only_three_modules_touch_javascript(module: Path) -> None:
    touched = {name.split(".")[0] for name in imports(module)} & {"js", "pyodide", "workers"}
    assert not touched or module.name in MAY_TOUCH_JAVASCRIPT


@pytest.mark.parametrize("module", MODULES, ids=lambda path: path.name)
def test_imports_point_one_way(module: Path) -> None:
    if module.name == "__init__.py":
        assert not imports(module)
        return
    allowed = set(ORDER[: ORDER.index(module.stem)])
    used = {name.split(".")[1] for name in imports(module) if name.startswith("fencepost.")}
    assert used <= allowed


@pytest.mark.parametrize("module", MODULES, ids=lambda path: path.name)
def test_files_stay_under_300_lines_and_functions_under_40(module: Path) -> None:
    text = module.read_text()
    assert len(text.splitlines()) <= 300
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            assert node.end_lineno - node.lineno < 40, node.name


def test_everything_but_the_entry_also_imports_on_plain_python() -> None:
    assert sys.version_info >= (3, 11)
    for module in MODULES:
        if module.stem not in ("entry", "__init__"):
            __import__(f"fencepost.{module.stem}")
