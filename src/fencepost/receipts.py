"""Receipts: a signature that says where the history of a run ended when a client was told.

The hashes of a history use no secret: who can write to the database can write another one that is
intact in itself. A client that keeps the receipt of a head can prove that: HMAC-SHA256 (hex) of
`RUN_ID SEQUENCE HASH`, with single spaces, under a key that only the Worker has.

FENCEPOST_RECEIPT_KEY holds keys with commas between. The first one signs; all of them are taken as
valid, so that a key can be replaced without the loss of its receipts. Without it heads have none.

Not guaranteed: that a receipt is valid once its key has been taken from the list.
"""

from __future__ import annotations

import hashlib
import hmac
import re

from fencepost import errors
from fencepost.journal import Head

_KEY = re.compile(r"[!-+\--~]{32,512}")


class Receipts:
    """The receipts of a deployment, by its setting; a list with a malformed key has none."""

    def __init__(self, setting: str | None) -> None:
        self.setting = setting
        parts = setting.split(",") if setting else []
        sound = all(map(_KEY.fullmatch, parts)) and len(set(parts)) == len(parts)
        self._keys = [part.encode() for part in parts] if sound else []

    def sign(self, run_id: str, head: Head) -> str | None:
        """The receipt of a head; None if the deployment gives none."""
        return _signed(self._keys[0], run_id, head) if self._keys else None

    def is_valid(self, run_id: str, head: Head, receipt: str) -> bool:
        """Whether this deployment gave it out. Every key is tried, in constant time.

        Raises Unavailable (RECEIPTS_UNCONFIGURED) without a usable key.
        """
        if not self._keys:
            raise errors.Unavailable(
                "This deployment has no usable FENCEPOST_RECEIPT_KEY, so it knows no receipt.",
                code="RECEIPTS_UNCONFIGURED",
            )
        same = [hmac.compare_digest(_signed(key, run_id, head), receipt) for key in self._keys]
        return any(same)


def _signed(key: bytes, run_id: str, head: Head) -> str:
    text = f"{run_id} {head.sequence} {head.hash}"
    return hmac.new(key, text.encode(), hashlib.sha256).hexdigest()


# Those of the deployment, which are the same for every request of an isolate.
given = Receipts(None)


def use(setting: str | None) -> None:
    """Take the deployment's setting, before a request is answered."""
    global given
    if given.setting != setting:
        given = Receipts(setting)
