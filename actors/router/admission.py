"""Admission: a request is routed when a worker has a slot for it; until then it waits here, in order, within bounds.

1. While slots are free, no request waits and nothing is published: three numbers are compared.
2. Else the request enters its model's queue (`projections.policy.fair_queue`): RequestQueued. A slot that is given back
   goes to the next request in the same turn of the loop. Slots that come otherwise (a worker joins, another replica's
   request ends) are seen when that is folded, and within REFRESH_EVERY_S at the latest.
3. A request leaves the queue at once when its client hangs up, when its deadline passes, or when it waited too long;
   and when too many requests wait and its tenant has most of them. A request that ends without a slot is published:
   RequestTurnedAway.
4. Where no worker could serve a request however idle the worker were, the request does not wait: the decision refuses
   it, with the reasons.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from actors.router.capacity import CapacityCalculator
from actors.router.late_binding import cancel_reason
from actors.router.request_queue import QueueCounts, QueuedRequest, RequestQueue
from core.clock import Clock
from core.events import Event
from core.events.routing import TURNED_AWAY, RequestQueued, RequestTurnedAway
from core.generation import GenerateRequest
from core.models import DeadlineExceeded, NoWorkers, Overloaded, RateLimited
from core.prompt import TOKEN_BYTES
from streams.live_settings import LiveSettings

REFRESH_EVERY_S = 0.05
"""How often those that wait are looked at, beside each event that may give them a place."""
SHARE_FRESH_MS = 100
"""For how long the places of all workers are relied on without a look."""
TENANTS_SHOWN = 16
"""The tenants with most in flight and waiting are shown by name, all others as one."""
OTHERS = "other"


class Slot:
    """A request's right to be routed; closing it lets the next request go."""

    __slots__ = ("_admission", "_closed", "_queue", "_since_ms", "_tenant")

    def __init__(self, admission: Admission, queue: RequestQueue, tenant: str, since_ms: int) -> None:
        self._admission = admission
        self._queue = queue
        self._tenant = tenant
        self._since_ms = since_ms
        self._closed = False

    def close(self, answer_tokens: int | None = None) -> None:
        """The place is free. May be called again. The first call of an answer that is whole says how long it is."""
        if not self._closed:
            self._closed = True
            self._admission.ended(self._queue, self._tenant, self._since_ms, answer_tokens)


class Admission:
    """One replica's, with a queue for each model that was ever asked for here."""

    def __init__(
        self, capacity: CapacityCalculator, live_settings: LiveSettings, clock: Clock, publish: Callable[[Event], None]
    ) -> None:
        self.counts = QueueCounts()
        self._capacity = capacity
        self._live_settings = live_settings
        self._clock = clock
        self._publish = publish
        self._queues: dict[str, RequestQueue] = {}
        self._nonempty = asyncio.Event()
        """Somebody waits."""

    def __repr__(self) -> str:
        return f"<Admission {list(self._queues.values())}>"

    @property
    def waiting(self) -> int:
        """How many wait, of all models."""
        return sum(len(queue.fair_queue) for queue in self._queues.values())

    async def enter(self, model: str, request: GenerateRequest) -> Slot:
        """The request has a place, which is to be closed. `model` is one that is known.

        Overloaded, RateLimited or DeadlineExceeded if it gets none; cancelled, it waits no more.
        """
        queue = self._queues.get(model)
        if queue is None:
            queue = self._queues[model] = RequestQueue(model)
        now_ms = self._clock.monotonic_ms()
        sure = queue.active < queue.share and now_ms < queue.share_until_ms and not len(queue.fair_queue)
        if not sure and not self._advance(queue):
            return await self._wait_for_slot(queue, QueuedRequest(request, now_ms))
        tenant = request.tenant or ""
        queue.begin(tenant)
        return Slot(self, queue, tenant, now_ms)

    def ended(self, queue: RequestQueue, tenant: str, since_ms: int, answer_tokens: int | None) -> None:
        """A place was given back; the next ones have what is free now."""
        queue.end(tenant)
        if answer_tokens is not None:
            queue.learn(self._clock.monotonic_ms() - since_ms, answer_tokens)
        if len(queue.fair_queue):
            self._advance(queue)

    def invalidate(self) -> None:
        """There may be fewer places than were counted last: they are counted again before the next one is given."""
        for queue in self._queues.values():
            queue.share_until_ms = 0

    def refresh(self) -> None:
        """Something changed that places depend on: whoever waits and need not has been let in. O(models * workers)."""
        self.invalidate()
        for queue in self._queues.values():
            if len(queue.fair_queue):
                self._advance(queue)

    async def run(self) -> None:
        """Looks again and again while somebody waits, for ever."""
        while True:
            await self._nonempty.wait()
            while self.waiting:
                await asyncio.sleep(REFRESH_EVERY_S)
                self.refresh()
            self._nonempty.clear()

    def close(self) -> None:
        """Nobody waits any more: those who did hear that this replica ends."""
        for queue in self._queues.values():
            while len(queue.fair_queue):
                waiting = queue.fair_queue.pop()
                if not waiting.turn.done():
                    self._turn_away(queue, waiting, "stopping")
                    waiting.turn.set_exception(NoWorkers("this server is stopping: try again"))

    def describe(self) -> dict[str, Any]:
        """How many are active and wait, by model, and by tenant; and what was counted since the start."""
        return {
            "waiting": self.waiting,
            "models": [
                {"model": queue.model, "active": queue.active, "waiting": len(queue.fair_queue)}
                for _, queue in sorted(self._queues.items())
            ],
            "tenants": [row for _, queue in sorted(self._queues.items()) for row in _tenants(queue)],
            **self.counts.describe(),
        }

    # --- places ------------------------------------------------------------------------------------------------

    def _advance(self, queue: RequestQueue) -> int:
        """Whoever may go now has been let in; returns how many places are left. O(workers + those let in)."""
        capacity = self._capacity.of(queue.model)
        if capacity is None:  # the decision says why
            free, queue.share = len(queue.fair_queue) + 1, 0
        else:
            free, queue.share = capacity.free(queue.active, queue.coming), capacity.share
            queue.share_until_ms = self._clock.monotonic_ms() + SHARE_FRESH_MS
        while free and len(queue.fair_queue):
            waiting = queue.fair_queue.pop()
            if not waiting.turn.done():  # else it was cancelled, and has not heard of it yet
                waiting.let_in = True
                queue.begin(waiting.tenant)
                queue.coming += 1
                waiting.turn.set_result(None)
                free -= 1
        return free

    async def _wait_for_slot(self, queue: RequestQueue, waiting: QueuedRequest) -> Slot:
        """The place that it got after a wait."""
        self._make_space(queue, waiting)
        request, depth = waiting.request, len(queue.fair_queue)
        self._publish(
            RequestQueued(
                request=request.id,
                model=queue.model,
                priority=request.priority,
                tenant=waiting.tenant,
                prompt_tokens=len(request.tokens) // TOKEN_BYTES,
                why=self._reason(queue),
                depth=depth,
                now_ms=self._clock.wall_ms(),
            )
        )
        queue.fair_queue.push(waiting, request.priority, waiting.tenant, queue.work(request))
        self._nonempty.set()
        await self._await_slot(queue, waiting)
        now_ms = self._clock.monotonic_ms()
        self.counts.let_in(queue.model, now_ms - waiting.arrived_ms)
        return Slot(self, queue, waiting.tenant, now_ms)

    def _reason(self, queue: RequestQueue) -> str:
        if len(queue.fair_queue):
            return "behind"
        capacity = self._capacity.of(queue.model)
        return "overloaded" if capacity is not None and capacity.overloaded and not capacity.places else "full"

    async def _await_slot(self, queue: RequestQueue, waiting: QueuedRequest) -> None:
        """It has a place. Whatever else happens, it has none and does not wait."""
        deadline_ms, wait_max_ms = waiting.request.deadline_ms, self._live_settings.current.queue_wait_max_ms
        is_deadline = deadline_ms is not None and deadline_ms <= wait_max_ms
        limit_ms = deadline_ms if deadline_ms is not None and is_deadline else wait_max_ms
        try:
            async with asyncio.timeout(limit_ms / 1000):
                await waiting.turn
        except TimeoutError:
            self._give_up(queue, waiting)
            raise self._timed_out(queue, waiting, limit_ms, is_deadline=is_deadline) from None
        except NoWorkers:
            raise  # it was turned away, and that was said
        except BaseException as error:  # cancelled, mostly: whatever it was, nobody waits any more
            self._give_up(queue, waiting)
            gone = cancel_reason(error) if isinstance(error, asyncio.CancelledError) else "client_gone"
            self._turn_away(queue, waiting, gone)
            raise
        queue.coming -= 1

    def _give_up(self, queue: RequestQueue, waiting: QueuedRequest) -> None:
        """It waits no more; a place that it was just given goes to the next one."""
        if waiting.let_in:
            queue.coming -= 1
            queue.end(waiting.tenant)
            self._advance(queue)
        else:
            queue.fair_queue.remove(waiting)
            if waiting.turn.done() and not waiting.turn.cancelled():
                waiting.turn.exception()  # it was turned away and does not want to hear it any more

    # --- refusals ----------------------------------------------------------------------------------------------

    def _make_space(self, queue: RequestQueue, waiting: QueuedRequest) -> None:
        """One more may wait; if that is one too many, another left. Overloaded or RateLimited if that is this one."""
        most = queue.waiting_max(self._live_settings.current)
        if len(queue.fair_queue) < most:
            return
        last = queue.fair_queue.crowded_out(waiting.request.priority, waiting.tenant) if most else None
        if last is None:
            raise self._crowded_out(queue, waiting, waiting)
        if not last.turn.done():  # else it was cancelled, and has not heard of it yet
            last.turn.set_exception(self._crowded_out(queue, last, waiting))
        queue.fair_queue.remove(last)

    def _crowded_out(self, queue: RequestQueue, out: QueuedRequest, comes: QueuedRequest) -> NoWorkers:
        """What `out` hears, who has to leave or may not wait because `comes` does not fit in."""
        fair_queue, retry_s = queue.fair_queue, queue.retry_after_s()
        too_many = fair_queue.has_too_many(out.tenant, comes.tenant)
        self._turn_away(queue, out, "tenant_share" if too_many else "queue_full", comes=out is comes)
        busy = f"all workers of model {queue.model!r} are busy, and {len(fair_queue)} requests wait for them"
        if too_many:
            text = f"{busy}, too many of them yours: send fewer at a time, or try again in {retry_s} s"
            return RateLimited(text, retry_s)
        return Overloaded(f"{busy}: try again in {retry_s} s", retry_s)

    def _timed_out(
        self, queue: RequestQueue, waiting: QueuedRequest, limit_ms: int, *, is_deadline: bool
    ) -> DeadlineExceeded | Overloaded:
        self._turn_away(queue, waiting, "deadline" if is_deadline else "queue_wait")
        none = f"no worker of model {queue.model!r} had a free place within {limit_ms / 1000:g} s"
        if is_deadline:
            return DeadlineExceeded(f"{none}, and that was the request's deadline")
        retry_s = queue.retry_after_s()
        return Overloaded(f"{none}: try again in {retry_s} s", retry_s)

    def _turn_away(self, queue: RequestQueue, waiting: QueuedRequest, reason: str, *, comes: bool = False) -> None:
        """The log and the metrics know, once; `comes`: it never waited."""
        if waiting.turned_away:
            return
        waiting.turned_away = True
        self.counts.turned_away(queue.model, reason)
        self._publish(
            RequestTurnedAway(
                request=waiting.request.id,
                model=queue.model,
                reason=reason,
                status=TURNED_AWAY[reason],
                waited_ms=-1 if comes else self._clock.monotonic_ms() - waiting.arrived_ms,
                tenant=waiting.tenant,
            )
        )


def _tenants(queue: RequestQueue) -> list[dict[str, Any]]:
    """Active ones by tenant: the first few by name, then the others together."""
    shown = dict(queue.tenants.most_common(TENANTS_SHOWN))
    if others := queue.active - sum(shown.values()):
        shown[OTHERS] = others + shown.get(OTHERS, 0)  # a tenant may have that name: one label, one number
    return [{"model": queue.model, "tenant": tenant, "active": count} for tenant, count in shown.items()]
