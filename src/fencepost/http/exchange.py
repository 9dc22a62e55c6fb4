"""What passes between the runtime and the handlers: a request, a reply, and the route between.

No JavaScript in any of them.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

from fencepost.http.forms import Form, Schema
from fencepost.identifiers import Principal
from fencepost.storage.d1 import Database

T = TypeVar("T")


@dataclass(slots=True)
class Request:
    """One HTTP request. `header` takes any case of a name; the body is read on demand, once.

    `gone` says whether the client has hung up, where the runtime knows it.
    `params`, `principal`, `scopes` and `named` (the headers that the route declares, read) are
    set by the dispatch before a handler runs.
    """

    method: str
    path: str
    query: Mapping[str, str]
    header: Callable[[str], str | None]
    read_body: Callable[[], Awaitable[bytes]]
    db: Database
    setting: Callable[[str], str | None]
    gone: Callable[[], bool] = lambda: False
    params: dict[str, str] = field(default_factory=dict)
    principal: Principal | None = None
    scopes: frozenset[str] = frozenset()
    named: dict[str, Any] = field(default_factory=dict)

    @property
    def sender(self) -> Principal:
        """The principal of a request that was authenticated."""
        assert self.principal is not None
        return self.principal

    @property
    def viewer(self) -> Principal | None:
        """Whose runs this request may see: its principal's, or everybody's (None)."""
        return None if "operate" in self.scopes else self.principal


@dataclass(slots=True)
class Reply(Generic[T]):
    """A status, a body (JSON, or a str as it is) and headers; `run_id` is for the log line.

    The API document shows the type of the body that a handler says it replies with.
    """

    status: int
    body: T
    headers: dict[str, str] = field(default_factory=dict)
    content_type: str = "application/json"
    code: str | None = None
    run_id: str | None = None


class Header(NamedTuple, Generic[T]):
    """A header of a request: how it is read, also where it is absent, and its JSON Schema."""

    name: str
    read: Callable[[str | None], T]
    schema: Schema
    required: bool
    about: str

    def of(self, request: Request) -> T:
        """The value that the request has. The route must declare the header."""
        value: T = request.named[self.name]
        return value


class Route(NamedTuple, Generic[T]):
    """A method and a path, who may use it, what it takes and what it answers.

    `scopes`: any one of them admits; none means that no token is needed. `headers` are read
    first; `takes` then reads the query of a GET, or the body of a POST, and the handler is given
    the result. The rest is for the API document: the problem codes that the route has beyond
    those that every route of its kind has (see `openapi`), the statuses of success, the headers
    and the media type of the answer.
    """

    method: str
    pattern: str
    scopes: tuple[str, ...]
    handler: Callable[[Request, T], Awaitable[Reply[Any]]]
    takes: Form[T]
    problems: tuple[str, ...] = ()
    headers: tuple[Header[Any], ...] = ()
    statuses: tuple[int, ...] = (200,)
    response_headers: tuple[str, ...] = ()
    media: str = "application/json"
