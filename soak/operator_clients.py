"""The operator: moves the fence to and fro, resolves what was abandoned, purges, looks."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from soak.client_knowledge import Closed, Json
from soak.clients import Client, Job
from soak.requests_and_answers import Answer, Request

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


async def move_the_fence_to_and_fro(client: Client) -> None:
    """For ever: open for a while, then one way through the states and back."""
    state = "open"
    while True:
        await asyncio.sleep(client.rng.uniform(*OPEN_S))
        for next in client.rng.choice(WAYS):
            await _move(client, state, next)
            state = next
            if next == "proof-only":
                await _run_the_proof(client)
            if next != "open":
                await _send_work_while_closed(client)
                await asyncio.sleep(client.rng.uniform(*CLOSED_S))


async def _move(client: Client, expected: str, next: str) -> None:
    """One command, sent until it is answered; its key makes the retry converge."""
    knowledge = client.caller.knowledge
    body: Json = {"expected": expected, "next": next}
    if next == "proof-only":
        body["proof_key"] = client.new("proof")
    key = client.new("move")
    knowledge.closed = None
    answer = await client.post("/v1/fence/transitions", body, key=key, token="operator")  # noqa: S106
    if not answer.won:
        text = f"{expected} to {next}: {answer.body}"
        client.caller.checker.findings.add("the_only_operator_moves_the_fence", text)
        return
    proof = answer.body["proof_key"], answer.body["proof_run_id"]
    knowledge.closed = Closed(answer.body["state"], knowledge.tick(), *proof)


async def _send_work_while_closed(client: Client) -> None:
    """Work of every class, sent while the fence is closed; the checker judges what was let in."""
    owner, job = client.new_owner(), client.shared.live_job(client.rng)
    start: Json = {"target": {"kind": "workflow", "id": "late"}, "owner": owner}
    requests = [Request("POST", "/v1/starts", start, key=client.new("late"))]
    if job is not None:
        held: Json = {"owner": job.run["owner"] or owner}
        bodies: dict[str, Json] = {
            "heartbeat": held,
            "transition": {**held, "to": "running"},
            "operations/late/acquire": {**held, "ttl_ms": 50},
            "events": {"type": "knocked"},
            "claim": {"owner": owner},
            "own": {"owner": owner},
        }
        for verb in ("heartbeat", client.rng.choice(list(bodies))):
            path, may = f"/v1/runs/{job.run_id}/{verb}", client.gone(job)
            requests.append(Request("POST", path, bodies[verb], job.token, may=may))
    asked = [client.caller.ask(request, client.rng, fenced_tries=1) for request in requests]
    await asyncio.gather(*asked)


async def _run_the_proof(client: Client) -> None:
    """The one start that proof-only admits, and its run."""
    knowledge = client.caller.knowledge
    if knowledge.closed is None or knowledge.closed.proof_key is None:
        return
    owner = client.new_owner()
    body: Json = {"target": {"kind": "workflow", "id": "noop"}}
    job = Job(knowledge.closed.proof_key, "operator", body)
    request = Request("POST", "/v1/starts", {**body, "owner": owner}, "operator", job.key)
    answer = await client.caller.ask(request, client.rng)
    if answer.outcome != "started" or answer.run is None:
        text = f"{job.key}: {answer.body}"
        client.caller.checker.findings.add("proof_only_admits_the_proof", text)
        return
    job.run = answer.run
    knowledge.closed = knowledge.closed._replace(proof_run_id=job.run_id)
    client.shared.add(job, client.rng)
    await client.verb(job, "heartbeat", owner=owner)
    await client.verb(job, "transition", owner=owner, to="completed", result="proved")


async def resolve(client: Client) -> None:
    """Says of a start that nobody seems to execute whether it executed."""
    job = client.shared.live_job(client.rng)
    if job is None:
        return
    held = await client.get(f"/v1/starts/{job.key}", token="operator")  # noqa: S106
    if not held.won or held.body["reservation"]["state"] == "terminal":
        return
    decision = client.rng.choice(["executed", "not_executed", "not_executed", "cancelled"])
    body: Json = {
        "decision": decision,
        "seen": held.body["seen"],
        "note": "seen in the ledger",
    }
    if decision == "executed":
        body["result"] = {"resolved": job.key}
    path = f"/v1/starts/{job.key}/resolve"
    client.told(job, await client.post(path, body, token="operator"))  # noqa: S106


async def purge(client: Client) -> Answer:
    """A few of the runs that `backdating` made old enough."""
    limit = client.rng.randint(1, 5)
    answer = await client.post("/v1/retention/purge", {"limit": limit}, token="operator")  # noqa: S106
    if answer.won:
        client.caller.counts["purged"] += answer.body["runs"]
    return answer
