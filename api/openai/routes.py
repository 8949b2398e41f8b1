"""OpenAI's routes that generate: plain ASGI callables inside the app, because every token passes them."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import msgspec
from starlette.types import Receive, Scope, Send

from actors.metrics.frontend_metrics import FrontendMetrics
from actors.transport.output_stream import StreamScope
from api.config.api_settings import ApiSettings
from api.openai.answers.answering import Answering, broken_off
from api.openai.answers.chat_writer import ChatWriter
from api.openai.answers.choice import Choice
from api.openai.answers.collected import Collected, best
from api.openai.answers.completion_writer import CompletionWriter
from api.openai.answers.plain_stream import PlainStream
from api.openai.answers.said import Step
from api.openai.answers.sse import PING, Writer, error_event
from api.openai.answers.watch import Watch
from api.openai.backend import Backend
from api.openai.heartbeat import Heartbeat
from api.openai.requests.accepted import Accepted
from api.openai.requests.functions import with_tools
from api.openai.requests.intake import Intake
from api.openai.requests.terms import beside_prompt
from api.openai.requests.types import ChatRequest, CompletionRequest
from api.openai.requests.validation import decode
from api.openai.text.tokenizer import Tokenizers
from api.server.errors import metric_outcome, report_error
from api.server.exchange import ClientDisconnected, HttpExchange
from core.clock import Clock
from core.errors import ContrailError
from core.generation import Output

LOGPROBS_INLINE_MAX = 512
"""Logprobs of more tokens, of a long prompt for instance, are written beside the event loop: 20 us and more each."""


class GenerationRoute:
    """One of the two routes that generate: an ASGI application for POST."""

    def __init__(
        self,
        intake: Intake,
        backend: Backend,
        metrics: FrontendMetrics,
        settings: ApiSettings,
        clock: Clock,
        body_type: type[ChatRequest | CompletionRequest],
        writer_type: type[Writer],
    ) -> None:
        self._intake = intake
        self._backend = backend
        self._metrics = metrics
        self._settings = settings
        self._clock = clock
        self._body_type = body_type
        self._decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(body_type)
        self._writer_type = writer_type

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        arrived_ms = self._clock.monotonic_ms()
        exchange = HttpExchange(scope, receive, send)
        try:
            raw = await exchange.body(self._settings.body_bytes_max)
            await self._intake.turn(len(raw))
            parameters = decode(self._decoder, raw)
            exchange.asks_for(parameters.model)
            parameters = with_tools(parameters)
            if parameters.request_id is not None:
                _named(exchange, scope, parameters.request_id)
            accepted = await self._accept(exchange, raw, parameters)
        except ClientDisconnected:
            self._metrics.rejected("abort")
        except ContrailError as error:
            failure = report_error(error, exchange.request_id)
            self._metrics.rejected(metric_outcome(failure))
            await exchange.refuse(failure)
        except Exception:  # counted here, told and logged where it arrives
            self._metrics.rejected("error")
            raise
        else:
            watch = Watch(self._clock, self._metrics.of_model(accepted.model), arrived_ms)
            outcome = "error"
            try:
                outcome = await self._serve(exchange, accepted, watch)
            finally:
                watch.ended(outcome, accepted.usage())

    async def _accept(
        self, exchange: HttpExchange, raw: bytes, parameters: ChatRequest | CompletionRequest
    ) -> Accepted:
        accept, headers, request_id = self._intake.accept, exchange.headers, exchange.request_id
        if len(raw) <= self._settings.inline_bytes_max:
            return await accept(parameters, headers, request_id, len(raw), beside_prompt(self._body_type, raw))
        # a long one takes a while: its client may hang up meanwhile
        return await exchange.while_there(accept(parameters, headers, request_id, len(raw)))

    async def _serve(self, exchange: HttpExchange, accepted: Accepted, watch: Watch) -> str:
        """The request is answered, as far as there is a client; returns the outcome."""
        writer = self._writer_type(exchange.request_id, self._clock.wall_ms() // 1000, accepted)
        try:
            await exchange.while_there(self._answer(exchange, accepted, writer, watch))
        except ClientDisconnected:
            return "abort"
        except ContrailError as error:
            failure = report_error(error, exchange.request_id)
            if not exchange.started:
                await exchange.refuse(failure)
            elif accepted.stream:
                await exchange.close_stream(error_event(failure.body()))
            return metric_outcome(failure)
        return accepted.finish or "error"

    def _answer(
        self, exchange: HttpExchange, accepted: Accepted, writer: Writer, watch: Watch
    ) -> Coroutine[Any, Any, None]:
        """What answers it; to be awaited."""
        if accepted.plain and accepted.stream:
            return PlainStream(exchange, accepted.choices[0], writer, watch, self._settings.ping_s).run(self._backend)
        if accepted.plain:
            return self._whole_plain(exchange, accepted.choices[0], writer, watch)
        answering = Answering(self._backend, accepted, watch)
        if accepted.stream:
            return _stream(exchange, answering, writer, self._settings.ping_s)
        return _whole(exchange, answering, writer)

    async def _whole_plain(self, exchange: HttpExchange, choice: Choice, writer: Writer, watch: Watch) -> None:
        """The same as `_whole`, for one choice that is nothing but text."""
        transcript, texts = choice.transcript, list[str]()
        said = texts.append

        def take(output: Output) -> bool:
            watch.tokens()
            said(transcript.push(output))
            return transcript.finish is None

        await self._backend.run(writer.accepted.model, choice.request, take, choice.ended)
        if transcript.finish is None:
            raise broken_off()
        text, usage = "".join(texts), writer.accepted.usage()
        await exchange.answer(writer.plain(text, transcript.finish, transcript.stop_reason, usage))


async def _stream(exchange: HttpExchange, answering: Answering, writer: Writer, ping_s: float) -> None:
    """Each step leaves as it comes; the stream begins with the first one, or a ping."""

    def ping() -> None:
        exchange.ping(lambda: (b"" if exchange.started else writer.openings()) + PING)

    with Heartbeat(ping_s, lambda: exchange.pieces, ping):
        await _steps(exchange, answering, writer)
    await exchange.close_stream(writer.closing(answering.usage()))


async def _steps(exchange: HttpExchange, answering: Answering, writer: Writer) -> None:
    async with StreamScope(answering.steps()) as steps:
        async for step in steps:
            piece = await _written(step, writer)
            if not exchange.started:
                await exchange.open_stream()
                piece = writer.openings() + piece
            if piece:
                await exchange.write(piece)


async def _written(step: Step, writer: Writer) -> bytes:
    if len(step.logprobs) <= LOGPROBS_INLINE_MAX:
        return writer.step(step)
    return await asyncio.to_thread(writer.step, step)


async def _whole(exchange: HttpExchange, answering: Answering, writer: Writer) -> None:
    collected = [Collected(choice) for choice in writer.accepted.choices]
    async with StreamScope(answering.steps()) as steps:
        async for step in steps:
            collected[step.choice].add(step)
    if writer.shown.best_of > writer.shown.n:
        collected = best(collected, writer.shown.n)
    if sum(one.logprobs_count() for one in collected) <= LOGPROBS_INLINE_MAX:
        answer = writer.whole(collected, answering.usage())
    else:
        answer = await asyncio.to_thread(writer.whole, collected, answering.usage())
    await exchange.answer(answer)


def _named(exchange: HttpExchange, scope: Scope, request_id: str) -> None:
    """The request has the id that its body gives it, unless a header gave it one that can be used."""
    if exchange.headers.get(b"x-request-id", b"") != exchange.request_id.encode():
        exchange.request_id = scope["state"]["request_id"] = request_id


def generation_routes(
    backend: Backend,
    metrics: FrontendMetrics,
    settings: ApiSettings,
    clock: Clock,
    tokenizers: Tokenizers,
) -> dict[str, GenerationRoute]:
    """Path to the application that answers POST there; `tokenizers` may serve other routes too."""
    intake = Intake(backend, settings, tokenizers)
    parts = (intake, backend, metrics, settings, clock)
    return {
        "/v1/chat/completions": GenerationRoute(*parts, ChatRequest, ChatWriter),
        "/v1/completions": GenerationRoute(*parts, CompletionRequest, CompletionWriter),
    }
