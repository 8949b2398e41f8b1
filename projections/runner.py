"""Runner: tails every stream of the namespace and folds what comes, live or from the start alike.

State and position are one value (`projections.state`); nothing here holds a position of its own.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial

from core.errors import Unavailable
from core.ids import Epoch, StreamName, StreamSeq
from core.subjects import LOAD, ROUTING, is_kv
from projections.state import Applied, State
from streams.log import EventLog, Record, StreamState, Tail

RETRY_S = 0.5
"""Between tries while the log cannot be reached."""
MEASURE_EVERY_S = 1.0
"""Between looks at how far behind the fold is, which is also where new kv streams are found."""
LAG_EVENTS_MAX = 1000
"""A replica further behind than this is not ready."""

_logger = logging.getLogger(__name__)


class Runner:
    """Keeps a State up to date. `on_applied` hears of every record after it was folded."""

    def __init__(self, log: EventLog, state: State, on_applied: Callable[[Applied], None]) -> None:
        self.state = state
        self.lag: dict[StreamName, int] = {}
        """Messages not folded yet per stream, by the last look."""
        self.resets = 0
        """Streams whose history was replaced under us."""
        self._log = log
        self._on_applied = on_applied
        self._tails: dict[StreamName, Tail] = {}
        self._measured = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<Runner {self.state!r}, lag {self.lag_events}>"

    @property
    def lag_events(self) -> int:
        """Messages not folded yet, all streams together."""
        return sum(self.lag.values())

    @property
    def caught_up(self) -> bool:
        """The fold was close to the end of the log at the last look."""
        return self._measured.is_set() and self.lag_events <= LAG_EVENTS_MAX

    def start(self) -> None:
        """From now on the state follows the log; it waits for the log for as long as that takes."""
        self._task = asyncio.create_task(self._run(), name="runner")

    async def stop(self) -> None:
        """Nothing is folded after this returns."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        for tail in self._tails.values():
            await tail.stop()

    async def _run(self) -> None:
        while True:
            pause_s = RETRY_S
            try:
                await self._measure(await self._follow_all())
                pause_s = MEASURE_EVERY_S
            except Unavailable as error:
                _logger.warning("the log is away, the last known state serves: %s", error)
            except Exception:
                # whatever it was, other streams must go on being found and measured
                _logger.exception("a stream cannot be followed, trying again")
            await asyncio.sleep(pause_s)

    async def _follow_all(self) -> list[StreamName]:
        """Every stream that there is and that we know a fold for is followed; returns them."""
        streams = [stream for stream in await self._log.streams() if is_kv(stream) or stream in (LOAD, ROUTING)]
        for stream in streams:
            if stream not in self._tails:
                await self._follow(stream, (await self._log.state(stream)).epoch)
        return streams

    async def _follow(self, stream: StreamName, epoch: Epoch) -> None:
        folded = self.state.open(stream, epoch)
        if self.state.cursor[stream].epoch != epoch:  # made anew since it was opened
            self.state.reset(stream, epoch)
            folded = self.state.cursor[stream].seq
        reset = partial(self._on_reset, stream)
        self._tails[stream] = await self._log.tail(stream, StreamSeq(folded + 1), self._on_record, on_reset=reset)

    async def _measure(self, streams: list[StreamName]) -> None:
        lag = {stream: (await self._log.state(stream)).last_seq - self.state.cursor[stream].seq for stream in streams}
        self.lag = {stream: max(0, behind) for stream, behind in lag.items()}
        self._measured.set()

    def _on_record(self, record: Record) -> None:
        applied = self.state.apply(record.stream, record.seq, record.subject, record.payload)
        if applied is not None:
            self._on_applied(applied)

    def _on_reset(self, stream: StreamName, now: StreamState) -> None:
        _logger.error("the history of stream %s was replaced: folding it again from its start", stream)
        self.resets += 1
        self.state.reset(stream, now.epoch)
