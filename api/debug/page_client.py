"""Page client: one question to a server of ours over an open connection, and its answer passed on as it comes."""

from __future__ import annotations

import asyncio
from typing import NamedTuple

from starlette.types import Scope, Send

PREFIX = "/debug/api"
"""Under it all questions are asked."""
HEAD_BYTES_MAX = 16 * 1024
BODY_BYTES_MAX = 64 * 1024
"""Of a question."""
PIECE_BYTES = 256 * 1024
PASSED = ("content-type",)
"""Headers that go along, in both directions."""
ENDED = "the page's process ended before it answered: this front end's log says why"


class BrokenAnswer(Exception):
    """The connection broke off, or gave what is no answer; nothing, or not all, was passed on."""


class _Head(NamedTuple):
    status: int
    headers: list[tuple[bytes, bytes]]
    length: int


async def relay(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, scope: Scope, body: bytes, send: Send
) -> None:
    """The request of this scope was asked, and its answer sent. Broken if there is none."""
    try:
        writer.write(_request(scope, body) + body)
        await writer.drain()
    except OSError as error:
        raise BrokenAnswer(ENDED) from error
    head = await _head(reader)
    await send({"type": "http.response.start", "status": head.status, "headers": head.headers})
    left = head.length if scope["method"] != "HEAD" else 0
    empty = not left
    while left:
        piece = await _piece(reader, min(left, PIECE_BYTES))
        left -= len(piece)
        await send({"type": "http.response.body", "body": piece, "more_body": left > 0})
    if empty:
        await send({"type": "http.response.body", "body": b""})


async def _piece(reader: asyncio.StreamReader, size: int) -> bytes:
    """At most so much of a body that is not over."""
    fault = "the page's process broke off in the middle of an answer"
    try:
        piece = await reader.read(size)
    except OSError as error:
        raise BrokenAnswer(fault) from error
    if not piece:
        raise BrokenAnswer(fault)
    return piece


def _request(scope: Scope, body: bytes) -> bytes:
    """Its head. The path is ours, and the query is as the server has read it: neither holds a line's end."""
    target = scope["raw_path"] + (b"?" + scope["query_string"] if scope["query_string"] else b"")
    assert b"\r" not in target
    assert b"\n" not in target
    kept = b"".join(name + b": " + value + b"\r\n" for name, value in scope["headers"] if name.decode() in PASSED)
    method = scope["method"].encode()
    return b"%b %b HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-length: %d\r\n%b\r\n" % (
        method, target, len(body), kept,
    )  # fmt: skip


async def _head(reader: asyncio.StreamReader) -> _Head:
    try:
        raw = await reader.readuntil(b"\r\n\r\n")
    except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, OSError) as error:
        raise BrokenAnswer(ENDED) from error
    first, *lines = raw[:-4].split(b"\r\n")
    if len(raw) > HEAD_BYTES_MAX or not first.startswith(b"HTTP/1.1 "):
        raise BrokenAnswer("the page's process gave an answer that is none")
    pairs = [line.split(b":", 1) for line in lines if b":" in line]
    headers = {name.strip().lower(): value.strip() for name, value in pairs}
    kept = [(name, headers[name]) for name in (each.encode() for each in PASSED) if name in headers]
    return _Head(int(first.split(b" ", 2)[1]), kept, int(headers.get(b"content-length", b"0")))
