"""The prediction, by numbers that can be computed by hand, and by its properties."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.events.scale import DemandCell, DemandRolled, ScaleCandidate
from projections.scaling.queue_model import (
    ALL_BP,
    FOLLOWING_BP,
    SAMPLE,
    DecodeSteps,
    QueueModel,
    Work,
    eased_us,
    first_tokens_us,
    interpolate,
    lanes_by_caches,
    lanes_in_turn,
)
from projections.scaling.scale_settings import ScaleSettings
from tests.projections.scaling.demands import CAPACITY, cell, rolled, summed
from tests.projections.scaling.profiles import PROFILE

BOUNDS = ScaleSettings()


def model(demand: list[DemandRolled], bounds: ScaleSettings = BOUNDS) -> QueueModel:
    return QueueModel(demand, summed(demand), CAPACITY, bounds, lanes_by_caches, goes_round_whole=True)


def test_values_lie_on_the_lines_between_points() -> None:
    """And on the last line beyond them."""
    assert [interpolate(at, (0, 10, 20), (0, 100, 400)) for at in (0, 5, 10, 15, 20, 30)] == [0, 50, 100, 250, 400, 700]
    assert interpolate(7, (1,), (42,)) == 42


def test_one_request_has_its_own_passes_and_steps_alone() -> None:
    """12 288 tokens are two passes: 180 ms, and 20 ms + 160 ms * 4095 / 8191 = 99.99 ms; each with a step of 6 ms."""
    alone = [rolled(1, 1, (cell(1, uncached=12_288, output=100, prompt=12_288),))]

    reached = model(alone, ScaleSettings(ttft_ms=293)).predict(1, 1, 0, 0)
    missed = model(alone, ScaleSettings(ttft_ms=291)).predict(1, 1, 0, 0)

    assert (reached.first_token_bp, missed.first_token_bp) == (ALL_BP, 0)
    assert reached.step_us == 6_000


def test_a_second_request_waits_for_the_first_on_one_worker_only() -> None:
    """Two requests of 98.1 ms arrive within 1 ms of each other: the later one has 200 ms on one worker."""
    demand = [rolled(1, 2)]
    hurried = 2 * 1_000_000 * 1000  # 2 requests within a microsecond
    work = Work([98_100, 98_100], [1, 1], 196_200)

    assert first_tokens_us(2, [0, 0], work, 6_000) == [104_100, 104_100]
    assert first_tokens_us(1, [0, 0], work, 6_000) == [104_100, 208_200]
    assert model(demand).predict(1, hurried, 0, 0).attainment_bp == 0  # no worker computes so much


def test_eased_bounds_leave_out_what_no_fleet_can_change() -> None:
    """A prompt takes 98.1 ms, and a step 6 ms: by bounds below that, waits count alone. Two at once are one that waits,
    for longer than 90 ms; with a worker each, none waits."""
    demand = [rolled(1, 2, (cell(2, output=1),))]
    for bounds in (ScaleSettings(ttft_ms=90), ScaleSettings(ttft_ms=90, itl_ms=5)):
        found = model(demand, bounds)
        found._arrivals = found._arrivals._replace(offsets_us=[0, 1])
        one, two = (found.predict(workers, 9_000, 0, 0, is_eased=True) for workers in (1, 2))
        assert (one.attainment_bp, one.eased_bp, two.attainment_bp, two.eased_bp) == (0, ALL_BP // 2, 0, ALL_BP)
        assert found.predict(1, 11_000, 0, 0, is_eased=True).eased_bp == 0  # no worker computes so much
        assert found.predict(1, 9_000, 0, 0).eased_bp is None
    long = [rolled(1, 2)]  # whose answers other prompts interrupt
    beyond, within = (
        model(long, ScaleSettings(itl_ms=itl_ms)).predict(2, 9_000, 0, 0, is_eased=True) for itl_ms in (5, 6)
    )
    assert (beyond.between_tokens_bp, beyond.eased_bp) == (0, ALL_BP)  # no worker has such a step
    assert (within.between_tokens_bp, within.eased_bp) == (0, 0)


def test_a_bound_that_a_prompt_meets_alone_is_not_eased() -> None:
    """Of two bounds, the one that no request meets is eased."""
    assert eased_us(100, bound_us=100, wait_us=30) == 100
    assert eased_us(101, bound_us=100, wait_us=30) == 131


def test_other_prompts_lengthen_the_time_between_tokens() -> None:
    """An answer of 11 tokens has 10 gaps: at 50 ms each, 500 ms less 10 steps of 6 ms leave 440 ms for others."""
    found = model([rolled(1, 4)])
    found._sizes = found._sizes._replace(outputs=[11, 1, 1, 1])

    within = found._between_tokens([range(4)], [0, 100, 200, 9_000_000], 12_000_000, [1, 220_000, 220_000, 1], 6_000)
    beyond = found._between_tokens([range(4)], [0, 100, 200, 9_000_000], 12_000_000, [1, 220_000, 220_001, 1], 6_000)

    assert (within[0], beyond[0]) == (True, False)


def test_an_answer_that_outlasts_the_arrivals_meets_the_first_ones_again() -> None:
    """Arrivals of 2 s go round. 31 tokens may take 1.5 s, and 30 steps of 6 ms leave 1 320 ms of them for others."""
    found = model([rolled(1, 2)])
    found._sizes = found._sizes._replace(outputs=[31, 31])

    assert found._between_tokens([[0, 1]], [0, 1_000_000], 2_000_000, [200_000, 1_320_000], 6_000) == [True, True]
    assert found._between_tokens([[0, 1]], [0, 1_000_000], 2_000_000, [1_320_001, 200_000], 6_000) == [True, False]
    assert found._between_tokens([[0], [1]], [0, 1_000_000], 2_000_000, [1_320_001, 200_000], 6_000) == [
        True,
        True,
    ]  # a worker each


@pytest.mark.parametrize(("count", "workers"), [(1, 1), (3, 8), (1024, 4)])
@pytest.mark.parametrize("hit_bp", [0, 6_000, ALL_BP])
def test_each_request_goes_to_one_worker(count: int, workers: int, hit_bp: int) -> None:
    """In the order of the arrivals; without cached prompts in turn."""
    lanes = lanes_by_caches(count, workers, hit_bp)

    assert sorted(number for lane in lanes for number in lane) == list(range(count))
    assert all(list(lane) == sorted(lane) for lane in lanes)
    if not hit_bp:
        assert list(map(list, lanes)) == list(map(list, lanes_in_turn(count, workers, 0)))


def test_requests_with_cached_prompts_follow_their_caches() -> None:
    """Half of them do, and one in four of these lies where its turn was, too."""
    moved = [0, *(SAMPLE - _in_turn(lanes_by_caches(SAMPLE, 4, hit_bp)) for hit_bp in (4_000, 8_000))]

    assert moved == sorted(moved)
    for found, hit_bp in zip(moved, (0, 4_000, 8_000), strict=True):
        expected = SAMPLE * hit_bp * FOLLOWING_BP * 3 // (ALL_BP * ALL_BP * 4)
        assert abs(found - expected) < 60


def _in_turn(lanes: Sequence[Sequence[int]]) -> int:
    return sum(number % len(lanes) == place for place, lane in enumerate(lanes) for number in lane)


@pytest.mark.parametrize(("goes_round_whole", "attained_bp"), [(True, ALL_BP), (False, 0)])
def test_a_single_request_is_alone(goes_round_whole: bool, attained_bp: int) -> None:
    """At 0.1 requests a second no other prompt falls into its answer. Earlier rules had it follow itself at once."""
    alone = [rolled(1, 1, (cell(1, uncached=1_000, output=100, prompt=1_000),))]
    model = QueueModel(alone, summed(alone), CAPACITY, BOUNDS, lanes_by_caches, goes_round_whole=goes_round_whole)

    assert [model.predict(workers, 100, 0, 0).between_tokens_bp for workers in (1, 4)] == [attained_bp] * 2


def test_a_spread_by_caches_lengthens_answers() -> None:
    """Some workers get more prompts than in turn. Answers of 40 tokens bear one prompt of 78 ms at 8 ms a token."""
    demand, bounds = (
        [rolled(number, 20, (cell(20, 3_000, 40, 12_000),)) for number in range(30)],
        ScaleSettings(itl_ms=8),
    )

    found = (
        QueueModel(demand, summed(demand), CAPACITY, bounds, lanes, goes_round_whole=True).predict(
            4, 6_000, 7_500, 7_500
        )
        for lanes in (lanes_in_turn, lanes_by_caches)
    )
    in_turn, by_caches = (each.between_tokens_bp for each in found)

    assert by_caches < in_turn - 1_000


def test_a_fleet_that_cannot_keep_up_attains_nothing() -> None:
    """98.1 ms for each prompt: 11 in a second are more than one worker computes."""
    found = model([rolled(1, 50)]).predict(1, 11_000, 0, 0)

    assert found.attainment_bp == 0
    assert found.prefill_bp > 10_000
    assert model([rolled(1, 50)]).predict(2, 11_000, 0, 0).first_token_bp > 0


def test_answers_that_do_not_fit_into_the_cache_attain_nothing() -> None:
    """Answers of 20 000 tokens hold 15 000 tokens for minutes each."""
    long = [rolled(1, 50, (cell(50, output=20_000),))]

    found = model(long).predict(1, 2_000, 0, 0)

    assert found.resident_tokens > CAPACITY.room_tokens
    assert found.attainment_bp == 0


sizes = st.lists(
    st.builds(
        cell,
        count=st.integers(1, 40),
        uncached=st.integers(1, 60_000),
        output=st.integers(1, 2_000),
        prompt=st.integers(60_000, 90_000),
    ),
    min_size=1,
    max_size=6,
)
counts = st.lists(st.integers(0, 60), min_size=1, max_size=20).filter(any)


@settings(deadline=None, max_examples=150)
@given(
    cells=sizes,
    arrivals=counts,
    workers=st.integers(1, 12),
    rate_m=st.integers(100, 20_000),
    more=st.integers(0, 9_000),
)
def test_more_arrivals_never_raise_the_prediction(
    cells: list[DemandCell], arrivals: list[int], workers: int, rate_m: int, more: int
) -> None:
    """For any sizes, bursts and fleet."""
    demand = [rolled(number, count, tuple(cells)) for number, count in enumerate(arrivals)]
    found = model(demand)

    low, high = (found.predict(workers, rate, 0, 0) for rate in (rate_m, rate_m + more))

    assert high.attainment_bp <= low.attainment_bp
    assert high.step_us >= low.step_us or not high.step_us


@settings(deadline=None, max_examples=100)
@given(cells=sizes, arrivals=counts, workers=st.integers(1, 12), rate_m=st.integers(100, 20_000))
def test_no_fleet_attains_more_than_one_without_waits(
    cells: list[DemandCell], arrivals: list[int], workers: int, rate_m: int
) -> None:
    """The ceiling holds for each number of workers."""
    found = model([rolled(number, count, tuple(cells)) for number, count in enumerate(arrivals)])

    assert found.predict(workers, rate_m, 0, 0).attainment_bp <= found.ceiling_bp(0, 0)


def test_a_decision_costs_the_same_at_any_rate() -> None:
    """A thousand requests a second are thinned, in proportion to the workers."""
    found = model([rolled(number, 5_000) for number in range(60)])

    assert len(found._arrivals.offsets_us) == SAMPLE
    assert found._arrivals.offsets_us == sorted(found._arrivals.offsets_us)
    enough, few = found.predict(150, 1_000_000, 0, 0), found.predict(101, 1_000_000, 0, 0)
    assert enough.attainment_bp > few.attainment_bp


def test_a_measured_step_is_one_of_so_many_requests() -> None:
    """550 tokens lie in the middle between 100 and 1 000: steps take 5 450, 7 100 and 13 700 us there. 2.5 requests of
    550 tokens are three, two thirds of the way from one to four; 28 are twice as far beyond 16 as that is beyond 4."""
    steps = DecodeSteps(PROFILE.capacity(), 550)

    assert [steps.us(requests * 550) for requests in (0, 1, 4, 16)] == [5_450, 5_450, 7_100, 13_700]
    assert steps.us(1_375) == 5_450 + 1_650 * 2 // 3
    assert steps.us(28 * 550) == 13_700 + 6_600
    assert DecodeSteps(CAPACITY, 550).us(500_001) == 21_000  # without a table the tokens of all count


@given(st.integers(1, 5_000), st.lists(st.integers(0, 200_000), min_size=2, max_size=6))
def test_measured_steps_never_fall_with_the_tokens(each: int, tokens: list[int]) -> None:
    """For requests of any size, beyond the measured ones, too."""
    found = [DecodeSteps(PROFILE.capacity(), each).us(at) for at in sorted(tokens)]

    assert found == sorted(found)
    assert found[0] > 0


def test_the_prediction_has_the_measured_step() -> None:
    """At 20 requests a second with 1 000 tokens each, a step on one of eight workers takes longer than its bound."""
    demand = [rolled(number, 100, (cell(100, uncached=10, output=1_000, prompt=500),)) for number in range(1, 13)]
    bounds = ScaleSettings(itl_ms=40, max=64)

    def found(workers: int) -> ScaleCandidate:
        cells = summed(demand)
        model = QueueModel(demand, cells, PROFILE.capacity(), bounds, lanes_by_caches, goes_round_whole=True)
        return model.predict(workers, 20_000, 0, 0)

    few, many = found(8), found(64)
    assert few.step_us > 40_000 > many.step_us
    assert (few.between_tokens_bp, many.between_tokens_bp) == (0, ALL_BP)
