"""LateBinding: requests wait in this replica until the worker that is best for them is free
(`projections.policy.binding_plan`).

1. Held requests of a model are planned together, once for all that happens in one turn of the loop: arrivals, first
   tokens here, other replicas' requests in the log, workers that join or leave.
2. Send the request and append its decision before planning the next one.
3. Replicas learn of each other through the log a little late, so two may bind to one worker at once. The worker takes
   the first request and declines the others. Those are held again, and what the worker computes counts there.
4. A request is held for `hold_max_ms` at most, and `held_max` requests of a model at most are held: beyond that, the
   first one is sent at once. No request is held while planning takes more than a share of this replica's time
   (`PLANS_PARTS`). So no waiting request is overtaken by one that need not wait.
5. A request whose client has gone is not sent any more. A request whose workers are overloaded waits on here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from actors.router.routed_request import Attempt
from core.clock import Clock
from core.entropy import random_bits64
from core.events import Event
from core.events.routing import HELD, INTERNAL, TURNED_AWAY, RequestQueued, RequestTurnedAway
from core.failure import failure_in
from core.ids import RequestId, WorkerId
from core.models import DeadlineExceeded
from projections.policy.binding_plan import (
    LIGHT_TOKENS,
    BusyWorkers,
    PlannedRequest,
    UnboundRequest,
    held_max,
    plan,
    tokens_in_progress,
)
from projections.policy.decide import Decision
from projections.policy.prefill_time import MILLI
from projections.policy.view import RouteRequest, View
from streams.live_settings import LiveSettings


class TimeBudget:
    """A share of a replica's time: one part in `parts` comes in, up to `most_us`, which is there at first."""

    def __init__(self, clock: Clock, parts: int, most_us: int) -> None:
        self._clock = clock
        self._parts = parts
        self._most_us = most_us
        self._left_us = most_us
        self._since_us = clock.monotonic_us()

    def __repr__(self) -> str:
        return f"<TimeBudget {self._left_us} us left>"

    @property
    def is_left(self) -> bool:
        """Whether something may be spent."""
        now_us = self._clock.monotonic_us()
        come_us, rest_us = divmod(now_us - self._since_us, self._parts)
        self._since_us = now_us - rest_us
        self._left_us = min(self._most_us, self._left_us + come_us)
        return self._left_us > 0

    def spend(self, us: int) -> None:
        """So much was; it may be more than there was, and then the next must wait for it."""
        self._left_us -= us


OVERLOADED = "overloaded"
"""Why workers are left out for a while (`projections.policy.decide`)."""

PLANS_PARTS = 4
"""One part in so many of a replica's time may go into placing those that wait: at thousands of requests a second, with
dozens waiting, holding would cost more than it saves …"""
PLANS_BURST_US = 200_000
"""… and so much at a time may be more."""

Send = Callable[[RouteRequest, Decision], Attempt]
"""The request is on its way to the worker that was decided on, and the decision to the log."""


class _HeldRequest(NamedTuple):
    held: UnboundRequest
    send: Send
    sent: asyncio.Future[Attempt | None]


class LateBinding:
    """The held requests of one replica. Owned by one event loop."""

    def __init__(
        self,
        live_settings: LiveSettings,
        clock: Clock,
        view: Callable[[], View],
        wall_ms: Callable[[], int],
        publish: Callable[[Event], None],
        *,
        with_learned_time: Callable[[RouteRequest], RouteRequest],
        decided: Callable[[str, float], None],
    ) -> None:
        """`view` is what a decision made now sees; `with_learned_time` is a request with what the replica has learned
        by now; `decided` hears of each decision: the policy, and how many seconds it took, the plan included."""
        self.declines = BusyWorkers()
        self._live_settings = live_settings
        self._view = view
        self._wall_ms = wall_ms
        self._publish = publish
        self._clock = clock
        self._with_learned_time = with_learned_time
        self._decided = decided
        self._plans = TimeBudget(clock, PLANS_PARTS, PLANS_BURST_US)
        self._waiting: dict[RequestId, _HeldRequest] = {}
        """In the order in which they came."""
        self._announced: set[RequestId] = set()
        """Those of them of which the log knows that they wait."""
        self._plan_scheduled = False

    def __repr__(self) -> str:
        return f"<LateBinding {len(self._waiting)} requests>"

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def enabled(self) -> bool:
        """Whether requests are to be held now."""
        return self._live_settings.current.holds and self._plans.is_left

    def bind_now(self, asked: RouteRequest, send: Send, since_ms: int) -> Attempt | None:
        """The request has left for the worker that is best for it, if nobody waits here, its prompt is light, and the
        worker is free for it: that need not wait for the loop's next turn. None if it is to be held, since `since_ms`.
        What `send` raises."""
        if self._waiting or asked.prompt.tokens > LIGHT_TOKENS:
            return None
        asked = self._with_learned_time(asked)
        planned = self._planned([UnboundRequest(asked, since_ms, random_bits64())])
        if planned is None or planned.decision.worker is None:
            return None
        return send(planned.request, planned.decision)

    async def hold(
        self, asked: RouteRequest, send: Send, since_ms: int, workers: int, deadline_ms: int | None = None
    ) -> Attempt | None:
        """The request has left for the worker that was best for it when that was free; None if it did not, because it
        was held for as long as may be, too many of its model came after it for the model's `workers`, or nobody can
        serve it: then it is to be decided on alone. It is held since `since_ms`, by the clock of decisions.
        DeadlineExceeded if it did not leave within `deadline_ms`; and what `send` raises. Cancelled, nothing of it
        goes on."""
        loop = asyncio.get_running_loop()
        waiting = _HeldRequest(UnboundRequest(asked, since_ms, random_bits64()), send, loop.create_future())
        self._waiting[asked.id] = waiting
        self._enforce_bound(asked.model, workers)
        self.plan_soon()
        left_ms = since_ms + self._live_settings.current.hold_max_ms - self._wall_ms()
        if deadline_ms is not None and deadline_ms <= left_ms:
            due = loop.call_later(deadline_ms / 1000, self._on_deadline, waiting)
        else:
            due = loop.call_later(left_ms / 1000, _release, waiting)
        try:
            return await waiting.sent
        except asyncio.CancelledError as error:
            self._on_cancelled(waiting, cancel_reason(error))
            raise
        finally:
            due.cancel()
            self._waiting.pop(asked.id, None)
            self._announced.discard(asked.id)

    def on_declined(self, worker: WorkerId, tokens: int, us: int) -> None:
        """The worker computes so much for other replicas, for about so long: it counts until the log tells of it."""
        self.declines.note(worker, tokens, self._wall_ms() * MILLI + us)
        asyncio.get_running_loop().call_later(us / 1e6, self.plan_soon)

    def plan_soon(self) -> None:
        """Those held are planned again, once for all that happens in this turn of the loop."""
        if self._waiting and not self._plan_scheduled:
            self._plan_scheduled = True
            asyncio.get_running_loop().call_soon(self._plan_all)

    def _enforce_bound(self, model: str, workers: int) -> None:
        """No more requests of the model wait than may for its workers: the first ones go."""
        most = held_max(workers)
        if len(self._waiting) > most:
            waiting = self._waiting_for(model)
            for each in waiting[: max(0, len(waiting) - most)]:
                _release(each)

    def _waiting_for(self, model: str) -> list[_HeldRequest]:
        """The model's requests that are not sent yet, in the order in which they came."""
        return [each for each in self._waiting.values() if each.held.request.model == model and not each.sent.done()]

    def release_all(self) -> None:
        """Nobody is held any more: each is to be decided on alone."""
        for waiting in self._waiting.values():
            _release(waiting)

    def _plan_all(self) -> None:
        """Each model's requests are planned without the others': they share no workers."""
        self._plan_scheduled = False
        for model in dict.fromkeys(each.held.request.model for each in self._waiting.values()):
            if not self._plan_model(model):
                self.plan_soon()  # the next one in another turn of the loop: each may take milliseconds
                return
        self._publish_queued()

    def _plan_model(self, model: str) -> bool:
        """Requests of the model left for workers that are free; False if others may after this turn of the loop."""
        stay: set[RequestId] = set()
        while queue := [each.held for each in self._waiting_for(model) if each.held.request.id not in stay]:
            if not (self._live_settings.current.holds and self._plans.is_left):
                self.release_all()  # else those that come now would overtake them
                break
            planned = self._planned([held._replace(request=self._with_learned_time(held.request)) for held in queue])
            if planned is None:
                break
            if planned.decision.worker is None and OVERLOADED in planned.decision.excluded:
                stay.add(planned.request.id)
                continue
            self._send_bound(self._waiting[planned.request.id], planned.request, planned.decision)
            if planned.request.prompt.tokens > LIGHT_TOKENS:
                return False
        return True

    def _planned(self, queue: list[UnboundRequest]) -> PlannedRequest | None:
        started_us = self._clock.monotonic_us()
        view, now_ms = self._view(), self._wall_ms()
        busy_us: dict[WorkerId, int] = {}
        if self.declines.stand:
            known = tokens_in_progress(view.outstanding(), self._live_settings.current, now_ms)
            busy_us = self.declines.busy_us(known, now_ms * MILLI)
        planned = plan(view, queue, self._live_settings.current, now_ms, busy_us)
        took_us = self._clock.monotonic_us() - started_us
        self._plans.spend(took_us - took_us // len(queue))  # one alone is decided on, as without holding
        if planned is not None:
            self._decided(self._live_settings.current.policy, took_us / 1e6)
        return planned

    @staticmethod
    def _send_bound(waiting: _HeldRequest, request: RouteRequest, decision: Decision) -> None:
        if decision.worker is None:
            _release(waiting)
            return
        try:
            attempt = waiting.send(request, decision)
        except Exception as error:  # noqa: BLE001  # it is for who asked for this flight, and others go on
            waiting.sent.set_exception(error)
        else:
            waiting.sent.set_result(attempt)

    def _publish_queued(self) -> None:
        """The log knows of those that wait."""
        for depth, (request, waiting) in enumerate(self._waiting.items()):
            if request not in self._announced and not waiting.held.request.attempt and not waiting.sent.done():
                self._announced.add(request)
                asked = waiting.held.request
                self._publish(
                    RequestQueued(
                        request=request,
                        model=asked.model,
                        priority=asked.priority,
                        tenant=asked.tenant,
                        prompt_tokens=asked.prompt.tokens,
                        why=HELD,
                        depth=depth,
                        now_ms=waiting.held.since_ms,
                    )
                )

    def _on_cancelled(self, waiting: _HeldRequest, reason: str) -> None:
        """Its client went away, or waits no longer; the log knows that it waits no more."""
        sent = waiting.sent
        attempt = None if sent.cancelled() or sent.exception() is not None else sent.result()
        if attempt is not None:
            attempt.close()  # it left in the very turn in which its client went away
        else:
            self._publish_turned_away(waiting.held, reason)

    def _on_deadline(self, waiting: _HeldRequest) -> None:
        """The client's deadline passed."""
        if not waiting.sent.done():
            self._publish_turned_away(waiting.held, "deadline")
            text = f"no worker of model {waiting.held.request.model!r} was free within the request's deadline"
            waiting.sent.set_exception(DeadlineExceeded(text))

    def _publish_turned_away(self, held: UnboundRequest, reason: str) -> None:
        """The log knows, once, if it knows that the request waits, or of an attempt that a worker declined."""
        asked = held.request
        if asked.id in self._announced or asked.attempt:
            self._announced.discard(asked.id)
            self._publish(
                RequestTurnedAway(
                    request=asked.id,
                    model=asked.model,
                    reason=reason,
                    status=TURNED_AWAY[reason],
                    waited_ms=self._wall_ms() - held.since_ms,
                    tenant=asked.tenant,
                )
            )


def cancel_reason(error: asyncio.CancelledError) -> str:
    """Of TURNED_AWAY: a cancellation's reason is the error of a client that waits no longer, or a failure of ours."""
    if failure_in(error) is not None:
        return INTERNAL
    return "deadline" if any(isinstance(each, DeadlineExceeded) for each in error.args) else "client_gone"


def _release(waiting: _HeldRequest) -> None:
    if not waiting.sent.done():
        waiting.sent.set_result(None)
