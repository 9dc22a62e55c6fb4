"""The rules of the tree: which room may import what, one noun a module, functions on a screen."""

from __future__ import annotations

import ast
import sys
from collections import Counter
from pathlib import Path

import pytest

from conftest import ROOT

SRC = ROOT / "src"
MODULES = sorted(SRC.rglob("*.py"))
# Where Python meets the runtime. Everything else also runs on plain CPython.
MAY_TOUCH_JAVASCRIPT = {
    "entry",
    "fencepost.http.server",
    "fencepost.storage.d1",
    "fencepost.storage.event_loop",
}
# Plain values, that every room may use; and nothing but each other.
PLAIN = ("identifiers", "limits", "errors", "problems")
# What each room may import of the others. `http` and `entry` are the top: nobody imports them.
ROOMS = {
    "plain": set(),
    "storage": {"plain"},
    "schema": {"plain", "storage"},
    "nouns": {"plain", "storage"},
    "http": {"plain", "storage", "nouns"},
    "entry": {"plain", "storage", "nouns", "http"},
}
# The guard rides in the storage: it alone asks the schema, when it looks or creates. A move copies
# whole tables, and closes them.
EXCEPTIONS = {
    ("fencepost.storage.d1", "fencepost.schema.guard"),
    ("fencepost.copies", "fencepost.schema.ddl"),
    ("fencepost.copies", "fencepost.schema.migrations"),
    ("fencepost.transfer", "fencepost.schema.seal_triggers"),
}


def name_of(module: Path) -> str:
    parts = module.relative_to(SRC).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


def room_of(name: str) -> str:
    first, _, rest = name.partition(".")
    if first == "entry":
        return "entry"
    folder, inside, _ = rest.partition(".")
    if inside or folder in ("http", "schema", "storage"):
        return folder
    return "plain" if folder in (*PLAIN, "") else "nouns"


NAMES = {name_of(module) for module in MODULES}


def imports(module: Path) -> set[str]:
    """The modules that a module names, wherever in it; also those that only types need."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            inside = {f"{node.module}.{alias.name}" for alias in node.names} & NAMES
            found |= inside or {node.module}
    return found


@pytest.mark.parametrize("module", MODULES, ids=name_of)
def test_only_the_declared_modules_touch_javascript(module: Path) -> None:
    touched = {name.split(".")[0] for name in imports(module)} & {"js", "pyodide", "workers"}
    assert not touched or name_of(module) in MAY_TOUCH_JAVASCRIPT


@pytest.mark.parametrize("module", MODULES, ids=name_of)
def test_a_room_imports_only_the_rooms_below_it(module: Path) -> None:
    name = name_of(module)
    room = room_of(name)
    for imported in imports(module) & NAMES:
        allowed = room_of(imported) in ROOMS[room] | {room}
        assert allowed or (name, imported) in EXCEPTIONS, f"{name} imports {imported}"


def test_no_two_modules_import_each_other_even_by_a_detour() -> None:
    """But for the exceptions, whose import waits until it is needed."""
    graph = {name_of(module): imports(module) & NAMES for module in MODULES}
    for importing, imported in EXCEPTIONS:
        graph[importing] = graph[importing] - {imported}
    lazy = {"fencepost.http.deployment": {"fencepost.http.openapi", "fencepost.http.docs_page"}}
    done: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, " → ".join((*path, name))
        if name not in done:
            for imported in graph[name] - lazy.get(name, set()) - {"fencepost"}:
                visit(imported, (*path, name))
            done.add(name)

    for name in graph:
        visit(name, ())


# Its JSON is no SQL: a cursor, and a log line.
MAY_ESCAPE = {"fencepost.http.queries", "fencepost.http.server"}


@pytest.mark.parametrize("module", MODULES, ids=name_of)
def test_json_is_never_escaped_to_ascii(module: Path) -> None:
    """Escaped, a legal body of other characters would be longer than what D1 takes."""
    if name_of(module) in MAY_ESCAPE:
        return
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in (
            "json.dumps",
            "json.JSONEncoder",
        ):
            given = {word.arg: ast.unparse(word.value) for word in node.keywords}
            assert given.get("ensure_ascii") == "False", ast.unparse(node)


@pytest.mark.parametrize("module", MODULES, ids=name_of)
def test_a_function_fits_on_a_screen(module: Path) -> None:
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            assert node.end_lineno - node.lineno < 40, node.name


def test_no_two_classes_have_one_name() -> None:
    names = Counter(
        node.name
        for module in MODULES
        for node in ast.walk(ast.parse(module.read_text()))
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert [name for name, count in names.items() if count > 1] == []


def test_everything_but_the_entry_also_imports_on_plain_python() -> None:
    assert sys.version_info >= (3, 11)
    for name in NAMES - {"entry"}:
        __import__(name)
