"""A replica's own events: the sum of what is folded and what is ahead never jumps, wherever the log stands."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

from hypothesis import example, given, settings
from hypothesis import strategies as st

from core.events import Event, ReplicaJoined, RequestFinished, RequestPrefilled, RequestRouted, SettingsChanged
from core.ids import Epoch, ReplicaId, StreamName, StreamSeq, WorkerId
from core.settings import RoutingSettings
from core.subjects import ROUTING
from projections.folds.in_flight import AttemptKey, InFlight, OutstandingPrefill
from projections.folds.pending_events import PendingEvents
from projections.folds.routing_fold import in_flight
from projections.folds.state import State
from projections.policy.view import View
from tests.projections.facts import finished, prefilled, prompt, replica_restated, routed, worker_id
from tests.projections.speaker import CHAIN_KEY, Said, Speaker

R, OTHER = ReplicaId("ee" * 8), ReplicaId("dd" * 8)
WORKERS = [WorkerId(worker_id(number)) for number in range(3)]
PROMPTS = [prompt(1), prompt(1, 2), prompt(1, 2, 3, 4), prompt(1, 2, 5), prompt(6, 7), prompt(extra=2)]
MODELS = ("tiny", "small")


class Sums(NamedTuple):
    """What a decision sees of requests in flight."""

    busy: list[tuple[int, int, int]]
    routed: list[int]
    pending: list[dict[WorkerId, int]]
    outstanding: dict[WorkerId, list[OutstandingPrefill]]


def seen(state: State, ahead: PendingEvents) -> Sums:
    view = View(state, R, ahead, {})
    sums = [
        [tally.busy.get(worker) for tally in (state.routing.in_flight_load, ahead.in_flight_load)] for worker in WORKERS
    ]
    return Sums(
        [
            (
                sum(busy.blocks for busy in both if busy),
                sum(busy.requests for busy in both if busy),
                sum(busy.prefill_tokens for busy in both if busy),
            )
            for both in sums
        ],
        [view.routed(model) for model in MODELS],
        [{worker: depth for worker, depth in view.pending(asked).items() if depth} for asked in PROMPTS],
        {worker: sorted(prefills) for worker, prefills in view.outstanding().items()},
    )


def held(state: State, ahead: PendingEvents) -> list[Mapping[WorkerId, tuple[int, ...]]]:
    """What a decision under `approximate` takes workers to hold of each prompt."""
    view = View(state, R, ahead, {})
    return [view.cached(asked, RoutingSettings(policy="approximate"), now_ms=1000) for asked in PROMPTS]


class Log:
    """A state that hears what two replicas said."""

    def __init__(self) -> None:
        self.state = State(CHAIN_KEY)
        self.state.open(ROUTING, Epoch(1))
        self._hear(Speaker(ROUTING, OTHER).say(routed("other", WORKERS[0], PROMPTS[2])))
        self._speaker = Speaker(ROUTING, R)

    def fold(self, *events: Event) -> None:
        self._hear(self._speaker.say(*events))

    def _hear(self, said: Said) -> None:
        seq = StreamSeq(self.state.cursor[ROUTING].seq + 1)
        self.state.apply(StreamName(ROUTING), seq, said.subject, said.payload)


class Router:
    """One replica with its outbox: what it emitted, what of it can still come back, and what the log has of it."""

    def __init__(self) -> None:
        self.pending_events = PendingEvents()
        self.log = Log()
        self.folded: list[list[Event]] = []
        """Read back, message by message."""
        self.emitted: list[Event] = []
        """In order, with what was dropped: a restatement in the log voids it anyway."""
        self.sealed: list[Event] = []
        """Not read back yet, sure to come."""
        self.waiting: list[Event] = []
        """Not sealed yet; may be dropped."""
        self.dropped = False
        """Whether something was dropped that no restatement has followed yet."""
        self.flying: dict[AttemptKey, InFlight] = {}

    def say(self, event: Event) -> None:
        self.emitted.append(event)
        if not self.dropped:
            self.waiting.append(event)
        self.pending_events.emit(event, self.log.state.routing.replicas.get(R))
        match event:
            case RequestRouted():
                self.flying[event.request, event.attempt] = in_flight(event)  # type: ignore[index]
            case RequestPrefilled():
                key = event.request, event.attempt
                self.flying[key] = self.flying[key].prefilled()  # type: ignore[index]
            case RequestFinished():
                del self.flying[event.request, event.attempt]  # type: ignore[arg-type]

    def seal(self, count: int) -> None:
        self.sealed += self.waiting[:count]
        del self.waiting[:count]

    def read_back(self, count: int) -> None:
        """The log gave up to `count` events back, in one message."""
        events = self.sealed[:count]
        del self.sealed[:count]
        if events:
            self.log.fold(*events)
            self.folded.append(events)
            for event in events:
                self.pending_events.read_back(event)

    def go_back(self, count: int) -> None:
        """The log has lost up to `count` of the last messages that were read back, and they are sure to come again."""
        kept = max(0, len(self.folded) - count)
        lacking = [event for events in self.folded[kept:] for event in events]
        del self.folded[kept:]
        self.sealed = lacking + self.sealed
        self.log = Log()
        for events in self.folded:
            self.log.fold(*events)
        self.pending_events.refold(lacking, self.log.state.routing.replicas.get(R))

    def overflow(self) -> None:
        """Everything not sealed is dropped; what is said until the restatement is dropped, too."""
        self.waiting.clear()
        self.dropped = True

    def restate(self) -> None:
        event = replica_restated(self.flying.items())
        self.dropped = False
        self.say(event)

    def check(self) -> None:
        assert self.pending_events._names == Counter(effect.name for effect in self.pending_events._effects)
        everything = Log()
        if self.emitted:
            everything.fold(*self.emitted)
        assert seen(self.log.state, self.pending_events) == seen(everything.state, PendingEvents())
        assert self.pending_events.differences() == []
        routing = self.log.state.routing
        assert not any((*routing.audit_load(), *routing.audit_requests()))
        wanted = held(everything.state, PendingEvents())
        for found, least in zip(held(self.log.state, self.pending_events), wanted, strict=True):
            assert all(found[worker] >= depth for worker, depth in least.items())
        if not self.dropped:
            rebuilt = self.rebuilt()
            assert seen(self.log.state, rebuilt) == seen(self.log.state, self.pending_events)
            assert held(self.log.state, rebuilt) == held(self.log.state, self.pending_events)
        if not len(self.pending_events):
            assert held(self.log.state, self.pending_events) == wanted

    def rebuilt(self) -> PendingEvents:
        """What a replay has: the events of the log that the cursor does not cover."""
        ahead = PendingEvents()
        for event in [*self.sealed, *self.waiting]:
            ahead.emit(event, self.log.state.routing.replicas.get(R))
        return ahead


@st.composite
def steps(draw: st.DrawFn) -> tuple[str, int]:
    shares = Counter(route=5, prefill=3, finish=3, read=3, seal=2, overflow=1, restate=1, go_back=1)
    return draw(st.sampled_from(list(shares.elements()))), draw(st.integers(0, 5))


def run(router: Router, step: str, number: int, made: int) -> None:
    keys = list(router.flying)
    match step:
        case "route":
            asked, worker = PROMPTS[number % len(PROMPTS)], WORKERS[number % len(WORKERS)]
            model, believed = MODELS[number % 2], (None, (5, 0))[made % 2]
            event = routed(
                f"r{made}", worker, asked, model=model, now_ms=1000 + made, wait_us=number, believed=believed
            )
            router.say(event)
        case "prefill" if keys:
            router.say(prefilled(*keys[number % len(keys)]))
        case "finish" if keys:
            router.say(finished(*keys[number % len(keys)]))
        case "seal":
            router.seal(number)
        case "read":
            router.read_back(number)
        case "overflow":
            router.overflow()
        case "restate":
            router.restate()
        case "go_back":
            router.go_back(number)


@settings(deadline=None, max_examples=150)
@given(st.lists(steps(), min_size=10, max_size=50))
@example([("route", 0), ("restate", 0), ("prefill", 0), ("overflow", 0)])
@example([("route", 0), ("restate", 0), ("overflow", 0)])
@example([("route", 0), ("seal", 1), ("read", 1), ("prefill", 0), ("go_back", 1), ("finish", 0)])
def test_folded_and_ahead_add_up(given_: list[tuple[str, int]]) -> None:
    """At every split between read back and ahead, their sum is the fold of all; and a replay has the same ahead.

    Sums per worker, decisions per model, pending prefixes and outstanding prefills as a decision sees them; also when
    events were dropped and what is in flight was said again, and when the log went back and takes messages again. What
    workers are believed to hold is all there too, and goes with a restatement that is read back. When all is, nothing
    is left ahead.
    """
    router = Router()
    for made, (step, number) in enumerate(given_):
        run(router, step, number, made)
        router.check()
    router.restate()
    router.say(routed("last", WORKERS[0]))
    router.seal(len(router.waiting))
    while router.sealed:
        router.read_back(1)
        router.check()
    ahead = router.pending_events
    assert (len(ahead), ahead.in_flight_load.busy, ahead.in_flight_load._pending, ahead.computed, ahead._entries) == (
        0,
        {},
        {},
        {},
        {},
    )
    assert (ahead.in_flight_load.prefills, len(ahead.believed)) == ({}, 0)
    assert not any(ahead.routed.values())


def pending(router: Router, worker: WorkerId) -> int:
    return View(router.log.state, R, router.pending_events, {}).pending(PROMPTS[1]).get(worker, 0)


def test_a_request_is_pending_until_its_first_token_wherever_the_log_stands() -> None:
    """Nothing of a finished prefill is left when its events are read back one by one."""
    router = Router()
    router.say(routed("a", WORKERS[1], PROMPTS[1]))
    router.seal(1)
    router.read_back(1)
    router.say(prefilled("a"))
    assert pending(router, WORKERS[1]) == 0
    router.seal(1)
    router.read_back(1)
    assert pending(router, WORKERS[1]) == 0


def test_what_was_not_emitted_here_changes_nothing() -> None:
    """Events without weight are not kept; an event of an earlier life, read back, takes nothing away."""
    ahead = PendingEvents()
    ahead.emit(ReplicaJoined(name="router-0", version="1"), None)
    ahead.emit(SettingsChanged(revision=1, settings={}), None)
    ahead.emit(prefilled("nobody"), None)
    assert (len(ahead), ahead.in_flight_load.busy) == (1, {})
    ahead.emit(routed("a", WORKERS[0]), None)
    ahead.read_back(routed("b", WORKERS[0]))
    ahead.read_back(finished("a"))
    assert (repr(ahead), ahead.in_flight_load.busy[WORKERS[0]].requests) == ("<PendingEvents 2 events>", 1)


class Compared(str):
    """A request's id that counts how often any of its kind was compared."""

    __slots__ = ()
    times = 0

    def __eq__(self, other: object) -> bool:
        Compared.times += 1
        return str.__eq__(self, other)

    __hash__ = str.__hash__


def test_what_was_not_emitted_here_is_told_at_once() -> None:
    """However much is ahead, it is not gone through for each event of an earlier life; all of it still leaves with
    the log, and what was emitted twice leaves once for each."""
    ahead = PendingEvents()
    for number in range(400):
        request = Compared(f"r{number // 2}")
        ahead.emit(routed(request, WORKERS[number % 3]), None)
        ahead.emit(finished(request), None)
    before = len(ahead), dict(ahead.computed), dict(ahead.in_flight_load.busy)
    Compared.times = 0
    for number in range(100):
        ahead.read_back(finished(Compared(f"old{number}")))
    assert Compared.times < 100
    assert (len(ahead), ahead.computed, ahead.in_flight_load.busy) == before
    lengths = []
    for number in range(400):
        ahead.read_back(finished(Compared(f"r{number // 2}")))
        lengths.append(len(ahead))
    assert lengths == list(range(798, -1, -2))
    assert (ahead.computed, ahead.in_flight_load.busy, ahead._names) == ({}, {}, {})


def test_an_attempt_emitted_twice_counts_once() -> None:
    """As in the fold, the later word replaces the earlier."""
    router = Router()
    for event in (routed("a", WORKERS[0]), routed("a", WORKERS[1]), finished("a")):
        router.say(event)
        router.check()
    router.seal(3)
    for _ in range(3):
        router.read_back(1)
        router.check()


def test_an_attempt_routed_again_takes_the_folded_one_away_once() -> None:
    """The fold still has the request, and its end, which the log has not given back, took it away."""
    router = Router()
    router.say(routed("a", WORKERS[0]))
    router.seal(1)
    router.read_back(1)
    for event in (finished("a"), routed("a", WORKERS[1])):
        router.say(event)
        router.check()
    router.seal(2)
    router.read_back(1)
    router.check()
