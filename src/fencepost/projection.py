"""Rebuilds a run from the events of its history, and compares it with the run row."""

from __future__ import annotations

import json
from typing import Any

from fencepost import journal
from fencepost.journal import Event
from fencepost.machines import MACHINES
from fencepost.runs import TERMINAL, Run

# Owning a waiting run makes it `running` without an event. Every other change has an event.
_MAY_BE_RUNNING = frozenset({"pending", "suspended", "running"})


class Projection:
    """The run, as the events read so far describe it."""

    def __init__(self) -> None:
        self.created: dict[str, Any] | None = None
        self.created_at_ms = 0
        self.status = ""
        self.status_at_ms = 0
        self.state_sha256: str | None = None
        self.result_sha256: str | None = None
        self.machine: tuple[str, str, str | None] | None = None

    def apply(self, event: Event, run_id: str, at_ms: int) -> str | None:
        """Add the next event. Returns the rule that it breaks, or None."""
        try:
            return self._apply(event, run_id, at_ms)
        except (LookupError, TypeError, AttributeError, ValueError, RecursionError):
            return "an event of the service has the payload of its type"

    def _apply(self, event: Event, run_id: str, at_ms: int) -> str | None:
        # Whatever a caller appended is its own affair.
        known = event.type in journal.PRODUCT_TYPES
        payload = json.loads(event.payload_json) if known else {}
        first = self.created is None
        if first != (event.type == "run-created"):
            return "a history begins with run-created" if first else "a run is created once"
        if first:
            if payload.get("run_id") != run_id:
                return "run-created names this run"
            self.created, self.created_at_ms = payload, at_ms
        if (broken := self._move_machine(event.type, payload)) is not None:
            return broken
        status = _status(event.type, payload)
        if status is not None:
            self.status, self.status_at_ms = status, at_ms
        if known:
            self.state_sha256 = payload.get("state_sha256", self.state_sha256)
            self.result_sha256 = payload.get("result_sha256", self.result_sha256)
        return None

    def _move_machine(self, type: str, payload: dict[str, Any]) -> str | None:
        if type == "run-created" and payload.get("machine"):
            name = payload["machine"]
            if name not in MACHINES:
                return "the machine is one that this build knows"
            self.machine = (name, MACHINES[name].initial, None)
        elif type == "state-transitioned" and "machine" in payload and self.machine:
            move = payload["machine"]
            self.machine = (self.machine[0], move["to"], move.get("code"))
        return None

    def mismatch(self, run: Run) -> str | None:
        """The first rule by which the run row differs, or None."""
        created = self.created or {}
        lineage = run.lineage and {"id": run.lineage.id, "round": run.lineage.round}
        principal = {"kind": run.principal.kind, "id": run.principal.id}
        checks = {
            "target": created.get("target") == run.target.as_json(),
            # Events of earlier builds do not have these members.
            "principal": created.get("principal", principal) == principal,
            "lineage": created.get("lineage", lineage) == lineage,
            "parent_run_id": created.get("parent_run_id", run.parent_run_id) == run.parent_run_id,
            "created_at_ms": self.created_at_ms == run.created_at_ms,
            "status": self._fits(run),
            "finished_at_ms": run.finished_at_ms in (None, self.status_at_ms),
            "state": _sha256(run.state_json) == self.state_sha256,
            "result": _sha256(run.result_json) == self.result_sha256,
            "machine": self.machine == _machine(run),
        }
        wrong = next((name for name, holds in checks.items() if not holds), None)
        return None if wrong is None else f"the run's {wrong} is what its history says"

    def _fits(self, run: Run) -> bool:
        if self.status in TERMINAL:
            return run.status == self.status
        return run.status in (self.status, "running") and self.status in _MAY_BE_RUNNING


def _status(type: str, payload: dict[str, Any]) -> str | None:
    """The run's status after an event of the product; None if the event does not change it."""
    match type:
        case "run-created" | "run-restarted":
            return "running"
        case "run-released":
            return str(payload.get("to", "pending"))
        case "run-resolved":
            executed = payload["decision"] == "executed"
            return str(payload.get("to", "completed" if executed else "pending"))
        case "state-transitioned":
            return str(payload["to"])
    return None


def _machine(run: Run) -> tuple[str, str, str | None] | None:
    held = run.machine
    return None if held is None else (held.name, held.state, held.code)


def _sha256(text: str | None) -> str | None:
    return None if text is None else journal.sha256(text)
