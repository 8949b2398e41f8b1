"""Decisions on the size of a fleet made again, from a recording of a simulated run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from api.cli.main import contrail
from core.codec import Message, decode_message, digest
from core.events import DemandRolled, ScaleDecided
from core.events.scale import SCALE_VERSION
from core.ids import StreamName
from core.subjects import ROUTING, SCALE
from projections.scaling import queue_model
from replay.recording.recording import Recording
from replay.simulate.simulated_log import KEY
from replay.verify.scale_checks import CUT, VERSION, verify_scale
from replay.verify.verify import verify
from streams.log import Record
from tests.replay.simulate.planned import arrivals, planned


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose fleet grows and shrinks."""
    path = tmp_path_factory.mktemp("scale") / "log"
    planned(arrivals((30, 2), (40, 20), (60, 2)), archive=path)
    return path


@pytest.fixture
def recording(log: Path) -> Iterator[Recording]:
    with Recording.open(log, KEY) as opened:
        yield opened


def changed(monkeypatch: pytest.MonkeyPatch, recording: Recording, **changes: object) -> None:
    """The 12th decision has these fields instead of its own."""
    original, left = recording.messages, [12]

    def messages(stream: StreamName, start: int = 1) -> Iterator[tuple[Record, Message]]:
        for record, message in original(stream, start):
            events = message.events
            if isinstance(events[0], ScaleDecided):
                left[0] -= 1
                events = (replace(events[0], **changes),) if not left[0] else events
            yield record, replace(message, events=events)

    monkeypatch.setattr(recording, "messages", messages)


def test_every_decision_and_every_period_follows(recording: Recording) -> None:
    """And the whole recording is complete, chains included."""
    found = verify(recording)

    assert found.scale is not None
    assert found.scale.decisions == found.scale.verified > 20
    assert found.scale.periods == found.scale.periods_verified == found.scale.decisions
    assert found.holds
    assert found.unjudged["decision on the fleet"] == 0


@pytest.mark.parametrize(
    ("changes", "term"),
    [({"target": 7}, "target"), ({"candidates": ()}, "candidates"), ({"required": 99}, "required")],
)
def test_another_decision_is_a_difference(
    monkeypatch: pytest.MonkeyPatch, recording: Recording, changes: dict[str, object], term: str
) -> None:
    """With the first field that differs; later decisions may differ, too, since they rest on it."""
    changed(monkeypatch, recording, **changes)

    found = verify_scale(recording)

    assert found is not None
    assert found.different >= 1
    assert (found.differences[0].event, found.differences[0].term) == ("ScaleDecided", term)
    assert found.verified + found.different == found.decisions


def test_other_rules_are_a_difference(monkeypatch: pytest.MonkeyPatch, recording: Recording) -> None:
    """A changed constant of the model shows."""
    monkeypatch.setattr(queue_model, "BUSY_MAX_BP", 2_000)

    found = verify(recording)

    assert found.scale is not None
    assert found.scale.different > 0
    assert not found.holds


def test_rules_of_a_newer_program_are_not_judged(monkeypatch: pytest.MonkeyPatch, recording: Recording) -> None:
    """That decision alone."""
    changed(monkeypatch, recording, version=SCALE_VERSION + 1)

    found = verify_scale(recording)

    assert found is not None
    assert (found.not_judged, found.different) == ({VERSION: 1}, 0)


def cut(monkeypatch: pytest.MonkeyPatch, recording: Recording, stream: StreamName, missing: range) -> None:
    """The stream lacks these messages."""
    original = recording.messages

    def messages(of: StreamName, start: int = 1) -> Iterator[tuple[Record, Message]]:
        return ((record, it) for record, it in original(of, start) if of != stream or record.seq not in missing)

    monkeypatch.setattr(recording, "messages", messages)


def test_a_stream_with_missing_messages_accuses_no_decision(
    monkeypatch: pytest.MonkeyPatch, recording: Recording
) -> None:
    """Decisions that still come out equal are verified."""
    cut(monkeypatch, recording, SCALE, range(11, 30))

    found = verify_scale(recording)

    assert found is not None
    assert found.different == found.periods_different == 0
    assert found.not_judged.get(CUT, 0) + found.verified == found.decisions
    assert found.periods_not_judged > 0


def test_a_routing_stream_with_missing_messages_accuses_no_period(
    monkeypatch: pytest.MonkeyPatch, recording: Recording
) -> None:
    """Periods before the gap are verified, later ones are not judged."""
    cut(monkeypatch, recording, ROUTING, range(301, 400))

    found = verify_scale(recording)

    assert found is not None
    assert found.periods_different == 0
    assert found.periods_verified > 0
    assert found.periods_not_judged > 0


def test_demand_that_was_not_there_is_a_difference(monkeypatch: pytest.MonkeyPatch, recording: Recording) -> None:
    """The routing stream tells how many requests came."""
    original = recording.messages

    def messages(stream: StreamName, start: int = 1) -> Iterator[tuple[Record, Message]]:
        for record, message in original(stream, start):
            event = message.events[0]
            if stream == SCALE and isinstance(event, DemandRolled) and event.arrivals == 10:
                yield record, replace(message, events=(replace(event, arrivals=11),))
            else:
                yield record, message

    monkeypatch.setattr(recording, "messages", messages)

    found = verify_scale(recording)

    assert found is not None
    assert found.periods_different > 0
    assert found.differences[0].term == "arrivals"
    assert found.differences[0].recorded == found.differences[0].recomputed + 1


def test_a_changed_message_breaks_the_chain(log: Path) -> None:
    """Its digest names the one before; events are JSON that people can read."""
    with Recording.open(log, KEY) as recording:
        records = list(recording.archive.read(SCALE))
        assert SCALE in recording.chained_streams
        assert SCALE not in recording.streams
        assert ROUTING in recording.streams
    assert records[3].payload.startswith(b"{")
    assert decode_message(records[4].payload).prev == digest(records[3].payload, KEY.chain_key)


def test_a_redacted_recording_is_verified_as_well(log: Path, tmp_path: Path) -> None:
    """Counts and sums stay, and requests keep their identity."""
    done = CliRunner().invoke(
        contrail, ["export", str(tmp_path / "redacted"), "--log", str(log), "--redact"], catch_exceptions=False
    )
    assert done.exit_code == 0, done.output

    with Recording.open(tmp_path / "redacted") as redacted:
        found = verify_scale(redacted)

    assert found is not None
    assert found.decisions == found.verified > 20
    assert found.periods == found.periods_verified
