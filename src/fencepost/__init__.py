"""Exactly one start per Idempotency-Key, over one D1 database.

As a library: import `fencepost.reservation`, `fencepost.fence`, `fencepost.snapshot` and hand
them a `fencepost.d1.Database` over your own binding.
"""

__version__ = "0.1.0"
