"""Metrics of a planner's judge."""

from __future__ import annotations

from actors.metrics.planner_metrics import PlannerMetrics
from actors.planning.judge_process import JUDGED, JudgeProcess
from core.events.scale import LATE


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
