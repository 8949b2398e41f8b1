"""A reader that follows a stream of the log in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from core.errors import Unavailable
from core.ids import Epoch, StreamSeq
from streams.log import Record, StreamState
from streams.memory_stream import MemoryStream

DELIVERED_PER_TURN_MAX = 256
"""Records that a tail delivers before other tasks have their turn."""


class MemoryTail:
    """Delivers from one stream on the event loop; see `streams.log.Tail`.

    Before each delivery it asks what `JetStreamTail` asks when it opens and every few seconds: whether the history
    that it has read is still there.
    """

    def __init__(
        self,
        found: Callable[[], MemoryStream],
        start: StreamSeq,
        on_record: Callable[[Record], None],
        on_reset: Callable[[StreamState], None] | None,
        after: Record | None,
    ) -> None:
        self.stopped = False
        self._found = found
        self._next = max(int(start), 1)
        self._on_record = on_record
        self._on_reset = on_reset
        self._epoch: Epoch = found().epoch
        self._last = after
        """The last that was delivered."""
        self._scheduled = False

    def __repr__(self) -> str:
        return f"<MemoryTail next {self._next}>"

    async def stop(self) -> None:
        self.stopped = True

    def kick(self) -> None:
        """What can be delivered will be, in a later turn of the loop."""
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._deliver)

    def _deliver(self) -> None:
        self._scheduled = False
        if self.stopped:
            return
        try:
            stream = self._found()
        except Unavailable:  # whoever brings the log back kicks us
            return
        self._check_history(stream)
        records = stream.from_seq(self._next, DELIVERED_PER_TURN_MAX)
        for record in records:
            self._next = record.seq + 1
            self._last = record
            self._on_record(record)
        if len(records) == DELIVERED_PER_TURN_MAX:
            self.kick()

    def _check_history(self, stream: MemoryStream) -> None:
        state = stream.state()
        if state.epoch == self._epoch and state.last_seq >= self._next - 1 and self._holds_last(stream, state):
            return
        self._epoch = state.epoch
        self._next = state.first_seq
        self._last = None
        if self._on_reset is not None:
            self._on_reset(state)

    def _holds_last(self, stream: MemoryStream, state: StreamState) -> bool:
        """Whether the last record delivered is there as it was, unless retention took it."""
        return self._last is None or self._last.seq < state.first_seq or stream.at(self._last.seq) == self._last
