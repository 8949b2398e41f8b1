"""PolledEventFeed: the cache events of a server that gives them when it is asked, and then forgets them.

1. What an answer had is gone with that answer. So an answer that did not arrive is a gap at once.
2. One question is under way at a time, for events are numbered.
3. A server puts the events of a step beside its output, and not before it. So `catch_up` asks until two answers in a
   row, one interval apart, had nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from core.errors import EngineDead, PeerError, Unavailable

POLL_EVERY_S = 0.1
"""Between two questions: as late events are at most."""
ROUNDS_MAX = 300
"""Questions in one `catch_up`; each but the last two found events."""
NOTHING = b"[]"


class PolledEventFeed:
    """Follows one start of a server. `ask` gives the events since it was called last, and is a PeerError if it cannot.

    `on_batch` is called with each answer that has events; an EngineDead of it ends the feed.
    """

    def __init__(
        self, ask: Callable[[], Awaitable[bytes]], on_batch: Callable[[bytes], object], on_gap: Callable[[str], None]
    ) -> None:
        self._ask = ask
        self._on_batch = on_batch
        self._on_gap = on_gap
        self._lock = asyncio.Lock()
        self._lost = False
        """The last answer did not arrive."""
        self._task: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<PolledEventFeed{' without an answer' if self._lost else ''}>"

    def start(self) -> None:
        """The server is asked every POLL_EVERY_S."""
        assert self._task is None
        self._task = asyncio.create_task(self._follow(), name="polled-event-feed")

    async def reread(self) -> None:
        """The events until now have been taken. EngineDead if the server was started again; PeerError if it does not
        answer, which was told as a gap."""
        self.check()
        await self._poll()

    async def catch_up(self) -> None:
        """The events of steps that ended before the call have been taken, as far as the server had them ready."""
        silent = 0
        for _ in range(ROUNDS_MAX):
            self.check()
            silent = 0 if await self._poll() else silent + 1
            if silent > 1:
                return
            await asyncio.sleep(POLL_EVERY_S)
        raise Unavailable(f"the server went on sending cache events through {ROUNDS_MAX} answers")

    def check(self) -> None:
        """Raises EngineDead if events are not followed any more."""
        if self._task is not None and self._task.done() and not self._task.cancelled():
            error = self._task.exception()
            text = str(error) if isinstance(error, EngineDead) else "the server's cache events are not read any more"
            raise EngineDead(text) from error

    async def stop(self) -> None:
        """Nothing is asked any more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _follow(self) -> None:
        while True:
            await asyncio.sleep(POLL_EVERY_S)
            try:
                await self._poll()
            except EngineDead:
                raise
            except PeerError:
                continue  # told as a gap; the engine finds out if the server is gone

    async def _poll(self) -> bool:
        """True if there were events."""
        async with self._lock:
            try:
                answer = await self._ask()
            except PeerError as error:
                if not self._lost:
                    self._on_gap(f"cache events may have been lost: {error}")
                self._lost = True
                raise
            self._lost = False
            if answer.strip() == NOTHING:
                return False
            self._on_batch(answer)
            return True
