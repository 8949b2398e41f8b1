"""Outbox: a source's chain that an event loop drives: what is put stands in the log as soon as the log takes it.

The chain's time is the loop's, so that its timers come at their times: uvloop counts whole milliseconds.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from core.clock import Clock
from core.errors import Unavailable, WrongSequence
from core.events import Event
from core.ids import SourceId, StreamName
from core.machine import TICK, Tick
from streams.log import EventLog, Record
from streams.outbox.backlog import Backlog, OutboxLimits
from streams.outbox.source_chain import (
    DEFAULT_LIMITS,
    Acknowledged,
    Append,
    AskRestatement,
    ChainEvent,
    Close,
    Finish,
    LastRead,
    LogFailed,
    ReadLast,
    Restated,
    SourceChain,
    Start,
    Superseded,
)

logger = logging.getLogger(__name__)


class Outbox(SourceChain):
    """Appends one source's events in order, for as long as it takes. One task runs it."""

    def __init__(
        self,
        log: EventLog,
        stream: StreamName,
        subject: str,
        source: SourceId,
        chain_key: bytes,
        clock: Clock,
        *,
        on_overflow: Callable[[], Sequence[Event]],
        on_superseded: Callable[[Record], None],
        limits: OutboxLimits = DEFAULT_LIMITS,
        backlog: Backlog | None = None,
    ) -> None:
        super().__init__(subject, source, chain_key, limits, backlog)
        self._log = log
        self._stream = stream
        self._clock = clock
        self._on_overflow = on_overflow
        self._on_superseded = on_superseded
        self._loop: asyncio.AbstractEventLoop | None = None
        self._request: Append | ReadLast | None = None
        """The command that the chain waits for."""
        self._alarm: asyncio.Future[None] | None = None
        """Wakes the task while it waits for the chain's time."""
        self._changed = asyncio.Event()

    @property
    def away_s(self) -> float:
        """See `SourceChain.away_us`."""
        return self.away_us(self._now_us()) / 1_000_000

    def put(self, event: Event) -> None:
        """The event waits to be appended, or is counted as dropped."""
        due_us = self.due_us
        self._put(event, self._now_us())
        if self.due_us != due_us:
            self._wake()

    def finish(self, event: Event) -> None:
        """The last event is put: where others are dropped, it comes instead of the restatement after them."""
        self._feed(Finish(event))

    def close(self) -> None:
        """Events that are put from now on are counted as dropped; the backlog is not touched any more."""
        self._feed(Close())

    async def drain(self, timeout_s: float) -> bool:
        """True once the log has acknowledged all; False if it has not in time, or never will."""
        try:
            async with asyncio.timeout(timeout_s):
                while not self.idle and not self.ended:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            logger.warning("outbox not drained within %s s: %r", timeout_s, self)
        return self.idle

    async def run(self) -> None:
        """Appends until cancelled, or until superseded; ends with the error if the log refuses for good.

        After a cancellation it may be run again: the message in flight goes on with the same bytes.
        """
        self._loop, self._request = asyncio.get_running_loop(), None
        self._feed(Start())
        try:
            while not self.ended:
                self._feed(await self._next_event())
                self._changed.set()
        except Exception as error:
            self._feed(LogFailed(error))
            logger.exception("outbox stopped for good: %r", self)
            raise
        finally:
            self._changed.set()

    async def _next_event(self) -> ChainEvent | Tick:
        request, self._request = self._request, None
        if request is None:
            now_us = await self._sleep_until_due()
            self.wall_offset_ms = self._clock.wall_ms() - now_us // 1000
            return TICK
        try:
            if isinstance(request, Append):
                return Acknowledged(await self._log.append(self._stream, self.subject, *request))
            return LastRead(await self._log.last(self._stream, self.subject))
        except (Unavailable, WrongSequence) as error:
            return LogFailed(error)

    async def _sleep_until_due(self) -> int:
        """The chain's time has come; returns the time."""
        assert self._loop is not None
        assert self.due_us is not None
        while self.due_us > (now_us := self._now_us()):
            self._alarm = self._loop.create_future()
            timer = self._loop.call_at(self.due_us / 1_000_000, self._wake)
            try:
                await self._alarm
            finally:
                timer.cancel()
                self._alarm = None
        return now_us

    def _wake(self) -> None:
        if self._alarm is not None and not self._alarm.done():
            self._alarm.set_result(None)

    def _feed(self, event: ChainEvent | Tick) -> None:
        due_us = self.due_us
        for command in self.step(event, self._now_us()):
            match command:
                case Append() | ReadLast():
                    self._request = command
                case AskRestatement():
                    self._feed(Restated(self._on_overflow()))
                case Superseded(record):
                    self._on_superseded(record)
        if self.due_us != due_us:
            self._wake()

    def _now_us(self) -> int:
        """The loop's time; nothing is due before the chain is run."""
        return 0 if self._loop is None else round(self._loop.time() * 1_000_000)
