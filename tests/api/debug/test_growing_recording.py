"""A log that is looked at while it grows, or whose clock went back: nothing that it says is left out."""

from __future__ import annotations

from pathlib import Path

import pytest

from api.debug.recording_view import RecordingView
from api.debug.timeline.timeline_scan import TimelineScan
from core.clock import SystemClock
from core.events import RequestRouted
from core.subjects import ROUTING
from replay.recording.recording import Recording
from streams.archive.archive_reader import ArchiveReader
from streams.archive.archive_writer import ArchiveWriter
from streams.log import Record
from tests.fixtures.eventually import eventually
from tests.page.fleet import KEY, NAMESPACE, START_MS, Fleet, Scale
from tests.projections.facts import finished, joined, prefilled
from tests.replay.staged import ASKED, KV, A, B, Stage
from tests.replay.staged import KEY as STAGED_KEY


def set_back(path: Path, by_ms: int) -> Path:
    """The log of a broker whose clock was set back in the middle."""
    writer = ArchiveWriter(path, NAMESPACE, KEY.chain_key, "test", START_MS)
    written = writer.add

    def add(record: Record) -> None:
        late = record.time_ms > START_MS + 4000
        written(record._replace(time_ms=record.time_ms - by_ms) if late else record)

    writer.add = add  # type: ignore[method-assign]
    fleet = Fleet(Scale(decisions=600), writer)
    fleet.run()
    writer.finish(writer.contents(0, fleet.now_ms))
    return path


def test_a_clock_that_goes_back_hides_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every decision is there once, in the order of the log."""
    monkeypatch.setattr("streams.archive.archive_writer.BLOCK_BYTES", 50_000)
    log, scan = set_back(tmp_path / "log", 6000), TimelineScan()
    with ArchiveReader.open(log) as archive:
        starts = [block.first_ms for block in archive.contents.blocks if block.stream == ROUTING]
        assert starts != sorted(starts)
        for _ in scan.steps(archive):
            pass
    with Recording.open(log, KEY) as recording:
        said = [event for _, message in recording.messages(ROUTING) for event in message.events]
    assert scan.decisions.requests == [event.request for event in said if isinstance(event, RequestRouted)]
    assert scan.messages == scan.total


async def test_what_came_of_a_decision_is_told_when_it_has_come(tmp_path: Path) -> None:
    """The explanation has the first token and the end as soon as the timeline has them; what is asked again and again
    meanwhile costs no new index."""
    stage = Stage()
    for name, worker in (("a", A), ("b", B)):
        stage.say(KV, worker, joined(name))
    stage.replica()
    stage.route("r", ASKED)
    view = RecordingView("log", STAGED_KEY, SystemClock(), live_messages_max=1000)
    view.start()
    told = []
    for number, event in enumerate((None, prefilled("r"), finished("r"))):
        if event is not None:
            stage.tell(event)
        await view.show(ArchiveReader.open(stage.archived(tmp_path / f"log{number}")))
        end = len(stage.frames[ROUTING])
        await eventually(lambda: view.timeline.decisions.history.read_to == end, "read")  # noqa: B023 - now
        (n,) = view.timeline.decisions.column("n")
        told.append(await view.explanation(n))
        settled = view.fold_thread.recording_state.recording()
        assert await view.explanation(n) == told[-1]
        assert view.fold_thread.recording_state.recording() is settled
    await view.close()
    assert [each["reuse"] is not None for each in told] == [False, True, True]
    assert [each["outcome"] for each in told] == [None, None, "stop"]
