"""How far a deployment has come: the revision of its fence, and the last sequence of its audit.

Both only grow. A database in which one is lower than it was has been restored to an earlier time:
it has forgotten keys that were spent since (docs/operations.md).
"""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

from fencepost import errors, fence
from fencepost.fence import Fence
from fencepost.storage.d1 import Database
from fencepost.storage.sql import Statement


class Mark(NamedTuple):
    """Its text is `REVISION.SEQUENCE`."""

    revision: int
    sequence: int

    @property
    def text(self) -> str:
        return f"{self.revision}.{self.sequence}"

    @classmethod
    def of(cls, text: str) -> Mark:
        """Raises ValueError for another text."""
        if not re.fullmatch(r"[0-9]{1,16}\.[0-9]{1,16}", text):
            raise ValueError("not a mark")
        revision, sequence = map(int, text.split("."))
        return cls(revision, sequence)

    def with_both(self, other: Mark) -> Mark:
        """The higher of each."""
        return Mark(max(self.revision, other.revision), max(self.sequence, other.sequence))

    def behind(self, before: Mark) -> list[Literal["fence", "audit"]]:
        """What went back since `before`."""
        found: list[Literal["fence", "audit"]] = []
        if self.revision < before.revision:
            found.append("fence")
        if self.sequence < before.sequence:
            found.append("audit")
        return found


_LAST_ENTRY = "SELECT COALESCE(MAX(sequence), 0) AS sequence FROM fencepost_audit"


async def read(db: Database) -> tuple[Fence, Mark]:
    """The fence and the mark. One round trip, where the tables are. Raises FenceUnreadable."""
    try:
        rows, last = await db.read([fence.read_statement(), Statement(_LAST_ENTRY)])
    except errors.MissingTable:
        gate = await fence.read(db)
        return gate, Mark(gate.revision, 0)
    except errors.StorageError as failure:
        raise errors.FenceUnreadable("The fence could not be read.") from failure
    gate = Fence.from_rows(rows.rows)
    return gate, Mark(gate.revision, last.rows[0]["sequence"])
