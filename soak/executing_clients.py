"""Clients that execute a run: they keep its lease, note what they do, end it, or just go away."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable
from typing import Any

from fencepost.machines import MACHINES
from soak.client_knowledge import Json
from soak.clients import Client, Job
from soak.requests_and_answers import Answer

Step = Callable[[Client, Job, Json], Awaitable[Answer | None]]
STEPS_MAX = 6
OPERATION_TTL_MS = (50, 5000, 60_000)


async def work(client: Client, job: Job, owner: Json, granted: Answer) -> None:
    """Some steps, and an end; stops as soon as another process owns the run.

    `granted`: the answer that says that `owner` holds the run. Most requests name its generation.
    """
    assert granted.run is not None
    whole = {"owner": owner, "generation": granted.run["generation"]}

    def me() -> Json:
        return whole if client.rng.random() < 0.7 else {"owner": owner}

    steps, weights = zip(*STEPS.items(), strict=True)
    for _ in range(client.rng.randint(0, STEPS_MAX)):
        [step] = client.rng.choices(steps, weights)
        answer = await step(client, job, me())
        if answer is not None and answer.code in ("FENCE_LOST", "RUN_NOT_FOUND"):
            return
        if job.run.get("cancel_requested_at_ms") and client.rng.random() < 0.7:
            await client.verb(job, "acknowledge-cancel", **me())
            await client.verb(job, "transition", **me(), to="cancelled")
            return
        await asyncio.sleep(client.rng.random() * 0.05)
    await _finish(client, job, me())


async def _finish(client: Client, job: Job, me: Json) -> None:
    ways = ["completed"] * 5 + ["failed", "cancelled", "suspended", "suspended"] + ["gone"] * 2
    to = client.rng.choice(ways)
    if to == "gone":
        return  # its lease lapses, and somebody takes the run over
    body: Json = {**me, "to": to, "state": {"at": client.new("end")}}
    if to in ("completed", "failed"):
        body["result"] = {"of": job.key, "pi": 3.25}
    if to == "completed" and client.rng.random() < 0.5:
        body["guard"] = {"cancel_requested": "absent"}
    answer = await client.verb(job, "transition", **body)
    if answer.code == "ILLEGAL_TRANSITION":  # its machine has not ended
        await client.verb(job, "transition", **{**body, "to": "failed"})


def _expected_head(client: Client, job: Job) -> Json:
    """Half of the clients say which head they saw last."""
    return {"expected_head": job.run["head"]} if client.rng.random() < 0.5 else {}


async def _heartbeat(client: Client, job: Job, me: Json) -> Answer:
    lease = {"lease_ms": client.rng.choice([1000, 2000])} if client.rng.random() < 0.3 else {}
    return await client.verb(job, "heartbeat", **me, **lease)


async def _reconfirm(client: Client, job: Job, me: Json) -> Answer:
    return await client.verb(job, "reconfirm", **me)


async def _checkpoint(client: Client, job: Job, me: Json) -> Answer:
    head, state = _expected_head(client, job), {"step": client.new("step")}
    return await client.verb(job, "transition", **me, to="running", state=state, **head)


async def _move(client: Client, job: Job, me: Json) -> Answer | None:
    machine = job.run.get("machine")
    if machine is None:
        return None
    table = MACHINES[machine["name"]].moves
    legal = sorted(table[machine["state"]])
    to = client.rng.choice(legal if legal and client.rng.random() < 0.9 else sorted(table))
    return await client.verb(job, "transition", **me, machine=to, **_expected_head(client, job))


async def _note(client: Client, job: Job, me: Json) -> Answer:
    body: Json = {"type": "noted", "payload": {"n": client.new("note"), "x": 0.5}}
    if client.rng.random() < 0.7:
        body |= me
    return await client.verb(job, "events", **body, **_expected_head(client, job))


async def _bind(client: Client, job: Job, me: Json) -> Answer:
    """Revisions 1 to 3: bound, bound again, and in conflict."""

    def binding(gate: str) -> Json:
        revision = client.rng.randint(1, 3)
        receipt = hashlib.sha256(f"{revision}/{client.rng.randrange(5) == 0}".encode())
        return {"gate": gate, "revision": revision, "receipt_hash": receipt.hexdigest()}

    gates = client.rng.choice(["a", "b", "ab"])
    body = {**me, "bindings": [binding(gate) for gate in gates]}
    return await client.verb(job, "bindings", **body, **_expected_head(client, job))


async def _bind_change(client: Client, job: Job, me: Json) -> Answer | None:
    if "provisional" not in job.body.get("subject", {}):
        return None
    change = f"name-{client.rng.randrange(40)}"
    return await client.verb(job, "bind-change", **me, change=change)


async def _operate(client: Client, job: Job, me: Json) -> Answer:
    """Acquire an operation; renew, assert, commit or interrupt it, or let its lease lapse."""
    rng = client.rng
    name = f"Step-{rng.randrange(4)}"
    how: Json = rng.choice([{}, {}, {"preempt": True}, {"exclusive": True}])
    payload = {"name": name, "odd": rng.random() < 0.1}
    answer = await _on_operation(
        client, job, name, "acquire", **me, ttl_ms=rng.choice(OPERATION_TTL_MS),
        payload=payload, **how,
    )  # fmt: skip
    if answer.outcome not in ("acquired", "shared"):
        return answer
    held = {**me, "token": answer.body["lease"]["token"]}
    for verb in rng.sample(["renew", "assert"], rng.randint(0, 2)):
        body = {**held, "ttl_ms": 5000} if verb == "renew" else held
        answer = await _on_operation(client, job, name, verb, **body)
    if rng.random() < 0.6:
        outcome = {"done": client.new("outcome")}
        answer = await _on_operation(client, job, name, "commit", **held, outcome=outcome)
        if rng.random() < 0.3:
            await _on_operation(client, job, name, "commit", **held, outcome=outcome)
    elif rng.random() < 0.5:
        answer = await _on_operation(client, job, name, "interrupt", **held)
    return answer


async def _on_operation(client: Client, job: Job, name: str, verb: str, **body: Any) -> Answer:
    path = f"/v1/runs/{job.run_id}/operations/{name.lower()}/{verb}"
    return await client.post_of_a_run(path, body, job)


STEPS: dict[Step, int] = {
    _heartbeat: 4,
    _reconfirm: 1,
    _checkpoint: 4,
    _move: 3,
    _note: 3,
    _bind: 2,
    _bind_change: 1,
    _operate: 4,
}
