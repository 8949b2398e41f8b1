"""One request as a client may send it: whole, in pieces, half, too slowly, gone before the answer or in its middle."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any, NamedTuple

ANSWER_TIMEOUT_S = 60.0
"""No answer takes longer, and no refusal of half a request."""
PAUSE_S = 0.02
PIECES_MAX = 12
JUNK_HEADERS = (
    "x-request-id: a b", "x-request-id: " + "a" * 200, "x-contrail-tenant: a:b", "x-contrail-tenant: team",
    "x-contrail-priority: high", "x-contrail-priority: -2147483647", "x-contrail-deadline-ms: 0",
    "x-contrail-deadline-ms: 1", "x-contrail-deadline-ms: " + "9" * 40, "traceparent: x", "content-type: text/html",
    "content-encoding: gzip", "accept: */*;q=x", "cookie: " + "a=b;" * 300, "expect: 100-continue", "expect: 200",
    "connection: close", "connection: upgrade", "upgrade: h2c", "te: trailers", "range: bytes=0-1", "x: \xff",
    "authorization: Bearer x", "x-api-key: x", "origin: https://evil.example", "x-forwarded-for: 127.0.0.1",
)  # fmt: skip


class Heard(NamedTuple):
    """What came back; nothing for one who did not listen."""

    status: int | None = None
    body: bytes = b""
    broke: bool = False
    """Whether the connection ended before the answer was whole."""


Manner = Callable[[Random, asyncio.StreamReader, asyncio.StreamWriter, bytes, bytes], Coroutine[Any, Any, Heard]]


async def sent(random: Random, address: tuple[str, int], path: str, body: bytes) -> tuple[str, Heard]:
    """How it was sent, and what came back. TimeoutError if an answer was due and none came."""
    manner = random.choices(MANNERS, WEIGHTS)[0]
    reader, writer = await asyncio.open_connection(*address)
    try:
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            head = _head(random, path, body, chunked=manner is _chunked)
            return manner.__name__.strip("_"), await manner(random, reader, writer, head, body)
    except ConnectionError:
        return manner.__name__.strip("_"), Heard(broke=True)
    finally:
        writer.close()


def _head(random: Random, path: str, body: bytes, *, chunked: bool) -> bytes:
    size = "transfer-encoding: chunked" if chunked else f"content-length: {len(body)}"
    headers = ["host: a", size, *random.sample(JUNK_HEADERS, random.choice((0, 0, 0, 1, 3)))]
    return "\r\n".join([f"POST {path} HTTP/1.1", *headers]).encode("latin-1") + b"\r\n\r\n"


async def _whole(
    _random: Random, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, head: bytes, body: bytes
) -> Heard:
    writer.write(head + body)
    return await _answer(reader)


async def _in_pieces(
    random: Random, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, head: bytes, body: bytes
) -> Heard:
    raw = head + body
    cuts = sorted(random.randrange(len(raw)) for _ in range(random.randint(1, PIECES_MAX)))
    for start, end in zip([0, *cuts], [*cuts, len(raw)], strict=True):
        writer.write(raw[start:end])
        await asyncio.sleep(random.random() * PAUSE_S)
    return await _answer(reader)


async def _chunked(
    random: Random, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, head: bytes, body: bytes
) -> Heard:
    writer.write(head)
    while body:
        size = random.randint(1, 2000)
        writer.write(b"%x\r\n%b\r\n" % (len(body[:size]), body[:size]))
        body = body[size:]
    writer.write(b"0\r\n\r\n")
    return await _answer(reader)


async def _half(
    random: Random, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter, head: bytes, body: bytes
) -> Heard:
    raw = head + body
    writer.write(raw[: random.randrange(len(raw))])
    await asyncio.sleep(random.random() * PAUSE_S)
    return Heard()


async def _gone_at_once(
    random: Random, _reader: asyncio.StreamReader, writer: asyncio.StreamWriter, head: bytes, body: bytes
) -> Heard:
    writer.write(head + body)
    await writer.drain()
    await asyncio.sleep(random.random() * PAUSE_S)
    if random.random() < 0.5:
        writer.transport.abort()
    return Heard()


async def _gone_in_the_middle(
    random: Random, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, head: bytes, body: bytes
) -> Heard:
    writer.write(head + body)
    await reader.read(random.randint(1, 400))
    return Heard()


async def _in_a_row(
    random: Random, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, head: bytes, body: bytes
) -> Heard:
    """Several at once on one connection; the first answer counts, then it is gone.

    The second may be refused while the first is answered (an upgrade within a row is): then there is no answer.
    """
    writer.write((head + body) * random.randint(2, 4))
    heard = await _answer(reader)
    return Heard() if heard.broke else heard


MANNERS: tuple[Manner, ...] = (_whole, _in_pieces, _chunked, _half, _gone_at_once, _gone_in_the_middle, _in_a_row)
WEIGHTS = (8, 2, 2, 2, 2, 2, 1)


async def _answer(reader: asyncio.StreamReader) -> Heard:
    """The first answer, whole."""
    try:
        head = await reader.readuntil(b"\r\n\r\n")
        while head.startswith(b"HTTP/1.1 100"):
            head = await reader.readuntil(b"\r\n\r\n")
        status = int(head.split()[1])
        if length := re.search(rb"(?i)\r\ncontent-length: (\d+)", head):
            return Heard(status, await reader.readexactly(int(length[1])))
        body = b""
        while size := int(await reader.readuntil(b"\r\n"), 16):
            body += (await reader.readexactly(size + 2))[:-2]
        return Heard(status, body)
    except (asyncio.IncompleteReadError, ConnectionError):
        return Heard(broke=True)


def complaint(path: str, heard: Heard) -> str | None:
    """What is wrong with an answer, whatever was asked; None if nothing is."""
    if heard.broke:
        return "the connection broke before the answer was whole"
    if heard.status is None or heard.status < 300:
        return None
    if heard.status >= 500 and heard.status not in {503, 504}:
        return f"status {heard.status}: {heard.body[:200]!r}"
    try:
        told = json.loads(heard.body)
    except ValueError:
        return f"an error that is no JSON: {heard.body[:200]!r}"
    # what is refused before anybody knows which route is meant has OpenAI's shape
    anthropic = path.startswith("/v1/messages") and told.get("type") == "error"
    wanted = {"type", "message"} if anthropic else {"message", "type", "param", "code"}
    if set(told.get("error", ())) != wanted or not told["error"]["message"]:
        return f"an error of another shape: {heard.body[:200]!r}"
    return None
