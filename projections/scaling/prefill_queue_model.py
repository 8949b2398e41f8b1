"""PrefillQueueModel: the share of requests whose first token comes in time, predicted for a number of prefill workers.

Prompts wait in one queue, and the worker that is free first computes the oldest, alone. So this is a queue over recent
demand like `QueueModel`, of the same arrivals, without decode steps.

1. The bound is that of the first token, less the learned time from a prefill worker's answer to the first token.
2. Requests whose prompt a decode worker computes take no time here, and count as in time. So a prediction is a
   share of all requests, as that of decode workers is, and the misses of both add up.
3. Prompts are computed one after another: no request holds room in the cache for longer than that.
4. By eased bounds, a prompt that no worker computes in time may wait for as long as the settings allow the first token.

Integers throughout: equal inputs give equal predictions anywhere. More arrivals never raise a prediction.
"""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heapreplace

from msgspec import UNSET

from core.events.scale import CapacityLearned, DemandCell, DemandRolled, ScaleCandidate
from projections.scaling.queue_model import (
    ALL_BP,
    BUSY_MAX_BP,
    MILLI,
    US_PER_S,
    eased_us,
    prompt_times,
    sampled_arrivals,
    size_classes,
)
from projections.scaling.scale_settings import ScaleSettings


class PrefillQueueModel:
    """See the module's text. Made for one decision."""

    def __init__(
        self,
        demand: Sequence[DemandRolled],
        cells: Sequence[DemandCell],
        capacity: CapacityLearned,
        settings: ScaleSettings,
    ) -> None:
        """As of `QueueModel`; the cells are those of prefill workers."""
        self._capacity = capacity
        transfer_us = 0 if capacity.transfer_us is UNSET else capacity.transfer_us
        self._wait_us = settings.ttft_ms * MILLI
        """The wait of a prompt that no worker computes within the bound."""
        self._bound_us = max(0, self._wait_us - transfer_us)
        self._arrivals = sampled_arrivals(demand)
        self._sizes = size_classes(cells, len(self._arrivals.offsets_us))
        self._works: dict[int, list[int]] = {}
        """By the hit rate that the prompts would have."""

    def __repr__(self) -> str:
        return f"<PrefillQueueModel of {len(self._arrivals.offsets_us)} arrivals>"

    @property
    def is_known(self) -> bool:
        """There are arrivals, and sizes of requests that ended."""
        return bool(self._sizes.drawn)

    def ceiling_bp(self, hit_bp: int, now_hit_bp: int) -> int:
        """The share without waits, at the best hit rate that is known."""
        work_us = self._work(hit_bp, now_hit_bp)
        return sum(each_us <= self._bound_us for each_us in work_us) * ALL_BP // len(work_us)

    def predict(
        self, workers: int, rate_m: int, hit_bp: int, now_hit_bp: int, *, is_eased: bool = False
    ) -> ScaleCandidate:
        """The prediction for so many workers and arrivals, in thousandths a second. With `is_eased`, that by eased
        bounds is in it, too. O(SAMPLE log SAMPLE)."""
        work_us = self._work(hit_bp, now_hit_bp)
        count = len(work_us)
        busy_bp = rate_m * sum(work_us) * ALL_BP // (count * workers * US_PER_S * MILLI)
        if busy_bp > BUSY_MAX_BP:
            return ScaleCandidate(workers, rate_m, 0, 0, 0, busy_bp, 0, 0, 0 if is_eased else None)
        part, _, times_us = self._arrivals.times(workers, rate_m)
        free_us, attained, eased = [0] * part, 0, 0
        for at_us, each_us in zip(times_us, work_us, strict=True):
            if not each_us:
                attained, eased = attained + 1, eased + 1
                continue
            done_us = max(at_us, free_us[0]) + each_us
            heapreplace(free_us, done_us)
            attained += done_us - at_us <= self._bound_us
            eased += done_us - at_us <= eased_us(each_us, self._bound_us, self._wait_us)
        attained_bp, eased_bp = attained * ALL_BP // count, eased * ALL_BP // count if is_eased else None
        return ScaleCandidate(workers, rate_m, attained_bp, attained_bp, ALL_BP, busy_bp, 0, 0, eased_bp)

    def _work(self, hit_bp: int, now_hit_bp: int) -> list[int]:
        """Duration of each request's passes, at another hit rate; 0 without a prompt for prefill workers."""
        if hit_bp not in self._works:
            times = prompt_times(self._sizes, self._capacity, hit_bp, now_hit_bp)
            by_class = [it.us if uncached else 0 for it, uncached in zip(times, self._sizes.uncached, strict=True)]
            self._works[hit_bp] = [by_class[number] for number in self._sizes.drawn]
        return self._works[hit_bp]
