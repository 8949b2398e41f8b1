"""QueueModel: the share of requests within the bounds of service, predicted for a number of workers and a rate.

The model is a queue over recent demand. Its arrivals are those of the last minutes, bursts included, at times that are
stretched so that their mean rate is the expected one. Its requests have the sizes of those that ended lately. Each
worker computes prompts one after another; a request goes to the worker with the least work ahead.

The trend of the rate is taken out of the bursts: it stands in the expected rate already.

1. First token: the wait, the request's own passes, and a decode step in each of them.
2. Time between tokens: a decode step at the worker's resident tokens, and the passes of other prompts that fall into
   the answer. With a measured table, the step is one of as many requests as hold these tokens. Requests go to the
   workers in turn, but for those that follow their cached prompts (`Lanes`).
3. Workers whose requests do not fit into cache or slots attain nothing: the requests that run now count, too, since a
   fleet that shrinks hands them over.
4. Eased bounds ask for what a fleet can change. A first token that no worker gives in time may take the bound longer
   than it does alone, and where no step is short enough, the time between tokens does not count.
5. For one number of workers, more arrivals never raise the prediction: every time between arrivals shrinks, and every
   duration grows.
6. A large fleet is split: a part of the workers gets its share of the arrivals. So a prediction costs
   O(SAMPLE log SAMPLE) at any rate.

Integers throughout: equal inputs give equal predictions anywhere.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from functools import lru_cache
from heapq import heapreplace
from itertools import accumulate, islice
from typing import NamedTuple

from msgspec import UNSET

from core.events.scale import CapacityLearned, DemandCell, DemandRolled, ScaleCandidate
from projections.scaling.scale_settings import ScaleSettings

TREND_S = 10
"""The rate around a period is that of so many seconds before and behind it."""
SAMPLE = 1024
"""Arrivals of the queue at most. Their bursts are those of the last arrivals …"""
ARRIVALS_S = (60, 900)
"""… in so many seconds at least, where each stands for several, and at most."""
BUSY_MAX_BP = 9_800
"""A worker that computes prompts for a longer share of its time has no steady queue."""
ROUNDS = 4
"""Of the steps between resident tokens and duration of a decode step, which depend on each other."""
FOLLOWING_BP = 5_000
"""Of the requests with cached prompts, so many go where their prompts are, though other workers have less to do."""
ALL_BP = 10_000
US_PER_S = 1_000_000
MILLI = 1000
_MASK64 = 2**64 - 1


def interpolate(at: int, places: Sequence[int], values: Sequence[int]) -> int:
    """The value at a place, on the line between the two points around it; beyond the last point, on the line through
    the last two. One point is a constant."""
    if len(places) == 1:
        return values[0]
    right = min(max(1, bisect_left(places, at)), len(places) - 1)
    low, high = places[right - 1], places[right]
    return values[right - 1] + (values[right] - values[right - 1]) * (at - low) // (high - low)


@lru_cache(maxsize=4096)
def mixed(number: int) -> int:
    """64 bits that look random (splitmix64)."""
    value = (number + 1) * 0x9E3779B97F4A7C15 & _MASK64
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & _MASK64
    value = (value ^ value >> 27) * 0x94D049BB133111EB & _MASK64
    return value ^ value >> 31


Lanes = Callable[[int, int, int], Sequence[Sequence[int]]]
"""The numbers of the requests that each worker gets, rising: of so many requests in all, for so many workers, at that
hit rate in hundredths of a percent. A worker without any is left out."""


def lanes_in_turn(count: int, workers: int, _hit_bp: int) -> Sequence[Sequence[int]]:
    """Of the requests of W workers, each W-th goes to one of them."""
    return [range(lane, count, workers) for lane in range(min(workers, count))]


@lru_cache(maxsize=64)
def lanes_by_caches(count: int, workers: int, hit_bp: int) -> Sequence[Sequence[int]]:
    """The same, but requests with cached prompts lie anywhere: FOLLOWING_BP of the hit rate are such requests."""
    lanes: list[list[int]] = [[] for _ in range(workers)]
    for number in range(count):
        value = mixed(number + SAMPLE)  # not the bits that the times and sizes are made of
        follows = value % ALL_BP * ALL_BP < hit_bp * FOLLOWING_BP
        lanes[(value >> 32) % workers if follows else number % workers].append(number)
    return [lane for lane in lanes if lane]


class DecodeSteps:
    """Durations of decode steps in which each request holds so many tokens. They never fall with the tokens of all."""

    def __init__(self, capacity: CapacityLearned, each_tokens: int) -> None:
        """The capacity's table need not rise beyond its last tokens, where the lines of two rows may cross: a number of
        requests takes no less than a smaller one."""
        self._each_tokens = each_tokens
        if capacity.decode_requests is UNSET or capacity.decode_rows_us is UNSET:
            self._places, self._values, self._is_table = capacity.decode_tokens, capacity.decode_us, False
        else:
            rows = (interpolate(each_tokens, capacity.decode_tokens, row) for row in capacity.decode_rows_us)
            self._places, self._values, self._is_table = capacity.decode_requests, tuple(accumulate(rows, max)), True

    def us(self, resident: int) -> int:
        """Duration of a step with so many tokens in the cache."""
        at = max(1, -(-resident // self._each_tokens)) if self._is_table else resident
        return interpolate(at, self._places, self._values)


class SampleTimes(NamedTuple):
    """Times of the sample's arrivals at one number of workers and one rate."""

    part: int
    """Workers that get these arrivals: all of a small fleet, and a share of a large one."""
    span_us: int
    """Time in which so many arrivals come at that rate."""
    times_us: list[int]
    """Rising, below `span_us`."""


class SampledArrivals(NamedTuple):
    """Arrivals of the last periods."""

    offsets_us: list[int]
    """Rising."""
    span_us: int
    """The time that they span."""
    thinned_bp: int
    """The share of all arrivals that they are."""

    def times(self, workers: int, rate_m: int) -> SampleTimes:
        """Their times for so many workers, at so many arrivals a second in thousandths."""
        part = max(1, min(workers, -(-workers * self.thinned_bp // ALL_BP)))
        span_us = len(self.offsets_us) * US_PER_S * MILLI * workers // (max(1, rate_m) * part)
        return SampleTimes(part, span_us, [offset_us * span_us // self.span_us for offset_us in self.offsets_us])


class SampleSizes(NamedTuple):
    """Sizes of the sample's requests, in the order of their arrivals."""

    prompts: list[int]
    uncached: list[int]
    """Of the prompts, the tokens that engines computed."""
    outputs: list[int]


class SizeClasses(NamedTuple):
    """Means of each class of requests, and the sample's requests in the order of their arrivals."""

    prompts: list[int]
    """Of each class …"""
    uncached: list[int]
    """… with the tokens that an engine computes."""
    drawn: list[int]
    """The class of each request …"""
    outputs: list[int]
    """… and its tokens of the answer."""


class PromptTime(NamedTuple):
    """The work of computing a prompt."""

    us: int
    """Duration of its passes …"""
    passes: int
    """… and their number."""


class Work(NamedTuple):
    """Columns over the sample's requests: the work of computing their prompts."""

    computed_us: list[int]
    passes: list[int]
    total_us: int
    """The sum of the durations."""


class QueueModel:
    """See the module's text. Made for one decision."""

    def __init__(
        self,
        demand: Sequence[DemandRolled],
        cells: Sequence[DemandCell],
        capacity: CapacityLearned,
        settings: ScaleSettings,
        lanes: Lanes,
        *,
        goes_round_whole: bool,
    ) -> None:
        """`demand` are the last consecutive periods, oldest first. `cells` are the sizes of requests that ended lately,
        each class once. The rest is of `ScaleRules`."""
        self._lanes = lanes
        self._goes_round_whole = goes_round_whole
        self._capacity = capacity
        self._settings = settings
        self._arrivals = sampled_arrivals(demand)
        self._sizes = size_classes(cells, len(self._arrivals.offsets_us))
        sizes = self._sizes
        self._held = sum(
            output * (sizes.prompts[number] + output // 2)
            for output, number in zip(sizes.outputs, sizes.drawn, strict=True)
        )
        """Tokens that the requests hold, times the steps for which they do …"""
        self._steps = max(1, sum(sizes.outputs))
        """… and these steps."""
        self._each_tokens = max(1, self._held // self._steps)
        """Tokens that a request holds while it decodes."""
        self._decode_steps = DecodeSteps(capacity, self._each_tokens)
        self._running = demand[-1].running if demand else 0
        self._works: dict[int, Work] = {}
        """By the hit rate that the prompts would have."""

    def __repr__(self) -> str:
        return f"<QueueModel of {len(self._arrivals.offsets_us)} arrivals>"

    @property
    def is_known(self) -> bool:
        """There are arrivals, and sizes of requests that ended."""
        return bool(self._sizes.drawn)

    def ceiling_bp(self, hit_bp: int, now_hit_bp: int) -> int:
        """The attainment without waits and other requests, at the best hit rate that is known."""
        alone_us = self._alone_us(self._work(hit_bp, now_hit_bp))
        bound_us = self._settings.ttft_ms * MILLI
        reached = sum(
            each_us <= bound_us and (self._can_step or output < 2)
            for each_us, output in zip(alone_us, self._sizes.outputs, strict=True)
        )
        return reached * ALL_BP // len(alone_us)

    @property
    def _can_step(self) -> bool:
        """The bound of the time between tokens allows a step without other requests."""
        return self._capacity.decode_us[0] <= self._settings.itl_ms * MILLI

    def _alone_us(self, work: Work) -> list[int]:
        """Of each request, the time until its first token without waits and other requests."""
        step_us = self._capacity.decode_us[0]
        return [work_us + count * step_us for work_us, count in zip(work.computed_us, work.passes, strict=True)]

    def predict(
        self, workers: int, rate_m: int, hit_bp: int, now_hit_bp: int, *, is_eased: bool = False
    ) -> ScaleCandidate:
        """The prediction for so many workers and arrivals, in thousandths a second. The sample's prompts were cached to
        `now_hit_bp`, and would be to `hit_bp`. With `is_eased`, that by eased bounds is in it, too."""
        work = self._work(hit_bp, now_hit_bp)
        count, none_bp = len(work.passes), 0 if is_eased else None
        busy_bp = rate_m * work.total_us * ALL_BP // (count * workers * US_PER_S * MILLI)
        if busy_bp > BUSY_MAX_BP:
            return ScaleCandidate(workers, rate_m, 0, 0, 0, busy_bp, 0, 0, none_bp)
        step_us, expected = self._step(workers, rate_m, busy_bp)
        each_tokens = self._each_tokens
        resident = max(expected, -(-self._running // workers) * each_tokens)
        slots = self._capacity.slots or resident
        if resident > self._capacity.room_tokens or resident > slots * each_tokens:
            return ScaleCandidate(workers, rate_m, 0, 0, 0, busy_bp, step_us, resident, none_bp)
        part, span_us, times_us = self.times(workers, rate_m)
        round_us = span_us
        if not self._goes_round_whole:
            round_us = times_us[-1] + (times_us[-1] - times_us[0]) // max(1, count - 1) + 1 - times_us[0]
        bound_us = self._settings.ttft_ms * MILLI
        taken_us = first_tokens_us(part, times_us, work, step_us)
        first = [each_us <= bound_us for each_us in taken_us]
        lanes = self._lanes(count, part, hit_bp)
        between = self._between_tokens(lanes, times_us, round_us, work.computed_us, step_us)
        both = sum(one and other for one, other in zip(first, between, strict=True))
        both_bp, first_bp, between_bp = (each * ALL_BP // count for each in (both, sum(first), sum(between)))
        eased_bp = self._eased_bp(work, taken_us, between) if is_eased else None
        return ScaleCandidate(workers, rate_m, both_bp, first_bp, between_bp, busy_bp, step_us, resident, eased_bp)

    def _eased_bp(self, work: Work, taken_us: Sequence[int], between: Sequence[bool]) -> int:
        bound_us, can_step = self._settings.ttft_ms * MILLI, self._can_step
        eased = sum(
            each_us <= eased_us(alone_us, bound_us, bound_us) and (in_time or not can_step)
            for each_us, alone_us, in_time in zip(taken_us, self._alone_us(work), between, strict=True)
        )
        return eased * ALL_BP // len(taken_us)

    def times(self, workers: int, rate_m: int) -> SampleTimes:
        """The sample's arrivals for so many workers, at so many arrivals a second in thousandths."""
        return self._arrivals.times(workers, rate_m)

    @property
    def sizes(self) -> SampleSizes:
        """The sizes of the sample's requests."""
        it = self._sizes
        prompts, uncached = ([column[number] for number in it.drawn] for column in (it.prompts, it.uncached))
        return SampleSizes(prompts, uncached, it.outputs)

    def _work(self, hit_bp: int, now_hit_bp: int) -> Work:
        """Of each request, the duration of its passes and their number, at another hit rate."""
        if hit_bp in self._works:
            return self._works[hit_bp]
        classes = prompt_times(self._sizes, self._capacity, hit_bp, now_hit_bp)
        computed_us = [classes[number].us for number in self._sizes.drawn]
        passes = [classes[number].passes for number in self._sizes.drawn]
        found = self._works[hit_bp] = Work(computed_us, passes, sum(computed_us))
        return found

    def _step(self, workers: int, rate_m: int, busy_bp: int) -> tuple[int, int]:
        """Duration of a decode step, and the tokens that decoding requests hold then."""
        it, held = self._capacity, self._held
        count, step_us, resident = len(self._sizes.drawn), it.decode_us[0], 0
        for _ in range(ROUNDS):
            token_us = step_us * ALL_BP // (ALL_BP - busy_bp)
            resident = rate_m * held * token_us // (count * workers * US_PER_S * MILLI)
            step_us = self._decode_steps.us(min(resident, it.room_tokens))
        return step_us, resident

    def _between_tokens(
        self,
        lanes: Sequence[Sequence[int]],
        times_us: list[int],
        span_us: int,
        computed_us: list[int],
        step_us: int,
    ) -> list[bool]:
        """True of each request with a mean time between tokens within its bound. The stream of arrivals goes round: the
        first ones follow the last after `span_us`."""
        bound_us, count = self._settings.itl_ms * MILLI, len(times_us)
        spare_us, found = bound_us - step_us, [False] * count
        for lane in lanes:
            times = [times_us[number] for number in lane]
            sums = list(accumulate((computed_us[number] for number in lane), initial=0))
            end_us = times[0] + span_us
            for number, at_us, until_own_us in zip(lane, times, islice(sums, 1, None), strict=True):
                tokens = self._sizes.outputs[number] - 1
                until_us, others_us = at_us + tokens * bound_us, -until_own_us
                if until_us >= end_us:
                    rounds, rest_us = divmod(until_us - times[0], span_us)
                    until_us, others_us = times[0] + rest_us, others_us + rounds * sums[-1]
                others_us += sums[bisect_right(times, until_us)]
                found[number] = not tokens or others_us <= tokens * spare_us
        return found


def first_tokens_us(part: int, times_us: list[int], work: Work, step_us: int) -> list[int]:
    """Of each request, the time until its first token, with so many workers."""
    free_us, found = [0] * part, list[int]()
    for at_us, work_us, count in zip(times_us, work.computed_us, work.passes, strict=True):
        done_us = max(at_us, free_us[0]) + work_us + count * step_us
        heapreplace(free_us, done_us)
        found.append(done_us - at_us)
    return found


def eased_us(alone_us: int, bound_us: int, wait_us: int) -> int:
    """The eased bound of a first token that takes so long alone: where that is longer than the bound, it may wait."""
    return bound_us if alone_us <= bound_us else alone_us + wait_us


def sampled_arrivals(demand: Sequence[DemandRolled]) -> SampledArrivals:
    """A sample of the arrivals of the last periods.

    Each period is as long as it would be at a steady rate: it keeps its bursts, and loses the trend around it.
    """
    periods = _last_periods(demand)
    ends = [0, *accumulate(each.arrivals for each in periods)]
    total, length_s = ends[-1], sum(each.period_s for each in periods)
    kept = min(total, SAMPLE)
    offsets_us: list[int] = []
    start_us = 0
    for place, each in enumerate(periods):
        if not ends[place] < total:
            break
        around = TREND_S // each.period_s
        first, last = max(0, place - around), min(len(periods), place + around + 1)
        near_s = sum(it.period_s for it in periods[first:last])
        length_us = each.period_s * US_PER_S * (ends[last] - ends[first]) * length_s // (near_s * total)
        numbers = range(ends[place] * kept // total, ends[place + 1] * kept // total)
        offsets_us += sorted(start_us + (mixed(number) * length_us >> 64) for number in numbers)
        start_us += length_us
    return SampledArrivals(offsets_us, max(1, start_us), max(1, kept * ALL_BP // max(1, total)))


def _last_periods(demand: Sequence[DemandRolled]) -> list[DemandRolled]:
    """The last periods with SAMPLE arrivals, within the bounds of ARRIVALS_S; oldest first."""
    found: list[DemandRolled] = []
    length_s = arrivals = 0
    for each in reversed(demand):
        if length_s >= ARRIVALS_S[0] and (arrivals + each.arrivals > SAMPLE or length_s >= ARRIVALS_S[1]):
            break
        length_s, arrivals = length_s + each.period_s, arrivals + each.arrivals
        found.append(each)
    return found[::-1]


def size_classes(cells: Sequence[DemandCell], count: int) -> SizeClasses:
    """Sizes of so many requests: each class as often as it was among those that ended lately, in an order of its own
    for each count."""
    ends = list(accumulate(cell.count for cell in cells))
    if not ends:
        return SizeClasses([], [], [], [])
    drawn = [bisect_right(ends, (2 * place + 1) * ends[-1] // (2 * count)) for place in _order(count)]
    return SizeClasses(
        [cell.prompt_tokens // cell.count for cell in cells],
        [cell.uncached_tokens // cell.count for cell in cells],
        drawn,
        [max(1, cells[number].output_tokens // cells[number].count) for number in drawn],
    )


def prompt_times(sizes: SizeClasses, capacity: CapacityLearned, hit_bp: int, now_hit_bp: int) -> Sequence[PromptTime]:
    """Of each class, the time of its prompt. The prompts were cached to `now_hit_bp`, and would be to `hit_bp`."""
    chunk, places, values = capacity.pass_tokens, capacity.prefill_tokens, capacity.prefill_us
    missed, now_missed = ALL_BP - hit_bp, max(1, ALL_BP - now_hit_bp)
    whole_us = interpolate(chunk, places, values)
    found: list[PromptTime] = []
    for uncached, prompt in zip(sizes.uncached, sizes.prompts, strict=True):
        full, rest = divmod(max(1, min(prompt, uncached * missed // now_missed)), chunk)
        rest_us = interpolate(rest, places, values) if rest else 0
        found.append(PromptTime(full * whole_us + rest_us, full + (rest > 0)))
    return found


@lru_cache(maxsize=SAMPLE)
def _order(count: int) -> tuple[int, ...]:
    """The numbers below `count`, shuffled."""
    return tuple(sorted(range(count), key=mixed))
