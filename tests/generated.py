"""The files that are made from the sources; `make generated` writes them, a test compares."""

from __future__ import annotations

from pathlib import Path

from fencepost import fence, problems
from fencepost.fence import FenceState
from fencepost.http import openapi
from fencepost.schema import migrations, tables

ROOT = Path(__file__).parent.parent

FILES = {
    "schema/schema.sql": tables.as_sql_file(),
    **migrations.as_sql_files(),
    "schema/seed-open.sql": fence.as_seed_file(FenceState.OPEN),
    "schema/seed-migration-locked.sql": fence.as_seed_file(FenceState.MIGRATION_LOCKED),
    "schema/seed-target.sql": fence.as_seed_file(FenceState.IMPORTING),
    "schema/lock.sql": fence.as_lock_file(),
    "docs/errors.md": problems.as_markdown(),
    "docs/openapi.json": openapi.text(),
}

if __name__ == "__main__":
    for name, text in FILES.items():
        (ROOT / name).write_text(text)
