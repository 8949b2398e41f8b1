"""`POST /v1/route`: a proxy sends a client's body and gets the worker for it, to which it sends the request itself.

The body goes the way of any request of its API, up to the router: bounds, template, tokens, tenant, priority. With
`?dry=true` the decision is told and not made: nothing is recorded, and nothing counts in flight.
"""

from __future__ import annotations

import re
from typing import Any, TypeVar
from urllib.parse import parse_qs

import msgspec
import orjson

from actors.metrics.frontend_metrics import FrontendMetrics
from actors.router.reservations import RoutedDecision, RoutedWorker
from actors.router.router import Router
from api.auth.tenancy import request_of_caller
from api.openai.generation import Generation
from api.openai.generation_route import ApiAdapter, GenerationRoute
from api.openai.request.body_reader import BodyIntake
from api.openai.request.preprocessor import PreparedRequest, Preprocessor
from api.openai.types.backend import Backend
from api.openai.unary_route import ANSWERED
from api.server.errors import ApiError, bad_parameter
from api.server.exchange import ClientDisconnected, HttpExchange
from api.server.limits import ApiSettings
from core.clock import Clock
from core.errors import ContrailError
from core.generation import GenerateRequest

Body = TypeVar("Body", bound=msgspec.Struct)
ACCEL_HEADER = b"x-contrail-accel"
"""A location of nginx, to which the answer redirects it (`X-Accel-Redirect`)."""
_LOCATION = re.compile(rb"@[A-Za-z0-9_-]{1,64}")
_FIELDS_MAX = 8
"""Fields of the query."""


class ReservationRoute(GenerationRoute[Body]):
    """The route for bodies of one API: its generation is not begun, but routed."""

    def __init__(
        self,
        router: Router,
        isolate: bool,
        preprocessor: Preprocessor,
        backend: Backend,
        metrics: FrontendMetrics,
        settings: ApiSettings,
        clock: Clock,
        intake: BodyIntake,
        adapter: ApiAdapter[Body],
    ) -> None:
        """`isolate` gives each tenant a cache of its own."""
        super().__init__(preprocessor, backend, metrics, settings, clock, intake, adapter)
        self._router = router
        self._isolate = isolate

    async def _serve(self, generation: Generation) -> str:
        exchange = generation.exchange
        try:
            await exchange.run_until_disconnect(self._route(exchange, generation.prepared))
        except ClientDisconnected:
            return "abort"
        except ContrailError as error:
            return await self._break_off(generation, error)
        return ANSWERED

    async def _route(self, exchange: HttpExchange, prepared: PreparedRequest) -> None:
        """The proxy has the decision. Raises what `Router.reserve` and `Router.preview` raise."""
        if len(prepared.choices) != 1:
            raise ApiError(400, "one prompt with one answer is routed at a time: send no list of prompts, and n = 1")
        (choice,) = prepared.choices
        request = request_of_caller(prepared.model, choice.request, isolate=self._isolate)
        location = _location(exchange)
        if _is_dry(exchange.scope["query_string"]):
            decision = self._router.preview(prepared.model, request)
            await exchange.answer(orjson.dumps({"dry": True, **_decision_json(decision, request)}))
            return
        reservation = await self._router.reserve(prepared.model, request, exchange.intake.times())
        decision = self._router.reservations.describe_decision(reservation.decision)
        if location and not decision.worker.url:
            self._router.reservations.end(reservation.id, "abort", None, None)
            fault = f"the worker {decision.worker.name} is not attached: no proxy can send a request to it"
            raise ApiError(503, fault, type="server_error", code="worker_not_attached")
        exchange.extra_headers += _headers(reservation.id, decision.worker, location)
        kept = {
            "id": reservation.id,
            "frontend": self._router.options.name,
            "expires_after_s": self._router.reservations.bounds.expires_after_s,
        }
        await exchange.answer(orjson.dumps({**kept, "dry": False, **_decision_json(decision, request)}))


def _is_dry(query: bytes) -> bool:
    """True if the query says so. ApiError for another value of `dry`."""
    try:
        given = parse_qs(query.decode("latin-1"), keep_blank_values=True, max_num_fields=_FIELDS_MAX).get("dry", [])
    except ValueError as error:
        raise bad_parameter("dry", f"the query may have {_FIELDS_MAX} fields") from error
    if not given or given == ["false"]:
        return False
    if given == ["true"]:
        return True
    raise bad_parameter("dry", "must be true or false")


def _location(exchange: HttpExchange) -> bytes:
    """The location to which the answer is to lead nginx; empty if none is named. ApiError for what is no name."""
    found = exchange.headers.get(ACCEL_HEADER, b"")
    if found and not _LOCATION.fullmatch(found):
        raise bad_parameter("x-contrail-accel", "must be @ and 1 to 64 of A-Z, a-z, 0-9, '_' and '-'")
    return found


def _headers(name: str, worker: RoutedWorker, location: bytes) -> list[tuple[bytes, bytes]]:
    """The answer's headers for proxies that read no body."""
    found = [(b"x-contrail-route-id", name.encode())]
    if worker.url:
        found.append((b"x-contrail-route-url", worker.url.encode()))
    if worker.rank is not None:
        found.append((b"x-contrail-route-rank", b"%d" % worker.rank))
    if location:
        found.append((b"x-accel-redirect", location))
    return found


def _decision_json(decision: RoutedDecision, request: GenerateRequest) -> dict[str, Any]:
    return {
        "worker": _worker_json(decision.worker),
        "prompt_tokens": decision.prompt_tokens,
        "predicted_cached_tokens": decision.predicted_cached_tokens,
        "cache_salt": request.cache_salt,
        "candidates": [
            {
                **_worker_json(each.worker),
                "cost": each.cost,
                "cached_blocks": each.cached_blocks,
                "active_requests": each.active_requests,
            }
            for each in decision.candidates
        ],
        "candidates_total": decision.candidates_total,
    }


def _worker_json(worker: RoutedWorker) -> dict[str, Any]:
    return {"id": worker.id, "name": worker.name, "url": worker.url or None, "rank": worker.rank}
