"""Whether the peer does the same job: one script sent to both, and what each answered."""

from __future__ import annotations

from typing import Any

from bench.measure import START, Answer, Client, Json, owned, owner


def differences(url: str, peer: str) -> list[str]:
    """One line for each answer of the peer that differs; none means that both do the same job.

    Compared are status, code, the members of the body and their types, round trips, rows read and
    written; and that the history of the peer's run is intact in the eyes of the Worker.
    """
    with Client(url) as worker, Client(peer) as other:
        worker.start("alike-first", START)  # which creates the tables
        ours, theirs = transcript(worker, "python"), transcript(other, "javascript")
        pairs = zip(ours.items(), theirs.values(), strict=True)
        lines = [f"{name}: {mine} / {its}" for (name, mine), its in pairs if mine != its]
        run = other.start("alike-javascript", owned("javascript"), 200).body["run"]
        history = worker.get(f"/v1/runs/{run['run_id']}/integrity").body
    return lines if history["intact"] else [*lines, f"the peer's history is broken: {history}"]


def transcript(client: Client, name: str) -> dict[str, Any]:
    """A run from its start to its replay, and the refusals that are measured or cheap to have."""
    key, me = f"alike-{name}", {"owner": owner(name)}
    started = client.start(key, owned(name))
    path = f"/v1/runs/{started.body['run']['run_id']}"
    checkpoint = {**me, "to": "running", "state": {"page": 1}}
    moved = client.post(f"{path}/transition", checkpoint)
    head = {"expected_head": moved.body["run"]["head"]}
    answers = {
        "start": started,
        "own retry": client.start(key, owned(name), 200),
        "read": client.get(path),
        "heartbeat": client.post(f"{path}/heartbeat", me),
        "checkpoint": moved,
        "checkpoint, head given": client.post(f"{path}/transition", {**checkpoint, **head}),
        "checkpoint, old head": client.post(
            f"{path}/transition", {**checkpoint, **head}, status=409
        ),
        "pending": client.start(key, owned("somebody"), 409),
        "end": client.post(f"{path}/transition", {**me, "to": "completed", "result": 42}),
        "replay": client.start(key, owned("somebody"), 200),
        "lost": client.post(f"{path}/heartbeat", me, status=409),
        "another input": client.start(key, owned(name, input=1), 422),
        "refused": client.start(f"{key}-refused", owned(name, unknown=1), 400),
        "no such run": client.get("/v1/runs/none", status=404),
        "no token": client.get(path, status=401, Authorization="Bearer wrong"),
    }
    return {name: _seen(answer) for name, answer in answers.items()}


def _seen(answer: Answer) -> Any:
    body = answer.body
    problem = answer.status >= 400
    shape = body["code"] if problem else _shape(body)
    return answer.status, answer.trips, answer.read, answer.written, shape


def _shape(value: Any) -> Json | list[Any] | str:
    if isinstance(value, dict):
        return {name: _shape(item) for name, item in value.items()}
    return [_shape(item) for item in value] if isinstance(value, list) else type(value).__name__
