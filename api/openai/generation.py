"""The answer to one request while it is generated: its choices, their encoder, its times, and its way to the client.

An output is encoded and written in the turn of the loop in which it comes. While the client is slower than the workers,
the outputs of each choice wait in its backlog, merged into one, and one task writes them as the client takes them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from actors.metrics.frontend_metrics import ModelMetrics
from actors.transport.output_buffer import OutputBuffer
from api.openai.request.choice import Choice, ChoiceDelta
from api.openai.request.preprocessor import PreparedRequest
from api.openai.response_encoder import ResponseEncoder
from api.openai.types.backend import Backend
from api.server.answer_delivery import AnswerDelivery
from api.server.exchange import HttpExchange
from core.clock import Clock
from core.errors import ContrailError
from core.failure import reason_for
from core.generation import IntakeTimes, Output
from core.models import GenerationFailed

STARTED_AT_ONCE = 8
"""Choices that begin in one turn of the event loop: each may take a millisecond to find its worker."""
LOGPROBS_INLINE_MAX = 512
"""Logprobs of more tokens, of a long prompt for instance, are encoded beside the event loop: 20 us and more each."""


class Generation:
    """One answer in progress. Its first output begins the stream: errors before it have a status of their own."""

    __slots__ = (
        "_arrived_ms",
        "_clock",
        "_last_ns",
        "_logprobs",
        "_metrics",
        "_pieces",
        "_pieces_at_check",
        "_ping_s",
        "_ping_timer",
        "_queued",
        "_streamed",
        "_unfinished",
        "encoder",
        "exchange",
        "is_open",
        "prepared",
        "writing",
    )  # fmt: skip

    def __init__(
        self,
        exchange: HttpExchange,
        prepared: PreparedRequest,
        encoder: ResponseEncoder,
        clock: Clock,
        metrics: ModelMetrics,
        arrived_ms: int,
        ping_s: float,
    ) -> None:
        """`arrived_ms` is when the request came; `ping_s` is how long nothing may be written until a ping is."""
        self.exchange = exchange
        self.prepared = prepared
        self.encoder = encoder
        self._streamed = prepared.stream
        self.is_open = not prepared.stream
        """True once the stream's opening is written, and for an answer that is not streamed."""
        self._clock = clock
        self._metrics = metrics
        self._arrived_ms = arrived_ms
        self._last_ns: int | None = None
        """When the first choice got its last tokens."""
        self._ping_s = ping_s
        self._ping_timer: asyncio.TimerHandle | None = None
        self._pieces = 0
        """Pieces of the stream that were written."""
        self._pieces_at_check = 0
        """Value of `_pieces` at the last check for a ping."""
        self._unfinished = len(prepared.choices)
        """Choices that have not ended."""
        self._logprobs = 0
        """Number of tokens with logprobs in the answer."""
        self._queued: list[ChoiceConsumer] = []
        """Consumers with a backlog; the first one is written next."""
        self.writing: asyncio.Task[None] | None = None
        """Writes what waits for the client or for a thread; None if nothing does."""

    def __repr__(self) -> str:
        count, behind = len(self.prepared.choices), f", {len(self._queued)} behind" if self._queued else ""
        return f"<Generation {self.exchange.request_id}, {self._unfinished} of {count} choices under way{behind}>"

    async def run(self, backend: Backend) -> None:
        """The client has the answer, to its end. Raises what the backend raises, once all before it was written, and
        GenerationFailed."""
        if self._streamed:
            self._schedule_ping()
        try:
            await self._run_choices(backend, [ChoiceConsumer(self, choice) for choice in self.prepared.choices])
            await self._finish_writing()
        except ContrailError:
            await self._finish_writing()
            raise
        finally:
            if self._ping_timer is not None:
                self._ping_timer.cancel()
            if self.writing is not None:
                self.writing.cancel()
        if self._unfinished:
            raise GenerationFailed("the worker's stream ended before the generation did")
        if not self._streamed:
            await self.exchange.answer(await self._encode_whole())

    def follow_delivery(self, delivery: AnswerDelivery, backend: Backend) -> None:
        """The answer was written; the log gets to know if its client takes it late."""
        exchange = self.exchange
        if self._last_ns is not None and exchange.probe is not None:
            delivery.follow(
                exchange.transport,
                exchange.probe,
                self._last_ns,
                lambda delay: backend.delayed(exchange.request_id, *delay),
            )

    def count(self, outcome: str) -> None:
        """The request is over: it is counted with this outcome."""
        metrics, usage = self._metrics, self.prepared.usage()
        metrics.finished(outcome, (self._clock.monotonic_ms() - self._arrived_ms) / 1000)
        if self._last_ns is not None:
            metrics.prompt_tokens += usage.prompt_tokens
            metrics.cached_tokens += usage.cached_tokens or 0
            metrics.completion_tokens += usage.completion_tokens

    def on_tokens(self) -> None:
        """Tokens of the first choice came now; the others' times would say nothing of any one stream."""
        now_ns, last_ns = self._clock.monotonic_ns(), self._last_ns
        self._last_ns = now_ns
        if last_ns is None:
            self._metrics.first_token_seconds.observe((now_ns // 1_000_000 - self._arrived_ms) / 1000)
        else:
            self._metrics.inter_token_seconds.observe((now_ns - last_ns) / 1e9)

    def queue_output(self, consumer: ChoiceConsumer, output: Output) -> bool:
        """The output waits behind what is written; False if no more is wanted. Raises what writing raised: then the
        worker stops, and the log knows why."""
        assert self.writing is not None
        if self.writing.done():
            self.writing.result()
        if consumer.choice.finish is not None:
            return False
        if consumer.backlog is None:
            consumer.backlog = OutputBuffer()
        if not consumer.backlog:
            self._queued.append(consumer)
        consumer.backlog.add(output)
        return True

    def write_delta(self, delta: ChoiceDelta) -> None:
        """The delta's events are on their way, with the stream's opening before the first and its closing behind the
        last of all; for an answer that is not streamed the encoder keeps the delta."""
        self._logprobs += len(delta.logprobs)
        if self._streamed and len(delta.logprobs) > LOGPROBS_INLINE_MAX:
            self.writing = asyncio.create_task(self._write_queued(b"", delta))
        else:
            self.write(self._opening() + self.encoder.encode_delta(delta) + self._closing(delta))

    def write(self, piece: bytes) -> None:
        """The piece of the stream is on its way, at once or as soon as the client takes it; nothing is done for an
        answer that is not streamed."""
        if piece and self._streamed:
            self._pieces += 1
            if not (self.exchange.write_now(piece) if self._unfinished else self.exchange.close_now(piece)):
                self.writing = asyncio.create_task(self._write_queued(piece))

    def _opening(self) -> bytes:
        if self.is_open:
            return b""
        self.is_open = True
        return self.encoder.encode_opening()

    def _closing(self, delta: ChoiceDelta) -> bytes:
        if delta.finish is None:
            return b""
        self._unfinished -= 1
        return self.encoder.encode_closing() if self._streamed and not self._unfinished else b""

    async def _write_queued(self, piece: bytes, delta: ChoiceDelta | None = None) -> None:
        """The piece, or the delta, is written as the client takes it, and then all that came meanwhile."""
        while True:
            if delta is not None:
                piece = self._opening() + await self._encode(delta) + self._closing(delta)
            if piece and self._unfinished:  # an output may be no text yet
                await self.exchange.write(piece)
            elif piece:
                await self.exchange.close_stream(piece)
            if not self._queued:
                self.writing = None
                return
            consumer = self._queued.pop(0)
            assert consumer.backlog is not None
            delta = consumer.choice.push(consumer.backlog.take())

    async def _encode(self, delta: ChoiceDelta) -> bytes:
        if len(delta.logprobs) <= LOGPROBS_INLINE_MAX:
            return self.encoder.encode_delta(delta)
        return await asyncio.to_thread(self.encoder.encode_delta, delta)

    async def _finish_writing(self) -> None:
        if self.writing is not None:
            await self.writing

    async def _encode_whole(self) -> bytes:
        logprobs = self._logprobs
        if self.prepared.options.prompt_logprobs:
            logprobs += sum([len(choice.prompt_logprobs) for choice in self.prepared.choices])
        if logprobs <= LOGPROBS_INLINE_MAX:
            return self.encoder.encode_whole()
        return await asyncio.to_thread(self.encoder.encode_whole)

    async def _run_choices(self, backend: Backend, consumers: Sequence[ChoiceConsumer]) -> None:
        """All choices side by side. The first error of one ends all, and so does a cancellation, with its reason."""
        model = self.prepared.model
        if len(consumers) == 1:
            await backend.run(model, consumers[0].choice.request, consumers[0])
            return
        tasks: list[asyncio.Task[None]] = []
        why: tuple[Any, ...] = ()
        try:
            for consumer in consumers:
                if len(tasks) % STARTED_AT_ONCE == 0:
                    await asyncio.sleep(0)
                tasks.append(asyncio.create_task(backend.run(model, consumer.choice.request, consumer)))
            await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
            for task in tasks:
                if task.done():
                    task.result()
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

    def _schedule_ping(self) -> None:
        self._ping_timer = asyncio.get_running_loop().call_later(self._ping_s, self._ping_if_idle)

    def _ping_if_idle(self) -> None:
        """A ping is written if nothing else was since the last look: no client or proxy gives the stream up."""
        if self._pieces == self._pieces_at_check and self._unfinished and self.writing is None:
            self.write(self._opening() + self.encoder.encode_ping())
        self._pieces_at_check = self._pieces
        self._schedule_ping()


class ChoiceConsumer:
    """Takes the outputs of one choice of a generation, and keeps them while the client is slower than the worker.

    The backlog is one merged output: its bound is the choice's `max_tokens`.
    """

    __slots__ = ("_generation", "_is_first", "_is_plain", "_transcript", "backlog", "choice")

    def __init__(self, generation: Generation, choice: Choice) -> None:
        self.choice = choice
        self.backlog: OutputBuffer | None = None
        """Made when the client falls behind."""
        self._generation = generation
        self._transcript = choice.transcript
        self._is_first = choice.index == 0
        self._is_plain = generation.prepared.is_plain_text

    def __repr__(self) -> str:
        behind = 0 if self.backlog is None else self.backlog.count
        return f"<ChoiceConsumer of {self.choice!r}, {behind} tokens behind>"

    def on_output(self, output: Output) -> bool:
        """The output's text is on its way to the client; False if no more is wanted."""
        generation = self._generation
        if self._is_first:
            generation.on_tokens()
        if generation.writing is not None:
            return generation.queue_output(self, output)
        text = self._transcript.push(output)
        if self._is_plain and generation.is_open and self._transcript.finish is None:  # every token of plain text
            if text:
                generation.write(generation.encoder.encode_text(text))
            return True
        delta = self.choice.make_delta(text, output)
        generation.write_delta(delta)
        return delta.finish is None

    def outcome(self) -> str | None:
        """The reason for the choice's end; None before it."""
        return self.choice.outcome()

    def on_routed(self, worker_name: str) -> None:
        """The answer's headers name the worker, if they may."""
        self._generation.exchange.on_routed(worker_name)

    def intake(self) -> IntakeTimes | None:
        """The time of the generation's request in this front end."""
        return self._generation.exchange.intake.times()
