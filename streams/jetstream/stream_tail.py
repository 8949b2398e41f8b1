"""A reader that follows a stream for ever, over lost connections, restarts and replaced histories."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

from core.errors import PeerError, Refused
from core.ids import Epoch, StreamSeq
from streams.jetstream.pull_consumer import HEARTBEAT_S, PullConsumer
from streams.log import Record, StreamState

logger = logging.getLogger(__name__)

REOPEN_WAIT_S = 0.1
CHECK_EVERY_S = 5.0
"""Period of the check that an open stream is still the same and that its consumer makes progress: a consumer that was
rolled back, or on a server that does not catch up, delivers heartbeats only."""
CONFIRM_S = 0.5
"""A replaced history is seen twice, so far apart, before it is told: a new leader may answer before it caught up."""


class StreamTail:
    """Keeps its own position; see `streams.log.Tail`. Started by `start`.

    The broker is not trusted to have kept what it delivered: whenever the tail opens, and every few seconds, it looks
    at when the stream was made, at its end, and at the message that it delivered last. A consumer that two such looks
    in a row find at the same place, though the stream goes on behind it, is given up for another.
    """

    def __init__(
        self,
        make_pull: Callable[[Callable[[Record, int], None]], PullConsumer],
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
        self._behind_at: int | None = None
        """The next sequence at the last check, if that check found the stream's end undelivered."""
        self._pull: PullConsumer | None = None
        self._task: asyncio.Task[None] | None = None
        self.stopped = False

    def __repr__(self) -> str:
        return f"<StreamTail next {self._next}>"

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
                    if await self._unsound():
                        return

    async def _reopen(self) -> None:
        last_error = ""
        while True:
            try:
                await self._open()
            except PeerError as error:
                if isinstance(error, Refused) and str(error) != last_error:
                    last_error = str(error)
                    logger.error("cannot follow the stream: %s", error)  # noqa: TRY400 - the text says it all
                await asyncio.sleep(REOPEN_WAIT_S)
            else:
                return

    async def _open(self) -> None:
        self._close_pull()
        self._behind_at = None
        self._follow(await self._checked())
        pull = self._make_pull(self._deliver)
        self._pull = pull
        await pull.open(self._next)

    async def _checked(self) -> tuple[StreamState, bool]:
        """The stream as it is, and whether it continues what was delivered."""
        state, continues = await self._check()
        if not continues:
            await asyncio.sleep(CONFIRM_S)
            state, continues = await self._check()
        return state, continues

    async def _check(self) -> tuple[StreamState, bool]:
        last, next_ = self._last, self._next  # as they are now: more may be delivered before the answer is here
        state = await self._state()
        if self._epoch not in {None, state.epoch} or state.last_seq < next_ - 1:
            return state, False
        if state.deleted > self._deleted and self._epoch is not None:
            logger.warning("%d messages were deleted from the stream's middle", state.deleted - self._deleted)
        self._deleted = state.deleted
        return state, last is None or last.seq < state.first_seq or await self._holds(last)

    async def _holds(self, last: Record) -> bool:
        """True if the stream has that record as it was delivered, or if retention removed it meanwhile."""
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

    async def _unsound(self) -> bool:
        """True if the consumer must be replaced: the history was replaced, or it makes no progress."""
        try:
            state, continues = await self._checked()
            return not continues or await self._stuck(state)
        except PeerError as error:
            logger.debug("cannot check the stream now: %s", error)
            return False

    async def _stuck(self, state: StreamState) -> bool:
        """True if this check and the last one found the same position, and the stream's end behind it."""
        # an end that was deleted, or that the broker finds damaged, is never delivered: no consumer is late with it
        behind = state.last_seq >= self._next and await self._at(state.last_seq) is not None
        before, self._behind_at = self._behind_at, self._next if behind else None
        if not behind or before != self._next:
            return False
        logger.warning("the consumer stays at %s, though the stream ends at %s", self._next, state.last_seq)
        return True

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
