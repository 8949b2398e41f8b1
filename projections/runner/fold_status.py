"""Status of a fold: how far it is behind the log (FoldLag), and the gaps that it found (GapLog).

The lag goes by the log's own numbers and clock. Each gap is logged once, whichever fold finds it.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Mapping, Sequence

from core.errors import Unavailable
from core.ids import StreamName, StreamSeq
from projections.folds.source_fold import ChainGap
from projections.folds.state import GAPS_KEPT, State
from streams.log import EventLog

_logger = logging.getLogger(__name__)


class FoldLag:
    """As it was at the last look. Owned by one event loop."""

    def __init__(self, log: EventLog, state: State) -> None:
        self.events: dict[StreamName, int] = {}
        """Messages not folded yet per stream."""
        self.away: frozenset[StreamName] = frozenset()
        """Streams that could not be asked, though others could."""
        self.ms = 0
        """Age difference between the oldest message that is not folded yet and the newest one, by the log's clock; 0 if
        all are folded."""
        self.folded = 0
        """Messages folded; the owner counts them."""
        self.events_per_s = 0.0
        """Messages folded between the last two looks."""
        self.earlier: dict[StreamName, tuple[StreamSeq, StreamSeq]] = {}
        """Streams in which the log has messages before the first one that was folded: its start in the log and in the
        fold."""
        self._log = log
        self._state = state
        self._refreshed: tuple[float, int] | None = None

    def __repr__(self) -> str:
        return f"<FoldLag {sum(self.events.values())} messages, {self.ms} ms>"

    async def refresh(self, streams: Sequence[StreamName]) -> None:
        """The numbers are those of now; a stream that cannot be asked keeps the one that it had, and is `away`.
        Unavailable if none can."""
        counts, failed = dict[StreamName, int](), dict[StreamName, Unavailable]()
        for stream in streams:
            try:
                held = await self._log.state(stream)
            except Unavailable as error:
                failed[stream] = error
            else:
                counts[stream] = max(0, held.last_seq - self._state.cursor[stream].seq)
                self._note_start(stream, held.first_seq)
        if failed and not counts:
            raise next(iter(failed.values()))
        self._note_away(failed)
        self.ms = await self._age_ms(counts)
        self.events = {stream: self.events[stream] for stream in failed if stream in self.events} | counts
        self._take_rate()

    def _note_start(self, stream: StreamName, first: StreamSeq) -> None:
        self.earlier.pop(stream, None)
        folded = self._state.begins.get(stream, StreamSeq(0))
        if first < folded:
            self.earlier[stream] = first, folded

    def _note_away(self, failed: Mapping[StreamName, Unavailable]) -> None:
        for stream in failed.keys() - self.away:
            _logger.warning("stream %s is away, what is known of it serves: %s", stream, failed[stream])
        self.away = frozenset(failed)

    async def _age_ms(self, counts: Mapping[StreamName, int]) -> int:
        cursor = {stream: self._state.cursor[stream].seq for stream in counts}
        behind = [stream for stream, count in counts.items() if count]
        if not behind:
            return 0
        newest = [await self._time_ms(stream, cursor[stream] + count) for stream, count in counts.items()]
        waiting = [await self._time_ms(stream, cursor[stream] + 1) for stream in behind]
        return max(0, max(newest) - min(filter(None, waiting), default=max(newest)))

    async def _time_ms(self, stream: StreamName, seq: int) -> int:
        """When the log stored it; 0 if it is not there."""
        record = await self._log.at(stream, StreamSeq(seq)) if seq else None
        return 0 if record is None else record.time_ms

    def _take_rate(self) -> None:
        now_s, before = asyncio.get_running_loop().time(), self._refreshed
        self._refreshed = (now_s, self.folded)
        if before is not None and now_s > before[0]:
            self.events_per_s = (self.folded - before[1]) / (now_s - before[0])


GAPS_LOGGED_MAX = 16
"""Bound of gaps that are logged one by one, as many are found at once in a log with its start cut off; the others are
counted."""


class GapLog:
    """Logs the gaps that the state found."""

    def __init__(self, state: State) -> None:
        self.count = 0
        """Gaps since the process began, each counted once."""
        self.seen = 0
        """Gaps that the state had found at the last refresh."""
        self._state = state
        self._logged: deque[ChainGap] = deque(maxlen=2 * GAPS_KEPT)

    def __repr__(self) -> str:
        return f"<GapLog {self.count} told>"

    def refresh(self) -> None:
        """Gaps that the state found since the last refresh are logged."""
        found = self._state.gaps_found - self.seen
        self.seen = self._state.gaps_found
        if not found:
            return
        self._log_gaps([gap for gap in list(self._state.gaps)[-found:] if gap not in self._logged])

    def restart(self) -> None:
        """The state has become another: all that it found is looked at."""
        self.seen = 0
        self.refresh()

    def _log_gaps(self, gaps: list[ChainGap]) -> None:
        self._logged.extend(gaps)
        self.count += len(gaps)
        for gap in gaps[:GAPS_LOGGED_MAX]:
            _logger.warning("%s", gap)
        if len(gaps) > GAPS_LOGGED_MAX:
            _logger.warning("… and %d more such gaps", len(gaps) - GAPS_LOGGED_MAX)
