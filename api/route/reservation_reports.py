"""The reports of a proxy on its reservations: `POST /v1/route/{id}/first-token` and `POST /v1/route/{id}/end`."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
import orjson
from msgspec import Meta

from actors.router.reservations import Reservations, UnknownReservation
from api.openai.unary_route import UnaryRequest
from api.server.errors import ApiError

Tokens = Annotated[int, Meta(ge=0, le=2**31 - 1)]
ID_PLACE = 3
"""Of the reservation's id in the path, counted by slashes."""
_REPORTED = orjson.dumps({"ok": True})


class FirstTokenReport(msgspec.Struct, frozen=True, kw_only=True):
    """The client got the first token."""

    cached_tokens: Tokens | None = None
    """Prompt tokens that the server took from its cache; left out if it does not say so."""


class EndReport(msgspec.Struct, frozen=True, kw_only=True):
    """The request is over."""

    outcome: Literal["stop", "length", "abort", "error"]
    """As in `core.events.RequestFinished`."""
    output_tokens: Tokens | None = None
    """Tokens of the answer; left out if the proxy does not count them."""
    cached_tokens: Tokens | None = None
    """As in FirstTokenReport; this one counts."""


class ReservationReports:
    """Takes the reports on one front end's reservations."""

    def __init__(self, reservations: Reservations) -> None:
        self._reservations = reservations

    async def first_token(self, body: FirstTokenReport, unary_request: UnaryRequest) -> bytes:
        """The log has the first token. ApiError if the reservation is unknown here; CallerError for a wrong count."""
        try:
            self._reservations.first_token(_id(unary_request), body.cached_tokens)
        except UnknownReservation as error:
            raise _unknown(error) from error
        return _REPORTED

    async def end(self, body: EndReport, unary_request: UnaryRequest) -> bytes:
        """The log has the end, and the reservation is closed. Errors as of `first_token`."""
        try:
            self._reservations.end(_id(unary_request), body.outcome, body.output_tokens, body.cached_tokens)
        except UnknownReservation as error:
            raise _unknown(error) from error
        return _REPORTED


def _id(unary_request: UnaryRequest) -> str:
    return unary_request.path.split("/")[ID_PLACE]


def _unknown(error: UnknownReservation) -> ApiError:
    return ApiError(404, str(error), code="reservation_not_found")
