"""What commands answer about a recording without decisions."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from api.cli.main import contrail
from core.errors import CallerError
from core.subjects import ROUTING
from tests.projections.facts import joined
from tests.replay.staged import KV, A, Stage


@pytest.mark.parametrize("words", [["verify"], ["bisect"], ["what-if"], ["what-if", "--closed-loop"]], ids=" ".join)
def test_a_recording_without_a_routing_stream(tmp_path: Path, words: list[str]) -> None:
    """Every command that asks for decisions says that there are none, in the same sentence."""
    it = Stage()
    it.say(KV, A, joined("left"))
    del it.frames[ROUTING]
    log = it.archived(tmp_path / "log")
    result = CliRunner().invoke(contrail, ["replay", *words, "--log", str(log)])
    assert isinstance(result.exception, CallerError)
    assert str(result.exception) == "this recording has no routing stream: no decision is in it"
