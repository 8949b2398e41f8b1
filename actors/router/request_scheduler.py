"""RequestScheduler: the machine that takes requests from their arrival over queue, worker and attempts to their end.

1. While slots are free, no request waits and nothing is published: three numbers are compared. Else the request enters
   the queue of its model (`projections.policy.fair_queue`): RequestQueued. Slots that come free are given away in the
   next Tick, and looked for every REFRESH_EVERY_US at the latest.
2. A request leaves the queue when its client hangs up, when its deadline passes, or when it waited too long. It also
   leaves when the queue is full and its tenant has most of the requests in it: RequestTurnedAway.
3. A request that no worker could serve, even an idle one, does not wait: the decision refuses it. Where a planner
   starts the model's first worker, the request waits in the queue for that one.
4. Under a policy that holds, the first attempt waits for the worker that is best for it (`actors.router.late_binding`).
5. An attempt that breaks is followed by another one, within the bounds of `RetryBudget`.

Invariants: a request is in exactly one phase. At most one decision in a step; a step that publishes the end of an
attempt makes none, so every decision sees all earlier events of this replica. LocalChanged precedes the decision that
rests on it. Every RequestRouted has exactly one RequestFinished, published before the last output is delivered; the
slot is free by then.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Hashable
from typing import Any, Protocol

import xxhash
from msgspec import UNSET, Struct
from msgspec.structs import replace

from actors.router.adapter_loads import AdapterLoads
from actors.router.capacity import Capacity, find_capacity
from actors.router.late_binding import PLANS_BURST_US, PLANS_PARTS, HeldRequests, TimeBudget
from actors.router.request_queue import RequestQueue
from actors.router.routed_request import Phase, RoutedRequest
from actors.router.running_fetches import RunningFetches
from actors.router.scheduler_counts import PrefillCounts, QueueCounts
from actors.transport.worker_connection import WorkerDeclined, WorkerDisconnected, WorkerLeaving
from core.errors import CallerError
from core.events import Event, ReplicaRestated, RequestRouted
from core.events.routing import (
    CACHED_UNKNOWN,
    HELD,
    NO_WORKER,
    TURNED_AWAY,
    PrefixFetch,
    RequestQueued,
    RequestTurnedAway,
)
from core.generation import GenerateRequest, Hint, Output
from core.ids import RequestId, WorkerId, to_column
from core.kv_transfer import FetchSource
from core.machine import Tick
from core.models import DeadlineExceeded, GenerationFailed, NoWorkers, Overloaded, RateLimited
from core.settings import TIERS, RoutingSettings
from core.timers import Timers
from projections.folds.routing_fold import in_flight
from projections.policy.binding_plan import (
    LIGHT_TOKENS,
    BusyWorkers,
    PlannedRequest,
    UnboundRequest,
    held_max,
    plan,
    tokens_in_progress,
    with_room,
)
from projections.policy.cost import ESTIMATING_POLICIES
from projections.policy.decide import Decision, decide_newest, record, rejection, rejection_reason
from projections.policy.load_time import POLICY as LOAD_TIME_POLICY
from projections.policy.load_time import LoadTime, LoadTimeModel
from projections.policy.prefill_time import PrefillTime, PrefillTimeModel
from projections.policy.prefix_fetch import FETCH_POLICY
from projections.policy.view import Local, RouteRequest, View
from projections.policy.worker_room import ResidenceTime, RunningPrompts

US_PER_MS = 1000
REFRESH_EVERY_US = 50_000
"""Period of the check for free slots while requests wait, besides events that may free one."""
SHARE_FRESH_US = 100_000
"""A count of the free slots of all workers holds for so long."""
RESUME_WAIT_US = 5_000_000
"""A begun answer waits so long for a worker when there is none: a worker that died alone is started again within a
second or two. A request without a token is refused at once."""
JOIN_WAIT_US = 12_000_000
"""A request without a token waits so long after its arrival while a worker is connected whose join the fold does not
have: the log lost it, and the worker restates itself, which replicas ask of it at most every ten seconds."""
RETRY_US = 100_000
"""Time between decisions while a request waits for a worker."""
DECLINED_MAX = 8
"""Workers in a row that may decline a request; then it goes where it costs least, busy or not."""
CLOCK_STANDS_MS = 1000
"""Bound of corrections backwards in which the time of decisions stands; beyond it, the time goes back."""
TENANTS_SHOWN = 16
"""The tenants with most in flight and waiting are shown by name, all others as one."""
OTHERS = "other"
POOLS = TIERS.index("disk")
"""The first level of a candidate's overlap that counts pools."""
OVERLOADED = "overloaded"
"""The reason for which decisions leave busy workers out (`projections.policy.decide`)."""
REFUSED = "the engine refused the request"
ONLY_PREFILL = "has only prefill workers, which answer no requests: start a decode worker (`contrail worker`)"


class Arrived(Struct, frozen=True):
    """A request of a known model; no other one of its id is in progress."""

    request: RoutedRequest


class OutputArrived(Struct, frozen=True):
    """An output of the attempt: the first, the last, or one in the middle of an answer that does not flow."""

    id: RequestId
    attempt: int
    output: Output
    at_us: int


class AttemptBroke(Struct, frozen=True):
    """The attempt ended without its last output: WorkerDeclined, WorkerLeaving, WorkerDisconnected, or CallerError if
    the engine cannot take the request."""

    id: RequestId
    attempt: int
    error: Exception


class ReaderStopped(Struct, frozen=True):
    """The consumer wants no more output: the answer is whole for it, or it failed."""

    id: RequestId
    outcome: str
    detail: str = ""
    is_whole: bool = True


class ClientGone(Struct, frozen=True):
    """The request was cancelled. `reason` is of TURNED_AWAY; an attempt under way ends with `outcome`."""

    id: RequestId
    reason: str
    outcome: str
    detail: str = ""
    is_whole: bool = False


class LoadChanged(Struct, frozen=True):
    """The fold or the fleet has changed: slots may have been freed or lost."""


class SettingsReplaced(Struct, frozen=True):
    """The settings of the next decision; the log has them."""

    settings: RoutingSettings
    revision: int


class ClockCorrected(Struct, frozen=True):
    """The wall clock is so far ahead of the monotonic one from here on."""

    wall_offset_ms: int


class Draining(Struct, frozen=True):
    """This replica stops: no request may wait any more."""


class PlanTook(Struct, frozen=True):
    """Answers Measure with the duration of the step."""

    us: int
    queued: int


SchedulerEvent = (
    Arrived
    | OutputArrived
    | AttemptBroke
    | ReaderStopped
    | ClientGone
    | LoadChanged
    | SettingsReplaced
    | ClockCorrected
    | Draining
    | PlanTook
)


class Measure(Struct, frozen=True):
    """The shell is to measure this step: its decision under the policy, or a plan that bound no request (policy empty).
    Always the first command of a step."""

    policy: str
    queued: int


class PublishLocal(Struct, frozen=True):
    """The log gets the local reasons of workers, before the decision that rests on them."""

    local: Local


class Publish(Struct, frozen=True):
    """The event counts at once, and goes to the log."""

    event: Event


class Send(Struct, frozen=True):
    """The attempt goes to the worker."""

    request: RoutedRequest
    worker: WorkerId
    payload: GenerateRequest
    hint: Hint


class CancelAttempt(Struct, frozen=True):
    """The worker is to stop."""

    request: RoutedRequest


class Deliver(Struct, frozen=True):
    """The client gets the output."""

    request: RoutedRequest
    output: Output


class Complete(Struct, frozen=True):
    """The request is over, and its client has the answer."""

    request: RoutedRequest


class Fail(Struct, frozen=True):
    """The request is over, and its client gets the error."""

    request: RoutedRequest
    error: Exception


class WorkerFailed(Struct, frozen=True):
    """The worker broke an attempt off: decisions leave it out for a while."""

    request: RoutedRequest
    worker: WorkerId
    text: str


SchedulerCommand = Measure | PublishLocal | Publish | Send | CancelAttempt | Deliver | Complete | Fail | WorkerFailed


class RoutingInputs(Protocol):
    """The knowledge of one replica beside the scheduler's own state. It does not change during a step."""

    def view(self) -> View:
        """All that a decision made now may read."""

    def slots(self, worker: WorkerId) -> int:
        """Requests that the worker's engine runs at once; 0 if unknown."""

    def connected(self, model: str) -> int:
        """Workers of the model to which a request can be sent now."""

    def awaits_join(self, model: str) -> bool:
        """True if a worker of the model is connected whose join the fold does not have."""

    def starts_from_zero(self, model: str) -> bool:
        """True if a planner starts the model's first worker when requests wait for one."""

    def is_log_away(self) -> bool:
        """True if the log is away, so that requests of other replicas are unknown."""


class RequestScheduler:
    """See the module's text. One replica's; requests of all its models."""

    def __init__(
        self, inputs: RoutingInputs, settings: RoutingSettings, revision: int, *, seed: int, wall_offset_ms: int
    ) -> None:
        """`seed` is the base of all draws; the wall clock is `wall_offset_ms` ahead of the monotonic one."""
        self.requests: dict[RequestId, RoutedRequest] = {}
        """All requests from their arrival to their end."""
        self.counts = QueueCounts()
        self.prefills = PrefillCounts()
        self.learned = PrefillTimeModel()
        self.load_times = LoadTimeModel()
        self.residence = ResidenceTime()
        self.running_prompts = RunningPrompts()
        self.busy_workers = BusyWorkers()
        self.held = HeldRequests()
        self.fetches = RunningFetches()
        self._adapter_loads = AdapterLoads()
        self._inputs = inputs
        self._settings = settings
        self._revision = revision
        self._seed = seed
        self._wall_offset_ms = wall_offset_ms
        self._not_before_ms = 0
        """The time of decisions stands here until the corrected clock has come so far again."""
        self._queues: dict[str, RequestQueue] = {}
        self._ready: deque[RoutedRequest] = deque()
        """Requests that begin their next attempt, one in each Tick; some have ended since."""
        self._timers = Timers[tuple[str, Hashable]]()
        self._budget = TimeBudget(PLANS_PARTS, PLANS_BURST_US)
        self._refresh_is_due = False
        self._now_us = 0
        self._view: View | None = None
        """The view of the present step, once something read it."""
        self._do: Callable[[SchedulerCommand], None]
        """Appends a command of the present step."""
        self._measure: Measure | None = None
        self._handlers: dict[type, Callable[[Any], None]] = {
            Arrived: self._on_arrived,
            OutputArrived: self._on_output,
            AttemptBroke: self._on_broke,
            ReaderStopped: self._on_reader_stopped,
            ClientGone: self._on_client_gone,
            LoadChanged: self._on_load_changed,
            SettingsReplaced: self._on_settings,
            ClockCorrected: self._on_clock_corrected,
            Draining: self._on_draining,
            PlanTook: self._on_plan_took,
            Tick: self._on_tick,
        }

    def __repr__(self) -> str:
        return f"<RequestScheduler {len(self.requests)} requests, {self.waiting} queued, {len(self.held)} held>"

    @property
    def due_us(self) -> int | None:
        """At once while requests are ready or held ones are to be planned; else the first timer."""
        if self._ready or self._refresh_is_due or self.held.is_planning:
            return 0
        return self._timers.due_us

    def step(self, event: SchedulerEvent | Tick, now_us: int) -> list[SchedulerCommand]:
        """See `core.machine.Machine`. Some 10 us, and what a decision costs where one is made."""
        self._now_us = now_us
        commands: list[SchedulerCommand] = []
        self._do = commands.append
        self._view = self._measure = None
        self._handlers[type(event)](event)
        if self._measure is not None:
            commands.insert(0, self._measure)
        return commands

    # --- what others see ---------------------------------------------------------------------------------------

    @property
    def waiting(self) -> int:
        """Requests that are queued, of all models."""
        return sum(len(queue.fair_queue) for queue in self._queues.values())

    @property
    def has_waiting(self) -> bool:
        """True if a request is queued or held."""
        return len(self.held) > 0 or self.waiting > 0

    @property
    def running(self) -> list[RoutedRequest]:
        """Requests with an attempt under way, in the order of their arrival."""
        return [each for each in self.requests.values() if each.phase is Phase.RUNNING]

    def restatement(self, reason: str) -> ReplicaRestated:
        """All attempts under way as one event."""
        running = [(each, each.routed) for each in self.running if each.routed is not None]
        return ReplicaRestated(
            requests=tuple(routed.request for _, routed in running),
            attempts=tuple(routed.attempt for _, routed in running),
            models=tuple(routed.model for _, routed in running),
            workers=to_column([routed.worker for _, routed in running]),
            blocks=tuple(routed.blocks for _, routed in running),
            prefill_tokens=tuple(0 if each.first_token_us >= 0 else routed.prefill_tokens for each, routed in running),
            reason=reason,
            begins_us=tuple(0 if each.first_token_us >= 0 else in_flight(routed).begins_us for each, routed in running),
        )

    def describe(self) -> dict[str, Any]:
        """Active and queued requests by model and by tenant, and the counts since the start."""
        queues = [queue for _, queue in sorted(self._queues.items())]
        return {
            "waiting": self.waiting,
            "models": [
                {"model": queue.model, "active": queue.active, "waiting": len(queue.fair_queue)} for queue in queues
            ],
            "tenants": [row for queue in queues for row in _tenants(queue)],
            **self.counts.describe(),
        }

    def preview(self, request: RoutedRequest, now_us: int) -> RequestRouted:
        """The decision on a request that never arrives, as if it came now and waited for nothing. Nothing changes, and
        nothing is published. NoWorkers or Overloaded if no worker can take it. Costs what a decision does."""
        view = self._inputs.view()
        request.prepare(now_us, 0, self._learned_time(request.model))
        asked = request.asked
        assert asked is not None
        asked = self._with_load(asked, view, now_us)
        decision = decide_newest(view, asked, self._settings, self._wall_ms_at(now_us), self._draw_seed(asked))
        if decision.worker is None:
            raise _no_worker(asked, decision, view)
        return record(decision, asked, self._settings, self._revision)

    # --- time and load -----------------------------------------------------------------------------------------

    @property
    def _wall_ms(self) -> int:
        """The time that decisions read. After the first, it goes back only by more than CLOCK_STANDS_MS at once."""
        return self._wall_ms_at(self._now_us)

    def _wall_ms_at(self, now_us: int) -> int:
        return max(self._not_before_ms, self._wall_offset_ms + now_us // US_PER_MS)

    def _on_tick(self, _: Tick) -> None:
        while (key := self._timers.pop_due(self._now_us)) is not None:
            self._on_timer(*key)
        if self._refresh_is_due:
            self._refresh()
        while self._ready:
            request = self._ready.popleft()
            if request.phase is Phase.READY:  # else it ended meanwhile
                self._begin(request)
                return
        if self.held.is_planning:
            self._plan_held()

    def _on_timer(self, kind: str, key: Hashable) -> None:
        if kind == "plan":  # a busy worker should be done
            self.held.plan_is_due = True
            return
        if kind == "refresh":
            self._refresh_is_due = True
            return
        request = self.requests[key]  # type: ignore[index]  # of all others the key is the request's id
        if request.phase is Phase.QUEUED:
            self._on_waited_too_long(request)
        elif request.phase is Phase.HELD and kind == "deadline":
            self._turn_away(request, "deadline")
            text = f"no worker of model {request.model!r} was free within the request's deadline"
            self._fail(request, DeadlineExceeded(text))
        elif request.phase is Phase.HELD:
            self._release(request)
        else:
            self._make_ready(request)

    def _on_clock_corrected(self, event: ClockCorrected) -> None:
        before_ms, self._not_before_ms = self._wall_ms, 0
        self._wall_offset_ms = event.wall_offset_ms
        if not self._queues:
            return  # no request has read the time yet
        if before_ms - self._wall_ms <= CLOCK_STANDS_MS:
            self._not_before_ms = before_ms

    def _on_load_changed(self, _: LoadChanged) -> None:
        for queue in self._queues.values():
            queue.share_until_us = 0
        self._refresh_is_due = bool(self.waiting)
        self.held.plan_is_due = True

    def _on_settings(self, event: SettingsReplaced) -> None:
        self._settings, self._revision = event.settings, event.revision
        self._on_load_changed(LoadChanged())

    def _refresh(self) -> None:
        """Queued requests have the free slots."""
        self._refresh_is_due = False
        for queue in self._queues.values():
            queue.share_until_us = 0
            if len(queue.fair_queue):
                self._advance(queue)
        if self.held.overloaded:
            self.held.plan_is_due = True
        self._refresh_later()

    def _refresh_later(self) -> None:
        if (self.waiting or self.held.overloaded) and ("refresh", "") not in self._timers:
            self._timers.set(("refresh", ""), self._now_us + REFRESH_EVERY_US)

    # --- the queue ---------------------------------------------------------------------------------------------

    def _on_arrived(self, event: Arrived) -> None:
        request = event.request
        request.arrived_us = self._now_us
        self.requests[request.id] = request
        queue = self._queues.get(request.model)
        if queue is None:
            queue = self._queues[request.model] = RequestQueue(request.model)
        sure = queue.active < queue.share and self._now_us < queue.share_until_us and not len(queue.fair_queue)
        if not sure and not self._advance(queue):
            self._enqueue(queue, request)
            return
        self._occupy_slot(queue, request)
        if request.prompt_tokens > LIGHT_TOKENS and not self._may_hold(request):
            self._make_ready(request)  # its decision and its record take milliseconds: one in each turn of the loop
        else:
            self._begin(request)

    def _occupy_slot(self, queue: RequestQueue, request: RoutedRequest) -> None:
        """The request has a slot."""
        queue.occupy_slot(request.tenant)
        request.slot_since_us = self._now_us

    def _capacity(self, model: str) -> Capacity | None:
        return find_capacity(self._current_view(), model, self._settings, self._inputs.slots)

    def _is_at_zero(self, model: str) -> bool:
        """True if no worker could take a request, and a planner starts one for those that wait. O(workers)."""
        return self._inputs.starts_from_zero(model) and self._capacity(model) is None

    def _advance(self, queue: RequestQueue) -> int:
        """Queued requests have the free slots; returns how many are left. O(workers + requests let in)."""
        capacity = self._capacity(queue.model)
        if capacity is None and self._inputs.starts_from_zero(queue.model):
            free = queue.share = 0
        elif capacity is None:  # the decision says why
            free, queue.share = len(queue.fair_queue) + 1, 0
        else:
            free, queue.share = capacity.free(queue.active, queue.admitted), capacity.share
            queue.share_until_us = self._now_us + SHARE_FRESH_US
        while free and len(queue.fair_queue):
            request = queue.fair_queue.pop()
            self._timers.cancel(("wait", request.id))
            self.counts.on_admitted(queue.model, (self._now_us - request.arrived_us) // US_PER_MS)
            self._occupy_slot(queue, request)
            request.is_admitted = True
            queue.admitted += 1
            self._make_ready(request)
            free -= 1
        return free

    def _enqueue(self, queue: RequestQueue, request: RoutedRequest) -> None:
        if not self._make_space(queue, request):
            return
        request.phase = Phase.QUEUED
        self._publish_queued(request, self._queue_reason(queue), len(queue.fair_queue), self._wall_ms)
        queue.fair_queue.push(request, request.priority, request.tenant, queue.work(request))
        self._timers.set(("wait", request.id), self._now_us + self._wait_limit_ms(request) * US_PER_MS)
        self._refresh_later()

    def _wait_limit_ms(self, request: RoutedRequest) -> int:
        longest_ms, deadline_ms = self._settings.queue_wait_max_ms, request.deadline_ms
        return longest_ms if deadline_ms is None else min(longest_ms, deadline_ms)

    def _queue_reason(self, queue: RequestQueue) -> str:
        if len(queue.fair_queue):
            return "behind"
        if self._is_at_zero(queue.model):
            return NO_WORKER
        capacity = self._capacity(queue.model)
        return "overloaded" if capacity is not None and capacity.overloaded and not capacity.slots else "full"

    def _make_space(self, queue: RequestQueue, request: RoutedRequest) -> bool:
        """True if the request may wait. If the queue was full, either another request left it, or this one was
        refused."""
        # the rate at which requests end says nothing about workers that are still to come
        is_at_zero = self._is_at_zero(queue.model)
        most = self._settings.queue_max if is_at_zero else queue.waiting_max(self._settings)
        if len(queue.fair_queue) < most:
            return True
        last = queue.fair_queue.crowded_out(request.priority, request.tenant) if most else None
        out = request if last is None else last
        retry_s, too_many = queue.retry_after_s(), queue.fair_queue.has_too_many(out.tenant, request.tenant)
        self._turn_away(out, "tenant_share" if too_many else "queue_full")
        busy = f"all workers of model {queue.model!r} are busy, and {len(queue.fair_queue)} requests wait for them"
        if too_many:
            text = f"{busy}, too many of them yours: send fewer at a time, or try again in {retry_s} s"
            self._fail(out, RateLimited(text, retry_s))
        else:
            self._fail(out, Overloaded(f"{busy}: try again in {retry_s} s", retry_s))
        return last is not None

    def _on_waited_too_long(self, request: RoutedRequest) -> None:
        queue, limit_ms = self._queues[request.model], self._wait_limit_ms(request)
        none = f"no worker of model {request.model!r} had a free place within {limit_ms / 1000:g} s"
        retry_s = queue.retry_after_s()
        if limit_ms == request.deadline_ms:
            self._turn_away(request, "deadline")
            self._fail(request, DeadlineExceeded(f"{none}, and that was the request's deadline"))
        else:
            self._turn_away(request, "queue_wait")
            self._fail(request, Overloaded(f"{none}: try again in {retry_s} s", retry_s))

    def _publish_queued(self, request: RoutedRequest, why: str, depth: int, now_ms: int) -> None:
        request.is_announced = True
        self._do(
            Publish(
                RequestQueued(
                    request=request.id,
                    model=request.model,
                    priority=request.priority,
                    tenant=request.tenant,
                    prompt_tokens=request.prompt_tokens,
                    why=why,
                    depth=depth,
                    now_ms=now_ms,
                )
            )
        )

    def _turn_away(self, request: RoutedRequest, reason: str) -> None:
        """The log and the metrics have that the request gets no worker; metrics count no held requests."""
        request.outcome = reason
        is_held = request.held_since_us >= 0
        if not is_held:
            self.counts.on_turned_away(request.model, reason)
        since_us = request.held_since_us if is_held else request.arrived_us
        self._do(
            Publish(
                RequestTurnedAway(
                    request=request.id,
                    model=request.model,
                    reason=reason,
                    status=TURNED_AWAY[reason],
                    waited_ms=(self._now_us - since_us) // US_PER_MS if request.is_announced else -1,
                    tenant=request.tenant,
                )
            )
        )

    # --- attempts ----------------------------------------------------------------------------------------------

    def _make_ready(self, request: RoutedRequest) -> None:
        request.phase = Phase.READY
        self._ready.append(request)

    def _begin(self, request: RoutedRequest) -> None:
        """The request's next attempt is under way, held, or refused."""
        if request.is_admitted:
            request.is_admitted = False
            self._queues[request.model].admitted -= 1
        try:
            if request.asked is not None:  # it was held, or waited for a worker
                self._decide(request)
                return
            request.prepare(self._now_us, RESUME_WAIT_US, self._learned_time(request.model))
            if self._may_hold(request):
                self._hold(request)
            else:
                self._decide(request)
        except Exception as error:  # noqa: BLE001  # a defect of one decision ends its request, and no other
            self._fail(request, error)

    def _decide(self, request: RoutedRequest) -> None:
        """The request is decided on alone, and sent; if there is no worker, it waits for one, or is refused."""
        asked, view = self._asked(request), self._decision_view()
        if request.hold_began_us >= 0 and self._settings.holds:
            asked = with_room(view, self._unbound(request, asked), self._settings, self._wall_ms)
        decision = decide_newest(view, asked, self._settings, self._wall_ms, self._draw_seed(asked))
        self._measure = Measure(self._settings.policy, 1)
        if decision.worker is not None:
            self._send(request, asked, decision)
        elif self._now_us < request.resume_until_us or self._awaits_join(request):
            self._wait_for_worker(request)
        elif self._awaits_start(request):
            if not request.is_announced:  # the planner counts the requests that the log has
                self._publish_queued(request, NO_WORKER, 0, self._wall_ms)
            self._wait_for_worker(request)
        else:
            self._reject(request, asked, decision, view)

    def _current_view(self) -> View:
        if self._view is None:
            self._view = self._inputs.view()
        return self._view

    def _decision_view(self) -> View:
        """The view for a decision, which the local reasons of workers precede in the log."""
        view = self._current_view()
        self._do(PublishLocal(view.local))
        return view

    def _asked(self, request: RoutedRequest) -> RouteRequest:
        """The input of the request's decision, with the prefill and load times that are learned by now."""
        asked, time = request.asked, self._learned_time(request.model)
        assert asked is not None
        load_time = self._learned_load_time(request.model, asked.prompt.block_size)
        if asked.time is not time or asked.load_time is not load_time:  # learned since the request was prepared
            asked = request.asked = asked._replace(time=time, load_time=load_time)
        asked = request.asked = self._with_load(asked, self._current_view(), self._now_us)
        fetches = request.may_fetch and self._settings.policy == FETCH_POLICY
        if fetches and self._current_view().state.fetchers():
            asked = asked._replace(fetching=self.fetches.busy(self._now_us))
        return asked

    def _with_load(self, asked: RouteRequest, view: View, now_us: int) -> RouteRequest:
        """The same with the load of its adapter, where workers have to load it."""
        if not asked.adapter:
            return asked
        return asked._replace(held=self._adapter_loads.waits_us(view.state.serving(), asked.adapter, now_us))

    def _learned_load_time(self, model: str, block_size: int) -> LoadTime | None:
        """The load times that the model's workers report, where the policy reads them."""
        if self._settings.policy != LOAD_TIME_POLICY:
            return None
        return self.load_times.time(self._current_view(), model, block_size, self._now_us)

    def _learned_time(self, model: str) -> PrefillTime | None:
        """The prefill time that this replica has learned, where the policy reads it."""
        settings = self._settings
        if settings.policy not in ESTIMATING_POLICIES or settings.prefill_us_per_token_m:
            return None
        return self.learned.time(model)

    def _draw_seed(self, asked: RouteRequest) -> int:
        drawn: int = xxhash.xxh3_64_intdigest(f"draw/{asked.id}/{asked.attempt}".encode(), self._seed)
        return drawn

    def _awaits_join(self, request: RoutedRequest) -> bool:
        longest_us = JOIN_WAIT_US
        if request.deadline_ms is not None:
            longest_us = min(longest_us, request.deadline_ms * US_PER_MS)
        return self._now_us < request.arrived_us + longest_us and self._inputs.awaits_join(request.model)

    def _awaits_start(self, request: RoutedRequest) -> bool:
        """True while a request without a token waits for a fleet's first worker: as long as it would in the queue."""
        if request.answer.delivered or not self._inputs.starts_from_zero(request.model):
            return False
        return self._now_us < request.arrived_us + self._wait_limit_ms(request) * US_PER_MS

    def _wait_for_worker(self, request: RoutedRequest) -> None:
        request.phase = Phase.WAITING
        self._timers.set(("retry", request.id), self._now_us + RETRY_US)

    def _send(self, request: RoutedRequest, asked: RouteRequest, decision: Decision, *, if_free: bool = False) -> None:
        assert decision.worker is not None
        assert request.payload is not None
        loading = asked.loading(self._settings)
        hint = Hint(
            attempt=asked.attempt,
            prefer=decision.prefer,
            prefer_tokens=decision.prefer_tokens,
            prefill_tokens=decision.prefill_tokens,
            if_free=if_free,
            pool_tokens=_pool_blocks(decision) * asked.prompt.block_size,
            skip_tiers=() if loading is None else loading.slow_tiers,
        )
        version = self._current_view().version_read
        routed = record(decision, asked, self._settings, self._revision, version)
        payload = request.payload
        if decision.fetch is not None and decision.fetch.source:
            payload = self._with_fetch(payload, decision.fetch, routed)
            self.fetches.begin(request.id, WorkerId(decision.fetch.source))
        self._do(Send(request, decision.worker, payload, hint))
        loads = False
        if asked.adapter:
            member = self._current_view().state.member(decision.worker)
            loads = self._adapter_loads.note(member, asked.adapter, self._now_us)
        if request.answer.delivered:
            self._do(Publish(request.migration_event()))
        request.start(routed, self._now_us)
        self.running_prompts.begin(decision.worker, request.id, routed.hashes)
        request.loads_adapter = loads
        self._do(Publish(routed))
        if len(self.held):
            self.held.charge(request, decision.prefill_tokens)

    def _with_fetch(self, payload: GenerateRequest, fetch: PrefixFetch, routed: RequestRouted) -> GenerateRequest:
        """The payload with the address of the fetch's source, and the place in the prompt where the fetch begins."""
        address = self._current_view().state.fetchers()[WorkerId(fetch.source)]
        blocks = routed.predicted_cached_tokens // routed.block_size
        own_blocks = blocks - fetch.tokens // routed.block_size
        source = FetchSource(host=address.host, port=address.port, blocks=blocks, own_blocks=own_blocks)
        return replace(payload, fetch=source)

    def _reject(self, request: RoutedRequest, asked: RouteRequest, decision: Decision, view: View) -> None:
        event = rejection(decision, asked, self._revision, 500 if request.answer.delivered else 503)
        self._do(Publish(event))
        request.outcome = event.reason
        self._fail(request, request.client_error(_no_worker(asked, decision, view)))

    def _on_output(self, event: OutputArrived) -> None:
        request = self._running(event.id, event.attempt)
        if request is None:
            return
        output = event.output
        request.attempt_tokens += len(output.tokens)
        if request.first_token_us < 0 and (output.tokens or output.finish):
            self._on_first_output(request, output, event.at_us)
        elif output.cached_tokens is not None:
            request.cached_tokens = output.cached_tokens
        try:
            new = request.answer.accept(output)
        except GenerationFailed as error:
            self._do(CancelAttempt(request))
            self._finish(request, "error", str(error))
            self._fail(request, error)
            return
        if output.finish is not None:
            self.residence.note(request.model, event.at_us - request.sent_us)
            self._finish(request, output.finish, at_us=event.at_us)
            self._free_slot(request, is_whole=True)
        if new is not None:
            self._do(Deliver(request, new))
        if output.finish is not None:
            self._complete(request)

    def _running(self, id: RequestId, attempt: int | None = None) -> RoutedRequest | None:
        """The request if this attempt at it, or any one, is under way."""
        request = self.requests.get(id)
        if request is None or request.phase is not Phase.RUNNING or attempt not in {None, request.attempt}:
            return None
        return request

    def _on_first_output(self, request: RoutedRequest, output: Output, at_us: int) -> None:
        routed = request.routed
        assert routed is not None
        self._do(Publish(request.prefilled_event(output, at_us)))
        self.fetches.end(request.id)
        if output.cached_tokens is not None:
            self.fetches.came(routed, output.cached_tokens, self._now_us)
        request.flowing = request.answer.passthrough
        self.held.plan_is_due = True  # a prefill is over: the worker may take a held request
        if output.prefill is not None:
            self.prefills.note(routed.model, output.prefill)
        is_remote = output.prefill is not None and output.prefill.remote
        if routed.policy in ESTIMATING_POLICIES and not (routed.wait_us or is_remote or routed.expects_load):
            cached = request.cached_tokens
            if cached == CACHED_UNKNOWN:
                cached = routed.predicted_cached_tokens
            computed = routed.prompt_tokens - cached
            took_us = at_us - request.sent_us
            if not request.loads_adapter:
                self.learned.note(routed.model, computed, took_us, self._now_us)
            elif routed.adapter is not UNSET:
                own_us = PrefillTime.of(self._settings, self.learned.time(routed.model)).us(computed)
                worker = WorkerId(routed.worker)
                self._adapter_loads.learn(worker, routed.adapter, request.sent_us, took_us - own_us)

    def _finish(self, request: RoutedRequest, outcome: str, detail: str = "", at_us: int | None = None) -> None:
        """The attempt under way has ended; RequestFinished is on its way to the log."""
        self._do(Publish(request.finished_event(outcome, self._now_us if at_us is None else at_us, detail)))
        self.fetches.end(request.id)
        self.running_prompts.end(request.worker, request.id)
        request.routed, request.flowing = None, False
        self.held.plan_is_due = True  # the worker may take a held request

    def _on_broke(self, event: AttemptBroke) -> None:
        request = self._running(event.id, event.attempt)
        if request is None:
            return
        match event.error:
            case WorkerDeclined() as error:
                self._on_declined(request, error)
            case WorkerDisconnected() as error:
                self._on_worker_lost(request, error)
            case CallerError() as error:
                self._finish(request, "error", REFUSED)
                request.outcome = REFUSED
                self._fail(request, request.client_error(error))
            case error:
                self._finish(request, "error", type(error).__qualname__)
                self._fail(request, error)

    def _on_declined(self, request: RoutedRequest, error: WorkerDeclined) -> None:
        """The request is ready to be held again, and the tokens that the worker computes for others count there."""
        worker = request.worker
        if request.declined >= DECLINED_MAX:  # it was sent without condition: the worker cannot serve it
            self._on_worker_lost(request, WorkerDisconnected(error.detail))
            return
        self._finish(request, "declined", error.detail)
        time = PrefillTime.of(self._settings, self.learned.time(request.model))
        until_us = self._now_us + time.us(error.tokens)
        self.busy_workers.note(worker, error.tokens, until_us)
        self._timers.set(("plan", worker), until_us)
        request.declined += 1
        request.attempt += 1
        self._make_ready(request)

    def _on_worker_lost(self, request: RoutedRequest, error: WorkerDisconnected) -> None:
        """Another worker continues the answer, if the retry budget has one more attempt."""
        answer, worker, is_leaving = request.answer, request.worker, isinstance(error, WorkerLeaving)
        self._finish(request, "worker_lost", str(error))
        self._do(WorkerFailed(request, worker, str(error)))
        if answer.complete:  # only its end was not delivered
            self._free_slot(request, is_whole=True)
            self._do(Deliver(request, Output(finish="length")))
            self._complete(request)
            return
        try:
            request.retries.spend(answer.delivered, str(error), leaving=is_leaving, repeating=answer.repeating)
        except (NoWorkers, GenerationFailed) as failure:
            request.outcome = "worker_lost"
            self._fail(request, failure)
            return
        request.previous_worker, request.failure = worker, str(error)
        request.attempt += 1
        if is_leaving and not request.attempt_tokens and answer.delivered:
            self._wait_for_worker(request)  # the worker that refused it may be the only one until the log has others
        else:
            self._make_ready(request)

    # --- late binding ------------------------------------------------------------------------------------------

    def _may_hold(self, request: RoutedRequest) -> bool:
        """True if the request's next attempt may be held: the first one, or one after workers that declined. Not for a
        model with prefill workers: there a decode worker is idle before the first token. Not while the log is away:
        the requests that other replicas send are unknown then."""
        if request.attempt != request.declined or request.declined == DECLINED_MAX:
            return False
        if not (self._settings.holds and self._budget.has_time(self._now_us)):
            return False
        state = self._current_view().state
        if state.has_prefill_workers(request.model):
            return False
        return len(state.routing.replicas) <= 1 or not self._inputs.is_log_away()

    def _hold(self, request: RoutedRequest) -> None:
        """The request is held. It is sent at once if no other is held, its prompt is light and the best worker is
        free."""
        request.hold_began_us = self._now_us
        if request.held_since_us < 0:
            request.held_since_us = self._now_us
        if not len(self.held) and request.prompt_tokens <= LIGHT_TOKENS:
            planned = self._plan([request])
            if planned is not None and planned.decision.worker is not None:
                self._send(request, planned.request, planned.decision, if_free=True)
                return
        request.phase = Phase.HELD
        self.held.add(request)
        until_us = request.held_since_us + self._settings.hold_max_ms * US_PER_MS
        if request.deadline_ms is not None and request.arrived_us + request.deadline_ms * US_PER_MS <= until_us:
            self._timers.set(("deadline", request.id), request.arrived_us + request.deadline_ms * US_PER_MS)
        else:
            self._timers.set(("hold", request.id), until_us)
        most = held_max(self._inputs.connected(request.model))
        if len(self.held) > most:
            for each in self.held.of(request.model)[:-most]:
                self._release(each)

    def _unhold(self, request: RoutedRequest) -> None:
        """The request is not held any more."""
        self.held.remove(request)
        self._timers.cancel(("hold", request.id))
        self._timers.cancel(("deadline", request.id))

    def _release(self, request: RoutedRequest) -> None:
        """The request is to be decided on alone."""
        self._unhold(request)
        self._make_ready(request)

    def _plan_held(self) -> None:
        """The next held request that can be bound is sent; without one the round is over."""
        while (model := self.held.next_model()) is not None:
            if self._bind_next(model):
                return  # the next plan sees this decision
            if self.held.model_planned():
                for depth, each in self.held.announce():
                    self._publish_queued(each, HELD, depth, self._wall_offset_ms + each.held_since_us // US_PER_MS)
        self._refresh_later()

    def _bind_next(self, model: str) -> bool:
        """True if a held request of the model was sent. Others may have been released, or found overloaded."""
        while queue := self.held.to_plan(model):
            if not (self._settings.holds and self._budget.has_time(self._now_us)):
                for each in self.held.all():  # else those that come now would overtake them
                    self._release(each)
                return False
            try:
                planned = self._plan(queue)
            except Exception:  # noqa: BLE001  # each is decided on alone then, and fails alone
                for each in queue:
                    self._release(each)
                return False
            if planned is None:
                return False
            request = self.requests[planned.request.id]
            if planned.decision.worker is not None:
                self._unhold(request)
                self._send(request, planned.request, planned.decision, if_free=True)
                return True
            if OVERLOADED in planned.decision.excluded:
                self.held.overloaded.add(request.id)
            else:
                self._release(request)
        return False

    def _plan(self, queue: list[RoutedRequest]) -> PlannedRequest | None:
        view = self._decision_view()
        unbound = [self._unbound(each, self._asked(each)) for each in queue]
        busy_us: dict[WorkerId, int] = {}
        if self.busy_workers.stand:
            known = tokens_in_progress(view.outstanding(), self._settings, self._wall_ms)
            busy_us = self.busy_workers.busy_us(known, self._now_us)
        planned = plan(view, unbound, self._settings, self._wall_ms, busy_us)
        self._measure = Measure("" if planned is None else self._settings.policy, len(queue))
        return planned

    def _unbound(self, request: RoutedRequest, asked: RouteRequest) -> UnboundRequest:
        since_ms = self._wall_offset_ms + request.held_since_us // US_PER_MS
        start, residence_us = self.held.start(request), self.residence.us(request.model)
        return UnboundRequest(asked, since_ms, self._draw_seed(asked), start, residence_us, self.running_prompts)

    def _on_plan_took(self, event: PlanTook) -> None:
        """Charges the budget with the plan, without one request's share: a decision costs that without holding, too."""
        self._budget.spend(event.us - event.us // event.queued)

    # --- ends --------------------------------------------------------------------------------------------------

    def _on_reader_stopped(self, event: ReaderStopped) -> None:
        request = self._running(event.id)
        if request is not None:
            self._do(CancelAttempt(request))
            self._finish(request, event.outcome, event.detail)
            self._free_slot(request, is_whole=event.is_whole)
            self._complete(request)

    def _on_client_gone(self, event: ClientGone) -> None:
        request = self.requests.get(event.id)
        if request is None:
            return
        if request.phase is Phase.RUNNING:
            self._do(CancelAttempt(request))
            self._finish(request, event.outcome, event.detail)
            self._free_slot(request, is_whole=event.is_whole)
        elif request.is_announced or request.declined:
            self._turn_away(request, event.reason)
        self._end(request)

    def _on_draining(self, _: Draining) -> None:
        for request in list(self.requests.values()):
            if request.phase is Phase.QUEUED:
                self._turn_away(request, "stopping")
                self._fail(request, NoWorkers("this server is stopping: try again"))
            elif request.phase is Phase.HELD:
                self._release(request)

    def _complete(self, request: RoutedRequest) -> None:
        self._end(request)
        self._do(Complete(request))

    def _fail(self, request: RoutedRequest, error: Exception) -> None:
        self._end(request)
        self._do(Fail(request, error))

    def _end(self, request: RoutedRequest) -> None:
        """The request is in no queue, timer or slot any more."""
        if request.phase is Phase.QUEUED:
            self._queues[request.model].fair_queue.remove(request)
            self._timers.cancel(("wait", request.id))
        elif request.phase is Phase.HELD:
            self._unhold(request)
        self._timers.cancel(("retry", request.id))
        self._free_slot(request, is_whole=False)
        request.phase = Phase.ENDED
        del self.requests[request.id]

    def _free_slot(self, request: RoutedRequest, *, is_whole: bool) -> None:
        """The request has no slot any more; a queued one gets it in the next Tick. The running means count a whole
        answer."""
        if request.slot_since_us < 0:
            return
        queue = self._queues[request.model]
        queue.free_slot(request.tenant)
        if request.is_admitted:
            request.is_admitted = False
            queue.admitted -= 1
        if is_whole:
            queue.learn((self._now_us - request.slot_since_us) // US_PER_MS, request.answer.delivered)
        request.slot_since_us = -1
        self._refresh_is_due = self._refresh_is_due or len(queue.fair_queue) > 0


def _no_worker(asked: RouteRequest, decision: Decision, view: View) -> NoWorkers:
    """The error for the client of a request that no worker can take."""
    reasons = {reason: len(ids) for reason, ids in decision.excluded.items() if reason != "other_model"}
    text = ", ".join(f"{count} {reason.replace('_', ' ')}" for reason, count in reasons.items())
    if not text and view.state.has_prefill_workers(asked.model):
        text = f"it {ONLY_PREFILL}"
    text = f"no worker can take requests for model {asked.model!r} now ({text or 'none is there'})"
    return Overloaded(text) if rejection_reason(decision.excluded) == OVERLOADED else NoWorkers(text)


def _pool_blocks(decision: Decision) -> int:
    """Blocks of the prompt's start that the chosen worker has with its pools; 0 if it has as many without them."""
    overlap = decision.ranked[0].candidate.overlap
    return overlap[-1] if len(overlap) > POOLS and overlap[-1] > overlap[POOLS - 1] else 0


def _tenants(queue: RequestQueue) -> list[dict[str, Any]]:
    """Active requests by tenant: the busiest by name, then the others together."""
    shown: Counter[str] = Counter(dict(queue.tenants.most_common(TENANTS_SHOWN)))
    if others := queue.active - sum(shown.values()):
        shown[OTHERS] += others  # a tenant may have that name: one label, one number
    return [{"model": queue.model, "tenant": tenant, "active": count} for tenant, count in shown.items()]
