"""The start of a recording: one place, where retention cut the log and a snapshot has what lay before."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from api.debug.fold_thread import RecordingState
from core.ids import Epoch, StreamSeq
from core.settings import RoutingSettings
from core.subjects import JOBS, LOAD, ROUTING
from replay.recording.recording import Recording
from replay.verify.evidence import FoldAgreements, fold_reports
from replay.verify.prefill_checks import PrefillJobEnds
from replay.verify.verify import verify
from replay.whatif.whatif import LogDelay
from streams.archive.archive_writer import ArchiveWriter
from tests.projections.facts import joined, load, prompt, stored
from tests.projections.job_facts import asked, pulled
from tests.replay.staged import KEY, KV, A, B, R, Stage

JOB = "0a" * 8
ASKED = prompt(1, 2, 3)


@pytest.fixture(params=["whole", "range"])
def recording(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Recording]:
    """A log of which retention took all that the snapshot has: exported whole, so that its first place is 1, or from
    the snapshot on."""
    with cut_log(tmp_path, whole=request.param == "whole") as found:
        yield found


def cut_log(path: Path, *, whole: bool, kept: int = 0) -> Recording:
    """The log with its snapshot, and so many messages of the kv stream before that. One worker or both, the replica
    and an open job are in the snapshot alone."""
    stage = Stage()
    stage.frames[JOBS] = []
    for name, worker in (("left", A), ("right", B)):
        stage.say(KV, worker, joined(name), stored(*[ASKED.key(depth) for depth in (1, 2)]))
        stage.say(LOAD, worker, load())
    stage.replica(R, "r1", RoutingSettings(policy="kv"))
    stage.say(JOBS, A, asked(JOB, 1))
    taken = stage.snapshot()
    start = {stream: len(frames) + 1 for stream, frames in stage.frames.items()}
    stage.clock.advance(1000)
    stage.say(KV, B, stored(77))
    stage.say(LOAD, B, load(1))
    stage.say(JOBS, A, pulled(JOB, 0))
    stage.route("r", ASKED)
    stage.tell(stage.report(R))
    start[KV] -= kept
    writer = ArchiveWriter(path / "log", "test", KEY.chain_key, "x", stage.clock.now_ms)
    writer.add_snapshot(*taken)
    for stream, frames in stage.frames.items():
        first = start[stream]
        writer.open(stream, Epoch(1), 1 if whole else first, first)
        for record in stage._records:
            if record.stream == stream and record.seq >= first:
                writer.add(record)
        writer.reached(stream, len(frames))
    writer.finish(writer.contents(0, stage.clock.now_ms))
    found = Recording.open(path / "log", KEY)
    assert found.start == {stream: StreamSeq(first - 1) for stream, first in start.items()}
    return found


def test_folds_know_the_snapshot(recording: Recording) -> None:
    """A replica's report is compared with folds that know the silent workers."""
    agreed = FoldAgreements(recording).folds(R, 1000)
    assert agreed == {each.stream: each.seq for each in fold_reports(recording)}
    assert agreed.keys() == {KV, LOAD, ROUTING, JOBS}


def test_jobs_begin_with_the_snapshot(recording: Recording) -> None:
    """A job that was open there has its request."""
    ends = PrefillJobEnds(recording)
    assert (ends.asked, ends.pulled, ends.open, ends.not_judged, ends.anomalies) == (1, 1, 0, 0, [])


@pytest.mark.parametrize("whole", [True, False])
def test_a_snapshot_behind_the_start_is_met(tmp_path: Path, whole: bool) -> None:
    """Retention goes by age, and left messages before the snapshot: folds that lack what it took go on from there."""
    with cut_log(tmp_path, whole=whole, kept=1) as recording:
        agreed = FoldAgreements(recording).folds(R, 1000)
        assert agreed == {each.stream: each.seq for each in fold_reports(recording)}
        ends = PrefillJobEnds(recording)
        assert (ends.asked, ends.pulled, ends.open, ends.not_judged, ends.anomalies) == (1, 1, 0, 0, [])
        found = verify(recording)
        assert (found.verified, found.not_judged, found.complete) == (1, {}, True)


def test_the_page_begins_with_the_snapshot(recording: Recording) -> None:
    """It knows the workers that were silent since."""
    shown = RecordingState(KEY, messages_expected=100)
    for _ in shown.show(recording.archive):
        pass
    assert {life.name for life in shown.timeline.workers} == {"left", "right"}
    assert shown.recording().state_at(recording.end).digest == recording.state_at(recording.end).digest


def test_a_delay_begins_with_the_snapshot(recording: Recording) -> None:
    """What is seen late is never before the first message."""
    seen = LogDelay(recording, 500)(next(recording.frames(ROUTING)), {KV: (1, 4), ROUTING: (1, 4)})
    assert seen == {stream: (1, recording.start[stream]) for stream in (KV, ROUTING)}


def test_all_is_verified(recording: Recording) -> None:
    found = verify(recording)
    assert (found.verified, found.not_judged, found.complete, found.proof.breaks) == (1, {}, True, [])
