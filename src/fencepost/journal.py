"""A run's history: events chained by hash, appended in the batch of the change they record.

hash = SHA-256 (hex) over RFC 8785 canonical JSON of `{sequence, type, payload, prior_hash}`;
the first prior hash is 64 zeros; sequences count from 1 without gaps. The run row holds
the head, and an append is a compare-and-set on it.
"""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any, NamedTuple

from fencepost.storage.sql import Parameter, Statement

GENESIS_HASH = "0" * 64

# Types of the events that the product itself appends; callers cannot use them.
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
        """`:sequence`, `:hash` and `:prior_hash`: its place in the chain."""
        return {"sequence": self.sequence, "hash": self.hash, "prior_hash": self.prior_hash}


def canonical(value: Any) -> bytes:
    """RFC 8785 (JCS) bytes. 1 and 1.0 are the same number, and so are 0 and −0.

    Raises ValueError for what JCS cannot express (NaN, integers beyond ±(2^53−1), ...).
    """
    text = _encode(value)
    if _UNLIKE_JCS.search(text) or not (text.isascii() or _BMP.fullmatch(text)):
        import rfc8785

        return rfc8785.dumps(value)
    return text.encode()


_encode = json.JSONEncoder(
    ensure_ascii=False, sort_keys=True, separators=(",", ":"), allow_nan=False
).encode
# What the encoder may write otherwise than JCS, and what looks like it inside a text: numbers
# (JavaScript has 1, 10000000000000000 and 1e-7 for 1.0, 1e+16 and 1e-07) and integers that may be
# beyond ±(2^53−1); names that it may have made of what is no text (None, True, 5).
_UNLIKE_JCS = re.compile(
    r"(?:\A|[\[,:])-?(?:[0-9]+\.0(?![0-9])|[0-9.]+e|[0-9]{16})"
    r'|[{,]"(?:null|true|false|-?[0-9][^"]*)":'
)
# Without surrogates, UTF-16 units (JCS) and code points (Python) sort alike.
_BMP = re.compile("[\0-\ud7ff\ue000-\uffff]*")


def digest(value: Any) -> str:
    """SHA-256 (hex) of the canonical JSON of `value`."""
    return hashlib.sha256(canonical(value)).hexdigest()


def sha256(text: str) -> str:
    """SHA-256 (hex) of a text as it is stored."""
    return hashlib.sha256(text.encode()).hexdigest()


def next_event(head: Head, type: str, payload: Any) -> Event:
    """The event that would follow `head`."""
    payload_json = canonical(payload).decode()
    hash = event_hash(head, type, payload_json)
    return Event(head.sequence + 1, type, payload_json, head.hash, hash)


def event_hash(prior: Head, type: str, payload_json: str) -> str:
    """The hash of the event after `prior`; the payload as it is stored, to the letter."""
    # In the order of the names, as RFC 8785 has it.
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
    """Stores `event`; the write named by `token` has set the run's head to it."""
    return Statement(
        _APPEND,
        run_id=run_id,
        token=token,
        type=event.type,
        payload=event.payload_json,
        **event.params,
    )
