"""Random histories for property tests: what several sources said, with gaps, repeats, restatements and ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

from core.events import (
    CacheCleared,
    Event,
    LocalChanged,
    ReplicaJoined,
    ReplicaLeft,
    ReplicaLost,
    SettingsChanged,
    WorkerLeft,
    WorkerLost,
)
from core.ids import Epoch, ReplicaId, StreamName, StreamSeq, WorkerId
from projections.folds.approximate_index import WorkerBlocks
from projections.folds.in_flight import InFlight, InFlightLoad
from projections.folds.routing_fold import RoutingFold
from projections.folds.state import State
from tests.projections.facts import (
    finished,
    joined,
    load,
    prefilled,
    prompt,
    removed,
    replica_restated,
    restated,
    routed,
    stored,
    worker_id,
)
from tests.projections.job_facts import Jobber
from tests.projections.speaker import CHAIN_KEY, Said, Speaker

SOURCES_MAX = 4
MESSAGES_MAX = 8
STREAMS = ("kv_0", "kv_1", "load", "routing", "jobs")

blocks = st.lists(st.integers(0, 12), max_size=4)
tiers = st.sampled_from(("device", "host"))
kv_events = st.one_of(
    st.just(joined()),
    st.builds(lambda hashes, tier: stored(*hashes, tier=tier), blocks, tiers),
    st.builds(lambda hashes, tier: removed(*hashes, tier=tier), blocks, tiers),
    st.builds(lambda part, parts, hashes: restated(part, parts, *hashes), st.integers(0, 1), st.integers(1, 2), blocks),
    st.just(CacheCleared()),
    st.just(WorkerLeft(reason="done")),
)
load_events = st.one_of(st.builds(load, st.integers(0, 3)), st.just(WorkerLeft(reason="done")))
job_words = st.lists(
    st.tuples(st.sampled_from(("open", "open", "open", "end", "give_up", "leave")), st.integers(0, 3)),
    min_size=1,
    max_size=3,
)
requests = st.integers(0, 3)
workers = st.integers(0, 2).map(worker_id).map(WorkerId)
beliefs = st.sampled_from((None, (1, 0), (2, 2), (1000, 3)))
reasons = st.sampled_from(((), ("stale",), ("suspected", "failed")))


def routing_events(source: str) -> st.SearchStrategy[Event]:
    """A replica's own requests carry its name: ids are new at every request."""
    return st.one_of(
        st.just(ReplicaJoined(name="router-0", version="1")),
        st.builds(
            lambda n, w, size, believed: routed(
                f"{source}/{n}", w, prompt(*range(size)), now_ms=n, wait_us=size, believed=believed
            ),
            requests,
            workers,
            requests,
            beliefs,
        ),
        st.builds(lambda n, cached: prefilled(f"{source}/{n}", cached=cached), requests, requests),
        st.builds(lambda n: finished(f"{source}/{n}"), requests),
        st.builds(
            lambda n, w, tokens: replica_restated([((f"{source}/{n}", 0), InFlight(w, 3, tokens, begins_us=tokens))]),
            requests,
            workers,
            requests,
        ),
        st.builds(lambda revision: SettingsChanged(revision=revision, settings={}), requests),
        st.builds(lambda w, why: LocalChanged(worker=w, reasons=why), workers, reasons),
        st.just(ReplicaLeft(reason="done")),
    )


def events_of(stream: str) -> Callable[[str], st.SearchStrategy[Event]]:
    """What sources say in that stream."""
    if stream == "routing":
        return routing_events
    return (lambda _: load_events) if stream == "load" else (lambda _: kv_events)


class Source:
    """One source and what of its words is in the log."""

    def __init__(self, stream: str, name: str) -> None:
        self.stream = stream
        self.name = name
        self.jobber = Jobber(name, answers=int(name, 16) % 2 == 1)
        self.speaker = self.jobber.speaker if stream == "jobs" else Speaker(stream, name)
        self.said: list[Said] = []
        self.over = False
        """Whether it said that it left, or another that it is lost: then it says nothing any more."""

    def restate(self, hashes: list[int]) -> None:
        """It says who it is and all that counts, as the real ones do."""
        if self.stream == "load":
            self.say(load(len(hashes)))
        elif self.stream == "jobs":
            ends = [("end", int(job.rpartition(":")[2])) for job in sorted(self.jobber.open)]
            self.say(*self.jobber.tell([*ends, ("open", 9), *(("open", number) for number in hashes)]))
        elif self.stream == "routing":
            in_flight = [((f"{self.name}/{n}", 1), InFlight(WorkerId(worker_id(n)), n, 0)) for n in hashes]
            self.say(ReplicaJoined(name="router-0", version="1"), SettingsChanged(revision=9, settings={}))
            self.say(replica_restated(dict(in_flight).items()))
            self.say(LocalChanged(worker=worker_id(0), reasons=("stale",)))
        else:
            self.say(joined())
            self.say(restated(0, 2, *hashes))
            self.say(restated(1, 2, 99, tier="host"))

    def end(self) -> Said:
        """Another says that it is lost."""
        self.over = True
        event = (ReplicaLost if self.stream == "routing" else WorkerLost)(by="ee" * 8, reason="silent")
        about = self.speaker.subject.removeprefix(f"contrail.test.{self.stream}.")
        return Speaker(self.stream, f"{self.name}-lost", about=about).say(event)

    def say(self, *events: Event) -> None:
        self.said.append(self.speaker.say(*events))


def spoken_in(stream: str, source: str) -> st.SearchStrategy[tuple[list[Any], bool]]:
    """What a source says next, and whether it is in the log; of its jobs a message that is lost may say anything."""
    if stream == "jobs":
        return st.tuples(job_words, st.sampled_from((True, True, False)))
    told = st.lists(events_of(stream)(source), min_size=1, max_size=3)
    return st.one_of(st.just(([], False)), st.tuples(told, st.just(True)))


@st.composite
def sources(draw: st.DrawFn, stream: str) -> list[Source]:
    """Several of them, each with a history of its own; a worker keeps to one kv stream, by its id."""
    found = []
    for number in range(draw(st.integers(1, SOURCES_MAX))):
        source = Source(stream, worker_id(number + SOURCES_MAX * (stream == "kv_1")))
        for events, in_the_log in draw(st.lists(spoken_in(stream, source.name), max_size=MESSAGES_MAX)):
            words = source.jobber.tell(events) if stream == "jobs" else events
            message = source.speaker.say(*words)
            source.over = source.over or any(isinstance(word, WorkerLeft | ReplicaLeft) for word in words)
            if in_the_log or source.over:
                source.said.append(message)
            if source.over:
                break
        if source.said and not source.over and draw(st.booleans()):
            source.said.append(source.said[draw(st.integers(0, len(source.said) - 1))])
        if not source.over and draw(st.booleans()):
            source.said.append(source.end())
        found.append(source)
    return found


@st.composite
def worlds(draw: st.DrawFn) -> list[Source]:
    """Sources in all streams."""
    return [source for stream in STREAMS for source in draw(sources(stream))]


@st.composite
def shuffled(draw: st.DrawFn, history: list[list[Said]]) -> list[Said]:
    """One order of all that keeps the order within each source."""
    turns = draw(st.permutations([i for i, said in enumerate(history) for _ in said]))
    waiting = [iter(said) for said in history]
    return [next(waiting[i]) for i in turns]


class Log:
    """Messages with their places, as a broker would hold them."""

    def __init__(self, said: list[Said]) -> None:
        self.records: list[tuple[StreamName, StreamSeq, Said]] = []
        self.last = dict.fromkeys(STREAMS, 0)
        self.write(said)

    def write(self, said: list[Said]) -> None:
        for each in said:
            self.last[each.stream] += 1
            self.records.append((each.stream, StreamSeq(self.last[each.stream]), each))


def prefills(tally: InFlightLoad) -> dict[WorkerId, list[tuple[Any, ...]]]:
    """What is being prefilled where, in one order."""
    return {worker: sorted(rows.values()) for worker, rows in tally.prefills.items()}


def pending(tally: InFlightLoad) -> list[tuple[Any, ...]]:
    """Whose prompts are being computed where, in one order."""
    return sorted(
        (*key, entry.worker, entry.hashes) for rows in tally._pending.values() for key, entry in rows.values()
    )


def believed(routing: RoutingFold) -> dict[ReplicaId, list[WorkerBlocks]]:
    """What replicas take workers to hold, in the order of its use."""
    return {replica: part.kept() for replica, part in routing.believed.items() if part.blocks}


def opened(*streams: str) -> State:
    """A state that stands at the start of these streams, or of all."""
    state = State(CHAIN_KEY)
    for stream in streams or STREAMS:
        state.open(StreamName(stream), Epoch(1))
    return state


def feed(state: State, records: list[tuple[StreamName, StreamSeq, Said]]) -> State:
    """The state itself, with the records folded."""
    for stream, seq, said in records:
        state.apply(stream, seq, said.subject, said.payload)
    return state
