"""RestatementSchedule: a source restates itself so often that any kept log holds a restatement of it, and whenever its
stream lost messages.

Retention is measured: the stream keeps events for a time and up to a size. A stream that grows fast keeps them shorter
than for its time, and restatements come the more often.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from core.clock import Clock
from core.errors import PeerError
from core.ids import StreamName
from streams.log import EventLog, StreamState

CHECK_EVERY_S = 5.0
"""Period of the look at the stream, and the least time between two restatements."""
RESTATED_SHARE = 0.25
"""A restatement is due when so much of what the stream may keep, in bytes or in time, follows the last one."""

_logger = logging.getLogger(__name__)


class RestatementSchedule:
    """The schedule of one source in one stream; one task runs it."""

    def __init__(
        self,
        log: EventLog,
        stream: StreamName,
        source: str,
        clock: Clock,
        restate: Callable[[str], None],
        *,
        every_s: float,
    ) -> None:
        """`restate` is given the reason; `every_s` bounds the time between two restatements. The first comes at a
        moment of the id's own, so that sources do not restate all at once."""
        self._log = log
        self._stream = stream
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
        return f"<RestatementSchedule in {self._stream}, last at {self._restated_seq}>"

    async def run(self) -> None:
        """Restates when it is due, for ever."""
        while True:
            try:
                self.check(await self._log.state(self._stream))
            except PeerError as error:
                _logger.debug("stream %s cannot be looked at: %s", self._stream, error)
            await asyncio.sleep(min(CHECK_EVERY_S, self._every_ms / 1000))

    def check(self, now: StreamState) -> None:
        """The source has restated itself if that is due by the stream as it is now."""
        seen, self._seen = self._seen, now
        if seen is None:
            self._restated_seq = now.last_seq
            return
        reason = _loss(seen, now, self._restated_seq) or self._interval(now)
        if not reason:
            return
        self._wait = 1.0
        self._restated_seq, self._restated_ms = now.last_seq, self._clock.monotonic_ms()
        self._restate(reason)

    def _interval(self, now: StreamState) -> str:
        if self._clock.monotonic_ms() - self._restated_ms >= self._wait * self._every_ms:
            return "the quarter of the retention time is over"
        behind = (now.last_seq - self._restated_seq) * now.bytes / max(now.messages, 1)
        if now.bytes_max and behind >= self._wait * RESTATED_SHARE * now.bytes_max:
            return "a quarter of what the stream may keep was written since the last restatement"
        return ""


def _loss(before: StreamState, now: StreamState, restated_seq: int) -> str:
    """The reason to restate if the stream lost messages between two looks; empty if not."""
    if now.epoch != before.epoch:
        return "the stream was made anew"
    if now.last_seq < before.last_seq:
        return "the stream was rolled back"
    if now.deleted > before.deleted:
        return "messages were deleted inside the stream"
    if now.first_seq > restated_seq + 1:
        return "the log does not have the last restatement any more"
    return ""
