"""The answer to one request while it is generated: its choices side by side, their times, and streams of plain text.

`GenerationRun` runs any request; its deltas come as an iterator. `TextStream` is for one choice that is nothing but
text: it writes in the turn of the loop in which the tokens come, because every token passes there. While the client is
slower than its worker, outputs are gathered, and a task writes them as the client takes them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Any, Protocol, TypeVar

from orjson import dumps

from actors.metrics.frontend_metrics import ModelMetrics
from actors.transport.output_buffer import OutputBuffer
from actors.transport.output_stream import StreamScope, output_stream
from api.openai.heartbeat import Heartbeat
from api.openai.request.choice import Choice
from api.openai.request.prepared_request import PreparedRequest
from api.openai.response_encoder import PING, ResponseEncoder
from api.openai.types.backend import Backend
from api.openai.types.deltas import ChoiceDelta, Usage
from core.clock import Clock
from core.errors import ContrailError
from core.failure import reason_for
from core.generation import Output
from core.models import GenerationFailed

WAITING_MAX = 32
"""Items of all streams together that wait for the reader; then the streams wait, too."""

STARTED_AT_ONCE = 8
"""Streams that begin in one turn of the event loop: each may take a millisecond to find its worker."""

Item = TypeVar("Item")


class _StreamEnd:
    """One stream has ended: with this error, or well."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error


async def merge_streams(streams: Sequence[AsyncGenerator[Item, None]]) -> AsyncGenerator[Item, None]:
    """Every item of every stream. The first error of one ends all, and so does closing, or being cancelled, for the
    same reason: then all streams are closed.

    Costs a task per stream, and a queue's passage per item.
    """
    queue: asyncio.Queue[Item | _StreamEnd] = asyncio.Queue(WAITING_MAX)
    tasks: list[asyncio.Task[None]] = []
    why: tuple[Any, ...] = ()
    try:
        for stream in streams:
            if len(tasks) % STARTED_AT_ONCE == 0:
                await asyncio.sleep(0)
            tasks.append(asyncio.create_task(_pump(stream, queue)))
        left = len(tasks)
        while left:
            item = await queue.get()
            if not isinstance(item, _StreamEnd):
                yield item
            elif item.error is not None:
                raise item.error  # noqa: TRY301 - the others end for its reason
            else:
                left -= 1
    except asyncio.CancelledError as error:
        why = error.args
        raise
    except Exception as error:
        why = reason_for(error)
        raise
    finally:
        for task in tasks:
            task.cancel(*why)
        await asyncio.gather(*tasks, return_exceptions=True)


async def _pump(stream: AsyncGenerator[Item, None], queue: asyncio.Queue[Item | _StreamEnd]) -> None:
    try:
        async with StreamScope(stream):
            async for item in stream:
                await queue.put(item)
    except Exception as error:  # noqa: BLE001 - whatever it is, the reader raises it
        await queue.put(_StreamEnd(error))
    else:
        await queue.put(_StreamEnd())


class TokenObserver(Protocol):
    """Measures when tokens come."""

    def tokens(self) -> None:
        """Tokens of the first choice came now."""


class GenerationRun:
    """Runs a prepared request against the workers, once."""

    def __init__(
        self, backend: Backend, prepared: PreparedRequest, observer: TokenObserver, client: ClientStream
    ) -> None:
        self._client = client
        self._backend = backend
        self._prepared = prepared
        self._observer = observer

    def __repr__(self) -> str:
        return f"<GenerationRun {len(self._prepared.choices)} choices of {self._prepared.model}>"

    async def deltas(self) -> AsyncGenerator[ChoiceDelta, None]:
        """Everything that the choices say, until each of them is over; closing it cancels what still runs.

        Deltas of one choice come in order, each with something new; those of several as they come. A failure of one
        ends all of them. Raises what `Backend.generate` raises, and GenerationFailed.
        """
        streams = [self._deltas_of(choice) for choice in self._prepared.choices]
        async with StreamScope(streams[0] if len(streams) == 1 else merge_streams(streams)) as deltas:
            async for choice_delta in deltas:
                yield choice_delta

    def usage(self) -> Usage:
        """What was used until now."""
        return self._prepared.usage()

    async def _deltas_of(self, choice: Choice) -> AsyncGenerator[ChoiceDelta, None]:
        run, model, request = self._backend.run, self._prepared.model, choice.request
        stream = output_stream(lambda consumer: run(model, request, consumer), choice.outcome, self._client.on_routed)
        async with StreamScope(stream) as outputs:
            async for output in outputs:
                if choice.index == 0:
                    self._observer.tokens()
                choice_delta = choice.push(output)
                if (
                    any(choice_delta.delta)
                    or choice_delta.tokens
                    or choice_delta.logprobs
                    or choice_delta.finish is not None
                ):
                    yield choice_delta
                if choice.finish is not None:
                    return
        raise incomplete_stream()


def incomplete_stream() -> GenerationFailed:
    """A stream that ended without its last output."""
    return GenerationFailed("the worker's stream ended before the generation did")


class RequestTimer:
    """Runs from a request's arrival to its end; costs one reading of the clock each time."""

    __slots__ = ("_arrived_ms", "_clock", "_last_ns", "_metrics")

    def __init__(self, clock: Clock, metrics: ModelMetrics, arrived_ms: int) -> None:
        self._clock = clock
        self._metrics = metrics
        self._arrived_ms = arrived_ms
        self._last_ns: int | None = None

    def __repr__(self) -> str:
        return f"<RequestTimer of {'no tokens yet' if self._last_ns is None else 'a request that has tokens'}>"

    def tokens(self) -> None:
        """Tokens of the first choice came now; the others' times would say nothing of any one stream."""
        now_ns, last_ns = self._clock.monotonic_ns(), self._last_ns
        self._last_ns = now_ns
        if last_ns is None:
            self._metrics.first_token_seconds.observe((now_ns // 1_000_000 - self._arrived_ms) / 1000)
        else:
            self._metrics.inter_token_seconds.observe((now_ns - last_ns) / 1e9)

    def ended(self, outcome: str, usage: Usage) -> None:
        """The request is over."""
        self._metrics.finished(outcome, (self._clock.monotonic_ms() - self._arrived_ms) / 1000)
        if self._last_ns is not None:
            self._metrics.prompt_tokens.inc(usage.prompt_tokens)
            self._metrics.cached_tokens.inc(usage.cached_tokens)
            self._metrics.completion_tokens.inc(usage.completion_tokens)


class ClientStream(Protocol):
    """Who the stream is for (`api.server.exchange`): at once if that can be, else as the client reads."""

    started: bool

    def on_routed(self, worker_name: str) -> None:
        """The request was sent to the worker of this name."""

    def write_now(self, piece: bytes) -> bool:
        """False, and nothing is done, if the client must be waited for."""

    def writing(self) -> Callable[[bytes], bool]:
        """`write_now` in shorter, for a stream that this has begun."""

    def close_now(self, piece: bytes) -> bool:
        """The same, with the stream's last piece."""

    def ping(self, make: Callable[[], bytes]) -> None:
        """What `make` returns is on its way, and the stream has begun, unless the client must be waited for."""

    async def open_stream(self) -> None:
        """The stream has begun."""

    async def write(self, piece: bytes) -> None:
        """Waits for the client."""

    async def close_stream(self, piece: bytes) -> None:
        """The same, with the stream's last piece."""


class TextStream:
    """One request's. It begins with the first output: errors before it have a status of their own."""

    __slots__ = (
        "_after",
        "_before",
        "_choice",
        "_client",
        "_encoder",
        "_held",
        "_observer",
        "_opening",
        "_ping_s",
        "_transcript",
        "_waits",
        "_write",
    )  # fmt: skip

    def __init__(
        self, client: ClientStream, choice: Choice, encoder: ResponseEncoder, observer: TokenObserver, ping_s: float
    ) -> None:
        """`ping_s` is how long nothing may be written until a ping is."""
        self._client = client
        self._ping_s = ping_s
        self._choice = choice
        self._transcript = choice.transcript
        self._encoder = encoder
        self._observer = observer
        self._opening = encoder.opening()
        self._before, self._after = encoder.around_text
        self._write: Callable[[bytes], bool] | None = None
        """There once the stream has begun."""
        self._held = OutputBuffer()
        """What came while the client was waited for."""
        self._waits: asyncio.Task[None] | None = None
        """Writes what the client must be waited for; None while there is no such thing."""

    def __repr__(self) -> str:
        return f"<TextStream of {self._choice!r}>"

    async def run(self, backend: Backend) -> None:
        """The answer has been written, to its end. Raises what the backend raises, once all before it was written."""
        try:
            with Heartbeat(self._ping_s, self._tokens, self._ping):
                await backend.run(self._encoder.prepared.model, self._choice.request, self)
            await self._all_written()
        except ContrailError:
            await self._all_written()
            raise
        finally:
            if self._waits is not None:
                self._waits.cancel()
        if self._transcript.finish is None:
            raise incomplete_stream()

    def outcome(self) -> str | None:
        """How the answer ended."""
        return self._choice.outcome()

    def on_routed(self, worker_name: str) -> None:
        """The client's headers name the worker, if they may."""
        self._client.on_routed(worker_name)

    def on_output(self, output: Output) -> bool:
        """The output's text has left, or will as soon as the client takes it; whether there is more to come."""
        self._observer.tokens()
        if self._waits is not None:
            self._held.add(output)
            if self._waits.done() and not self._waits.cancelled():
                self._waits.result()  # raises here what failed there: the worker stops, and the log knows why
            return self._transcript.finish is None and not self._waits.done()
        transcript, write = self._transcript, self._write
        text = transcript.push(output)
        if write is None or transcript.finish is not None:
            return self._take_outer(text)
        if text:  # every token passes here
            piece = self._before + dumps(text) + self._after
            if not write(piece):
                self._waits = asyncio.create_task(self._wait(piece))
        return True

    def _tokens(self) -> int:
        """Of each, something is written."""
        return self._transcript.completion_tokens

    def _ping(self) -> None:
        if self._waits is None:
            self._client.ping(self._opened)

    def _opened(self) -> bytes:
        opening, self._opening = self._opening, b""
        return opening + PING

    def _take_outer(self, text: str) -> bool:
        """The same of the stream's first events, and its last ones."""
        client, piece = self._client, self._piece(text)
        over = self._transcript.finish is not None
        if not piece:  # what came is no text yet
            return True
        if not (client.close_now(piece) if over else client.write_now(piece)):
            self._waits = asyncio.create_task(self._wait(piece))
        elif not over:
            self._write = client.writing()
        return not over

    def _piece(self, text: str) -> bytes:
        """The events for this text, the stream's first and last ones included."""
        transcript, encoder = self._transcript, self._encoder
        piece = self._before + dumps(text) + self._after if text else b""
        if self._opening:
            piece, self._opening = self._opening + piece, b""
        if transcript.finish is None:
            return piece
        ending = encoder.ending(transcript.finish, transcript.stop_reason)
        return piece + ending + encoder.closing(encoder.prepared.usage())

    async def _wait(self, piece: bytes) -> None:
        if not self._client.started:
            await self._client.open_stream()
        while self._transcript.finish is None:
            if piece:  # what came may be no text yet
                await self._client.write(piece)
            if not self._held:
                self._waits = None
                return
            piece = self._piece(self._transcript.push(self._held.take()))
        await self._client.close_stream(piece)

    async def _all_written(self) -> None:
        if self._waits is not None:
            await self._waits
