"""When an engine that ends no step hangs, and when it only takes its time."""

from __future__ import annotations

from itertools import count

import pytest

from actors.worker import engine_watchdog
from actors.worker.engine_watchdog import ENGINE_STALL_CPU_S, ENGINE_STALL_S, wait_until_dead
from tests.actors.scripted_engine import ScriptedEngine

LOOK_S = 0.001
"""Between two looks; the bounds are as many looks as they have seconds."""
STUCK = (1, 2, 3)
"""What an engine has done that ends no step, though somebody waits."""


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time runs a thousand times as fast."""
    monkeypatch.setattr(engine_watchdog, "CHECK_EVERY_S", LOOK_S)
    monkeypatch.setattr(engine_watchdog, "ENGINE_STALL_S", ENGINE_STALL_S * LOOK_S)
    monkeypatch.setattr(engine_watchdog, "ENGINE_STALL_CPU_S", ENGINE_STALL_CPU_S * LOOK_S)


class Looks:
    """Counts how often an engine is looked at; `busy` is how many looks long it uses a quarter of a core."""

    def __init__(self, busy: int | None) -> None:
        self.engine = ScriptedEngine()
        self._used = count()
        self._busy = busy
        self.n = 0
        if busy is not None:
            self.engine.info = self.engine.info._replace(cpu_s=self._cpu_s)

    def evidence(self) -> object:
        self.n += 1
        return STUCK

    def _cpu_s(self) -> float:
        return min(next(self._used), self._busy or 0) * LOOK_S / 4


@pytest.mark.parametrize(
    ("busy", "stall_s", "looks"),
    [
        (None, None, ENGINE_STALL_S),
        (None, 200, 200),
        (0, None, ENGINE_STALL_S),
        (0, 20, 20),
        (100, None, 100 + ENGINE_STALL_S),
        (1000, None, ENGINE_STALL_CPU_S),
        (1000, 600, 600),
    ],
)
async def test_how_long_it_may_end_no_step(busy: int | None, stall_s: float | None, looks: float) -> None:
    """On a CPU an engine that computes has longer than one that does not, but not for ever; what the user says counts
    everywhere."""
    it = Looks(busy)
    reason = await wait_until_dead(it.engine, it.evidence, None if stall_s is None else stall_s * LOOK_S)
    assert reason.startswith("it hangs: ")
    assert looks < it.n <= looks + 3
