"""Two ways to lose history, seen by the harness: the others are run by `python -m tests.chaos.loss`."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.loss import run
from tests.chaos.loss_faults import faults


@pytest.mark.parametrize("name", ["deleted", "rolled-back-stopped"])
async def test_decisions_verify_again_and_the_loss_is_named(name: str, tmp_path: Path) -> None:
    """Within a minute; by `doctor`, `replicas` and `replay verify`, with the same sentences."""
    # heads are kept every 5 s by the replica whose turn it is: a loss before the first ones shows as a gap alone
    row = await run(faults()[name], tmp_path, before_s=12.0, window_s=4.0)
    assert row.recovered, row
    assert row.named == dict.fromkeys(("doctor", "replicas", "verify"), True), row.said
    assert row.agree, row.said
