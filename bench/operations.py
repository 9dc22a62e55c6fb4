"""Every keyed operation of the HTTP surface, with what it needs beforehand and its budget.

`trips` measures them near and far, `scale` in small and large tables.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from bench.measure import Answer, Client, Json, owned, owner

LAPSING_MS = 1_000  # the shortest lease there is
BINDING = {"gate": "a", "revision": 1, "receipt_hash": "0" * 64}


class Call(NamedTuple):
    """One request, ready to be sent."""

    method: str
    path: str
    body: Any = None
    key: str | None = None


class World:
    """Makes runs that nobody else has, over a connection of its own."""

    def __init__(self, url: str, word: str = "op") -> None:
        self.client = Client(url)
        self._word = word
        self._numbers: Iterator[int] = itertools.count()

    def new(self) -> str:
        return f"{self._word}-{next(self._numbers)}"

    def run(self, *verbs: tuple[str, Json], **members: Any) -> Json:
        """A started run, and then `verbs` by its owner. Its key and owner are in `key` and `me`."""
        name = self.new()
        body = owned(name, **members)
        run = {**self.client.start(name, body).body["run"], "key": name, "me": body["owner"]}
        for verb, more in verbs:
            answer = self.client.post(f"{_path(run)}/{verb}", {"owner": run["me"], **more})
            run |= answer.body.get("run") or {"token": answer.body["lease"]["token"]}
        return run

    def call(
        self, verb: str, *verbs: tuple[str, Json], more: Json | None = None, **run: Any
    ) -> Call:
        """A verb by the owner of a new run."""
        made = self.run(*verbs, **run)
        return verb_of(made, verb, **(more or {}))


def verb_of(run: Json, verb: str, **members: Any) -> Call:
    return Call("POST", f"{_path(run)}/{verb}", {"owner": run["me"], **members})


def _path(run: Json) -> str:
    return f"/v1/runs/{run['run_id']}"


class Operation(NamedTuple):
    """`trips` and `written` are budgets (at most), None where there is none.

    `lapses`: it needs a lease that has lapsed. `fence`: the state that it meets.
    """

    name: str
    prepare: Callable[[World], Call]
    trips: int | None = 1
    written: int | None = None
    status: int = 200
    lapses: bool = False
    fence: str = "open"


def perform(world: World, operation: Operation, times: int, **headers: str) -> list[Answer]:
    """The operation, `times` times, each on things of its own; all is prepared beforehand."""
    calls = [operation.prepare(world) for _ in range(times)]
    if operation.lapses:
        time.sleep(LAPSING_MS / 1000 + 0.1)
    with_fence = operation.fence != "open"
    if with_fence:
        move_fence(world, "open", operation.fence)
    answers = [send(world.client, call, operation.status, **headers) for call in calls]
    if with_fence:
        move_fence(world, operation.fence, "open")
    return answers


def send(client: Client, call: Call, status: int = 200, **headers: str) -> Answer:
    method, path, body, key = call
    return client.send(method, path, body, key, status, **headers)


def move_fence(world: World, expected: str, next: str) -> None:
    world.client.post("/v1/fence/transitions", {"expected": expected, "next": next})


# --- What each needs ---------------------------------------------------------------------

_END = ("transition", {"to": "completed", "result": 1})
_SUSPEND = ("transition", {"to": "suspended"})
_LEASED = ("operations/step/acquire", {"ttl_ms": 3_600_000})


def _start(world: World, **members: Any) -> Call:
    name = world.new()
    return Call("POST", "/v1/starts", owned(name, **members), name)


def _again(run: Json, **members: Any) -> Call:
    return Call("POST", "/v1/starts", owned("somebody", **members), run["key"])


def _own_retry(world: World) -> Call:
    run = world.run()
    return Call("POST", "/v1/starts", {**owned(run["key"])}, run["key"])


def _released(world: World) -> Json:
    run = world.run()
    path = f"/v1/starts/{run['key']}/release"
    world.client.post(path, {"owner": run["me"]})
    return run


def _release(world: World) -> Call:
    run = world.run()
    return Call("POST", f"/v1/starts/{run['key']}/release", {"owner": run["me"]})


def _subject(world: World) -> Json:
    return {"subject": {"stage": "delivery", "change": f"change-{world.new()}"}}


def _provisional(world: World) -> Json:
    return {"subject": {"stage": "design", "provisional": f"draft-{world.new()}"}}


def _with_head(world: World, verb: str, **members: Any) -> Call:
    run = world.run()
    return verb_of(run, verb, expected_head=run["head"], **members)


def _evidence(run: Json) -> Json:
    return {"kind": "lease-expired", "expected_owner": run["me"]}


def _take(world: World, verb: str, *verbs: tuple[str, Json]) -> Call:
    """Another process takes a run, or the claim of one, with evidence that the lease is over."""
    run = world.run(*verbs, lease_ms=LAPSING_MS)
    body = {"owner": owner("thief"), "evidence": _evidence(run)}
    return Call("POST", f"{_path(run)}/{verb}", body)


def _step(world: World, verb: str, **members: Any) -> Call:
    run = world.run(_LEASED)
    return verb_of(run, f"operations/step/{verb}", token=run["token"], **members)


def _get(world: World, path: str, *verbs: tuple[str, Json]) -> Call:
    run = world.run(*verbs)
    return Call("GET", path.format(run=_path(run), key=run["key"]))


def _resolve(world: World) -> Call:
    path = f"/v1/starts/{world.run(lease_ms=LAPSING_MS)['key']}"
    seen = world.client.get(path).body["seen"]
    body = {"decision": "executed", "seen": seen, "note": "looked at the ledger", "result": 1}
    return Call("POST", f"{path}/resolve", body)


def _cancel(world: World, verb: str, **members: Any) -> Call:
    return Call("POST", f"{_path(world.run(**members))}/{verb}", {})


def _lineage(world: World) -> Json:
    return {"lineage": {"id": f"lineage-{world.new()}", "round": 1}}


def _acknowledge(world: World) -> Call:
    run = world.run()
    world.client.post(f"{_path(run)}/cancel")
    return verb_of(run, "acknowledge-cancel")


_CHECKPOINT = {"to": "running", "state": {"page": 1}}

STARTS = [
    Operation("start, new", _start, 1, 8, 201),
    Operation("start, new, of a machine", lambda w: _start(w, machine="delivery"), 1, 8, 201),
    Operation("start, new, with a subject", lambda w: _start(w, **_subject(w)), 1, None, 201),
    Operation("start, replayed", lambda w: _again(w.run(_END)), 1, 0),
    Operation("start, one's own retry", _own_retry, 1, 0),
    Operation("start, pending", lambda w: _again(w.run()), 1, 0, 409),
    Operation("start, another input", lambda w: _again(w.run(), input=1), 1, 0, 422),
    Operation("start, fenced", _start, 1, 0, 503, fence="draining"),
    Operation("start, released before", lambda w: _again(_released(w)), 2, None, 201),
    Operation("read a start", lambda w: _get(w, "/v1/starts/{key}")),
    Operation("release", _release, 2),
    Operation("resolve", _resolve, 2, lapses=True),
]

OWNERSHIP = [
    Operation("heartbeat", lambda w: w.call("heartbeat"), 1, 1),
    Operation("reconfirm", lambda w: w.call("reconfirm"), 1, 1),
    Operation("own, a waiting run", lambda w: w.call("own", _SUSPEND)),
    Operation("own, a lapsed run", lambda w: _take(w, "own"), lapses=True),
    Operation("steal", lambda w: _take(w, "steal"), lapses=True),
    Operation("claim", lambda w: w.call("claim", _SUSPEND)),
    Operation("activate", lambda w: w.call("activate", _SUSPEND, ("claim", {}))),
    Operation("abandon", lambda w: w.call("abandon", _SUSPEND, ("claim", {}))),
    Operation("recover", lambda w: _take(w, "recover", _SUSPEND, ("claim", {})), lapses=True),
    Operation("cancel", lambda w: _cancel(w, "cancel")),
    Operation(
        "cancel, a waiting run", lambda w: Call("POST", f"{_path(_released(w))}/cancel", {}), 2
    ),
    Operation("cancel a lineage", lambda w: _cancel(w, "lineage/cancel", **_lineage(w))),
    Operation("acknowledge a cancel", _acknowledge),
]

HISTORY = [
    Operation("read a run", lambda w: _get(w, "{run}")),
    Operation("checkpoint, head given", lambda w: _with_head(w, "transition", **_CHECKPOINT)),
    Operation("checkpoint, head read first", lambda w: w.call("transition", more=_CHECKPOINT), 2),
    Operation("end, head given", lambda w: _with_head(w, "transition", **_END[1])),
    Operation("end, head read first", lambda w: w.call("transition", more=_END[1]), 2),
    Operation(
        "move a machine, head read first",
        lambda w: w.call("transition", more={"machine": "validating-delivery"}, machine="delivery"),
        2,
    ),
    Operation("event, head given", lambda w: _with_head(w, "events", type="note", payload={})),
    Operation("event, head read first", lambda w: w.call("events", more={"type": "note"}), 2),
    Operation(
        "bind a change",
        lambda w: w.call("bind-change", more={"change": f"c-{w.new()}"}, **_provisional(w)),
        2,
    ),
    Operation(
        "bind a delivery, head given", lambda w: _with_head(w, "bindings", bindings=[BINDING])
    ),
    Operation(
        "bind a delivery, head read first",
        lambda w: w.call("bindings", more={"bindings": [BINDING]}),
        2,
    ),
    Operation("integrity", lambda w: _get(w, "{run}/integrity")),
    Operation("latest of a lineage", lambda w: _get(w, "{run}/latest")),
]

STEPS = [
    Operation("acquire an operation", lambda w: w.call("operations/step/acquire", more=_LEASED[1])),
    Operation("renew", lambda w: _step(w, "renew", ttl_ms=3_600_000)),
    Operation("assert", lambda w: _step(w, "assert"), 1, 0),
    Operation("commit", lambda w: _step(w, "commit", outcome={"ok": True})),
    Operation("interrupt", lambda w: _step(w, "interrupt"), 2),
    Operation("read an operation", lambda w: _get(w, "{run}/operations/step", _LEASED)),
]

DEPLOYMENT = [
    Operation("read the fence", lambda w: Call("GET", "/v1/fence")),
    Operation(
        "move the fence",
        lambda w: Call("POST", "/v1/fence/transitions", {"expected": "open", "next": "open"}),
        1,
    ),
    Operation("purge, nothing due", lambda w: Call("POST", "/v1/retention/purge", {}), 2, 0),
]

KEYED = [*STARTS, *OWNERSHIP, *HISTORY, *STEPS, *DEPLOYMENT]
