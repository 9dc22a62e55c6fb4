"""The nouns inside bodies: an owner, a target, a lineage, ..., each read from its JSON object."""

from __future__ import annotations

import re
from typing import Any

from fencepost import limits
from fencepost.body import Body, hash_text, identifier, integer, one_of, owner_field
from fencepost.identifiers import Target, TargetKind
from fencepost.journal import Head
from fencepost.ownership import EVIDENCE_KINDS, Evidence
from fencepost.runs import Lineage, Owner
from fencepost.subjects import DESIGN, Subject


def owner(value: Any, name: str) -> Owner:
    body = Body(value, repr(name))
    result = Owner(
        body.take("host_id", owner_field),
        body.take("pid", integer(0, limits.INTEGER_MAX)),
        body.take("nonce", owner_field),
    )
    body.done()
    return result


def target(value: Any, name: str) -> Target:
    body = Body(value, repr(name))
    kind = body.take("kind", one_of(*TargetKind))
    id = body.take("id", identifier)
    thread_id = body.take("thread_id", identifier, None)
    body.done()
    if (kind == TargetKind.AGENT) != (thread_id is not None):
        raise ValueError("A target of kind agent has a 'thread_id', a workflow has none.")
    return Target(kind, id, thread_id)


def lineage(value: Any, name: str) -> Lineage:
    body = Body(value, repr(name))
    result = Lineage(
        body.take("id", identifier), body.take("round", integer(0, limits.INTEGER_MAX))
    )
    body.done()
    return result


_CHANGE = re.compile(r"[a-z0-9](?:[a-z0-9-]{0,126}[a-z0-9])?")


def change(value: Any, name: str) -> str:
    """A change, a stage, a provisional name: the grammar of contracts 4."""
    if not isinstance(value, str) or not _CHANGE.fullmatch(value):
        raise ValueError(f"{name!r} is 1–128 of a–z 0–9 and, inside, hyphens.")
    return value


def subject(value: Any, name: str) -> Subject:
    body = Body(value, repr(name))
    result = Subject(
        stage=body.take("stage", change),
        change=body.take("change", change, None),
        provisional=body.take("provisional", change, None),
        aliases=body.take("aliases", _aliases, ()),
    )
    body.done()
    if (result.change is None) == (result.provisional is None):
        raise ValueError("A subject has either a 'change' or a 'provisional' name.")
    if result.provisional is None and result.aliases:
        raise ValueError("'aliases' belong to a 'provisional' name.")
    if result.provisional is not None and result.stage != DESIGN:
        raise ValueError("A 'provisional' name belongs to the stage 'design'.")
    return result


def _aliases(value: Any, name: str) -> tuple[str, ...]:
    if not isinstance(value, list) or len(value) > limits.ALIASES_MAX:
        raise ValueError(f"{name!r} is a list of at most {limits.ALIASES_MAX} names.")
    return tuple(change(alias, name) for alias in value)


def head(value: Any, name: str) -> Head:
    body = Body(value, repr(name))
    result = Head(
        body.take("sequence", integer(1, limits.INTEGER_MAX - 1)), body.take("hash", hash_text)
    )
    body.done()
    return result


def evidence(value: Any, name: str) -> Evidence:
    body = Body(value, repr(name))
    result = Evidence(
        body.take("kind", one_of(*EVIDENCE_KINDS)), body.take("expected_owner", owner)
    )
    body.done()
    return result
