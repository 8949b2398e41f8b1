"""SimulatedReplica: one router of a simulation, with its request queue and its view of free slots."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from collections.abc import Set as AbstractSet
from functools import partial
from math import ceil
from typing import NamedTuple

from actors.consistency.digest_checkpoints import CHECKPOINT_EVERY, DigestCheckpoints
from actors.consistency.digest_exchange import REPORT_EVERY_MS
from actors.router.admission import SHARE_FRESH_MS
from actors.router.capacity import SPARE_PART, WITH_PREFILL, Capacity
from actors.router.late_binding import OVERLOADED
from actors.router.request_queue import RETRY_AFTER_MAX_S, RequestQueue
from actors.router.routing_publisher import LIMITS
from core.events import (
    Event,
    LocalChanged,
    ReplicaJoined,
    RequestFinished,
    RequestPrefilled,
    RequestRouted,
    SettingsChanged,
)
from core.events.routing import HELD, TURNED_AWAY, RequestQueued, RequestTurnedAway
from core.generation import GenerateRequest, Sampling
from core.ids import ReplicaId, RequestId, WorkerId
from core.settings import RoutingSettings
from core.subjects import ROUTING
from projections.folds.pending_events import PendingEvents
from projections.folds.state import State
from projections.policy.binding_plan import BusyWorkers, UnboundRequest, plan, tokens_in_progress
from projections.policy.cost import ESTIMATING_POLICIES
from projections.policy.decide import Decision, decide, record, rejection
from projections.policy.fair_queue import FairQueue
from projections.policy.prefill_time import PrefillTime, PrefillTimeModel
from projections.policy.view import Local, RouteRequest, View, local_by_worker
from replay.simulate.simulated_log import CHAIN_KEY, EPOCH, SimulatedLog, SimulatedSource
from replay.simulate.simulated_request import MODEL, SimulatedRequest
from replay.simulate.virtual_time import Agenda


def room(
    state: State, ahead: PendingEvents, gone: AbstractSet[WorkerId], settings: RoutingSettings, slots: int
) -> Capacity | None:
    """As `actors.router.capacity.CapacityCalculator.of`, which tells more kinds of workers apart: here one is connected
    or gone, and each engine runs as many requests as `slots`. O(workers)."""
    usable: list[WorkerId] = []
    overloaded = False
    for member in state.serving():
        worker, report = member.worker, state.loads.reports.get(member.worker)
        if worker in gone or (report is not None and report.draining):
            continue
        if report is not None and report.waiting >= settings.waiting_max:
            overloaded = True
        else:
            usable.append(worker)
    if not (usable or overloaded):
        return None
    each = slots * WITH_PREFILL if state.prefilling() else slots + -(-slots // SPARE_PART)
    taken = sum(
        tally[worker].requests
        for worker in usable
        for tally in (state.routing.in_flight_load.busy, ahead.in_flight_load.busy)
        if worker in tally
    )
    return Capacity(len(usable) * (settings.active_max or each), taken, max(1, len(state.routing.replicas)), overloaded)


US_PER_MS = 1000


class SimulatedAdmission:
    """The request queue of one replica: a request goes on when a worker has a slot for it.

    Order, bounds and events are those of the live router's admission. No client disconnects here, and no request has a
    deadline. Nothing needs more of the loop's time than it has, so an admitted request goes on at that moment.
    """

    def __init__(
        self,
        settings: RoutingSettings,
        agenda: Agenda,
        log: SimulatedLog,
        *,
        room: Callable[[], Capacity | None],
        say: Callable[[Event], None],
        let_in: Callable[[SimulatedRequest], None],
        turned_away: Callable[[SimulatedRequest, str, int], None],
    ) -> None:
        """`room` is of now; `let_in` hears of those that waited and have a place, `turned_away` of those that get none,
        of the reason (`TURNED_AWAY`), and after how many seconds their clients are told to try again."""
        self._settings = settings
        self._agenda = agenda
        self._log = log
        self._room = room
        self._say = say
        self._let_in = let_in
        self._turned_away = turned_away
        self._line = RequestQueue(MODEL)
        """Counts; those that wait stand in the queue here."""
        self._queue = FairQueue[SimulatedRequest]()
        self._timers: dict[RequestId, int] = {}
        """Of those that wait: the number in the agenda of the moment when that was too long."""

    def __repr__(self) -> str:
        return f"<SimulatedAdmission {self._line.active} active, {len(self._queue)} waiting>"

    def __len__(self) -> int:
        """How many wait."""
        return len(self._queue)

    @property
    def now_ms(self) -> int:
        """A clock that never goes back."""
        return self._agenda.now_us // US_PER_MS

    def enter(self, request: SimulatedRequest) -> bool:
        """Whether the request has a place; if not it waits, or was turned away."""
        line = self._line
        sure = line.active < line.share and self.now_ms < line.share_until_ms and not len(self._queue)
        if sure or self._advance():
            self._place(request)
            return True
        if self._make_way(request):
            self._wait(request)
        return False

    def ended(self, request: SimulatedRequest, *, whole: bool) -> None:
        """If the request had a place, the next one has it; `whole` if it was answered."""
        if request.placed_us < 0:
            return
        self._line.end(request.arrival.tenant)
        if whole:
            self._line.learn(self.now_ms - request.placed_us // US_PER_MS, request.told)
        if len(self._queue):
            self._advance()

    def look(self) -> None:
        """Whoever waits and need not has been let in."""
        self._line.share_until_ms = 0
        if len(self._queue):
            self._advance()

    # --- places ------------------------------------------------------------------------------------------------

    def _advance(self) -> int:
        """Whoever may go now goes on at this time; returns how many places are left."""
        line, room = self._line, self._room()
        if room is None:  # the decision says why
            free, line.share = len(self._queue) + 1, 0
        else:
            free, line.share = room.free(line.active, line.coming), room.share
            line.share_until_ms = self.now_ms + SHARE_FRESH_MS
        while free and len(self._queue):
            request = self._queue.pop()
            self._agenda.cancel(self._timers.pop(request.arrival.id))
            self._place(request)
            line.coming += 1
            self._agenda.put(self._agenda.now_us, partial(self._go, request))
            free -= 1
        return free

    def _place(self, request: SimulatedRequest) -> None:
        self._line.begin(request.arrival.tenant)
        request.placed_us = self._agenda.now_us

    def _go(self, request: SimulatedRequest) -> None:
        self._line.coming -= 1
        self._let_in(request)

    def _wait(self, request: SimulatedRequest) -> None:
        """The log knows that it waits, and it has its place in the order."""
        it = request.arrival
        self._say(
            RequestQueued(
                request=it.id,
                model=MODEL,
                priority=it.priority,
                tenant=it.tenant,
                prompt_tokens=it.prompt_tokens,
                why=self._why(),
                depth=len(self._queue),
                now_ms=self._log.now_ms,
            )
        )
        answer = GenerateRequest(id=it.id, tokens=b"", sampling=Sampling(max_tokens=it.output_tokens))
        self._queue.push(request, it.priority, it.tenant, it.prompt_tokens + self._line.work(answer))
        until_us = self._agenda.now_us + self._settings.queue_wait_max_ms * US_PER_MS
        self._timers[it.id] = self._agenda.put(until_us, partial(self._turn_away, request, "queue_wait"))

    def _why(self) -> str:
        if len(self._queue):
            return "behind"
        room = self._room()
        return "overloaded" if room is not None and room.overloaded and not room.places else "full"

    # --- refusals ----------------------------------------------------------------------------------------------

    def _make_way(self, request: SimulatedRequest) -> bool:
        """Whether one more may wait; if that is one too many, another left, or this one was turned away."""
        it, most = request.arrival, self._line.waiting_max(self._settings)
        if len(self._queue) < most:
            return True
        last = self._queue.crowded_out(it.priority, it.tenant) if most else None
        if last is None:
            self._turn_away(request, self._crowded(request, request))
            return False
        self._turn_away(last, self._crowded(last, request))
        return True

    def _crowded(self, out: SimulatedRequest, comes: SimulatedRequest) -> str:
        """Why `out` has to leave or may not wait because `comes` does not fit in."""
        too_many = self._queue.has_too_many(out.arrival.tenant, comes.arrival.tenant)
        return "tenant_share" if too_many else "queue_full"

    def _turn_away(self, request: SimulatedRequest, reason: str) -> None:
        """It gets no place, and waits no more if it did."""
        retry_s = max(1, min(RETRY_AFTER_MAX_S, ceil(self._line.wait_ms(len(self._queue)) / 1000)))
        it, waited = request.arrival, self._queue.remove(request)
        if waited:
            self._agenda.cancel(self._timers.pop(it.id))
        self._say(
            RequestTurnedAway(
                request=it.id,
                model=MODEL,
                reason=reason,
                status=TURNED_AWAY[reason],
                waited_ms=self.now_ms - request.arrived_us // US_PER_MS if waited else -1,
                tenant=it.tenant,
            )
        )
        self._turned_away(request, reason, retry_s)


PACE_US = round(LIMITS.pace_s * 1_000_000)
"""From one message to the next at least; what comes after a pause goes at once."""
REPORT_EVERY_US = REPORT_EVERY_MS * 1000
REVISION = 0
"""Of the settings: they hold for the whole run."""


class PendingDecision(NamedTuple):
    """A decision with all that its record needs."""

    asked: RouteRequest
    """With what the replica has learned."""
    decision: Decision
    alone: bool
    """The worker has no outstanding prefills, and it is of interest how long this one lasts."""
    if_free: bool = False
    """The worker may decline."""


class SimulatedReplica:
    """One router: its own folds of the log, its own lag, its own decisions.

    It folds the messages that it has by now when it decides, or when there are many. Its own events count for itself
    at once. They go to the log a little later, together with the events of the meantime, as a live replica's do.
    """

    def __init__(
        self,
        id: ReplicaId,
        name: str,
        lag_us: int,
        settings: RoutingSettings,
        agenda: Agenda,
        log: SimulatedLog,
        freed: Callable[[], None],
    ) -> None:
        """`freed` is called when the log has first tokens or ends from here: a worker may be free for what others
        hold."""
        self.id = id
        self.lag_us = lag_us
        self._freed = freed
        self._settings = settings
        self._agenda = agenda
        self._log = log
        self._reader = log.reader(lag_us, self._catch_up)
        self._source = SimulatedSource(log, ROUTING, id)
        self._state = State(CHAIN_KEY)
        for stream in log.streams:
            self._state.open(stream, EPOCH)
        self._milestones = DigestCheckpoints(self._state)
        self._reported_us = 0
        self._ahead = PendingEvents()
        self._learns = settings.policy in ESTIMATING_POLICIES and not settings.prefill_us_per_token_m
        self._learned = PrefillTimeModel()
        self._alone: dict[tuple[str, int], tuple[int, int]] = {}
        """Attempts that were sent to a worker without outstanding prefills, of which no token has come: when, and the
        length of the prompt."""
        self._declines = BusyWorkers()
        self._held: dict[RequestId, UnboundRequest] = {}
        """In the order in which they came."""
        self._held_told: set[RequestId] = set()
        """Those of them of which the log knows that they wait."""
        self.stuck: set[RequestId] = set()
        """Those of them that nobody took at the last plan, since too much waits in the engines."""
        self._waiting: list[Event] = []
        """Said, and not in the log yet."""
        self._appended_us = -PACE_US
        self._local: dict[WorkerId, tuple[str, ...]] = {}
        self.say(ReplicaJoined(name=name, version="simulated"))
        self.say(SettingsChanged(revision=REVISION, settings=settings.to_mapping()))

    def __repr__(self) -> str:
        return f"<SimulatedReplica {self.id}, {self._state!r}, {self._ahead!r}>"

    def say(self, event: Event) -> None:
        """It counts here at once, and is on its way to the log."""
        if self._alone and isinstance(event, RequestPrefilled | RequestFinished):
            self._learn(event)
        self._ahead.emit(event, self._state.routing.replicas.get(self.id))
        if not self._waiting:
            self._agenda.put(self._appended_us + PACE_US, self.flush)
        self._waiting.append(event)

    def _learn(self, event: RequestPrefilled | RequestFinished) -> None:
        """The first token of a request that had nothing to wait for tells how long a prefill lasts."""
        sent = self._alone.pop((event.request, event.attempt), None)
        if sent is not None and isinstance(event, RequestPrefilled):
            sent_us, prompt_tokens = sent
            self._learned.note(MODEL, prompt_tokens - event.cached_tokens, self._agenda.now_us - sent_us)

    def flush(self) -> None:
        """The log has all that was said."""
        if self._waiting:
            self._appended_us = self._agenda.now_us
            waiting, self._waiting = self._waiting, []
            self._source.say(waiting)
            if any(isinstance(event, RequestPrefilled | RequestFinished) for event in waiting):
                self._freed()

    def decide(self, asked: RouteRequest, gone: set[WorkerId], seed: int) -> PendingDecision:
        """Made now; nothing is said of it yet, but what it rests on is. `gone` are workers that have no connection any
        more."""
        return self._choice(asked, self._look(gone), seed)

    def room(self, gone: set[WorkerId], slots: int) -> Capacity | None:
        """The places that it sees now; each engine runs so many requests as `slots`."""
        self._catch_up()
        return room(self._state, self._ahead, gone, self._settings, slots)

    def hold(self, asked: RouteRequest, since_ms: int, seed: int) -> None:
        """The request waits here for the right worker."""
        self._held[asked.id] = UnboundRequest(asked, since_ms, seed)

    def declined(self, worker: WorkerId, tokens: int) -> int:
        """The worker would not take a held request, because it computes so much for others; returns until when that
        counts."""
        until_us = self._agenda.now_us + PrefillTime.of(self._settings, self._learned.time(MODEL)).us(tokens)
        self._declines.note(worker, tokens, until_us)
        return until_us

    @property
    def holds(self) -> int:
        """How many requests wait here."""
        return len(self._held)

    @property
    def first_held(self) -> RequestId:
        """The one of them that came first."""
        return next(iter(self._held))

    def let_go(self, request: RequestId) -> RouteRequest | None:
        """The request waits no more; None if it did not."""
        held = self._held.pop(request, None)
        self._held_told.discard(request)
        self.stuck.discard(request)
        return None if held is None else held.request

    def plan(self, gone: set[WorkerId]) -> Iterator[PendingDecision]:
        """Those of all that wait that go now, or that nobody can serve; they wait no more. Each is to be said before
        the next one is asked for. Behind the last one the log knows who stays: also whoever could go nowhere, since too
        much waits in the engines."""
        self.stuck.clear()
        while held := [each for name, each in self._held.items() if name not in self.stuck]:
            view = View(self._state, self.id, self._ahead, self._look(gone))
            queue = [each._replace(request=self._informed(each.request)) for each in held]
            known = tokens_in_progress(view.outstanding(), self._settings, self._log.now_ms)
            busy_us = self._declines.busy_us(known, self._agenda.now_us)
            planned = plan(view, queue, self._settings, self._log.now_ms, busy_us)
            if planned is None:
                break
            request, decision = planned
            if decision.worker is None and OVERLOADED in decision.excluded:
                self.stuck.add(request.id)
                continue
            self.let_go(request.id)
            alone = self._learns and decision.worker not in view.outstanding()
            yield PendingDecision(request, decision, alone, if_free=True)
        self._tell_held()

    def _tell_held(self) -> None:
        """As `actors.router.late_binding`."""
        for depth, (request, held) in enumerate(self._held.items()):
            if request not in self._held_told and not held.request.attempt:
                self._held_told.add(request)
                self.say(_queued(held, depth))

    def would_choose(self, asked: RouteRequest, gone: set[WorkerId], seed: int) -> WorkerId | None:
        """The worker that it would send the request to, if it were asked now; nothing comes of it."""
        self._catch_up()
        return self._choice(asked, self._local_of(gone), seed).decision.worker

    def record(self, choice: PendingDecision) -> RequestRouted:
        """The decision is said; it chose a worker, which has the request now."""
        routed = record(choice.decision, choice.asked, self._settings, REVISION)
        if choice.alone:
            self._alone[routed.request, routed.attempt] = (self._agenda.now_us, routed.prompt_tokens)
        self.say(routed)
        return routed

    def reject(self, choice: PendingDecision, *, begun: bool) -> str:
        """It is said that nobody could serve the request, or go on with an answer that was begun; returns the
        reason."""
        said = rejection(choice.decision, choice.asked, REVISION, 500 if begun else 503)
        self.say(said)
        return said.reason

    def _look(self, gone: set[WorkerId]) -> Local:
        """All that this replica has by now is folded, and what only it knows is said."""
        self._catch_up()
        self._report()
        local = self._local_of(gone)
        self._say_local(local_by_worker(local))
        return local

    def _choice(self, asked: RouteRequest, local: Local, seed: int) -> PendingDecision:
        view, asked = View(self._state, self.id, self._ahead, local), self._informed(asked)
        decision = decide(view, asked, self._settings, self._log.now_ms, seed)
        return PendingDecision(asked, decision, alone=self._learns and decision.worker not in view.outstanding())

    def _informed(self, asked: RouteRequest) -> RouteRequest:
        return asked._replace(time=self._learned.time(asked.model)) if self._learns else asked

    def _local_of(self, gone: set[WorkerId]) -> Local:
        """What only this replica knows: of workers that live, as far as the log told it, those that are gone."""
        down = frozenset(gone.intersection([member.worker for member in self._state.alive()]) if gone else ())
        return {"not_connected": down} if down else {}

    def _report(self) -> None:
        """The log hears now and then what the folds are, so that whoever has it can compare."""
        if self._agenda.now_us - self._reported_us >= REPORT_EVERY_US:
            self._reported_us = self._agenda.now_us
            found = self._milestones.report()
            if found is not None:
                self.say(found)

    def _say_local(self, now: dict[WorkerId, tuple[str, ...]]) -> None:
        for worker in sorted(now.keys() | self._local.keys()):
            reasons = now.get(worker, ())
            if reasons != self._local.get(worker, ()):
                self.say(LocalChanged(worker=worker, reasons=reasons))
        self._local = now

    def _catch_up(self) -> None:
        """All that this replica has by now is folded."""
        fold, read_back = self._state.fold, self._ahead.read_back
        for stream, seq, _, owner, head, message in self._reader.until(self._agenda.now_us):
            fold(stream, seq, owner, message, head)
            if not seq % CHECKPOINT_EVERY:
                self._milestones.passed(stream, seq)
            if owner == self.id and message is not None:
                for event in message.events:
                    read_back(event)  # type: ignore[arg-type]  # what we wrote is of types that we know


def _queued(held: UnboundRequest, depth: int) -> RequestQueued:
    asked = held.request
    return RequestQueued(
        request=asked.id,
        model=asked.model,
        priority=asked.priority,
        tenant=asked.tenant,
        prompt_tokens=asked.prompt.tokens,
        why=HELD,
        depth=depth,
        now_ms=held.since_ms,
    )
