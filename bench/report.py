"""What a run says: sections of sentences and tables in Markdown, and the machine beneath."""

from __future__ import annotations

import json
import os
import platform
import re
import subprocess
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from bench.measure import NODE, PROJECT, Options


class Table(NamedTuple):
    """The first column is text, the others are numbers."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]

    def text(self) -> str:
        lines = [self.header, *self.rows]
        widths = [max(len(line[i]) for line in lines) for i in range(len(self.header))]
        rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
        padded = [
            [cell.ljust(w) if i == 0 else cell.rjust(w) for i, (cell, w) in enumerate(zipped)]
            for zipped in (list(zip(line, widths, strict=True)) for line in [lines[0], *lines[1:]])
        ]
        return "\n".join(f"| {' | '.join(cells)} |" for cells in [padded[0], rule, *padded[1:]])


class Section(NamedTuple):
    """`name` is what --only takes."""

    name: str
    title: str
    parts: list[str | Table]

    def text(self) -> str:
        parts = [part if isinstance(part, str) else part.text() for part in self.parts]
        return "\n\n".join([f"## {self.title}", *parts])


def document(sections: list[Section], options: Options, minutes: float) -> str:
    """The whole of results.md."""
    sizes = ", ".join(f"{size:,}" for size in options.sizes)
    how = (
        f"`npm run bench`: {options.rounds} rounds of {options.seconds:g} s in turns, sizes "
        f"{sizes}; {minutes:.0f} minutes. Numbers are medians of the rounds, with lowest and "
        "highest. One machine ran it all and made the load as well: compare rates, do not quote "
        "them."
    )
    facts = [f"- {name}: {value}" for name, value in (*versions().items(), *machine().items())]
    head = [f"# Benchmarks, {datetime.now(UTC):%Y-%m-%d %H:%M} UTC", how, "\n".join(facts)]
    cuts = (PROJECT / "bench" / "cuts.md").read_text()
    return "\n\n".join([*head, *(section.text() for section in sections), cuts])


def versions() -> dict[str, str]:
    """Of everything that takes part."""
    node = subprocess.run([NODE, "--version"], capture_output=True, text=True, check=True)
    pyodide = _package("pyodide")
    lock = json.loads((PROJECT / "node_modules/pyodide/pyodide-lock.json").read_text())
    return {
        "Node": node.stdout.strip().removeprefix("v"),
        "workerd": _package("workerd"),
        "Miniflare": _package("miniflare"),
        "Python of the Worker": f"{lock['info']['python']} (Pyodide {pyodide})",
        "Python of the benchmark": platform.python_version(),
        "Fencepost": _fencepost(),
        "ctrlrun": _locked("ctrlrun"),
    }


def machine() -> dict[str, str]:
    """Its kind, never its name."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "machine": f"{_cpu_model()}, {os.cpu_count()} cores, {memory:.0f} GiB memory",
        "kernel": f"{platform.system()} {platform.release()}",
    }


def _package(name: str) -> str:
    text = (PROJECT / "node_modules" / name / "package.json").read_text()
    version: str = json.loads(text)["version"]
    return version


def _locked(name: str) -> str:
    """The version of a Python package that the benchmarks install."""
    lock = (PROJECT / "python-bench.lock").read_text()
    found = re.search(rf"^{name}==(\S+)", lock, re.MULTILINE)
    assert found
    return found[1]


def _fencepost() -> str:
    import fencepost

    git = ["git", "-C", str(PROJECT), "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip()
    return f"{fencepost.__version__}, commit {commit}" if commit else fencepost.__version__


def _cpu_model() -> str:
    with Path("/proc/cpuinfo").open() as lines:
        for line in lines:
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()
