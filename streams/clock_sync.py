"""ClockSync: keeps a BrokerClock right by exchanges with the leader of one stream, the same for all processes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from core.errors import ContrailError
from core.subjects import ROUTING
from streams.broker_clock import BrokerClock
from streams.log import EventLog

SAMPLE_EVERY_S = 5.0
"""Two clocks that drift apart by 1000 millionths are off by 5 ms then."""
FIRST_SAMPLES = 3
"""Exchanges at once at the start: the shortest round trip bounds the error."""
FIRST_TIMEOUT_S = 1.0
"""Bound of these: a start does not wait for a log that is away."""


class ClockSync:
    """`on_corrected` is called after each sample. In a cluster each stream's leader has its own clock: the reference is
    that of the routing stream."""

    def __init__(self, log: EventLog, clock: BrokerClock, on_corrected: Callable[[], None] = lambda: None) -> None:
        self._log = log
        self._clock = clock
        self._on_corrected = on_corrected

    def __repr__(self) -> str:
        return f"<ClockSync {self._clock!r}>"

    async def start(self) -> None:
        """The first samples are taken, unless the log is away."""
        try:
            async with asyncio.timeout(FIRST_TIMEOUT_S):
                for _ in range(FIRST_SAMPLES):
                    await self._sample()
        except (ContrailError, TimeoutError):
            pass  # `run` goes on

    async def run(self) -> None:
        """Takes samples for ever."""
        while True:
            await asyncio.sleep(SAMPLE_EVERY_S)
            try:
                await self._sample()
            except ContrailError:
                continue  # the log is away: the clocks drift little meanwhile

    async def _sample(self) -> None:
        sent_us = self._clock.monotonic_us()
        broker_us = await self._log.time_us(ROUTING)
        if broker_us:
            self._clock.add(sent_us, broker_us, self._clock.monotonic_us())
            self._on_corrected()
