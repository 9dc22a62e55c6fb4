"""A request as the handlers see it, and the reply they give: no JavaScript in either."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from fencepost.identifiers import Principal
from fencepost.storage.d1 import Database


@dataclass(slots=True)
class Request:
    """One HTTP request. `header` takes any case of a name; the body is read on demand, once.

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


T = TypeVar("T")


@dataclass(slots=True)
class Reply(Generic[T]):
    """A status, a body (JSON, or a str as it is) and headers; `run_id` is for the log line.

    What a handler says that it replies is what the API document shows.
    """

    status: int
    body: T
    headers: dict[str, str] = field(default_factory=dict)
    content_type: str = "application/json"
    code: str | None = None
    run_id: str | None = None
