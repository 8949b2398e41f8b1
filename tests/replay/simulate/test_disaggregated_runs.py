"""Disaggregated simulations as a whole: their logs prove themselves, and their numbers add up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from core.settings import RoutingSettings
from core.subjects import JOBS
from projections.policy.prefill_choice import PREFILL_REASONS
from replay.explain.explain import explain
from replay.recording.recording import Recording
from replay.simulate.options import Options
from replay.simulate.report import PrefillFleet, PrefillVerdict, disaggregation, report
from replay.simulate.simulated_log import KEY
from replay.simulate.simulation import SimulationResult, simulate
from replay.simulate.workload import Arrival
from replay.verify.verify import verify
from tests.replay.simulate.families import ENGINE, families

COUNT = 150
ARRIVALS = families(COUNT, 4_000)
LONG = families(60, 100_000, output_tokens=100)
"""Six seconds of them, in which six workers end."""
ROUTING = RoutingSettings(policy="kv", remote_prefill_min_tokens=64, prefill_queue_max=3)
USUAL: dict[str, Any] = {"workers": 3, "prefill_workers": 2, "engine": ENGINE, "routing": ROUTING}
FAILING: dict[str, Any] = {"replicas": 2, "lag_ms": 50, "failures_per_hour": 3600}
HELD = RoutingSettings(policy="time", hold_max_ms=60, remote_prefill_min_tokens=64)


def run(
    path: Path | None = None,
    judged: list[PrefillVerdict] | None = None,
    arrivals: Sequence[Arrival] = ARRIVALS,
    **options: Any,
) -> SimulationResult:
    verdicts = [] if judged is None else judged
    return simulate(Options(**{**USUAL, **options}), arrivals, archive=path, on_verdict=verdicts.append)


@pytest.mark.parametrize(
    "options",
    [{}, {"arrivals": LONG, **FAILING}, {"routing": HELD}],
    ids=["usual", "workers that fail", "held"],
)
def test_the_log_proves_itself(tmp_path: Path, options: dict[str, Any]) -> None:
    """Decisions, verdicts, jobs and folds: all that is said fits, and every request was served."""
    verdicts: list[PrefillVerdict] = []
    found = run(tmp_path / "log", verdicts, **options)
    with Recording.open(tmp_path / "log", KEY) as recording:
        proved = verify(recording)

    assert proved.holds, proved.prefills.differences
    assert proved.proof.holds
    assert proved.gaps == []
    assert proved.verified == proved.decisions == sum(each.attempts for each in found.served)
    seen = proved.prefills
    assert (seen.verified, seen.different, seen.not_judged) == (len(verdicts), 0, {})
    assert (seen.jobs.different, seen.jobs.not_judged, seen.jobs.untold) == (0, 0, 0)
    assert seen.jobs.open == 0 or "failures_per_hour" in options  # the log ends before the word on who asked for it
    assert seen.jobs.pulled == sum(each.outcome == "pulled" for each in verdicts) > 20
    assert ("arrivals" in options) == any(each.attempts > 1 for each in found.served)
    assert [each.id for each in found.served if each.first_us < 0] == []


def test_numbers_add_up() -> None:
    """Each prompt token is cached, moved or computed, once; each verdict is one of the real ones, and there are
    several kinds."""
    verdicts: list[PrefillVerdict] = []
    result = run(judged=verdicts)
    served = result.served
    fleet = PrefillFleet(3, 2, 1000, verdicts)
    found, told = disaggregation(fleet), report(served, 3, prefill=fleet)

    assert told.disaggregation == found
    assert [each.output_tokens for each in served] == [each.output_tokens for each in families(COUNT)]
    assert sum(found.verdicts.values()) == len(verdicts) == COUNT
    assert found.verdicts.keys() <= set(PREFILL_REASONS)
    assert len(found.verdicts) >= 3
    pulled = fleet.pulled_tokens()
    for each in served:
        assert each.cached_tokens + pulled[each.id] <= each.prompt_tokens
        assert pulled[each.id] in {0, each.prompt_tokens - each.cached_tokens}
    own = sum(each.prompt_tokens - each.cached_tokens - pulled[each.id] for each in served)
    assert sum(told.load_spread.computed_tokens.per_worker) == own > 0
    assert told.load_spread.computed_tokens.per_worker == result.computed_tokens
    assert found.pulled_tokens == sum(pulled.values()) > 0
    assert found.remote_share == sum(tokens > 0 for tokens in pulled.values()) / COUNT
    assert (found.jobs, found.verdicts["long"]) == ({"pulled": found.jobs["pulled"]}, found.jobs["pulled"])
    assert found.pulled_bytes == 1000 * found.pulled_blocks
    assert found.queued_ms.mean < found.job_ms.mean
    assert min(found.computed_tokens.per_worker) > 0


def test_ten_runs_are_alike() -> None:
    """Results, verdicts and decisions; another seed fails other workers."""
    digests = Counter(run(arrivals=LONG, **FAILING).digest for _ in range(10))

    assert list(digests.values()) == [10]
    assert run(arrivals=LONG, **FAILING, seed=1).digest not in digests


def test_a_verdict_is_explained(tmp_path: Path) -> None:
    """With its job: who took it, and what came of it."""
    verdicts: list[PrefillVerdict] = []
    run(tmp_path / "log", verdicts)
    last = next(each for each in reversed(verdicts) if each.outcome == "pulled")
    with Recording.open(tmp_path / "log", KEY) as recording:
        (attempt,) = explain(recording, last.request).attempts

    assert attempt.prefill is not None
    assert attempt.job is not None
    assert (attempt.prefill.reason, attempt.prefill.outcome, attempt.job.outcome) == ("long", "pulled", "pulled")
    assert (attempt.job.blocks, attempt.job.tokens) == (last.blocks, last.pulled_tokens)
    assert [(it.outcome, it.used) for it in attempt.job.tries] == [("completed", True)]


def test_without_prefill_workers_there_are_no_jobs(tmp_path: Path) -> None:
    """Nor verdicts; the log has no stream of them."""
    verdicts: list[PrefillVerdict] = []
    run(tmp_path / "log", verdicts, prefill_workers=0)
    with Recording.open(tmp_path / "log", KEY) as recording:
        streams, seen = recording.streams, verify(recording).prefills

    assert verdicts == []
    assert JOBS not in streams
    assert seen.total == 0
