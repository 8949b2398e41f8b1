"""Lag: how far a fold is behind the log, by the log's own numbers and clock."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from core.ids import StreamName, StreamSeq
from projections.state import State
from streams.log import EventLog


class Lag:
    """As it was at the last look. Owned by one event loop."""

    def __init__(self, log: EventLog, state: State) -> None:
        self.events: dict[StreamName, int] = {}
        """Messages not folded yet per stream."""
        self.ms = 0
        """How much older, by the log's clock, the oldest message not folded yet is than the newest; 0 if none is."""
        self.folded = 0
        """Messages folded, counted by whoever folds them."""
        self.events_per_s = 0.0
        """Messages folded between the last two looks."""
        self._log = log
        self._state = state
        self._looked: tuple[float, int] | None = None

    def __repr__(self) -> str:
        return f"<Lag {sum(self.events.values())} messages, {self.ms} ms>"

    async def look(self, streams: Sequence[StreamName]) -> None:
        """The numbers are those of now. Unavailable if the log cannot be asked."""
        events = {}
        for stream in streams:
            last = (await self._log.state(stream)).last_seq
            events[stream] = max(0, last - self._state.cursor[stream].seq)
        self.events = events
        self.ms = await self._age_ms()
        self._take_rate()

    async def _age_ms(self) -> int:
        cursor = {stream: self._state.cursor[stream].seq for stream in self.events}
        behind = [stream for stream, count in self.events.items() if count]
        if not behind:
            return 0
        newest = [await self._time_ms(stream, cursor[stream] + count) for stream, count in self.events.items()]
        waiting = [await self._time_ms(stream, cursor[stream] + 1) for stream in behind]
        return max(0, max(newest) - min(filter(None, waiting), default=max(newest)))

    async def _time_ms(self, stream: StreamName, seq: int) -> int:
        """When the log stored it; 0 if it is not there."""
        record = await self._log.at(stream, StreamSeq(seq)) if seq else None
        return 0 if record is None else record.time_ms

    def _take_rate(self) -> None:
        now_s, before = asyncio.get_running_loop().time(), self._looked
        self._looked = (now_s, self.folded)
        if before is not None and now_s > before[0]:
            self.events_per_s = (self.folded - before[1]) / (now_s - before[0])
