"""RestatementSchedule: a source restates itself so often that any kept log holds a restatement of it, and whenever its
stream lost messages.

Retention is measured: the stream keeps events for a time and up to a size. A stream that grows fast keeps them shorter
than for its time, and restatements come the more often.
"""

from __future__ import annotations

from collections.abc import Callable

from core.clock import Clock
from streams.log import DELETED, REMADE, ROLLED_BACK, StreamState

RESTATED_SHARE = 0.25
"""A restatement is due when so much of what the stream may keep, in bytes or in time, follows the last one."""
_REASONS = {
    REMADE: "the stream was made anew",
    ROLLED_BACK: "the stream was rolled back",
    DELETED: "messages were deleted inside the stream",
}


class RestatementSchedule:
    """The schedule of one source in one stream. Its owner looks at the stream again and again."""

    def __init__(self, source: str, clock: Clock, restate: Callable[[str], None], *, every_s: float) -> None:
        """`restate` is given the reason; `every_s` bounds the time between two restatements. The first comes at a
        moment of the id's own, so that sources do not restate all at once."""
        self._clock = clock
        self._restate = restate
        self._every_ms = every_s * 1000
        self._wait = int(source, 16) / 2**64
        """The part of an interval until the next restatement that no loss calls for; 1 after the first."""
        self._seen: StreamState | None = None
        """The stream at the last look."""
        self._restated_seq = 0
        """The stream's end before the last restatement."""
        self._restated_ms = clock.monotonic_ms()

    def __repr__(self) -> str:
        return f"<RestatementSchedule, last at {self._restated_seq}>"

    def check(self, now: StreamState) -> None:
        """The source has restated itself if that is due by the stream as it is now."""
        seen, self._seen = self._seen, now
        if seen is None:
            self._restated_seq = now.last_seq
            return
        loss = now.loss_since(seen.epoch, seen.last_seq, seen.deleted)
        reason = _REASONS[loss] if loss else self._interval(now)
        if not reason:
            return
        self._wait = 1.0
        self._restated_seq, self._restated_ms = now.last_seq, self._clock.monotonic_ms()
        self._restate(reason)

    def _interval(self, now: StreamState) -> str:
        if now.first_seq > self._restated_seq + 1:
            return "the log does not have the last restatement any more"
        if self._clock.monotonic_ms() - self._restated_ms >= self._wait * self._every_ms:
            return "the quarter of the retention time is over"
        behind = (now.last_seq - self._restated_seq) * now.bytes / max(now.messages, 1)
        if now.bytes_max and behind >= self._wait * RESTATED_SHARE * now.bytes_max:
            return "a quarter of what the stream may keep was written since the last restatement"
        return ""
