"""A run's history: events chained by hash, appended in the batch of the change they record.

hash = SHA-256 (hex) over RFC 8785 canonical JSON of `{sequence, type, payload, prior_hash}`;
the first prior hash is 64 zeros; sequences count from 1 without gaps (contracts 4). The run
row holds the head, and an append is a compare-and-set on it.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from fencepost.d1 import Statement

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


@dataclass(frozen=True, slots=True)
class Head:
    """The last event of a history."""

    sequence: int
    hash: str


GENESIS = Head(0, GENESIS_HASH)


@dataclass(frozen=True, slots=True)
class Event:
    """One event, hashed; `payload_json` is canonical."""

    sequence: int
    type: str
    payload_json: str
    prior_hash: str
    hash: str

    @property
    def head(self) -> Head:
        return Head(self.sequence, self.hash)


def canonical(value: Any) -> bytes:
    """RFC 8785 (JCS) bytes. 1 and 1.0 are the same number, and so are 0 and −0.

    Raises ValueError for what JCS cannot express (NaN, integers beyond ±(2^53−1), ...).
    """
    text = _encode(value)
    # Text is written alike by both; what is left to look at are numbers, and names that are no
    # text (the encoder would quietly make one of a number) or sort otherwise.
    if (
        _OTHER_NUMBER.search(_STRING.sub("", text))
        or not (text.isascii() or _BMP.fullmatch(text))
        or not _has_text_names(value)
    ):
        import rfc8785

        return rfc8785.dumps(value)
    return text.encode()


def _has_text_names(value: Any) -> bool:
    """Whether every name in a JSON value is a str, and of no class derived from it."""
    containers = [value] if isinstance(value, _CONTAINERS) else []
    for container in containers:  # which grows: a container stands before what it holds
        items: Iterable[Any] = container
        if isinstance(container, dict):
            if not _TEXT.issuperset(map(type, container)):
                return False
            items = container.values()
        containers += [item for item in items if isinstance(item, _CONTAINERS)]
    return True


_TEXT = frozenset({str})
_CONTAINERS = (dict, list, tuple)
_encode = json.JSONEncoder(
    ensure_ascii=False, sort_keys=True, separators=(",", ":"), allow_nan=False
).encode
_STRING = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
# Written otherwise by JavaScript (1.0, 1e+16, 1e-07), or perhaps beyond ±(2^53−1).
_OTHER_NUMBER = re.compile(r"\.0(?![0-9])|[0-9]e|[0-9]{16}")
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
SELECT run_id, ?3, ?4, ?5, ?6, ?7, ?2, updated_at_ms
FROM fencepost_runs WHERE run_id = ?1 AND write_token = ?2
"""


def append_statement(run_id: str, token: str, event: Event) -> Statement:
    """Stores `event`; the write named by `token` has set the run's head to it."""
    return Statement(
        _APPEND,
        (
            run_id,
            token,
            event.sequence,
            event.type,
            event.payload_json,
            event.prior_hash,
            event.hash,
        ),
    )
