"""The planner's what-if: recorded demand decided again over a virtual fleet."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from core.errors import CallerError
from core.events import ScaleDecided
from core.events.scale import DemandRolled, ScaleEvent, ScaleSettingsChanged
from core.ids import StreamSeq
from core.subjects import SCALE
from projections.scaling.forecast import ForeseenRates
from projections.scaling.scale_settings import ARIMA, PROPHET, SEASONAL, ScaleSettings
from replay.recording.moment import AtSequence, AtTime
from replay.whatif import scale_rerun
from replay.whatif.scale_figures import ScaleFigures, ScaleWhatIf
from replay.whatif.scale_rerun import read_range, what_if_scale
from replay.whatif.scale_scenario import scale_scenarios
from tests.actors.planning.fleets_run import BUSY, QUIET, SHARED, logged_messages, two
from tests.actors.planning.planned_log import PlannedLog
from tests.actors.planning.planner_run import PlannerRun
from tests.projections.scaling.demands import PERIOD_S, START_MS
from tests.replay.explain.test_scale_explainer import logged

SETTINGS = ScaleSettings(startup_s=10, down_window_s=20, max=8)
PERIODS = 36


def recorded(settings: ScaleSettings = SETTINGS) -> PlannerRun:
    """A minute of few requests, one of many, and one of few."""
    run = PlannerRun(settings)
    for number in range(PERIODS):
        run.period(150 if 12 <= number < 24 else 5)
    return run


def sizes(run: PlannerRun) -> list[int]:
    """Each target that differs from the one before."""
    return [target for target, before in zip(run.targets, [0, *run.targets], strict=False) if target != before]


async def answer(log: PlannedLog, *given: dict[str, Any], jobs: int = 1, **range_: Any) -> ScaleWhatIf:
    """Of these scenarios, behind that of the recorded settings."""
    bounds = {"start": None, "end": None, **range_}
    found = await read_range(log, bounds["start"], bounds["end"], model=bounds.get("model"))
    return what_if_scale(found, scale_scenarios({}, given, {}), jobs)


async def figures(*given: dict[str, Any]) -> list[ScaleFigures]:
    """Of the record, of the recorded settings, and of these."""
    found = await answer(await logged(recorded().events), *given)
    return [found.recorded, *found.scenarios]


async def test_the_recorded_settings_give_the_recorded_sizes() -> None:
    """The virtual fleet then costs what the recorded one did, and serves as well."""
    run = recorded()

    record, again = await figures()

    assert [size.target for size in again.sizes] == [size.target for size in record.sizes] == sizes(run)
    assert len(again.sizes) >= 3
    assert again.worker_hours == record.worker_hours > 0
    assert (again.started, again.drained) == (record.started, record.drained)
    assert again.attainment == record.attainment
    assert again.attained < again.predicted
    assert again.seconds == (len(run.targets) - 1) * PERIOD_S


async def test_a_fixed_fleet_costs_its_size() -> None:
    """More workers are predicted to serve more requests in time."""
    *_, small, large = await figures({"max": 1}, {"min": 3, "max": 3})

    for found, workers in ((small, 1), (large, 3)):
        assert [size.target for size in found.sizes] == [workers]
        assert found.workers_max == workers
        assert found.worker_hours == pytest.approx(workers * found.seconds / 3600)
    assert small.attainment is not None
    assert large.attainment is not None
    assert small.attainment < large.attainment


@pytest.mark.parametrize(
    "given",
    [
        {"ttft_ms": 200},
        {"ttft_ms": 200, "down_window_s": 60},
        {"attainment": 50},
        {"startup_s": 30},
        {"max": 1},
        {"min": 2},
    ],
)
async def test_a_scenario_decides_as_a_planner_with_its_settings(given: dict[str, Any]) -> None:
    """The demand here does not depend on the fleet, so the two are equal."""
    run = recorded(replace(SETTINGS, **given))

    *_, found = await figures(given)

    assert [size.target for size in found.sizes] == sizes(run)
    assert [size.at_ms for size in found.sizes] == [
        each.at_ms for each, before in zip(run.decisions, [None, *run.decisions], strict=False)
        if before is None or each.target != before.target
    ]  # fmt: skip


async def test_workers_that_start_sooner_serve_more_in_time() -> None:
    """Demand rises at once, so the start-up time is what requests wait for."""
    *_, slow, fast = await figures({"startup_s": 40}, {"startup_s": 1})

    assert slow.attainment is not None
    assert fast.attainment is not None
    assert slow.attainment < fast.attainment


async def test_several_processes_give_the_same() -> None:
    log = await logged(recorded().events)
    given = ({"max": 3}, {"attainment": 80})

    assert await answer(log, *given, jobs=2) == await answer(log, *given)


async def test_a_range_begins_with_the_recorded_fleet() -> None:
    """Its start is included and its end is not."""
    events = recorded().events
    decided = [event for event in events if isinstance(event, ScaleDecided)]
    log = await logged(events)
    places = {each.at_ms: StreamSeq(number) for number, each in enumerate(events, 1) if isinstance(each, ScaleDecided)}

    by_time = await answer(log, {"max": 1}, start=AtTime(decided[20].at_ms), end=AtTime(decided[30].at_ms))
    by_seq = await answer(
        log,
        {"max": 1},
        start=AtSequence(SCALE, places[decided[20].at_ms]),
        end=AtSequence(SCALE, places[decided[30].at_ms]),
    )

    assert by_time == by_seq
    assert (by_time.decisions, by_time.first_ms, by_time.last_ms) == (10, decided[20].at_ms, decided[29].at_ms)
    again, small = by_time.scenarios
    assert [size.target for size in again.sizes] == [size.target for size in by_time.recorded.sizes]
    assert small.sizes[0].target == 1
    assert decided[20].ready > 2
    assert small.drained == decided[20].ready - 1


async def test_measured_service_is_that_of_the_periods() -> None:
    """All requests of these periods were within the bounds. The first decision's period lies before the range."""
    events = recorded().events
    found = await answer(await logged(events))

    inside = [event for event in events if isinstance(event, DemandRolled) and event.at_ms > found.first_ms]
    assert found.measured.arrivals == sum(each.arrivals for each in inside)
    assert found.measured.attainment == 1.0


async def test_a_fleet_of_none_serves_none() -> None:
    """An idle fleet may end; requests that then come find no worker."""
    run = PlannerRun(replace(SETTINGS, min=0, zero_after_s=10))
    for number in range(24):
        run.period(10 if number < 8 or number >= 20 else 0)

    found = await answer(await logged(run.events), {"zero_after_s": 100})

    ended, kept = found.scenarios
    assert ended.workers_min == 0 < kept.workers_min
    assert ended.attainment is not None
    assert kept.attainment is not None
    assert ended.attainment < kept.attainment


async def test_wrong_questions() -> None:
    log = await logged(recorded().events)
    for given, sentence in [
        ({"period_s": 3}, "period_s: the recorded periods have their length"),
        ({"min": 9}, "planner.min: 9 is above planner.max, 8"),
        ({"ttft": 3}, "planner.ttft: no such setting"),
    ]:
        with pytest.raises(CallerError, match=sentence):
            await answer(log, given)
    with pytest.raises(CallerError, match=r"no decision is in this range; the first one is of .* \(scale:"):
        await answer(log, start=AtTime(log.clock.now_ms + 1))


async def test_more_decisions_than_may_be_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scale_rerun, "DECISIONS_MAX", 10)

    with pytest.raises(CallerError, match="more than 10 decisions"):
        await answer(await logged(recorded().events))


async def test_decisions_without_their_settings_are_left_out() -> None:
    """The log begins behind them; with the next change they are known."""
    events: list[ScaleEvent] = [each for each in recorded().events if not isinstance(each, ScaleSettingsChanged)]
    later = next(number for number, each in enumerate(events) if isinstance(each, ScaleDecided) and number > 40)
    events.insert(later + 1, ScaleSettingsChanged(revision=1, settings=SETTINGS.to_mapping()))

    found = await answer(await logged(events))

    total = sum(isinstance(each, ScaleDecided) for each in events)
    assert found.left_out == sum(isinstance(each, ScaleDecided) for each in events[: later + 1])
    assert found.decisions == total - found.left_out
    with pytest.raises(CallerError, match="the log lacks the settings"):
        await answer(await logged(events[: later + 1]))


async def test_a_recorded_forecast_of_a_library_counts_again() -> None:
    """It cannot be made again here: the seasonal one would require fewer workers. Under other settings, too."""
    run = PlannerRun(replace(SETTINGS, predictor=ARIMA))
    run.foreseen = ForeseenRates(ARIMA, START_MS // 60_000, (60_000,) * 20)
    for _ in range(PERIODS):
        run.period(20)
    found = await answer(await logged(run.events), {"down_window_s": 30}, {"predictor": SEASONAL})
    same, other, seasonal = found.scenarios

    assert [size.target for size in same.sizes] == [size.target for size in found.recorded.sizes]
    assert max(size.target for size in other.sizes) == max(run.targets) > 1
    assert max(size.target for size in seasonal.sizes) < max(run.targets)


@pytest.mark.parametrize("predictor", [ARIMA, PROPHET])
def test_a_library_forecasts_nothing_again(predictor: str) -> None:
    """A scenario that asks for it is refused with a sentence."""
    with pytest.raises(CallerError, match=f"planner.predictor: {predictor} .*take constant, kalman or seasonal"):
        scale_scenarios({}, [{"predictor": predictor}], {})


async def test_of_several_models_one_is_decided_again() -> None:
    """The others keep their devices. Which one is meant must be said."""
    run = two(a=replace(SHARED, priority=3), b=SHARED)
    targets = [run.period(a=BUSY if number < 18 else QUIET, b=BUSY)["b"].target for number in range(PERIODS)]
    log = await logged_messages(run)

    with pytest.raises(CallerError, match="several models: give --model, one of a, b"):
        await answer(log)
    found = await answer(log, {"attainment": 50}, {"max": 9}, model="b")
    again, fewer, most = found.scenarios
    assert found.model == "b"
    assert found.decisions == PERIODS
    assert [each.target for each in again.sizes] == [
        target for target, before in zip(targets, [0, *targets], strict=False) if target != before
    ]
    assert min(targets[4:18]) == 1
    assert most.workers_max == SHARED.devices_max - 1
    assert fewer.worker_hours <= again.worker_hours
