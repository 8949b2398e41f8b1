"""The prediction for prefill workers, by numbers that can be computed by hand, and by its properties."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from core.events.kv import PREFILL
from core.events.scale import DemandCell, DemandRolled, PrefillDemand, ScaleDecided
from projections.scaling.prefill_queue_model import PrefillQueueModel
from projections.scaling.queue_model import ALL_BP, SAMPLE
from projections.scaling.scale_decision import FleetCounts, decide_scale, queue_of
from projections.scaling.scale_fold import ScaleFold
from projections.scaling.scale_settings import ScaleSettings
from tests.projections.scaling.demands import CAPACITY, cell, foreseen, rolled

WORKER = replace(CAPACITY, role=PREFILL)
"""A prompt of 4 000 tokens takes 98.1 ms."""
BOUNDS = ScaleSettings(ttft_ms=150)
LOCAL = DemandCell(1, 0, 0, 0)
"""A request whose prompt a decode worker computes."""


def queue(*cells: DemandCell, bounds: ScaleSettings = BOUNDS, transfer_us: int = 0) -> PrefillQueueModel:
    """One arrival for each cell's request."""
    count = sum(each.count for each in cells)
    return PrefillQueueModel([rolled(1, count, cells)], cells, replace(WORKER, transfer_us=transfer_us), bounds)


def test_a_prompt_has_its_passes_and_the_transfer() -> None:
    """12 288 tokens are two passes: 180 ms, and 20 ms + 160 ms * 4095 / 8191 = 99.99 ms. No decode step is in it."""
    two = cell(1, uncached=12_288, output=1, prompt=12_288)
    bounds = ScaleSettings(ttft_ms=300)

    found = queue(two, bounds=bounds, transfer_us=20_000).predict(1, 1, 0, 0)
    missed = queue(two, bounds=bounds, transfer_us=20_100).predict(1, 1, 0, 0)

    assert (found.attainment_bp, missed.attainment_bp) == (ALL_BP, 0)
    assert (found.step_us, found.resident_tokens, found.between_tokens_bp) == (0, 0, ALL_BP)


def test_prompts_wait_for_each_other_and_other_requests_for_none() -> None:
    """Of four requests at once, two have prompts for prefill workers: the second one waits on one worker only."""
    found = queue(cell(2, output=1), DemandCell(2, 0, 0, 0))
    found._arrivals = found._arrivals._replace(offsets_us=[0] * 4)

    one, two = (found.predict(workers, 4_000, 0, 0) for workers in (1, 2))

    assert (one.attainment_bp, two.attainment_bp) == (7_500, ALL_BP)


def test_a_burst_of_short_prompts_keeps_no_prefill_worker() -> None:
    """All of them are in time at any rate, since no prefill worker computes them."""
    found = queue(*[LOCAL] * 50)

    assert found.predict(1, 1_000_000, 0, 0).attainment_bp == found.ceiling_bp(0, 0) == ALL_BP


def test_eased_bounds_leave_out_a_prompt_that_no_worker_computes_in_time() -> None:
    """98.1 ms with a bound of 70, or behind a transfer that takes all of it: a prompt may wait for 70 ms."""
    for transfer_us in (0, 70_000):
        found = queue(cell(2, output=1), LOCAL, bounds=ScaleSettings(ttft_ms=70), transfer_us=transfer_us)
        found._arrivals = found._arrivals._replace(offsets_us=[0] * 3)
        one, two = (found.predict(workers, 4_000, 0, 0, is_eased=True) for workers in (1, 2))
        assert (one.attainment_bp, one.eased_bp, two.attainment_bp, two.eased_bp) == (3_333, 6_666, 3_333, ALL_BP)
        found._arrivals = found._arrivals._replace(offsets_us=[0, 0, 68], span_us=750)  # a wait of 30 ms
        assert found.predict(1, 4_000, 0, 0, is_eased=True).eased_bp == ALL_BP
    assert found.predict(1, 40_000, 0, 0, is_eased=True).eased_bp == 0  # no worker computes so much
    assert found.predict(1, 4_000, 0, 0).eased_bp is None


def test_cached_prompts_take_less() -> None:
    """A hit rate of a half instead of none: 2 000 tokens instead of 4 000, in 59.0 ms."""
    found = queue(cell(1, output=1, prompt=4_000))

    assert found._work(0, 0) == [98_115]
    assert found._work(5_000, 0) == [59_047]


sizes = st.lists(
    st.builds(
        lambda count, uncached, more: DemandCell(count, count * uncached, count, count * (uncached + more)),
        count=st.integers(1, 20),
        uncached=st.sampled_from([0, 0, 30, 700, 4_000, 20_000]),
        more=st.integers(0, 5_000),
    ),
    min_size=1,
    max_size=5,
)
counts = st.lists(st.integers(0, 40), min_size=2, max_size=12).filter(any)


@settings(deadline=None, max_examples=80)
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
    """For any sizes, bursts and fleet; and no fleet attains more than one without waits."""
    demand = [rolled(number, count, tuple(cells)) for number, count in enumerate(arrivals)]
    found = PrefillQueueModel(demand, cells, WORKER, ScaleSettings())

    low, high = (found.predict(workers, rate, 0, 0) for rate in (rate_m, rate_m + more))

    assert high.attainment_bp <= low.attainment_bp <= found.ceiling_bp(0, 0)


def test_a_prediction_costs_the_same_at_any_rate() -> None:
    """A thousand requests a second are thinned, in proportion to the workers."""
    demand = [rolled(number, 5_000) for number in range(60)]
    found = PrefillQueueModel(demand, (cell(1, output=1),), WORKER, ScaleSettings(ttft_ms=99))

    assert len(found._arrivals.offsets_us) == SAMPLE
    enough, few = found.predict(150, 1_000_000, 0, 0), found.predict(101, 1_000_000, 0, 0)
    assert enough.attainment_bp > few.attainment_bp


def decided(role: str, *, has_roles: bool, attained: int = 20) -> ScaleDecided:
    """A decision on workers of that role, at four requests a second with prompts for prefill workers."""
    fold = ScaleFold()
    fold.capacity = WORKER if role == PREFILL else CAPACITY
    for number in range(60):
        demand: DemandRolled = replace(rolled(number, 20), attained=attained)
        if has_roles:
            demand = replace(demand, prefill_demand=PrefillDemand(0, 20, 400, (cell(20, output=1),)))
        fold.apply(demand)
    inputs = fold.inputs(fold.rolled_ms, FleetCounts(4), foreseen(4_000))
    assert isinstance(queue_of(inputs), PrefillQueueModel) == (role == PREFILL)
    return decide_scale(inputs)


def test_each_role_may_have_half_of_the_misses() -> None:
    """5 % may miss the bounds, so either fleet may let 2.5 % miss them. Without prefill workers decode workers have
    all of them."""
    assert decided("decode", has_roles=False, attained=19).goal_bp == 9_500
    assert decided("decode", has_roles=True, attained=19).goal_bp == 9_750
    assert decided(PREFILL, has_roles=True, attained=19).goal_bp == 9_750


def test_what_all_requests_attained_lowers_both_goals() -> None:
    """A surplus is one of whole requests, and lies in both folds."""
    assert {decided(role, has_roles=True).goal_bp for role in ("decode", PREFILL)} == {9_591}
