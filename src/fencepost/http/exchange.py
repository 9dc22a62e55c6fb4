"""A request, a reply, and a route: what `server` and the handlers exchange. No JavaScript."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

from fencepost import limits
from fencepost.http.forms import Form, Schema
from fencepost.identifiers import Principal
from fencepost.runs import Owner
from fencepost.storage.d1 import Database

T = TypeVar("T")


@dataclass(slots=True)
class Request:
    """One HTTP request. `header` ignores the case of a name. The body can be read once; `read_body`
    takes how many bytes it may have.

    `repeated` is a query parameter that is given twice. `gone` says whether the client has hung
    up, where the runtime knows it.
    `server.answer` sets `params`, `principal`, `scopes`, `named` (the values of the headers that
    the route declares) and `owner` (the process that the body names) before the handler runs.
    """

    method: str
    path: str
    query: Mapping[str, str]
    header: Callable[[str], str | None]
    read_body: Callable[[int], Awaitable[bytes]]
    db: Database
    setting: Callable[[str], str | None]
    repeated: str | None = None
    gone: Callable[[], bool] = lambda: False
    params: dict[str, str] = field(default_factory=dict)
    principal: Principal | None = None
    scopes: frozenset[str] = frozenset()
    named: dict[str, Any] = field(default_factory=dict)
    owner: Owner | None = None

    @property
    def sender(self) -> Principal:
        """The principal. Only after the request was authenticated."""
        assert self.principal is not None
        return self.principal

    @property
    def viewer(self) -> Principal | None:
        """The principal whose runs this request may see; None for every principal's."""
        return None if "operate" in self.scopes else self.principal


@dataclass(slots=True)
class Reply(Generic[T]):
    """A status, a body (a JSON value, or text or bytes that are sent unchanged) and headers.

    `run_id` is for the log line. The API document shows the body's type from the annotation of
    the handler.
    """

    status: int
    body: T
    headers: dict[str, str] = field(default_factory=dict)
    content_type: str = "application/json"
    code: str | None = None
    run_id: str | None = None


class Header(NamedTuple, Generic[T]):
    """A request header: how it is read (None if it is absent), and its JSON Schema."""

    name: str
    read: Callable[[str | None], T]
    schema: Schema
    required: bool
    about: str

    def of(self, request: Request) -> T:
        """The value in this request. The route must declare the header."""
        value: T = request.named[self.name]
        return value


class Route(NamedTuple, Generic[T]):
    """A method, a path, the scopes that may use it, what it takes, and what it answers.

    `scopes`: one of them is enough; with none, no token is needed. `headers` are read first. Then
    `takes` reads the query of a GET or the body of a POST, and its result is passed to the
    handler. A POST that is not `of_a_move` is refused by a deployment that moves, or has moved. The
    rest is for the API document: the problem codes of this route beyond those of
    every route of its kind (see `openapi.problems_of`), the statuses of success, and the headers
    and the media type of the answer.
    """

    method: str
    pattern: str
    scopes: tuple[str, ...]
    handler: Callable[[Request, T], Awaitable[Reply[Any]]]
    takes: Form[T]
    problems: tuple[str, ...] = ()
    headers: tuple[Header[Any], ...] = ()
    of_a_move: bool = False
    body_bytes_max: int = limits.BODY_BYTES_MAX
    statuses: tuple[int, ...] = (200,)
    response_headers: tuple[str, ...] = ()
    media: str = "application/json"

    @property
    def verb(self) -> str:
        """What a keyed request asks for: the path, without the run."""
        return self.pattern.removeprefix("/v1/").removeprefix("runs/{run_id}/")
