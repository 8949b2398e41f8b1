"""Answers of a judge in a recording: decisions with them are made again, and so are the simulations on request."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import orjson
import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from api.cli.main import contrail
from core.codec import Message
from core.events import ScaleDecided
from core.events.scale import JUDGE_VERSION, LATE, ScaleJudgement
from core.ids import StreamName
from core.subjects import SCALE
from projections.scaling import judge_plan as plans
from projections.scaling.judge_plan import JudgePlan
from projections.scaling.scale_settings import ON
from replay.recording.recording import Recording
from replay.simulate.options import Options
from replay.simulate.scale_judge import judge
from replay.simulate.simulated_log import KEY
from replay.simulate.simulation import simulate
from replay.verify.scale_checks import CUT, VERSION, JudgementCounts, verify_scale
from streams.log import Record
from tests.replay.simulate.planned import ENGINE, SETTINGS, arrivals

JUDGED = replace(SETTINGS, judge=ON, itl_ms=30)
FAILS_AT = 2
"""The judge's second answer of the run is late."""


again = lru_cache(judge)
"""Plans of this run are simulated once for all tests but one."""


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short runs are simulated, too."""
    monkeypatch.setattr(plans, "SAMPLE_MIN", 16)


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with a judge: its answers come a while after the questions, and one never comes."""
    path, asked = tmp_path_factory.mktemp("judged") / "log", []

    def sometimes(plan: JudgePlan) -> ScaleJudgement:
        asked.append(plan)
        found = judge(plan)
        return replace(found, workers=(), digest="", absent=LATE) if len(asked) == FAILS_AT else found

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(plans, "SAMPLE_MIN", 16)
        options = Options(workers=1, engine=ENGINE, planner=JUDGED)
        simulate(options, arrivals((170, 1)), archive=path, judge=sometimes)
    assert len(asked) == 3
    return path


@pytest.fixture
def recording(log: Path) -> Iterator[Recording]:
    with Recording.open(log, KEY) as opened:
        yield opened


def decisions(recording: Recording) -> list[ScaleDecided]:
    return [
        event for _, message in recording.messages(SCALE) for event in message.events if isinstance(event, ScaleDecided)
    ]


def changed(monkeypatch: pytest.MonkeyPatch, recording: Recording, **changes: object) -> None:
    """The first answer has these fields instead of its own."""
    original, left = recording.messages, [1]

    def with_changes(event: object) -> object:
        if isinstance(event, ScaleDecided) and isinstance(event.judged, ScaleJudgement) and left[0]:
            left[0] = 0
            return replace(event, judged=replace(event.judged, **changes))
        return event

    def messages(stream: StreamName, start: int = 1) -> Iterator[tuple[Record, Message]]:
        for record, message in original(stream, start):
            yield record, replace(message, events=tuple(map(with_changes, message.events)))

    monkeypatch.setattr(recording, "messages", messages)


def test_answers_stand_in_later_decisions(recording: Recording) -> None:
    """With the time of the decision that they are about; the absence, too."""
    found = decisions(recording)
    judged = [event for event in found if isinstance(event.judged, ScaleJudgement)]

    assert [event.judged.absent for event in judged] == ["", LATE, ""]  # type: ignore[union-attr]
    times = [event.at_ms for event in found]
    assert all(event.judged.asked_ms in times for event in judged)  # type: ignore[union-attr]
    assert all(event.at_ms - event.judged.asked_ms == 10_000 for event in judged)  # type: ignore[union-attr]


def test_simulations_are_made_again_on_request(recording: Recording) -> None:
    """Decisions are made again without, too, from the recorded answers."""
    plain, found = verify_scale(recording), verify_scale(recording, judge)

    assert plain is not None
    assert found is not None
    assert (plain.verified, plain.different, plain.judgements) == (plain.decisions, 0, None)
    assert found.judgements == JudgementCounts(verified=2, absent={LATE: 1})
    assert (found.verified, found.differ) == (found.decisions, 0)


@pytest.mark.parametrize(("changes", "term"), [({"digest": "0"}, "digest"), ({"rate_m": 1}, "rate_m")])
def test_an_answer_that_does_not_follow_is_a_difference(
    monkeypatch: pytest.MonkeyPatch, recording: Recording, changes: dict[str, object], term: str
) -> None:
    """Its decision follows from it all the same, if it decides nothing by it."""
    changed(monkeypatch, recording, **changes)

    found = verify_scale(recording, again)

    assert found is not None
    assert found.judgements is not None
    assert (found.judgements.verified, found.judgements.different) == (1, 1)
    assert found.different == 0
    assert found.differ == 1
    assert [(each.event, each.term) for each in found.differences] == [("ScaleJudgement", term)]


def test_an_answer_to_no_decision_is_a_difference(monkeypatch: pytest.MonkeyPatch, recording: Recording) -> None:
    """The recording has all messages, so there was none."""
    changed(monkeypatch, recording, asked_ms=1)
    found = verify_scale(recording, again)
    assert found is not None
    assert found.judgements is not None
    assert (found.judgements.different, found.differences[0].term) == (1, "workers")


def test_answers_of_other_programs_and_behind_a_cut_are_not_judged(
    monkeypatch: pytest.MonkeyPatch, recording: Recording
) -> None:
    """Each with its reason."""
    changed(monkeypatch, recording, version=JUDGE_VERSION + 1)
    found = verify_scale(recording, again)
    assert found is not None
    assert found.judgements == JudgementCounts(verified=1, absent={LATE: 1}, not_judged={VERSION: 1})
    assert found.judgements_not_judged == 1
    monkeypatch.undo()
    monkeypatch.setattr(plans, "SAMPLE_MIN", 16)
    original = recording.messages

    def later(stream: StreamName, start: int = 1) -> Iterator[tuple[Record, Message]]:
        judged = [
            record.seq
            for record, message in original(SCALE)
            if isinstance(message.events[0], ScaleDecided) and isinstance(message.events[0].judged, ScaleJudgement)
        ]
        for record, message in original(stream, start):
            if stream != SCALE or record.seq >= judged[0] or not isinstance(message.events[0], ScaleDecided):
                yield record, message

    monkeypatch.setattr(recording, "messages", later)
    found = verify_scale(recording, again)
    assert found is not None
    assert found.judgements is not None
    assert found.judgements.not_judged == {CUT: 1}
    assert found.judgements.different == 0


def test_the_commands_show_the_judge(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`replay verify --judge` counts answers, and `explain scale` names the simulated numbers."""
    monkeypatch.setattr("api.cli.replay.verify.judge", again)
    of = ["--log", str(log)]
    with Recording.open(log, KEY) as recording:
        seq, judged = next((record.seq, event) for record, event in _judged(recording))

    plain = orjson.loads(CliRunner().invoke(contrail, ["replay", "verify", *of, "--json"]).output)
    ran = CliRunner().invoke(contrail, ["replay", "verify", *of, "--judge", "--json"])
    text = CliRunner().invoke(contrail, ["replay", "verify", *of, "--judge"]).output
    explained = CliRunner().invoke(contrail, ["explain", "scale", f"scale:{seq}", *of]).output

    assert "judgements" not in plain["scale"]
    assert ran.exit_code == 0, ran.output
    found = orjson.loads(ran.output)["scale"]["judgements"]
    assert found == {"verified": 2, "different": 0, "not_judged": {}, "absent": {"late": 1}}
    assert "judgements" in text
    shares = [f"{each.workers} worker" for each in judged.workers]
    assert all(share in explained for share in shares), explained


def _judged(recording: Recording) -> Iterator[tuple[Record, ScaleJudgement]]:
    for record, message in recording.messages(SCALE):
        for event in message.events:
            if isinstance(event, ScaleDecided) and isinstance(event.judged, ScaleJudgement):
                yield record, event.judged
