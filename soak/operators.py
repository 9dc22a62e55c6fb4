"""The operator: moves the fence to and fro, resolves what was abandoned, purges, looks."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from soak.history import Closed, Json
from soak.requests import Answer, Request
from soak.world import Actor, Job

# Each way ends where it began: open.
WAYS: Sequence[Sequence[str]] = (
    ("draining", "open"),
    ("draining", "open"),
    ("draining", "migration-locked", "open"),
    ("migration-locked", "open"),
    ("migration-locked", "proof-only", "open"),
    ("proof-only", "open"),
)
OPEN_S, CLOSED_S = (1.5, 4.0), (0.1, 0.7)


async def guard_the_fence(actor: Actor) -> None:
    """For ever: open for a while, then one way through the states and back."""
    state = "open"
    while True:
        await asyncio.sleep(actor.rng.uniform(*OPEN_S))
        for next in actor.rng.choice(WAYS):
            await _move(actor, state, next)
            state = next
            if next == "proof-only":
                await _prove(actor)
            if next != "open":
                await _knock(actor)
                await asyncio.sleep(actor.rng.uniform(*CLOSED_S))


async def _move(actor: Actor, expected: str, next: str) -> None:
    """One command, sent until it is answered; its key makes the retry converge."""
    history = actor.caller.history
    body: Json = {"expected": expected, "next": next}
    if next == "proof-only":
        body["proof_key"] = actor.new("proof")
    key = actor.new("move")
    history.closed = None
    answer = await actor.post("/v1/fence/transitions", body, key=key, token="operator")  # noqa: S106
    if not answer.won:
        text = f"{expected} to {next}: {answer.body}"
        actor.caller.witness.findings.add("the_only_operator_moves_the_fence", text)
        return
    proof = answer.body["proof_key"], answer.body["proof_run_id"]
    history.closed = Closed(answer.body["state"], history.tick(), *proof)


async def _knock(actor: Actor) -> None:
    """Work of every class, sent while the fence is closed; the witness judges what it lets in."""
    owner, job = actor.new_owner(), actor.world.live_job(actor.rng)
    start: Json = {"target": {"kind": "workflow", "id": "late"}, "owner": owner}
    knocks = [Request("POST", "/v1/starts", start, key=actor.new("late"))]
    if job is not None:
        held: Json = {"owner": job.run["owner"] or owner}
        bodies: dict[str, Json] = {
            "heartbeat": held,
            "transition": {**held, "to": "running"},
            "operations/knock/acquire": {**held, "ttl_ms": 50},
            "events": {"type": "knocked"},
            "claim": {"owner": owner},
            "own": {"owner": owner},
        }
        for verb in ("heartbeat", actor.rng.choice(list(bodies))):
            path, may = f"/v1/runs/{job.run_id}/{verb}", actor.gone(job)
            knocks.append(Request("POST", path, bodies[verb], job.token, may=may))
    asked = [actor.caller.ask(knock, actor.rng, fenced_tries=1) for knock in knocks]
    await asyncio.gather(*asked)


async def _prove(actor: Actor) -> None:
    """The one start that proof-only admits, and its run."""
    history = actor.caller.history
    if history.closed is None or history.closed.proof_key is None:
        return
    owner = actor.new_owner()
    body: Json = {"target": {"kind": "workflow", "id": "noop"}}
    job = Job(history.closed.proof_key, "operator", body)
    request = Request("POST", "/v1/starts", {**body, "owner": owner}, "operator", job.key)
    answer = await actor.caller.ask(request, actor.rng)
    if answer.outcome != "started" or answer.run is None:
        text = f"{job.key}: {answer.body}"
        actor.caller.witness.findings.add("proof_only_admits_the_proof", text)
        return
    job.run = answer.run
    history.closed = history.closed._replace(proof_run_id=job.run_id)
    actor.world.add(job, actor.rng)
    await actor.verb(job, "heartbeat", owner=owner)
    await actor.verb(job, "transition", owner=owner, to="completed", result="proved")


async def resolve(actor: Actor) -> None:
    """Says of a start whose owner seems to be gone whether it executed."""
    job = actor.world.live_job(actor.rng)
    if job is None:
        return
    held = await actor.get(f"/v1/starts/{job.key}", token="operator")  # noqa: S106
    if not held.won or held.body["reservation"]["state"] != "started":
        return
    executed = actor.rng.random() < 0.3
    body: Json = {
        "decision": "executed" if executed else "not_executed",
        "attempt": held.body["reservation"]["attempt"],
        "note": "seen in the ledger",
    }
    if executed:
        body["result"] = {"resolved": job.key}
    path = f"/v1/starts/{job.key}/resolve"
    actor.told(job, await actor.post(path, body, token="operator"))  # noqa: S106


async def purge(actor: Actor) -> Answer:
    """A few of the runs that `aging` made old enough."""
    limit = actor.rng.randint(1, 5)
    answer = await actor.post("/v1/retention/purge", {"limit": limit}, token="operator")  # noqa: S106
    if answer.won:
        actor.caller.counts["purged"] += answer.body["runs"]
    return answer
