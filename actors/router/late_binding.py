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
5. Tenants have fair shares of the tokens that are computed while requests are held; a priority orders the requests of
   one tenant.
6. A request is dropped when its client hangs up. While all its workers are overloaded, it stays held.
"""

from __future__ import annotations

from collections import Counter

from actors.router.routed_request import RoutedRequest
from core.ids import RequestId
from projections.policy.fair_queue import VirtualClock

PLANS_PARTS = 4
"""One part in PLANS_PARTS of a replica's time may go into plans. At thousands of requests a second, with dozens
waiting, holding would cost more than it saves."""
PLANS_BURST_US = 200_000
"""Time that may be spent on plans at once, beyond that share."""


class TimeBudget:
    """A share of a replica's time: one part in `parts` is earned, up to `most_us`, which is there at first."""

    def __init__(self, parts: int, most_us: int) -> None:
        self._parts = parts
        self._most_us = most_us
        self._left_us = most_us
        self._since_us: int | None = None

    def __repr__(self) -> str:
        return f"<TimeBudget {self._left_us} us left>"

    def has_time(self, now_us: int) -> bool:
        """True if some time is left to spend."""
        since_us = now_us if self._since_us is None else self._since_us
        come_us, rest_us = divmod(now_us - since_us, self._parts)
        self._since_us = now_us - rest_us
        self._left_us = min(self._most_us, self._left_us + come_us)
        return self._left_us > 0

    def spend(self, us: int) -> None:
        """The time was spent. It may exceed the rest; then the rest is negative until it is earned."""
        self._left_us -= us


class HeldRequests:
    """The held requests of one replica, and the round of plans that looks at them."""

    def __init__(self) -> None:
        self.plan_is_due = False
        """Set by each event after the start of the last round."""
        self.overloaded: set[RequestId] = set()
        """Requests for which this round found overloaded workers only."""
        self._requests: dict[RequestId, RoutedRequest] = {}
        """Held requests in the order in which they came."""
        self._round: list[str] = []
        """Models that the round has not planned yet."""
        self._announced: set[RequestId] = set()
        """Requests of which the log knows that they are held."""
        self._tenants: dict[str, Counter[str]] = {}
        """By model, the number of held requests of each tenant."""
        self._clocks: dict[str, VirtualClock] = {}
        """By model, from the time on at which requests of several tenants compete."""

    def __repr__(self) -> str:
        return f"<HeldRequests {len(self._requests)} requests>"

    def __len__(self) -> int:
        return len(self._requests)

    def __contains__(self, request: RoutedRequest) -> bool:
        return request.id in self._requests

    @property
    def is_planning(self) -> bool:
        """True if a plan is due now."""
        return bool(self._round) or (self.plan_is_due and bool(self._requests))

    def add(self, request: RoutedRequest) -> None:
        """The request is held, and a plan is due."""
        assert request.id not in self._requests
        self._requests[request.id] = request
        self._tenants.setdefault(request.model, Counter())[request.tenant] += 1
        self.plan_is_due = True

    def remove(self, request: RoutedRequest) -> None:
        """The request is not held any more."""
        del self._requests[request.id]
        tenants = self._tenants[request.model]
        tenants[request.tenant] -= 1
        if not tenants[request.tenant]:
            del tenants[request.tenant]
        if not self._requests:
            self._clocks.clear()  # without a held request, no tenant has a claim
        self._announced.discard(request.id)
        self.overloaded.discard(request.id)

    def all(self) -> list[RoutedRequest]:
        """Held requests in the order in which they came."""
        return list(self._requests.values())

    def of(self, model: str) -> list[RoutedRequest]:
        """Held requests of the model, in the order in which they came."""
        return [each for each in self._requests.values() if each.model == model]

    def start(self, request: RoutedRequest) -> int:
        """The virtual time at which the next request of its tenant starts."""
        clock = self._clocks.get(request.model)
        return 0 if clock is None else clock.start(request.tenant)

    def charge(self, request: RoutedRequest, tokens: int) -> None:
        """The request was sent, to compute so many tokens: held requests of other tenants are nearer to their turn.
        O(tenants with held requests)."""
        waiting = self._tenants.get(request.model)
        if not waiting:
            self._clocks.pop(request.model, None)
            return
        clock = self._clocks.get(request.model)
        if clock is None:
            if len(waiting) == 1 and request.tenant in waiting:
                return  # a tenant alone has no claim, and leaves none
            clock = self._clocks[request.model] = VirtualClock()
        clock.charge(request.tenant, max(1, tokens))
        clock.advance(min(map(clock.start, waiting)))
        clock.forget(waiting)

    def next_model(self) -> str | None:
        """The model to plan now: the round's next one, or the first one of a new round if one is due; None if there is
        nothing to plan. Models share no workers, so each is planned without the others."""
        if not self._round and self.plan_is_due:
            self.plan_is_due = False
            self.overloaded.clear()
            self._round = list(dict.fromkeys(each.model for each in self._requests.values()))
        return self._round[0] if self._round else None

    def to_plan(self, model: str) -> list[RoutedRequest]:
        """Held requests of the model that the round can still bind."""
        return [each for each in self.of(model) if each.id not in self.overloaded]

    def model_planned(self) -> bool:
        """No other request of the round's model can be bound now; returns True if that was its last model."""
        del self._round[0]
        return not self._round

    def announce(self) -> list[tuple[int, RoutedRequest]]:
        """First attempts that need a RequestQueued now, each with the number of held requests before it."""
        found = [
            (depth, each)
            for depth, each in enumerate(self._requests.values())
            if each.id not in self._announced and not each.attempt
        ]
        self._announced.update(each.id for _, each in found)
        return found
