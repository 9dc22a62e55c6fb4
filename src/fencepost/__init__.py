"""Exactly one start per Idempotency-Key, over one D1 database.

As a library: make a `fencepost.storage.d1.Database` from your own D1 binding, and pass it to
`fencepost.starts.start` with a `fencepost.decision.Attempt` (docs/architecture.md).
"""

__version__ = "0.1.0"
