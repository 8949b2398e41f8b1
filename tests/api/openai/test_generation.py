"""An answer in progress on its way to a client that is slower than its workers, down to the bytes on the wire."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from types import SimpleNamespace
from typing import Any, cast

import pytest
from uvicorn.protocols.http.flow_control import FlowControl

from actors.metrics.frontend_metrics import FrontendMetrics
from api.openai.generation import Generation
from api.openai.request.choice import Choice, ChoiceDelta, ReleasedTokens
from api.parsers.output_parser import Delta
from api.server.exchange import HttpExchange
from core.clock import SystemClock
from core.generation import Output, OutputConsumer
from core.models import GenerationFailed

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

    completion_tokens = cached_tokens = 0
    finish: str | None = None
    stop_reason = None
    pushed = 0

    def push(self, output: Output) -> str:
        self.pushed += 1
        self.finish = output.finish or self.finish
        return "".join(chr(token) for token in output.tokens if token != HALF)

    def release_tokens(self) -> ReleasedTokens:
        return ReleasedTokens()


class Encoder:
    """Events without a form of their own: each text, and `>` for a choice's end."""

    def encode_opening(self) -> bytes:
        return b"<"

    def encode_delta(self, delta: ChoiceDelta) -> bytes:
        return delta.delta.text.encode() + (b">" if delta.finish else b"")

    def encode_text(self, text: str) -> bytes:
        return self.encode_delta(ChoiceDelta(0, Delta(text)))

    def encode_closing(self) -> bytes:
        return b"[DONE]"


def exchange_over(transport: Transport, flow: FlowControl, headers: Sequence[tuple[bytes, bytes]] = ()) -> HttpExchange:
    """A request that came whole."""
    log = logging.getLogger("test")
    return HttpExchange(
        asyncio.get_running_loop(),
        scope={"http_version": "1.1", "method": "POST", "headers": headers, "path": "/", "state": {}},
        transport=transport,
        flow=flow,
        logger=log,
        access_logger=log,
        access_log=False,
        default_headers=[],
        message_event=asyncio.Event(),
        expect_100_continue=False,
        keep_alive=True,
        on_response=lambda: None,
    )


class Client:
    """A client over a real exchange of the server, and the generation that answers it."""

    def __init__(self, choices: int = 1) -> None:
        self.transport = Transport()
        self.flow = FlowControl(cast(Any, self.transport))
        exchange = exchange_over(self.transport, self.flow)
        self.choices = [Choice(at, 0, cast(Any, at), cast(Any, Transcript())) for at in range(choices)]
        prepared = SimpleNamespace(model="m", choices=self.choices, stream=True, is_plain_text=choices == 1)
        self.generation = Generation(
            exchange, cast(Any, prepared), cast(Any, Encoder()), SystemClock(), FrontendMetrics().of_model("m"), 0, 60.0
        )

    async def answered(self, say: Callable[[int, OutputConsumer], Awaitable[None]]) -> bytes:
        """What left for the client when the worker of each choice said that."""

        class Backend:
            async def run(self, _model: str, request: Any, consumer: OutputConsumer) -> None:
                await say(request, consumer)

        try:
            await self.generation.run(cast(Any, Backend()))
        finally:
            self.flow.resume_writing()
        return self.transport.written.partition(b"\r\n\r\n")[2]


def chunks(written: bytes) -> list[bytes]:
    """Of a chunked body, its end left out."""
    found: list[bytes] = []
    while written:
        size, _, rest = written.partition(b"\r\n")
        found.append(rest[: int(size, 16)])
        written = rest[int(size, 16) + 2 :]
    return found[:-1] if found and not found[-1] else found


async def test_half_a_character_does_not_end_a_slow_stream() -> None:
    """An empty chunk is the last one in HTTP: an output without text is not written."""
    client = Client()

    async def generate(_: int, consumer: OutputConsumer) -> None:
        consumer.on_output(Output(tokens=(65,)))
        client.flow.pause_writing()
        consumer.on_output(Output(tokens=(66,)))
        await asyncio.sleep(0)
        consumer.on_output(Output(tokens=(HALF,)))
        await asyncio.sleep(0)
        client.flow.resume_writing()
        await asyncio.sleep(0.01)
        consumer.on_output(Output(tokens=(67,)))
        consumer.on_output(Output(finish="stop"))

    assert await client.answered(generate) == b"2\r\n<A\r\n1\r\nB\r\n1\r\nC\r\n7\r\n>[DONE]\r\n0\r\n\r\n"


async def test_outputs_for_a_client_that_does_not_read_are_merged() -> None:
    """However many come: each choice has one backlog, and none is read before the client takes the piece before."""
    client = Client(2)

    async def generate(index: int, consumer: OutputConsumer) -> None:
        consumer.on_output(Output(tokens=(65 + index,)))
        await asyncio.sleep(0.01)
        if not index:
            client.flow.pause_writing()
        for _ in range(100):
            assert consumer.on_output(Output(tokens=(97 + index,)))
            await asyncio.sleep(0)
        assert "2 behind" in repr(client.generation)
        client.flow.resume_writing()
        await asyncio.sleep(0.01)
        assert not consumer.on_output(Output(finish="stop"))

    pieces = chunks(await client.answered(generate))
    assert [choice.transcript.pushed for choice in client.choices] == [4, 3]  # type: ignore[attr-defined]
    assert pieces[:2] == [b"<A", b"B"]
    assert b"".join(pieces[2:-2]) in {b"a" * 100 + b"b" * 100, b"a" + b"b" * 100 + b"a" * 99}
    assert pieces[-2:] == [b">", b">[DONE]"]


async def test_an_error_comes_after_what_came_before_it() -> None:
    """The client has all outputs that came before it."""
    client = Client()

    async def generate(_: int, consumer: OutputConsumer) -> None:
        consumer.on_output(Output(tokens=(65,)))
        client.flow.pause_writing()
        for token in (66, 67, 68):
            consumer.on_output(Output(tokens=(token,)))
        asyncio.get_running_loop().call_later(0.01, client.flow.resume_writing)
        raise GenerationFailed("over")

    with pytest.raises(GenerationFailed, match="over"):
        await client.answered(generate)
    assert b"".join(chunks(client.transport.written.partition(b"\r\n\r\n")[2])) == b"<ABCD"


async def test_a_failure_of_writing_ends_the_generation() -> None:
    """The next output meets it: so the worker stops, and the log knows why."""
    client = Client()

    async def generate(_: int, consumer: OutputConsumer) -> None:
        consumer.on_output(Output(tokens=(65,)))
        client.flow.pause_writing()
        consumer.on_output(Output(tokens=(66,)))
        consumer.on_output(Output(tokens=(67,)))
        cast(Any, client.choices[0].transcript).push = lambda _: str(1 // 0)
        client.flow.resume_writing()
        await asyncio.sleep(0.01)
        with pytest.raises(ZeroDivisionError):
            consumer.on_output(Output(tokens=(68,)))
        raise LookupError("as the worker's connection raises it again")

    with pytest.raises(LookupError):
        await client.answered(generate)


@pytest.mark.parametrize("choices", [1, 3])
async def test_a_cancellation_reaches_each_choice_with_its_reason(choices: int) -> None:
    """The log has why each of them ended: a deadline is no client that hung up."""
    client, why, reasons = Client(choices), TimeoutError("the deadline"), list[object]()

    async def generate(_: int, consumer: OutputConsumer) -> None:
        consumer.on_output(Output(tokens=(65,)))
        try:
            await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError as error:
            reasons.append(error.args)
            raise

    answering = asyncio.create_task(client.answered(generate))
    await asyncio.sleep(0.01)
    answering.cancel(why)
    with suppress(asyncio.CancelledError):
        await answering
    assert reasons == [(why,)] * choices


async def test_a_stream_without_its_end_is_an_error() -> None:
    """The worker's stream ended before its last output."""

    async def generate(_: int, consumer: OutputConsumer) -> None:
        consumer.on_output(Output(tokens=(65,)))

    with pytest.raises(GenerationFailed, match="before the generation did"):
        await Client().answered(generate)


async def test_a_piece_without_bytes_is_no_chunk() -> None:
    """A stream that is told to write nothing has written nothing, and can still end."""
    transport = Transport()
    exchange = exchange_over(transport, FlowControl(cast(Any, transport)))
    assert exchange.write_now(b"a")
    before = len(transport.written)
    assert exchange.write_now(b"")
    assert len(transport.written) == before
    assert exchange.close_now(b"")
    assert transport.written.endswith(b"\r\n\r\n1\r\na\r\n0\r\n\r\n")
