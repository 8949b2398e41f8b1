"""Vigil: over one request's answer, as long as somebody waits for it."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable

from core.models import DeadlineExceeded

SLOW_READER_S = 60.0
"""A write that waits for its client for so long ends the exchange: it takes some 50 KB, once in so long, to go on."""
LOOKS = 4
"""In that time it is looked so often whether a write waits: it may take a part of it longer."""
TOO_LATE = "the request was not answered within its x-contrail-deadline-ms"


class ClientGone(Exception):
    """The client hung up: there is nobody to answer."""


class Vigil:
    """Ends the task that answers a request when there is nobody to answer any more, and knows why."""

    def __init__(self, writes: Callable[[], int], deadline_s: float, loop: asyncio.AbstractEventLoop) -> None:
        """`writes` counts writes to the client, begun and ended together: odd while one waits. `deadline_s` is when the
        client waits no longer, by the clock of the loop, which runs; infinite if it did not say."""
        self._writes = writes
        self._loop = loop
        self._task = asyncio.current_task(loop)
        self._why: Exception | None = None
        self._seen = self._waits = 0
        self._deadline = None if deadline_s == math.inf else loop.call_at(deadline_s, self._late)
        self._look_due: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        return f"<Vigil, {self._why or 'nothing yet'}>"

    def close(self) -> None:
        """Nothing is ended any more."""
        if self._look_due is not None:
            self._look_due.cancel()
        if self._deadline is not None:
            self._deadline.cancel()

    def look_on(self) -> None:
        """A write began that may wait for its client: that is looked at from now on."""
        if self._look_due is None:
            self._seen = self._writes()
            self._look_due = self._loop.call_later(SLOW_READER_S / LOOKS, self._look)

    def gone(self) -> None:
        """The client hung up."""
        self._end(ClientGone())

    def verdict(self) -> Exception | None:
        """Why the task was ended here; None if it was not. Its cancellation counts as dealt with."""
        if self._why is not None and self._task is not None:
            self._task.uncancel()
        return self._why

    def _late(self) -> None:
        self._end(DeadlineExceeded(TOO_LATE))

    def _look(self) -> None:
        """A write that waits for its client is counted, and ended when that took SLOW_READER_S."""
        writes = self._writes()
        self._waits = self._waits + 1 if self._seen % 2 and self._seen == writes else 0
        self._seen = writes
        if self._waits >= LOOKS:
            self._end(ClientGone())
        else:
            self._look_due = self._loop.call_later(SLOW_READER_S / LOOKS, self._look)

    def _end(self, why: Exception) -> None:
        if self._why is None and self._task is not None:
            self._why = why
            self._task.cancel(why)  # who waited for a worker says in the log why it waits no longer
