"""Snapshots: fold(snapshot + tail) is fold(all), bit for bit; what is no snapshot of ours is refused."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.errors import Corrupt
from core.events import ReplicaJoined, WorkerLeft
from core.ids import Epoch, StreamName, StreamSeq, WorkerId
from core.snapshot_manifest import At
from core.subjects import JOBS
from projections.folds import snapshot as snapshot_module
from projections.folds.snapshot import LOAD_BLOCKS_MAX, cursor_of, decode, decoding, encode
from projections.folds.source_fold import TOMBSTONES_MAX
from projections.folds.state import State
from tests.projections.facts import (
    joined,
    load,
    prefilled,
    prompt,
    removed_chain,
    restated,
    routed,
    stored,
    stored_chain,
    worker_id,
)
from tests.projections.histories import (
    SOURCES_MAX,
    STREAMS,
    Log,
    believed,
    feed,
    opened,
    pending,
    prefills,
    shuffled,
    worlds,
)
from tests.projections.job_facts import answerer, asked, completed, failed, requester, started
from tests.projections.speaker import CHAIN_KEY, Said, Speaker

A, R = worker_id(1), "ee" * 8
OLD_STREAMS = STREAMS[:-1]
"""Those of times without jobs."""
FORM_1, FORM_2, FORM_3, FORM_4 = "d19fe8dd2638afd4", "f4426a5d6e59cc1b", "8d227d6bc9509f62", "4b7354249225e323"
"""Digests of the snapshots below: others need another SNAPSHOT_VERSION, or old snapshots misread. The heads of chains
are in them, so that a field that is new in an event changes them, too, and no form."""


def written(state: State) -> bytes:
    return b"".join(encode(state))


def restored(state: State) -> State:
    return decode(CHAIN_KEY, written(state))


def history() -> list[Said]:
    a, loads, routing, late = Speaker("kv_0", A), Speaker("load", A), Speaker("routing", R), Speaker("kv_1", "33" * 8)
    late.say(joined())
    return [
        a.say(joined(), stored(1, 2, 3), stored(9, tier="host")),
        Speaker("kv_1", worker_id(2)).say(joined("other"), stored(1, 2)),
        loads.say(load(1)),
        routing.say(routed("a", A), routed("b", A, prompt(5, 6))),
        a.say(restated(0, 2, 7)),
        routing.say(prefilled("a")),
        late.say(stored(4)),
    ]


def chains() -> list[Said]:
    """Workers that say where blocks lie: two share two whole spans and the start of a third, one is alone."""
    long, other = range(1000, 1050), [*range(1000, 1036), *range(2000, 2010)]
    alone = Speaker("kv_1", worker_id(10))
    return [
        Speaker("kv_0", worker_id(8)).say(joined("eight"), stored_chain(*long)),
        Speaker("kv_0", worker_id(9)).say(joined("nine"), stored_chain(*other)),
        alone.say(joined("ten"), stored_chain(*range(3000, 3045))),
        alone.say(removed_chain(*range(3000, 3045), first=40)),
    ]


def beliefs() -> list[Said]:
    """Two workers of a replica that goes by what it sent where, one prompt still computed; and another replica."""
    one, other = Speaker("routing", "cc" * 8), Speaker("routing", "dd" * 8)
    keeps = (3, 120_000)
    return [
        one.say(ReplicaJoined(name="router-1", version="1"), routed("c", A, prompt(1, 2, 3), now_ms=5, believed=keeps)),
        one.say(prefilled("c"), routed("d", worker_id(2), now_ms=7, believed=keeps), prefilled("d")),
        one.say(routed("e", A, prompt(1, 4), now_ms=9, believed=keeps), prefilled("e")),
        one.say(routed("f", A, prompt(6), now_ms=11, believed=keeps)),
        other.say(routed("g", A, prompt(1, 9), now_ms=8, believed=keeps), prefilled("g")),
    ]


def jobs() -> list[Said]:
    """Two decode workers, one of them half known, two prefill workers, one of them over."""
    d, half, p, gone = requester(worker_id(5)), requester(worker_id(6)), answerer(worker_id(4)), answerer(worker_id(7))
    half.say(asked("lost", 1))
    return [
        d.say(asked("a", 1), asked("b", 2)),
        half.say(asked("c", 2)),
        p.say(started("a", 1), completed("a", 0), started("b", 1)),
        p.say(failed("x", 1, dead=True)),
        gone.say(started("c", 1), WorkerLeft(reason="done")),
    ]


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_a_snapshot_with_its_tail_is_the_whole(data: st.DataObject) -> None:
    """Taken anywhere in any history: digests, cursors, and every byte of the next snapshot are the same."""
    world = data.draw(worlds())
    log = Log(data.draw(shuffled([source.said for source in world])))
    cut = data.draw(st.integers(0, len(log.records)))
    whole = feed(opened(), log.records)
    again = feed(restored(feed(opened(), log.records[:cut])), log.records[cut:])
    assert (again.digest, again.cursor, again.incomplete) == (whole.digest, whole.cursor, whole.incomplete)
    assert written(again) == written(whole)
    assert again.routing.in_flight_load.busy == whole.routing.in_flight_load.busy
    assert [member.worker for member in again.alive()] == [member.worker for member in whole.alive()]
    assert prefills(again.routing.in_flight_load) == prefills(whole.routing.in_flight_load)
    assert pending(again.routing.in_flight_load) == pending(whole.routing.in_flight_load)
    assert believed(again.routing) == believed(whole.routing)
    asked = prompt(*range(3))
    assert dict(again.routing.in_flight_load.pending(asked)) == dict(whole.routing.in_flight_load.pending(asked))
    for worker in map(worker_id, range(2 * SOURCES_MAX)):
        for tier in ("device", "host"):
            assert again.index.held(WorkerId(worker), tier) == whole.index.held(WorkerId(worker), tier)
    for stream in map(StreamName, STREAMS):
        assert again.digest_of(stream) == whole.digest_of(stream)
        assert list(again.projection(stream).ended.items()) == list(whole.projection(stream).ended.items())


def test_what_later_events_depend_on_is_in_it() -> None:
    """Half a restatement, hashes of prompts in flight, expectations, chains, who is unknown, tombstones in order."""
    state = feed(opened(), Log(history()).records)
    for number in range(TOMBSTONES_MAX + 1):
        state.loads.ended.add(worker_id(number), "over")
    again = restored(state)
    assert again.kv[StreamName("kv_0")].members == state.kv[StreamName("kv_0")].members
    assert again.kv[StreamName("kv_1")].unknown == {"33" * 8}
    assert again.routing.replicas == state.routing.replicas
    assert list(again.loads.ended) == list(state.loads.ended)
    assert (again.loads.reports, again.loads.chains) == (state.loads.reports, state.loads.chains)


def test_equal_states_have_equal_bytes() -> None:
    """Whatever order led there; a state that was restored is as any other."""
    said = history()
    one, other = feed(opened(), Log(said).records), feed(opened(), Log(sorted(said, key=lambda s: s.stream)).records)
    assert written(one) == written(other) == written(restored(one))


def test_the_form_is_what_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """A change of any part that a snapshot holds is a change of form, and its version must say so. The version of the
    folds stands in it, too."""
    monkeypatch.setattr(snapshot_module, "FOLD_VERSION", 3)
    without_jobs = written(feed(opened(*OLD_STREAMS), Log(history()).records))
    assert hashlib.blake2b(without_jobs, digest_size=8).hexdigest() == FORM_1
    content = written(feed(opened(), Log([*history(), *jobs()]).records))
    assert hashlib.blake2b(content, digest_size=8).hexdigest() == FORM_2
    content = written(feed(opened(), Log([*history(), *beliefs(), *jobs()]).records))
    assert hashlib.blake2b(content, digest_size=8).hexdigest() == FORM_3
    content = written(feed(opened(), Log([*history(), *chains(), *jobs()]).records))
    assert hashlib.blake2b(content, digest_size=8).hexdigest() == FORM_4


def test_runs_of_blocks_come_back_as_runs() -> None:
    """What was one entry is one again, also where loading stops in the middle of a group; its holders are the same."""
    state = feed(opened(), Log([*history(), *chains()]).records)
    again = restored(state)
    assert again.index.dump() == state.index.dump()
    assert any(len(holding.runs) > 1 for holding in again.index.dump()["device"])
    assert again.index.contents() == state.index.contents()
    assert written(again) == written(state)


def test_a_run_that_is_longer_than_a_span_is_refused() -> None:
    """So is one without blocks."""
    content = written(feed(opened(), Log(chains()).records))
    lengths = bytes([16, 16, 8])
    assert content.count(lengths) == 1
    for other in ([17, 16, 7], [0, 32, 8], [16, 24, 0]):
        with pytest.raises(Corrupt, match="run"):
            decode(CHAIN_KEY, content.replace(lengths, bytes(other)))


def test_a_snapshot_of_times_without_jobs_is_read() -> None:
    """And the jobs are folded from their stream's start; whoever knows of no jobs can tell that a new one has them."""
    state = feed(opened(*OLD_STREAMS), Log(history()).records)
    again = restored(state)
    assert (again.digest, again.cursor) == (state.digest, state.cursor)
    assert again.open(JOBS, Epoch(1)) == 0
    feed(again, Log(jobs()).records)
    assert again.jobs.open == 3
    assert (version(state), version(again)) == (1, 2)


def test_a_snapshot_of_times_without_beliefs_is_read() -> None:
    """And has none; one that has some is of another form, and what is believed goes on as it was."""
    state = feed(opened(), Log([*history(), *jobs()]).records)
    again = restored(state)
    assert (version(state), again.routing.believed) == (2, {})
    late = Log([*history(), *jobs()])
    late.records.clear()
    late.write(beliefs())
    for part in (state, again):
        feed(part, late.records)
    assert (version(state), again.digest) == (3, state.digest)
    assert believed(restored(again).routing) == believed(again.routing) == believed(state.routing)
    (kept, over), (of_other,) = believed(state.routing).values()
    assert (kept.worker, over.worker, of_other.worker) == (worker_id(2), A, A)
    assert [len(each.hashes) // 8 for each in (kept, over, of_other)] == [2, 3, 2]
    assert restored(state).routing.in_flight_load.prefills[WorkerId(A)].keys() != set()


def version(state: State) -> int:
    """Of the form in which it is written."""
    content = written(state)
    found: int = msgspec.msgpack.decode(content[16 : 16 + struct.unpack_from("<Q", content, 8)[0]])["v"]
    return found


def test_jobs_are_what_they_were() -> None:
    """Who asked for what, who computes what, what waits, what is only half known, dead letters, who is over."""
    state = feed(opened(), Log(jobs()).records)
    again = restored(state)
    assert again.jobs.parts == state.jobs.parts
    assert (again.jobs.digest, again.jobs.unknown) == (state.jobs.digest, {worker_id(6)})
    assert list(again.jobs.waiting()) == list(state.jobs.waiting()) == ["c"]
    assert (again.jobs.dead_letters, again.jobs.open, again.jobs.taken) == (1, 3, 1)
    assert again.jobs.ended == {worker_id(7): "left: done"}


def test_the_cursor_names_heads_and_digests() -> None:
    """As a manifest has them; an unread stream has no head."""
    said = history()
    state = feed(opened(), Log(said[:1]).records)
    cursor = cursor_of(restored(state))
    assert cursor == cursor_of(state)
    assert cursor["kv_0"] == At(
        epoch=1, seq=1, head=said[0].digest.hex(), digest=f"{state.digest_of(StreamName('kv_0')):016x}"
    )
    assert cursor["load"] == At(epoch=1, seq=0, head="", digest="0" * 16)
    assert restored(state).point(StreamName("kv_0"), StreamSeq(1)) == state.point(StreamName("kv_0"), StreamSeq(1))


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "empty": lambda content: b"",
    "another magic": lambda content: b"x" + content[1:],
    "cut in its length": lambda content: content[:12],
    "a byte less": lambda content: content[:-1],
    "a block more": lambda content: content + bytes(8),
    "an unreadable head": lambda content: content[:30] + b"\xc1" * 10 + content[40:],
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_what_is_no_snapshot_is_refused(damage: str) -> None:
    """Corrupt says so, whatever is wrong with the bytes."""
    content = written(feed(opened(), Log(history()).records))
    with pytest.raises(Corrupt):
        decode(CHAIN_KEY, DAMAGES[damage](content))


@pytest.mark.parametrize(
    ("name", "version", "told"), [("SNAPSHOT_VERSION", 1, "form 2"), ("READ_FOLD_VERSIONS", (99,), "fold version")]
)
def test_another_version_is_refused(name: str, version: object, told: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the form or of the fold, before anything of it is read."""
    content = written(opened())
    monkeypatch.setattr(snapshot_module, name, version)
    with pytest.raises(Corrupt, match=told):
        decode(CHAIN_KEY, content)


def test_decoding_stops_often() -> None:
    """No more than LOAD_BLOCKS_MAX are taken in between two stops."""
    blocks = LOAD_BLOCKS_MAX
    state = feed(opened(), Log([Speaker("kv_0", A).say(joined(), stored(*range(2 * blocks + 1)))]).records)
    assert sum(1 for _ in decoding(CHAIN_KEY, written(state))) == 3
