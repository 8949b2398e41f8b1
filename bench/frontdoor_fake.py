"""A worker that speaks OpenAI's API and computes nothing, for the routers that `bench.frontdoor` measures beside ours.

`python -m bench.frontdoor_fake PACE_MS STEPS PORT…` listens on loopback, says "ready", and ends with its standard
input. Streams get one chunk every PACE_MS, all of a port in the same tick, as an engine's step would give them; an
answer that is not streamed comes when its last token would have. The ports, which are workers of their own, tick all in
one moment, or one after the other, as ours do.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections.abc import Iterator
from functools import partial
from itertools import chain, repeat
from typing import cast

import uvloop

from bench.frontdoor_worker import Pace, ticks

CHUNK = b'data: {"id":"chatcmpl-1","object":"chat.completion.chunk","created":1700000000,"model":"bench","choices":[{"index":0,"delta":{"content":" tok"},"logprobs":null,"finish_reason":null}]}\n\n'  # noqa: E501  # as it goes over the wire
WHOLE = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 1700000000,
    "model": "bench",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": " tok" * 64}, "finish_reason": "length"}],
    "usage": {"prompt_tokens": 300, "completion_tokens": 64, "total_tokens": 364},
}
ANSWERS = {
    "/v1/models": {"object": "list", "data": [{"id": "bench", "object": "model"}]},
    "/get_model_info": {"model_path": "bench", "is_generation": True},
    "/model_info": {"model_path": "bench", "is_generation": True},
    "/server_info": {"model_path": "bench"},
    "/get_server_info": {"model_path": "bench"},
    "/health": {},
}
TOKENS = 64
"""Of an answer that does not say how many it wants."""
_MAX_TOKENS = re.compile(rb'"max_(?:completion_)?tokens": ?([0-9]+)')
"""Some routers ask under the newer name."""


def framed(piece: bytes) -> bytes:
    """One chunk of HTTP."""
    return b"%x\r\n%b\r\n" % (len(piece), piece)


FRAMED = framed(CHUNK)
LAST = framed(CHUNK) + framed(b"data: [DONE]\n\n") + b"0\r\n\r\n"
EVENTS = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"


class Ticker:
    """Gives every answer its next piece, all in one turn."""

    def __init__(self, pace_s: float, place: float = 0.0) -> None:
        """`place`: how far behind the pace's start it ticks, in parts of the pace."""
        self.left: dict[Connection, Iterator[bytes]] = {}
        """Pieces still to come, one a tick."""
        self._pace_s = pace_s
        self._place = place

    async def run(self) -> None:
        """For ever."""
        async for _ in ticks(self._pace_s, self._place):
            for connection, left in list(self.left.items()):
                piece = next(left, None)
                if piece is None:
                    del self.left[connection]
                elif piece:
                    connection.write(piece)


class Connection(asyncio.Protocol):
    """One client's."""

    def __init__(self, ticker: Ticker, pace_s: float) -> None:
        self._ticker = ticker
        self._pace_s = pace_s
        self._transport: asyncio.Transport | None = None
        self._got = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  # asyncio's signature
        self._ticker.left.pop(self, None)

    def write(self, piece: bytes) -> None:
        """It is on its way."""
        assert self._transport is not None
        self._transport.write(piece)

    def data_received(self, data: bytes) -> None:
        self._got += data
        if self._got.startswith(b"PRI "):
            assert self._transport is not None
            self._transport.close()  # HTTP/2 is asked for first by some
            return
        while b"\r\n\r\n" in self._got:
            head, _, rest = self._got.partition(b"\r\n\r\n")
            length = _length(head)
            if len(rest) < length:
                return
            self._got = rest[length:]
            self._answer(head.split(b" ", 2)[1].decode(), rest[:length])

    def _answer(self, path: str, body: bytes) -> None:
        if path in ANSWERS:
            self.write(_json(ANSWERS[path]))
        elif path not in {"/v1/chat/completions", "/v1/completions"}:
            self.write(b"HTTP/1.1 404 Not Found\r\ncontent-length: 2\r\ncontent-type: application/json\r\n\r\n{}")
        else:
            asked = _MAX_TOKENS.search(body)
            count = int(asked[1]) if asked else TOKENS
            if b'"stream": true' not in body and b'"stream":true' not in body:
                self._tokens(count, b"", b"", _json(WHOLE))
            else:
                self._tokens(count, EVENTS, FRAMED, LAST)

    def _tokens(self, count: int, head: bytes, each: bytes, last: bytes) -> None:
        if self._pace_s:
            self.write(head)
            self._ticker.left[self] = chain(repeat(each, count - 1), (last,))
        else:
            self.write(head + each * (count - 1) + last)


def _json(value: object) -> bytes:
    body = json.dumps(value).encode()
    return b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body) + body


def _length(head: bytes) -> int:
    lower = head.lower()
    at = lower.find(b"content-length:")
    return int(lower[at + 15 :].split(b"\r\n", 1)[0]) if at >= 0 else 0


async def serve(pace: Pace, ports: list[int]) -> None:
    """Until standard input ends."""
    loop, pace_s = asyncio.get_running_loop(), pace.ms / 1000
    tickers = [Ticker(pace_s, place) for place in pace.places(len(ports))]
    for ticker, port in zip(tickers, ports, strict=True):
        await loop.create_server(partial(Connection, ticker, pace_s), "127.0.0.1", port)
    ticking = [asyncio.create_task(ticker.run()) for ticker in tickers if pace_s]
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    for task in ticking:
        task.cancel()


if __name__ == "__main__":
    uvloop.run(serve(Pace(float(sys.argv[1]), sys.argv[2]), [int(port) for port in sys.argv[3:]]))
