"""Clients that look: single runs, whole lists page by page, histories and who owned a run."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from urllib.parse import quote

from fencepost.inventory import CATEGORIES
from soak import invariants
from soak.history import Json
from soak.world import PEOPLE, Actor, Job

Look = Callable[[Actor, Job], Awaitable[None]]


async def read(actor: Actor) -> None:
    """One look of some kind at a job that is known."""
    job = actor.world.any_job(actor.rng)
    if job is not None:
        looks, weights = zip(*LOOKS.items(), strict=True)
        await actor.rng.choices(looks, weights)[0](actor, job)


async def _all_pages(
    actor: Actor, path: str, token: str, limit: int, may: frozenset[str]
) -> tuple[list[Json], bool]:
    """The items of all pages, and whether there was an answer to each."""
    items: list[Json] = []
    params = f"{'&' if '?' in path else '?'}limit={limit}"
    cursor = ""
    while True:
        answer = await actor.get(f"{path}{params}{cursor}", token=token, may=may)
        if not answer.won:
            return items, False
        now = actor.caller.history.tick()
        for item in answer.body["items"]:
            if "head" in item:
                actor.caller.witness.saw_run(item, answer.sent, now)
        items += answer.body["items"]
        if answer.body["cursor"] is None:
            return items, True
        cursor = "&cursor=" + quote(answer.body["cursor"], safe="")


async def _run(actor: Actor, job: Job) -> None:
    wait = f"?wait={actor.rng.choice([1, 2])}" if actor.rng.random() < 0.1 else ""
    path = f"/v1/runs/{job.run_id}{wait}"
    actor.told(job, await actor.get(path, token=job.token, may=actor.gone(job)))


async def _start(actor: Actor, job: Job) -> None:
    actor.told(job, await actor.get(f"/v1/starts/{job.key}", token=job.token))


async def _latest(actor: Actor, job: Job) -> None:
    await actor.get(f"/v1/runs/{job.run_id}/latest", token=job.token, may=actor.gone(job))


async def _stranger(actor: Actor, job: Job) -> None:
    """The run of another principal is as if it were not there."""
    stranger = "bob" if job.token == "alice" else "alice"  # noqa: S105
    may = frozenset({"RUN_NOT_FOUND"})
    answer = await actor.get(f"/v1/runs/{job.run_id}", token=stranger, may=may)
    if answer.won:
        actor.caller.witness.findings.add("a_principal_sees_its_own", f"{stranger}: {job.run_id}")


async def _integrity(actor: Actor, job: Job) -> None:
    path = f"/v1/runs/{job.run_id}/integrity"
    await actor.get(path, token=job.token, may=actor.gone(job))


async def _events(actor: Actor, job: Job) -> None:
    """A history, page by page; each event is noted as told."""
    path = f"/v1/runs/{job.run_id}/events"
    events, whole = await _all_pages(actor, path, job.token, 5, actor.gone(job))
    told = actor.caller.history.run(job.run_id)
    for event in events:
        told.events.setdefault(event["sequence"], event)
    if whole and [event["sequence"] for event in events] != list(range(1, len(events) + 1)):
        actor.caller.witness.findings.add("a_history_has_no_gaps", job.run_id)


async def _ownership(actor: Actor, job: Job) -> None:
    path = f"/v1/runs/{job.run_id}/ownership"
    facts, whole = await _all_pages(actor, path, job.token, 5, actor.gone(job))
    if whole:
        text = invariants.each_generation_is_activated_once(facts)
        actor.caller.witness.findings.add("each_generation_is_activated_once", text)


async def _lineage(actor: Actor, job: Job) -> None:
    path = f"/v1/runs/{job.run_id}/lineage"
    await _all_pages(actor, path, job.token, 50, actor.gone(job))


async def _list(actor: Actor, job: Job) -> None:
    """All runs that a principal sees, and every one that was known before is among them."""
    token = actor.rng.choice(list(PEOPLE))
    jobs = [*actor.world.recent, *actor.world.old]
    known = {j.run_id for j in jobs if token in (j.token, "operator")}
    items, whole = await _all_pages(actor, "/v1/runs", token, 200, frozenset())
    if whole:
        stayed = known - actor.world.purgeable
        text = invariants.a_list_holds_what_stays(stayed, items)
        actor.caller.witness.findings.add("a_list_holds_what_stays", text)


async def _list_by_status(actor: Actor, job: Job) -> None:
    status = actor.rng.choice(["running", "suspended", "pending"])
    await _all_pages(actor, f"/v1/runs?status={status}", job.token, 50, frozenset())


async def _inventory(actor: Actor, job: Job) -> None:
    await actor.get("/v1/inventory", token="operator")  # noqa: S106
    category = actor.rng.choice(list(CATEGORIES))
    await _all_pages(actor, f"/v1/inventory/{category}", "operator", 100, frozenset())


LOOKS: dict[Look, int] = {
    _run: 20,
    _start: 10,
    _latest: 3,
    _stranger: 3,
    _integrity: 10,
    _events: 6,
    _ownership: 6,
    _lineage: 2,
    _list: 1,
    _list_by_status: 2,
    _inventory: 2,
}
