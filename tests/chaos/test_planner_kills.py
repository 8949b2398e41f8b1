"""Verdicts of `tests.chaos.start_kills` and `tests.chaos.planner_faults`, which take minutes; and a clock that is wrong
in planners alone."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.chaos.planner_faults import CLOCK_AHEAD_S, PlannerFaults, wrong_clock
from tests.chaos.start_kills import MOST, StartKills

PROVED: dict[str, Any] = {"decisions": 9, "verified": 9, "periods": 9, "periods_verified": 9}
KILLS: dict[str, Any] = {
    **PROVED,
    "served": 20,
    "kills_s": [0.0, 1.5, 4.0, 8.0, 16.5, 33.0, 63.5],
    "killed_once": 1,
    "workers_max": MOST,
    "orders": 5,
    "overdue": ["it does not come"],
    "replaced_s": 30.0,
    "turns": [1, 1],
}
FAULTS: dict[str, Any] = {
    **PROVED,
    "served": 20,
    "offset_ms": 1000 * CLOCK_AHEAD_S,
    "gaps_s": [20.0, 21.0, 12.0],
    "ordered_before": 3,
    "lost_order": 4,
    "ordered_after": 4,
    "ready_after": 4,
}


@pytest.mark.parametrize(
    "change",
    [
        {"failed": 1},
        {"workers_max": MOST + 1},
        {"turns": [1, 3]},
        {"overdue": []},
        {"overdue": [""]},
        {"lacked_s": 31.0},
        {"kills_s": [0.0]},
        {"kills_s": [float(second) for second in range(10)]},
        {"killed_once": 0},
        {"verified": 8},
        {"periods_verified": 8},
    ],
)
def test_kills_of_starts_are_good_only_with_all_evidence(change: dict[str, Any]) -> None:
    """Starts in a hurry, a worker that is not replaced, and a fleet that turns are faults."""
    assert StartKills(**KILLS).is_good
    assert not StartKills(**{**KILLS, **change}).is_good


@pytest.mark.parametrize(
    "change",
    [
        {"failed": 1},
        {"offset_ms": 0},
        {"gaps_s": [20.0, 21.0]},
        {"shrunk_behind_gaps": 1},
        {"late_periods": 1},
        {"ordered_before": 4},
        {"ordered_after": 3},
        {"ready_after": 3},
        {"verified": 8},
        {"periods_verified": 8},
    ],
)
def test_faults_are_good_only_with_all_evidence(change: dict[str, Any]) -> None:
    """A planner with a right clock, or whose order was not lost, shows nothing."""
    assert PlannerFaults(**FAULTS).is_good
    assert not PlannerFaults(**{**FAULTS, **change}).is_good


def test_the_clock_is_wrong_in_planners_alone(tmp_path: Path) -> None:
    """In processes that are started meanwhile."""

    def ahead_s(*words: str) -> float:
        command = [sys.executable, "-P", "-c", "import time; print(time.time_ns())", *words]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        return int(done.stdout) / 1e9 - time.time()

    before = os.environ.get("PYTHONPATH")
    with wrong_clock(tmp_path):
        assert ahead_s("planner", "--data", "x") == pytest.approx(CLOCK_AHEAD_S, abs=60)
        assert ahead_s("worker") == pytest.approx(0, abs=60)
    assert os.environ.get("PYTHONPATH") == before
