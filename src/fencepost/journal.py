"""A run's history: events chained by hash, appended in the batch of the change they record.

The hash is the SHA-256 (hex) of the RFC 8785 canonical JSON of `{sequence, type, payload,
prior_hash}`. The first prior hash is 64 zeros. Sequences count from 1 without gaps. The run row
holds the head, and an append is a compare-and-set on it.
"""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any, NamedTuple

from fencepost.storage.sql import Parameter, Statement

GENESIS_HASH = "0" * 64

# Types of the events that the product itself appends. Callers cannot use them.
PRODUCT_TYPES = frozenset(
    {
        "run-created",
        "run-released",
        "run-restarted",
        "run-resolved",
        "state-transitioned",
        "change-bound",
        "delivery-bound",
        "operation-interrupted",
    }
)


class Head(NamedTuple):
    """The last event of a history."""

    sequence: int
    hash: str


GENESIS = Head(0, GENESIS_HASH)


class Event(NamedTuple):
    """One event, hashed; `payload_json` is canonical."""

    sequence: int
    type: str
    payload_json: str
    prior_hash: str
    hash: str

    @property
    def head(self) -> Head:
        return Head(self.sequence, self.hash)

    @property
    def params(self) -> dict[str, Parameter]:
        """`:sequence`, `:hash` and `:prior_hash` of a statement."""
        return {"sequence": self.sequence, "hash": self.hash, "prior_hash": self.prior_hash}


def canonical(value: Any) -> bytes:
    """RFC 8785 (JCS) bytes. 1 and 1.0 are the same number, and so are 0 and −0.

    Raises ValueError for what JCS cannot express: NaN, integers beyond ±(2^53−1), and so on.
    """
    text = _encode(value)
    if _UNLIKE_JCS.search(text) or not (text.isascii() or _BMP.fullmatch(text)):
        import rfc8785

        return rfc8785.dumps(value)
    return text.encode()


_encode = json.JSONEncoder(
    ensure_ascii=False, sort_keys=True, separators=(",", ":"), allow_nan=False
).encode
# Where the encoder's output may differ from JCS; it also matches similar text inside strings.
# Numbers: JCS writes 1, 10000000000000000 and 1e-7 for 1.0, 1e+16 and 1e-07. Integers that may be
# beyond ±(2^53−1). Names that may have been no strings before (None, True, 5).
_UNLIKE_JCS = re.compile(
    r"(?:\A|[\[,:])-?(?:[0-9]+\.0(?![0-9])|[0-9.]+e|[0-9]{16})"
    r'|[{,]"(?:null|true|false|-?[0-9][^"]*)":'
)
# In these strings the order by UTF-16 units (JCS) and by code points (Python) is the same.
_BMP = re.compile("[\0-\ud7ff\ue000-\uffff]*")


def digest(value: Any) -> str:
    """SHA-256 (hex) of the canonical JSON of `value`."""
    return hashlib.sha256(canonical(value)).hexdigest()


def sha256(text: str) -> str:
    """SHA-256 (hex) of the UTF-8 of a text."""
    return hashlib.sha256(text.encode()).hexdigest()


def next_event(head: Head, type: str, payload: Any) -> Event:
    """The event that follows `head`, with its hash. Raises ValueError as `canonical` does."""
    payload_json = canonical(payload).decode()
    hash = event_hash(head, type, payload_json)
    return Event(head.sequence + 1, type, payload_json, head.hash, hash)


def event_hash(prior: Head, type: str, payload_json: str) -> str:
    """The hash of the event after `prior`. `payload_json` is the stored text, unchanged."""
    # The members in the order of RFC 8785.
    return sha256(
        f'{{"payload":{payload_json},"prior_hash":{_encode(prior.hash)},'
        f'"sequence":{prior.sequence + 1},"type":{_encode(type)}}}'
    )


# Decides nothing: guarded by the token of the write that moved the head in the same batch.
_APPEND = """
INSERT INTO fencepost_events
  (run_id, sequence, type, payload, prior_hash, hash, write_token, created_at_ms)
SELECT run_id, :sequence, :type, :payload, :prior_hash, :hash, :token, updated_at_ms
FROM fencepost_runs WHERE run_id = :run_id AND write_token = :token
"""


def append_statement(run_id: str, token: str, event: Event) -> Statement:
    """Store `event`. The write whose token is `token` has set the run's head to it."""
    return Statement(
        _APPEND,
        run_id=run_id,
        token=token,
        type=event.type,
        payload=event.payload_json,
        **event.params,
    )
