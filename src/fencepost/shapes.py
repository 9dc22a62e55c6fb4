"""What goes out: the shapes of design 11."""

from __future__ import annotations

import json
from typing import Any

from fencepost import errors, operations
from fencepost.audit import Entry
from fencepost.bindings import Binding
from fencepost.fence import Fence
from fencepost.journal import Event
from fencepost.operations import Operation, OperationState
from fencepost.ownership import Fact
from fencepost.reservation import Reservation
from fencepost.runs import MachineState, Owner, Run

Json = dict[str, Any]


def owner_json(owner: Owner | None) -> Json | None:
    if owner is None:
        return None
    return {"host_id": owner.host_id, "pid": owner.pid, "nonce": owner.nonce}


def run_json(run: Run, *, content: bool = True) -> Json:
    """RUN of design 11; without `content`, state and result are left out (lists, losses)."""
    claim, rounds = run.claim, run.lineage
    shape: Json = {
        "run_id": run.run_id,
        "status": run.status,
        "target": run.target.as_json(),
        "owner": owner_json(run.owner),
        "generation": run.generation,
        "heartbeat_at_ms": run.heartbeat_at_ms,
        "lease_expires_at_ms": run.lease_expires_at_ms,
        "claim": claim and {"owner": owner_json(claim.owner), "claimed_at_ms": claim.claimed_at_ms},
        "created_at_ms": run.created_at_ms,
        "started_at_ms": run.started_at_ms,
        "finished_at_ms": run.finished_at_ms,
        "cancel_requested_at_ms": run.cancel_requested_at_ms,
        "cancel_acknowledged_at_ms": run.cancel_acknowledged_at_ms,
        "parent_run_id": run.parent_run_id,
        "lineage": rounds and {"id": rounds.id, "round": rounds.round},
        "head": {"sequence": run.head.sequence, "hash": run.head.hash},
        "machine": _machine_json(run.machine),
    }
    if content:
        shape["state"] = _stored("state", run.state_json)
        shape["result"] = _stored("result", run.result_json)
    return shape


def _machine_json(machine: MachineState | None) -> Json | None:
    """The code only while there is one."""
    if machine is None:
        return None
    code = {} if machine.code is None else {"code": machine.code}
    return {"name": machine.name, "state": machine.state, **code}


def _stored(name: str, text: str | None, table: str = "fencepost_snapshots") -> Any:
    try:
        return None if text is None else json.loads(text)
    except (ValueError, RecursionError):
        raise errors.RowCorrupt(table, f"{name} is JSON") from None


def operation_json(operation: Operation, *, state: str | None = None) -> Json:
    """An operation. `outcome` is null also while there is none: `state` says which."""
    return {
        "id": operation.id,
        "kind": operation.kind,
        "state": state or operation.state,
        "outcome": _stored("outcome", operation.outcome_json, operations.TABLE),
        "payload_fingerprint": operation.payload_fingerprint,
    }


def seen_operation_json(operation: Operation) -> Json:
    """An operation as a reader finds it: one whose lease lapsed is shown as lapsed."""
    return operation_json(operation, state="lapsed" if operation.lapsed else None)


def lease_json(operation: Operation) -> Json | None:
    """The lease of an operation that runs."""
    if operation.state is not OperationState.RUNNING:
        return None
    return {"token": operation.lease_token, "expires_at_ms": operation.lease_expires_at_ms}


def reservation_json(held: Reservation) -> Json:
    return {
        "key": held.key,
        "owner": {"kind": held.owner.kind, "id": held.owner.id},
        "target": held.target.as_json(),
        "run_id": held.run_id,
        "state": held.state,
        "attempt": held.attempt,
        "outcome": held.outcome,
        "created_at_ms": held.created_at_ms,
        "updated_at_ms": held.updated_at_ms,
    }


def fence_json(gate: Fence, *, secrets: bool) -> Json:
    """The fence; its proof key is a `secret` that only operators see."""
    shape: Json = {"state": gate.state, "revision": gate.revision}
    if secrets:
        shape["proof_key"] = gate.proof_key
    return {**shape, "proof_run_id": gate.proof_run_id, "updated_at_ms": gate.updated_at_ms}


def event_json(event: Event, created_at_ms: int) -> Json:
    return {
        "sequence": event.sequence,
        "type": event.type,
        "payload": json.loads(event.payload_json),
        "prior_hash": event.prior_hash,
        "hash": event.hash,
        "created_at_ms": created_at_ms,
    }


def fact_json(fact: Fact) -> Json:
    return {
        "sequence": fact.sequence,
        "type": fact.type,
        "owner": owner_json(fact.owner),
        "generation": fact.generation,
        "granted_at_ms": fact.granted_at_ms,
        "at_ms": fact.at_ms,
    }


def binding_json(binding: Binding) -> Json:
    return {
        "approval_proof": None,
        **binding.as_json(),
        "created_at_ms": binding.created_at_ms,
    }


def audit_json(entry: Entry) -> Json:
    kind, id = entry.principal
    return {
        "action": entry.action,
        "principal": {"kind": kind, "id": id},
        "subject": entry.subject,
        "note": entry.note,
        "before": entry.before,
        "after": entry.after,
        "at_ms": entry.at_ms,
    }
