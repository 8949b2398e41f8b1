"""Demand and capacity that tests make up."""

from __future__ import annotations

import random
from collections.abc import Sequence

from core.events import RequestFinished
from core.events.scale import CapacityLearned, DemandCell, DemandRolled, ScaleDecided, ScaleForecast
from projections.scaling.scale_decision import FleetCounts, ScaleInputs, decide_scale
from projections.scaling.scale_fold import ScaleFold
from projections.scaling.scale_settings import ScaleSettings

PERIOD_S = 5
START_MS = 1_800_000_000_000
PROMPT_TOKENS = 100
"""Of the requests of `end`."""
CAPACITY = CapacityLearned(
    at_ms=0,
    pass_tokens=8192,
    prefill_tokens=(1, 8192),
    prefill_us=(20_000, 180_000),
    decode_tokens=(1, 1_000_000),
    decode_us=(6_000, 36_000),
    room_tokens=1_000_000,
    startup_ms=60_000,
    starts=0,
    hits=(),
)


def cell(count: int, uncached: int = 4000, output: int = 200, prompt: int = 5000) -> DemandCell:
    """So many requests of one size."""
    return DemandCell(count, count * uncached, count * output, count * prompt)


def rolled(number: int, arrivals: int, cells: tuple[DemandCell, ...] | None = None, waiting: int = 0) -> DemandRolled:
    """The period with this number; all its requests end in it, each of one size, unless cells are given."""
    return DemandRolled(
        at_ms=START_MS + number * PERIOD_S * 1000,
        period_s=PERIOD_S,
        arrivals=arrivals,
        queued=0,
        refused=0,
        waiting=waiting,
        running=0,
        ended=arrivals,
        attained=arrivals,
        first_token_ms=0,
        between_tokens_us=0,
        cells=((cell(arrivals),) if arrivals else ()) if cells is None else cells,
        cursor={},
    )


def summed(demand: list[DemandRolled]) -> tuple[DemandCell, ...]:
    """The cells of all these periods, as the fold has them."""
    fold = ScaleFold()
    fold.capacity = CAPACITY
    for each in demand:
        fold.apply(each)
    return tuple(fold.inputs(demand[-1].at_ms, FleetCounts(1), foreseen(0)).cells)


def foreseen(rate_m: int) -> ScaleForecast:
    """A forecast of that rate, without any margin."""
    return ScaleForecast(predictor="constant", rate_m=rate_m, upper_m=rate_m, quantile=50, horizon_s=65)


def inputs(
    demand: list[DemandRolled],
    settings: ScaleSettings,
    rate_m: int,
    ready: int = 4,
    capacity: CapacityLearned = CAPACITY,
) -> ScaleInputs:
    """Inputs after these periods, of a planner that has made no decision before, and without any surplus."""
    fold = ScaleFold()
    fold.settings, fold.capacity = settings, capacity
    for each in demand:
        fold.apply(each)
    return fold.inputs(demand[-1].at_ms, FleetCounts(ready), foreseen(rate_m))._replace(surplus_bp=0)


def poisson(random_: random.Random, mean: float) -> int:
    """A count of arrivals with that mean."""
    count, left = 0, random_.expovariate(1.0)
    while left < mean:
        count, left = count + 1, left + random_.expovariate(1.0)
    return count


def decided(demand: list[DemandRolled], settings: ScaleSettings, rate_m: int, ready: int = 4) -> ScaleDecided:
    """The decision on these inputs."""
    return decide_scale(inputs(demand, settings, rate_m, ready))


def end(name: str, outcome: str = "stop", stages: Sequence[int] = (), output: int = 21) -> RequestFinished:
    """The end of a request with that name."""
    return RequestFinished(
        request=name,
        attempt=0,
        outcome=outcome,
        prompt_tokens=PROMPT_TOKENS,
        output_tokens=output,
        cached_tokens=40,
        ttft_ms=400,
        duration_ms=1_400,
        stages=tuple(stages),
    )
