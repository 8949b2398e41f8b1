"""Other ways to ask for a chat: bodies that are translated into one, and answers told in that API's own words.

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
from api.openai.answers.answering import Answering
from api.openai.answers.said import Step
from api.openai.answers.watch import Watch
from api.openai.backend import Backend
from api.openai.heartbeat import Heartbeat
from api.openai.requests.accepted import Accepted
from api.openai.requests.headers import hints_of
from api.openai.requests.intake import Intake
from api.openai.requests.types import ChatRequest
from api.openai.requests.validation import decode
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


class Teller(Protocol):
    """Tells one answer: pieces of a stream as bytes, or all of it at its end."""

    def opening(self) -> bytes:
        """What a stream begins with, once the first tokens are there."""

    def step(self, step: Step) -> bytes:
        """The events of one step; kept for the whole answer too."""

    def ping(self) -> bytes:
        """What a stream has in a long pause."""

    def closing(self) -> bytes:
        """What a stream ends with."""

    def broken(self, error: ApiError) -> bytes:
        """What a stream ends with that cannot go on."""

    def whole(self) -> bytes:
        """The answer that is not streamed, of all steps that were told."""


@dataclass(frozen=True, slots=True)
class Dialect(Generic[Body]):
    """One API's bodies, answers and errors."""

    body_type: type[Body]
    chat_of: Callable[[Body], ChatRequest]
    """The chat that is asked for; ApiError for what cannot be had here."""
    teller: Callable[[Body, Accepted, str, Clock], Teller]
    """A new one for the answer to this request id."""
    told: Callable[[ApiError, str], ApiError]
    """An error of this request id in that API's words and shape."""
    opened: Callable[[Body, str | None, str], Body] | None = None
    """The body with what an earlier answer sealed for this tenant; the request's id is for the log."""
    left_out: Callable[[Body], Mapping[str, str]] | None = None
    """What of the body's tools the model is not given: names for the client, each with its type for the log."""
    refused_stream: Callable[[Body, ApiError, str, Clock], bytes | None] | None = None
    """The whole stream that tells of an error before the first token; None: the error has a status of its own."""


class DialectRoute(Generic[Body]):
    """A route that generates in another dialect: an ASGI application for POST."""

    def __init__(
        self,
        intake: Intake,
        backend: Backend,
        metrics: FrontendMetrics,
        settings: ApiSettings,
        clock: Clock,
        dialect: Dialect[Body],
    ) -> None:
        self._intake = intake
        self._backend = backend
        self._metrics = metrics
        self._settings = settings
        self._clock = clock
        self._decoder = msgspec.json.Decoder(dialect.body_type)
        self._dialect = dialect

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        arrived_ms = self._clock.monotonic_ms()
        exchange = HttpExchange(scope, receive, send)
        asked: Body | None = None
        try:
            raw = await exchange.body(self._settings.body_bytes_max)
            await self._intake.turn(len(raw))
            asked = decode(self._decoder, raw)
            if self._dialect.opened is not None:
                tenant = effective_tenant(hints_of(exchange.headers).tenant)
                asked = self._dialect.opened(asked, tenant, exchange.request_id)
            chat = self._dialect.chat_of(asked)
            exchange.asks_for(chat.model)
            self._tell_left_out(asked, exchange)
            accepting = self._intake.accept(chat, exchange.headers, exchange.request_id, len(raw))
            accepted = await exchange.while_there(accepting)
        except ClientDisconnected:
            self._metrics.rejected("abort")
        except ContrailError as error:
            failure = self._failure(error, exchange)
            self._metrics.rejected(metric_outcome(failure))
            await self._refuse(exchange, asked, failure)
        except Exception:  # counted here, told and logged where it arrives
            self._metrics.rejected("error")
            raise
        else:
            watch = Watch(self._clock, self._metrics.of_model(accepted.model), arrived_ms)
            teller = self._dialect.teller(asked, accepted, exchange.request_id, self._clock)
            outcome = "error"
            try:
                outcome = await self._serve(exchange, accepted, teller, watch)
            finally:
                watch.ended(outcome, accepted.usage())

    async def _refuse(self, exchange: HttpExchange, asked: Body | None, failure: ApiError) -> None:
        stream = None
        if asked is not None and self._dialect.refused_stream is not None:
            stream = self._dialect.refused_stream(asked, failure, exchange.request_id, self._clock)
        if stream is None:
            await exchange.refuse(failure)
            return
        await exchange.open_stream()
        await exchange.close_stream(stream)

    def _tell_left_out(self, asked: Body, exchange: HttpExchange) -> None:
        left_out = self._dialect.left_out(asked) if self._dialect.left_out is not None else {}
        if left_out:
            names = list(left_out)
            if len(names) > LEFT_OUT_MAX:
                names[LEFT_OUT_MAX - 1 :] = [f"{len(names) - LEFT_OUT_MAX + 1} more"]
            exchange.extra_headers.append((LEFT_OUT_HEADER, ", ".join(names).encode()))
            kinds = ", ".join(sorted(set(left_out.values())))
            log.info("left out what cannot run here: %s", kinds, extra={"request_id": exchange.request_id})

    def _failure(self, error: ContrailError, exchange: HttpExchange) -> ApiError:
        return self._dialect.told(report_error(error, exchange.request_id), exchange.request_id)

    async def _serve(self, exchange: HttpExchange, accepted: Accepted, teller: Teller, watch: Watch) -> str:
        """The request is answered, as far as there is a client; returns the outcome."""
        steps = Answering(self._backend, accepted, watch).steps()
        streamed = accepted.stream
        answer = (
            _stream(exchange, teller, steps, self._settings.ping_s) if streamed else _whole(exchange, teller, steps)
        )
        try:
            await exchange.while_there(answer)
        except ClientDisconnected:
            return "abort"
        except ContrailError as error:
            failure = self._failure(error, exchange)
            if not exchange.started:
                await exchange.refuse(failure)
            elif accepted.stream:
                await exchange.close_stream(teller.broken(failure))
            return metric_outcome(failure)
        return accepted.finish or "error"


async def _stream(exchange: HttpExchange, teller: Teller, steps: AsyncGenerator[Step, None], ping_s: float) -> None:
    """Each step leaves as it comes; the stream begins with the first one, or a ping."""

    def ping() -> None:
        exchange.ping(lambda: (b"" if exchange.started else teller.opening()) + teller.ping())

    with Heartbeat(ping_s, lambda: exchange.pieces, ping):
        pending = await _steps(exchange, teller, steps)
    await exchange.close_stream(pending + teller.closing())


async def _steps(exchange: HttpExchange, teller: Teller, steps: AsyncGenerator[Step, None]) -> bytes:
    """All steps have been told; what of them has not left yet."""
    pending = b""
    async with StreamScope(steps):
        async for step in steps:
            if not exchange.started:
                # only now is it known that a worker took it: errors before have a status of their own
                await exchange.open_stream()
                pending = teller.opening()
            pending += teller.step(step)
            if step.finish is None and pending:
                await exchange.write(pending)
                pending = b""
    return pending


async def _whole(exchange: HttpExchange, teller: Teller, steps: AsyncGenerator[Step, None]) -> None:
    async with StreamScope(steps):
        async for step in steps:
            teller.step(step)
    await exchange.answer(teller.whole())
