"""The D1 boundary: the only module that passes SQL to JavaScript.

A batch is one transaction and one network round trip; a single statement is a batch of one.
The results of a batch come back as one JSON text.
"""

from __future__ import annotations

import functools
import json
import math
import time
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

from fencepost import errors, limits
from fencepost.identifiers import Deed, KeyedRequest, Replay, is_well_formed
from fencepost.storage import failures
from fencepost.storage.event_loop import promptly
from fencepost.storage.sql import Parameter, Statement


class Result(NamedTuple):
    """What one statement did. Judge success by `rows` (RETURNING), not by `changes`."""

    rows: list[dict[str, Any]]
    changes: int
    rows_read: int
    rows_written: int


class SchemaMemory:
    """Whether this isolate has found the database's schema to be `current`."""

    __slots__ = ("current",)

    def __init__(self) -> None:
        self.current = False


class Database:
    """A D1 binding for the length of one request.

    Before a write the schema is checked, until `schema` remembers that it is current. Without a
    `schema` (as in a library's own `Database`) it is never checked.
    `round_trips`, `statements_sent`, `rows_read`, `rows_written` and `elapsed_ms` (milliseconds)
    add up over its batches. Reads always go to the primary, never to a replica.
    `request` is the keyed request that is answered, and `replay` says that it had its effect
    before (`requests`). `deed` names the operator who asks, if one does (`audit`).
    `rider` is a SELECT that rides along with the first batch; then its rows are in `ridden`.
    """

    def __init__(
        self,
        binding: Any,
        schema: SchemaMemory | None = None,
        request: KeyedRequest | None = None,
    ) -> None:
        self._binding = binding
        self._schema = schema
        self.request = request
        self.replay: Replay | None = None
        self.deed: Deed | None = None
        self.rider: Statement | None = None
        self.ridden: list[dict[str, Any]] | None = None
        # The token of the write that won, also of one whose reply was lost.
        self.won_token: str | None = None
        self.round_trips = 0
        self.statements_sent = 0
        self.rows_read = 0
        self.rows_written = 0
        self.elapsed_ms = 0.0
        # What became of a write whose reply was lost (`writes.Branch`).
        self.branch: str | None = None

    async def batch(self, statements: Sequence[Statement]) -> list[Result]:
        """Run the statements as one transaction, in one round trip.

        Raises ValueError before anything is sent when a statement is outside D1's limits, and
        one of MissingTable, ConstraintFailed, Refused (it did not run) or Unknown (the reply
        was lost: it may have committed) when D1 fails. With a `schema`, MissingTable means that
        the database has no table at all; if one of them is missing it is SchemaBehind. A missing
        fence table is an open fence, one round trip later.
        """
        known = self._schema is None or self._schema.current
        if not known and not all(map(_is_select, statements)):
            await self.ready()
        rider = self.rider
        if rider is None or self.ridden is not None:
            return await self._batch(statements)
        for at, statement in enumerate(statements):
            if statement.sql == rider.sql:
                results = await self._batch(statements)
                self.ridden = results[at].rows
                return results
        *results, ridden = await self._batch([*statements, rider])
        self.ridden = ridden.rows
        return results

    async def _batch(self, statements: Sequence[Statement]) -> list[Result]:
        try:
            return await self.batch_unguarded(statements)
        except errors.MissingTable as missing:
            return await self._batch_without(missing, statements)

    async def _batch_without(
        self, missing: errors.MissingTable, statements: Sequence[Statement]
    ) -> list[Result]:
        """The batch in a database without this table, if that is the fence. Else it raises.

        Another request may make the table in between. Then a read is sent once more, as it was.
        """
        from fencepost.schema import guard

        found = missing
        if unfenced := guard.without_fence(missing, statements):
            try:
                *results, there = await self.batch_unguarded(unfenced)
                if there.rows and all(map(_is_select, statements)):
                    return await self.batch_unguarded(statements)
                return results
            except errors.MissingTable as another:
                found = another
        if self._schema is None:
            raise found
        if (absence := await guard.absence(self, found)) is not None:
            raise absence from None
        return await self.batch_unguarded(statements)  # it is there by now, and nothing was run

    async def ready(self, *, creating: bool = False) -> None:
        """Check the schema, unless it was found current before.

        `creating`: the caller is one that creates missing tables. Raises SchemaMismatch and
        SchemaBehind.
        """
        if self._schema is not None and not self._schema.current:
            from fencepost.schema import guard

            self._schema.current = await guard.look(self, creating)

    async def bring_schema_forward(self) -> None:
        """Create what is missing and move earlier shapes forward, in one transaction.

        Only a start and a fence transition call this. Raises SchemaMismatch, and writes nothing,
        for a table whose shape is not known.
        """
        from fencepost.schema import guard

        await guard.ensure(self)
        if self._schema is not None:
            self._schema.current = True

    async def schema_state(self) -> Literal["current", "behind", "empty", "foreign"]:
        """What the database is to this build. One round trip, which writes nothing."""
        from fencepost.schema import guard

        return (await guard.inspect(self)).state

    def forget_schema(self) -> None:
        """Check the schema again before the next write."""
        if self._schema is not None:
            self._schema.current = False

    async def explain(self, failure: errors.FencepostError) -> errors.FencepostError:
        """The SchemaMismatch that caused a missing column; the failure itself if there is none."""
        from fencepost.schema import guard

        return await guard.explain(self, failure)

    async def batch_unguarded(self, statements: Sequence[Statement]) -> list[Result]:
        """As `batch`, without checking the schema first."""
        if not statements:
            raise ValueError("a batch holds at least one statement")
        for statement in statements:
            check(statement)
        self.round_trips += 1
        self.statements_sent += len(statements)
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

        Raises MissingTable when a table is absent (so there is no such row), MissingColumn when a
        table has another shape, and StorageUnreadable for every other failure.
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
            self.forget_schema()
        return error

    async def _send(self, statements: Sequence[Statement]) -> str:
        """Call D1 through JavaScript. Returns the JSON text of its results."""
        javascript, prepare = _javascript(), _prepared(self._binding).statement
        replaced = javascript.replacements.get
        bound = []
        for statement in statements:
            prepared, bind = prepare(statement.sql)
            params = statement.params
            bound.append(bind(*map(replaced, params, params)) if params else prepared)
        results = await promptly(self._binding.batch, javascript.to_js(bound))
        text: str = javascript.stringify(results)
        return text


def _is_select(statement: Statement) -> bool:
    return statement.sql.lstrip().startswith("SELECT")


class Reader:
    """A database that can only `read`."""

    def __init__(self, db: Database) -> None:
        self.read = db.read


# --- Calling JavaScript ------------------------------------------------------------------


class _Javascript(NamedTuple):
    stringify: Any
    to_js: Any
    # Values that Pyodide would convert to what D1 refuses: None to undefined, and ±(2^53−1) to
    # BigInt. As floats these integers stay exact, and D1 binds every number as REAL anyway.
    replacements: dict[Parameter, Any]


@functools.cache
def _javascript() -> _Javascript:
    """The JavaScript functions that a batch calls, fetched once."""
    from js import JSON
    from pyodide.ffi import jsnull, to_js

    replacements: dict[Parameter, Any] = {None: jsnull}
    for largest in (limits.INTEGER_MAX, -limits.INTEGER_MAX):
        replacements[largest] = float(largest)
    return _Javascript(JSON.stringify, to_js, replacements)


class _Prepared:
    """Prepared statements of one binding, by their SQL, without values.

    A long SQL text is then passed to JavaScript once, not in each batch.
    """

    def __init__(self, binding: Any) -> None:
        self.binding = binding
        self.statement = functools.lru_cache(limits.PREPARED_MAX)(self._prepare)

    def _prepare(self, sql: str) -> tuple[Any, Any]:
        statement = self.binding.prepare(sql)
        return statement, statement.bind


_last_prepared = _Prepared(None)


def _prepared(binding: Any) -> _Prepared:
    """The prepared statements of this binding. Those of the last binding only are kept."""
    global _last_prepared
    if _last_prepared.binding != binding:  # JavaScript objects compare by identity
        _last_prepared = _Prepared(binding)
    return _last_prepared


def _result(entry: dict[str, Any]) -> Result:
    meta = entry["meta"]
    return Result(entry["results"], meta["changes"], meta["rows_read"], meta["rows_written"])


_PLAIN = frozenset({str, type(None)})


def check(statement: Statement) -> None:
    """Raises ValueError for a statement that D1 would refuse, cut short or change."""
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
