"""Clients that start: many at once with one key, their retries, and those who misuse a key."""

from __future__ import annotations

import asyncio
import itertools

from soak.client_knowledge import Json
from soak.clients import Client, Job
from soak.executing_clients import work
from soak.requests_and_answers import Answer

SHORT_LEASE_MS, LONG_LEASE_MS = 1000, 30_000
SUBJECTS, LINEAGES = 40, 25


def _new_job(client: Client) -> Job:
    rng = client.rng
    agent = rng.random() < 0.2
    target = {"kind": "agent", "id": "writer", "thread_id": "t-1"} if agent else {}
    body: Json = {
        "target": target or {"kind": "workflow", "id": rng.choice(["charge", "mail"])},
        "input": {"cents": rng.randrange(1000), "note": "Zoë" * rng.randrange(20)},
        "lease_ms": SHORT_LEASE_MS if rng.random() < 0.5 else LONG_LEASE_MS,
    }
    if rng.random() < 0.2:
        body["lineage"] = {"id": f"line-{rng.randrange(LINEAGES)}", "round": rng.randrange(9)}
    if rng.random() < 0.2:
        body["subject"] = _subject(client)
    if rng.random() < 0.3:
        body["machine"] = "delivery"
    return Job(client.new("key"), rng.choice(["alice", "alice", "bob"]), body)


def _subject(client: Client) -> Json:
    rng = client.rng
    name = f"name-{rng.randrange(SUBJECTS)}"
    if rng.random() < 0.4:
        return {"stage": "design", "provisional": name, "aliases": [f"{name}-too"]}
    return {"stage": rng.choice(["design", "build"]), "change": name}


async def send_start(
    client: Client, job: Job, owner: Json | None, wait_s: int | None = None
) -> Answer:
    """The start of a job, by this owner."""
    body = job.body if owner is None else {**job.body, "owner": owner}
    may = client.gone(job)
    answer = await client.post(
        "/v1/starts", body, key=job.key, token=job.token, wait_s=wait_s, may=may
    )
    if not job.run and answer.run is not None:
        job.run = answer.run
    return client.told(job, answer)


async def start_new(client: Client) -> None:
    """A new key, by one to four processes at once, each perhaps twice; the winner works on it."""
    job = _new_job(client)
    owners = [client.new_owner() for _ in range(client.rng.choice([1, 1, 1, 2, 4]))]
    twice = [owner for owner in owners if client.rng.random() < 0.2]
    answers = await asyncio.gather(*[send_start(client, job, owner) for owner in owners + twice])
    if not job.run:
        return  # fenced
    client.shared.add(job, client.rng)
    for owner, answer in zip(owners + twice, answers, strict=True):
        if answer.outcome == "started":
            await work(client, job, owner, answer)
            return


async def start_again(client: Client) -> None:
    """A known key: by a new process, by the last owner, by nobody in particular; or waiting."""
    job = client.shared.any_job(client.rng)
    if job is None:
        return
    owner = client.rng.choice([None, client.new_owner(), job.run.get("owner")])
    wait_s = client.rng.choice([None, None, 1, 2])
    answer = await send_start(client, job, owner, wait_s)
    if answer.status == 201 and owner is not None:
        await work(client, job, owner, answer)


async def misuse(client: Client) -> None:
    """A known key with another target, input or principal: refused; the start does not change."""
    job = client.shared.any_job(client.rng)
    if job is None:
        return
    other = {
        "START_INPUT_MISMATCH": {**job.body, "input": "another"},
        "START_TARGET_MISMATCH": {**job.body, "target": {"kind": "workflow", "id": "other"}},
        "START_SUBJECT_MISMATCH": {**job.body, "subject": {"stage": "build", "change": "other"}},
        "START_OWNER_MISMATCH": job.body,
    }
    code = client.rng.choice(list(other))
    stranger = "bob" if job.token == "alice" else "alice"  # noqa: S105
    token = stranger if code == "START_OWNER_MISMATCH" else job.token
    answer = await client.post(
        "/v1/starts", other[code], key=job.key, token=token, may=frozenset({code})
    )
    if answer.code != code:
        text = f"{job.key}: {answer.code} instead of {code}"
        client.caller.checker.findings.add("a_key_means_one_thing", text)


# What a process may do before it gives its start back; only a heartbeat leaves it to be given.
_STEP = "operations/step/acquire"
_BEFORE: dict[str, Json] = {
    "heartbeat": {},
    "events": {"type": "begun"},
    "transition": {"to": "running"},
    _STEP: {"ttl_ms": 50},
}


async def release(client: Client) -> None:
    """A process takes a new key and gives it back; the key is then started anew.

    Some have done something before: such a start is not theirs to give back.
    """
    job, owner = _new_job(client), client.new_owner()
    answer = await send_start(client, job, owner)
    if answer.outcome != "started":
        return
    client.shared.add(job, client.rng)
    assert answer.run is not None
    whole = {"owner": owner, "generation": answer.run["generation"]}
    me: Json = client.rng.choice([whole, {"owner": owner}])
    for verb in client.rng.choice([(), (), *itertools.combinations(_BEFORE, 1), ("events", _STEP)]):
        await client.verb(job, verb, **me, **_BEFORE[verb])
    path = f"/v1/starts/{job.key}/release"
    client.told(job, await client.post(path, me, token=job.token))
    next_owner = client.new_owner()
    again = await send_start(client, job, next_owner)
    if again.outcome == "started":
        await work(client, job, next_owner, again)
