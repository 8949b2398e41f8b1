"""Fleets that a planner sizes: workers start, take their time, drain and leave, and no request fails."""

from __future__ import annotations

from itertools import groupby
from pathlib import Path

import pytest
from msgspec import UNSET
from msgspec.structs import replace

from actors.engines.simulated.engine_profile import profile as exact
from core.errors import CallerError
from core.events import CapacityLearned, ScaleDecided, ScaleEvent, WorkerJoined, WorkerLeft, WorkerStarting
from core.events.scale import LEARNED, MEASURED
from core.ids import StreamName
from core.subjects import SCALE
from projections.scaling.scale_settings import ARIMA, ScaleSettings
from replay.recording.recording import Recording
from replay.simulate.options import Options, ServiceBounds
from replay.simulate.setup import scaling_of
from replay.simulate.simulated_fleet import DRAIN_US
from replay.simulate.simulated_log import KEY, KV, START_MS
from replay.simulate.simulation import simulate
from replay.verify.scale_checks import verify_scale
from tests.replay.simulate.planned import ENGINE, SETTINGS, arrivals, planned

RISE_AND_FALL = arrivals((20, 2), (40, 20), (60, 2))


def events(log: Path, stream: StreamName) -> list[tuple[int, object]]:
    """All events of the stream, each with its time in ms since the start of the run."""
    with Recording.open(log, KEY) as recording:
        return [
            (record.time_ms - START_MS, event)
            for record, message in recording.messages(stream)
            for event in message.events
        ]


def test_a_fleet_follows_its_demand(tmp_path: Path) -> None:
    """20 prompts a second are 2.6 workers' work; two a second are a quarter of one's."""
    found, figures = planned(RISE_AND_FALL, archive=tmp_path / "log")

    targets = [event.target for _, event in events(tmp_path / "log", SCALE) if isinstance(event, ScaleDecided)]
    assert targets[0] == targets[-1] == 1
    assert max(targets) >= 3
    assert not any(each.why for each in found.served)
    assert figures.workers_max >= 3
    assert figures.starts == figures.stops >= 2
    assert 1 < figures.workers_mean < figures.workers_max


def test_bounds_that_no_worker_meets_shrink_no_fleet(tmp_path: Path) -> None:
    """A prompt takes 128 ms, and its bound is 60. Waits are short once the workers have started. By earlier rules one
    worker was left, and requests waited to the end."""
    settings = replace(SETTINGS, ttft_ms=60)
    found, _ = planned(RISE_AND_FALL, settings, archive=tmp_path / "log")

    made = [event for _, event in events(tmp_path / "log", SCALE) if isinstance(event, ScaleDecided)]
    assert {event.ceiling_bp for event in made} == {0}
    assert max(event.target for event in made) >= 4
    assert made[-1].target < made[0].target + 2
    assert not any(each.why for each in found.served)
    late = [each.first_us - each.arrival_us for each in found.served if each.arrival_us > 45_000_000]
    assert max(late) < 500_000


def test_workers_join_when_they_have_started_and_leave_in_the_log(tmp_path: Path) -> None:
    """Each start-up takes the time of the settings, and every stop is an event of its own."""
    _, figures = planned(RISE_AND_FALL, archive=tmp_path / "log")

    ordered = [at_ms for at_ms, event in events(tmp_path / "log", SCALE) if isinstance(event, WorkerStarting)]
    joined = [at_ms for at_ms, event in events(tmp_path / "log", KV) if isinstance(event, WorkerJoined)]
    left = [event for _, event in events(tmp_path / "log", KV) if isinstance(event, WorkerLeft)]
    assert joined == [0, *(at_ms + SETTINGS.startup_s * 1000 for at_ms in ordered)]
    assert len(left) == figures.stops


def test_more_workers_attain_more_than_a_fleet_that_cannot_grow() -> None:
    """And cost less than a fleet that always has the most workers."""
    _, grown = planned(RISE_AND_FALL)
    _, small = planned(RISE_AND_FALL, ScaleSettings(startup_s=10, max=1))
    options = Options(workers=grown.workers_max, engine=ENGINE, bounds=ServiceBounds(1000, 50))
    large = scaling_of(options, simulate(options, RISE_AND_FALL))

    assert large is not None
    assert small.attainment + 0.1 < grown.attainment < large.attainment
    assert grown.worker_hours < 0.6 * large.worker_hours


def test_answers_that_outlast_a_drain_go_on_elsewhere() -> None:
    """They have all their tokens, and the worker leaves when its time is over."""
    long = arrivals((30, 4), (60, 1), output=6_000)
    found, figures = planned(long, ScaleSettings(startup_s=5, down_window_s=10, ttft_ms=500, max=4), workers=4)

    assert figures.handed_over > 0
    assert any(each.attempts > 1 for each in found.served)
    assert {each.output_tokens for each in found.served} == {6_000}
    assert not any(each.why for each in found.served)
    drained = [life for life in found.lifetimes if life.drained_us >= 0 and life.until_us >= 0]
    assert all(life.until_us - life.drained_us <= DRAIN_US for life in drained)


def test_a_fleet_ends_at_zero_and_requests_wait_for_the_next_worker(tmp_path: Path) -> None:
    """The first one waits for a period and the start of a worker; none is refused, and decisions follow."""
    settings = replace(SETTINGS, min=0, zero_after_s=30)
    found, figures = planned(arrivals((20, 2), (60, 0), (20, 2)), settings, archive=tmp_path / "log")

    targets = [event.target for _, event in events(tmp_path / "log", SCALE) if isinstance(event, ScaleDecided)]
    assert [target for target, _ in groupby(targets)][:3] == [1, 0, 1]
    assert not any(each.why for each in found.served)
    waited_us = max(each.first_us - each.arrival_us for each in found.served)
    assert waited_us < (settings.startup_s + settings.period_s + 2) * 1_000_000
    assert figures.worker_hours * 3600 < 20 + 30 + settings.period_s + 20 + settings.startup_s + 60
    with Recording.open(tmp_path / "log", KEY) as recording:
        verified = verify_scale(recording)
    assert verified is not None
    assert verified.decisions == verified.verified > 10
    assert verified.periods == verified.periods_verified


def test_equal_runs_are_equal(tmp_path: Path) -> None:
    """Byte by byte, events of the planner included."""
    digests = {planned(RISE_AND_FALL, archive=tmp_path / name)[0].digest for name in ("one", "two")}

    assert len(digests) == 1
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()


def test_a_demand_event_has_a_bounded_size(tmp_path: Path) -> None:
    """A period and its decision take some hundred bytes and not a byte per request."""
    planned(arrivals((60, 20)), archive=tmp_path / "log")
    with Recording.open(tmp_path / "log", KEY) as recording:
        payloads = [record.payload for record in recording.archive.read(SCALE)]

    assert sum(map(len, payloads)) / len(payloads) < 1_000


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"workers": 9}, "workers, 9"),
        ({"failures_per_hour": 1}, "workers that do not fail"),
        ({"planner": ScaleSettings(min=2)}, "workers, 1"),
    ],
)
def test_fleets_that_cannot_be_planned_are_refused(given: dict[str, object], named: str) -> None:
    """With the reason."""
    with pytest.raises(CallerError, match=named):
        Options(**{"workers": 1, "planner": SETTINGS, **given})  # type: ignore[arg-type]


def test_the_stream_of_a_planner_stands_in_its_runs_alone(tmp_path: Path) -> None:
    """Other archives are what they were."""
    planned(arrivals((5, 2)), archive=tmp_path / "planned")
    simulate(Options(workers=1, engine=ENGINE), arrivals((5, 2)), archive=tmp_path / "plain")

    kinds: list[ScaleEvent] = [event for _, event in events(tmp_path / "planned", SCALE)]  # type: ignore[misc]
    assert kinds
    with Recording.open(tmp_path / "plain", KEY) as recording:
        assert SCALE not in recording.archive.streams


def test_a_planner_that_learns_begins_with_its_profile(tmp_path: Path) -> None:
    """It decides from its first period on, and what it learns takes over; all decisions are made again. Without a
    profile nothing is decided before requests have taught a speed."""
    profile = replace(exact(ENGINE), origin=MEASURED, profile="measured")

    def decisions(name: str, given: CapacityLearned | None) -> tuple[list[CapacityLearned], list[int]]:
        options = Options(workers=1, engine=ENGINE, planner=SETTINGS, learns=True, profile=given)
        simulate(options, RISE_AND_FALL, archive=tmp_path / name)
        found = events(tmp_path / name, SCALE)
        with Recording.open(tmp_path / name, KEY) as recording:
            verified = verify_scale(recording)
        assert verified is not None
        assert verified.decisions == verified.verified > 0
        return (
            [event for _, event in found if isinstance(event, CapacityLearned)],
            [at_ms for at_ms, event in found if isinstance(event, ScaleDecided)],
        )

    measured, with_profile = decisions("with", profile)
    learned, without = decisions("without", None)
    assert with_profile[0] == 1000 * SETTINGS.period_s < without[0]
    assert (measured[0].origin, measured[-1].origin) == (MEASURED, LEARNED)
    assert {each.profile for each in measured} == {"measured"}
    assert {each.profile for each in learned} == {UNSET}


def test_no_simulation_waits_for_a_library(tmp_path: Path) -> None:
    """A planner with such a predictor is refused."""
    with pytest.raises(CallerError, match="take constant, kalman or seasonal"):
        Options(workers=1, engine=ENGINE, planner=replace(SETTINGS, predictor=ARIMA))
