"""Decode and prefill workers that a planner sizes together, in virtual time."""

from __future__ import annotations

from pathlib import Path

from core.events.kv import DECODE, PREFILL
from core.events.scale import ScaleDecided, ScaleEvent, role_of
from core.subjects import SCALE
from projections.scaling.scale_settings import ScaleSettings
from replay.recording.recording import Recording
from replay.simulate.options import Options
from replay.simulate.report import ScalingReport
from replay.simulate.setup import scaling_of
from replay.simulate.simulated_log import KEY
from replay.simulate.simulation import SimulationResult, simulate
from replay.simulate.workload import Arrival
from replay.verify.scale_checks import ScaleResult, verify_scale
from tests.replay.simulate.planned import ENGINE, arrivals

SETTINGS = ScaleSettings(startup_s=10, down_window_s=20, max=8)
LONG = arrivals((20, 2), (40, 12), (70, 2), prompt_blocks=40)
"""A prompt takes 256 ms, so twelve a second are the work of three prefill workers, and two of half a one."""


def planned(
    requests: list[Arrival], archive: Path, settings: ScaleSettings = SETTINGS, workers: int = 1, prefill: int = 1
) -> tuple[SimulationResult, ScalingReport]:
    """The run of a fleet that begins with so many workers of both roles, and its figures."""
    options = Options(workers=workers, prefill_workers=prefill, engine=ENGINE, planner=settings)
    found = simulate(options, requests, archive=archive)
    figures = scaling_of(options, found)
    assert figures is not None
    return found, figures


def messages(log: Path) -> list[list[ScaleEvent]]:
    """The events of each message of the planner."""
    with Recording.open(log, KEY) as recording:
        return [
            [event for event in message.events if isinstance(event, ScaleEvent)]
            for _, message in recording.messages(SCALE)
        ]


def decisions(log: Path, role: str) -> list[ScaleDecided]:
    """The decisions on workers of that role."""
    events = [event for message in messages(log) for event in message]
    return [event for event in events if isinstance(event, ScaleDecided) and role_of(event) == role]


def verified(log: Path) -> ScaleResult:
    """All decisions and periods, made and counted again."""
    with Recording.open(log, KEY) as recording:
        found = verify_scale(recording)
    assert found is not None
    return found


def test_long_prompts_size_the_prefill_workers(tmp_path: Path) -> None:
    """Steps of a decode worker bear them all, so decode workers stay."""
    found, figures = planned(LONG, tmp_path / "log")

    assert not any(each.why for each in found.served)
    prefill = [each.target for each in decisions(tmp_path / "log", PREFILL)]
    assert (prefill[0], prefill[-1]) == (1, 1)
    assert max(prefill) >= 3
    assert max(each.target for each in decisions(tmp_path / "log", DECODE)) == 1
    assert figures.starts == figures.stops >= 2
    result = verified(tmp_path / "log")
    assert result.verified == result.decisions == 2 * result.periods > 0
    assert result.periods_verified == result.periods
