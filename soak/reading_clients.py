"""Clients that look: single runs, whole lists page by page, histories and who owned a run."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from urllib.parse import quote

from fencepost.inventory import CATEGORIES
from soak import answer_invariants
from soak.client_knowledge import Json
from soak.clients import PEOPLE, Client, Job

Look = Callable[[Client, Job], Awaitable[None]]


async def read(client: Client) -> None:
    """One look of some kind at a job that is known."""
    job = client.shared.any_job(client.rng)
    if job is not None:
        looks, weights = zip(*LOOKS.items(), strict=True)
        await client.rng.choices(looks, weights)[0](client, job)


async def _all_pages(
    client: Client, path: str, token: str, limit: int, may: frozenset[str]
) -> tuple[list[Json], bool]:
    """The items of all pages, and whether there was an answer to each."""
    items: list[Json] = []
    params = f"{'&' if '?' in path else '?'}limit={limit}"
    cursor = ""
    while True:
        answer = await client.get(f"{path}{params}{cursor}", token=token, may=may)
        if not answer.won:
            return items, False
        now = client.caller.knowledge.tick()
        for item in answer.body["items"]:
            if "head" in item:
                client.caller.checker.saw_run(item, answer.sent, now)
        items += answer.body["items"]
        if answer.body["cursor"] is None:
            return items, True
        cursor = "&cursor=" + quote(answer.body["cursor"], safe="")


async def _run(client: Client, job: Job) -> None:
    wait = f"?wait={client.rng.choice([1, 2])}" if client.rng.random() < 0.1 else ""
    path = f"/v1/runs/{job.run_id}{wait}"
    client.told(job, await client.get(path, token=job.token, may=client.gone(job)))


async def _start(client: Client, job: Job) -> None:
    client.told(job, await client.get(f"/v1/starts/{job.key}", token=job.token))


async def _latest(client: Client, job: Job) -> None:
    await client.get(f"/v1/runs/{job.run_id}/latest", token=job.token, may=client.gone(job))


async def _stranger(client: Client, job: Job) -> None:
    """The run of another principal is as if it were not there."""
    stranger = "bob" if job.token == "alice" else "alice"  # noqa: S105
    may = frozenset({"RUN_NOT_FOUND"})
    answer = await client.get(f"/v1/runs/{job.run_id}", token=stranger, may=may)
    if answer.won:
        client.caller.checker.findings.add("a_principal_sees_its_own", f"{stranger}: {job.run_id}")


async def _integrity(client: Client, job: Job) -> None:
    path = f"/v1/runs/{job.run_id}/integrity"
    await client.get(path, token=job.token, may=client.gone(job))


async def _events(client: Client, job: Job) -> None:
    """A history, page by page; each event is noted as told."""
    path = f"/v1/runs/{job.run_id}/events"
    events, whole = await _all_pages(client, path, job.token, 5, client.gone(job))
    told = client.caller.knowledge.run(job.run_id)
    for event in events:
        told.events.setdefault(event["sequence"], event)
    if whole and [event["sequence"] for event in events] != list(range(1, len(events) + 1)):
        client.caller.checker.findings.add("a_history_has_no_gaps", job.run_id)


async def _ownership(client: Client, job: Job) -> None:
    path = f"/v1/runs/{job.run_id}/ownership"
    facts, whole = await _all_pages(client, path, job.token, 5, client.gone(job))
    if whole:
        text = answer_invariants.each_generation_is_activated_once(facts)
        client.caller.checker.findings.add("each_generation_is_activated_once", text)


async def _lineage(client: Client, job: Job) -> None:
    path = f"/v1/runs/{job.run_id}/lineage"
    await _all_pages(client, path, job.token, 50, client.gone(job))


async def _list(client: Client, job: Job) -> None:
    """All runs that a principal sees, and every one that was known before is among them."""
    token = client.rng.choice(list(PEOPLE))
    jobs = [*client.shared.recent, *client.shared.old]
    known = {j.run_id for j in jobs if token in (j.token, "operator")}
    items, whole = await _all_pages(client, "/v1/runs", token, 200, frozenset())
    if whole:
        stayed = known - client.shared.purgeable
        text = answer_invariants.a_list_holds_what_stays(stayed, items)
        client.caller.checker.findings.add("a_list_holds_what_stays", text)


async def _list_by_status(client: Client, job: Job) -> None:
    status = client.rng.choice(["running", "suspended", "pending"])
    await _all_pages(client, f"/v1/runs?status={status}", job.token, 50, frozenset())


async def _inventory(client: Client, job: Job) -> None:
    await client.get("/v1/inventory", token="operator")  # noqa: S106
    category = client.rng.choice(list(CATEGORIES))
    await _all_pages(client, f"/v1/inventory/{category}", "operator", 100, frozenset())


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
