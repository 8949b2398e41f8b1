"""What is ambiguous on the wire is refused with 400 and a closed connection; what is right is served."""

from __future__ import annotations

import asyncio
import json
from urllib.parse import unquote

import pytest

from api.server.limits import HEAD_BYTES_MAX, HEADERS_MAX, PIPELINE_MAX
from api.server.protocol import target_of
from tests.api.server.front import GET, served
from tests.fixtures.eventually import eventually

POST = b"POST /whole HTTP/1.1\r\nHost: a\r\n"
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"

AMBIGUOUS = {
    "a length and chunks": POST + b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "chunks and a length": POST + b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
    "two equal lengths": POST + b"Content-Length: 1\r\nContent-Length: 1\r\n\r\nx",
    "two lengths": POST + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\nxy",
    "a list of lengths": POST + b"Content-Length: 1, 1\r\n\r\nx",
    "a signed length": POST + b"Content-Length: +1\r\n\r\nx",
    "an empty length": POST + b"Content-Length: \r\n\r\n",
    "an endless length": POST + b"Content-Length: 99999999999999999999999\r\n\r\nx",
    "a coding beside chunks": POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    "chunks twice": POST + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "an unknown coding": POST + b"Transfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
    "no coding": POST + b"Transfer-Encoding: identity\r\n\r\n0\r\n\r\n",
    "a space before the colon": POST + b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
    "a vertical tab": POST + b"Transfer-Encoding:\x0bchunked\r\n\r\n0\r\n\r\n",
    "chunks in HTTP/1.0": b"POST /whole HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "a bare LF after the request line": b"GET /whole HTTP/1.1\nHost: a\r\n\r\n",
    "a bare LF after a header": b"GET /whole HTTP/1.1\r\nHost: a\nX: y\r\n\r\n",
    "a bare LF at the end": b"GET /whole HTTP/1.1\r\nHost: a\r\n\n\r\n",
    "a bare CR": b"GET /whole HTTP/1.1\r\nHost: a\rX: y\r\n\r\n",
    "a folded header": b"GET /whole HTTP/1.1\r\nHost: a\r\nX: a\r\n b\r\n\r\n",
    "a space before the first header": b"GET /whole HTTP/1.1\r\n Host: a\r\n\r\n",
    "NUL in a value": b"GET /whole HTTP/1.1\r\nHost: a\r\nX: a\x00b\r\n\r\n",
    "a name that is none": b"GET /whole HTTP/1.1\r\nHost: a\r\nX(: a\r\n\r\n",
    "no host": b"GET /whole HTTP/1.1\r\n\r\n",
    "two hosts": b"GET /whole HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n",
    "HTTP/2.0": b"GET /whole HTTP/2.0\r\nHost: a\r\n\r\n",
    "HTTP/2's preface": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "a tunnel": b"CONNECT a:80 HTTP/1.1\r\nHost: a\r\n\r\n",
    "LF in chunks": CHUNKED + b"1\nx\n0\n\n",
    "a chunk size in C": CHUNKED + b"0x1\r\nx\r\n0\r\n\r\n",
    "a chunk longer than it says": CHUNKED + b"1\r\nxyz\r\n0\r\n\r\n",
    "a length in the trailers": CHUNKED + b"0\r\nContent-Length: 5\r\n\r\n",
    "more frame than body": CHUNKED + b"1;" + b"x" * (4 * HEAD_BYTES_MAX) + b"\r\n",
}


@pytest.mark.parametrize("what", AMBIGUOUS)
async def test_what_is_ambiguous_is_refused(what: str) -> None:
    """400 in OpenAI's shape, the connection closes, and what was smuggled behind it is not served."""
    async with served() as site:
        client = await site.client(AMBIGUOUS[what] + GET)
        answer = await client.answer()
        assert answer.status == 400
        assert answer.headers["connection"] == "close"
        assert json.loads(answer.body)["error"]["type"] == "invalid_request_error"
        assert await client.closed()
        assert site.app.answered == 0


@pytest.mark.parametrize(
    ("url", "path", "query"),
    [
        (b"/v1/models", "/v1/models", b""),
        (b"/v1/models/a%2Fb%20c?x=%20", "/v1/models/a/b c", b"x=%20"),
        (b"/a?b?c#d", "/a", b"b?c"),
        (b"http://host:1/a;b", "/a;b", b""),
        (b"/~a:b@c", "/~a:b@c", b""),
    ],
)
def test_what_a_request_line_asks_for(url: bytes, path: str, query: bytes) -> None:
    """As uvicorn reads it, whichever way it is read here."""
    found = target_of(url)
    assert (found.path, found.query) == (path, query)
    assert unquote(found.raw_path.decode()) == path


async def test_too_many_headers_are_refused() -> None:
    """At the bound they are taken, with one more the answer is 431."""
    async with served() as site:
        most = b"GET /whole HTTP/1.1\r\nhost: a\r\n" + b"x: y\r\n" * (HEADERS_MAX - 1)
        assert (await site.ask(most + b"\r\n")).status == 200
        assert (await site.ask(most + b"x: y\r\n\r\n")).status == 431


async def test_trailers_change_nothing() -> None:
    """What was checked when the headers were complete is what the application sees."""
    async with served() as site:
        client = await site.client(CHUNKED + b"1\r\nx\r\n")
        await eventually(lambda: site.app.asked, "the request")
        client.writer.write(b"0\r\nAuthorization: me\r\n\r\n")
        answer = json.loads((await client.answer()).body)
        assert answer == {"body": 1, "headers": ["host", "transfer-encoding"]}


async def test_pipelined_requests_are_answered_in_order() -> None:
    """All of them, up to a bound; beyond it the connection is cut."""
    async with served() as site:
        posts = [b"POST /whole HTTP/1.1\r\nhost: a\r\ncontent-length: %d\r\n\r\n%b" % (n, b"x" * n) for n in range(9)]
        client = await site.client(b"".join(posts))
        assert [json.loads((await client.answer()).body)["body"] for _ in posts] == list(range(9))
        held = b"GET /held HTTP/1.1\r\nhost: a\r\n\r\n"
        flood = await site.client(held + GET * (PIPELINE_MAX + 1))
        await flood.closed()
        await eventually(lambda: site.app.hung_up, "the request is given up")


async def test_hanging_up_ends_the_request_before_the_last() -> None:
    """A client that pipelined and is gone leaves nothing running."""
    async with served() as site:
        client = await site.client(b"GET /held HTTP/1.1\r\nhost: a\r\n\r\n" + GET)
        await eventually(lambda: site.app.asked, "the first request")
        client.writer.close()
        await eventually(lambda: site.app.hung_up, "the first request is told")
        assert site.app.asked == 1


async def test_http_1_0_gets_no_chunks() -> None:
    """An answer of unknown length ends with the connection, one of known length too."""
    async with served() as site:
        site.app.go.set()
        client = await site.client(b"GET /stream HTTP/1.0\r\n\r\n")
        answer = await client.answer()
        assert (answer.status, answer.body) == (200, b"one two")
        assert "transfer-encoding" not in answer.headers
        whole = await site.client(b"GET /whole HTTP/1.0\r\nconnection: keep-alive\r\n\r\n")
        assert (await whole.answer()).headers["connection"] == "close"
        assert await whole.closed()


async def test_a_body_that_waits_for_leave() -> None:
    """100 comes when the body is wanted; the connection closes after, whether it came or not."""
    async with served() as site:
        client = await site.client(POST + b"Content-Length: 2\r\nExpect: 100-continue\r\n\r\n")
        async with asyncio.timeout(5):
            assert await client.reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        client.writer.write(b"hi")
        answer = await client.answer()
        assert (answer.status, json.loads(answer.body)["body"]) == (200, 2)
        assert answer.headers["connection"] == "close"


UPGRADE = (
    POST + b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: x\r\nContent-Length: 2\r\n\r\nhi"
)


async def test_an_upgrade_is_ignored() -> None:
    """Java's client asks for HTTP/2 with its first POST and gets its answer; so do pipelined requests in one read."""
    async with served() as site:
        client = await site.client(UPGRADE * 3)
        for _ in range(3):
            answer = await client.answer()
            assert (answer.status, json.loads(answer.body)["body"]) == (200, 2)


async def test_an_upgrade_is_ignored_wherever_reads_are_cut() -> None:
    """In its name, before it and behind it; the next request on the connection is answered."""
    at = UPGRADE.index(b"\r\nUpgrade:")
    async with served() as site:
        for cut in range(at - 1, at + len(b"\r\nUpgrade: ")):
            client = await site.client(UPGRADE[:cut])
            await asyncio.sleep(0.02)
            client.writer.write(UPGRADE[cut:])
            answer = await client.answer()
            assert (answer.status, json.loads(answer.body)["body"]) == (200, 2), cut
            client.writer.write(UPGRADE)
            assert (await client.answer()).status == 200


async def test_an_upgrade_is_ignored_byte_by_byte() -> None:
    """However the reads are cut, the headers are the same."""
    async with served() as site:
        client = await site.client()
        for place in range(len(UPGRADE)):
            client.writer.write(UPGRADE[place : place + 1])
            await asyncio.sleep(0.001)
        answer = json.loads((await client.answer()).body)
        assert answer["headers"] == ["connection", "content-length", "host", "http2-settings", "x-upgrade"]


async def test_a_body_is_never_changed() -> None:
    """Wherever the head is cut into reads, what looks like a header in the body stays; the next request is answered."""
    body = b"AAAA\r\nupgrade: h2c"
    head = POST + b"Connection: Upgrade\r\nUpgrade: h2c\r\nContent-Length: %d\r\n\r\n" % len(body)
    for late in range(6):
        async with served() as site:
            client = await site.client(head[: len(head) - late])
            await asyncio.sleep(0.02)
            client.writer.write(head[len(head) - late :] + body)
            answer = await client.answer()
            assert (answer.status, json.loads(answer.body)["body"]) == (200, len(body)), late
            client.writer.write(POST + b"Content-Length: 2\r\n\r\nhi")
            assert (await client.answer()).status == 200
