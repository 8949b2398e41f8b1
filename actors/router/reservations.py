"""Reservations: requests that are routed here and sent to their workers by a proxy, which reports what comes of them.

1. A reservation is a request of the scheduler like any other: it is admitted, queued, held, decided and recorded, and
   counts in flight. Only its attempt is not sent from here.
2. The proxy reports the first token and the end. Without the first, the prompt counts as being computed until the end.
3. A reservation whose end is not reported in time ends as EXPIRED. One that is open when this replica stops ends as
   `abort`.
4. Only the replica that made a reservation knows it.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from typing import Any, NamedTuple

from actors.router.fleet import Fleet
from actors.router.live_requests import LiveRequest, LiveRequests
from actors.router.request_scheduler import OutputArrived, ReaderStopped
from core.clock import Clock
from core.errors import CallerError
from core.events import RequestRouted
from core.events.routing import CACHED_UNKNOWN, EXPIRED, RESERVED
from core.generation import GenerateRequest, IntakeTimes, Output
from core.ids import RequestId, WorkerId, from_column
from core.models import Overloaded
from core.settings import RESERVATION_EXPIRES_S, RESERVATIONS_MAX
from projections.folds.state import State

CANDIDATES_SHOWN_MAX = 8
"""Candidates in the answer, the chosen one first."""
WHOLE_OUTCOMES = frozenset({"stop", "length"})
"""Those of answers that ended by themselves: from these alone the router learns how long answers take."""
_PLACEHOLDER = 0
"""Stands for a token that only the proxy saw: its number counts, and nothing reads which one it is."""

_logger = logging.getLogger(__name__)


class UnknownReservation(CallerError):
    """No reservation of this id is open at this replica."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReservationBounds:
    """The bounds of one replica's reservations."""

    open_max: int = RESERVATIONS_MAX
    """Reservations that may be open at once, those that wait for a worker included."""
    expires_after_s: float = RESERVATION_EXPIRES_S
    """From the decision; an end that was not reported by then is not waited for."""


class RoutedWorker(NamedTuple):
    """A worker as a proxy needs it."""

    id: WorkerId
    name: str
    url: str
    """Of the server that is its engine; empty if it is no attached worker."""
    rank: int | None
    """The data-parallel rank that the request must name; None if the server has one."""


class RoutedCandidate(NamedTuple):
    """One worker among which the decision chose, in short."""

    worker: RoutedWorker
    cost: int
    """Of the policy's own unit (`core.events.routing.Columns.cost`); the least one is chosen."""
    cached_blocks: int
    """Blocks of the prompt in any tier there."""
    active_requests: int


class RoutedDecision(NamedTuple):
    """A decision as a proxy needs it."""

    worker: RoutedWorker
    prompt_tokens: int
    predicted_cached_tokens: int
    candidates: tuple[RoutedCandidate, ...]
    """CANDIDATES_SHOWN_MAX at most, the chosen one first …"""
    candidates_total: int
    """… of so many."""


class Reservation:
    """One open reservation: the consumer of a request whose outputs are a proxy's reports."""

    def __init__(self, intake: IntakeTimes | None) -> None:
        """`intake` is the time of the request in this front end."""
        self.live: LiveRequest
        """Set before the scheduler has the request."""
        self.routed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when the decision is made."""
        self.expiry: asyncio.TimerHandle | None = None
        self._intake = intake

    def __repr__(self) -> str:
        return f"<Reservation {self.live.request!r}>"

    @property
    def id(self) -> RequestId:
        """The request's id in the log."""
        return self.live.request.id

    @property
    def decision(self) -> RequestRouted:
        """The record of the decision; there once `routed` is done and until the end."""
        routed = self.live.request.routed
        assert routed is not None
        return routed

    def on_output(self, _: Output) -> bool:
        """The proxy's client has its tokens already."""
        return True

    def outcome(self) -> str | None:
        """Unknown until it is reported."""
        return None

    def on_routed(self, _worker_name: str) -> None:
        """The decision is made. No reservation has a second attempt, since no attempt of one breaks."""
        self.routed.set_result(None)

    def intake(self) -> IntakeTimes | None:
        """The time of the request in this front end."""
        return self._intake


class Reservations:
    """All open reservations of one replica; owned by its event loop."""

    def __init__(
        self, requests: LiveRequests, fleet: Fleet, state: State, clock: Clock, bounds: ReservationBounds
    ) -> None:
        self.bounds = bounds
        self.expired = 0
        """Reservations that expired since the start."""
        self._requests = requests
        self._fleet = fleet
        self._state = state
        self._clock = clock
        self._open: dict[Reservation, asyncio.Task[None]] = {}
        """At most `open_max`, those that wait for a worker included."""
        self._routed: dict[RequestId, Reservation] = {}
        """Those with a decision."""

    def __repr__(self) -> str:
        return f"<Reservations {len(self._open)} open, {self.expired} expired>"

    def describe(self) -> dict[str, Any]:
        """Facts for `/state`."""
        return {"open": len(self._open), "expired": self.expired}

    async def reserve(self, model: str, request: GenerateRequest, intake: IntakeTimes | None) -> Reservation:
        """The request has a worker, and counts in flight there until its end is reported. The model must be known.

        Overloaded if `open_max` are open. Else errors are those of `LiveRequests.run` before the first output. A
        cancellation ends the request, and the log has the reason.
        """
        if len(self._open) >= self.bounds.open_max:
            raise Overloaded(f"{len(self._open)} reservations are open at this front end, and no more may be")
        reservation = Reservation(intake)
        task = asyncio.create_task(self._serve(reservation, model, request))
        self._open[reservation] = task
        task.add_done_callback(lambda _: self._on_ended(reservation))
        try:
            await asyncio.wait({task, reservation.routed}, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError as error:
            task.cancel(*error.args)
            await asyncio.wait({task})
            raise
        if task.done():
            task.result()  # raises: a request that ended without a decision has an error
        self._routed[reservation.id] = reservation
        loop = asyncio.get_running_loop()
        reservation.expiry = loop.call_later(self.bounds.expires_after_s, self._expire, reservation)
        return reservation

    async def _serve(self, reservation: Reservation, model: str, request: GenerateRequest) -> None:
        """The reservation is over. In one turn of the loop its id is chosen and taken."""
        reservation.live = self._requests.begin(model, request, reservation, is_reserved=True)
        await self._requests.serve(reservation.live)

    def preview(self, model: str, request: GenerateRequest) -> RoutedDecision:
        """The decision on the request as if it came now and waited for nothing. Nothing is recorded. The model must be
        known. Errors are those of `RequestScheduler.preview`, and CallerError if the prompt is too long for a frame."""
        live = self._requests.begin(model, request, Reservation(None), is_reserved=True)
        return self.describe_decision(self._requests.scheduler.preview(live.request, self._clock.monotonic_us()))

    def first_token(self, id: str, cached_tokens: int | None) -> None:
        """The log has the first token of the reservation, and the tokens that the server took from its cache if they
        are told. A second report changes nothing. UnknownReservation; CallerError for more cached tokens than the
        prompt has."""
        request = self._find(id, cached_tokens).live.request
        if request.first_token_us < 0:
            self._feed_output(id, Output(tokens=(_PLACEHOLDER,), cached_tokens=cached_tokens))

    def end(self, id: str, outcome: str, output_tokens: int | None, cached_tokens: int | None) -> None:
        """The log has the end of the reservation, with the tokens of its answer if they are told. `outcome` is `stop`,
        `length`, `abort` or `error`. Errors are those of `first_token`, and CallerError for an answer longer than the
        model's context."""
        reservation = self._find(id, cached_tokens)
        request = reservation.live.request
        context_max = self._fleet.catalog.context_max(request.model)
        if output_tokens is not None and output_tokens > context_max:
            raise CallerError(f"output_tokens: model {request.model!r} makes at most {context_max}")
        more = (output_tokens or 0) - request.attempt_tokens
        if more > 0:
            request.pass_on(Output(tokens=(_PLACEHOLDER,) * more))
        is_whole = output_tokens is not None and outcome in WHOLE_OUTCOMES
        self._end(reservation, outcome, cached_tokens, is_whole=is_whole)

    def close(self) -> None:
        """Open reservations have ended as `abort`."""
        for reservation in list(self._routed.values()):
            self._end(reservation, "abort", None, is_whole=False)

    def describe_decision(self, routed: RequestRouted) -> RoutedDecision:
        """The decision as a proxy needs it. O(candidates shown)."""
        columns = routed.columns
        ids = from_column(routed.candidates)[:CANDIDATES_SHOWN_MAX]
        rows = zip(ids, columns["cost"], columns["overlap_all"], columns["active_requests"], strict=False)
        return RoutedDecision(
            worker=self._worker(WorkerId(routed.worker)),
            prompt_tokens=routed.prompt_tokens,
            predicted_cached_tokens=routed.predicted_cached_tokens,
            candidates=tuple(RoutedCandidate(self._worker(WorkerId(worker)), *terms) for worker, *terms in rows),
            candidates_total=routed.candidates_total,
        )

    def _worker(self, worker: WorkerId) -> RoutedWorker:
        registration, member = self._fleet.registered.get(worker), self._state.member(worker)
        name = member.joined.name if member is not None and member.joined is not None else str(worker)
        if registration is None:
            return RoutedWorker(worker, name, "", None)
        return RoutedWorker(worker, name, registration.server, registration.rank)

    def _find(self, id: str, cached_tokens: int | None) -> Reservation:
        reservation = self._routed.get(RequestId(id))
        if reservation is None:
            raise UnknownReservation(
                f"no reservation {id!r} is open at this front end: it has ended or expired, or another front end made "
                "it, to which it must be reported"
            )
        most = reservation.live.request.prompt_tokens
        if cached_tokens is not None and cached_tokens > most:
            raise CallerError(f"cached_tokens: the prompt has {most}")
        return reservation

    def _feed_output(self, id: str, output: Output) -> None:
        attempt = self._routed[RequestId(id)].live.request.attempt
        self._requests.feed(OutputArrived(RequestId(id), attempt, output, self._clock.monotonic_us()))

    def _expire(self, reservation: Reservation) -> None:
        self.expired += 1
        _logger.warning("a reservation expired: no end was reported", extra={"request_id": reservation.id})
        self._end(reservation, EXPIRED, None, is_whole=False)

    def _end(self, reservation: Reservation, outcome: str, cached_tokens: int | None, *, is_whole: bool) -> None:
        name, request = reservation.id, reservation.live.request
        if cached_tokens is None and request.first_token_us < 0:
            cached_tokens = CACHED_UNKNOWN  # not 0: nothing was reported
        if cached_tokens is not None:
            self._feed_output(name, Output(cached_tokens=cached_tokens))
        self._forget(reservation)
        self._requests.feed(ReaderStopped(name, outcome, RESERVED, is_whole))

    def _forget(self, reservation: Reservation) -> None:
        if self._routed.get(reservation.id) is reservation:
            del self._routed[reservation.id]
        if reservation.expiry is not None:
            reservation.expiry.cancel()

    def _on_ended(self, reservation: Reservation) -> None:
        """The request is over. `reserve` raises what ended it before the decision; later, only a defect is an error."""
        task = self._open.pop(reservation)
        error = None if task.cancelled() else task.exception()
        if not reservation.routed.done():
            return
        self._forget(reservation)
        if error is not None:
            _logger.error("a reservation failed inside", exc_info=error)
