"""Report: the figures of a simulation, by which two runs can be compared.

1. Rates and times are of the requests that were served; failed ones are counted.
2. Times are virtual. A time to first token runs from the arrival, so time held in the router is in it. The mean
   inter-token time is per token: all the time between first and last tokens, over all those tokens (as Dynamo's replay
   reckons it); its percentiles give each token its request's own mean.
3. Percentiles are nearest ranks: values that occurred.
4. Equal runs give equal reports, byte for byte, but for `wall_s`. Sums are of integers, so no order shows in them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from actors.engines.simulated.simulated_pool_files import PoolCounts
from core.ids import RequestId
from projections.policy.prefill_choice import REMOTE

TOO_LONG = "too_long"
"""No engine here has room for prompt and answer together."""
LOST = "worker_lost"
"""Too many of its workers ended."""


class ServedRequest(NamedTuple):
    """All times are virtual microseconds since the start of the run."""

    id: RequestId
    arrival_us: int
    routed_us: int
    """When its worker was chosen for the last time; later than the arrival if it was held or went on elsewhere."""
    first_us: int
    """Of the first token; -1 if it failed."""
    end_us: int
    worker: int
    """Place of the worker in the fleet, from 0; -1 if it failed."""
    replica: int
    prompt_tokens: int
    cached_tokens: int
    """Prompt tokens from the engine's cache."""
    predicted_tokens: int
    """Prompt tokens that the decision expected in the cache."""
    output_tokens: int
    attempts: int = 1
    """But for those that a worker declined."""
    declined: int = 0
    """Workers that declined it, because they computed prompts of other replicas."""
    why: str = ""
    """Why it failed, in a word: of `core.events.routing.TURNED_AWAY`, as a RequestRejected has it, TOO_LONG or LOST.
    The last field: digests of runs leave it out."""


class PrefillVerdict(NamedTuple):
    """Verdict on the prompt of an attempt that had its first token. Times are virtual microseconds. Fields after
    `place` are of a job with pulled blocks, else -1 or 0."""

    request: RequestId
    reason: str
    """`projections.policy.prefill_choice.PREFILL_REASONS`."""
    outcome: str
    """Outcome of the job; empty if there was none."""
    place: int = -1
    """Of the prefill worker, in the fleet."""
    pulled_tokens: int = 0
    """Prompt tokens that the decode worker neither had nor computed."""
    blocks: int = 0
    cached_tokens: int = 0
    """Of the prompt, in the prefill worker's cache."""
    computed_tokens: int = 0
    """The others."""
    queue_us: int = -1
    """From the request of the job until a prefill worker took it."""
    wait_us: int = -1
    """From the request of the job to its answer."""
    pull_us: int = -1
    """From the answer to the first token."""


US_PER_MS = 1000
PERCENTILES = (50, 90, 99)


class LatencySummary(msgspec.Struct, frozen=True, kw_only=True):
    """In milliseconds; all 0 of nothing."""

    mean: float = 0.0
    p50: float = 0.0
    p90: float = 0.0
    p99: float = 0.0


def latency_summary(found_us: Sequence[int]) -> LatencySummary:
    """Of these, each counting once."""
    if not found_us:
        return LatencySummary()
    ordered = sorted(found_us)
    p50, p90, p99 = (ordered[_rank(len(ordered), percent) - 1] / US_PER_MS for percent in PERCENTILES)
    return LatencySummary(mean=sum(ordered) / (len(ordered) * US_PER_MS), p50=p50, p90=p90, p99=p99)


def token_times(found: Iterable[tuple[int, int]]) -> LatencySummary:
    """Of one token, from pairs of the microseconds and the number of tokens made in them; pairs without tokens count
    for nothing. A percentile counts each token with the mean of its pair."""
    pairs = sorted((took_us / tokens, tokens, took_us) for took_us, tokens in found if tokens > 0)
    total = sum(tokens for _, tokens, _ in pairs)
    if not total:
        return LatencySummary()
    p50, p90, p99 = (_weighed(pairs, _rank(total, percent)) / US_PER_MS for percent in PERCENTILES)
    return LatencySummary(mean=sum(took_us for *_, took_us in pairs) / (total * US_PER_MS), p50=p50, p90=p90, p99=p99)


def _weighed(pairs: Sequence[tuple[float, int, int]], rank: int) -> float:
    """The value of the token at this rank, from 1."""
    passed = 0
    for value, tokens, _ in pairs:
        passed += tokens
        if passed >= rank:
            return value
    raise AssertionError("the rank lies beyond the last token")


def _rank(count: int, percent: int) -> int:
    """The nearest rank, from 1."""
    return -(-count * percent // 100)


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """1 and 0 are as even as can be."""

    max_over_mean: float
    cv: float
    """The coefficient of variation: standard deviation (of the whole population) over mean."""
    per_worker: tuple[int, ...]


def spread(found: Sequence[int]) -> Spread:
    """Of what each worker had; as even as can be if none had anything."""
    total = sum(found)
    if not total:
        return Spread(max_over_mean=1.0, cv=0.0, per_worker=tuple(found))
    squares = sum((value * len(found) - total) ** 2 for value in found)  # of integers: the order cannot show
    return Spread(
        max_over_mean=max(found) * len(found) / total,
        cv=math.sqrt(squares / len(found)) / total,
        per_worker=tuple(found),
    )


PULLED = "pulled"


class PrefillFleet(NamedTuple):
    """The prefill workers of a run, and what was decided about prompts."""

    first_place: int
    """In the fleet."""
    workers: int
    block_bytes: int
    verdicts: Sequence[PrefillVerdict]

    def pulled_tokens(self) -> Mapping[RequestId, int]:
        """Of each request's first answer, the prompt tokens that its worker got from another."""
        found: dict[RequestId, int] = {}
        for each in self.verdicts:
            found.setdefault(each.request, each.pulled_tokens)
        return found


class Disaggregation(msgspec.Struct, frozen=True, kw_only=True):
    """Of attempts that had their first token: where their prompts were computed. Rates are 0 of nothing."""

    prefill_workers: int
    verdicts: dict[str, int]
    """Verdicts by reason: `long` asked prefill workers, all others computed where they decoded."""
    jobs: dict[str, int]
    """Outcomes of the jobs: `pulled`, or why the worker computed the prompt after all."""
    remote_share: float
    """Prompts with pulled blocks, over all prompts."""
    pulled_tokens: int
    """Prompt tokens that decode workers neither had nor computed."""
    pulled_blocks: int
    pulled_bytes: int
    hit_rate: float
    """Share of the tokens of these prompts that prefill workers took from their own caches."""
    queued_ms: LatencySummary
    """Of pulled prompts: from the request of the job until a prefill worker began it …"""
    job_ms: LatencySummary
    """… from the request of the job to its answer …"""
    pull_ms: LatencySummary
    """… and from the answer to the first token: wait for a place, transfer, a decode step."""
    computed_tokens: Spread
    """Tokens of pulled prompts that each prefill worker computed."""


def disaggregation(fleet: PrefillFleet) -> Disaggregation:
    """Counts and times of these verdicts."""
    pulled = [each for each in fleet.verdicts if each.outcome == PULLED]
    computed = [0] * fleet.workers
    for each in pulled:
        computed[each.place - fleet.first_place] += each.computed_tokens
    blocks, cached = sum(each.blocks for each in pulled), sum(each.cached_tokens for each in pulled)
    asked = cached + sum(computed)
    return Disaggregation(
        prefill_workers=fleet.workers,
        verdicts=_counted(each.reason for each in fleet.verdicts),
        jobs=_counted(each.outcome for each in fleet.verdicts if each.reason == REMOTE),
        remote_share=len(pulled) / len(fleet.verdicts) if fleet.verdicts else 0.0,
        pulled_tokens=sum(each.pulled_tokens for each in pulled),
        pulled_blocks=blocks,
        pulled_bytes=blocks * fleet.block_bytes,
        hit_rate=cached / asked if asked else 0.0,
        queued_ms=latency_summary([each.queue_us for each in pulled]),
        job_ms=latency_summary([each.wait_us for each in pulled]),
        pull_ms=latency_summary([each.pull_us for each in pulled]),
        computed_tokens=spread(computed),
    )


def _counted(words: Iterable[str]) -> dict[str, int]:
    return dict(sorted(Counter(words).items()))


US_PER_S = 1_000_000


UNKNOWN = "unknown"
"""Reason of failures without a recorded one."""


class HoldTimes(msgspec.Struct, frozen=True, kw_only=True):
    """Time between arrival and the choice of a worker, of requests that stayed there."""

    mean_ms: float
    """Over all requests, those that were not held too."""
    max_ms: float
    share: float
    """Of requests that were held at all."""


class LoadSpread(msgspec.Struct, frozen=True, kw_only=True):
    """Evenness of the load over workers, idle ones included."""

    requests: Spread
    computed_tokens: Spread
    """Prompt tokens that were neither cached nor computed by others."""


HOUR_US = 3_600_000_000


class WorkerSpan(NamedTuple):
    """The time in which one worker took devices, in virtual microseconds."""

    from_us: int
    """When it was ordered."""
    until_us: int
    """When it had left; -1 if it stayed to the end of the run."""
    handed_over: bool = False
    """Requests went on elsewhere when it left."""
    is_prefill: bool = False


class ScalingReport(msgspec.Struct, frozen=True, kw_only=True):
    """Cost and service of a fleet: worker-hours, and requests within the bounds of service."""

    ttft_ms: int
    itl_ms: int
    worker_hours: float
    """From each worker's order to its end, or to that of the run."""
    attained: int
    """Requests within both bounds; a failed one is not …"""
    attainment: float
    """… and their share of all requests."""
    workers_mean: float
    workers_max: int
    """At once, those that start and drain included."""
    starts: int
    """Workers that were ordered during the run …"""
    stops: int
    """… and those that drained or were no longer wanted before they had started."""
    handed_over: int
    """Drained workers that had requests left when they had to go; these went on elsewhere."""
    prefill_worker_hours: float | msgspec.UnsetType = msgspec.UNSET
    """Of the worker-hours, those of prefill workers. Left out without prefill workers."""


def scaling(
    served: Sequence[ServedRequest], bounds: tuple[int, int], spans: Sequence[WorkerSpan], end_us: int
) -> ScalingReport:
    """The figures of a run that ended then. `bounds` are those of the first token and between tokens, in ms."""
    ttft_ms, itl_ms = bounds
    attained = sum(is_attained(each, ttft_ms * US_PER_MS, itl_ms * US_PER_MS) for each in served)
    ends = [each.until_us if each.until_us >= 0 else end_us for each in spans]
    taken_us = sum(end - each.from_us for each, end in zip(spans, ends, strict=True))
    prefill_us = sum(end - each.from_us for each, end in zip(spans, ends, strict=True) if each.is_prefill)
    changes = sorted([(each.from_us, 1) for each in spans] + [(end, -1) for end in ends])
    present = most = 0
    for _, change in changes:
        present += change
        most = max(most, present)
    return ScalingReport(
        ttft_ms=ttft_ms,
        itl_ms=itl_ms,
        worker_hours=taken_us / HOUR_US,
        attained=attained,
        attainment=share(attained, len(served)),
        workers_mean=share(taken_us, end_us),
        workers_max=most,
        starts=sum(each.from_us > 0 for each in spans),
        stops=sum(each.until_us >= 0 for each in spans),
        handed_over=sum(each.handed_over for each in spans),
        prefill_worker_hours=prefill_us / HOUR_US if any(each.is_prefill for each in spans) else msgspec.UNSET,
    )


def is_attained(it: ServedRequest, ttft_us: int, itl_us: int) -> bool:
    """The request was served within both bounds."""
    if it.first_us < 0 or it.first_us - it.arrival_us > ttft_us:
        return False
    return it.end_us - it.first_us <= itl_us * max(0, it.output_tokens - 1)


class PoolReport(msgspec.Struct, frozen=True, kw_only=True):
    """Blocks of all disks, or of the pool."""

    loads: int
    """Read into a host …"""
    loads_declined: int
    """… and not read, because too many were being read."""
    stores: int
    stores_dropped: int
    """Not stored: the keeper's grant was spent, or the disk lagged behind."""
    evictions: int


class SimulationReport(msgspec.Struct, frozen=True, kw_only=True):
    """All figures of one run."""

    requests: int
    failed: int
    failures: dict[str, int]
    """Those by reason (`ServedRequest.why`)."""
    migrated: int
    """Requests that went on elsewhere at least once."""
    declined: int
    """Held requests that a worker declined, because it computed prompts of other replicas."""
    hit_rate: float
    """Share of all prompt tokens that engines took from their caches."""
    predicted_hit_rate: float
    """The share that decisions expected."""
    ttft_ms: LatencySummary
    itl_ms: LatencySummary
    e2e_ms: LatencySummary
    requests_per_s: float
    """Served ones, from the first arrival to the last end."""
    output_tokens_per_s: float
    duration_s: float
    """From the first arrival to the last end, in virtual seconds."""
    load_spread: LoadSpread
    held: HoldTimes
    disaggregation: Disaggregation | None = None
    """None without prefill workers."""
    scaling: ScalingReport | msgspec.UnsetType = msgspec.UNSET
    """Left out without bounds of service."""
    pool: PoolReport | msgspec.UnsetType = msgspec.UNSET
    """Left out without disks and pools."""
    digest: str
    """Of every decision and of what became of every request; equal in equal runs."""
    wall_s: float = 0.0
    """Real seconds that the run took."""


def report(
    served: Sequence[ServedRequest],
    workers: int,
    digest: str = "",
    wall_s: float = 0.0,
    prefill: PrefillFleet | None = None,
    computed: Sequence[int] | None = None,
    scaled: ScalingReport | None = None,
    pool: PoolCounts | None = None,
) -> SimulationReport:
    """The figures of these requests on so many workers; some 10 us per request. `computed` are the prompt tokens that
    each worker computed. Without it, each prompt counts once, for the worker that ended its answer."""
    done = [each for each in served if each.first_us >= 0]
    prompt = sum(each.prompt_tokens for each in done)
    duration_us = max((each.end_us for each in done), default=0) - min((each.arrival_us for each in served), default=0)
    return SimulationReport(
        requests=len(served),
        failed=len(served) - len(done),
        failures=dict(sorted(Counter(each.why or UNKNOWN for each in served if each.first_us < 0).items())),
        migrated=sum(each.attempts > 1 for each in served),
        declined=sum(each.declined for each in served),
        hit_rate=share(sum(each.cached_tokens for each in done), prompt),
        predicted_hit_rate=share(sum(each.predicted_tokens for each in done), prompt),
        ttft_ms=latency_summary([each.first_us - each.arrival_us for each in done]),
        itl_ms=token_times([(each.end_us - each.first_us, each.output_tokens - 1) for each in done]),
        e2e_ms=latency_summary([each.end_us - each.arrival_us for each in done]),
        requests_per_s=share(len(done) * US_PER_S, duration_us),
        output_tokens_per_s=share(sum(each.output_tokens for each in done) * US_PER_S, duration_us),
        duration_s=max(0, duration_us) / US_PER_S,
        load_spread=load_spread(done, workers, {} if prefill is None else prefill.pulled_tokens(), computed),
        held=hold_times(done),
        disaggregation=None if prefill is None else disaggregation(prefill),
        scaling=msgspec.UNSET if scaled is None else scaled,
        pool=msgspec.UNSET if pool is None else PoolReport(**pool._asdict()),
        digest=digest,
        wall_s=wall_s,
    )


def load_spread(
    done: Sequence[ServedRequest], workers: int, pulled: Mapping[RequestId, int], computed: Sequence[int] | None = None
) -> LoadSpread:
    """Over the workers from 0 up to so many, or to the last that served anything; `pulled` tokens were computed by
    others. `computed` as of `report`."""
    count = max([workers, *(each.worker + 1 for each in done)])
    requests, reckoned = [0] * count, [0] * count
    for each in done:
        requests[each.worker] += 1
        reckoned[each.worker] += each.prompt_tokens - each.cached_tokens - pulled.get(each.id, 0)
    return LoadSpread(requests=spread(requests), computed_tokens=spread(reckoned if computed is None else computed))


def hold_times(done: Sequence[ServedRequest]) -> HoldTimes:
    """Of what was served at the first attempt: others were chosen for again."""
    waits_us = [each.routed_us - each.arrival_us for each in done if each.attempts == 1]
    return HoldTimes(
        mean_ms=share(sum(waits_us), len(waits_us) * US_PER_MS),
        max_ms=max(waits_us, default=0) / US_PER_MS,
        share=share(sum(wait > 0 for wait in waits_us), len(waits_us)),
    )


def share(part: int, whole: int) -> float:
    """0 of nothing."""
    return part / whole if whole > 0 else 0.0
