"""The D1 boundary: the only module that carries SQL across to JavaScript.

A batch is one transaction and one network round trip; a single statement is a batch of one.
Results come back in one JSON pass for the whole batch.
"""

from __future__ import annotations

import functools
import json
import math
import time
from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from fencepost import errors, limits
from fencepost.identifiers import is_well_formed
from fencepost.storage import failures
from fencepost.storage.event_loop import promptly
from fencepost.storage.sql import Parameter, Statement


class Result(NamedTuple):
    """What one statement did. Judge success by `rows` (RETURNING), not by `changes`."""

    rows: list[dict[str, Any]]
    changes: int
    rows_read: int
    rows_written: int


class Guard(Protocol):
    """Who looks at the schema before the first write, and remembers that it is current."""

    trusted: bool

    async def look(self, db: Database, creating: bool) -> bool:
        """Whether the schema is current; raises if the write must not happen."""


class Database:
    """A D1 binding for the length of one request.

    A write first asks `guard`, until that one trusts the schema; without a guard (a library's
    own `Database`) nobody looks at it.
    `round_trips`, `rows_read`, `rows_written` and `elapsed_ms` add up over its batches.
    Reads always go to the primary; replicas are never asked.
    """

    def __init__(self, binding: Any, guard: Guard | None = None) -> None:
        self._binding = binding
        self._guard = guard
        self.round_trips = 0
        self.rows_read = 0
        self.rows_written = 0
        self.elapsed_ms = 0.0
        # What became of a write whose reply was lost (`commit.Branch`).
        self.branch: str | None = None

    async def batch(self, statements: Sequence[Statement]) -> list[Result]:
        """Run the statements as one transaction, in one round trip.

        Raises ValueError before anything is sent when a statement is outside D1's limits, and
        one of MissingTable, ConstraintFailed, Refused (it did not run) or Unknown (the reply
        was lost: it may have committed) when D1 fails.
        """
        if (
            self._guard is not None
            and not self._guard.trusted
            and not all(map(_is_select, statements))
        ):
            await self.ready()
        return await self.batch_unguarded(statements)

    async def ready(self, *, creating: bool = False) -> None:
        """Have the schema looked at, unless it was found current before.

        Raises what the guard raises; `creating` says that the caller creates what is missing.
        """
        if self._guard is not None and not self._guard.trusted:
            self._guard.trusted = await self._guard.look(self, creating)

    async def bring_schema_forward(self) -> None:
        """Create what is missing and move earlier shapes forward, in one transaction.

        For a start and a fence transition alone. Raises SchemaMismatch, and writes nothing, for a
        table whose shape is not known.
        """
        from fencepost.schema import guard

        await guard.ensure(self)

    def trust_schema(self, trusted: bool) -> None:
        """Remember whether the schema is known to be current."""
        if self._guard is not None:
            self._guard.trusted = trusted

    async def batch_unguarded(self, statements: Sequence[Statement]) -> list[Result]:
        """As `batch`, without a look at the schema."""
        if not statements:
            raise ValueError("a batch holds at least one statement")
        for statement in statements:
            check(statement)
        self.round_trips += 1
        started = time.perf_counter()
        try:
            answer = await self._send(statements)
        except Exception as failure:
            raise self._classified(failure) from failure
        finally:
            self.elapsed_ms += (time.perf_counter() - started) * 1000
        results = [_result(entry) for entry in json.loads(answer)]
        for result in results:
            self.rows_read += result.rows_read
            self.rows_written += result.rows_written
        return results

    async def read(self, statements: Sequence[Statement]) -> list[Result]:
        """A batch of SELECTs. A failure is never a lost write: StorageUnreadable.

        Raises MissingTable when a table is absent, which for a read means: no such row; and
        MissingColumn when a table has another shape.
        """
        for statement in statements:
            if not _is_select(statement):
                raise ValueError("a read may only hold SELECTs")
        try:
            return await self.batch(statements)
        except (errors.MissingTable, errors.MissingColumn):
            raise
        except errors.StorageError as failure:
            raise errors.StorageUnreadable(failure.message) from failure

    def _classified(self, failure: Exception) -> errors.StorageError:
        error = failures.classify(failures.messages(failure))
        if isinstance(error, errors.MissingTable | errors.MissingColumn):
            self.trust_schema(False)
        return error

    async def _send(self, statements: Sequence[Statement]) -> str:
        """Cross to JavaScript and back; the JSON text of D1's results."""
        javascript, prepare = _javascript(), _prepared(self._binding).statement
        crossing = javascript.otherwise.get
        bound = []
        for statement in statements:
            prepared, bind = prepare(statement.sql)
            params = statement.params
            bound.append(bind(*map(crossing, params, params)) if params else prepared)
        results = await promptly(self._binding.batch, javascript.to_js(bound))
        text: str = javascript.stringify(results)
        return text


def _is_select(statement: Statement) -> bool:
    return statement.sql.lstrip().startswith("SELECT")


class Reader:
    """A database that cannot write: all that it has is `read`."""

    def __init__(self, db: Database) -> None:
        self.read = db.read


# --- Across to JavaScript ----------------------------------------------------------------


class _Javascript(NamedTuple):
    stringify: Any
    to_js: Any
    # What crosses otherwise than by itself: None as undefined and these integers as BigInt, both
    # of which D1 refuses. It binds every number as REAL.
    otherwise: dict[Parameter, Any]


@functools.cache
def _javascript() -> _Javascript:
    """What a batch needs of JavaScript, fetched once."""
    from js import JSON
    from pyodide.ffi import jsnull, to_js

    otherwise: dict[Parameter, Any] = {None: jsnull}
    for largest in (limits.INTEGER_MAX, -limits.INTEGER_MAX):
        otherwise[largest] = float(largest)
    return _Javascript(JSON.stringify, to_js, otherwise)


class _Prepared:
    """Statements of one binding by their SQL, unbound: a long text crosses once, not each time."""

    def __init__(self, binding: Any) -> None:
        self.binding = binding
        self.statement = functools.lru_cache(limits.PREPARED_MAX)(self._prepare)

    def _prepare(self, sql: str) -> tuple[Any, Any]:
        statement = self.binding.prepare(sql)
        return statement, statement.bind


_last_prepared = _Prepared(None)


def _prepared(binding: Any) -> _Prepared:
    """What was prepared for this very binding. Only the last one is kept: there is one a Worker."""
    global _last_prepared
    if _last_prepared.binding != binding:  # of JavaScript objects: not the same one
        _last_prepared = _Prepared(binding)
    return _last_prepared


def _result(entry: dict[str, Any]) -> Result:
    meta = entry["meta"]
    return Result(entry["results"], meta["changes"], meta["rows_read"], meta["rows_written"])


_PLAIN = frozenset({str, type(None)})


def check(statement: Statement) -> None:
    """Refuse what D1 would refuse, cut short or change; ValueError, before anything is sent."""
    params = statement.params
    _check_sql(statement.sql)
    if len(params) > limits.PARAMETERS_MAX:
        raise ValueError(f"a statement has {len(params)} parameters; D1 takes at most 100")
    if _PLAIN.issuperset(map(type, params)):
        texts = "".join(filter(None, params))  # type: ignore[arg-type]
        if texts.isascii() and "\0" not in texts and len(texts) <= limits.VALUE_BYTES_MAX:
            return
    for number, value in enumerate(params, 1):
        if value is not None and (problem := _problem(value)):
            raise ValueError(f"parameter ?{number} is {problem}")


@functools.lru_cache(limits.PREPARED_MAX)
def _check_sql(sql: str) -> None:
    if not sql.lstrip()[:1].isalpha():
        # D1 drops a blank statement, or one that is a comment, and shifts the results.
        raise ValueError("a statement begins with a word")
    if len(sql) > limits.SQL_BYTES_MAX or len(sql.encode()) > limits.SQL_BYTES_MAX:
        raise ValueError(f"a statement is longer than {limits.SQL_BYTES_MAX} bytes")


def _problem(value: object) -> str | None:
    if isinstance(value, str):
        return _text_problem(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return "beyond ±(2^53−1)" if abs(value) > limits.INTEGER_MAX else None
    if isinstance(value, float):
        return None if math.isfinite(value) else "not a finite number"
    return f"a {type(value).__name__}; D1 takes str, int, float and None"


def _text_problem(text: str) -> str | None:
    if "\0" in text:
        return "text with a NUL"
    if not is_well_formed(text):
        return "text with a lone surrogate"
    if len(text) * 4 > limits.VALUE_BYTES_MAX < len(text.encode()):
        return f"longer than {limits.VALUE_BYTES_MAX} bytes"
    return None
