"""The planner's machine over whole courses of demand: steady, a step, none, and workers that never come."""

from __future__ import annotations

import random

import pytest
from msgspec import UNSET
from msgspec.structs import replace

from actors.planning import planner as planner_module
from actors.planning.planner import OVERDUE_MAX, RESTATE_PERIODS, PeriodEnded, Planner, RecordEvent
from core.events import CapacityLearned, DemandRolled, ScaleApplied, ScaleDecided, ScaleFailed, WorkerStarting
from core.events.scale import LEARNED, ScaleEvent, ScaleSettingsChanged
from projections.scaling import scale_fold
from projections.scaling.forecast import ForeseenRates
from projections.scaling.scale_decision import FROM_ZERO, FleetCounts, decide_scale
from projections.scaling.scale_fold import ScaleFold
from projections.scaling.scale_settings import ARIMA, PROPHET, SEASONAL, ScaleSettings
from tests.actors.planning.planner_run import PlannerRun, turns
from tests.projections.scaling.demands import CAPACITY, PERIOD_S, cell, poisson, rolled
from tests.projections.scaling.profiles import PROFILE

SETTINGS = ScaleSettings(down_window_s=60, startup_s=30)
PER_MINUTE = 60 // PERIOD_S


def test_a_fleet_grows_with_its_demand_and_shrinks_behind_the_window() -> None:
    """Every start is an event before its order, and every worker comes when it has started."""
    run = PlannerRun(SETTINGS)
    for arrivals in [10] * 2 * PER_MINUTE + [200] * 4 * PER_MINUTE + [10] * 4 * PER_MINUTE:
        run.period(arrivals)

    assert run.fleet[2 * PER_MINUTE - 1] == run.fleet[-1] == 1
    assert max(run.fleet) > 4
    starts = [event.start for event in run.events if isinstance(event, WorkerStarting)]
    assert starts == list(range(1, len(starts) + 1))
    applied = [event for event in run.events if isinstance(event, ScaleApplied)]
    assert sum(each.started for each in applied) == len(starts)


def test_a_step_of_three_is_served_within_start_up_and_fifteen_seconds() -> None:
    """The burst is seen before the last minute is full of it."""
    steps = ScaleSettings(startup_s=60)
    before, after = PlannerRun(steps), PlannerRun(steps)
    for _ in range(10 * PER_MINUTE):
        before.period(60)
        after.period(180)
    for _ in range((60 + 15) // PERIOD_S):
        before.period(180)

    assert before.fleet[-1] >= after.fleet[-1] > before.fleet[10 * PER_MINUTE - 1]


@pytest.mark.parametrize(("rate", "seed", "hours"), [(1.7, 3, 1), (9.0, 3, 1), (1.85, 7, 2)])
def test_a_steady_demand_turns_no_fleet_around(rate: float, seed: int, hours: int) -> None:
    """At most twice an hour, at random arrivals of random sizes. The last load lies just between one worker and two."""
    random_, run = random.Random(seed), PlannerRun(ScaleSettings())
    for _ in range((10 + 60 * hours) * PER_MINUTE):
        sizes = [int(random_.lognormvariate(8.3, 1.0)) + 1 for _ in range(poisson(random_, rate * PERIOD_S))]
        cells = tuple(cell(1, size, int(random_.lognormvariate(5.2, 0.9)) + 1, 2 * size) for size in sizes)
        run.period(len(sizes), cells)

    for hour in range(hours):
        begin = (10 + 60 * hour) * PER_MINUTE
        assert turns(run.targets[begin : begin + 60 * PER_MINUTE]) <= 2


def test_without_traffic_the_minimum_is_reached() -> None:
    """Within the window for shrinking, and a minute."""
    run = PlannerRun(SETTINGS)
    for _ in range(5 * PER_MINUTE):
        run.period(100)
    for _ in range((SETTINGS.down_window_s + 60) // PERIOD_S):
        run.period(0)

    assert run.fleet[5 * PER_MINUTE - 1] > 1
    assert run.fleet[-1] == SETTINGS.min


def test_a_fleet_goes_to_zero_and_back() -> None:
    """It ends after `zero_after_s` without an arrival, begins with the first request, and stays small: a request now
    and then takes one worker."""
    run = PlannerRun(ScaleSettings(min=0, zero_after_s=60, startup_s=10, down_window_s=20))
    for _ in range(2 * PER_MINUTE):
        run.period(10)
    for _ in range(3 * PER_MINUTE):
        run.period(0)
        fell_at = run.fleet.index(0) if 0 in run.fleet else 0
    assert fell_at == 2 * PER_MINUTE - 1 + 60 // PERIOD_S
    run.period(1, cells=(), waiting=1)
    assert (run.decisions[-1].bound, run.targets[-1]) == (FROM_ZERO, 1)
    for number in range(20 * PER_MINUTE):
        run.period(int(number % 11 == 3))

    assert set(run.targets[5 * PER_MINUTE :]) == {1}
    assert run.ready == 1


def test_a_worker_that_never_comes_blocks_nothing() -> None:
    """It is reported once, and another one is ordered in its place."""
    run = PlannerRun(SETTINGS, never=[1])
    for _ in range(6 * PER_MINUTE):
        run.period(100)

    assert [event.start for event in run.events if isinstance(event, ScaleFailed)] == [1]
    assert run.fleet[-1] == run.targets[-1] > 1
    assert run.decisions[-1].overdue == 1


def test_orders_that_never_come_are_bounded() -> None:
    """The oldest ones are cancelled; the fleet goes on to order others."""
    run = PlannerRun(SETTINGS, never=range(1_000))
    for _ in range(60 * PER_MINUTE):
        run.period(100)

    assert run.decisions[-1].overdue == OVERDUE_MAX
    assert run.cancelled[:3] == [1, 2, 3]
    assert len(run.cancelled) >= OVERDUE_MAX


def test_every_decision_is_made_again_from_the_events_before_it() -> None:
    """By a fold that has read the stream from its start."""
    random_, run = random.Random(1), PlannerRun(SETTINGS)
    for number in range(10 * PER_MINUTE):
        run.period(poisson(random_, 20 + 60 * (number % 60 > 30)))

    fold, made = ScaleFold(), 0
    for event in run.events:
        if isinstance(event, ScaleDecided):
            fleet = FleetCounts(event.ready, event.starting, event.overdue, event.draining)
            assert decide_scale(fold.inputs(event.at_ms, fleet, event.forecast)) == event
            made += 1
        fold.apply(event)
    assert made == 10 * PER_MINUTE


def test_settings_and_capacity_are_never_far_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is stated again, as it is, when as many periods have passed without it; a change of one restates that one
    alone."""
    monkeypatch.setattr(planner_module, "RESTATE_PERIODS", 10)
    run = PlannerRun(SETTINGS)
    for number in range(35):
        run.period(10, () if number else None)

    periods = [sum(isinstance(each, DemandRolled) for each in run.events[:at]) for at in range(len(run.events))]
    events = list(zip(periods, run.events, strict=True))
    changed = [(at, each) for at, each in events if isinstance(each, ScaleSettingsChanged)]
    learned = [(at, each) for at, each in events if isinstance(each, CapacityLearned)]
    assert [at for at, _ in changed] == [0, 10, 20, 30]
    assert len({each.revision for _, each in changed}) == 1
    assert [at for at, _ in learned] == [0, 1, 11, 21, 31], "the hit rate of the first period is learned in it"
    assert len({each for _, each in learned[1:]}) == 1
    assert RESTATE_PERIODS * ScaleSettings().period_s == 3_600


def test_a_stream_without_its_start_gives_equal_decisions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Once the requests and the arrivals that a decision rests on all lie behind the new start. A successor that learns
    its speed decides at once, and goes on with the count of periods. What was attained before the cut fades."""
    monkeypatch.setattr(planner_module, "RESTATE_PERIODS", 10)
    monkeypatch.setattr(scale_fold, "SURPLUS_S", 20)
    random_, run = random.Random(4), PlannerRun(SETTINGS)
    for _ in range(130):
        arrivals = poisson(random_, 100)
        run.period(arrivals, (cell(arrivals // 2, uncached=3_000), cell(arrivals - arrivals // 2, output=300)))

    fold, made = ScaleFold(), []
    for event in run.events[len(run.events) // 2 :]:
        if isinstance(event, ScaleDecided) and fold.capacity is not None:
            fleet = FleetCounts(event.ready, event.starting, event.overdue, event.draining)
            made.append(decide_scale(fold.inputs(event.at_ms, fleet, event.forecast)) == event)
        fold.apply(event)

    assert len(made) > 50
    assert all(made[-10:])
    assert not all(made), "the cut is felt at first"
    assert (fold.settings, fold.revision, fold.periods) == (SETTINGS, 1, 130)
    first = feed(Planner(SETTINGS, None, fold), 131)
    assert [event.periods for event in first if isinstance(event, ScaleDecided)] == [131]


def test_start_up_times_and_hit_rates_are_learned() -> None:
    """As events that say on how much they rest."""
    run = PlannerRun(ScaleSettings(startup_s=45))
    for _ in range(4 * PER_MINUTE):
        run.period(100, (cell(100, uncached=3_000, prompt=4_000),))

    last = [event for event in run.events if isinstance(event, CapacityLearned)][-1]
    assert last.startup_ms == 45_000
    assert last.starts > 0
    assert {each.share_bp for each in last.hits} == {2_500}


def test_a_decision_follows_the_demand_that_it_rests_on() -> None:
    """Settings and capacity stand before both."""
    run = PlannerRun(SETTINGS)
    run.period(10)

    kinds = [type(event).__name__ for event in run.events]
    assert kinds[:2] == ["ScaleSettingsChanged", "CapacityLearned"]
    assert kinds.index(DemandRolled.__name__) < kinds.index(ScaleDecided.__name__)


def feed(planner: Planner, number: int, speed: CapacityLearned | None = None) -> list[ScaleEvent]:
    """The events of one period more."""
    ended = PeriodEnded(rolled(number, 10), 1, 0, speed)
    return [each.event for each in planner.step(ended, number) if isinstance(each, RecordEvent)]


def test_a_successor_repeats_nothing_and_knows_its_orders() -> None:
    """Settings and capacity stand in the stream; orders that are not ready are those given last."""
    run = PlannerRun(SETTINGS)
    run.period(10)
    for _ in range(3 * PER_MINUTE):
        run.period(200)
    fold = ScaleFold()
    for event in run.events:
        fold.apply(event)
    assert fold.starts > 2

    second = Planner(SETTINGS, CAPACITY, fold, coming=2, now_ms=rolled(100, 0).at_ms)

    assert (second.coming, second.oldest_orders(1)) == (2, [fold.starts - 1])
    first = feed(second, 100)
    assert isinstance(first[0], DemandRolled)
    assert not any(isinstance(event, ScaleSettingsChanged) for event in first)
    decided = next(event for event in first if isinstance(event, ScaleDecided))
    assert decided.starting == 2


def test_a_successor_with_other_settings_says_so_first() -> None:
    """And with another profile, which keeps what was learned beside it."""
    run = PlannerRun(SETTINGS)
    run.period(10)
    fold = ScaleFold()
    for event in run.events:
        fold.apply(event)
    profile = replace(CAPACITY, room_tokens=2_000_000)

    first = feed(Planner(ScaleSettings(max=7), profile, fold), 2)

    changed, capacity = first[:2]
    assert isinstance(changed, ScaleSettingsChanged)
    assert (changed.revision, changed.settings["max"]) == (2, 7)
    assert isinstance(capacity, CapacityLearned)
    assert (capacity.room_tokens, capacity.startup_ms) == (2_000_000, SETTINGS.startup_s * 1000)


def test_without_a_speed_nothing_is_decided_until_one_is_learned() -> None:
    """A speed that changes is recorded once a minute."""
    planner = Planner(SETTINGS, None)
    before = [type(event).__name__ for number in range(3) for event in feed(planner, number)]
    assert before == ["ScaleSettingsChanged", "DemandRolled", "DemandRolled", "DemandRolled"]

    learned = replace(CAPACITY, origin=LEARNED, startup_ms=0)
    names = [type(event).__name__ for event in feed(planner, 3, learned)]
    assert names[:3] == ["DemandRolled", "CapacityLearned", "ScaleDecided"]
    assert planner.fold.capacity is not None
    assert planner.fold.capacity.prefill_us == learned.prefill_us
    assert planner.fold.capacity.startup_ms == SETTINGS.startup_s * 1000
    slower = replace(learned, decode_us=(9_000, 90_000))
    later = [event for number in range(4, 4 + 2 * PER_MINUTE) for event in feed(planner, number, slower)]
    found = [event for event in later if isinstance(event, CapacityLearned)]
    assert len(found) == 2
    assert found[0].decode_us == (9_000, 90_000)
    assert found[0].startup_ms == SETTINGS.startup_s * 1000


def test_a_measured_profile_counts_from_the_first_period() -> None:
    """With the start-up time of the settings. What is learned takes its place, and keeps its name."""
    profile = PROFILE.capacity()
    planner = Planner(SETTINGS, profile)

    first = feed(planner, 0)
    capacity = next(event for event in first if isinstance(event, CapacityLearned))
    assert capacity == replace(profile, startup_ms=SETTINGS.startup_s * 1000)
    assert any(isinstance(event, ScaleDecided) for event in first)
    learned = replace(profile, origin=LEARNED, prefill_us=(1, 2, 3, 4))
    later = [event for number in range(1, 1 + 2 * PER_MINUTE) for event in feed(planner, number, learned)]
    found = [event for event in later if isinstance(event, CapacityLearned)]
    assert {(each.origin, each.prefill_us, each.profile) for each in found} == {
        (LEARNED, (1, 2, 3, 4), profile.profile)
    }


def test_a_successor_begins_with_a_profile_only_if_the_stream_does_not_know_it() -> None:
    """What was learned since stays; a profile that was measured again counts, with the start-up time that is known."""
    profile = PROFILE.capacity()
    learned = replace(profile, origin=LEARNED, prefill_us=(1, 2, 3, 4), startup_ms=9_000, starts=3)
    again = replace(profile, profile="another")

    def capacities(known: CapacityLearned, given: CapacityLearned) -> list[CapacityLearned]:
        fold = ScaleFold()
        fold.apply(known)
        events = feed(Planner(SETTINGS, given, fold), 1)
        first = next(place for place, event in enumerate(events) if isinstance(event, DemandRolled))
        return [event for event in events[:first] if isinstance(event, CapacityLearned)]

    assert capacities(learned, profile) == []
    assert capacities(learned, again) == [replace(again, startup_ms=9_000, starts=3)]
    assert capacities(replace(learned, profile=UNSET), profile) == [replace(profile, startup_ms=9_000, starts=3)]


def test_the_answer_of_a_library_stands_in_the_decision() -> None:
    """While there is none for the horizon, the seasonal forecast stands in, and is named."""
    planner = Planner(replace(SETTINGS, predictor=ARIMA), CAPACITY)
    minute = (rolled(1, 0).at_ms + 35_000) // 60_000

    def forecasts(number: int, foreseen: ForeseenRates | None) -> list[tuple[str, int]]:
        commands = planner.step(PeriodEnded(rolled(number, 50), 1, 0, foreseen=foreseen), number)
        events = [each.event for each in commands if isinstance(each, RecordEvent)]
        return [(each.forecast.predictor, each.forecast.rate_m) for each in events if isinstance(each, ScaleDecided)]

    assert forecasts(1, None) == [(SEASONAL, 10_000)]
    assert forecasts(2, ForeseenRates(ARIMA, minute, (7_000, 8_000))) == [(ARIMA, 7_000)]
    assert forecasts(3, ForeseenRates(PROPHET, minute, (7_000, 8_000)))[0][0] == SEASONAL
    assert forecasts(4, ForeseenRates(ARIMA, minute - 2, (7_000, 8_000)))[0][0] == SEASONAL
