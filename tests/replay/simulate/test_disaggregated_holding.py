"""Where prompts are computed elsewhere, a simulation holds nobody, as `actors.router.dispatch` does not."""

from __future__ import annotations

from pathlib import Path

import pytest

from core.events.routing import RequestQueued
from core.settings import RoutingSettings
from core.subjects import ROUTING
from replay.recording.recording import Recording
from replay.simulate.options import Options
from replay.simulate.simulated_log import KEY
from replay.simulate.simulation import simulate
from tests.fixtures.passes import one_prompt_a_pass
from tests.replay.simulate.families import ENGINE, families

__all__ = ["one_prompt_a_pass"]


@pytest.mark.parametrize(("prefill_workers", "holds"), [(0, True), (1, False)])
def test_holding(tmp_path: Path, prefill_workers: int, holds: bool) -> None:
    """By the log."""
    options = Options(workers=2, prefill_workers=prefill_workers, engine=ENGINE, routing=RoutingSettings())
    simulate(options, families(60, 4_000), archive=tmp_path / "log")
    with Recording.open(tmp_path / "log", KEY) as recording:
        told = any(isinstance(event, RequestQueued) for _, said in recording.messages(ROUTING) for event in said.events)
    assert told == holds
