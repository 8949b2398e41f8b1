"""Routes of other APIs over chats: a body is translated into a chat, and the answer is encoded in that API's own words.

Behind the translation everything is the chat's: templates, tools, reasoning, formats, bounds.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

import msgspec
from starlette.types import Receive, Scope, Send

from actors.metrics.frontend_metrics import FrontendMetrics
from actors.transport.output_stream import StreamScope
from api.config.api_settings import ApiSettings
from api.openai.generation import GenerationRun, RequestTimer
from api.openai.heartbeat import Heartbeat
from api.openai.request.prepared_request import PreparedRequest
from api.openai.request.preprocessor import Preprocessor
from api.openai.request.request_headers import parse_headers
from api.openai.request.validation import decode
from api.openai.types.backend import Backend
from api.openai.types.deltas import ChoiceDelta
from api.openai.types.request_types import ChatRequest
from api.server.caller import effective_tenant
from api.server.errors import ApiError, metric_outcome, report_error
from api.server.exchange import ClientDisconnected, HttpExchange
from core.clock import Clock
from core.errors import ContrailError

Body = TypeVar("Body", bound=msgspec.Struct)
LEFT_OUT_HEADER = b"x-contrail-left-out-tools"
LEFT_OUT_MAX = 16
"""Names in it; the last one counts those beyond."""
log = logging.getLogger(__name__)


class EventEncoder(Protocol):
    """Encodes one answer: pieces of a stream as bytes, or all of it at its end."""

    def opening(self) -> bytes:
        """What a stream begins with, once the first tokens are there."""

    def encode_delta(self, choice_delta: ChoiceDelta) -> bytes:
        """The events of one delta; kept for the whole answer too."""

    def ping(self) -> bytes:
        """What a stream has in a long pause."""

    def closing(self) -> bytes:
        """What a stream ends with."""

    def broken(self, error: ApiError) -> bytes:
        """What a stream ends with that cannot go on."""

    def whole(self) -> bytes:
        """The answer that is not streamed, of all deltas that were encoded."""


@dataclass(frozen=True, slots=True)
class ApiAdapter(Generic[Body]):
    """One API's bodies, answers and errors."""

    body_type: type[Body]
    to_chat_request: Callable[[Body], ChatRequest]
    """The chat that is asked for; ApiError for what cannot be had here."""
    encoder: Callable[[Body, PreparedRequest, str, Clock], EventEncoder]
    """A new one for the answer to this request id."""
    to_error: Callable[[ApiError, str], ApiError]
    """An error of this request id in that API's words and shape."""
    unseal_reasoning: Callable[[Body, str | None, str], Body] | None = None
    """The body with what an earlier answer sealed for this tenant; the request's id is for the log."""
    omitted_tools: Callable[[Body], Mapping[str, str]] | None = None
    """What of the body's tools the model is not given: names for the client, each with its type for the log."""
    refused_stream: Callable[[Body, ApiError, str, Clock], bytes | None] | None = None
    """The whole stream that tells of an error before the first token; None: the error has a status of its own."""


class AdapterRoute(Generic[Body]):
    """A route that generates for another API: an ASGI application for POST."""

    def __init__(
        self,
        preprocessor: Preprocessor,
        backend: Backend,
        metrics: FrontendMetrics,
        settings: ApiSettings,
        clock: Clock,
        adapter: ApiAdapter[Body],
    ) -> None:
        self._preprocessor = preprocessor
        self._backend = backend
        self._metrics = metrics
        self._settings = settings
        self._clock = clock
        self._decoder = msgspec.json.Decoder(adapter.body_type)
        self._adapter = adapter

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        arrived_ms = self._clock.monotonic_ms()
        exchange = HttpExchange(scope, receive, send)
        body: Body | None = None
        try:
            raw = await exchange.body(self._settings.body_bytes_max)
            await self._preprocessor.turn(len(raw))
            body = decode(self._decoder, raw)
            if self._adapter.unseal_reasoning is not None:
                tenant = effective_tenant(parse_headers(exchange.headers).tenant)
                body = self._adapter.unseal_reasoning(body, tenant, exchange.request_id)
            chat = self._adapter.to_chat_request(body)
            exchange.asks_for(chat.model)
            self._report_omitted_tools(body, exchange)
            preparing = self._preprocessor.prepare(chat, exchange.headers, exchange.request_id, len(raw))
            prepared = await exchange.while_there(preparing)
        except ClientDisconnected:
            self._metrics.rejected("abort")
        except ContrailError as error:
            failure = self._failure(error, exchange)
            self._metrics.rejected(metric_outcome(failure))
            await self._refuse(exchange, body, failure)
        except Exception:  # counted here, told and logged where it arrives
            self._metrics.rejected("error")
            raise
        else:
            timer = RequestTimer(self._clock, self._metrics.of_model(prepared.model), arrived_ms)
            encoder = self._adapter.encoder(body, prepared, exchange.request_id, self._clock)
            outcome = "error"
            try:
                outcome = await self._serve(exchange, prepared, encoder, timer)
            finally:
                timer.ended(outcome, prepared.usage())

    async def _refuse(self, exchange: HttpExchange, body: Body | None, failure: ApiError) -> None:
        stream = None
        if body is not None and self._adapter.refused_stream is not None:
            stream = self._adapter.refused_stream(body, failure, exchange.request_id, self._clock)
        if stream is None:
            await exchange.refuse(failure)
            return
        await exchange.open_stream()
        await exchange.close_stream(stream)

    def _report_omitted_tools(self, body: Body, exchange: HttpExchange) -> None:
        omitted_tools = self._adapter.omitted_tools(body) if self._adapter.omitted_tools is not None else {}
        if omitted_tools:
            names = list(omitted_tools)
            if len(names) > LEFT_OUT_MAX:
                names[LEFT_OUT_MAX - 1 :] = [f"{len(names) - LEFT_OUT_MAX + 1} more"]
            exchange.extra_headers.append((LEFT_OUT_HEADER, ", ".join(names).encode()))
            kinds = ", ".join(sorted(set(omitted_tools.values())))
            log.info("left out what cannot run here: %s", kinds, extra={"request_id": exchange.request_id})

    def _failure(self, error: ContrailError, exchange: HttpExchange) -> ApiError:
        return self._adapter.to_error(report_error(error, exchange.request_id), exchange.request_id)

    async def _serve(
        self, exchange: HttpExchange, prepared: PreparedRequest, encoder: EventEncoder, timer: RequestTimer
    ) -> str:
        """The request is answered, as far as there is a client; returns the outcome."""
        deltas = GenerationRun(self._backend, prepared, timer, exchange).deltas()
        streamed = prepared.stream
        answer = (
            _stream(exchange, encoder, deltas, self._settings.ping_s) if streamed else _whole(exchange, encoder, deltas)
        )
        try:
            await exchange.while_there(answer)
        except ClientDisconnected:
            return "abort"
        except ContrailError as error:
            failure = self._failure(error, exchange)
            if not exchange.started:
                await exchange.refuse(failure)
            elif prepared.stream:
                await exchange.close_stream(encoder.broken(failure))
            return metric_outcome(failure)
        return prepared.finish or "error"


async def _stream(
    exchange: HttpExchange, encoder: EventEncoder, deltas: AsyncGenerator[ChoiceDelta, None], ping_s: float
) -> None:
    """Each delta leaves as it comes; the stream begins with the first one, or a ping."""

    def ping() -> None:
        exchange.ping(lambda: (b"" if exchange.started else encoder.opening()) + encoder.ping())

    with Heartbeat(ping_s, lambda: exchange.pieces, ping):
        pending = await _write_deltas(exchange, encoder, deltas)
    await exchange.close_stream(pending + encoder.closing())


async def _write_deltas(
    exchange: HttpExchange, encoder: EventEncoder, deltas: AsyncGenerator[ChoiceDelta, None]
) -> bytes:
    """All deltas have been encoded; what of them has not left yet."""
    pending = b""
    async with StreamScope(deltas):
        async for choice_delta in deltas:
            if not exchange.started:
                # only now is it known that a worker took it: errors before have a status of their own
                await exchange.open_stream()
                pending = encoder.opening()
            pending += encoder.encode_delta(choice_delta)
            if choice_delta.finish is None and pending:
                await exchange.write(pending)
                pending = b""
    return pending


async def _whole(exchange: HttpExchange, encoder: EventEncoder, deltas: AsyncGenerator[ChoiceDelta, None]) -> None:
    async with StreamScope(deltas):
        async for choice_delta in deltas:
            encoder.encode_delta(choice_delta)
    await exchange.answer(encoder.whole())
