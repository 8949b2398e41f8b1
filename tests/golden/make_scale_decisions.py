"""Writes `scale_vN.jsonl`: events of a planner whose decisions are by version N of the rules, the newest.

    python -m tests.golden.make_scale_decisions

It is history: `test_scale_decisions` makes these decisions again, and later versions must, too. It is written once for
each version of the rules, with the change that brings the version.
"""

from __future__ import annotations

import random
from pathlib import Path

import msgspec
from msgspec.structs import replace

from core.events.scale import SCALE_VERSION, DemandCell
from projections.scaling.scale_settings import ScaleSettings
from tests.actors.planning.planner_run import PlannerRun
from tests.projections.scaling.demands import cell, poisson

FOLDER = Path(__file__).parent
SETTINGS = ScaleSettings(
    ttft_ms=400, itl_ms=12, attainment=90, min=0, max=12, down_window_s=40, startup_s=20, zero_after_s=60
)
RATES = (10, 40, 130, 60, 15, 0, 1, 40, 60)
"""Arrivals of a period, one level after the other …"""
LONGER = (1, 1.2, 0.9, 1.15, 0.9, 1, 2, 1, 1)
"""… whose prompts are so much longer than others …"""
MISSED = (0, 0, 0.4, 0.3, 0, 0, 0, 1, 1)
"""… of which such a share misses the bounds of service …"""
TTFT_MS = (400, 400, 400, 400, 400, 400, 400, 30, 60)
"""… with that bound of the first token, which at last few or no prompts meet …"""
LEVEL_PERIODS = 18
"""… each for so many periods."""


def path_of(version: int) -> Path:
    """The file of that version."""
    return FOLDER / f"scale_v{version}.jsonl"


def lines() -> list[bytes]:
    """Events of one run: requests of several sizes, of whose prompts three quarters are cached. The fleet ends at zero,
    begins again, and at last meets prompts beyond its bounds."""
    random_, run = random.Random(1), PlannerRun(SETTINGS)
    for rate, longer, missed, ttft_ms in zip(RATES, LONGER, MISSED, TTFT_MS, strict=True):
        run.settings = replace(SETTINGS, ttft_ms=ttft_ms)
        for _ in range(LEVEL_PERIODS):
            arrivals = poisson(random_, rate)
            run.period(arrivals, _sizes(arrivals, longer), missed=round(missed * arrivals))
    return [msgspec.json.encode(event) for event in run.events]


def _sizes(arrivals: int, longer: float) -> tuple[DemandCell, ...]:
    """Most prompts are short and have long answers."""
    long = arrivals // 5
    sizes = (
        cell(arrivals - long, round(600 * longer), 150, round(2_400 * longer)),
        cell(long, round(3_000 * longer), 40, round(12_000 * longer)),
    )
    return tuple(each for each in sizes if each.count)


if __name__ == "__main__":
    path_of(SCALE_VERSION).write_bytes(b"\n".join(lines()) + b"\n")
