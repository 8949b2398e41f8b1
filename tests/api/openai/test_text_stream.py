"""A stream of plain text on its way to a client that is slower than its worker, down to the bytes on the wire."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from api.openai.generation import TextStream
from api.server.exchange import TRACE_KEY, HttpExchange
from api.server.response_writer import STATE_KEY, ResponseWriter
from core.generation import Output, OutputConsumer

HALF = 999
"""A token that is no text yet: the first half of a character."""


class Transport:
    """What is written to the client."""

    def __init__(self) -> None:
        self.written = b""

    def write(self, data: bytes) -> None:
        self.written += bytes(data)

    def pause_reading(self) -> None:
        """It never reads."""

    resume_reading = close = pause_reading


class Transcript:
    """Tokens are characters."""

    completion_tokens = 0

    finish: str | None = None
    stop_reason = None

    def push(self, output: Output) -> str:
        self.finish = output.finish or self.finish
        return "".join(chr(token) for token in output.tokens if token != HALF)


class Writer:
    """Events without a form of their own."""

    prepared = SimpleNamespace(model="m", usage=lambda: None)
    around_text = b"", b""

    def opening(self) -> bytes:
        return b"<"

    def ending(self, *_: object) -> bytes:
        return b">"

    def closing(self, _usage: object) -> bytes:
        return b"[DONE]"


async def written(say: Callable[[Callable[[Output], bool], FlowControl], Any]) -> bytes:
    """What left for the client when a worker said that."""
    transport = Transport()
    flow = FlowControl(cast(Any, transport))
    scope: Any = {"type": "http", "http_version": "1.1", "method": "POST", "headers": [], "path": "/"}
    scope["state"] = {"request_id": "r", TRACE_KEY: None}
    log, event = logging.getLogger("test"), asyncio.Event()
    cycle = RequestResponseCycle(scope, cast(Any, transport), flow, log, log, False, [], event, False, True, print)
    cycle.on_response = lambda: None
    scope["state"][STATE_KEY] = ResponseWriter(cycle, asyncio.get_running_loop())
    exchange = HttpExchange(scope, cast(Any, cycle.receive), cast(Any, cycle.send))
    choice = SimpleNamespace(request=None, transcript=Transcript(), ended=lambda: None)

    class Backend:
        async def run(self, _model: str, _request: object, consumer: OutputConsumer) -> None:
            await say(consumer.on_output, flow)

    watch = SimpleNamespace(tokens=lambda: None)
    await TextStream(exchange, cast(Any, choice), cast(Any, Writer()), cast(Any, watch), 60.0).run(cast(Any, Backend()))
    return transport.written.partition(b"\r\n\r\n")[2]


async def test_half_a_character_does_not_end_a_slow_stream() -> None:
    """An empty chunk is the last one in HTTP: what is no text yet is not written, whoever waits for whom."""

    async def say(take: Callable[[Output], bool], flow: FlowControl) -> None:
        take(Output(tokens=(65,)))
        flow.pause_writing()
        take(Output(tokens=(66,)))
        await asyncio.sleep(0)
        take(Output(tokens=(HALF,)))
        await asyncio.sleep(0)
        flow.resume_writing()
        await asyncio.sleep(0.01)
        take(Output(tokens=(67,)))
        take(Output(finish="stop"))

    assert await written(say) == b'4\r\n<"A"\r\n3\r\n"B"\r\n3\r\n"C"\r\n7\r\n>[DONE]\r\n0\r\n\r\n'


async def test_a_chunk_without_bytes_is_none() -> None:
    """Whoever asks the wire to write nothing has written nothing, and can still end the answer."""
    transport = Transport()
    cycle = SimpleNamespace(
        chunked_encoding=True, flow=SimpleNamespace(write_paused=False), response_complete=False, disconnected=False,
        transport=transport, message_event=asyncio.Event(), keep_alive=True, on_response=lambda: None,
    )  # fmt: skip
    wire = ResponseWriter(cast(Any, cycle), asyncio.get_running_loop())
    assert wire.chunk(b"")
    assert transport.written == b""
    assert wire.last_chunk(b"")
    assert transport.written == b"0\r\n\r\n"
