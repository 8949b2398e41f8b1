"""Scale-downs under streams, three of them; `python -m tests.chaos.scale_downs` makes fifty."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.chaos.scale_downs import ScaleDowns, deployment, shrink, smaller_targets
from tests.e2e.deployment import up

DOWNS = 3


async def test_no_stream_fails_or_differs_when_the_fleet_shrinks(tmp_path: Path) -> None:
    """Each has the text that its prompt has alone. Drains met streams, and every decision is made again."""
    async with up(tmp_path / "data", "-f", str(deployment(tmp_path))) as running:
        found = await shrink(running, DOWNS)
        assert (found.failed, found.wrong, found.failures) == (0, 0, [])
        assert found.is_good, found
        assert await smaller_targets(running) >= DOWNS


def test_a_run_is_good_only_with_all_its_evidence() -> None:
    """A run whose drains met no stream shows nothing."""
    good: dict[str, Any] = {"downs": 3, "answers": 20, "moved": 4, "decisions": 9, "verified": 9}
    assert ScaleDowns(**good).is_good
    for change in ({"failed": 1}, {"wrong": 1}, {"moved": 0}, {"answers": 0}, {"verified": 8}):
        assert not ScaleDowns(**{**good, **change}).is_good, change
