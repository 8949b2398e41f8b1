"""Metrics of a planner's decisions and of its judge."""

from __future__ import annotations

from actors.metrics.planner_metrics import PlannerMetrics
from actors.planning.judge_process import JUDGED, JudgeProcess
from core.events.scale import LATE
from projections.scaling.scale_settings import ScaleSettings
from tests.projections.scaling.demands import decided, rolled


def test_bounds_out_of_reach_are_seen() -> None:
    """A prompt takes 98 ms. A decision without predictions says nothing of bounds."""
    metrics, demand = PlannerMetrics(), [rolled(number, 100) for number in range(60)]

    def read(kind: str) -> float | None:
        labels = {"model": "", "role": "", "kind": kind}
        return metrics.registry.get_sample_value("contrail_planner_attainment", labels)

    metrics.note(decided([rolled(1, 0)], ScaleSettings(), 0))
    assert (read("goal"), read("ceiling")) == (None, None)
    for settings, seen in [(ScaleSettings(), (0.95, 1)), (ScaleSettings(ttft_ms=90, attainment=99), (0, 0))]:
        metrics.note(decided(demand, settings, 20_000))
        assert (read("goal"), read("ceiling")) == seen


def test_outcomes_of_the_judge_are_read_at_each_scrape() -> None:
    """All of them from the start, so an alert sees the first late one."""
    metrics, judge = PlannerMetrics(), JudgeProcess(())
    metrics.watch_judge(judge.outcomes)

    def read(outcome: str) -> float | None:
        return metrics.registry.get_sample_value("contrail_planner_judgements", {"outcome": outcome})

    assert [read(outcome) for outcome in judge.outcomes] == [0, 0, 0, 0]
    judge.outcomes[JUDGED] += 2
    judge.outcomes[LATE] += 1
    assert (read(JUDGED), read(LATE), read("killed"), read("wrong")) == (2, 1, 0, 0)
