"""The law that lets replicas agree: order between sources cannot matter, in any projection."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import given, settings
from hypothesis import strategies as st

from core.events import (
    CacheCleared,
    Event,
    ReplicaJoined,
    ReplicaLeft,
    ReplicaLost,
    SettingsChanged,
    WorkerLeft,
    WorkerLost,
)
from core.ids import WorkerId
from projections.kv import KvProjection
from projections.loads import LoadProjection
from projections.prefixes import PrefixIndex
from projections.requests import RoutingProjection
from projections.tally import InFlight
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
from tests.projections.speaker import Said, Speaker, fold

SOURCES_MAX = 4
MESSAGES_MAX = 8
LOST = "lost"
"""Stands for a message that is in nobody's log."""

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
load_events = st.builds(load, st.integers(0, 3))
requests = st.integers(0, 3)
workers = st.integers(0, 2).map(worker_id).map(WorkerId)


def routing_events(source: str) -> st.SearchStrategy[Event]:
    """A replica's own requests carry its name: ids are new at every request."""
    return st.one_of(
        st.just(ReplicaJoined(name="router-0", version="1")),
        st.builds(lambda n, w, size: routed(f"{source}/{n}", w, prompt(*range(size))), requests, workers, requests),
        st.builds(lambda n, cached: prefilled(f"{source}/{n}", cached=cached), requests, requests),
        st.builds(lambda n: finished(f"{source}/{n}"), requests),
        st.builds(lambda n, w: replica_restated([((f"{source}/{n}", 0), InFlight(w, 3, 0))]), requests, workers),
        st.builds(lambda revision: SettingsChanged(revision=revision, settings={}), requests),
        st.just(ReplicaLeft(reason="done")),
    )


@st.composite
def histories(draw: st.DrawFn, stream: str, events: Callable[[str], st.SearchStrategy[Event]]) -> list[list[Said]]:
    """What each of several sources said, with gaps, repeats and ends by others."""
    found = []
    for number in range(draw(st.integers(1, SOURCES_MAX))):
        source = worker_id(number)
        speaker = Speaker(stream, source)
        said: list[Said] = []
        for batch in draw(st.lists(st.lists(events(source), max_size=3) | st.just([LOST]), max_size=MESSAGES_MAX)):
            if batch == [LOST]:
                speaker.say()
            else:
                said.append(speaker.say(*batch))
        said += draw(st.lists(st.sampled_from(said), max_size=2)) if said else []
        if draw(st.booleans()):
            said.append(Speaker(stream, f"{source}-lost", about=source).say(_end(stream)))
        found.append(said)
    return found


def _end(stream: str) -> Event:
    return (ReplicaLost if stream == "routing" else WorkerLost)(by="ee" * 8, reason="silent")


@st.composite
def shuffled(draw: st.DrawFn, history: list[list[Said]]) -> list[Said]:
    """One order of all that keeps the order within each source."""
    turns = draw(st.permutations([i for i, said in enumerate(history) for _ in said]))
    waiting = [iter(said) for said in history]
    return [next(waiting[i]) for i in turns]


def one_by_one(history: list[list[Said]]) -> list[Said]:
    return [each for said in history for each in said]


@settings(deadline=None, max_examples=80)
@given(st.data())
def test_kv_folds_agree(data: st.DataObject) -> None:
    """Any interleaving of the workers' messages gives the same digest, members and blocks."""
    history = data.draw(histories("kv_0", lambda _: kv_events))
    one, other = KvProjection(PrefixIndex()), KvProjection(PrefixIndex())
    fold(one, *one_by_one(history))
    fold(other, *data.draw(shuffled(history)))
    assert (one.digest, one.incomplete, one.members) == (other.digest, other.incomplete, other.members)
    for worker in one.members:
        for tier in ("device", "host"):
            assert one.index.held(worker, tier) == other.index.held(worker, tier)


@settings(deadline=None, max_examples=40)
@given(st.data())
def test_load_folds_agree(data: st.DataObject) -> None:
    """Any interleaving of the workers' reports gives the same digest and the same newest reports."""
    history = data.draw(histories("load", lambda _: load_events))
    one, other = LoadProjection(), LoadProjection()
    fold(one, *one_by_one(history))
    fold(other, *data.draw(shuffled(history)))
    assert (one.digest, one.reports) == (other.digest, other.reports)


@settings(deadline=None, max_examples=80)
@given(st.data())
def test_routing_folds_agree(data: st.DataObject) -> None:
    """Any interleaving of the replicas' messages gives the same digest, parts and sums per worker."""
    history = data.draw(histories("routing", routing_events))
    one, other = RoutingProjection(), RoutingProjection()
    fold(one, *one_by_one(history))
    fold(other, *data.draw(shuffled(history)))
    assert (one.digest, one.incomplete, one.replicas) == (other.digest, other.incomplete, other.replicas)
    assert one.tally.busy == other.tally.busy
    asked = prompt(*range(3))
    assert dict(one.tally.pending(asked)) == dict(other.tally.pending(asked))
