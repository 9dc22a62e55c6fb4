"""A request, the answer to it, and which answers the documents allow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fencepost.problems import PROBLEMS
from soak.client_knowledge import Json, Owner, owner_of

# Verbs that the fence gates as work of an existing run; a start is gated as one.
GATED = frozenset(
    {
        *("claim", "activate", "own", "heartbeat", "reconfirm", "steal", "abandon", "recover"),
        *("transition", "acknowledge-cancel", "events", "bind-change", "bindings"),
        *("acquire", "renew", "assert", "commit", "interrupt"),
    }
)

# What a verb may lose by (docs/states.md).
LOSSES = {
    "starts": "START_PENDING START_UNRESOLVABLE RUN_LOOKUP_CONFLICT",
    "release": "FENCE_LOST KEY_JOINED SNAPSHOT_CHANGED WORK_RECORDED",
    "resolve": "KEY_JOINED HEARTBEAT_FRESH CLAIM_FRESH SNAPSHOT_CHANGED",
    "claim": "ALREADY_CLAIMED HEARTBEAT_FRESH SNAPSHOT_CHANGED",
    "activate": "CLAIM_LOST SNAPSHOT_CHANGED",
    "own": "ALREADY_CLAIMED HEARTBEAT_FRESH EVIDENCE_REQUIRED SNAPSHOT_CHANGED",
    "steal": "LIVENESS_UNCONFIRMED ALREADY_CLAIMED HEARTBEAT_FRESH SNAPSHOT_CHANGED",
    "abandon": "CLAIM_LOST",
    "recover": "LIVENESS_UNCONFIRMED CLAIM_CHANGED CLAIM_FRESH",
    "heartbeat": "FENCE_LOST",
    "reconfirm": "FENCE_LOST",
    "transition": "FENCE_LOST GUARD_FAILED HEAD_CHANGED ILLEGAL_TRANSITION",
    "events": "FENCE_LOST HEAD_CHANGED RUN_ENDED",
    "bindings": "FENCE_LOST DELIVERY_REVISION_CONFLICT HEAD_CHANGED",
    "bind-change": "FENCE_LOST CHANGE_BINDING_NOT_ALLOWED CHANGE_RUN_ALREADY_EXISTS",
    "cancel": "TERMINAL ALREADY_REQUESTED",
    "acknowledge-cancel": "FENCE_LOST CANCEL_NOT_REQUESTED",
    "acquire": "FENCE_LOST OPERATION_CONFLICT OPERATION_ALREADY_RUNNING",
    "renew": "FENCE_LOST LEASE_FENCED",
    "assert": "FENCE_LOST LEASE_FENCED",
    "commit": "FENCE_LOST LEASE_FENCED",
    "interrupt": "FENCE_LOST LEASE_FENCED",
    "transitions": "",
}
# A grant that was over before the caller could be told of it: only a lost reply takes so long, or a
# retry.
LATE = {
    "acquire": "OVERTAKEN",
    "claim": "OVERTAKEN",
    "steal": "OVERTAKEN",
    "activate": "OVERTAKEN LEASE_LAPSED",
    "own": "OVERTAKEN LEASE_LAPSED",
}
# A 503 that only a lost reply explains; the others that the product knows must not be seen.
FAULTY = frozenset({"WRITE_OUTCOME_UNKNOWN", "STORAGE_UNREADABLE", "EXECUTION_FENCE_UNREADABLE"})


@dataclass(frozen=True, slots=True)
class Request:
    """One request, sent again until there is an answer. `may`: further codes that it asks for."""

    method: str
    path: str
    body: Json | None = None
    token: str = "alice"  # noqa: S105
    key: str | None = None
    wait_s: int | None = None
    may: frozenset[str] = frozenset()

    @property
    def verb(self) -> str:
        return self.path.partition("?")[0].rsplit("/", 1)[1]

    @property
    def run_id(self) -> str | None:
        """The run that its path names."""
        parts = self.path.partition("?")[0].split("/")
        return parts[3] if len(parts) > 3 and parts[2] == "runs" else None

    @property
    def operation(self) -> str | None:
        """The operation that its path names."""
        parts = self.path.split("/")
        return parts[5] if len(parts) > 5 and parts[4] == "operations" else None

    @property
    def owner(self) -> Owner | None:
        return owner_of((self.body or {}).get("owner"))

    @property
    def generation(self) -> int | None:
        """The generation in which the sender says that it holds the run."""
        return (self.body or {}).get("generation")

    @property
    def work(self) -> str | None:
        """As what the fence gates it, were it to win."""
        if self.method != "POST":
            return None
        if self.path == "/v1/starts":
            return "start"
        return "run" if self.verb in GATED else None


@dataclass(frozen=True, slots=True)
class Answer:
    """`sent`: the tick at which the try was sent that was answered; `unsure`: a try before it
    may have had an effect. `faults`: those of the try that was answered. `replayed`: as it says.
    """

    status: int
    body: Any
    sent: int
    faults: str | None = None
    unsure: bool = False
    replayed: bool = False

    @property
    def won(self) -> bool:
        return self.status in (200, 201)

    @property
    def code(self) -> str | None:
        return self.body.get("code") if isinstance(self.body, dict) else None

    @property
    def outcome(self) -> str | None:
        return self.body.get("outcome") if isinstance(self.body, dict) else None

    @property
    def run(self) -> Json | None:
        """The RUN in it, or that it is."""
        if not isinstance(self.body, dict):
            return None
        found = self.body.get("run", self.body)
        whole = isinstance(found, dict) and "head" in found and "run_id" in found
        return found if whole else None


def an_answer_is_documented(request: Request, answer: Answer) -> str | None:
    """A success, or a problem of the table with its status, that the verb may lose by.

    A lost reply may cost an answer (503), or a grant, where a fault was asked for, and nowhere
    else; a 500 and any other 503 than the fence's and a lost race are never expected.
    """
    if answer.won:
        return None
    code = answer.code
    problem = PROBLEMS.get(code or "")
    if problem is None or (problem.status, problem.retry) != (answer.status, answer.body["retry"]):
        return f"{answer.status} {str(answer.body)[:300]}"
    if code == "EXECUTION_FENCED":
        return "fenced by an open fence" if answer.body.get("state") == "open" else None
    expected = {*LOSSES.get(request.verb, "").split(), *request.may, "CONTENDED"}
    if request.key is not None and request.path != "/v1/starts":
        expected |= {*LATE.get(request.verb, "").split()}
    late = {*FAULTY, *LATE.get(request.verb, "").split()}
    if code in expected or (code in late and answer.faults is not None):
        return None
    return f"{code}: {answer.body['detail']}"
