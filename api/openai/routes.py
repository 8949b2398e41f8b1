"""OpenAI's routes. The two hot ones are plain ASGI callables inside the app; `/v1/models` is FastAPI's."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any, cast

import msgspec
import orjson
from fastapi import APIRouter, Response
from starlette.types import Receive, Scope, Send

from actors.metrics import FrontendMetrics, ModelMetrics
from api.openai.backend import Backend
from api.openai.errors import ApiError, answer_to
from api.openai.exchange import ClientGone, Exchange
from api.openai.intake import Accepted, Intake
from api.openai.settings import ApiSettings
from api.openai.sse import ChatWriter, CompletionWriter, Usage, Writer, error_event
from api.openai.types import ChatRequest, CompletionRequest
from core.clock import Clock
from core.errors import ContrailError
from core.generation import Output
from core.models import GenerationFailed, ModelCard

log = logging.getLogger(__name__)


class Watch:
    """The times of one request, told to the metrics as they come."""

    def __init__(self, clock: Clock, metrics: ModelMetrics, arrived_ms: int) -> None:
        self._clock = clock
        self._metrics = metrics
        self._arrived_ms = arrived_ms
        self._last_ms: int | None = None

    def tokens(self) -> None:
        """Tokens came now."""
        now_ms = self._clock.monotonic_ms()
        if self._last_ms is None:
            self._metrics.first_token_seconds.observe((now_ms - self._arrived_ms) / 1000)
        else:
            self._metrics.inter_token_seconds.observe((now_ms - self._last_ms) / 1000)
        self._last_ms = now_ms

    def ended(self, outcome: str, accepted: Accepted) -> None:
        """The request is over."""
        self._metrics.finished(outcome, (self._clock.monotonic_ms() - self._arrived_ms) / 1000)
        if self._last_ms is not None:
            self._metrics.prompt_tokens.inc(accepted.prompt_tokens)
            self._metrics.cached_tokens.inc(accepted.transcript.cached_tokens)
            self._metrics.completion_tokens.inc(accepted.transcript.completion_tokens)


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
        self._decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(body_type)
        self._writer_type = writer_type

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        arrived_ms = self._clock.monotonic_ms()
        exchange = Exchange(scope, receive, send)
        try:
            raw = await exchange.body(self._settings.body_bytes_max)
            accepted = await self._intake.accept(self._decoder, raw, exchange.headers, exchange.request_id)
        except ClientGone:
            self._metrics.rejected("abort")
        except ContrailError as error:
            failure = _shown(error, exchange)
            self._metrics.rejected(_outcome(failure))
            await exchange.refuse(failure)
        else:
            watch = Watch(self._clock, self._metrics.of_model(accepted.model), arrived_ms)
            outcome = "error"
            try:
                outcome = await self._serve(exchange, accepted, watch)
            finally:
                watch.ended(outcome, accepted)

    async def _serve(self, exchange: Exchange, accepted: Accepted, watch: Watch) -> str:
        """The request is answered, as far as there is a client; returns the outcome."""
        writer = self._writer_type(
            exchange.request_id,
            accepted.model,
            self._clock.wall_ms() // 1000,
            include_usage=accepted.include_usage,
        )
        answer = self._stream if accepted.stream else self._whole
        try:
            await exchange.while_there(answer(exchange, accepted, writer, watch))
        except ClientGone:
            return "abort"
        except ContrailError as error:
            failure = _shown(error, exchange)
            if exchange.started:
                await exchange.close_stream(error_event(failure.body()))
            else:
                await exchange.refuse(failure)
            return _outcome(failure)
        return accepted.transcript.finish or "error"

    async def _stream(self, exchange: Exchange, accepted: Accepted, writer: Writer, watch: Watch) -> None:
        transcript = accepted.transcript
        pending = writer.opening()
        async with aclosing(self._outputs(accepted)) as outputs:
            async for output in outputs:
                watch.tokens()
                text = transcript.push(output)
                if not exchange.started:
                    # only now is it known that a worker took it: errors before have a status of their own
                    await exchange.open_stream()
                if text:
                    pending += writer.text(text)
                if transcript.finish is not None:
                    break
                if pending:
                    await exchange.write(pending)
                    pending = b""
        await exchange.close_stream(pending + writer.closing(_finish(accepted), _usage(accepted)))

    async def _whole(self, exchange: Exchange, accepted: Accepted, writer: Writer, watch: Watch) -> None:
        transcript = accepted.transcript
        pieces: list[str] = []
        async with aclosing(self._outputs(accepted)) as outputs:
            async for output in outputs:
                watch.tokens()
                pieces.append(transcript.push(output))
                if transcript.finish is not None:
                    break
        finish = _finish(accepted)
        await exchange.answer(writer.whole("".join(pieces), finish, _usage(accepted)))

    def _outputs(self, accepted: Accepted) -> AsyncGenerator[Output, None]:
        transcript = accepted.transcript
        outputs: AsyncIterator[Output] = self._backend.generate(
            accepted.model, accepted.request, lambda: transcript.finish
        )
        # the backend's contract: the iterator has aclose(), as generators do
        return cast(AsyncGenerator[Output, None], outputs)


def _finish(accepted: Accepted) -> str:
    if accepted.transcript.finish is None:
        raise GenerationFailed("the worker's stream ended before the generation did")
    return accepted.transcript.finish


def _usage(accepted: Accepted) -> Usage:
    transcript = accepted.transcript
    return Usage(accepted.prompt_tokens, transcript.completion_tokens, transcript.cached_tokens)


def _shown(error: ContrailError, exchange: Exchange) -> ApiError:
    """What the client sees of it; what is not the client's fault is logged."""
    failure = answer_to(error)
    if failure.status >= 500:
        log.warning("answered %d: %s", failure.status, error, extra={"request_id": exchange.request_id})
    return failure


def _outcome(failure: ApiError) -> str:
    if failure.status == 503:
        return "unavailable"
    return "error" if failure.status >= 500 else "rejected"


def model_routes(backend: Backend) -> APIRouter:
    """`/v1/models` and `/v1/models/{id}`."""
    router = APIRouter()

    @router.get("/v1/models")
    async def list_models() -> Response:
        return _json({"object": "list", "data": [_model(card) for card in backend.models()]})

    @router.get("/v1/models/{model:path}")
    async def show_model(model: str) -> Response:
        return _json(_model(backend.card(model)))

    return router


def _model(card: ModelCard) -> dict[str, Any]:
    return {
        "id": card.name,
        "object": "model",
        "created": card.created_s,
        "owned_by": "contrail",
        "engine": card.engine,
        "context_max": card.context_max,
        "workers": card.workers,
    }


def _json(value: Any) -> Response:
    return Response(orjson.dumps(value), media_type="application/json")


def generation_routes(
    backend: Backend, metrics: FrontendMetrics, settings: ApiSettings, clock: Clock
) -> dict[str, GenerationRoute]:
    """Path to the application that answers POST there."""
    intake = Intake(backend, settings)
    parts = (intake, backend, metrics, settings, clock)
    return {
        "/v1/chat/completions": GenerationRoute(*parts, ChatRequest, ChatWriter),
        "/v1/completions": GenerationRoute(*parts, CompletionRequest, CompletionWriter),
    }
