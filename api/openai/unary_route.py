"""Routes that answer whole and generate nothing: JSON in, JSON out, counted, given up when the client disconnects."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

import msgspec
from starlette.types import Receive, Scope, Send

from actors.metrics.frontend_metrics import FrontendMetrics
from api.openai.request.validation import decode
from api.server.errors import ApiError, metric_outcome, report_error
from api.server.exchange import ClientDisconnected, HttpExchange
from api.server.limits import ApiSettings
from core.clock import Clock
from core.errors import ContrailError

ANSWERED = "answered"
"""The outcome of a unary request in the metrics; other outcomes are those of generations."""

Body = TypeVar("Body", bound=msgspec.Struct)


class UnaryRequest:
    """One request of such a route, and what is counted of it."""

    def __init__(self, exchange: HttpExchange) -> None:
        self.headers = exchange.headers
        self.request_id = exchange.request_id
        self.on_routed = exchange.on_routed
        self.size = 0
        """Bytes of the body."""
        self.model = ""
        """Set once its workers are asked: only names of models that are served may stand here."""
        self.prompt_tokens = 0
        self.cached_tokens = 0

    def __repr__(self) -> str:
        return f"<UnaryRequest {self.request_id}, {self.size} bytes>"


class UnaryRoute(Generic[Body]):
    """One route of this kind: an ASGI application for POST."""

    def __init__(
        self,
        metrics: FrontendMetrics,
        settings: ApiSettings,
        clock: Clock,
        body_type: type[Body],
        work: Callable[[Body, UnaryRequest], Awaitable[bytes]],
        to_error: Callable[[ApiError, str], ApiError] = lambda error, _request_id: error,
    ) -> None:
        """`to_error` puts an error into the words of another API."""
        self._metrics = metrics
        self._settings = settings
        self._clock = clock
        self._decoder = msgspec.json.Decoder(body_type)
        self._work = work
        self._to_error = to_error

    async def __call__(self, scope: Scope, _receive: Receive, _send: Send) -> None:
        arrived_ms = self._clock.monotonic_ms()
        exchange = HttpExchange.of(scope)
        unary_request = UnaryRequest(exchange)
        outcome = "error"
        try:
            raw = await exchange.read_body(self._settings.body_bytes_max)
            unary_request.size = len(raw)
            await exchange.run_until_disconnect(self._answer(exchange, raw, unary_request))
            outcome = ANSWERED
        except ClientDisconnected:
            outcome = "abort"
        except ContrailError as error:
            failure = report_error(error, exchange.request_id)
            outcome = metric_outcome(failure)
            if not exchange.started:
                await exchange.refuse(self._to_error(failure, exchange.request_id))
        finally:
            self._count(unary_request, outcome, self._clock.monotonic_ms() - arrived_ms)

    async def _answer(self, exchange: HttpExchange, raw: bytes, unary_request: UnaryRequest) -> None:
        body = decode(self._decoder, raw)
        exchange.asks_for(getattr(body, "model", None) or "")
        await exchange.answer(await self._work(body, unary_request))

    def _count(self, unary_request: UnaryRequest, outcome: str, took_ms: int) -> None:
        if not unary_request.model:
            self._metrics.rejected(outcome)
            return
        metrics = self._metrics.of_model(unary_request.model)
        metrics.finished(outcome, took_ms / 1000)
        metrics.prompt_tokens.inc(unary_request.prompt_tokens)
        metrics.cached_tokens.inc(unary_request.cached_tokens)
