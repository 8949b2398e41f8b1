"""LogWatch: one process polls the extents of streams, and follows the broker's clock by the answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from core.errors import ContrailError
from core.ids import StreamName
from core.subjects import ROUTING
from streams.broker_clock import BrokerClock
from streams.log import EventLog, Extents, StreamState

POLL_EVERY_S = 5.0
"""Period of a replica's polls. Two clocks that drift apart by 1000 millionths are off by 5 ms then."""
WORKER_POLL_EVERY_S = 15.0
"""Period of a worker's polls: each is two requests, and costs the broker some 0.2 ms of CPU."""
FIRST_POLLS = 3
"""Polls at once at the start: the shortest round trip bounds the error of the clock."""
FIRST_TIMEOUT_S = 1.0
"""Bound of these: a start does not wait for a log that is away."""


class LogWatch:
    """In a cluster each stream's leader has its own clock: the reference is that of the routing stream."""

    def __init__(self, log: EventLog, clock: BrokerClock, on_corrected: Callable[[], None] = lambda: None) -> None:
        """`on_corrected` is called when the clock has followed the broker's."""
        self._log = log
        self._clock = clock
        self._on_corrected = on_corrected

    def __repr__(self) -> str:
        return f"<LogWatch {self._clock!r}>"

    async def start(self) -> None:
        """The broker's time is known, unless the log is away."""
        try:
            async with asyncio.timeout(FIRST_TIMEOUT_S):
                for _ in range(FIRST_POLLS):
                    await self.poll((ROUTING,))
        except (ContrailError, TimeoutError):
            pass  # later polls go on

    async def poll(self, streams: Iterable[StreamName] | None = None) -> Extents:
        """The extents of these streams now, or of all that exist."""
        found = dict[StreamName, StreamState]()
        for stream in await self._log.streams() if streams is None else streams:
            sent_us = self._clock.monotonic_us()
            found[stream] = state = await self._log.state(stream)
            if stream == ROUTING and state.time_us:
                self._clock.add(sent_us, state.time_us, self._clock.monotonic_us())
                self._on_corrected()
        return found
