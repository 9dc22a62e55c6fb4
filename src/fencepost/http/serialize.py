"""What goes out: the shapes of design 11."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Literal, overload

from fencepost import errors, operations
from fencepost.audit import Entry
from fencepost.bindings import Binding
from fencepost.fence import Fence
from fencepost.identifiers import Target
from fencepost.journal import Event
from fencepost.operations import Operation, OperationState
from fencepost.ownership import Fact
from fencepost.reservation import Reservation
from fencepost.runs import Claim, MachineState, Owner, Run

if TYPE_CHECKING:
    from fencepost.http import operator_representations as operators
    from fencepost.http import representations as shown


def owner_json(owner: Owner) -> shown.Owner:
    return {"host_id": owner.host_id, "pid": owner.pid, "nonce": owner.nonce}


def target_json(target: Target) -> shown.Target:
    shape: shown.Target = {"kind": target.kind, "id": target.id}
    if target.thread_id is not None:
        shape["thread_id"] = target.thread_id
    return shape


@overload
def run_json(run: Run, *, content: Literal[True] = True) -> shown.Run: ...
@overload
def run_json(run: Run, *, content: Literal[False]) -> shown.RunSummary: ...
def run_json(run: Run, *, content: bool = True) -> shown.Run | shown.RunSummary:
    """RUN of design 11; without `content`, state and result are left out (lists, losses)."""
    claim, rounds = run.claim, run.lineage
    shape: shown.RunSummary = {
        "run_id": run.run_id,
        "status": run.status,
        "target": target_json(run.target),
        "owner": None if run.owner is None else owner_json(run.owner),
        "generation": run.generation,
        "heartbeat_at_ms": run.heartbeat_at_ms,
        "lease_expires_at_ms": run.lease_expires_at_ms,
        "claim": None if claim is None else _claim_json(claim),
        "created_at_ms": run.created_at_ms,
        "started_at_ms": run.started_at_ms,
        "finished_at_ms": run.finished_at_ms,
        "cancel_requested_at_ms": run.cancel_requested_at_ms,
        "cancel_acknowledged_at_ms": run.cancel_acknowledged_at_ms,
        "parent_run_id": run.parent_run_id,
        "lineage": None if rounds is None else {"id": rounds.id, "round": rounds.round},
        "head": {"sequence": run.head.sequence, "hash": run.head.hash},
        "machine": _machine_json(run.machine),
    }
    if not content:
        return shape
    return {
        **shape,
        "state": _stored("state", run.state_json),
        "result": _stored("result", run.result_json),
    }


def _claim_json(claim: Claim) -> shown.Claim:
    return {"owner": owner_json(claim.owner), "claimed_at_ms": claim.claimed_at_ms}


def _machine_json(machine: MachineState | None) -> shown.Machine | None:
    """The code only while there is one."""
    if machine is None:
        return None
    shape: shown.Machine = {"name": machine.name, "state": machine.state}
    if machine.code is not None:
        shape["code"] = machine.code
    return shape


def _stored(name: str, text: str | None, table: str = "fencepost_snapshots") -> Any:
    try:
        return None if text is None else json.loads(text)
    except (ValueError, RecursionError):
        raise errors.RowCorrupt(table, f"{name} is JSON") from None


def operation_json(operation: Operation, *, state: str | None = None) -> shown.Operation:
    """An operation. `outcome` is null also while there is none: `state` says which."""
    return {
        "id": operation.id,
        "kind": operation.kind,
        "state": state or operation.state,
        "outcome": _stored("outcome", operation.outcome_json, operations.TABLE),
        "payload_fingerprint": operation.payload_fingerprint,
    }


def seen_operation_json(operation: Operation) -> shown.Operation:
    """An operation as a reader finds it: one whose lease lapsed is shown as lapsed."""
    return operation_json(operation, state="lapsed" if operation.lapsed else None)


def lease_json(operation: Operation) -> shown.Lease | None:
    """The lease of an operation that runs."""
    if operation.state is not OperationState.RUNNING:
        return None
    return {"token": operation.lease_token, "expires_at_ms": operation.lease_expires_at_ms}


def reservation_json(held: Reservation) -> shown.Reservation:
    return {
        "key": held.key,
        "owner": {"kind": held.owner.kind, "id": held.owner.id},
        "target": target_json(held.target),
        "run_id": held.run_id,
        "state": held.state,
        "attempt": held.attempt,
        "outcome": held.outcome,
        "created_at_ms": held.created_at_ms,
        "updated_at_ms": held.updated_at_ms,
    }


def fence_json(gate: Fence, *, secrets: bool) -> operators.Fence:
    """The fence; its proof key is a `secret` that only operators see."""
    shape: operators.Fence = {
        "state": gate.state,
        "revision": gate.revision,
        "proof_run_id": gate.proof_run_id,
        "updated_at_ms": gate.updated_at_ms,
    }
    if secrets:
        shape["proof_key"] = gate.proof_key
    return shape


def event_json(event: Event, created_at_ms: int) -> shown.Event:
    return {
        "sequence": event.sequence,
        "type": event.type,
        "payload": json.loads(event.payload_json),
        "prior_hash": event.prior_hash,
        "hash": event.hash,
        "created_at_ms": created_at_ms,
    }


def fact_json(fact: Fact) -> shown.Fact:
    return {
        "sequence": fact.sequence,
        "type": fact.type,
        "owner": owner_json(fact.owner),
        "generation": fact.generation,
        "granted_at_ms": fact.granted_at_ms,
        "at_ms": fact.at_ms,
    }


def binding_json(binding: Binding) -> shown.Binding:
    proof = binding.approval_proof_json
    return {
        "gate": binding.gate,
        "revision": binding.revision,
        "receipt_hash": binding.receipt_hash,
        "approval_proof": None if proof is None else json.loads(proof),
        "created_at_ms": binding.created_at_ms,
    }


def audit_json(entry: Entry) -> operators.Entry:
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
