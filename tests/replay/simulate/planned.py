"""Small runs with a planner: prompts of their own on a linear engine, at rates that change."""

from __future__ import annotations

from pathlib import Path

from actors.engines.simulated.simulated_settings import SimulatedSettings
from core.ids import RequestId
from core.prompt import hashes_to_bytes
from projections.scaling.scale_settings import ScaleSettings
from replay.simulate.options import Options
from replay.simulate.report import ScalingReport
from replay.simulate.setup import scaling_of
from replay.simulate.simulation import SimulationResult, simulate
from replay.simulate.workload import Arrival

ENGINE = SimulatedSettings(
    block_size=64,
    capacity_blocks=8_000,
    context_max=64_000,
    max_seqs=64,
    prefill_us_per_token=100,
    decode_us_per_step=10_000,
    decode_us_per_context_token=0.05,
)
"""A prompt of 1 280 tokens takes 128 ms."""
PROMPT_BLOCKS = 20
OUTPUT_TOKENS = 50
SETTINGS = ScaleSettings(startup_s=10, down_window_s=20, max=8)
US_PER_S = 1_000_000


def arrivals(
    *stages: tuple[int, int], prompt_blocks: int = PROMPT_BLOCKS, output: int = OUTPUT_TOKENS
) -> list[Arrival]:
    """Stages of so many seconds with so many requests a second, one after another; no two prompts begin alike."""
    found: list[Arrival] = []
    start_us = 0
    for seconds, per_s in stages:
        for number in range(seconds * per_s):
            first = 1 + len(found) * prompt_blocks
            found.append(
                Arrival(
                    id=RequestId(f"req-{len(found):06}"),
                    at_us=start_us + number * US_PER_S // per_s,
                    prompt_tokens=prompt_blocks * ENGINE.block_size,
                    hashes=hashes_to_bytes(range(first, first + prompt_blocks)),
                    output_tokens=output,
                )
            )
        start_us += seconds * US_PER_S
    return found


def planned(
    requests: list[Arrival], settings: ScaleSettings = SETTINGS, workers: int = 1, archive: Path | None = None
) -> tuple[SimulationResult, ScalingReport]:
    """The run of a fleet that begins with so many workers, and its figures."""
    options = Options(workers=workers, engine=ENGINE, planner=settings)
    found = simulate(options, requests, archive=archive)
    figures = scaling_of(options, found)
    assert figures is not None
    return found, figures
