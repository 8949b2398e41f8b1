"""One poll of the log serves the clock of a process and all that follow the streams' extents."""

from __future__ import annotations

import pytest

from core.clock import ManualClock
from core.errors import Unavailable
from core.subjects import LOAD, ROUTING, kv_stream
from streams import log_watch
from streams.broker_clock import BrokerClock
from streams.log_watch import FIRST_POLLS, LogWatch
from streams.memory.memory_log import MemoryLog

KV = kv_stream(0)
AHEAD_MS = 5000


class Watched:
    """A log with a clock that is ahead of this process."""

    def __init__(self) -> None:
        self.local, self.corrected = ManualClock(1_000_000), 0
        self.clock = BrokerClock(self.local)
        self.log = MemoryLog("test", ManualClock(self.local.now_ms + AHEAD_MS))
        self.watch = LogWatch(self.log, self.clock, self._on_corrected)

    def _on_corrected(self) -> None:
        self.corrected += 1


async def test_a_poll_returns_extents_and_corrects_the_clock() -> None:
    it = Watched()
    await it.log.ensure([KV, LOAD, ROUTING])
    assert list(await it.watch.poll((KV,))) == [KV]
    assert (it.clock.is_known, it.corrected) == (False, 0)  # each leader has a clock of its own
    assert set(await it.watch.poll()) == {KV, LOAD, ROUTING}
    assert (it.clock.offset_ms, it.corrected) == (-AHEAD_MS, 1)
    assert {each.last_seq for each in (await it.watch.poll((ROUTING, KV))).values()} == {0}


async def test_the_start_polls_a_few_times_and_waits_for_no_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """It raises nothing while the log is away; later polls say so, and correct the clock when it is back."""
    monkeypatch.setattr(log_watch, "FIRST_TIMEOUT_S", 0.05)
    it = Watched()
    await it.log.ensure([ROUTING])
    it.log.away = True
    await it.watch.start()
    with pytest.raises(Unavailable):
        await it.watch.poll((ROUTING,))
    assert (it.clock.is_known, it.corrected) == (False, 0)
    it.log.away = False
    await it.watch.start()
    assert (it.clock.offset_ms, it.corrected) == (-AHEAD_MS, FIRST_POLLS)
