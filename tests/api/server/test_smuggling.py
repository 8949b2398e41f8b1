"""Requests inside requests, and headers inside values: one reading of every byte, or none at all."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import AsyncIterator

import pytest

from api.process.logging_setup import JsonLines
from tests.api.conftest import Api
from tests.api.raw import Said, connected, heard, request, say
from tests.api.scripted import spoken
from tests.fixtures.eventually import eventually

ASKED = json.dumps({"model": "tiny", "prompt": "hi"}).encode()
HIDDEN = request(line="GET /smuggled HTTP/1.1")
"""What must never be taken for a request when it lies within another one."""
CHUNKED = b"%x\r\n%b\r\n0\r\n\r\n" % (len(ASKED), ASKED)
TE, CL = "transfer-encoding: chunked", f"content-length: {len(ASKED)}"


@pytest.fixture
async def wire(api: Api) -> AsyncIterator[Api]:
    """The API; afterwards no connection, no task and no generation is left."""
    yield api
    await nothing_left(api)


async def nothing_left(api: Api) -> None:
    """No connection but the pool's own, no task, no generation."""
    await api.http.aclose()
    await api.client.close()
    await eventually(lambda: not api.server.connections, "the end of all connections")
    await eventually(lambda: api.backend.closed == len(api.backend.requests), "the end of all generations")


def never_smuggled(said: Said) -> None:
    assert b"smuggled" not in said.raw


REFUSED = {
    "both lengths, the chunks first": request(CHUNKED + HIDDEN, TE, CL),
    "both lengths, the number first": request(CHUNKED + HIDDEN, CL, TE),
    "both lengths in one head of chunks": request(b"0\r\n\r\n" + HIDDEN, "content-length: 6", TE),
    "two lengths": request(ASKED + HIDDEN, CL, "content-length: 1"),
    "the same length twice": request(ASKED, CL, CL),
    "a list of lengths": request(ASKED, f"{CL}, {len(ASKED)}"),
    "a length with a sign": request(ASKED, f"content-length: +{len(ASKED)}"),
    "a negative length": request(ASKED + HIDDEN, "content-length: -1"),
    "a length in hex": request(ASKED, f"content-length: {len(ASKED):#x}"),
    "a length with a blank": request(ASKED, "content-length: 1 0"),
    "no length in the header": request(ASKED, "content-length: "),
    "a length beyond 64 bits": request(ASKED, "content-length: 18446744073709551617"),
    "a coding that is not last": request(CHUNKED + HIDDEN, "transfer-encoding: chunked, identity"),
    "another coding": request(ASKED, "transfer-encoding: identity"),
    "a coding by another name": request(CHUNKED, "transfer-encoding: xchunked"),
    "a coding with a vertical tab": request(CHUNKED, "transfer-encoding: \x0bchunked"),
    "a coding in quotes": request(CHUNKED, 'transfer-encoding: "chunked"'),
    "two codings": request(CHUNKED, TE, "transfer-encoding: gzip"),
    "the coding twice": request(CHUNKED, TE, TE),
    "a blank before the colon": request(ASKED + HIDDEN, "content-length : 1"),
    "a tab before the colon": request(CHUNKED, "transfer-encoding\t: chunked"),
    "a folded header": request(CHUNKED, "x: 1\r\n transfer-encoding: chunked"),
    "a folded coding": request(CHUNKED, "transfer-encoding:\r\n chunked"),
    "line feeds alone": request(ASKED).replace(b"\r\n", b"\n"),
    "one line feed alone": request(ASKED, "x: 1\ny: 2"),
    "one carriage return alone": request(ASKED, "x: 1\ry: 2"),
    "an end of line feeds": request().replace(b"\r\n\r\n", b"\n\n"),
    "NUL in a value": request(ASKED, "x: a\0b"),
    "NUL in a name": request(ASKED, "x\0y: a"),
    "NUL in the path": request(line="GET /health\0 HTTP/1.1"),
    "no name": request(ASKED, ": x"),
    "no colon": request(ASKED, "content-length"),
    "a name with a brace": request(ASKED, "x{y: a"),
    "chunks in HTTP/1.0": request(CHUNKED, TE, line="POST /v1/completions HTTP/1.0"),
    "a chunk without end of line": request(b"2\r\nhi" + HIDDEN, TE),
    "a chunk longer than it says": request(b"1\r\n" + ASKED + b"\r\n0\r\n\r\n", TE),
    "a chunk's size with a sign": request(b"+5\r\nhello\r\n0\r\n\r\n", TE),
    "a negative chunk": request(b"-5\r\nhello\r\n0\r\n\r\n", TE),
    "a chunk's size with 0x": request(b"0x5\r\nhello\r\n0\r\n\r\n", TE),
    "an absurd chunk": request(b"f" * 17 + b"\r\nhello\r\n0\r\n\r\n", TE),
    "a chunk's size of no digits": request(b";x\r\nhello\r\n0\r\n\r\n", TE),
    "a chunk's size with a line feed": request(b"5\nhello\r\n0\r\n\r\n", TE),
    "an extension with a line feed": request(b"5;x\nhello\r\n0\r\n\r\n", TE),
    "no Host": b"GET /health HTTP/1.1\r\n\r\n",
    "two Hosts": request(b"", "host: b", line="GET /health HTTP/1.1"),
    "no version": b"GET /health\r\nhost: a\r\n\r\n",
    "another version": request(line="GET /health HTTP/1.2"),
    "the preface of HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0",
    "a tunnel": request(line="CONNECT a:443 HTTP/1.1"),
    "a method in small letters": request(line="post /v1/completions HTTP/1.1"),
    "a blank in the path": request(line="GET /health /smuggled HTTP/1.1"),
    "a blank before the line": b" GET /health HTTP/1.1\r\nhost: a\r\n\r\n",
    "TLS where there is none": b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03" + bytes(64),
}


async def test_what_can_be_read_in_two_ways_is_not_read(wire: Api) -> None:
    """400 in OpenAI's shape and the connection closes; nothing in it reaches a worker, nor what came behind it."""
    for what, raw in REFUSED.items():
        for pieces in ([raw + HIDDEN], [raw[: len(raw) // 2], raw[len(raw) // 2 :] + HIDDEN]):
            said = await say(wire.server.address, *pieces)
            assert (said.statuses, said.closed) == ([400], True), what
            assert said.errors[0]["type"] == "invalid_request_error", what
            never_smuggled(said)
    assert not wire.backend.requests


async def test_a_body_is_never_a_request(wire: Api) -> None:
    """Wherever it lies: after a refused head, of a method that has none, in a trailer; what follows it is one."""
    inside = request(HIDDEN, line="GET /health HTTP/1.1")
    trailer = b"0\r\nx-contrail-tenant: t\r\n\r\n"
    for raw in (
        inside,
        request(HIDDEN, line="HEAD /health HTTP/1.1"),
        request(HIDDEN, line="DELETE /v1/models HTTP/1.1"),
        request(HIDDEN, line="POST /nowhere HTTP/1.1"),
        request(b"%x\r\n%b\r\n" % (len(HIDDEN), HIDDEN) + trailer, TE, line="POST /nowhere HTTP/1.1"),
    ):
        said = await say(wire.server.address, raw + request(line="GET /health HTTP/1.1"), answers=2)
        assert len(said.statuses) == 2
        assert said.statuses[1] == 200
        never_smuggled(said)


async def test_a_trailer_changes_nothing(wire: Api) -> None:
    """What was checked in the head holds: no tenant, no request id comes after it."""
    late = b"x-contrail-tenant: rich\r\nx-request-id: late\r\n"
    said = await say(wire.server.address, request(CHUNKED[:-2] + late + b"\r\n", TE))
    assert said.statuses == [200]
    assert wire.backend.requests[0].tenant is None
    assert b"late" not in said.raw


async def test_requests_in_a_row_are_answered_in_order(wire: Api) -> None:
    """Bodies with a length or in chunks, one broken in between: nothing is served after that one."""
    wire.backend.script = spoken("one")
    good = [request(ASKED), request(CHUNKED, TE), request(line="GET /nowhere HTTP/1.1"), request(ASKED)]
    said = await say(wire.server.address, b"".join(good), answers=4)
    assert (said.statuses, said.closed) == ([200, 200, 404, 200], False)
    async with connected(wire.server.address) as (reader, writer):
        writer.write(request(ASKED))
        assert (await heard(reader)).statuses == [200]
        writer.write(request(CHUNKED, TE, CL) + request(ASKED))
        said = await heard(reader)
    assert (said.statuses, said.closed) == ([400], True)
    assert len(wire.backend.requests) == 4


async def test_leave_to_continue_is_given_once_it_is_wanted(wire: Api) -> None:
    """Not for a request that is refused without its body; then the connection closes, since the body may come."""
    said = await say(wire.server.address, request(b"", CL, "expect: 100-continue"), ASKED, pause_s=0.1)
    assert said.raw.startswith(b"HTTP/1.1 100 Continue\r\n\r\n")
    assert said.statuses == [200]
    for head, status in (
        (request(b"", f"content-length: {10**9}", "expect: 100-continue"), 413),
        (request(b"", CL, "expect: 100-continue", line="POST /nowhere HTTP/1.1"), 404),
    ):
        said = await say(wire.server.address, head)
        assert said.statuses == [status]
        assert not said.raw.startswith(b"HTTP/1.1 100")
        assert said.closed


async def test_the_older_http(wire: Api) -> None:
    """One answer, whole or streamed without chunks, and its end is the connection's."""
    streamed = json.dumps({"model": "tiny", "prompt": "hi", "stream": True}).encode()
    for body in (ASKED, streamed):
        line = "POST /v1/completions HTTP/1.0"
        said = await say(wire.server.address, request(body, "connection: keep-alive", line=line) + HIDDEN)
        assert (said.statuses, said.closed) == ([200], True)
        assert b"transfer-encoding" not in said.heads[0]
        assert said.raw.rstrip().endswith(b"[DONE]" if body is streamed else b"}")
        never_smuggled(said)


EVIL = "\r\nset-cookie: evil=1\r\n\r\nHTTP/1.1 200 OK\r\n"


BAD_IDS = (
    ("x-request-id: a%0d%0aset-cookie: evil=1",),
    ("x-request-id: a b",),
    ("x-request-id: " + "a" * 129,),
    ("x-request-id: é",),
    ("x-request-id: good", "x-request-id: bad;set-cookie"),
    ("x-request-id: \x7f",),
)


async def test_a_request_id_that_is_none_is_replaced(wire: Api) -> None:
    """What comes back in our headers is letters, digits, dots, underscores and hyphens, and not too much of them."""
    for headers in BAD_IDS:
        said = await say(wire.server.address, request(ASKED, *headers))
        (head,) = said.heads
        assert b"evil" not in head
        assert b"set-cookie" not in head
        if said.statuses == [200]:
            assert re.search(rb"\r\nx-request-id: (good|req-[0-9a-f]{16})\r\n", head)
        else:
            assert (said.statuses, said.closed) == ([400], True)


async def test_a_request_id_in_the_body_ends_no_header(wire: Api) -> None:
    """One that is taken is taken whole; a line end behind it is no part of it."""
    for found, status in (("mine", 200), ("mine\n", 400), ("a\r\nset-cookie: evil=1", 400), ("", 400)):
        body = json.dumps({"model": "tiny", "prompt": "hi", "request_id": found}).encode()
        said = await say(wire.server.address, request(body))
        assert said.statuses == [status], found
        assert b"evil" not in said.heads[0]


async def test_nothing_of_a_body_or_a_path_gets_into_heads_or_lines_of_logs(
    wire: Api, caplog: pytest.LogCaptureFixture
) -> None:
    """A model, a tenant, a path that would end a header or a line: they stand in the answer's JSON, escaped."""
    body = json.dumps({"model": f"m{EVIL}", "prompt": "hi"}).encode()
    with caplog.at_level(logging.DEBUG):
        for raw in (
            request(body),
            request(ASKED, "x-contrail-tenant: a%0d%0aset-cookie:evil"),
            request(line="GET /v1/models/%0d%0aset-cookie:%20evil=1 HTTP/1.1"),
            request(line="GET /%0d%0a%0d%0aHTTP/1.1%20200 HTTP/1.1"),
            request(line="POST /health?%0aset-cookie:evil HTTP/1.1"),
        ):
            said = await say(wire.server.address, raw)
            assert len(said.heads) == 1
            assert said.statuses[0] in {400, 404, 405}
            assert b"evil" not in said.heads[0]
            assert b"set-cookie" not in said.heads[0]
    lines = [JsonLines().format(record) for record in caplog.records]
    assert all("\n" not in line for line in lines)


PATHS = (
    "GET http://a/health HTTP/1.1",
    "GET //health HTTP/1.1",
    "GET /./health HTTP/1.1",
    "GET /v1/../health HTTP/1.1",
    "GET /health%00 HTTP/1.1",
    "GET /%2e%2e/health HTTP/1.1",
    "GET /health; HTTP/1.1",
    "OPTIONS * HTTP/1.1",
)


async def test_a_path_is_taken_as_it_stands(wire: Api) -> None:
    """Nothing is resolved or cut off, so nobody in front of us and we can see two different paths."""
    for line in PATHS:
        said = await say(wire.server.address, request(line=line))
        assert len(said.statuses) == 1
        assert said.statuses[0] in ({200} if "http://" in line else {400, 404, 405}), line
