"""`verify` where the record lacks something: what is excused by it, for how long, and what is not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec import structs

from actors.consistency.digest_checkpoints import DigestCheckpoints
from core.codec import encode_event, encode_message
from core.events import LocalChanged, ReplicaLeft, ReplicaRestated, SettingsChanged
from core.events.routing import DECIDE_VERSION
from core.ids import Epoch, SourceId, StreamName
from core.settings import RoutingSettings
from core.subjects import JOBS, LOAD, ROUTING
from projections.policy.candidates import CandidateSet
from projections.policy.rules import RULES
from replay.recording.recording import Recording
from replay.verify.evidence import FoldAgreements
from replay.verify.verify import VerifyResult, verify
from streams.archive.archive_reader import ArchiveReader
from streams.archive.archive_writer import ArchiveWriter
from tests.projections.facts import joined, load, prompt, restated, stored
from tests.replay.staged import KEY, KV, A, B, R, S, Stage

ASKED = prompt(1, 2, 3)
OTHER = prompt(7, 8, 9)
RESTATED = ReplicaRestated(requests=(), attempts=(), models=(), workers=b"", blocks=(), prefill_tokens=())


@pytest.fixture
def stage() -> Stage:
    """Two workers and two replicas, which have decided once."""
    it = Stage()
    it.pair()
    for replica, name in ((R, "r1"), (S, "r2")):
        it.replica(replica, name, RoutingSettings(policy="kv"))
        it.route(f"first-{name}", OTHER, replica=replica)
    return it


def verified(it: Stage, path: Path, gone: set[tuple[StreamName, int]] | None = None) -> VerifyResult:
    """All that the stage says, but for some messages."""
    whole = it.archived(path / "whole")
    with ArchiveReader.open(whole) as source:
        writer = ArchiveWriter(path / "it", "test", KEY.chain_key, "x", 1)
        for stream in source.streams:
            span = source.span(stream)
            writer.open(stream, span.epoch, 1, 1)  # type: ignore[arg-type]
            for record in source.read(stream):
                if (stream, record.seq) not in (gone or set()):
                    writer.add(record)
            writer.reached(stream, span.last_seq)
        writer.finish(writer.contents(0, it.clock.now_ms))
    with Recording.open(path / "it", KEY) as recording:
        return verify(recording)


def plant(monkeypatch: pytest.MonkeyPatch, term: str) -> None:
    """A bug in the rules: this term of the first worker is one more than it should be."""
    whole = RULES[DECIDE_VERSION].find_candidates

    def wrong(*given: Any) -> CandidateSet:
        left, excluded = whole(*given)
        if term == "overlap":
            changed = left[0]._replace(overlap=tuple(depth + 1 for depth in left[0].overlap))
        else:
            changed = left[0]._replace(active_requests=left[0].active_requests + 1)
        return CandidateSet([changed, *left[1:]], excluded)

    monkeypatch.setitem(RULES, DECIDE_VERSION, RULES[DECIDE_VERSION]._replace(find_candidates=wrong))


def test_decisions_on_a_deleted_message_are_not_judged_until_it_is_restated(stage: Stage, tmp_path: Path) -> None:
    """Before the chain shows it, by its hole; behind that, by the fold; then all is judged again."""
    stage.route("before", ASKED)
    gone = stage.say(KV, A, stored(*[ASKED.key(depth) for depth in (1, 2, 3)]))
    stage.route("unseen", ASKED)
    stage.say(KV, A, stored(77))
    stage.route("unknown", ASKED)
    stage.say(KV, A, joined("left"), restated(0, 1, *[ASKED.key(depth) for depth in (1, 2, 3)]))
    stage.route("restated", ASKED)
    assert verified(stage, tmp_path).verified == 6
    found = verified(stage, tmp_path, {(KV, gone)})
    assert (found.verified, found.different, found.not_judged) == (4, 0, {"deleted": 1, "gap": 1})
    assert [(gap.kind, gap.name, gap.after, gap.noticed) for gap in found.gaps] == [("deleted", "left", gone, gone + 1)]


def test_a_gap_that_the_replica_knew_excuses_nothing(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The record says that it did not know the cache: then a fold that does not know it either is what it had. Before
    the gap shows, nothing tells who had read the message."""
    n, _ = stage._chains[KV, A]
    stage._chains[KV, A] = n + 1, bytes(16)  # a message that never reached the log
    stage.say(KV, A, stored(77))
    routed = stage.route("unknown", ASKED)
    assert 0 in routed.columns["known"]
    found = verified(stage, tmp_path)
    assert (found.verified, found.not_judged) == (3, {})
    assert [gap.kind for gap in found.gaps] == ["gap"]
    plant(monkeypatch, "overlap")
    found = verified(stage, tmp_path)
    assert (found.different, found.not_judged) == (1, {"gap": 2})
    assert found.differences[0].request == "unknown"


def test_what_retention_took_excuses_until_the_replica_says_what_it_has(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its report of a fold that is ours shows that nothing is missing any more: from there on a bug is a bug."""
    for name, worker in (("left", A), ("right", B)):
        stage.say(KV, worker, joined(name), restated(0, 1))
        stage.say(LOAD, worker, load())
    for replica, name in ((R, "r1"), (S, "r2")):
        stage.replica(replica, name, RoutingSettings(policy="kv"))
        stage.tell(RESTATED, replica=replica)
    start = {stream: len(frames) + 1 for stream, frames in stage.frames.items()}
    cut = {KV: start[KV] - 2, LOAD: start[LOAD] - 2, ROUTING: start[ROUTING] - 6}
    stage.route("early", ASKED)
    report = DigestCheckpoints(stage.seat(R).state).report()
    assert report is not None
    stage.tell(report)
    stage.route("late", ASKED)
    path = stage.archived(tmp_path / "whole")

    def found() -> VerifyResult:
        with ArchiveReader.open(path) as source:
            writer = ArchiveWriter(tmp_path / "cut", "test", KEY.chain_key, "x", 1)
            for stream in source.streams:
                span = source.span(stream)
                writer.open(stream, span.epoch, 1, cut[stream])  # type: ignore[arg-type]
                for record in source.read(stream, cut[stream]):
                    writer.add(record)
            writer.finish(writer.contents(0, 1))
        with Recording.open(tmp_path / "cut", KEY) as recording:
            return verify(recording)

    assert (found().verified, found().not_judged, found().different) == (2, {}, 0)
    plant(monkeypatch, "active_requests")
    assert (found().verified, found().not_judged, found().different) == (0, {"cut": 1}, 1)
    assert found().differences[0].request == "late"


def test_a_report_of_another_fold_is_no_agreement(stage: Stage, tmp_path: Path) -> None:
    """The replica had read the message that stands there, and that is all."""
    report = DigestCheckpoints(stage.seat(R).state).report()
    assert report is not None
    wrong = {name: structs.replace(each, digests=bytes(len(each.digests))) for name, each in report.points.items()}
    stage.tell(structs.replace(report, points=wrong))
    with Recording.open(stage.archived(tmp_path / "whole"), KEY) as recording:
        found = FoldAgreements(recording)
    assert found.folds(R, 1000) == {}
    assert found.heads(R, 1000).keys() == wrong.keys()


def test_settings_that_are_not_here_are_told(stage: Stage, tmp_path: Path) -> None:
    """A record of settings that this program cannot read is not judged."""
    stage.tell(SettingsChanged(revision=9, settings={"policy": "kv", "from_the_future": 1}))
    event = stage.decided("other-settings", ASKED)
    stage.tell(structs.replace(event, settings_revision=9, digest="0" * 16))
    found = verified(stage, tmp_path)
    assert (found.verified, found.different, found.not_judged) == (2, 0, {"settings": 1})
    assert "from_the_future" in found.not_judged_why["settings"]


def test_own_words_that_are_missing_excuse_until_the_replica_restates_itself(stage: Stage, tmp_path: Path) -> None:
    """What it alone knew of a worker counts at once, wherever its cursor stands."""
    gone = stage.tell(LocalChanged(worker=A, reasons=("not_connected",)))
    stage.route("alone", ASKED)
    stage.tell(RESTATED)
    stage.tell(LocalChanged(worker=A, reasons=("not_connected",)))
    stage.route("again", ASKED)
    found = verified(stage, tmp_path, {(ROUTING, gone)})
    assert (found.verified, found.different, found.not_judged) == (3, 0, {"unknown": 1})


def test_own_words_that_were_changed_excuse_until_the_replica_restates_itself(stage: Stage, tmp_path: Path) -> None:
    """The next message of the replica shows the change. What the message says now is another's."""
    changed = stage.tell(LocalChanged(worker=A, reasons=("not_connected",)))
    stage.route("alone", ASKED)
    stage.tell(RESTATED)
    stage.tell(LocalChanged(worker=A, reasons=("not_connected",)))
    stage.route("again", ASKED)
    place = next(n for n, it in enumerate(stage._records) if (it.stream, it.seq) == (ROUTING, changed))
    record = stage._records[place]
    stage._records[place] = record._replace(payload=record.payload.replace(A.encode(), B.encode()))
    found = verified(stage, tmp_path)
    assert (found.verified, found.different, found.not_judged) == (3, 0, {"unknown": 1})


def test_decisions_that_are_none_are_counted_apart(stage: Stage, tmp_path: Path) -> None:
    """Of a message said twice, one signed by another, one behind its replica's end, and one of a form that this
    program does not know."""
    routed = stage.decided("twice", ASKED)
    n, head = stage._chains[ROUTING, R]
    twice = encode_message(SourceId(R), n, head, 1, [encode_event(routed)])
    stage.store(ROUTING, R, twice)
    stage.seat(R).apply_own(len(stage.frames[ROUTING]), routed)
    stage.store(ROUTING, R, twice)
    stage.say(ROUTING, S, stage.decided("foreign", ASKED, replica=S), about=R)
    future = encode_event(stage.decided("future", ASKED)).replace(b"\xa1v\x01", b"\xa1v\x63")
    n, head = stage._chains[ROUTING, R]
    stage.store(ROUTING, R, encode_message(SourceId(R), n, head, 1, [future]))
    stage.say(ROUTING, R, ReplicaLeft(reason="over"), stage.decided("ended", ASKED))
    found = verified(stage, tmp_path)
    assert found.not_judged == {"ended": 1, "foreign": 1, "repeat": 1, "version": 1}
    assert (found.verified, found.different, found.unaccounted) == (3, 0, 0)
    assert {broken.kind for broken in found.proof.breaks} >= {"foreign"}


def test_what_rests_on_more_than_the_recording_holds_is_not_judged(stage: Stage, tmp_path: Path) -> None:
    """As in an export that ends a little earlier in one stream than in another."""
    stage.say(KV, A, stored(*[ASKED.key(depth) for depth in (1, 2, 3)]))
    stage.route("beyond", ASKED)
    path = stage.archived(tmp_path / "whole")
    with ArchiveReader.open(path) as source:
        writer = ArchiveWriter(tmp_path / "short", "test", KEY.chain_key, "x", 1)
        for stream in source.streams:
            span = source.span(stream)
            writer.open(stream, span.epoch, 1, 1)  # type: ignore[arg-type]
            for record in source.read(stream, 1, span.last_seq if stream == KV else None):
                writer.add(record)
        writer.finish(writer.contents(0, 1))
    with Recording.open(tmp_path / "short", KEY) as recording:
        found = verify(recording)
    assert (found.verified, found.different, found.not_judged) == (2, 0, {"end": 1})
    assert found.proof.holds


def test_a_queue_of_jobs_that_was_made_anew_changes_no_decision(stage: Stage, tmp_path: Path) -> None:
    """None rests on it, though all name how far it was read."""
    stage.seat(R).state.open(JOBS, Epoch(9))
    for number in range(3):
        stage.route(f"r{number}", prompt(1, 2, 3))
    found = verified(stage, tmp_path)
    assert (found.decisions, found.verified, found.holds) == (5, 5, True)
