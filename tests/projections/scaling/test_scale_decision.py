"""The size of a fleet: its limits, its reasons, and that more demand never wants fewer workers."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from core.events.scale import DemandRolled, HitRate, ScaleCandidate, ScaleDecided
from projections.scaling.queue_model import BUSY_MAX_BP
from projections.scaling.scale_decision import (
    BURST,
    CEILING,
    CEILING_GAIN_BP,
    DOWN_WINDOW,
    FROM_ZERO,
    GOAL,
    IDLE,
    MAX,
    MIN,
    NO_HISTORY,
    REGRET_MARGIN_BP,
    SPEND_S,
    SPENT_MOST_BP,
    Goal,
    HitRates,
    RequiredWorkers,
    ScaleInputs,
    burst_rate_m,
    decide_scale,
    raised_m,
    rising,
)
from projections.scaling.scale_rules import RULES
from projections.scaling.scale_settings import ScaleSettings
from tests.projections.scaling.demands import START_MS, cell, decided, inputs, rolled

SETTINGS = ScaleSettings()


def steady(arrivals: int, periods: int = 60) -> list[DemandRolled]:
    """Five minutes of as many arrivals in each period."""
    return [rolled(number, arrivals) for number in range(periods)]


def test_the_fewest_workers_that_reach_the_goal_are_wanted() -> None:
    """One fewer misses it, from wherever the search begins."""
    for ready in (1, 5, 16):
        found = decided(steady(100), ScaleSettings(ttft_ms=140), 20_000, ready=ready)

        at_rate = {each.workers: each.attainment_bp for each in found.candidates if each.rate_m == 20_000}
        best = min(workers for workers, reached in at_rate.items() if reached >= SETTINGS.attainment_bp)
        assert (found.bound, found.target) == (GOAL, best) if ready < best else found.target == ready
        assert best > 2
        assert at_rate[best - 1] < SETTINGS.attainment_bp


@pytest.mark.parametrize("rate_m", [200, 20_000, 100_000, 1_000_000])
@pytest.mark.parametrize("ready", [1, 40, 64])
def test_a_decision_needs_few_predictions(rate_m: int, ready: int) -> None:
    """Of 64 numbers: two and six halvings at each demand, of which the second and third ask no number again that
    missed the goal before, and not the present one."""
    base = inputs(steady(500), ScaleSettings(max=64), rate_m, ready=ready)

    made = decide_scale(base._replace(regretted=ready))

    asked = [(each.workers, each.rate_m) for each in made.candidates]
    assert len(set(asked)) == len(asked) <= 8 + 7 + 7
    assert asked[0] == (ready, rate_m)
    missed = set[int]()
    for each in made.candidates:
        assert each.workers not in missed
        if each.attainment_bp < made.goal_bp - RULES[made.version].hold_bp:
            missed.add(each.workers)


def test_a_goal_beyond_reach_is_replaced_by_one_below_the_ceiling() -> None:
    """Every tenth prompt alone takes longer than the bound: no fleet attains more than 90 %."""
    both = (cell(90), cell(10, uncached=100_000, prompt=100_000))
    found = decided([rolled(number, 10, both) for number in range(60)], SETTINGS, 2_000, ready=1)

    assert (found.bound, found.ceiling_bp, found.goal_bp) == (CEILING, 9_000, 9_000 - CEILING_GAIN_BP)
    assert found.target == min(each.workers for each in found.candidates if each.attainment_bp >= found.goal_bp)
    assert found.target < SETTINGS.max


def at(found: ScaleDecided, workers: int) -> ScaleCandidate:
    """The prediction for that number of workers, at the lowest rate."""
    return min((each for each in found.candidates if each.workers == workers), key=lambda each: each.rate_m)


@pytest.mark.parametrize(
    "given", [ScaleSettings(ttft_ms=90), ScaleSettings(itl_ms=5), ScaleSettings(ttft_ms=1, itl_ms=1)]
)
def test_bounds_that_no_worker_meets_ask_for_what_a_fleet_can_change(given: ScaleSettings) -> None:
    """A prompt takes 98 ms, and a step 6 ms. The fewest workers are wanted with which the other bound is met, or waits
    are short. By earlier rules one worker reached a goal of -0.5 % at any load."""
    base = inputs(steady(100), given, 20_000, ready=1)

    found = decide_scale(base)
    assert (found.bound, found.ceiling_bp, found.goal_bp) == (CEILING, 0, 0)
    assert at(found, found.required).eased_bp >= given.attainment_bp  # type: ignore[operator]
    assert at(found, found.required - 1).eased_bp < given.attainment_bp  # type: ignore[operator]
    assert all(each.attainment_bp == 0 for each in found.candidates)
    assert 2 < found.required < given.max

    falling = decide_scale(base._replace(target=16, is_window_full=True))
    assert falling.required == decide_scale(inputs(steady(100), given, raised_m(20_000), ready=1)).required
    earlier = decide_scale(base._replace(version=5))
    assert (earlier.required, earlier.goal_bp, earlier.candidates[0].eased_bp) == (1, -CEILING_GAIN_BP, None)


def test_a_low_goal_out_of_reach_needs_no_whole_fleet() -> None:
    """Far above the expected demand all may miss, and a ceiling of 0 is below that, too. Some are served in time."""
    base = above(inputs(steady(100), ScaleSettings(ttft_ms=90, attainment=30), 20_000, ready=1), 9_000)

    found = decide_scale(base)
    assert (found.bound, found.ceiling_bp, found.goal_bp) == (CEILING, 0, 0)
    assert at(found, found.required).eased_bp > 0  # type: ignore[operator]
    assert found.required < SETTINGS.max


def test_a_bound_that_some_requests_meet_is_sought_for_them_too() -> None:
    """One prompt in a hundred is short enough. Almost any fleet attains so little, and waits decide."""
    both = (cell(1, uncached=100, prompt=100), cell(99))
    demand = [rolled(number, 100, both) for number in range(60)]
    found = decided(demand, ScaleSettings(ttft_ms=90), 20_000, ready=1)

    assert (found.bound, found.ceiling_bp, found.goal_bp) == (CEILING, 97, 47)  # of a sample of 1 024
    assert at(found, found.required).eased_bp >= SETTINGS.attainment_bp  # type: ignore[operator]
    assert at(found, found.required).attainment_bp >= found.goal_bp


def test_workers_that_have_no_time_are_never_enough() -> None:
    """Also for a goal of 1 %, of which a surplus and an error take more than all."""
    base = inputs(steady(75), ScaleSettings(attainment=1, itl_ms=1_000), 15_000, ready=1)._replace(surplus_bp=10**9)

    found = decide_scale(base)
    assert found.candidates[0].prefill_bp > BUSY_MAX_BP
    assert found.goal_bp < 0 < at(found, found.required).attainment_bp
    assert found.required == 2
    assert decide_scale(base._replace(version=5)).required == 1


@pytest.mark.parametrize(
    ("given", "target", "bound"),
    [
        (ScaleSettings(max=2), 2, MAX),
        (ScaleSettings(max=16, devices_max=3), 3, MAX),
        (ScaleSettings(min=12), 12, MIN),
    ],
)
def test_the_target_stays_within_its_limits(given: ScaleSettings, target: int, bound: str) -> None:
    """Whatever would be required beyond them."""
    found = decided(steady(200), given, 40_000, ready=2)

    assert (found.target, found.bound) == (target, bound)


def test_the_fleet_falls_to_the_most_workers_of_the_window() -> None:
    """Only behind a whole window of decisions, and never above the present target."""
    base = inputs(steady(5), SETTINGS, 1_000, ready=9)._replace(target=9)
    required = [RequiredWorkers(START_MS, 3), RequiredWorkers(START_MS, 5), RequiredWorkers(START_MS, 2)]

    early = decide_scale(base._replace(required=required))
    later = decide_scale(base._replace(required=required, is_window_full=True))
    raised = decide_scale(base._replace(required=[RequiredWorkers(START_MS, 99)], is_window_full=True))

    assert (early.target, early.bound) == (9, DOWN_WINDOW)
    assert (later.target, later.bound) == (5, DOWN_WINDOW)
    assert raised.target == 9


def test_the_goal_sinks_while_there_is_a_surplus() -> None:
    """18 requests beyond those that were asked, at two a second: 1 % of the 1 800 in SPEND_S; and never too far."""
    surplus_bp = 18 * 10_000

    assert Goal(9_500, surplus_bp).at_bp(2_000) == 9_400
    assert [Goal(9_500, surplus_bp).at_bp(rate_m) for rate_m in (1, 1_000, 4_000)] == [9_300, 9_300, 9_450]
    assert Goal(9_500, -surplus_bp).at_bp(2_000) == 9_500
    assert SPEND_S == 900
    assert SPENT_MOST_BP == 200


def test_a_surplus_saves_workers() -> None:
    """Only by rules that spend it."""
    base = inputs(steady(100), ScaleSettings(ttft_ms=140), 26_000, ready=1)
    none, much = (base._replace(surplus_bp=requests * 10_000) for requests in (0, 10_000))

    assert decide_scale(much).goal_bp == decide_scale(none).goal_bp - SPENT_MOST_BP
    assert decide_scale(much).required == decide_scale(none).required - 1
    assert decide_scale(much._replace(version=1)) == decide_scale(none._replace(version=1))


def above(base: ScaleInputs, above_bp: int) -> ScaleInputs:
    """The same with a forecast so much above its rate."""
    rate_m = base.forecast.rate_m
    return base._replace(forecast=replace(base.forecast, upper_m=rate_m * (10_000 + above_bp) // 10_000))


def test_demand_above_the_expected_one_may_miss_more() -> None:
    """For each percent two percent more requests, and twice as many at most. Earlier rules excused none."""
    base = inputs(steady(100), SETTINGS, 20_000)
    goals = [decide_scale(above(base, above_bp)).goal_bp for above_bp in (0, 100, 2_000, 5_000, 9_000)]

    assert goals == [9_500, 9_490, 9_300, 9_000, 9_000]
    assert {decide_scale(above(base, 2_000)._replace(version=version)).goal_bp for version in (1, 2, 3)} == {9_500}


def test_the_margin_of_a_smaller_fleet_lies_in_the_forecast() -> None:
    """It counts from the expected demand: a forecast further above its rate needs no more. By earlier rules it came on
    top, and so it does for a fall that was taken back."""
    for above_bp in (0, 200, 2_500):
        base = above(inputs(steady(100), SETTINGS, 20_000, ready=16)._replace(target=16), above_bp)
        found, upper_m = decide_scale(base), base.forecast.upper_m
        assert max(each.rate_m for each in found.candidates) == max(upper_m, raised_m(20_000))
        assert len({(each.workers, each.rate_m) for each in found.candidates}) == len(found.candidates)
        assert found.required == min(each.workers for each in found.candidates if reached(each, found, 16))
        earlier = decide_scale(base._replace(version=3))
        assert max(each.rate_m for each in earlier.candidates) == raised_m(upper_m)
        regretted = decide_scale(base._replace(regretted=16))
        assert max(each.rate_m for each in regretted.candidates) == raised_m(upper_m, REGRET_MARGIN_BP)


def reached(candidate: ScaleCandidate, found: ScaleDecided, present: int) -> bool:
    """The candidate reaches the goal at the highest demand, and is not the present number."""
    most_m = max(each.rate_m for each in found.candidates)
    return candidate.workers != present and candidate.rate_m == most_m and candidate.attainment_bp >= found.goal_bp


def test_a_smaller_fleet_must_bear_a_little_more() -> None:
    """The recorded number is the one that a higher demand wants."""
    assert raised_m(60_000) == 60_000 * 105 // 100 + 1_000  # 3 600 arrivals a minute deviate by 60
    found = decide_scale(inputs(steady(100), SETTINGS, 20_000, ready=16)._replace(target=16))

    assert found.required >= decided(steady(100), SETTINGS, 20_000, ready=1).required
    assert decided(steady(100), SETTINGS, raised_m(20_000), ready=1).required == found.required


def test_a_fall_that_was_taken_back_needs_more_room_the_next_time() -> None:
    """The number of workers that bear the higher demand, and at most that from which the fleet fell."""
    found = set[bool]()
    for rate_m in range(20_000, 30_000, 1_000):
        base = inputs(steady(100), SETTINGS, rate_m, ready=16)._replace(target=16)
        plain, regretted = decide_scale(base).required, decide_scale(base._replace(regretted=16)).required
        assert regretted == decided(steady(100), SETTINGS, raised_m(rate_m, REGRET_MARGIN_BP), ready=1).required
        assert decide_scale(base._replace(regretted=plain)).required == plain
        found.add(regretted > plain)

    assert found == {True, False}
    quiet = inputs(steady(1), SETTINGS, 200, ready=16)._replace(target=16, regretted=16)
    assert decide_scale(quiet).required == 1


def test_a_burst_counts_at_once_and_noise_does_not() -> None:
    """Three times as many in ten seconds; not a few more."""
    quiet, burst, noise = steady(10, 14), [rolled(14, 30), rolled(15, 30)], [rolled(14, 12), rolled(15, 13)]

    assert burst_rate_m([*quiet, *burst]) == 6_000
    assert burst_rate_m([*quiet, *noise]) == 0
    found = decided([*quiet, *burst], SETTINGS, 2_000, ready=1)
    assert (found.bound, found.burst_m) == (BURST, 6_000)
    assert found.target >= decided(steady(30), SETTINGS, 6_000, ready=1).target


def test_waiting_requests_are_demand() -> None:
    """A queue of 1 300 requests is 20 a second over the horizon of 65 s."""
    demand = [*steady(10, 59), rolled(59, 10, waiting=1_300)]

    assert decided(demand, SETTINGS, 2_000, ready=1).target == decided(steady(10), SETTINGS, 22_000, ready=1).target


def test_without_sizes_of_ended_requests_the_fleet_stays() -> None:
    """And one worker comes for the first request."""
    unknown = [rolled(number, 10, ()) for number in range(60)]

    assert (decided(unknown, SETTINGS, 2_000, ready=7).target, decided(unknown, SETTINGS, 2_000).bound) == (
        7,
        NO_HISTORY,
    )
    zero = ScaleSettings(min=0)
    assert decided([rolled(1, 1, (), waiting=1)], zero, 200, ready=0).target == 1


def test_an_idle_fleet_ends_only_with_a_minimum_of_zero() -> None:
    """After `zero_after_s` without an arrival; one worker stays until then."""
    zero = ScaleSettings(min=0, down_window_s=0, zero_after_s=600)
    quiet = [*steady(10, 20), *(rolled(number, 0) for number in range(20, 500))]

    early, late = quiet[:100], quiet[:140]
    found = [decide_scale(inputs(part, zero, 0, ready=1)._replace(is_window_full=True)) for part in (early, late)]
    assert [each.target for each in found] == [1, 0]
    kept = decide_scale(inputs(late, ScaleSettings(), 0, ready=5)._replace(is_window_full=True))
    assert (kept.target, kept.bound) == (1, IDLE)


def test_an_idle_fleet_ends_at_once_also_before_demand() -> None:
    """Yesterday's demand of this hour starts no worker, and the window for shrinking has no say. Without a whole window
    of decisions it stays: history is missing. By earlier rules both kept the fleet."""
    quiet = [*steady(10, 20), *(rolled(number, 0) for number in range(20, 140))]
    base = inputs(quiet, ScaleSettings(min=0), 4_000, ready=3)._replace(
        target=3, required=[RequiredWorkers(START_MS, 3)], is_window_full=True
    )

    ended, early = decide_scale(base), decide_scale(base._replace(is_window_full=False))
    assert (ended.target, ended.required, ended.bound) == (0, 0, IDLE)
    assert early.target == decide_scale(base._replace(version=2)).target == 3


def test_a_fleet_at_zero_begins_with_a_request() -> None:
    """And only with one: whether its time without an arrival is over, or its start is not in the stream any more."""
    zero, never = ScaleSettings(min=0), [rolled(number, 0) for number in range(5)]
    base = inputs(never, zero, 0, ready=0)
    asleep = decide_scale(base)
    assert (asleep.target, asleep.bound) == (0, IDLE)
    assert decide_scale(base._replace(version=2)).target == 1

    sized = [rolled(5, 1, (cell(1),)), *(rolled(number, 0) for number in range(6, 170)), rolled(170, 1, (), waiting=1)]
    for demand in ([*never, rolled(5, 1, (), waiting=1)], [*never, *sized]):
        begun = decide_scale(inputs(demand, zero, 16, ready=0))
        assert (begun.target, begun.bound) == (1, FROM_ZERO)
    many = decide_scale(inputs(steady(100), ScaleSettings(min=0, max=2), 40_000, ready=0))
    assert (many.target, many.bound) == (2, MAX)
    asked = decide_scale(inputs(never, ScaleSettings(min=1), 0, ready=0))
    assert (asked.target, asked.bound) == (1, MIN)


def test_an_equal_decision_is_made_from_equal_inputs() -> None:
    """Field by field."""
    demand = steady(33)

    assert decided(demand, SETTINGS, 9_999) == decided(demand, SETTINGS, 9_999)


def test_hit_rates_never_fall_with_the_number_of_workers() -> None:
    """Neighbours that do are taken together, by their tokens; the present rate is shifted by the differences."""
    learned = [HitRate(2, 1_000, 10**7), HitRate(4, 3_000, 10**7), HitRate(5, 2_000, 3 * 10**7), HitRate(9, 100, 5)]
    cells = [cell(10, uncached=4_000, prompt=8_000)]

    assert rising(learned[:3]) == [(2, 1_000), (4, 2_250)]
    rates = HitRates(learned, cells, ready=4)
    assert [rates.of(workers) for workers in (1, 2, 3, 4, 20)] == [3_750, 3_750, 3_750, 5_000, 5_000]


@settings(deadline=None, max_examples=60)
@given(
    arrivals=st.lists(st.integers(0, 60), min_size=5, max_size=30).filter(any),
    uncached=st.integers(1, 30_000),
    output=st.integers(1, 1_000),
    rate_m=st.integers(10, 1_500),
    more=st.integers(0, 1_500),
    attainment=st.integers(100, 10_000),
    ttft_ms=st.integers(1, 1_000),
    itl_ms=st.integers(1, 50),
    ready=st.integers(0, 16),
    regretted=st.integers(0, 16),
    surplus=st.integers(-100, 500),
    above_bp=st.integers(0, 30).map(lambda tenths: tenths * 1_000),
    version=st.sampled_from(list(RULES)),
)
def test_more_demand_never_wants_fewer_workers(
    arrivals: list[int],
    uncached: int,
    output: int,
    rate_m: int,
    more: int,
    attainment: int,
    ttft_ms: int,
    itl_ms: int,
    ready: int,
    regretted: int,
    surplus: int,
    above_bp: int,
    version: int,
) -> None:
    """By each version of the rules, for any sizes, bursts, fleet, surplus, margin and goal, reachable or not. A smaller
    fleet must bear more, too."""
    both = (cell(5, uncached, output, 30_000), cell(2, uncached * 3, output * 2, 90_000))
    demand = [rolled(number, count, both) for number, count in enumerate(arrivals)]
    sought = replace(SETTINGS, ttft_ms=ttft_ms, itl_ms=itl_ms, attainment=attainment / 100)

    bases = (above(inputs(demand, sought, rate * 10, ready=ready), above_bp) for rate in (rate_m, rate_m + more))
    low, high = (
        decide_scale(
            each._replace(
                regretted=regretted,
                is_window_full=True,
                surplus_bp=surplus * 10_000,
                version=version,
            )
        )
        for each in bases
    )

    assert high.required >= low.required
    assert high.target >= low.target
