"""JudgePlan: the simulations of some numbers of workers over the demand of one decision, and their requests.

1. The numbers are the one that the decision requires, one worker less and one more. One that cannot keep up, by the
   queue, is not simulated.
2. Arrivals and sizes are those of the decision's own queue (`QueueModel`), at the rate that its candidates have. The
   first quarter of them fills caches and queues, and is not counted.
3. Of a large fleet a part is simulated, as the queue has it.
4. Cache hits are those of the simulated router. Some prompts of a class of sizes follow others: their starts have the
   tokens that engines found in their caches lately, and are long (FOLLOWED). Followers of one family have the same
   start, and no other prompt shares any.

A plan follows from the inputs of a decision and the decision, so a replay makes it again.
"""

from __future__ import annotations

from msgspec import UNSET, Struct
from msgspec.structs import replace

from core.events.scale import CapacityLearned, ScaleDecided
from projections.scaling.queue_model import SAMPLE, QueueModel, mixed
from projections.scaling.scale_decision import HitRates, ScaleInputs, queue_of

SAMPLE_MIN = 512
"""With fewer arrivals, chance says more than a simulation."""
WARM_SHARE = 4
"""One in so many of the requests comes first, and is not counted."""
FAMILY = 8
"""Followers that have the same start, on average."""
FOLLOWED = 4
"""A follower's start has so many times the tokens that are its own …"""
ROOM_SHARE = 4
"""… and one in so many of the cache's tokens at most, unless its class has more."""


class JudgeRun(Struct, frozen=True, array_like=True):
    """One number of workers."""

    workers: int
    part: int
    """Workers that are simulated."""
    times_us: tuple[int, ...]
    """Arrivals at them, rising."""


class JudgePlan(Struct, frozen=True, kw_only=True):
    """See the module's text."""

    asked_ms: int
    """Time of the decision, which is the seed of all that is drawn, too."""
    rate_m: int
    ttft_ms: int
    itl_ms: int
    capacity: CapacityLearned
    warm: int
    """The first so many requests are not counted."""
    prompt_tokens: tuple[int, ...]
    """Of each request …"""
    followed_tokens: tuple[int, ...]
    """… with the first tokens that its family has; 0 of one that follows none."""
    output_tokens: tuple[int, ...]
    families: tuple[int, ...]
    runs: tuple[JudgeRun, ...]
    """Rising in the number of workers."""

    @property
    def numbers(self) -> tuple[int, ...]:
        """The numbers of workers."""
        return tuple(run.workers for run in self.runs)


def judge_plan(inputs: ScaleInputs, decided: ScaleDecided) -> JudgePlan | None:
    """The plan of a decision that was made on these inputs. None if it has no candidate, if too few arrivals are
    known, if no number can keep up, or if prefill workers are sized, too. Some milliseconds."""
    settings, model = inputs.settings, queue_of(inputs)
    if not decided.candidates or not isinstance(model, QueueModel) or inputs.demand[-1].prefill_demand is not UNSET:
        return None
    prompts, uncached, outputs = model.sizes
    count, room = len(prompts), inputs.capacity.room_tokens
    if count < SAMPLE_MIN:
        return None
    hits = HitRates(inputs.capacity.hits, inputs.cells, inputs.fleet.ready)
    rate_m, middle, runs = decided.candidates[0].rate_m, max(1, decided.required), []
    for workers in range(max(1, middle - 1), middle + 2):
        if model.predict(workers, rate_m, hits.of(workers), hits.now_bp).attainment_bp:
            part, _, times_us = model.times(workers, rate_m)
            runs.append(JudgeRun(workers, part, tuple(times_us)))
    if not runs:
        return None
    draws = [mixed(number + 2 * SAMPLE) for number in range(count)]
    followed = [
        _followed(draw >> 32, own, prompt - own, room)
        for draw, own, prompt in zip(draws, uncached, prompts, strict=True)
    ]
    return JudgePlan(
        asked_ms=decided.at_ms,
        rate_m=rate_m,
        ttft_ms=settings.ttft_ms,
        itl_ms=settings.itl_ms,
        capacity=replace(inputs.capacity, model=UNSET),
        warm=count // WARM_SHARE,
        prompt_tokens=tuple(own + start for own, start in zip(uncached, followed, strict=True)),
        followed_tokens=tuple(followed),
        output_tokens=tuple(outputs),
        families=tuple(draw % max(1, sum(map(bool, followed)) // FAMILY) for draw in draws),
        runs=tuple(runs),
    )


def _followed(draw: int, own: int, cached: int, room: int) -> int:
    """The start that a request follows others in, or 0. So many of a class follow that `cached` is the mean."""
    if cached <= 0:
        return 0
    start = max(cached, min(FOLLOWED * own, room // ROOM_SHARE))
    return start if draw % start < cached else 0
