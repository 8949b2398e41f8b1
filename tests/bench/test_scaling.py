"""The parts of `bench.scaling`: frontiers, and the rule that the planner is compared with."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from actors.planning.planner import CancelStart, DrainWorker, PeriodEnded, PlannerEvent, StartWorker, WorkerReady
from bench.scaling import Fleet, hours_at, measure, requests_within
from bench.scaling_rule import RateRule
from core.errors import CallerError
from projections.scaling.scale_settings import ScaleSettings
from tests.projections.scaling.demands import rolled


def test_frontiers_are_lines_between_runs() -> None:
    """And say nothing beyond them."""
    points = [(96.0, 15.0), (94.0, 12.0)]

    assert hours_at(95.0, points) == 13.5
    assert hours_at(94.0, points) == 12.0
    assert hours_at(96.5, points) is None
    assert hours_at(95.0, points[:1]) is None


def test_runs_are_named_by_kind_and_number() -> None:
    """Others are refused with the kinds that there are."""
    assert Fleet.parse("rate:1.3") == Fleet("rate", 1.3)
    for wrong in ("rate", "rate:x", "other:1", "static:-1"):
        with pytest.raises(CallerError, match="planner:NUMBER"):
            Fleet.parse(wrong)


def test_the_rate_rule_follows_the_last_minute() -> None:
    """20 a second at 2 a worker are ten; it shrinks behind its window, starting workers first."""
    rule = RateRule(2.0, ScaleSettings())

    def fed(*events: PlannerEvent) -> list[object]:
        return [command for event in events for command in rule.step(event, 0)]

    started = fed(PeriodEnded(rolled(1, 100), 4, 0))
    assert started == [StartWorker(number) for number in range(1, 7)]
    assert fed(WorkerReady(1, 0)) == []
    quiet = [PeriodEnded(rolled(number, 0), 5, 0) for number in range(2, 60)]
    stopped = fed(*quiet[:40])
    assert stopped[:5] == [CancelStart(number) for number in (6, 5, 4, 3, 2)]
    assert set(stopped[5:]) == {DrainWorker()}


def test_the_first_hours_of_a_trace_are_counted(tmp_path: Path) -> None:
    """By the times of its requests; without a bound all of them count, which 0 stands for."""
    trace = tmp_path / "day.jsonl"
    trace.write_text("".join(f'{{"timestamp": {at_ms}}}\n' for at_ms in (0, 1_799_999, 1_800_000, 3_600_000)))

    assert [requests_within(trace, hours) for hours in (0.5, 1.0, 2.0, 0.0)] == [2, 3, 4, 0]


def test_a_measured_fleet_needs_a_profile(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The sentence has the command that writes one."""
    options = argparse.Namespace(fleets="measured:95", profile=None, trace=tmp_path, quick=True, hours=0.0)
    with pytest.raises(SystemExit):
        next(measure(options))
    assert "`contrail profile --out FILE` writes" in capsys.readouterr().err
