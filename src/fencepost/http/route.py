"""A route: a method and a path, who may use it, what it takes, and what it answers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Generic, NamedTuple, TypeVar

from fencepost.http.exchange import Reply, Request
from fencepost.http.forms import Form
from fencepost.http.queries import Header

T = TypeVar("T")


class Route(NamedTuple, Generic[T]):
    """`scopes`: any one of them admits; none means that no token is needed.

    `headers` are read first; `takes` then reads the query of a GET, or the body of a POST, and
    the handler is given what it makes. The rest is for the API document: the problem codes that
    the route has beyond those that come with what it is (see `openapi`), the statuses of
    success, the headers and the media type of the answer.
    """

    method: str
    pattern: str
    scopes: tuple[str, ...]
    handler: Callable[[Request, T], Awaitable[Reply[Any]]]
    takes: Form[T]
    problems: tuple[str, ...] = ()
    headers: tuple[Header[Any], ...] = ()
    statuses: tuple[int, ...] = (200,)
    gives: tuple[str, ...] = ()
    media: str = "application/json"
