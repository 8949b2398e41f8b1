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
from api.openai.chat_encoder import ChatEncoder
from api.openai.completion_encoder import CompletionEncoder
from api.openai.generation import GenerationRun, RequestTimer, TextStream, incomplete_stream
from api.openai.heartbeat import Heartbeat
from api.openai.request.choice import Choice
from api.openai.request.legacy_functions import with_tools
from api.openai.request.plan_cache import body_without_prompt
from api.openai.request.prepared_request import PreparedRequest
from api.openai.request.preprocessor import Preprocessor
from api.openai.request.validation import decode
from api.openai.response_encoder import PING, CollectedChoice, ResponseEncoder, best_choices, error_event
from api.openai.types.backend import Backend
from api.openai.types.deltas import ChoiceDelta
from api.openai.types.request_types import ChatRequest, CompletionRequest
from api.parsers.loaded_models import LoadedModels
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
        preprocessor: Preprocessor,
        backend: Backend,
        metrics: FrontendMetrics,
        settings: ApiSettings,
        clock: Clock,
        body_type: type[ChatRequest | CompletionRequest],
        encoder_type: type[ResponseEncoder],
    ) -> None:
        self._preprocessor = preprocessor
        self._backend = backend
        self._metrics = metrics
        self._settings = settings
        self._clock = clock
        self._body_type = body_type
        self._decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(body_type)
        self._encoder_type = encoder_type

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        arrived_ms = self._clock.monotonic_ms()
        exchange = HttpExchange(scope, receive, send)
        try:
            raw = await exchange.body(self._settings.body_bytes_max)
            await self._preprocessor.turn(len(raw))
            parameters = decode(self._decoder, raw)
            exchange.asks_for(parameters.model)
            parameters = with_tools(parameters)
            if parameters.request_id is not None:
                _named(exchange, scope, parameters.request_id)
            prepared = await self._prepare(exchange, raw, parameters)
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
            timer = RequestTimer(self._clock, self._metrics.of_model(prepared.model), arrived_ms)
            outcome = "error"
            try:
                outcome = await self._serve(exchange, prepared, timer)
            finally:
                timer.ended(outcome, prepared.usage())

    async def _prepare(
        self, exchange: HttpExchange, raw: bytes, parameters: ChatRequest | CompletionRequest
    ) -> PreparedRequest:
        prepare, headers, request_id = self._preprocessor.prepare, exchange.headers, exchange.request_id
        if len(raw) <= self._settings.inline_bytes_max:
            return await prepare(parameters, headers, request_id, len(raw), body_without_prompt(self._body_type, raw))
        # a long one takes a while: its client may hang up meanwhile
        return await exchange.while_there(prepare(parameters, headers, request_id, len(raw)))

    async def _serve(self, exchange: HttpExchange, prepared: PreparedRequest, timer: RequestTimer) -> str:
        """The request is answered, as far as there is a client; returns the outcome."""
        encoder = self._encoder_type(exchange.request_id, self._clock.wall_ms() // 1000, prepared)
        try:
            await exchange.while_there(self._answer(exchange, prepared, encoder, timer))
        except ClientDisconnected:
            return "abort"
        except ContrailError as error:
            failure = report_error(error, exchange.request_id)
            if not exchange.started:
                await exchange.refuse(failure)
            elif prepared.stream:
                await exchange.close_stream(error_event(failure.body()))
            return metric_outcome(failure)
        return prepared.finish or "error"

    def _answer(
        self, exchange: HttpExchange, prepared: PreparedRequest, encoder: ResponseEncoder, timer: RequestTimer
    ) -> Coroutine[Any, Any, None]:
        """What answers it; to be awaited."""
        if prepared.plain and prepared.stream:
            return TextStream(exchange, prepared.choices[0], encoder, timer, self._settings.ping_s).run(self._backend)
        if prepared.plain:
            return self._whole_plain(exchange, prepared.choices[0], encoder, timer)
        answering = GenerationRun(self._backend, prepared, timer, exchange)
        if prepared.stream:
            return _stream(exchange, answering, encoder, self._settings.ping_s)
        return _whole(exchange, answering, encoder)

    async def _whole_plain(
        self, exchange: HttpExchange, choice: Choice, encoder: ResponseEncoder, timer: RequestTimer
    ) -> None:
        """The same as `_whole`, for one choice that is nothing but text."""
        transcript, consumer = choice.transcript, WholeText(exchange, choice, timer)
        await self._backend.run(encoder.prepared.model, choice.request, consumer)
        if transcript.finish is None:
            raise incomplete_stream()
        text, usage = "".join(consumer.texts), encoder.prepared.usage()
        await exchange.answer(encoder.plain(text, transcript.finish, transcript.stop_reason, usage))


class WholeText:
    """Collects the text of one choice that is nothing but text."""

    def __init__(self, exchange: HttpExchange, choice: Choice, timer: RequestTimer) -> None:
        self.texts: list[str] = []
        self.outcome = choice.outcome
        self.on_routed = exchange.on_routed
        self._transcript = choice.transcript
        self._timer = timer

    def __repr__(self) -> str:
        return f"<WholeText of {self._transcript!r}>"

    def on_output(self, output: Output) -> bool:
        """The output's text is kept; whether there is more to come."""
        self._timer.tokens()
        self.texts.append(self._transcript.push(output))
        return self._transcript.finish is None


async def _stream(exchange: HttpExchange, answering: GenerationRun, encoder: ResponseEncoder, ping_s: float) -> None:
    """Each delta leaves as it comes; the stream begins with the first one, or a ping."""

    def ping() -> None:
        exchange.ping(lambda: (b"" if exchange.started else encoder.openings()) + PING)

    with Heartbeat(ping_s, lambda: exchange.pieces, ping):
        await _write_deltas(exchange, answering, encoder)
    await exchange.close_stream(encoder.closing(answering.usage()))


async def _write_deltas(exchange: HttpExchange, answering: GenerationRun, encoder: ResponseEncoder) -> None:
    async with StreamScope(answering.deltas()) as deltas:
        async for choice_delta in deltas:
            piece = await _written(choice_delta, encoder)
            if not exchange.started:
                await exchange.open_stream()
                piece = encoder.openings() + piece
            if piece:
                await exchange.write(piece)


async def _written(choice_delta: ChoiceDelta, encoder: ResponseEncoder) -> bytes:
    if len(choice_delta.logprobs) <= LOGPROBS_INLINE_MAX:
        return encoder.encode_delta(choice_delta)
    return await asyncio.to_thread(encoder.encode_delta, choice_delta)


async def _whole(exchange: HttpExchange, answering: GenerationRun, encoder: ResponseEncoder) -> None:
    collected = [CollectedChoice(choice) for choice in encoder.prepared.choices]
    async with StreamScope(answering.deltas()) as deltas:
        async for choice_delta in deltas:
            collected[choice_delta.choice].add(choice_delta)
    if encoder.options.best_of > encoder.options.n:
        collected = best_choices(collected, encoder.options.n)
    if sum(one.logprobs_count() for one in collected) <= LOGPROBS_INLINE_MAX:
        answer = encoder.whole(collected, answering.usage())
    else:
        answer = await asyncio.to_thread(encoder.whole, collected, answering.usage())
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
    models: LoadedModels,
) -> dict[str, GenerationRoute]:
    """Path to the application that answers POST there; `models` may serve other routes too."""
    preprocessor = Preprocessor(backend, settings, models)
    parts = (preprocessor, backend, metrics, settings, clock)
    return {
        "/v1/chat/completions": GenerationRoute(*parts, ChatRequest, ChatEncoder),
        "/v1/completions": GenerationRoute(*parts, CompletionRequest, CompletionEncoder),
    }
