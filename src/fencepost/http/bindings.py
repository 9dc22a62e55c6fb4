"""Delivery bindings: binding them to a run, listing them."""

from __future__ import annotations

from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from fencepost import bindings, journal, limits
from fencepost.bindings import GATES, TABLE, Binding
from fencepost.http import outcomes, pages, queries, serialize
from fencepost.http.exchange import Reply, Request, Route
from fencepost.http.forms import Form, Member, Parser
from fencepost.http.queries import Page
from fencepost.http.values import (
    ANYTHING,
    BY_OWNER,
    EXPECTED_HEAD,
    GENERATION,
    HASH,
    HEAD_HINT,
    POSITIVE,
    one_of,
    too_large,
)
from fencepost.journal import Head
from fencepost.runs import LOSSES, Outcome, Owner

if TYPE_CHECKING:
    from fencepost.http import representations as shown

# --- Forms -------------------------------------------------------------------------------


def _proof(value: Any, name: str) -> str | None:
    """Canonical JSON, so that equal proofs are equal texts. None for null."""
    if value is None:
        return None
    if not isinstance(value, dict):
        raise ValueError(f"{name!r} is a JSON object, or null.")
    text = journal.canonical(value)
    if len(text) > limits.APPROVAL_PROOF_BYTES_MAX:
        raise too_large(name, limits.APPROVAL_PROOF_BYTES_MAX)
    return text.decode()


_BINDING = Form(
    "BindingRequest",
    lambda gate, revision, receipt_hash, approval_proof: Binding(
        gate, revision, receipt_hash, approval_proof
    ),
    {
        "gate": Member(one_of(*GATES)),
        "revision": Member(POSITIVE),
        "receipt_hash": Member(HASH),
        "approval_proof": Member(
            Parser(
                _proof,
                {
                    "type": ["object", "null"],
                    "additionalProperties": {"$ref": ANYTHING},
                    "description": f"At most {limits.APPROVAL_PROOF_BYTES_MAX} bytes.",
                },
            ),
            None,
        ),
    },
)


def _bindings(value: Any, name: str) -> list[Binding]:
    if not isinstance(value, list) or not 1 <= len(value) <= limits.BINDINGS_MAX:
        raise ValueError(f"{name!r} is a list of 1 to {limits.BINDINGS_MAX} bindings.")
    found = [_BINDING.read(item, f"{name}[{index}]") for index, item in enumerate(value)]
    if len({binding.place for binding in found}) < len(found):
        raise ValueError(f"{name!r} has two bindings with the same gate and revision.")
    return found


class BindingsBody(NamedTuple):
    owner: Owner
    generation: int | None
    bindings: list[Binding]
    expected_head: Head | None
    head_hint: Head | None


BINDINGS = Form(
    "BindingsRequest",
    BindingsBody,
    {
        "owner": BY_OWNER,
        "generation": GENERATION,
        "bindings": Member(
            Parser(
                _bindings,
                {
                    "type": "array",
                    "items": _BINDING,
                    "minItems": 1,
                    "maxItems": limits.BINDINGS_MAX,
                },
            ),
            about="No two with the same gate and revision. All of them are bound, or none.",
        ),
        "expected_head": EXPECTED_HEAD,
        "head_hint": HEAD_HINT,
    },
)

AFTER_PLACE = queries.page((queries.POSITION, queries.TEXT))

# --- Handlers ----------------------------------------------------------------------------


async def post_bindings(request: Request, body: BindingsBody) -> Reply[shown.BoundJson]:
    """Bind deliveries to a run: all of them, or none."""
    result, held = await bindings.bind(
        request.db,
        request.params["run_id"],
        request.viewer,
        body.owner,
        body.bindings,
        generation=body.generation,
        expected_head=body.expected_head,
        head_hint=body.head_hint,
    )
    if result.outcome is Outcome.DELIVERY_REVISION_CONFLICT:
        [other] = held
        raise outcomes.loss(request, result, gate=other.gate, revision=other.revision)
    if result.outcome in LOSSES:
        raise outcomes.loss(request, result)
    answer: shown.BoundJson = {
        "outcome": result.outcome,
        "bindings": [_binding_json(binding) for binding in held],
        "run": outcomes.run_json(request, result.run),
    }
    replayed = {"Idempotent-Replayed": "true"} if result.outcome is Outcome.REPLAYED else {}
    return Reply(200, answer, replayed, run_id=result.run.run_id)


async def list_bindings(request: Request, page: Page) -> Reply[shown.RowsJson[shown.BindingJson]]:
    """List the delivery bindings of a run, by revision and gate."""
    run_id, viewer, after = request.params["run_id"], request.viewer, page.cursor or (0, "")
    found = await bindings.page(request.db, run_id, viewer, after, page.limit)
    return pages.reply(page.limit, found, _binding_json, itemgetter("revision", "gate"))


def _binding_json(binding: Binding) -> shown.BindingJson:
    return {
        "gate": binding.gate,
        "revision": binding.revision,
        "receipt_hash": binding.receipt_hash,
        "approval_proof": serialize.stored("approval_proof", binding.approval_proof_json, TABLE),
        "created_at_ms": binding.created_at_ms,
    }


# --- Routes ------------------------------------------------------------------------------

_BINDINGS_OF_RUN = "/v1/runs/{run_id}/bindings"

ROUTES: tuple[Route[Any], ...] = (
    Route(
        method="GET",
        pattern=_BINDINGS_OF_RUN,
        scopes=("read",),
        handler=list_bindings,
        takes=AFTER_PLACE,
    ),
    Route(
        method="POST",
        pattern=_BINDINGS_OF_RUN,
        scopes=("work",),
        handler=post_bindings,
        takes=BINDINGS,
        headers=(queries.REQUEST_KEY,),
        problems=("FENCE_LOST", "DELIVERY_REVISION_CONFLICT", "HEAD_CHANGED", "CONTENDED"),
        response_headers=("Idempotent-Replayed",),
    ),
)
