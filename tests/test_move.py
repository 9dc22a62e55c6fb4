"""A move, by the commands of docs/operations.md: the new deployment answers as the old one did."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from deployments import Deployment, import_all
from fencepost import copies
from helpers import Client, Json, a_start, acquired, an_owner, new_key
from test_operations_page import MOVE, Rehearsal

HOUR_MS = 3_600_000
ODD = "BEGIN TRANSACTION; '); DROP TABLE fencepost_runs;-- \u2028 \U0001f600 \\u0000 \"'"


READS = (
    *("/v1/starts/{key}", "/v1/runs/{run_id}", "/v1/runs/{run_id}/events"),
    *("/v1/runs/{run_id}/integrity", "/v1/runs/{run_id}/ownership"),
    *("/v1/runs/{run_id}/bindings", "/v1/runs/{run_id}/operations/pay"),
)

# One worker has the two deployments; it begins early, as others wait for it.
pytestmark = [pytest.mark.waits, pytest.mark.xdist_group("move")]


class Asked(NamedTuple):
    """A request that changes nothing any more, where it was sent before."""

    method: str
    path: str
    body: Json | None = None
    key: str | None = None

    def of(self, client: Client) -> tuple[int, Any, Any]:
        headers = {} if self.key is None else {"Idempotency-Key": self.key}
        if self.method == "GET":
            answer = client.get(self.path)
        else:
            answer = client.post(self.path, self.body, headers=headers)
        return answer.status_code, answer.json(), answer.headers.get("Idempotent-Replayed")


class Made:
    """Runs of every kind in a deployment, and what to ask about them. Of `many` it is less."""

    def __init__(self, deployment: Deployment, client: Client, *, many: bool = False) -> None:
        self.client, self.sql = client, deployment.sql
        self.paths = ("/v1/runs/{run_id}/integrity",) if many else READS
        self.asked: list[Asked] = []
        self.live: list[Json] = []
        self.subjects: list[tuple[Json, str]] = []

    def start(self, **members: Any) -> Json:
        body = a_start(**{"owner": an_owner(), "lease_ms": HOUR_MS, **members})
        key = new_key("moved")
        answer = self.client.start(key, body)
        assert answer.status_code == 201, answer.text
        run: Json = {**answer.json()["run"], "key": key}
        self.asked += [Asked("POST", "/v1/starts", {**body, "owner": an_owner()}, key)]
        self.asked += [Asked("GET", path.format(**run)) for path in self.paths]
        return run

    def send(self, run: Json, verb: str, **members: Any) -> Json:
        """A keyed request, which will be sent again."""
        body = {"owner": run["owner"], **members}
        asked = Asked("POST", f"/v1/runs/{run['run_id']}/{verb}", body, new_key("retry"))
        status, said, _ = asked.of(self.client)
        assert status == 200, said
        self.asked.append(asked)
        answer: Json = said
        return answer

    # --- Kinds of runs -------------------------------------------------------------------

    def completed(self) -> None:
        self.send(self.start(), "transition", to="completed", result={"text": ODD})

    def running_with_steps(self) -> None:
        run = self.start()
        lease = self.send(run, "operations/pay/acquire", ttl_ms=HOUR_MS)["lease"]
        self.send(run, "operations/pay/commit", token=lease["token"], outcome={"charge": ODD})
        self.send(run, "operations/ship/acquire", ttl_ms=HOUR_MS)
        again = {"owner": run["owner"], "ttl_ms": HOUR_MS}
        at = f"/v1/runs/{run['run_id']}/operations"
        self.asked.append(Asked("POST", f"{at}/pay/acquire", again))
        self.asked.append(Asked("POST", f"{at}/ship/acquire", {**again, "exclusive": True}))
        self.live.append(run)

    def running_with_a_lapsed_step(self) -> None:
        run = self.start()
        acquired(self.client, run, "pay")
        self.sql(
            "UPDATE fencepost_operations SET lease_expires_at_ms = 2 WHERE run_id = ?1",
            run["run_id"],
        )
        refuse = {"owner": run["owner"], "ttl_ms": HOUR_MS, "if_lapsed": "refuse"}
        path = f"/v1/runs/{run['run_id']}/operations/pay/acquire"
        self.asked.append(Asked("POST", path, refuse))

    def suspended(self) -> None:
        self.send(self.start(), "transition", to="suspended", state={"page": 2})

    def abandoned(self) -> None:
        self.sql.lapse(self.start()["run_id"])

    def of_a_subject(self) -> None:
        subject = {"stage": "build", "change": new_key("c").lower()}
        run = self.start(subject=subject)
        joined = Asked("POST", "/v1/starts", a_start(subject=subject), new_key("joined"))
        assert joined.of(self.client)[0] == 200
        self.asked.append(joined)
        self.subjects.append((subject, run["run_id"]))

    def of_names(self) -> None:
        one, two = new_key("p").lower(), new_key("p").lower()
        run = self.start(subject={"stage": "design", "provisional": one, "aliases": [two]})
        self.send(run, "bind-change", change=new_key("c").lower())
        self.subjects.append(({"stage": "design", "provisional": two}, run["run_id"]))

    def of_a_lineage(self) -> None:
        lineage = new_key("lineage")
        for number in (0, 1):
            run = self.start(lineage={"id": lineage, "round": number})
        self.asked += [Asked("GET", f"/v1/runs/{run['run_id']}/{w}") for w in ("lineage", "latest")]

    def with_bindings_and_events(self) -> None:
        run = self.start()
        binding = {"gate": "a", "revision": 1, "receipt_hash": "ab" * 32}
        self.send(run, "bindings", bindings=[{**binding, "approval_proof": {"by": ODD}}])
        self.send(run, "events", type="noted", payload={"text": ODD})

    def released(self) -> None:
        run = self.start()
        path = f"/v1/starts/{run['key']}/release"
        release = Asked("POST", path, {"owner": run["owner"]}, new_key("retry"))
        assert release.of(self.client)[0] == 200
        self.asked = [each for each in self.asked if each.key != run["key"]]  # it starts again
        self.asked.append(release)

    def cancelled(self) -> None:
        run = self.start()
        self.send(run, "transition", to="suspended")
        cancel = Asked("POST", f"/v1/runs/{run['run_id']}/cancel", {}, new_key("retry"))
        assert cancel.of(self.client)[0] == 200
        self.asked.append(cancel)

    def large(self) -> None:
        """A state of a mebibyte, nearly, which is twice as long in the JSON of a page."""
        run = self.start(input='"' * 500_000)
        self.send(run, "transition", to="running", state="x" * 1_040_000)
        self.start(input="\U0001f600" * 80_000)
        self.start(input='"' * 500_000)

    @property
    def kinds(self) -> list[Callable[[], None]]:
        return [
            *(self.completed, self.running_with_steps, self.running_with_a_lapsed_step),
            *(self.suspended, self.abandoned, self.of_a_subject, self.of_names),
            *(self.of_a_lineage, self.with_bindings_and_events, self.released, self.cancelled),
        ]


@pytest.fixture
def rehearsal(tmp_path: Path, source: Deployment, target: Deployment) -> Iterator[Rehearsal]:
    with ExitStack() as stack:
        rehearsal = Rehearsal(tmp_path, stack, "operator")
        rehearsal.urls = {"OLD": source.url, "NEW": target.url}
        yield rehearsal


def the_move(rehearsal: Rehearsal) -> str:
    """The commands of the page that move, without a drain: work is left."""
    [move] = [block for block in MOVE if "npm run --silent move" in block]
    move = move.replace('"draining"', '"open"').replace("--drain-proof drained.json", "")
    return rehearsal.run(move)


@pytest.mark.parametrize("runs", [22, pytest.param(2_000, marks=pytest.mark.soak)])
def test_the_new_deployment_answers_as_the_old_one_did(
    rehearsal: Rehearsal, source: Deployment, target: Deployment, runs: int
) -> None:
    few = runs < 100
    old, new = (each.alice if few else each.unchecked() for each in (source, target))
    made = Made(source, old, many=not few)
    made.large()
    for number in range(runs):
        made.kinds[number % len(made.kinds)]()
    before = [asked.of(old) for asked in made.asked]
    the_move(rehearsal)
    for block in MOVE[MOVE.index(next(each for each in MOVE if "move-3-prove" in each)) :]:
        rehearsal.run(block)
    for asked, said in zip(made.asked, before, strict=True):
        assert asked.of(new) == said, asked
        if asked.path.endswith("/integrity"):
            assert said[1]["intact"], said
    for subject, run_id in made.subjects:
        joined = new.start(new_key(), a_start(subject=subject)).json()
        assert joined["run"]["run_id"] == run_id, joined
    for run in made.live:
        assert new.verb(run, "heartbeat").status_code == 200
    assert new.start(new_key()).status_code == 201


def test_rolled_back_the_old_deployment_goes_on_as_before_and_the_new_one_never_opens(
    rehearsal: Rehearsal, source: Deployment, target: Deployment
) -> None:
    made = Made(source, source.alice)
    for kind in made.kinds:
        kind()
    before = [asked.of(source.alice) for asked in made.asked]
    the_move(rehearsal)
    rehearsal.run("npm run --silent move -- --back --from $OLD --to $NEW")
    source.to("open")
    assert [asked.of(source.alice) for asked in made.asked] == before
    assert source.alice.start(new_key()).status_code == 201
    refused = target.client.post(
        "/v1/fence/transitions", {"expected": "migration-locked", "next": "open"}
    )
    assert (refused.status_code, refused.json()["state"]) == (503, "void")


def test_a_move_that_was_stopped_goes_on_where_it_stopped(
    rehearsal: Rehearsal, source: Deployment, target: Deployment
) -> None:
    made = Made(source, source.alice)
    for kind in made.kinds:
        kind()
    source.sealed(target, target.prepared())
    names = copies.TABLES[:4]
    brought = import_all(source, target, names)
    assert brought["events"] > 0
    said = rehearsal.run("npm run --silent move -- --from $OLD --to $NEW 2>&1")
    assert [name for name in names if f"{name}: 0 of " not in said] == []
    assert '"moved":true' in said


def test_a_row_that_was_altered_in_the_new_deployment_is_found_and_named(
    rehearsal: Rehearsal, source: Deployment, target: Deployment
) -> None:
    run = source.alice.started()
    source.sealed(target, target.prepared())
    import_all(source, target)
    target.sql("DROP TRIGGER fencepost_sealed_snapshots_update")
    target.sql("UPDATE fencepost_snapshots SET state = '0'")
    said = rehearsal.run("npm run --silent move -- --from $OLD --to $NEW 2>&1", code=1)
    assert "TRANSFER_DIFFERS" in said
    assert f'Row 1 of snapshots, ["{run["run_id"]}"' in said
    assert target.status()["phase"] == "importing"
