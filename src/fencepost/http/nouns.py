"""The nouns inside bodies: an owner, a target, a lineage, ..., each a form of its own."""

from __future__ import annotations

import re
from typing import Any

from fencepost import limits
from fencepost.http.forms import (
    COUNT,
    HASH,
    IDENTIFIER,
    OWNER_FIELD,
    Form,
    Member,
    Parser,
    integer,
    one_of,
)
from fencepost.identifiers import Target, TargetKind
from fencepost.journal import Head
from fencepost.ownership import EVIDENCE_KINDS, Evidence
from fencepost.runs import Lineage, Owner
from fencepost.subjects import DESIGN, Subject

OWNER = Form(
    "Owner",
    Owner,
    {"host_id": Member(OWNER_FIELD), "pid": Member(COUNT), "nonce": Member(OWNER_FIELD)},
    about="The process that executes a run. Its nonce names this very process, or this attempt.",
)


def _target(kind: str, id: str, thread_id: str | None) -> Target:
    if (kind == TargetKind.AGENT) != (thread_id is not None):
        raise ValueError("A target of kind agent has a 'thread_id', a workflow has none.")
    return Target(kind, id, thread_id)


TARGET = Form(
    "Target",
    _target,
    {
        "kind": Member(one_of(*TargetKind)),
        "id": Member(IDENTIFIER),
        "thread_id": Member(IDENTIFIER, None),
    },
    {
        "anyOf": [
            {"properties": {"kind": {"const": "agent"}}, "required": ["thread_id"]},
            {"properties": {"kind": {"const": "workflow"}, "thread_id": False}},
        ]
    },
    "What a run executes. An agent has a thread, a workflow has none.",
)

LINEAGE = Form(
    "Lineage",
    Lineage,
    {"id": Member(IDENTIFIER), "round": Member(COUNT)},
    about="The rounds of one logical run.",
)

_CHANGE = "[a-z0-9](?:[a-z0-9-]{0,126}[a-z0-9])?"


def _change(value: Any, name: str) -> str:
    """A change, a stage, a provisional name: the grammar of contracts 4."""
    if not isinstance(value, str) or not re.fullmatch(_CHANGE, value):
        raise ValueError(f"{name!r} is 1–128 of a–z 0–9 and, inside, hyphens.")
    return value


CHANGE = Parser(_change, {"type": "string", "pattern": f"^{_CHANGE}$"})


def _aliases(value: Any, name: str) -> tuple[str, ...]:
    if not isinstance(value, list) or len(value) > limits.ALIASES_MAX:
        raise ValueError(f"{name!r} is a list of at most {limits.ALIASES_MAX} names.")
    return tuple(_change(alias, name) for alias in value)


def _subject(
    stage: str, change: str | None, provisional: str | None, aliases: tuple[str, ...]
) -> Subject:
    if (change is None) == (provisional is None):
        raise ValueError("A subject has either a 'change' or a 'provisional' name.")
    if provisional is None and aliases:
        raise ValueError("'aliases' belong to a 'provisional' name.")
    if provisional is not None and stage != DESIGN:
        raise ValueError("A 'provisional' name belongs to the stage 'design'.")
    return Subject(stage, change, provisional, aliases)


SUBJECT = Form(
    "Subject",
    _subject,
    {
        "stage": Member(CHANGE),
        "change": Member(CHANGE, None),
        "provisional": Member(CHANGE, None),
        "aliases": Member(
            Parser(_aliases, {"type": "array", "items": CHANGE, "maxItems": limits.ALIASES_MAX}),
            (),
        ),
    },
    {
        "anyOf": [
            {
                "properties": {"provisional": False, "aliases": {"maxItems": 0}},
                "required": ["change"],
            },
            {
                "properties": {"stage": {"const": DESIGN}, "change": False},
                "required": ["provisional"],
            },
        ]
    },
    "What a run is about: a change in a stage, or, in the stage design, a provisional name with "
    "others that it goes by.",
)

HEAD = Form(
    "Head",
    Head,
    {"sequence": Member(integer(1, limits.INTEGER_MAX - 1)), "hash": Member(HASH)},
    about="The last event of a run's history.",
)

EVIDENCE = Form(
    "Evidence",
    Evidence,
    {"kind": Member(one_of(*EVIDENCE_KINDS)), "expected_owner": Member(OWNER)},
    about="Why the present owner is believed dead. Its host is the sender's own for "
    "same-host-pid-dead, and another one for cross-host-unreachable-stale.",
)
