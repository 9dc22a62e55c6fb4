"""Raw bytes on the socket: no request reaches 500, and the Worker's refusals are problem documents.

The requests come from a seed. What the runtime in front of the Worker answers by itself is listed.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import random
import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

import pytest

from conftest import start_bridge, stop_bridge
from helpers import Client

SEED = 20261201
REQUESTS = 2_500


class Answer(NamedTuple):
    status: int
    media: str
    body: bytes

    @property
    def is_of_the_worker(self) -> bool:
        """The runtime answers in plain text, or with no body at all."""
        return self.media not in ("", "text/plain", "text/plain;charset=UTF-8")


# What workerd answers before any Worker is asked, and why.
RUNTIME = {
    400: "the head is no HTTP, or has two hosts, or two lengths",
    413: "the head is too long",
    431: "the head is too long",
    500: "it can make no URL of the host and the target, or the method is CONNECT",
    501: "it does not know the method",
}


class Server(NamedTuple):
    url: str
    log: Path

    def connect(self) -> socket.socket:
        place = urlsplit(self.url)
        return socket.create_connection((place.hostname, place.port), timeout=20)

    def is_well(self) -> None:
        """It serves as before, and has written no traceback."""
        with self.connect() as line:
            answer = _send(line, b"GET /v1/whoami HTTP/1.1\r\nHost: a\r\n" + ALICE + b"\r\n")
        assert answer is not None
        assert (answer.status, json.loads(answer.body)["principal"]["id"]) == (200, "alice")
        log = self.log.read_text()
        assert "Traceback" not in log, log[log.index("Traceback") :][:2000]
        assert '"code":"INTERNAL"' not in log


ALICE = b"Authorization: Bearer alice\r\n"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A Worker as it is deployed, without the faults and the router of the tests."""
    log = tmp_path_factory.mktemp("raw") / "log"
    with log.open("w") as stderr:
        process, addresses = start_bridge(
            stderr=stderr, isolates=1, faults=False, tokens=Client.TOKENS
        )
        yield Server(addresses["url"], log)
        stop_bridge(process)


def _send(line: socket.socket, data: bytes, method: bytes = b"GET") -> Answer | None:
    """The answer to the bytes of a request; None if the connection was closed instead."""
    try:
        line.sendall(data)
        answer = http.client.HTTPResponse(line, method=method.decode("latin1"))
        answer.begin()
        media = answer.getheader("Content-Type") or ""
        return Answer(answer.status, media, answer.read())
    except (OSError, http.client.HTTPException):
        return None


NO_URL = (b"Host: a b", b" * HTTP/1.1", b"CONNECT ")


# --- What is sent ------------------------------------------------------------------------

METHODS = [b"GET"] * 6 + [b"POST"] * 6 + [b"HEAD", b"PUT", b"DELETE", b"OPTIONS", b"PATCH"]
ODD_METHODS = [b"get", b"TRACE", b"CONNECT", b"PROPFIND", b"BREW", b"G\xcbT", b"M-SEARCH"]
PATHS = [b"/v1/runs", b"/v1/starts", b"/v1/runs/x/events", b"/v1/health", b"/v1/starts/k"]
PATHS += [b"/v1/fence", b"/v1/audit", b"/docs", b"/", b"/v1/runs/x/operations/y"]
WHOLE = [b"*", b"", b"http://x/v1/runs", b"http://u:p@x:1/y?z", b"https://x", b"x:443", b"//", b"?"]
WHOLE += [b"//x/v1/runs", b"///", b"/v1//runs", b"/v1/../v1/runs", b"/./", b"http:", b"://", b"a"]
WHOLE += [b"/" + b"a" * 8_000, b"/v1/runs/" + b"%41" * 2_700, b"/v1/runs?cursor=" + b"[" * 8_000]
ENDS = [b"", b"", b"/", b"?", b"#", b"#a?b", b";", b";a=b", b"?;", b"%", b"%zz", b"%00", b"%2f"]
ENDS += [b"%2e%2e", b"%ff%fe", b"%ED%A0%80", b"?a=%ff", b"?limit=1&limit=2", b"?limit=%31", b"\xff"]
ENDS += ["/é".encode(), b"?wait=" + b"9" * 400, b"?cursor=%5B%22%5Cud800%22%5D", b"\\..\\", b"|^`"]
ENDS += [b"?" + b"&" * 3_000, b"?a[]=1&a[]=2", b"?%00=%00", b"?=", b"?limit=", b"?limit=1%0a"]
HOSTS = [b"a"] * 12 + [
    b"",
    b"a b",
    b"u:p@a/v1/health?",
    b"a?b#c",
    b"[::1]",
    b"[::1]:80",
    b"a:99999",
]
HOSTS += [b"a:99999999", b"\xc3\xa9", b"a/b", b"a#", b"[", b"a\x01", b"-", b"..", b"xn--", b"%41"]
LENGTHS = [b"9" * 5_000, b"-1", b"+2", b"2, 2", b"1e3", b"0x2", b"1048577", b"18446744073709551616"]
BODIES = [
    b"",
    b"{}",
    b"[]",
    b"null",
    b"\xef\xbb\xbf{}",
    b"\xff",
    b'{"a":1e999}',
    b'{"a":"\\ud800"}',
]
BODIES += [
    b"[" * 5_000,
    b"1" * 6_000,
    b'{"owner":{"host_id":"\\u0000"}}',
    b'{"target":{"kind":[]}}',
]
BODIES += ['{"\U0001f600":"\u202e"}'.encode(), b'{"a":1,"a":2}', b"NaN", b'"' + b"\\" * 999 + b'"']
VALUES = [
    b"\x01",
    b"a\x7f",
    b"\x00",
    b"\t",
    b"\xff",
    b"a" * 9_000,
    b'"',
    b'"a\\"',
    b"a, b",
    b"\xe9",
]
NAMES = [b"Idempotency-Key", b"Prefer", b"Authorization", b"Content-Encoding", b"Content-Type"]
NAMES += [b"Accept", b"Expect", b"Range", b"If-Match", b"traceparent", b"Origin", b"Cookie", b"X"]
CHUNKS = [b"2\r\n{}\r\n0\r\n\r\n", b"1\r\n{\r\n1;x=y\r\n}\r\n0\r\nA: b\r\n\r\n", b"0\r\n\r\n"]
CHUNKS += [
    b"zz\r\n{}\r\n0\r\n\r\n",
    b"-1\r\n{}\r\n",
    b"2\r\n{}0\r\n\r\n",
    b"f" * 20 + b"\r\n",
    b"5\r\n{}",
]


class Sent(NamedTuple):
    """`open`: the request is whole and plain, so another may follow on its connection."""

    method: bytes
    data: bytes
    open: bool


def _request(chance: random.Random) -> Sent:
    one = chance.choice

    def odd() -> bool:
        return chance.random() < 0.12

    method = one(ODD_METHODS) if odd() else one(METHODS)
    target = one(WHOLE) if odd() else one(PATHS) + one(ENDS)
    host = one(HOSTS)
    lines = [b"Host: " + host] if not odd() else one([[], [b"Host: a", b"Host: b"]])
    lines += [ALICE.strip()] * (chance.random() < 0.8)
    lines += [b"Idempotency-Key: raw-" + str(chance.randrange(50)).encode()] * (method == b"POST")
    lines += [one(NAMES) + b": " + one(VALUES)] * odd()
    lines += [b"Content-Encoding: " + one([b"gzip", b"identity", b"br, gzip", b""])] * odd()
    body, whole = one(BODIES) if method != b"GET" else b"", True
    if odd():
        lines, body, whole = [*lines, b"Transfer-Encoding: chunked"], one(CHUNKS), False
    elif odd():
        lines, whole = [*lines, b"Content-Length: " + one(LENGTHS)], False
    elif odd():
        lengths = [len(body) + 5, max(0, len(body) - 1)]
        lines, whole = [*lines, b"Content-Length: %d" % one(lengths)], False
    elif body or method != b"GET":
        lines = [*lines, b"Content-Length: %d" % len(body)]
    head = method + b" " + target + b" HTTP/1.1\r\n" + b"\r\n".join(lines) + b"\r\n\r\n"
    return Sent(method, head + body, whole)


def _check(sent: Sent, answer: Answer) -> None:
    told = f"{sent.data[:300]!r} → {answer.status} {answer.media} {answer.body[:300]!r}"
    if not answer.is_of_the_worker:
        assert answer.status in RUNTIME, told
        assert answer.status != 500 or any(odd in sent.data for odd in NO_URL), told
        return
    assert answer.status != 500, told
    assert answer.status == 503 or answer.status < 500, told
    if answer.status >= 400 and sent.method != b"HEAD":
        problem = json.loads(answer.body)
        assert answer.media == "application/problem+json", told
        assert {"type", "title", "status", "detail", "code", "retry"} <= problem.keys(), told
        assert problem["status"] == answer.status, told


# --- Tests -------------------------------------------------------------------------------


@pytest.mark.soak
def test_no_request_that_a_socket_can_carry_reaches_500(server: Server) -> None:
    chance = random.Random(SEED)  # noqa: S311
    line, answered = server.connect(), 0
    for _ in range(REQUESTS):
        sent = _request(chance)
        if not sent.open:
            with server.connect() as other:
                other.settimeout(5)
                with contextlib.suppress(OSError):
                    other.sendall(sent.data)
                    other.shutdown(socket.SHUT_WR)
                answer = _send(other, b"", sent.method)
        else:
            answer = _send(line, sent.data, sent.method)
            if answer is None or not answer.is_of_the_worker or sent.method == b"CONNECT":
                line.close()
                line = server.connect()
        if answer is not None:
            answered += 1
            _check(sent, answer)
    line.close()
    assert answered > REQUESTS / 2
    server.is_well()


@pytest.mark.soak
def test_a_client_that_goes_away_leaves_no_traceback(server: Server) -> None:
    """In mid-head, in mid-body, in mid-chunk, before its answer; politely, and by a reset."""
    head = b"POST /v1/starts HTTP/1.1\r\nHost: a\r\nIdempotency-Key: gone\r\n" + ALICE
    body = json.dumps({"target": {"kind": "workflow", "id": "w"}}).encode()
    cuts = [
        head,
        head + b"Content-Length: 500\r\n\r\n{",
        head + b"Content-Length: 1000000\r\n\r\n" + b" " * 200_000,
        head + b"Transfer-Encoding: chunked\r\n\r\n5\r\n{",
        head + b"Transfer-Encoding: chunked\r\n\r\n1\r\n{\r\n",
        head + b"Content-Length: %d\r\n\r\n" % len(body) + body,
        b"GET /openapi.json HTTP/1.1\r\nHost: a\r\n\r\n",
    ]
    for data in cuts * 4:
        for reset in (False, True):
            line = server.connect()
            if reset:
                line.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            line.sendall(data)
            line.close()
    server.is_well()


@pytest.mark.parametrize("target", [b"/v1/fence", b"/v1/nowhere", b"http://other/v1/nowhere"])
@pytest.mark.parametrize("host", HOSTS[12:])
def test_the_path_is_that_of_the_target_whatever_the_host_says(
    server: Server, host: bytes, target: bytes
) -> None:
    """Without a token /v1/fence is 401, another path 404; /v1/health would be 200."""
    with server.connect() as line:
        head = b"GET " + target + b" HTTP/1.1\r\nHost: " + host + b"\r\n\r\n"
        answer = _send(line, head)
    assert answer is None or answer.status in (400, 401, 404, 500)
    assert answer is None or answer.status != 500 or not answer.is_of_the_worker
