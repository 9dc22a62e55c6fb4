"""Clients that take over what others left, and clients that cancel."""

from __future__ import annotations

import asyncio

from soak.history import Json
from soak.requests import Answer
from soak.workers import work
from soak.world import Actor, Job


def _evidence(actor: Actor, job: Job, thief: Json) -> Json:
    owner = job.run["owner"]
    same = owner["host_id"] == thief["host_id"]
    fitting = "same-host-pid-dead" if same else "cross-host-unreachable-stale"
    kind = "lease-expired" if actor.rng.random() < 0.8 else fitting
    return {"kind": kind, "expected_owner": owner}


async def take_over(actor: Actor) -> None:
    """One to three processes at once want a run that waits, or whose owner's lease lapsed."""
    job = actor.world.live_job(actor.rng)
    if job is None:
        return
    path = f"/v1/runs/{job.run_id}"
    seen = actor.told(job, await actor.get(path, token=job.token, may=actor.gone(job)))
    if not seen.won or job.ended:
        return
    thieves = [actor.new_owner() for _ in range(actor.rng.choice([1, 1, 2, 3]))]
    take = actor.rng.choice([_own, _by_claim])
    answers = await asyncio.gather(*[take(actor, job, thief) for thief in thieves])
    for thief, answer in zip(thieves, answers, strict=True):
        if answer.outcome in ("owned", "activated"):
            await work(actor, job, thief)
            return


async def _own(actor: Actor, job: Job, thief: Json) -> Answer:
    evidence = {"evidence": _evidence(actor, job, thief)} if job.run["owner"] else {}
    lease = {"lease_ms": 1000} if actor.rng.random() < 0.5 else {}
    return await actor.verb(job, "own", owner=thief, **evidence, **lease)


async def _by_claim(actor: Actor, job: Job, thief: Json) -> Answer:
    """Claim or steal, then activate; or abandon the claim, or leave it to be recovered."""
    if job.run["owner"]:
        evidence = _evidence(actor, job, thief)
        answer = await actor.verb(job, "steal", owner=thief, evidence=evidence)
    else:
        answer = await actor.verb(job, "claim", owner=thief)
    if answer.won:
        then = actor.rng.choice(["activate", "activate", "activate", "abandon", ""])
        return await actor.verb(job, then, owner=thief) if then else answer
    if answer.code == "ALREADY_CLAIMED" and job.run["claim"] is not None:
        dead = job.run["claim"]["owner"]
        evidence = {"kind": "lease-expired", "expected_owner": dead}
        await actor.verb(job, "recover", owner=thief, evidence=evidence)
    return answer


async def cancel(actor: Actor) -> None:
    """Ask for the cancel of a run, or of all rounds of its lineage; perhaps as the operator."""
    job = actor.world.live_job(actor.rng)
    if job is None:
        return
    token = "operator" if actor.rng.random() < 0.3 else job.token
    verb = "lineage/cancel" if job.body.get("lineage") and actor.rng.random() < 0.5 else "cancel"
    path = f"/v1/runs/{job.run_id}/{verb}"
    answer = await actor.post(path, token=token, may=actor.gone(job))
    actor.told(job, answer)
