"""Report: what a simulation found, as numbers that two runs can be compared by.

1. Rates and times are of the requests that were served; what failed is counted.
2. Times are virtual. A time to first token runs from the arrival, so time held in the router is in it. The mean
   inter-token time is per token: all the time between first and last tokens, over all those tokens (as Dynamo's replay
   reckons it); its percentiles give each token its request's own mean.
3. Percentiles are nearest ranks: values that occurred.
4. Equal runs give equal reports, byte for byte, but for `wall_s`. Sums are of integers, so no order shows in them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec

from core.ids import RequestId
from replay.simulating.disaggregation import Disaggregation, PrefillFleet, disaggregation
from replay.simulating.served import Served
from replay.simulating.spread import Spread, spread
from replay.simulating.times import Times, times, token_times
from replay.simulating.together import Together, together

US_PER_S = 1_000_000
US_PER_MS = 1000
UNKNOWN = "unknown"
"""Why requests failed of which nobody said it."""


class Held(msgspec.Struct, frozen=True, kw_only=True):
    """Time between arrival and the choice of a worker, of requests that stayed there."""

    mean_ms: float
    """Over all requests, those that were not held too."""
    max_ms: float
    share: float
    """Of requests that were held at all."""


class LoadSpread(msgspec.Struct, frozen=True, kw_only=True):
    """How evenly workers were used, idle ones included."""

    requests: Spread
    computed_tokens: Spread
    """Prompt tokens that were neither cached nor computed by others."""


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """See the module's text."""

    requests: int
    failed: int
    failures: dict[str, int]
    """Those by reason (`Served.why`)."""
    migrated: int
    """Requests that went on elsewhere at least once."""
    declined: int
    """How often a worker would not take a held request, because it computed prompts of other replicas."""
    hit_rate: float
    """Share of all prompt tokens that engines took from their caches."""
    predicted_hit_rate: float
    """The share that decisions expected."""
    ttft_ms: Times
    itl_ms: Times
    e2e_ms: Times
    requests_per_s: float
    """Served ones, from the first arrival to the last end."""
    output_tokens_per_s: float
    duration_s: float
    """From the first arrival to the last end, in virtual seconds."""
    load_spread: LoadSpread
    held: Held
    together: Together
    disaggregation: Disaggregation | None = None
    """None without prefill workers."""
    digest: str
    """Of every decision and of what became of every request; equal in equal runs."""
    wall_s: float = 0.0
    """What the run took, in real seconds."""


def report(
    served: Sequence[Served],
    workers: int,
    digest: str = "",
    wall_s: float = 0.0,
    prefill: PrefillFleet | None = None,
    computed: Sequence[int] | None = None,
) -> Report:
    """What became of the requests, on so many workers; some 10 us per request. `computed` is what each worker computed
    of prompts; without it, each prompt counts once, for the worker that ended its answer."""
    done = [each for each in served if each.first_us >= 0]
    prompt = sum(each.prompt_tokens for each in done)
    duration_us = max((each.end_us for each in done), default=0) - min((each.arrival_us for each in served), default=0)
    return Report(
        requests=len(served),
        failed=len(served) - len(done),
        failures=dict(sorted(Counter(each.why or UNKNOWN for each in served if each.first_us < 0).items())),
        migrated=sum(each.attempts > 1 for each in served),
        declined=sum(each.declined for each in served),
        hit_rate=share(sum(each.cached_tokens for each in done), prompt),
        predicted_hit_rate=share(sum(each.predicted_tokens for each in done), prompt),
        ttft_ms=times([each.first_us - each.arrival_us for each in done]),
        itl_ms=token_times([(each.end_us - each.first_us, each.output_tokens - 1) for each in done]),
        e2e_ms=times([each.end_us - each.arrival_us for each in done]),
        requests_per_s=share(len(done) * US_PER_S, duration_us),
        output_tokens_per_s=share(sum(each.output_tokens for each in done) * US_PER_S, duration_us),
        duration_s=max(0, duration_us) / US_PER_S,
        load_spread=load_spread(done, workers, {} if prefill is None else prefill.pulled_tokens(), computed),
        held=held(done),
        together=together(done),
        disaggregation=None if prefill is None else disaggregation(prefill),
        digest=digest,
        wall_s=wall_s,
    )


def load_spread(
    done: Sequence[Served], workers: int, pulled: Mapping[RequestId, int], computed: Sequence[int] | None = None
) -> LoadSpread:
    """Over the workers from 0 up to so many, or to the last that served anything; `pulled` tokens were computed by
    others. `computed` as of `report`."""
    count = max([workers, *(each.worker + 1 for each in done)])
    requests, reckoned = [0] * count, [0] * count
    for each in done:
        requests[each.worker] += 1
        reckoned[each.worker] += each.prompt_tokens - each.cached_tokens - pulled.get(each.id, 0)
    return LoadSpread(requests=spread(requests), computed_tokens=spread(reckoned if computed is None else computed))


def held(done: Sequence[Served]) -> Held:
    """Of what was served at the first attempt: others were chosen for again."""
    waits_us = [each.routed_us - each.arrival_us for each in done if each.attempts == 1]
    return Held(
        mean_ms=share(sum(waits_us), len(waits_us) * US_PER_MS),
        max_ms=max(waits_us, default=0) / US_PER_MS,
        share=share(sum(wait > 0 for wait in waits_us), len(waits_us)),
    )


def share(part: int, whole: int) -> float:
    """0 of nothing."""
    return part / whole if whole > 0 else 0.0
