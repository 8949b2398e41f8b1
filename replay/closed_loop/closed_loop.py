"""Closed loop: the requests of a recording run again through simulated engines, under other settings.

What-if decides each recorded request again on the caches as they were recorded. The closed loop runs the requests: the
simulation's replicas decide with the real folds and rules, on engines as fast as the record shows them
(`replay.closed_loop.engine_fit`), with workers that come and go as they did. So caches, queues and times follow from
the scenario. The recorded settings run in the same way: their difference to the record is the error of the model, and
scenarios are compared with that run.

Equal recordings and equal questions give equal answers, but for the seconds that they take.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, NamedTuple

import msgspec

from actors.engines.simulated.simulated_settings import LINEAR, SimulatedSettings
from core.errors import CallerError
from core.ids import RequestId
from core.settings import RoutingSettings
from replay.closed_loop.engine_fit import SAMPLES_MIN, EngineSpeeds, engine_samples, fit_speeds
from replay.closed_loop.recorded_fleet import RecordedFleet, read_fleet
from replay.parallel import Progress, parallel_results
from replay.recording.recording import Recording
from replay.simulate.options import Options
from replay.simulate.recorded_requests import (
    RecordedRequest,
    RecordedRequests,
    find_follow_ups,
    read_requests,
    trace_request,
)
from replay.simulate.report import ServedRequest, SimulationReport, report
from replay.simulate.simulation import simulate
from replay.simulate.workload import Arrival, FollowUp, Pace, Trace
from replay.whatif.scenario import QUEUEING, Scenario


class Rerun(msgspec.Struct, frozen=True, kw_only=True):
    """The requests, run again in one way."""

    scenario: Scenario
    workers: tuple[str, ...]
    """Names of those that it had, in the order of its numbers per worker."""
    report: SimulationReport

    @property
    def label(self) -> str:
        """The scenario's label."""
        return self.scenario.label

    def better_than(self, other: Rerun) -> bool:
        """No more requests failed, and the mean time to first token is shorter."""
        return self.report.failed <= other.report.failed and self.report.ttft_ms.mean < other.report.ttft_ms.mean


class ModelError(msgspec.Struct, frozen=True, kw_only=True):
    """Difference between the simulated recorded run and the record."""

    hit_rate: float
    """Simulated less recorded."""
    ttft: float
    """Of the mean time to first token, as a share of the recorded one: 0.1 is a tenth too long."""
    e2e: float
    """The same of whole answers."""


class ClosedLoopBasis(msgspec.Struct, frozen=True, kw_only=True):
    """Part of the record that the runs rest on."""

    requests: int
    """That are counted …"""
    warm_up: int
    """… and that came before them, and are run so that caches fill."""
    follow: int
    """Of all, those that come after the end of an earlier one, as they did."""
    left_out: dict[str, int]
    cut_short: dict[str, int]
    """See `RecordedRequests`."""
    first_ms: int
    last_ms: int
    """When the first and the last one counted came, since 1970."""
    workers: tuple[str, ...]
    """Their names, in the order of the recorded numbers per worker; one number more is of workers that the record does
    not show."""
    lost: int
    """Lives of workers that ended without a farewell: they end at the same time in each run."""
    warm: bool
    """Caches held blocks when the record begins, though the runs begin with empty ones."""
    replicas: int
    """That decided, as many as were there at once."""
    policies: dict[str, int]
    """Recorded first decisions by the policy that made them."""
    settings: dict[str, Any]
    """Settings of most of the recorded decisions, used by the baseline."""
    other_settings: int
    """Decisions that were made by other ones."""
    engine: dict[str, Any]
    """The simulated engine that was fitted."""
    given: tuple[str, ...]
    """Which of its settings were given, not found in the record."""


class ClosedLoopResult(msgspec.Struct, frozen=True, kw_only=True):
    """The record's figures, the same requests simulated, and each scenario beside that."""

    basis: ClosedLoopBasis
    speeds: EngineSpeeds
    recorded: SimulationReport
    """The record's own figures, by the same measures."""
    baseline: Rerun
    """The recorded settings, simulated: what scenarios are to be compared with."""
    outcomes: list[Rerun]
    """The best first: fewest failed, then the shortest mean time to first token."""

    @property
    def best(self) -> Rerun | None:
        """The first one that is better than the baseline: fewer failures alone, with later first tokens, are not."""
        return next((each for each in self.outcomes if each.better_than(self.baseline)), None)

    @property
    def unread(self) -> list[str]:
        """Settings asked for that change nothing in a simulation without prefill workers."""
        named = dict.fromkeys(name for each in self.outcomes for name in each.scenario.unread)
        return sorted(name for name in named if name not in QUEUEING)

    @property
    def off(self) -> ModelError:
        """Error of the model: the baseline run against the record."""
        was, found = self.recorded, self.baseline.report
        return ModelError(
            hit_rate=found.hit_rate - was.hit_rate,
            ttft=_more(found.ttft_ms.mean, was.ttft_ms.mean),
            e2e=_more(found.e2e_ms.mean, was.e2e_ms.mean),
        )


def rank_reruns(reruns: Sequence[Rerun]) -> list[Rerun]:
    """The best first; equal ones as given."""
    return sorted(reruns, key=lambda each: (each.report.failed, each.report.ttft_ms.mean))


def _more(found: float, was: float) -> float:
    return found / was - 1 if was else 0.0


class RunRequests(NamedTuple):
    """Requests that all runs share."""

    arrivals: list[Arrival]
    follows: Mapping[RequestId, FollowUp]
    counted: frozenset[RequestId]
    """Those that reports are about."""


def run_all(
    requests: RunRequests, asked: Sequence[Options], jobs: int, progress: Progress
) -> dict[Options, SimulationReport]:
    """The report of each of these options, equal ones run once."""
    ways = list(dict.fromkeys(asked))
    with parallel_results(partial(_run_requests, requests), ways, jobs, progress) as reports:
        return dict(zip(ways, reports, strict=True))


def _run_requests(requests: RunRequests, options: Options, progress: Progress) -> SimulationReport:
    started_s = time.perf_counter()
    found = simulate(options, requests.arrivals, progress, follows=requests.follows)
    counted = [it for it in found.served if it.id in requests.counted]
    return report(counted, options.workers, found.digest, time.perf_counter() - started_s)


US_PER_MS = 1000
MAX_SEQS = 256
"""Requests that an engine runs at once by default: the record does not show it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedLoopOptions:
    """Options of a closed loop, beside the scenarios."""

    start: int = 1
    """Requests are counted with a first decision in the routing stream from this message …"""
    end: int | None = None
    """… up to this one, not included; those before are run, too."""
    model: str = ""
    """Empty if the recording has only one."""
    engine: Mapping[str, Any]
    """Settings of the simulated engine that are not to be as fitted."""
    open_arrivals: bool = False
    """All requests come at their recorded times, instead of after the answers that they followed."""
    seed: int = 0
    jobs: int = 1
    """Processes that share the runs."""


def closed_loop(
    recording: Recording,
    scenarios: Sequence[Scenario],
    asked: ClosedLoopOptions,
    progress: Progress = lambda _done, _of: None,
) -> ClosedLoopResult:
    """The recorded settings and each scenario, run. As long as a simulation of the requests for each, and some 0.1 ms
    per request once. CallerError if the recording cannot be run again, or for a worker that it does not know."""
    return _ClosedLoop(recording, asked).answer(scenarios, progress)


class _ClosedLoop:
    """Inputs that all runs share: requests, workers, engine and settings."""

    def __init__(self, recording: Recording, asked: ClosedLoopOptions) -> None:
        self._recording = recording
        self._asked = asked
        self._past = read_requests(recording, asked.model, asked.end)
        self._counted = [it for it in self._past.requests if it.seq >= asked.start]
        if not self._counted:
            raise CallerError("no request of this part of the record can be run again: none came there and ended")
        self._fleet = read_fleet(recording, self._past)
        self._speeds, self._engine = fitted_engine(self._past, self._fleet, asked.engine)
        self._follows = {} if asked.open_arrivals else find_follow_ups(self._past.requests)
        self._replicas = sorted({it.replica for it in self._past.requests})
        self._settings = _recorded_settings(recording, self._counted)
        self._routing = self._settings.most_common(1)[0][0]

    def answer(self, scenarios: Sequence[Scenario], progress: Progress) -> ClosedLoopResult:
        asked = [Scenario(), *scenarios]
        options = [self._options(scenario) for scenario in asked]
        requests = RunRequests(
            arrivals=list(self._trace().arrivals(Pace(), self._past.block_size)),
            follows=self._follows,
            counted=frozenset(it.id for it in self._counted),
        )
        found = run_all(requests, options, self._asked.jobs, progress)
        baseline, *outcomes = [
            Rerun(scenario=scenario, workers=tuple(self._workers(scenario).names), report=found[each])
            for scenario, each in zip(asked, options, strict=True)
        ]
        return ClosedLoopResult(
            basis=self._basis(),
            speeds=self._speeds,
            recorded=self._recorded(),
            baseline=baseline,
            outcomes=rank_reruns(outcomes),
        )

    def _trace(self) -> Trace:
        asked = [trace_request(it, self._past.start_ms) for it in self._past.requests]
        return Trace(asked, lambda it, _block_size: it.content)

    def _workers(self, scenario: Scenario) -> RecordedFleet:
        names = self._recording.names
        return self._fleet.without(frozenset().union(*(names.workers_called(each) for each in scenario.without)))

    def _options(self, scenario: Scenario) -> Options:
        workers = self._workers(scenario)
        return Options(
            workers=len(workers.names),
            engine=self._engine,
            routing=RoutingSettings.parse({**self._routing.to_mapping(), **scenario.settings}),
            replicas=self._past.replicas,
            lag_ms=scenario.delay_ms,
            stays=workers.worker_lives(self._past, as_engine="capacity_blocks" in self._asked.engine),
            seed=self._asked.seed,
        )

    def _recorded(self) -> SimulationReport:
        served = [_served(it, self._past.start_ms, self._fleet, self._replicas) for it in self._counted]
        return report(served, len(self._fleet.names))

    def _basis(self) -> ClosedLoopBasis:
        counted = self._counted
        return ClosedLoopBasis(
            requests=len(counted),
            warm_up=len(self._past.requests) - len(counted),
            follow=len(self._follows),
            left_out=self._past.left_out,
            cut_short=self._past.cut_short,
            first_ms=counted[0].arrival_ms,
            last_ms=counted[-1].arrival_ms,
            workers=tuple(self._fleet.names),
            lost=sum(life.lost for life in self._fleet.lives),
            warm=self._fleet.warm,
            replicas=self._past.replicas,
            policies=dict(sorted(Counter(it.routed.policy for it in counted).items())),
            settings=self._routing.to_mapping(),
            other_settings=len(counted) - self._settings[self._routing],
            engine=asdict(self._engine),
            given=tuple(sorted(self._asked.engine)),
        )


def fitted_engine(
    past: RecordedRequests, workers: RecordedFleet, given: Mapping[str, Any]
) -> tuple[EngineSpeeds, SimulatedSettings]:
    """An engine as fast as the recorded ones, but for the settings given. CallerError if the record tells too little,
    or for a setting that cannot be."""
    usual = SimulatedSettings.parse(
        {
            "block_size": past.block_size,
            "capacity_blocks": workers.capacity_blocks,
            "context_max": workers.context_max,
            "max_seqs": MAX_SEQS,
            "eos_every": 0,
            **given,
        }
    )
    if usual.block_size != past.block_size:
        raise CallerError(f"block_size: the record has blocks of {past.block_size} tokens, and no others can be made")
    found = fit_speeds(engine_samples(past.timings), usual.batched_tokens_max)
    if not found.prefill_samples and usual.timing == LINEAR and "prefill_us_per_token" not in given:
        raise CallerError(
            f"the record has fewer than {SAMPLES_MIN} first tokens to learn the speed of its engines: give it with "
            "--engine prefill_us_per_token=N,decode_us_per_step=N"
        )
    fitted = {
        "prefill_us_per_pass": round(found.prefill_us_per_pass),
        "prefill_us_per_token": found.prefill_us_per_token,
        "decode_us_per_step": max(1, round(found.decode_us_per_step)),
        "decode_us_per_context_token": found.decode_us_per_context_token,
    }
    return found, SimulatedSettings.parse({**asdict(usual), **fitted, **given})


def _recorded_settings(recording: Recording, counted: Sequence[RecordedRequest]) -> Counter[RoutingSettings]:
    """Settings of the first decisions, counted; where the record lacks them, the defaults with the recorded policy."""
    found: Counter[RoutingSettings] = Counter()
    for it in counted:
        settings = recording.replicas.settings(it.replica, it.routed.settings_revision, it.seq)
        found[settings or RoutingSettings.parse({"policy": it.routed.policy})] += 1
    return found


def _served(it: RecordedRequest, start_ms: int, workers: RecordedFleet, replicas: Sequence[str]) -> ServedRequest:
    """The recorded request in the form of a simulated one."""
    first = it.served
    assert first is not None
    last = it.timings[-1]
    place = workers.place_of(last.worker)
    return ServedRequest(
        id=it.id,
        arrival_us=(it.arrival_ms - start_ms) * US_PER_MS,
        routed_us=(last.sent_ms - start_ms) * US_PER_MS,
        first_us=(first.first_ms - start_ms) * US_PER_MS,
        end_us=(last.end_ms - start_ms) * US_PER_MS,
        worker=place if place >= 0 else len(workers.names),
        replica=replicas.index(it.replica),
        prompt_tokens=it.routed.prompt_tokens,
        cached_tokens=first.cached_tokens,
        predicted_tokens=it.predicted_tokens,
        output_tokens=it.output_tokens,
        attempts=len(it.timings),
    )
