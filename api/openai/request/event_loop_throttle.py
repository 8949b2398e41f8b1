"""EventLoopThrottle: one long piece of work begins in each turn of the event loop; short work waits for one at most."""

from __future__ import annotations

import asyncio
from collections import deque


class EventLoopThrottle:
    """Serves callers in their order. The number of waiting callers is bounded by the requests in flight."""

    def __init__(self) -> None:
        self._taken = False
        """Whether one has begun in the present turn of the loop."""
        self._waiting: deque[asyncio.Future[None]] = deque()

    def __repr__(self) -> str:
        return f"<EventLoopThrottle {len(self._waiting)} waiting>"

    async def acquire(self) -> None:
        """A turn of the loop in which nothing else of this has begun: what follows without waiting has it."""
        loop = asyncio.get_running_loop()
        if self._taken:
            turn = loop.create_future()
            self._waiting.append(turn)
            await turn
            return
        self._taken = True
        loop.call_soon(self._next)

    def _next(self) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():  # else its request is over
                turn.set_result(None)
                asyncio.get_running_loop().call_soon(self._next)
                return
        self._taken = False
