"""The JSON of what several resources show: owners, targets, runs, reservations, operations."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Literal, TypeVar, overload

from fencepost import errors, operations, receipts
from fencepost.http import strictjson
from fencepost.identifiers import Target
from fencepost.journal import Head
from fencepost.operations import Operation
from fencepost.reservation import Reservation
from fencepost.runs import Claim, MachineState, Owner, Run

if TYPE_CHECKING:
    from fencepost.http import representations as shown


def owner_json(owner: Owner) -> shown.OwnerJson:
    return {"host_id": owner.host_id, "pid": owner.pid, "nonce": owner.nonce}


def target_json(target: Target) -> shown.TargetJson:
    shape: shown.TargetJson = {"kind": target.kind, "id": target.id}
    if target.thread_id is not None:
        shape["thread_id"] = target.thread_id
    return shape


def head_json(run_id: str, head: Head) -> shown.HeadJson:
    """Where a history ends, with its receipt, if the deployment gives any."""
    shape: shown.HeadJson = {"sequence": head.sequence, "hash": head.hash}
    if (receipt := receipts.given.sign(run_id, head)) is not None:
        shape["receipt"] = receipt
    return shape


def holder_json(owner: Owner) -> shown.HolderJson:
    return {"host_id": owner.host_id, "pid": owner.pid, "nonce": owner.nonce}


@overload
def run_json(run: Run, *, content: Literal[True] = True) -> shown.RunJson: ...
@overload
def run_json(run: Run, *, content: Literal[False]) -> shown.RunSummaryJson: ...
def run_json(run: Run, *, content: bool = True) -> shown.RunJson | shown.RunSummaryJson:
    """A run. Without `content` it has no state and result (lists, refusals)."""
    claim, rounds = run.claim, run.lineage
    shape: shown.RunSummaryJson = {
        "run_id": run.run_id,
        "status": run.status,
        "target": target_json(run.target),
        "owner": None if run.owner is None else holder_json(run.owner),
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
        "head": head_json(run.run_id, run.head),
        "machine": _machine_json(run.machine),
        "traceparent": run.traceparent,
    }
    if not content:
        return shape
    return {
        **shape,
        "state": stored("state", run.state_json),
        "result": stored("result", run.result_json),
    }


def run_summary_json(run: Run) -> shown.RunSummaryJson:
    """A run as lists show it."""
    return run_json(run, content=False)


def _claim_json(claim: Claim) -> shown.ClaimJson:
    return {"owner": holder_json(claim.owner), "claimed_at_ms": claim.claimed_at_ms}


R = TypeVar("R", bound="shown.RunSummaryJson")


def without_nonces(run: R, caller: Owner | None) -> R:
    """The run without the nonces of owner and claimant, but for the caller's own."""
    claim = run["claim"]
    for holder in (run["owner"], None if claim is None else claim["owner"]):
        if holder is not None and (caller is None or holder != holder_json(caller)):
            del holder["nonce"]
    return run


def _machine_json(machine: MachineState | None) -> shown.MachineJson | None:
    """With a code only if there is one."""
    if machine is None:
        return None
    shape: shown.MachineJson = {"name": machine.name, "state": machine.state}
    if machine.code is not None:
        shape["code"] = machine.code
    return shape


# Where a stored text may hold what no answer can: a lone surrogate, a number that no double holds.
# In a long one it is looked for no sooner than when the answer is encoded (`server`): this is slow.
_SHORT_CHARS = 10_000
_ODD = re.compile(r"\\u[dD][89a-fA-F]|[eE]\+?[0-9]{3}|[0-9]{300}|NaN|Infinity")


def stored(name: str, text: str | None, table: str = "fencepost_snapshots") -> Any:
    """The value of a stored JSON text. Raises RowCorrupt for one that an answer cannot show."""
    if text is None:
        return None
    try:
        value = json.loads(text)
        if len(text) < _SHORT_CHARS and _ODD.search(text):
            strictjson.dumps(value).encode()
    except (ValueError, TypeError, RecursionError):
        raise errors.RowCorrupt(table, f"{name} is JSON") from None
    return value


def operation_json(operation: Operation, *, state: str | None = None) -> shown.OperationJson:
    """An operation. `outcome` is null until it is committed, and may be null then too."""
    return {
        "id": operation.id,
        "kind": operation.kind,
        "state": state or operation.state,
        "outcome": stored("outcome", operation.outcome_json, operations.TABLE),
        "cause": operation.cause,
        "payload_fingerprint": operation.payload_fingerprint,
    }


def seen_operation_json(operation: Operation) -> shown.OperationJson:
    """An operation for readers. One whose lease has lapsed has the state `lapsed`."""
    return operation_json(operation, state="lapsed" if operation.lapsed else None)


def reservation_json(held: Reservation) -> shown.ReservationJson:
    return {
        "key": held.key,
        "owner": {"kind": held.principal.kind, "id": held.principal.id},
        "target": target_json(held.target),
        "run_id": held.run_id,
        "joined": held.joined,
        "state": held.state,
        "attempt": held.attempt,
        "outcome": held.outcome,
        "admitted_revision": held.admitted_revision,
        "created_at_ms": held.created_at_ms,
        "updated_at_ms": held.updated_at_ms,
    }
