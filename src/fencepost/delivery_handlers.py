"""Delivery bindings over HTTP: what comes in, and what is answered."""

from __future__ import annotations

from typing import Any

from fencepost import answers, bindings, errors, journal, limits, nouns, shapes, wire
from fencepost.bindings import GATES, Binding
from fencepost.body import Body, hash_text, integer, one_of, parse
from fencepost.exchange import Reply, Request
from fencepost.runs import Outcome


async def post_bindings(request: Request) -> Reply:
    body = parse(await request.read_body())
    owner = body.take("owner", nouns.owner)
    wanted = body.take("bindings", _bindings)
    head = body.take("expected_head", nouns.head, None)
    body.done()
    outcome, run, held = await bindings.bind(
        request.db, request.params["run_id"], request.viewer, owner, wanted, expected_head=head
    )
    if outcome is Outcome.DELIVERY_REVISION_CONFLICT:
        [other] = held
        raise answers.loss(outcome, run, gate=other.gate, revision=other.revision)
    reply = answers.verb_reply(outcome, run)
    reply.body = {"outcome": outcome, "bindings": _items(held), "run": shapes.run_json(run)}
    if outcome is Outcome.REPLAYED:
        reply.headers["Idempotent-Replayed"] = "true"
    return reply


async def list_bindings(request: Request) -> Reply:
    limit = wire.page_limit(request.query)
    cursor = wire.cursor(request.query.get("cursor"), 2)
    after = (0, "") if cursor is None else (wire.position(cursor[0]), cursor[1])
    run_id, viewer = request.params["run_id"], request.viewer
    page = await bindings.page(request.db, run_id, viewer, after, limit)
    last = (str(page[-1].revision), page[-1].gate) if len(page) == limit else None
    return Reply(200, {"items": _items(page), "cursor": wire.cursor_text(last)}, run_id=run_id)


def _items(page: list[Binding]) -> list[shapes.Json]:
    return [shapes.binding_json(binding) for binding in page]


def _bindings(value: Any, name: str) -> list[Binding]:
    if not isinstance(value, list) or not 1 <= len(value) <= limits.BINDINGS_MAX:
        raise ValueError(f"{name!r} is a list of 1 to {limits.BINDINGS_MAX} bindings.")
    found = [_binding(item, f"{name}[{index}]") for index, item in enumerate(value)]
    if len({binding.place for binding in found}) < len(found):
        raise ValueError(f"{name!r} names a gate and a revision twice.")
    return found


def _binding(value: Any, name: str) -> Binding:
    body = Body(value, repr(name))
    result = Binding(
        body.take("gate", one_of(*GATES)),
        body.take("revision", integer(1, limits.INTEGER_MAX)),
        body.take("receipt_hash", hash_text),
        body.take("approval_proof", _proof, None),
    )
    body.done()
    return result


def _proof(value: Any, name: str) -> str | None:
    """Canonical JSON, so that equal proofs are equal texts; null is none."""
    if value is None:
        return None
    if not isinstance(value, dict):
        raise ValueError(f"{name!r} is a JSON object, or null.")
    text, most = journal.canonical(value), limits.APPROVAL_PROOF_BYTES_MAX
    if len(text) > most:
        raise errors.InvalidRequest(
            f"{name!r} is longer than {most} bytes. Nothing was written.", code="TOO_LARGE"
        )
    return text.decode()
