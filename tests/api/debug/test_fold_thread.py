"""What stands behind the page: one pass for the timeline, one fold with keyframes, and on from there as it grows."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from api.debug import keyframes as folding_module
from api.debug.fold_thread import FoldThread, RecordingState
from api.debug.timeline import decision_table as decisions_module
from api.debug.timeline import timeline as timeline_module
from api.debug.timeline import timeline_scan as scan_module
from api.debug.timeline import worker_loads as loads_module
from api.debug.timeline.replica_reports import ReplicaReports
from api.debug.timeline.timeline import Timeline
from api.debug.timeline.timeline_scan import TimelineScan
from api.debug.timeline.worker_loads import WorkerLoads
from core.codec import CHAIN_START, digest, encode_event, encode_message
from core.events import Event, Points, ReplicaJoined, ReplicaLost, SettingsChanged, WorkerLost
from core.events.routing import TURNED_AWAY, RequestTurnedAway
from core.ids import LOST_SUFFIX, SourceId, StreamName, StreamSeq
from core.prompt import hashes_to_bytes
from core.snapshot_manifest import Manifest
from core.subjects import LOAD, ROUTING, kv_stream
from projections.digest import FOLD_VERSION
from projections.folds.snapshot import cursor_of, encode
from projections.folds.state import State
from replay.recording.messages import PartialEvent, decode_any
from replay.recording.recording import Recording
from replay.recording.request_history import PLACES
from streams.archive.archive_reader import ArchiveReader
from streams.archive.archive_writer import ArchiveWriter
from streams.log import Record
from tests.fixtures.eventually import eventually
from tests.page.fleet import KEY, NAMESPACE, Fleet, Scale, made
from tests.projections.facts import finished, joined, load, prefilled, routed, worker_id

A, R = worker_id(1), "ee" * 8
KV = kv_stream(0)


class Written:
    """Rows as an archive holds them, of sources that keep their chains."""

    def __init__(self) -> None:
        self.timeline = Timeline()
        self.ms = 1000
        self._chains: dict[tuple[str, str], tuple[int, bytes]] = {}
        self._seqs: dict[str, int] = {}

    def say(self, stream: StreamName, source: str, *events: Event, about: str = "") -> int:
        """The next message, a second later, is in the timeline; where it stands."""
        n, head = self._chains.get((stream, source), (0, CHAIN_START))
        payload = encode_message(SourceId(source), n, head, self.ms, [encode_event(event) for event in events])
        self._chains[stream, source] = n + 1, digest(payload, KEY.chain_key)
        return self.put(stream, about or source, payload)

    def put(self, stream: StreamName, owner: str, payload: bytes) -> int:
        self.ms += 1000
        seq = self._seqs[stream] = self._seqs.get(stream, 0) + 1
        self.timeline.add(stream, [(seq, self.ms, owner, payload)])
        return seq


def steps(recording_state: RecordingState, archive: ArchiveReader) -> None:
    for _ in recording_state.show(archive):
        pass


def test_a_log_that_grows_is_read_on(tmp_path: Path) -> None:
    """Shown piece by piece while it is written: the same timeline, the same states as all at once."""
    writer = ArchiveWriter(tmp_path / "log", NAMESPACE, KEY.chain_key, "test", 0)
    fleet = Fleet(Scale(decisions=500), writer)
    recording_state = RecordingState(KEY, messages_expected=100_000)
    written = writer.add
    count = 0

    def add(record: Record) -> None:
        nonlocal count
        written(record)
        count += 1
        if count % 400 == 0:
            steps(recording_state, writer.so_far())

    writer.add = add  # type: ignore[method-assign]
    fleet.run()
    steps(recording_state, writer.so_far())
    whole = RecordingState(KEY)
    steps(whole, writer.so_far())
    for name in ("n", "worker", "cached", "ttft_ms", "outcome", "duration_ms"):
        assert recording_state.timeline.decisions.column(name) == whole.timeline.decisions.column(name)
    assert {note.text for note in recording_state.timeline.notes} == {note.text for note in whole.timeline.notes}
    assert recording_state.folding.share == whole.folding.share == 1
    end = recording_state.newest.end
    assert recording_state.recording(end[ROUTING]).state_at(end).digest == fleet.state.digest
    recording_state.close()
    whole.close()
    writer.abandon()


def test_keyframes_make_jumps_short(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No moment is further from a keyframe than the distance, and each gives the state of a whole fold."""
    monkeypatch.setattr(folding_module, "DISTANCE_FIRST", 300)
    monkeypatch.setattr(folding_module, "DISTANCE_MIN", 300)
    monkeypatch.setattr(folding_module, "DISTANCE_MAX", 300)
    log = made(tmp_path / "log", Scale(decisions=600))
    recording_state = RecordingState(KEY)
    steps(recording_state, ArchiveReader.open(log))
    assert recording_state.folding.keyframes >= 5
    recording = recording_state.recording()
    with Recording.open(log, KEY) as plain:
        for seq in range(100, recording.end[ROUTING], 311):
            ms = next(recording.archive.read(ROUTING, seq)).time_ms
            cursor = {s: StreamSeq(recording.archive.seek(s, ms) - 1) for s in recording.streams}
            assert recording.to_fold(cursor) <= 2 * 300 + folding_module.STEP_MESSAGES
            assert recording.state_at(cursor).digest == plain.state_at(cursor).digest
    recording_state.close()


def test_keyframes_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They take no more memory than they may, however long the log is; the fold goes on without them."""
    monkeypatch.setattr(folding_module, "KEYFRAMES_BYTES_MAX", 100_000)
    monkeypatch.setattr(folding_module, "DISTANCE_FIRST", 200)
    recording_state = RecordingState(KEY)
    steps(recording_state, ArchiveReader.open(made(tmp_path / "log", Scale(decisions=800))))
    assert 0 < recording_state.folding.keyframes_bytes <= 100_000
    assert recording_state.folding.share == 1
    recording_state.close()


def test_only_the_newest_of_a_long_log_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What lies before is counted, and nobody is told of decisions that are not there."""
    monkeypatch.setattr(scan_module, "ROUTING_MESSAGES_MAX", 1000)
    log = tmp_path / "log"
    monkeypatch.setattr("streams.archive.archive_writer.BLOCK_BYTES", 100_000)
    made(log, Scale(decisions=600))
    with ArchiveReader.open(log) as archive:
        scan = TimelineScan()
        for _ in scan.steps(archive):
            pass
        assert scan.skipped > 0
        first = scan.decisions.column("n")[0] // PLACES
        assert archive.span(ROUTING).last_seq - first < 1000
        assert scan.done


async def test_a_damaged_recording_says_so(tmp_path: Path) -> None:
    """What was read is shown, and why there is no more; questions are still answered."""
    log = made(tmp_path / "log", Scale(decisions=300))
    with ArchiveReader.open(log) as archive:
        block = next(block for block in archive.contents.blocks if block.stream == ROUTING)
    raw = bytearray(log.read_bytes())
    raw[block.piece.offset + 40] ^= 1
    log.write_bytes(bytes(raw))
    fold_thread = FoldThread(RecordingState(KEY))
    fold_thread.start()
    await fold_thread.show(ArchiveReader.open(log))
    await eventually(lambda: fold_thread.failure != "", "the failure")
    assert "is damaged" in fold_thread.failure
    assert await fold_thread.ask(lambda recording_state: len(recording_state.timeline.decisions)) == 0
    await fold_thread.close()


def test_chunks_and_what_changed_since(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that takes pieces has all decisions once, and hears of every end that it missed."""
    monkeypatch.setattr(decisions_module, "CHUNK_MAX", 10)
    it = Written()
    it.say(ROUTING, R, ReplicaJoined(name="r", version="1"))
    for number in range(25):
        it.say(ROUTING, R, routed(f"q{number}", A), routed(f"p{number}", A))
    decisions = it.timeline.decisions
    seen: list[str] = []
    after, more = 0, True
    while more:
        found = decisions.after(after)
        seen += found["decisions"]["request"]
        after, more = found["after"], found["more"]
        assert len(found["decisions"]["n"]) <= 11, "a message is not torn apart"
    assert seen == [f"{kind}{number}" for number in range(25) for kind in "qp"]
    it.say(ROUTING, R, prefilled("q3", cached=7), finished("q4"))
    it.say(ROUTING, R, finished("q3"))
    found = decisions.after(after)
    assert found["decisions"]["n"] == []
    names = dict(zip(decisions.column("n"), decisions.requests, strict=True))
    told = dict(zip((names[n] for n in found["updates"]["n"]), found["updates"]["outcome"], strict=True))
    assert {name: found["outcomes"][outcome] for name, outcome in told.items()} == {"q3": "stop", "q4": "stop"}
    assert decisions.after(found["after"])["updates"]["n"] == []


def test_one_id_at_two_replicas_is_two_requests() -> None:
    """Each has its own first token and end, whichever comes first; the end of one replica ends its own."""
    it, other = Written(), "dd" * 8
    for replica in (R, other):
        it.say(ROUTING, replica, routed("q", A), routed("p", A))
    it.say(ROUTING, other, prefilled("q", cached=7), finished("p"))
    it.say(ROUTING, R, msgspec.structs.replace(prefilled("q", cached=3), ttft_ms=40))
    it.say(ROUTING, R + LOST_SUFFIX, ReplicaLost(by=other, reason="silent"), about=R)
    decisions = it.timeline.decisions
    outcomes = [*decisions.history.outcomes.names, ""]
    rows = zip(decisions.column("cached"), decisions.column("ttft_ms"), decisions.column("outcome"), strict=True)
    assert [(cached, ttft_ms, outcomes[end]) for cached, ttft_ms, end in rows] == [
        (3, 40, "replica_gone"), (-1, -1, "replica_gone"), (7, 1, ""), (0, 1, "stop"),
    ]  # fmt: skip


def test_what_a_lost_replica_had_under_way_ended_with_it() -> None:
    """Its decisions are not under way for ever."""
    it = Written()
    it.say(ROUTING, R, ReplicaJoined(name="r", version="1"), routed("q", A), routed("p", A), finished("p"))
    it.say(ROUTING, R + LOST_SUFFIX, ReplicaLost(by="dd" * 8, reason="silent"), about=R)
    outcomes = [it.timeline.decisions.history.outcomes.names[each] for each in it.timeline.decisions.column("outcome")]
    assert outcomes == ["replica_gone", "stop"]
    assert it.timeline.replicas[0].end == "lost"
    assert it.timeline.notes[-1].text == "r lost: silent, found by " + "dd" * 8


def test_what_is_said_again_is_told_once() -> None:
    """Restatements repeat who somebody is and what it goes by."""
    it = Written()
    for _ in range(3):
        it.say(KV, A, joined("decode-0"))
        it.say(ROUTING, R, ReplicaJoined(name="r", version="1"))
        it.say(ROUTING, R, SettingsChanged(revision=4, settings={"temperature": 0.5}))
    texts = [note.text for note in it.timeline.notes]
    assert texts == ["decode-0 joined with tiny", "r joined", "r uses revision 4: " + texts[2].partition(": ")[2]]
    assert "temperature 0 → 0.5" in texts[2]


def test_bytes_that_are_none_of_ours_are_passed_over() -> None:
    """No message, a message of another source, an event of a later program: the rest is shown."""
    it = Written()
    it.put(ROUTING, R, b"\xc1 nothing")
    it.put(KV, A, b"{broken Worker")
    it.say(ROUTING, "aa" * 8, routed("not mine", A), about=R)
    unknown = encode_event(routed("later", A)).replace(b"RequestRouted", b"RequestPosted")
    wrong = encode_event(routed("wrong", A)).replace(b"\xa7attempt\x00", b"\xa7attempt\xa10")
    payload = encode_message(SourceId(R), 0, CHAIN_START, 0, [unknown, wrong, encode_event(routed("good", A))])
    seq = it.put(ROUTING, R, payload)
    assert it.timeline.decisions.requests == ["good"]
    assert list(it.timeline.decisions.column("n")) == [seq * PLACES + 2], "places count what is not known, too"
    assert it.timeline.decisions.history.read_to == seq
    found = decode_any(payload)
    assert found is not None
    assert [event.type for event in found.events][1:] == ["", "RequestRouted"]


def test_notes_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first of each kind stand, the others are counted: many of one kind hide no other."""
    monkeypatch.setattr(timeline_module, "NOTES_MAX", 5)
    it = Written()
    for number in range(9):
        it.say(KV, worker_id(number), joined(f"w{number}"))
    it.say(KV, worker_id(3) + LOST_SUFFIX, WorkerLost(by=R, reason="silent"), about=worker_id(3))
    assert len(it.timeline.notes) == 6
    assert it.timeline.notes[-1].kind == "worker_lost"
    assert it.timeline.notes_dropped == {"worker_joined": 4}
    assert len(it.timeline.workers) == 9


def test_a_client_that_hangs_up_was_not_refused() -> None:
    """While its request waited; what the router refuses is another kind."""
    it = Written()
    for reason in ("client_gone", "queue_full"):
        gone = RequestTurnedAway(request=reason, model="tiny", reason=reason, status=TURNED_AWAY[reason], waited_ms=30)
        it.say(ROUTING, R, gone)
    assert [(note.kind, note.text) for note in it.timeline.notes] == [
        ("client_gone", "client_gone's client hung up while it waited"),
        ("rejected", "queue_full was refused with 503: queue_full"),
    ]


def test_loads_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Past the bound every second report goes, of every worker."""
    monkeypatch.setattr(loads_module, "REPORTS_MAX", 100)
    loads = WorkerLoads()
    for number in range(101):
        event = PartialEvent(type="LoadReported", running=number)
        loads.add(number % 2, number * 1000, event)
    (even, odd) = loads.between(0, 200_000, 4000)
    assert len(even["ms"]) + len(odd["ms"]) == 51
    assert even["running"] == [ms // 1000 for ms in even["ms"]]
    assert even["running"] == [number for number in range(101) if number % 4 == 0]


def test_load_is_that_of_the_window() -> None:
    """The last report before it counts as its first; none behind it does."""
    it = Written()
    it.say(KV, A, joined("decode-0"))
    for number in range(10):
        it.say(LOAD, A, load(number))
    ms = it.timeline.loads.between(0, 100_000, 4000)[0]["ms"]
    found = it.timeline.loads.between(ms[4] + 1, ms[7], 100)
    assert found[0]["ms"] == ms[4:8]
    assert found[0]["waiting"] == [4, 5, 6, 7]
    assert it.timeline.loads.between(0, 10, 100) == []


def test_digests_are_compared_where_two_reported() -> None:
    """Equal or not, by stream, and as it was known at a time."""
    reports = ReplicaReports()

    def add_report(replica: int, ms: int, seq: int, digest_: int, stream: str = "kv_0") -> None:
        points = Points(1, (seq,), hashes_to_bytes([digest_]), bytes(16))
        reports.add(replica, ms, ms, PartialEvent(type="ReplicaReported", fold_version=2, points={stream: points}))

    add_report(0, 10, 1024, 5)
    add_report(1, 20, 1024, 5)
    add_report(1, 30, 2048, 6)
    add_report(0, 40, 2048, 7)
    add_report(2, 50, 4096, 7)
    assert reports.agreements(0, 15) == []
    (early,) = reports.agreements(0, 25)
    assert (early.other, early.comparison.seq, early.comparison.equal) == (1, 1024, True)
    (late,) = reports.agreements(1, 60)
    assert (late.other, late.comparison.seq, late.comparison.equal) == (0, 2048, False)
    assert reports.agreements(2, 60) == []
    last = reports.last(1, 35)
    assert last is not None
    assert last.points["kv_0"].digest == f"{6:016x}"
    assert reports.last(2, 45) is None


def test_a_restarted_worker_shares_its_name() -> None:
    """Two lives, each with its own time."""
    it = Written()
    it.say(KV, A, joined("decode-0"))
    other = worker_id(2)
    it.say(KV, other, msgspec.structs.replace(joined("decode-0"), address="127.0.0.1:2"))
    assert [life.name for life in it.timeline.workers] == ["decode-0", "decode-0"]
    assert it.timeline.workers[0].from_ms < it.timeline.workers[1].from_ms


def test_a_recording_that_begins_with_a_snapshot(tmp_path: Path) -> None:
    """Who was there before has a name, settings are known, and states are folded from the snapshot on."""
    first = ArchiveWriter(tmp_path / "all", NAMESPACE, KEY.chain_key, "test", 0)
    fleet = Fleet(Scale(decisions=200), first)
    fleet.run()
    later = ArchiveWriter(tmp_path / "later", NAMESPACE, KEY.chain_key, "test", 0)
    content = b"".join(encode(fleet.state))
    later.add_snapshot(manifest(fleet.state, content), content)
    for stream, position in fleet.state.cursor.items():
        later.open(stream, position.epoch, position.seq + 1, 1)
    fleet.writer, fleet.scale = later, Scale(decisions=300)
    fleet.resume()
    later.finish(later.contents(0, 0))
    first.abandon()
    recording_state = RecordingState(KEY)
    steps(recording_state, ArchiveReader.open(tmp_path / "later"))
    timeline = recording_state.timeline
    assert len(timeline.decisions) == 100
    there = {number for number in range(8) if number != 2}  # that one was killed before
    assert {life.name for life in timeline.workers} == {f"decode-{number}" for number in there}
    assert {life.name for life in timeline.replicas} == {f"frontend-{number}" for number in range(4)}
    assert timeline.settings[0, 1]["decode_weight"] == 2.5, "said before the recording begins"
    end = recording_state.newest.end
    assert recording_state.recording().state_at(end).digest == fleet.state.digest
    assert recording_state.folding.share == 1
    recording_state.close()


def manifest(state: State, content: bytes) -> Manifest:
    return Manifest(
        id="s", fold_version=FOLD_VERSION, made_ms=0, by="test", fence=1, cursor=cursor_of(state),
        digest=f"{state.digest:016x}", incomplete=0, chunks=1, first_seq=1, size_bytes=len(content), checksum="",
    )  # fmt: skip
