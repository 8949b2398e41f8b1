"""The laws that let replicas agree: the order between sources cannot matter, nor where the log's head was cut."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from core.ids import StreamName, WorkerId
from projections.folds.jobs_fold import JobsFold
from projections.folds.kv_fold import KvFold
from projections.folds.load_fold import LoadFold
from projections.folds.routing_fold import RoutingFold
from projections.folds.state import State
from projections.index.prefix_index import PrefixIndex
from tests.projections.facts import prompt, worker_id
from tests.projections.histories import (
    STREAMS,
    Log,
    believed,
    blocks,
    feed,
    opened,
    pending,
    prefills,
    shuffled,
    sources,
    worlds,
)
from tests.projections.speaker import Said, fold


def one_by_one(history: list[list[Said]]) -> list[Said]:
    return [each for said in history for each in said]


@settings(deadline=None, max_examples=40)
@given(st.data())
def test_kv_folds_agree(data: st.DataObject) -> None:
    """Any interleaving of the workers' messages gives the same digest, members and blocks."""
    history = [source.said for source in data.draw(sources("kv_0"))]
    one, other = KvFold(PrefixIndex()), KvFold(PrefixIndex())
    fold(one, *one_by_one(history))
    fold(other, *data.draw(shuffled(history)))
    assert (one.digest, one.incomplete, one.members, dict(one.ended)) == (
        other.digest,
        other.incomplete,
        other.members,
        dict(other.ended),
    )
    for worker in one.members:
        for tier in ("device", "host"):
            assert one.index.held(worker, tier) == other.index.held(worker, tier)


@settings(deadline=None, max_examples=40)
@given(st.data())
def test_load_folds_agree(data: st.DataObject) -> None:
    """Any interleaving of the workers' reports gives the same digest and the same newest reports."""
    history = [source.said for source in data.draw(sources("load"))]
    one, other = LoadFold(), LoadFold()
    fold(one, *one_by_one(history))
    fold(other, *data.draw(shuffled(history)))
    assert (one.digest, one.reports) == (other.digest, other.reports)


@settings(deadline=None, max_examples=40)
@given(st.data())
def test_routing_folds_agree(data: st.DataObject) -> None:
    """Any interleaving of the replicas' messages gives the same digest, parts and sums per worker."""
    history = [source.said for source in data.draw(sources("routing"))]
    one, other = RoutingFold(), RoutingFold()
    fold(one, *one_by_one(history))
    fold(other, *data.draw(shuffled(history)))
    assert (one.digest, one.incomplete, one.replicas) == (other.digest, other.incomplete, other.replicas)
    assert one.in_flight_load.busy == other.in_flight_load.busy
    asked = prompt(*range(3))
    assert dict(one.in_flight_load.pending(asked)) == dict(other.in_flight_load.pending(asked))
    assert (prefills(one.in_flight_load), pending(one.in_flight_load)) == (
        prefills(other.in_flight_load),
        pending(other.in_flight_load),
    )
    assert believed(one) == believed(other)


@settings(deadline=None, max_examples=100)
@given(st.data())
def test_jobs_folds_agree(data: st.DataObject) -> None:
    """Any interleaving of the workers' messages gives the same digest and the same jobs."""
    history = [source.said for source in data.draw(sources("jobs"))]
    one, other = JobsFold(), JobsFold()
    fold(one, *one_by_one(history))
    fold(other, *data.draw(shuffled(history)))
    assert (one.digest, one.unknown, one.parts, dict(one.ended)) == (
        other.digest,
        other.unknown,
        other.parts,
        dict(other.ended),
    )


@settings(deadline=None, max_examples=150)
@given(st.data())
def test_whose_jobs_are_known_has_those_and_no_others(data: st.DataObject) -> None:
    """Whatever was lost on the way: a part that calls itself known has just the jobs that its worker has open, and
    one that does not has some of them and never another."""
    world = data.draw(sources("jobs"))
    folded = JobsFold()
    for source in world:
        for said in source.said:
            fold(folded, said)
        part = folded.parts.get(WorkerId(source.name))
        if part is None or not source.said or source.said[-1].message.n + 1 < part.chain.n_next:
            continue  # over, silent, or its last message was lost: then nobody can know
        if part.chain.n_next == source.speaker.n_next:
            counted = part.asked.keys() | part.taken.keys()
            assert counted <= source.jobber.open
            assert not part.known or counted == source.jobber.open


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_a_log_whose_head_was_cut_agrees_once_all_restated(data: st.DataObject) -> None:
    """Cut anywhere: as soon as every source has said again what counts, digests and contents are those of a fold of
    the whole log, stream by stream; until then the fold of the rest says that it is not complete, or agrees."""
    world = data.draw(worlds())
    log = Log(data.draw(shuffled([source.said for source in world])))
    cut = {stream: data.draw(st.integers(0, last)) for stream, last in log.last.items()}
    for source in world:
        source.said.clear()
        if not source.over:
            source.restate(data.draw(blocks))
    log.write(data.draw(shuffled([source.said for source in world])))
    whole = feed(opened(), log.records)
    rest = feed(opened(), [record for record in log.records if record[1] > cut[record[0]]])
    assert (whole.incomplete, rest.incomplete) == (0, 0)
    for stream in STREAMS:
        assert whole.digest_of(StreamName(stream)) == rest.digest_of(StreamName(stream))
    if whole.cursor == rest.cursor:  # not so where nothing at all is left of a stream
        assert whole.digest == rest.digest
    assert _contents(whole) == _contents(rest)


def _contents(state: State) -> object:
    """All that a restatement makes whole."""
    held = {
        (worker, tier): state.index.held(WorkerId(worker), tier)
        for worker in map(worker_id, range(4))
        for tier in ("device", "host")
    }
    members = [
        (stream, member.worker, member.joined) for stream, kv in state.kv.items() for member in kv.alive.values()
    ]
    parts = {
        part.replica: (part.joined, part.in_flight, part.routed, part.local, part.settings_revision)
        for part in state.routing.replicas.values()
    }
    jobs = {worker: (part.asked, part.taken) for worker, part in state.jobs.parts.items()}
    tally = state.routing.in_flight_load
    of_requests = parts, tally.busy, prefills(tally), pending(tally), believed(state.routing)
    return held, sorted(members, key=str), state.loads.reports, of_requests, jobs


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_who_is_over_leaves_nothing(data: st.DataObject) -> None:
    """When every source has ended, all that any fold holds is tombstones; every digest is 0."""
    world = data.draw(worlds())
    log = Log(data.draw(shuffled([source.said for source in world])))
    alive = [source for source in world if not source.over]
    log.write([source.end() for source in alive])
    state = feed(opened(), log.records)
    assert {stream: state.digest_of(StreamName(stream)) for stream in STREAMS} == dict.fromkeys(STREAMS, 0)
    assert all(not kv.members and not kv.alive and not kv.unknown for kv in state.kv.values())
    assert (state.loads.reports, state.loads.chains) == ({}, {})
    assert (state.jobs.parts, state.jobs.unknown, state.jobs.open) == ({}, set(), 0)
    assert (state.routing.replicas, state.routing.unknown, state.routing.in_flight_load.busy) == ({}, set(), {})
    assert state.routing.believed == {}
    assert not any(state.index.blocks(WorkerId(worker_id(n)), tier) for n in range(4) for tier in ("device", "host"))
