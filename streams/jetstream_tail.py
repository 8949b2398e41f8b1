"""A reader that follows a stream for ever, over lost connections, restarts and replaced histories."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

from core.errors import PeerError, Refused
from core.ids import Epoch, StreamSeq
from streams.jetstream_pull import HEARTBEAT_S, Pull
from streams.log import Record, StreamState

logger = logging.getLogger(__name__)

REOPEN_WAIT_S = 0.1
CHECK_EVERY_S = 5.0
"""How often an open stream is asked whether it is still the same: one rolled back tells only heartbeats."""
CONFIRM_S = 0.5
"""A replaced history is seen twice, so far apart, before it is told: a new leader may answer before it caught up."""


class JetStreamTail:
    """Keeps its own position; see `streams.log.Tail`. Started by `start`.

    The broker is not trusted to have kept what it delivered: whenever the tail opens, and every few seconds, it looks
    at when the stream was made, at its end, and at the message that it delivered last.
    """

    def __init__(
        self,
        make_pull: Callable[[Callable[[Record, int], None]], Pull],
        state: Callable[[], Awaitable[StreamState]],
        at: Callable[[StreamSeq], Awaitable[Record | None]],
        start: int,
        on_record: Callable[[Record], None],
        on_reset: Callable[[StreamState], None] | None,
        after: Record | None,
    ) -> None:
        self._make_pull = make_pull
        self._state = state
        self._at = at
        self._next = max(start, 1)
        self._on_record = on_record
        self._on_reset = on_reset
        self._epoch: Epoch | None = None
        self._last = after
        """The last that was delivered."""
        self._deleted = 0
        self._pull: Pull | None = None
        self._task: asyncio.Task[None] | None = None
        self.stopped = False

    def __repr__(self) -> str:
        return f"<JetStreamTail next {self._next}>"

    async def start(self) -> None:
        """Records are being delivered. Raises Unavailable or Refused if that cannot be begun now."""
        try:
            await self._open()
        except PeerError:
            self._close_pull()
            raise
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def stop(self) -> None:
        self.stopped = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._close_pull()

    async def _run(self) -> None:
        while True:
            await self._until_broken()
            await self._reopen()

    async def _until_broken(self) -> None:
        assert self._pull is not None
        checked_s = time.monotonic()
        while not self._pull.broken.is_set() and not self._pull.silent:
            try:
                async with asyncio.timeout(HEARTBEAT_S):
                    await self._pull.broken.wait()
            except TimeoutError:
                if time.monotonic() - checked_s > CHECK_EVERY_S:
                    checked_s = time.monotonic()
                    if await self._replaced():
                        return

    async def _reopen(self) -> None:
        told = ""
        while True:
            try:
                await self._open()
            except PeerError as error:
                if isinstance(error, Refused) and str(error) != told:
                    told = str(error)
                    logger.error("cannot follow the stream: %s", error)  # noqa: TRY400 - the text says it all
                await asyncio.sleep(REOPEN_WAIT_S)
            else:
                return

    async def _open(self) -> None:
        self._close_pull()
        self._follow(await self._looked_at())
        pull = self._make_pull(self._deliver)
        self._pull = pull
        await pull.open(self._next)

    async def _looked_at(self) -> tuple[StreamState, bool]:
        """The stream as it is, and whether it continues what was delivered."""
        state, continues = await self._look()
        if not continues:
            await asyncio.sleep(CONFIRM_S)
            state, continues = await self._look()
        return state, continues

    async def _look(self) -> tuple[StreamState, bool]:
        last, next_ = self._last, self._next  # as they are now: more may be delivered before the answer is here
        state = await self._state()
        if self._epoch not in {None, state.epoch} or state.last_seq < next_ - 1:
            return state, False
        if state.deleted > self._deleted and self._epoch is not None:
            logger.warning("%d messages were deleted from the stream's middle", state.deleted - self._deleted)
        self._deleted = state.deleted
        return state, last is None or last.seq < state.first_seq or await self._holds(last)

    async def _holds(self, last: Record) -> bool:
        """Whether the stream has that record as it was delivered, or retention took it meanwhile."""
        found = await self._at(last.seq)
        return found == last or (found is None and last.seq < (await self._state()).first_seq)

    def _follow(self, found: tuple[StreamState, bool]) -> None:
        """The position is one in the stream as it is; if its history was replaced, that is told."""
        state, continues = found
        self._epoch = state.epoch
        if continues:
            return
        logger.warning("history of the stream was replaced: it ends at %s, next was %s", state.last_seq, self._next)
        self._next = state.first_seq
        self._last = None
        if self._on_reset is not None:
            self._on_reset(state)

    async def _replaced(self) -> bool:
        try:
            _, continues = await self._looked_at()
        except PeerError as error:
            logger.debug("cannot check the stream now: %s", error)
            return False
        return not continues

    def _deliver(self, record: Record, _pending: int) -> None:
        if self.stopped:
            return
        self._next = record.seq + 1
        self._last = record
        self._on_record(record)

    def _close_pull(self) -> None:
        if self._pull is not None:
            pull, self._pull = self._pull, None
            pull.close()
