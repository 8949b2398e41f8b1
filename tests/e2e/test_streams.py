"""Answers that stream from simulated workers as users have them, while these are killed, stopped and drained."""

from __future__ import annotations

from pathlib import Path

from tests.chaos.streams import arguments, main


async def test_streams_survive_their_workers(tmp_path: Path) -> None:
    """The short form of `tests.chaos.streams`: right texts, a clear error without workers, nothing left of hang-ups."""
    faults = "--fault stopped --fault killed --fault drained --seconds 4 --every 1.5"
    findings = await main(
        arguments(f"--streams 24 --max-tokens 100 --step-ms 20 --hang-ups 100 {faults}".split()), tmp_path
    )
    assert not findings["violations"]
    assert set(findings["faults"]) == {"killed", "stopped", "drained"}
    assert findings["migrations"]
    assert all(findings["requests_hit"])
    assert findings["disturbed"]["whole"] >= 48
    assert findings["outage"]["during"]["errors"]
