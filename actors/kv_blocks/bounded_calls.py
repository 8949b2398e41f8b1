"""BoundedCalls: calls of a file system that may hang, each with a deadline; while they hang, none is made.

A thread that hangs in the system cannot be ended. So each call has a thread of its own, which its caller leaves behind
at the deadline, and CALLS_MAX bounds them all, those that were left behind included. Such threads do not delay the end
of the process, unless the system itself holds them, as a hard mount does.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

from actors.kv_blocks.disk_counts import DiskCounts
from core.clock import Clock

CALL_S = 2.0
"""So long a caller waits for a call."""
CALLS_MAX = 16
"""Threads at once. The tier's own threads are fewer: 8, and 14 for a store of objects."""
HANG_PAUSE_S = 30
"""After a call that took longer than CALL_S none is made for so long."""

T = TypeVar("T")


class FileSystemUnavailable(OSError):
    """The call was not made, or had no answer in time."""


class BoundedCalls:
    """Thread-safe. A call costs some 100 us for its thread."""

    def __init__(self, counts: DiskCounts, clock: Clock, call_s: float = CALL_S) -> None:
        self._counts = counts
        self._clock = clock
        self._call_s = call_s
        self._free = threading.BoundedSemaphore(CALLS_MAX)
        self._until_ms = 0

    def __repr__(self) -> str:
        return f"<BoundedCalls of {self._call_s} s{', pausing' if self.pausing else ''}>"

    @property
    def pausing(self) -> bool:
        """True while no call is made."""
        return self._clock.monotonic_ms() < self._until_ms

    def make(self, call: Callable[[], T]) -> T:
        """The call's result, or its exception. FileSystemUnavailable after CALL_S, and at once while calls pause or
        CALLS_MAX are under way. A call that has begun may still end later: it must change nothing that its caller
        uses."""
        if self.pausing or not self._free.acquire(blocking=False):
            raise FileSystemUnavailable("the file system did not answer lately")
        answer: Future[T] = Future()
        threading.Thread(target=self._answer, args=(answer, call), name="remote tier call", daemon=True).start()
        try:
            return answer.result(self._call_s)
        except TimeoutError as error:
            if answer.done():  # the call's own error
                raise
            self._counts.add(calls_overdue=1)
            self._until_ms = self._clock.monotonic_ms() + HANG_PAUSE_S * 1000
            raise FileSystemUnavailable(f"the file system did not answer for {self._call_s} s") from error

    def _answer(self, answer: Future[T], call: Callable[[], T]) -> None:
        try:
            answer.set_result(call())
        except BaseException as error:  # noqa: BLE001 - all of them are the caller's, which may be gone
            answer.set_exception(error)
        finally:
            self._free.release()
