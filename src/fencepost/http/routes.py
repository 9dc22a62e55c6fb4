"""The route table, from the routes of each resource, and finding a route in it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple
from urllib.parse import unquote

from fencepost import copies, errors, inventory
from fencepost.http import bindings, deployment, history, operations, runs, starts, transfers
from fencepost.http.exchange import Route
from fencepost.http.forms import Parser
from fencepost.http.values import IDENTIFIER, OPERATION_ID, one_of
from fencepost.identifiers import is_identifier, is_operation_id
from fencepost.problems import PROBLEMS

# The type checker checks each route with its own type, where the route is defined.
ROUTES: tuple[Route[Any], ...] = (
    *starts.ROUTES,
    *runs.ROUTES,
    *history.ROUTES,
    *bindings.ROUTES,
    *operations.ROUTES,
    *deployment.ROUTES,
    *transfers.ROUTES,
)


class PathParameter(NamedTuple):
    """A parameter in a path pattern. If `is_one` refuses its text, the answer is 404 with the code
    `absent`. `parser` and `about` are for the API document.
    """

    is_one: Callable[[str], bool]
    absent: str
    parser: Parser[str]
    about: str


PATH_PARAMETERS = {
    "key": PathParameter(
        is_identifier, "START_NOT_FOUND", IDENTIFIER, "The Idempotency-Key of the start."
    ),
    "run_id": PathParameter(is_identifier, "RUN_NOT_FOUND", IDENTIFIER, "The run."),
    "op": PathParameter(
        is_operation_id,
        "OPERATION_NOT_FOUND",
        OPERATION_ID,
        "The operation; case does not matter.",
    ),
    "category": PathParameter(
        is_identifier, "NOT_FOUND", one_of(*inventory.CATEGORIES), "The kind of work."
    ),
    "table": PathParameter(
        copies.TABLES.__contains__, "NOT_FOUND", one_of(*copies.TABLES), "The table."
    ),
}

_SEGMENTS = tuple((route, route.pattern.split("/")) for route in ROUTES)


def find(method: str, path: str) -> tuple[Route[Any], dict[str, str]]:
    """The route of a request and its path parameters, which are not checked yet.

    Raises NotFound for an unknown path, and InvalidRequest (405, with Allow) for another method.
    """
    segments = path.split("/")
    allowed = []
    for route, pattern in _SEGMENTS:
        params = _match(pattern, segments)
        if params is None:
            continue
        if route.method == method:
            return route, params
        allowed += [route.method, "HEAD"] if route.method == "GET" else [route.method]
    if allowed:
        raise errors.InvalidRequest(
            f"This path takes {', '.join(sorted(set(allowed)))}.",
            code="METHOD_NOT_ALLOWED",
            allow=sorted(set(allowed)),
        )
    raise errors.NotFound("There is no such path.")


def _match(pattern: list[str], segments: list[str]) -> dict[str, str] | None:
    if len(pattern) != len(segments):
        return None
    params = {}
    for expected, found in zip(pattern, segments, strict=True):
        if expected.startswith("{"):
            params[expected[1:-1]] = unquote(found)
        elif expected != found:
            return None
    return params


def check_params(params: dict[str, str]) -> None:
    """Raises NotFound for a path parameter outside its grammar."""
    for name, value in params.items():
        parameter = PATH_PARAMETERS[name]
        if not parameter.is_one(value):
            title = PROBLEMS[parameter.absent].title
            raise errors.NotFound(f"{title}.", code=parameter.absent)
