"""A client that reads one streamed answer: time to the first token, worker, and cached tokens.

A connection for each request, and as little work per token as can be: what it costs is not what is measured.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import orjson

from core.events.routing import CACHED_UNKNOWN

TIMEOUT_S = 300.0
"""An answer that takes longer has failed."""
READ_BYTES = 64 * 1024
OK = 200
EVENT = b"data: "


class Streamed(NamedTuple):
    """The result of one request. Times are of `time.perf_counter`."""

    sent_s: float
    status: int
    """0 if the connection broke off, or the answer took too long."""
    first_s: float = 0.0
    """When the first token was read."""
    end_s: float = 0.0
    worker: str = ""
    queue_ms: float = 0.0
    """In the front end, until its worker was chosen."""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    """CACHED_UNKNOWN where the answer does not say it: another server began it."""
    tokens: tuple[int, ...] = ()
    """Of the answer; empty unless they were asked for."""
    output_tokens: int = 0
    failure: str = ""

    @property
    def complete(self) -> bool:
        """True if the answer came to its end."""
        return self.status == OK and self.output_tokens > 0


def completion(model: str, prompt: Sequence[int], max_tokens: int, **more: Any) -> bytes:
    """The body of a request: token ids in, a stream of exactly so many tokens out."""
    body = {
        "model": model,
        "prompt": prompt,
        "max_tokens": max_tokens,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
        **more,
    }
    return orjson.dumps(body)


async def ask(port: int, body: bytes, name: str, timeout_s: float = TIMEOUT_S) -> Streamed:
    """The answer, read to its end; `name` is its id. A failure is a field of it, not raised."""
    sent_s = time.perf_counter()
    try:
        async with asyncio.timeout(timeout_s):
            return await _asked(port, body, name, sent_s)
    except (OSError, EOFError, TimeoutError) as error:
        return Streamed(sent_s, 0, failure=repr(error))


async def _asked(port: int, body: bytes, name: str, sent_s: float) -> Streamed:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(_head(port, name, len(body)))
        writer.write(body)
        status, headers = _headers(await reader.readuntil(b"\r\n\r\n"))
        pieces, first_s = list[bytes](), 0.0
        while piece := await reader.read(READ_BYTES):
            if not first_s and EVENT in piece:
                first_s = time.perf_counter()
            pieces.append(piece)
        end_s = time.perf_counter()
    finally:
        writer.close()
    received = b"".join(pieces)
    if status != OK:
        return Streamed(sent_s, status, failure=received[-500:].decode(errors="replace"))
    return _read(Streamed(sent_s, status, first_s, end_s), headers, _whole(received))


def _head(port: int, name: str, length: int) -> bytes:
    return (
        f"POST /v1/completions HTTP/1.1\r\nhost: 127.0.0.1:{port}\r\ncontent-type: application/json\r\n"
        f"x-request-id: {name}\r\ncontent-length: {length}\r\nconnection: close\r\n\r\n"
    ).encode()


def _headers(head: bytes) -> tuple[int, Mapping[str, str]]:
    status, *lines = head.decode("latin-1").rstrip().split("\r\n")
    return int(status.split(" ", 2)[1]), {
        name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)
    }


def _whole(received: bytes) -> bytes:
    """The body, out of its chunks. EOFError if the last one is missing."""
    body, at = list[bytes](), 0
    while True:
        size, found, _ = received[at : at + 20].partition(b"\r\n")
        if not found:
            raise EOFError("the answer broke off")
        length, at = int(size, 16), at + len(size) + 2
        if not length:
            return b"".join(body)
        body.append(received[at : at + length])
        at += length + 2


def _read(it: Streamed, headers: Mapping[str, str], body: bytes) -> Streamed:
    """With what the events say."""
    events = [orjson.loads(line.removeprefix(EVENT)) for line in body.split(b"\n") if line.startswith(EVENT + b"{")]
    usage = events[-1].get("usage") if events else None
    if not usage:
        return it._replace(status=0, failure=f"no usage at the end: {body[-200:].decode(errors='replace')}")
    tokens = [token for event in events for choice in event["choices"] for token in choice.get("token_ids", ())]
    return it._replace(
        worker=headers.get("x-contrail-worker", ""),
        queue_ms=float(headers.get("x-contrail-queue-ms", 0)),
        prompt_tokens=usage["prompt_tokens"],
        cached_tokens=usage["prompt_tokens_details"].get("cached_tokens", CACHED_UNKNOWN),
        output_tokens=usage["completion_tokens"],
        tokens=tuple(tokens),
    )
