"""A bounded pass over a stream: what it held when asked, in order."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable

from core.errors import Unavailable
from core.ids import StreamSeq
from streams.jetstream.pull_consumer import HEARTBEAT_S, PullConsumer
from streams.log import Record, StreamState

PATIENCE_S = 10.0
"""A pass without a single record gives up after so long."""
CONSUMERS_TRIED = 2
"""Consumers that share that time. One that sends heartbeats and no records, though there are some, lives on a server
that does not catch up; the next one may live elsewhere."""
REOPEN_WAIT_S = 0.1


class _StreamReplaced(Unavailable):
    """The stream that was read is not there any more: its reader begins again."""


class StreamReader:
    """One pass; `records` may be iterated once."""

    def __init__(
        self,
        make_pull: Callable[[Callable[[Record, int], None], Callable[[], int]], PullConsumer],
        state: Callable[[], Awaitable[StreamState]],
        following: Callable[[StreamSeq], Awaitable[Record | None]],
        start: int,
    ) -> None:
        self._make_pull = make_pull
        self._state = state
        self._following = following
        self._next = max(start, 1)
        self._last = 0
        self._read: Record | None = None
        """The last that was given out."""
        self._held: deque[Record] = deque()
        self._complete = False
        """True if no record follows the held ones."""
        self._drained = False
        """True if the server that reads for us reports the end; in a cluster it may be one that has not caught up."""

    async def records(self) -> AsyncGenerator[Record, None]:
        """The records up to what was the last when this began. Raises Unavailable if they cannot be had."""
        asked = await self._state()
        self._last = asked.last_seq
        progress_s = time.monotonic()
        while self._next <= self._last and not self._complete:
            try:
                await self._check_history(asked)
                async for record in self._one_opening():
                    progress_s = time.monotonic()
                    yield record
            except _StreamReplaced:
                raise
            except Unavailable:
                if time.monotonic() - progress_s > PATIENCE_S:
                    raise
                await asyncio.sleep(REOPEN_WAIT_S)

    async def _check_history(self, asked: StreamState) -> None:
        state = await self._state()
        same = state.epoch == asked.epoch and state.last_seq >= self._last
        if same and self._read is not None and self._read.seq >= state.first_seq:
            same = await self._following(self._read.seq) == self._read
        if not same:
            raise _StreamReplaced("the stream's history was replaced while it was read")

    async def _one_opening(self) -> AsyncGenerator[Record, None]:
        """Records for as long as one consumer delivers them."""
        pull = self._make_pull(self._take, self._held.__len__)
        try:
            self._drained = await pull.open(self._next) == 0
            while True:
                while self._held:
                    record = self._held.popleft()
                    self._next = record.seq + 1
                    self._read = record
                    yield record
                if self._complete:
                    return
                pull.top_up()
                await self._wait(pull)
        finally:
            self._held.clear()
            pull.close()

    async def _wait(self, pull: PullConsumer) -> None:
        """Something is held, or all has come. Raises Unavailable if the consumer delivers no more."""
        until_s = time.monotonic() + PATIENCE_S / CONSUMERS_TRIED
        while not self._held and not self._complete:
            if pull.broken.is_set() or pull.silent or time.monotonic() > until_s:
                raise Unavailable("the broker stopped delivering")
            if self._drained:
                self._drained = False
                await self._prefetch()
                continue
            pull.stirred.clear()
            try:
                async with asyncio.timeout(HEARTBEAT_S):
                    await pull.stirred.wait()
            except TimeoutError:
                await self._prefetch()

    async def _prefetch(self) -> None:
        """Complete, if the leader has nothing more: a message that it finds damaged is left out without a word."""
        following = await self._following(StreamSeq(self._next))
        if not self._held and (following is None or following.seq > self._last):
            self._complete = True

    def _take(self, record: Record, pending: int) -> None:
        if record.seq <= self._last:
            self._held.append(record)
        self._drained = pending == 0
        self._complete = self._complete or record.seq >= self._last
