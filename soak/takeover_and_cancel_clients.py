"""Clients that take over what others left, and clients that cancel."""

from __future__ import annotations

import asyncio

from soak.client_knowledge import Json
from soak.clients import Client, Job
from soak.executing_clients import work
from soak.requests_and_answers import Answer


def _evidence(client: Client, job: Job, taker: Json) -> Json:
    owner = job.run["owner"]
    same = owner["host_id"] == taker["host_id"]
    fitting = "same-host-pid-dead" if same else "cross-host-unreachable-stale"
    kind = "lease-expired" if client.rng.random() < 0.8 else fitting
    evidence: Json = {"kind": kind, "expected_owner": owner}
    if client.rng.random() < 0.5:
        evidence["expected_heartbeat_at_ms"] = job.run["heartbeat_at_ms"]
    return evidence


def _expected_status(client: Client, job: Job) -> Json:
    """Half of the clients say in which status they saw the run last."""
    return {"expected_status": job.run["status"]} if client.rng.random() < 0.5 else {}


async def take_over(client: Client) -> None:
    """One to three processes at once want a run that waits, or whose owner's lease lapsed."""
    job = client.shared.live_job(client.rng)
    if job is None:
        return
    path = f"/v1/runs/{job.run_id}"
    seen = client.told(job, await client.get(path, token=job.token, may=client.gone(job)))
    if not seen.won or job.ended:
        return
    takers = [client.new_owner() for _ in range(client.rng.choice([1, 1, 2, 3]))]
    take = client.rng.choice([_own, _by_claim])
    answers = await asyncio.gather(*[take(client, job, taker) for taker in takers])
    for taker, answer in zip(takers, answers, strict=True):
        if answer.outcome in ("owned", "activated"):
            await work(client, job, taker, answer)
            return


async def _own(client: Client, job: Job, taker: Json) -> Answer:
    evidence = {"evidence": _evidence(client, job, taker)} if job.run["owner"] else {}
    lease = {"lease_ms": 1000} if client.rng.random() < 0.5 else {}
    expected = _expected_status(client, job)
    return await client.verb(job, "own", owner=taker, **evidence, **lease, **expected)


async def _by_claim(client: Client, job: Job, taker: Json) -> Answer:
    """Claim or steal, then activate; or abandon the claim, or leave it to be recovered."""
    if job.run["owner"]:
        evidence = _evidence(client, job, taker)
        answer = await client.verb(job, "steal", owner=taker, evidence=evidence)
    else:
        expected = _expected_status(client, job)
        answer = await client.verb(job, "claim", owner=taker, **expected)
    if answer.won and answer.run is not None:
        then = client.rng.choice(["activate", "activate", "activate", "abandon", ""])
        claimed_at_ms = answer.run["claim"]["claimed_at_ms"]
        named = {"claimed_at_ms": claimed_at_ms} if client.rng.random() < 0.7 else {}
        return await client.verb(job, then, owner=taker, **named) if then else answer
    if answer.code == "ALREADY_CLAIMED" and job.run["claim"] is not None:
        dead = job.run["claim"]
        evidence = {"kind": "lease-expired", "expected_owner": dead["owner"]}
        named = {"claimed_at_ms": dead["claimed_at_ms"]} if client.rng.random() < 0.5 else {}
        await client.verb(job, "recover", owner=taker, evidence=evidence, **named)
    return answer


async def cancel(client: Client) -> None:
    """Ask for the cancel of a run, or of all rounds of its lineage; perhaps as the operator."""
    job = client.shared.live_job(client.rng)
    if job is None:
        return
    token = "operator" if client.rng.random() < 0.3 else job.token
    verb = "lineage/cancel" if job.body.get("lineage") and client.rng.random() < 0.5 else "cancel"
    path = f"/v1/runs/{job.run_id}/{verb}"
    answer = await client.post(path, token=token, may=client.gone(job))
    client.told(job, answer)
