"""The statements that the Worker sends to D1, as plans for the JavaScript peer.

Taken from the product itself: its verbs run here over a database that records the first batch
and never answers. Every value that a request brings is recognisable, so that a plan can say
which parameter is which: a plan is a list of `{sql, params}`, a parameter `{name}` or `{value}`.
"""

from __future__ import annotations

import re
from collections.abc import Coroutine, Sequence
from typing import Any

from fencepost import fence, ownership, snapshot, starts, transition
from fencepost.decision import Attempt
from fencepost.identifiers import Deed, Principal, Target
from fencepost.journal import Head
from fencepost.runs import Lineage, Owner, RunStatus
from fencepost.storage.d1 import Database
from fencepost.storage.sql import Parameter, Statement

Plan = list[dict[str, Any]]

OWNER = Owner("@owner_host_id", -1, "@owner_nonce")
VIEWER = Principal("@viewer_kind", "@viewer_id")
HEAD = Head(1, "@head_hash")
# Values that cannot say their own names.
NAMES: dict[Parameter, str] = {
    -1: "owner_pid",
    -2: "lease_ms",
    -3: "lineage_round",
    -4: "generation",
    HEAD.sequence + 1: "event_sequence",
}
# What the product makes itself: in every request another one.
MINTED = {
    "token": re.compile(r"[0-9a-f]{32}"),
    "event_hash": re.compile(r"(?!0{64})[0-9a-f]{64}"),
    "event_payload": re.compile(r"\{.*\}"),
}


class _SentError(BaseException):
    """Stops a verb at its first batch. Nothing of the product catches it."""


class Recorder(Database):
    """A database that takes down what is sent to it, and never answers."""

    def __init__(self) -> None:
        super().__init__(binding=None)
        self.sent: list[Statement] = []
        # The token of the benchmarks has every scope.
        self.deed = Deed(Principal("@principal_kind", "@principal_id"), "transition")
        self.rider = fence.read_statement()

    async def _send(self, statements: Sequence[Statement]) -> str:
        self.sent = list(statements)
        raise _SentError


def record(verb: Any, *arguments: Any, **named: Any) -> list[Statement]:
    """The first batch that `verb(db, …)` sends."""
    recorder = Recorder()
    coroutine: Coroutine[Any, None, Any] = verb(recorder, *arguments, **named)
    try:
        coroutine.send(None)
    except _SentError:
        return recorder.sent
    raise AssertionError("the verb waited for something else")


def plans() -> dict[str, Plan]:
    """All that the peer executes, by what it does. A checkpoint has a state, an end a result."""
    principal, target = Principal("@principal_kind", "@principal_id"), Target("@k", "@i", "@t")
    attempt = Attempt(
        key="@key",
        principal=principal,
        target=target,
        fingerprint="@fingerprint",
        run_id="@run_id",
        input_json="@input_json",
        owner=OWNER,
        lease_ms=-2,
        parent_run_id="@parent_run_id",
        lineage=Lineage("@lineage_id", -3),
        traceparent="@traceparent",
    )
    where = ("@run_id", VIEWER)
    held: Any = {"expected_head": HEAD, "generation": -4}
    checkpoint = transition.Transition(OWNER, RunStatus.RUNNING, "@text", **held)
    end = transition.Transition(OWNER, RunStatus.COMPLETED, None, "@text", **held)
    return {
        "start": _plan(
            record(starts.start, attempt), k="target_kind", i="target_id", t="thread_id"
        ),
        "read": _plan(record(snapshot.read, *where)),
        "heartbeat": _plan(record(ownership.heartbeat, *where, OWNER, generation=-4, lease_ms=-2)),
        "checkpoint": _plan(record(transition.transition, *where, checkpoint)),
        "finish": _plan(record(transition.transition, *where, end)),
    }


def _plan(statements: list[Statement], **short: str) -> Plan:
    return [
        {"sql": each.sql, "params": [_parameter(value, short) for value in each.params]}
        for each in statements
    ]


def _parameter(value: Parameter, short: dict[str, str]) -> dict[str, Any]:
    if isinstance(value, str):
        if value.startswith("@"):
            return {"name": short.get(value[1:], value[1:])}
        for name, pattern in MINTED.items():
            if pattern.fullmatch(value):
                return {"name": name}
        return {"value": value}
    return {"name": NAMES[value]} if value in NAMES else {"value": value}
