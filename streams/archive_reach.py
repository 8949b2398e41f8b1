"""Reach: the oldest and the newest message of each stream that the decisions of a range rest on.

A decision is written a while after it was made, at a cursor that lags behind the log: what it rests on may lie before
the range, and by the clocks of several servers behind it.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import aclosing

import msgspec

from core.ids import Epoch, StreamName, StreamSeq
from core.subjects import ROUTING
from streams.log import EventLog


class Reach:
    """See the module's text; of nothing read yet."""

    def __init__(self, epochs: Mapping[StreamName, Epoch]) -> None:
        """Cursors in other epochs of a stream do not count."""
        self.lows: dict[StreamName, int] = {}
        self.highs: dict[StreamName, int] = {}
        self._epochs = epochs

    def __repr__(self) -> str:
        return f"<Reach from {self.lows} to {self.highs}>"

    async def read(self, log: EventLog, start: StreamSeq, end: int) -> None:
        """Those of the routing stream from `start` up to `end` (not included) count too; a microsecond or two each."""
        if start >= end:
            return
        async with aclosing(log.read(ROUTING, start)) as records:  # type: ignore[type-var]
            async for record in records:
                if record.seq >= end:
                    return
                self._note(record.payload)

    def _note(self, payload: bytes) -> None:
        try:
            message = _message.decode(payload)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return  # JSON, or no message of ours: neither holds a decision
        for event in message.events:
            for stream, (epoch, seq) in event.cursor.items():
                if self._epochs.get(stream) == epoch:
                    self.lows[stream] = min(self.lows.get(stream, seq), seq)
                    self.highs[stream] = max(self.highs.get(stream, seq), seq)


class _Event(msgspec.Struct):
    """Of a decision, or a refusal, the cursor that it was made at; other events have none."""

    cursor: dict[StreamName, tuple[int, int]] = {}


class _Message(msgspec.Struct):
    events: list[_Event]


_message: msgspec.msgpack.Decoder[_Message] = msgspec.msgpack.Decoder(_Message)
