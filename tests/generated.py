"""The files that are made from the sources; `make generated` writes them, a test compares."""

from __future__ import annotations

from pathlib import Path

from fencepost import fence, migrations, problems, schema, table
from fencepost.fence import FenceState

ROOT = Path(__file__).parent.parent

FILES = {
    "schema/schema.sql": schema.as_sql_file(),
    **migrations.as_sql_files(),
    "schema/seed-open.sql": fence.as_seed_file(FenceState.OPEN),
    "schema/seed-migration-locked.sql": fence.as_seed_file(FenceState.MIGRATION_LOCKED),
    "docs/errors.md": problems.as_markdown(),
    "docs/openapi.json": table.openapi_text(),
}

if __name__ == "__main__":
    for name, text in FILES.items():
        (ROOT / name).write_text(text)
