"""Routes that answer whole and generate nothing: JSON in, JSON out, counted, given up when the client disconnects."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

import msgspec
from starlette.types import Receive, Scope, Send

from actors.metrics.frontend_metrics import FrontendMetrics
from api.openai.request.body_reader import BodyIntake, BodyReader
from api.server.errors import ApiError, metric_outcome, report_error
from api.server.exchange import ClientDisconnected, HttpExchange
from core.clock import Clock
from core.errors import ContrailError

ANSWERED = "answered"
"""The outcome of a unary request in the metrics; other outcomes are those of generations."""

Body = TypeVar("Body", bound=msgspec.Struct)


class UnaryRequest:
    """One request of such a route, and what is counted of it."""

    def __init__(self, exchange: HttpExchange) -> None:
        self.path: str = exchange.scope["path"]
        self.headers = exchange.headers
        self.request_id = exchange.request_id
        self.on_routed = exchange.on_routed
        self.intake = exchange.intake.times
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
        intake: BodyIntake,
        clock: Clock,
        body_type: type[Body],
        work: Callable[[Body, UnaryRequest], Awaitable[bytes]],
        to_error: Callable[[ApiError, str], ApiError] = lambda error, _request_id: error,
    ) -> None:
        """`to_error` puts an error into the words of another API."""
        self._metrics = metrics
        self._intake = intake
        self._clock = clock
        self._reader = BodyReader(body_type, intake)
        self._work = work
        self._to_error = to_error

    async def __call__(self, scope: Scope, _receive: Receive, _send: Send) -> None:
        arrived_ms = self._clock.monotonic_ms()
        exchange = HttpExchange.of(scope)
        exchange.intake.begin()
        unary_request = UnaryRequest(exchange)
        outcome = "error"
        try:
            with self._intake.lease() as lease:
                body, unary_request.size = await self._reader.read(exchange, lease)
                await exchange.run_until_disconnect(self._answer(exchange, body, unary_request))
            outcome = ANSWERED
        except ClientDisconnected:
            outcome = "abort"
        except ContrailError as error:
            outcome = await self._refuse(exchange, error)
        finally:
            self._count(unary_request, outcome, self._clock.monotonic_ms() - arrived_ms)

    async def _refuse(self, exchange: HttpExchange, error: ContrailError) -> str:
        """The outcome. The error is in no variable of the caller, whose frame it holds: the two would keep the body."""
        failure = report_error(error, exchange.request_id)
        if not exchange.started:
            await exchange.refuse(self._to_error(failure, exchange.request_id))
        return metric_outcome(failure)

    async def _answer(self, exchange: HttpExchange, body: Body, unary_request: UnaryRequest) -> None:
        exchange.asks_for(getattr(body, "model", None) or "")
        await exchange.answer(await self._work(body, unary_request))

    def _count(self, unary_request: UnaryRequest, outcome: str, took_ms: int) -> None:
        if not unary_request.model:
            self._metrics.rejected(outcome)
            return
        metrics = self._metrics.of_model(unary_request.model)
        metrics.finished(outcome, took_ms / 1000)
        metrics.prompt_tokens += unary_request.prompt_tokens
        metrics.cached_tokens += unary_request.cached_tokens
