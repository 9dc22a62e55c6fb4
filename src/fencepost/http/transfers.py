"""The move of a deployment: its commands, and its rows in pages."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from fencepost import copies, errors, limits, transfer
from fencepost.copies import RowsPage, Sum, Value
from fencepost.http import queries
from fencepost.http.exchange import Reply, Request, Route
from fencepost.http.forms import Form, Member, Parser
from fencepost.http.values import COUNT, HASH, NOTE, TOKEN, one_of
from fencepost.transfer import Phase, Seal, Status

if TYPE_CHECKING:
    from fencepost.http import representations as shown

# --- Forms -------------------------------------------------------------------------------

_URL = r"https?://[A-Za-z0-9.:\[\]-]+(?:/[A-Za-z0-9._~!$&'()*+,;=:@%/-]*)?"


def _url(value: Any, name: str) -> str:
    if (
        not isinstance(value, str)
        or len(value) > limits.URL_CHARS_MAX
        or not re.fullmatch(_URL, value)
    ):
        raise ValueError(
            f"{name!r} is an http(s) address, without credentials, query and fragment."
        )
    return value


class _Sealing(NamedTuple):
    target_id: str
    moved_to: str
    revision: int | None


class _Voiding(NamedTuple):
    target_id: str
    seal: str | None


class _Unsealing(NamedTuple):
    revision: int
    receipt: str | None
    note: str | None


def _unseal(revision: int, receipt: str | None, force: bool, note: str | None) -> _Unsealing:
    if force == (receipt is not None):
        raise ValueError("Send either the 'receipt' of the void target, or 'force'.")
    if force and note is None:
        raise ValueError("'force' needs a 'note' that says why.")
    return _Unsealing(revision, receipt, note)


def _true(value: Any, name: str) -> bool:
    if value is not True:
        raise ValueError(f"{name!r} is true, or left out.")
    return True


URL = Parser(
    _url, {"type": "string", "maxLength": limits.URL_CHARS_MAX, "pattern": f"^(?:{_URL})$"}
)
TARGET_ID = Member(TOKEN, about="The `deployment_id` of the target, which `prepare` gave out.")
SEAL = Member(HASH, about="The secret of the seal.")
NOTHING: Form[None] = Form("PrepareRequest", lambda: None, {})
SEALING = Form(
    "SealRequest",
    _Sealing,
    {
        "target_id": TARGET_ID,
        "moved_to": Member(URL, about="Where clients find the target."),
        "revision": Member(COUNT, None, "The revision that the fence must have."),
    },
)
VOIDING = Form(
    "VoidRequest",
    _Voiding,
    {
        "target_id": TARGET_ID,
        "seal": Member(HASH, None, "The secret of the seal, if the target has taken no page yet."),
    },
)
UNSEALING = Form(
    "UnsealRequest",
    _unseal,
    {
        "revision": Member(COUNT, about="The revision of the sealed fence."),
        "receipt": Member(HASH, None, "What the void target answered."),
        "force": Member(
            Parser(_true, {"const": True}),
            False,
            "Without a receipt. If the target opens, both deployments start the same keys.",
        ),
        "note": Member(NOTE, None, "Why; for the audit."),
    },
    {
        "oneOf": [
            {"required": ["receipt"], "properties": {"force": False}},
            {"required": ["force", "note"], "properties": {"receipt": False}},
        ]
    },
    "Either a `receipt`, or `force` with a `note`.",
)

_SUM = Form("Sum", Sum, {"rows": Member(COUNT), "digest": Member(HASH)})


def _sums(value: Any, name: str) -> dict[str, Sum]:
    if not isinstance(value, dict) or value.keys() != set(copies.TABLES):
        raise ValueError(f"{name!r} has the rows and the digest of each table.")
    return {table: _SUM.read(value[table], table) for table in copies.TABLES}


_MANIFEST = Parser(
    _sums,
    {
        "type": "object",
        "properties": dict.fromkeys(copies.TABLES, _SUM),
        "required": list(copies.TABLES),
        "additionalProperties": False,
    },
)


def _sealed(
    target_id: str,
    seal: str,
    revision: int,
    last_admitted_revision: int | None,
    manifest: dict[str, Sum],
) -> Seal:
    return Seal(target_id, seal, revision, last_admitted_revision, manifest)


SEALED = Form(
    "FinishRequest",
    _sealed,
    {
        "target_id": TARGET_ID,
        "seal": SEAL,
        "revision": Member(COUNT, about="The revision of the sealed fence."),
        "last_admitted_revision": Member(COUNT, None),
        "manifest": Member(_MANIFEST),
    },
    about="What `GET /v1/transfer` of the sealed deployment says.",
)


class _Rows(NamedTuple):
    """A page as it came; the path names its table."""

    table: str
    target_id: str
    seal: str
    columns: list[str]
    after: list[Value] | None
    rows: list[tuple[str, list[Value]]]
    digest: str
    cursor: str | None


def _is_value(value: Any) -> bool:
    if isinstance(value, str):
        fits = len(value) * 4 <= limits.VALUE_BYTES_MAX
        return "\0" not in value and (fits or len(value.encode()) <= limits.VALUE_BYTES_MAX)
    return value is None or (isinstance(value, int) and not isinstance(value, bool))


def _values(value: Any, name: str) -> list[Value]:
    if not isinstance(value, list) or not all(map(_is_value, value)):
        raise ValueError(f"{name!r} is a list of texts, integers and null.")
    return value


def _texts(value: Any, name: str) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise ValueError(f"{name!r} is a list of texts.")
    return value


_VALUE = {
    "type": ["string", "integer", "null"],
    "minimum": -limits.INTEGER_MAX,
    "maximum": limits.INTEGER_MAX,
    "pattern": r"^[^\x00]*$",
}
_VALUES = Parser(_values, {"type": "array", "items": _VALUE})
_ROW = Form(
    "Row",
    lambda digest, values: (digest, values),
    {"digest": Member(HASH), "values": Member(_VALUES)},
)


def _rows(value: Any, name: str) -> list[tuple[str, list[Value]]]:
    if not isinstance(value, list) or len(value) > limits.TRANSFER_PAGE_ROWS:
        raise ValueError(f"{name!r} is a list of at most {limits.TRANSFER_PAGE_ROWS} rows.")
    return [_ROW.read(row, name) for row in value]


ROWS = Form(
    "Rows",
    _Rows,
    {
        "table": Member(one_of(*copies.TABLES)),
        "target_id": TARGET_ID,
        "seal": SEAL,
        "columns": Member(Parser(_texts, {"type": "array", "items": {"type": "string"}})),
        "after": Member(_VALUES, None, "The key of the row before; omitted on the first page."),
        "rows": Member(
            Parser(_rows, {"type": "array", "maxItems": limits.TRANSFER_PAGE_ROWS, "items": _ROW})
        ),
        "digest": Member(HASH),
        "cursor": Member(
            Parser(queries.is_cursor_text, {"type": "string"}), None, "Not looked at."
        ),
    },
    about="A page as the sealed deployment gives it.",
)

AFTER_ROW: Form[tuple[str, ...] | None] = Form(
    "",
    lambda cursor: cursor,
    {"cursor": Member(queries.cursor(*((queries.TEXT,) * n for n in (1, 2, 3, 4))), None)},
)

# --- Commands ----------------------------------------------------------------------------


async def get_transfer(request: Request, _: None) -> Reply[shown.TransferJson]:
    """Read where the deployment stands in a move."""
    status = await transfer.read(request.db)
    return Reply(200, await _status_json(request, status))


async def post_prepare(request: Request, _: None) -> Reply[shown.TransferJson]:
    """Make an empty deployment, which was never open, the target of a move."""
    status = await transfer.prepare(request.db, request.sender)
    return Reply(200, await _status_json(request, status))


async def post_seal(request: Request, asked: _Sealing) -> Reply[shown.TransferJson]:
    """Close a locked deployment for its target. Send it again until the phase is `sealed`."""
    status = await transfer.seal(request.db, request.sender, *asked)
    return Reply(200, await _status_json(request, status))


async def post_finish(request: Request, seal: Seal) -> Reply[shown.TransferJson]:
    """Compare the rows with the seal's. Send it again until the phase is `finished`.

    Then a transition of the fence opens the deployment.
    """
    status = await transfer.finish(request.db, request.sender, seal)
    return Reply(200, await _status_json(request, status))


async def post_void(request: Request, asked: _Voiding) -> Reply[shown.TransferJson]:
    """Close a target that has not opened, for good. The answer has the receipt."""
    status = await transfer.void(request.db, request.sender, asked.target_id)
    if asked.seal is not None:
        status = status._replace(seal=asked.seal)
    return Reply(200, await _status_json(request, status))


async def post_unseal(request: Request, asked: _Unsealing) -> Reply[shown.TransferJson]:
    """Lock a sealed deployment, as before the seal: its target is void, or by force."""
    revision, receipt, note = asked
    status = await transfer.unseal(request.db, request.sender, revision, receipt, note)
    return Reply(200, await _status_json(request, status))


async def _status_json(request: Request, status: Status) -> shown.TransferJson:
    phase, gate = status.phase, status.gate
    imported: list[shown.ImportedJson] | None = None
    if phase is Phase.IMPORTING:
        found = (await transfer.taken(request.db)).items()
        imported = [{"table": name, "cursor": _cursor(last)} for name, last in found]
    void = phase is Phase.VOID and status.seal is not None
    return {
        "phase": phase,
        "state": gate.state,
        "revision": gate.revision,
        "last_admitted_revision": gate.last_admitted_revision,
        "deployment_id": status.deployment_id,
        "target_id": status.target_id,
        "moved_to": gate.moved_to,
        "seal": status.seal,
        "manifest": _manifest_json(status) if phase is Phase.SEALED else None,
        "imported": imported,
        "receipt": transfer.receipt(status.seal or "", status.deployment_id or "")
        if void
        else None,
    }


def _manifest_json(status: Status) -> Any:
    return {
        name: {"rows": each.rows, "digest": each.digest}
        for name, each in status.manifest.sums.items()
    }


def _cursor(key: copies.Key | None) -> str | None:
    return None if key is None else queries.cursor_text(tuple(map(str, key)))


# --- Rows --------------------------------------------------------------------------------


async def get_rows(request: Request, cursor: tuple[str, ...] | None) -> Reply[shown.RowsPageJson]:
    """Read a page of a table of a sealed deployment, as its target takes it."""
    name = request.params["table"]
    of = copies.shape(name)
    try:
        after = of.read_key(cursor)
    except ValueError:
        refusal = "Query parameter cursor is not a cursor of this table."
        raise errors.InvalidRequest(refusal) from None
    status, page = await transfer.give(request.db, name, after)
    rows: list[shown.RowJson] = [
        {"digest": copies.row_digest(row), "values": row} for row in page.rows
    ]
    body: shown.RowsPageJson = {
        "table": name,
        "target_id": status.target_id,
        "seal": status.seal,
        "columns": list(of.columns),
        "after": None if after is None else list(after),
        "rows": rows,
        "digest": _page_digest(name, after, [row["digest"] for row in rows]),
        "cursor": _cursor(page.last) if page.more else None,
    }
    return Reply(200, body)


async def post_rows(request: Request, given: _Rows) -> Reply[shown.TakenJson]:
    """Take a page of a table: insert the rows that are absent, refuse one that differs."""
    name = request.params["table"]
    page = _page(name, given)
    inserted = await transfer.take(request.db, given.target_id, given.seal, page)
    return Reply(200, {"rows": len(page.rows), "inserted": inserted})


def _page(name: str, given: _Rows) -> RowsPage:
    """The page. Raises InvalidRequest, and Conflict for other columns or a row that was changed."""
    of = copies.shape(name)
    if given.columns != list(of.columns):
        raise errors.Conflict(
            "The tables here have other columns: bring both deployments to one build. Nothing was "
            "written.",
            code="TRANSFER_REFUSED",
            reason="other_shape",
            phase=str(Phase.IMPORTING),
        )
    if given.table != name:
        raise errors.InvalidRequest(f"The page is of {given.table}, and the path of {name}.")
    after = _key(of, given.after)
    rows = [values for _, values in given.rows]
    if any(len(row) != len(of.columns) for row in rows):
        raise errors.InvalidRequest("A row has a value for each column.")
    for digest, row in given.rows:
        if copies.row_digest(row) != digest:
            raise copies.refused(name, of.key_of(row), "changed")
    if _page_digest(name, after, [digest for digest, _ in given.rows]) != given.digest:
        raise errors.InvalidRequest("The digest is not that of these rows behind `after`.")
    return RowsPage(name, after, rows, more=False)


def _key(of: copies.TableCopied, after: Sequence[Value] | None) -> copies.Key | None:
    if after is None:
        return None
    kinds = [int if key in of.integers else str for key in of.keys]
    if [type(value) for value in after] != kinds:
        raise errors.InvalidRequest("'after' is a key of this table.")
    return tuple(after)


def _page_digest(name: str, after: copies.Key | None, digests: Sequence[str]) -> str:
    start = copies.nothing(name).plus([copies.row_digest(after or ())], None)
    return start.plus(digests, None).digest


# --- Routes ------------------------------------------------------------------------------


def _command(verb: str, handler: Any, takes: Form[Any], *problems: str) -> Route[Any]:
    return Route(
        method="POST",
        pattern=f"/v1/transfer/{verb}",
        scopes=("operate",),
        handler=handler,
        takes=takes,
        problems=("TRANSFER_REFUSED", "CONTENDED", "EXECUTION_FENCE_UNREADABLE", *problems),
        of_a_move=True,
    )


ROUTES: tuple[Route[Any], ...] = (
    Route(
        method="GET",
        pattern="/v1/transfer",
        scopes=("operate",),
        handler=get_transfer,
        takes=queries.NO_QUERY,
        problems=("EXECUTION_FENCE_UNREADABLE",),
    ),
    _command("prepare", post_prepare, NOTHING),
    _command("seal", post_seal, SEALING, "FENCE_CAS_CONFLICT"),
    _command("finish", post_finish, SEALED, "TRANSFER_DIFFERS"),
    _command("void", post_void, VOIDING),
    _command("unseal", post_unseal, UNSEALING, "FENCE_CAS_CONFLICT"),
    Route(
        method="GET",
        pattern="/v1/transfer/{table}",
        scopes=("operate",),
        handler=get_rows,
        takes=AFTER_ROW,
        problems=("TRANSFER_REFUSED", "EXECUTION_FENCE_UNREADABLE"),
    ),
    Route(
        method="POST",
        pattern="/v1/transfer/{table}",
        scopes=("operate",),
        handler=post_rows,
        takes=ROWS,
        problems=("TRANSFER_REFUSED", "TRANSFER_ROW_REFUSED", "EXECUTION_FENCE_UNREADABLE"),
        of_a_move=True,
        body_bytes_max=limits.TRANSFER_BODY_BYTES_MAX,
    ),
)
