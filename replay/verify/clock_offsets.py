"""Clock offsets: bounds on how far the times in each source's messages are off the broker's, from the log alone.

1. A message is sealed before it is stored, and after the message before it was stored: a source has one append in
   flight. So the broker's clock less the source's lies between (stored before - sent) and (stored - sent).
2. The bounds of WINDOW messages in a row are intersected. Bounds that contradict each other show a step of a clock, and
   begin another window.
3. The offset reported of a source is that of the window that is surely furthest off. It excuses no difference.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import msgspec

from core.ids import SourceId, StreamName, StreamSeq
from streams.archive.archive_format import Row
from streams.archive.message_envelope import Envelope

WINDOW = 64
"""Messages whose bounds are intersected: few enough that clocks drift little meanwhile."""
OFFSETS_KEPT = 100
"""Of the sources that are furthest off."""
OFFSET_REPORTED_MS = 100
"""An offset that is surely as large is reported in text."""


class ClockOffset(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds on the broker's clock less the times in a source's messages; above 0 the source is behind."""

    source: SourceId
    stream: StreamName
    seq: StreamSeq
    """The last message of the window."""
    least_ms: int
    most_ms: int
    steps: int
    """Times that two windows contradict each other: a clock stepped."""

    @property
    def sure_ms(self) -> int:
        """The size of the least offset that the bounds allow."""
        return max(self.least_ms, -self.most_ms, 0)


@dataclass(slots=True)
class _Window:
    """The bounds of one source since the window began."""

    seq: StreamSeq
    stored_ms: int
    """When its last message was stored."""
    least_ms: int
    most_ms: int
    messages: int = 1
    steps: int = 0
    furthest: tuple[int, int, int, int] = (-1, 0, 0, 0)
    """Sure offset, bounds and last message of the window before that is furthest off."""

    def close(self) -> None:
        """The window is compared with those before."""
        sure_ms = max(self.least_ms, -self.most_ms, 0)
        self.furthest = max(self.furthest, (sure_ms, self.least_ms, self.most_ms, self.seq))


class ClockOffsetWalk:
    """Takes one stream's messages in order."""

    def __init__(self, stream: StreamName) -> None:
        self._stream = stream
        self._windows: dict[str, _Window] = {}

    def __repr__(self) -> str:
        return f"<ClockOffsetWalk of {self._stream}: {len(self._windows)} sources>"

    def take(self, row: Row, message: Envelope) -> None:
        """The times of the next message of a source's own chain narrow the bounds of its offset."""
        sent_ms, stored_ms = message.sent_ms, row.time_ms
        most_ms = stored_ms - sent_ms
        window = self._windows.get(message.source)
        if window is None:
            self._windows[message.source] = _Window(row.seq, stored_ms, most_ms, most_ms)
            return
        least_ms = window.stored_ms - sent_ms
        # compared without calls: this runs for every message
        low = window.least_ms if least_ms < window.least_ms and window.messages > 1 else least_ms
        high = window.most_ms if window.most_ms < most_ms else most_ms  # noqa: FURB136
        if window.messages >= WINDOW or low > high + 1:
            if window.messages == 1:
                window.least_ms = least_ms  # the first message has no bound below
            window.steps += low > high + 1
            window.close()
            window.messages, low, high = 1, least_ms, most_ms
        window.messages += 1
        window.least_ms, window.most_ms = low, high
        window.stored_ms, window.seq = stored_ms, row.seq

    def offsets(self) -> Iterator[ClockOffset]:
        """One of each source with two messages or more."""
        for source, window in self._windows.items():
            if window.messages > 1:
                window.close()
                _, least_ms, most_ms, seq = window.furthest
                yield ClockOffset(
                    source=SourceId(source),
                    stream=self._stream,
                    seq=StreamSeq(seq),
                    least_ms=least_ms,
                    most_ms=most_ms,
                    steps=window.steps,
                )


def furthest(offsets: Iterable[ClockOffset]) -> list[ClockOffset]:
    """The OFFSETS_KEPT sources that are surely furthest off, the furthest first."""
    return sorted(offsets, key=lambda each: (-each.sure_ms, each.stream, each.source))[:OFFSETS_KEPT]
