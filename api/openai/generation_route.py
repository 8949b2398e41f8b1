"""Routes that generate: plain ASGI applications for POST, one for each API over chats and completions.

Another API's body is translated into a chat, and the answer is encoded in that API's own words. Behind the translation
everything is the chat's: templates, tools, reasoning, formats, bounds.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

import msgspec
from starlette.types import Receive, Scope, Send

from actors.metrics.frontend_metrics import FrontendMetrics
from api.openai.generation import Generation
from api.openai.openai_encoder import ChatEncoder, CompletionEncoder
from api.openai.request.body_reader import BodyIntake, BodyReader
from api.openai.request.preprocessor import PreparedRequest, Preprocessor
from api.openai.request.request_metadata import parse_headers
from api.openai.response_encoder import ResponseEncoder
from api.openai.types.backend import Backend
from api.openai.types.request_types import ChatRequest, CompletionRequest
from api.parsers.tool_choice import with_tools
from api.server.answer_delivery import AnswerDelivery
from api.server.caller import effective_tenant
from api.server.errors import ApiError, metric_outcome, report_error
from api.server.exchange import ClientDisconnected, HttpExchange
from api.server.limits import ApiSettings
from api.tokenizer.tokenizer_pool import SMALL_BYTES_MAX
from core.clock import Clock
from core.errors import ContrailError

Body = TypeVar("Body", bound=msgspec.Struct)
LEFT_OUT_HEADER = b"x-contrail-left-out-tools"
LEFT_OUT_MAX = 16
"""Names in it; the last one counts those beyond."""
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ApiAdapter(Generic[Body]):
    """One API's bodies, answers and errors."""

    body_type: type[Body]
    to_request: Callable[[Body], ChatRequest | CompletionRequest]
    """The chat or completion that is asked for; ApiError for what cannot be had here."""
    encoder: Callable[[Body, PreparedRequest, str, Clock], ResponseEncoder]
    """A new one for the answer to this request id."""
    is_light: bool = False
    """True if `to_request` takes a few microseconds also of a long body: no thread is asked for it."""
    to_error: Callable[[ApiError, str], ApiError] = lambda error, _request_id: error
    """An error of this request id in that API's words and shape."""
    unseal_reasoning: Callable[[Body, str | None, str], Body] | None = None
    """The body with what an earlier answer sealed for this tenant; the request's id is for the log."""
    omitted_tools: Callable[[Body], Mapping[str, str]] | None = None
    """The body's tools that the model is not given: names for the client, each with its type for the log."""
    refused_stream: Callable[[Body, ApiError, str, Clock], bytes | None] | None = None
    """The whole stream that tells of an error before the first token; None: the error has a status of its own."""


CHAT = ApiAdapter(
    ChatRequest,
    with_tools,
    lambda _body, prepared, request_id, clock: ChatEncoder(request_id, clock.wall_ms() // 1000, prepared),
    is_light=True,
)
COMPLETION = ApiAdapter(
    CompletionRequest,
    lambda body: body,
    lambda _body, prepared, request_id, clock: CompletionEncoder(request_id, clock.wall_ms() // 1000, prepared),
    is_light=True,
)


class GenerationRoute(Generic[Body]):
    """One API's route that generates: an ASGI application for POST."""

    def __init__(
        self,
        preprocessor: Preprocessor,
        backend: Backend,
        metrics: FrontendMetrics,
        settings: ApiSettings,
        clock: Clock,
        intake: BodyIntake,
        adapter: ApiAdapter[Body],
    ) -> None:
        self._preprocessor = preprocessor
        self._backend = backend
        self._metrics = metrics
        self._settings = settings
        self._clock = clock
        self._intake = intake
        self._reader = BodyReader(adapter.body_type, intake)
        self._adapter = adapter
        self._delivery = AnswerDelivery()

    async def __call__(self, scope: Scope, _receive: Receive, _send: Send) -> None:
        arrived_ms = self._clock.monotonic_ms()
        exchange = HttpExchange.of(scope)
        exchange.intake.begin()
        try:
            generation = await self._accept(exchange, arrived_ms)
        except ClientDisconnected:
            self._metrics.rejected("abort")
        except Exception:  # counted here, told and logged where it arrives
            self._metrics.rejected("error")
            raise
        else:
            if generation is None:
                return
            outcome = "error"
            try:
                outcome = await self._serve(generation)
            finally:
                generation.count(outcome)

    async def _accept(self, exchange: HttpExchange, arrived_ms: int) -> Generation | None:
        """The generation that the body asks for, without the body; None if it was refused."""
        body: Body | None = None
        with self._intake.lease() as lease:
            try:
                body, size = await self._reader.read(exchange, lease)
                exchange.asks_for(getattr(body, "model", ""))
                if size <= SMALL_BYTES_MAX or self._adapter.is_light:
                    body, request = self._translated(body, exchange)
                else:
                    body, request = await self._translate_large(body, exchange, size)
                self._name_request(exchange, request)
                self._report_omitted_tools(body, exchange)
                prepared = await self._prepare(exchange, size, request)
                encoder = self._adapter.encoder(body, prepared, exchange.request_id, self._clock)
                metrics = self._metrics.of_model(prepared.model)
                return Generation(exchange, prepared, encoder, self._clock, metrics, arrived_ms, self._settings.ping_s)
            except ContrailError as error:
                await self._refuse(exchange, body, error)
                return None

    def _translated(
        self, body: Body, exchange: HttpExchange, tenant: str | None = None
    ) -> tuple[Body, ChatRequest | CompletionRequest]:
        """The body with its reasoning unsealed, and the chat or completion that it asks for. `tenant` is that of the
        headers, if they were read."""
        if (unseal := self._adapter.unseal_reasoning) is not None:
            of = effective_tenant(parse_headers(exchange.headers).tenant) if tenant is None else tenant
            body = unseal(body, of, exchange.request_id)
        return body, self._adapter.to_request(body)

    async def _translate_large(
        self, body: Body, exchange: HttpExchange, size: int
    ) -> tuple[Body, ChatRequest | CompletionRequest]:
        """The same in a thread, while the client is there."""
        given = parse_headers(exchange.headers).tenant
        of = effective_tenant(given)  # here: the thread does not know the caller
        work = self._preprocessor.translate(lambda: self._translated(body, exchange, of), size, given)
        return await exchange.run_until_disconnect(work)

    async def _prepare(
        self, exchange: HttpExchange, size: int, request: ChatRequest | CompletionRequest
    ) -> PreparedRequest:
        preparing = self._preprocessor.prepare(request, exchange.headers, exchange.request_id, size)
        if size <= self._settings.inline_bytes_max:
            return await preparing
        # a long one takes a while: its client may hang up meanwhile
        return await exchange.run_until_disconnect(preparing)

    async def _serve(self, generation: Generation) -> str:
        """The request is answered, as far as there is a client; returns the outcome."""
        exchange, prepared = generation.exchange, generation.prepared
        try:
            await exchange.run_until_disconnect(generation.run(self._backend))
        except ClientDisconnected:
            return "abort"
        except ContrailError as error:
            return await self._break_off(generation, error)
        generation.follow_delivery(self._delivery, self._backend)
        return prepared.finish or "error"

    async def _break_off(self, generation: Generation, error: ContrailError) -> str:
        """The client knows of the error; returns the outcome."""
        exchange, failure = generation.exchange, self._failure(error, generation.exchange)
        if not exchange.started:
            await exchange.refuse(failure)
        elif generation.prepared.stream:
            await exchange.close_stream(generation.encoder.encode_error(failure))
        return metric_outcome(failure)

    async def _refuse(self, exchange: HttpExchange, body: Body | None, error: ContrailError) -> None:
        """The error is in no variable of a frame that it holds: the two would keep the body until a collection."""
        failure = self._failure(error, exchange)
        self._metrics.rejected(metric_outcome(failure))
        stream = None
        if body is not None and self._adapter.refused_stream is not None:
            stream = self._adapter.refused_stream(body, failure, exchange.request_id, self._clock)
        if stream is None:
            await exchange.refuse(failure)
            return
        await exchange.close_stream(stream)

    def _name_request(self, exchange: HttpExchange, request: ChatRequest | CompletionRequest) -> None:
        """The request has the id that its body gives it, unless a header gave it one that can be used."""
        named = request.request_id
        if named is not None and exchange.headers.get(b"x-request-id", b"") != exchange.request_id.encode():
            exchange.rename(named)

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
