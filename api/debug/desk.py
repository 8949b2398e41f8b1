"""Desk: one thread that reads and folds, a few milliseconds at a time, and answers in between."""

from __future__ import annotations

import asyncio
import logging
import queue
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any, NamedTuple, TypeVar

from api.debug.past import Past
from core.errors import ContrailError, Unavailable
from streams.archive.archive_reader import ArchiveReader

SWITCH_S = 0.001
WAITING_MAX = 64
"""Questions that wait for their turn."""

T = TypeVar("T")
_logger = logging.getLogger(__name__)


class _Job(NamedTuple):
    work: Callable[[Past], Any]
    done: Future[Any]


class Desk:
    """See the module's text."""

    def __init__(self, past: Past) -> None:
        self.past = past
        self.failure = ""
        """Why the recording could not be read to its end."""
        self._jobs: queue.Queue[_Job | None] = queue.Queue(WAITING_MAX)
        self._background: Iterator[None] | None = None
        self._thread = threading.Thread(target=self._run, name="desk", daemon=True)

    def __repr__(self) -> str:
        return f"<Desk {self.past!r}, {self._jobs.qsize()} waiting>"

    def start(self) -> None:
        """It answers, and lets go of the interpreter often: whoever talks to the page must not wait for it."""
        sys.setswitchinterval(SWITCH_S)
        self._thread.start()

    async def show(self, archive: ArchiveReader) -> None:
        """From now on this is the archive; it is read in the background."""

        def shown(past: Past) -> None:
            self._background = past.show(archive)

        await self.ask(shown)

    async def ask(self, work: Callable[[Past], T]) -> T:
        """What `work` gives, done on the desk's thread, before anything in the background goes on. Unavailable if too
        many wait already. A question that nobody waits for any more is not begun."""
        job = _Job(work, Future())
        try:
            self._jobs.put_nowait(job)
        except queue.Full:
            raise Unavailable("too many questions wait for an answer: try again in a moment") from None
        found: T = await asyncio.wrap_future(job.done)
        return found

    async def close(self) -> None:
        """The thread has ended; what waited is refused."""
        while self._thread.is_alive():
            try:
                self._jobs.put_nowait(None)
                break
            except queue.Full:
                await asyncio.sleep(0.01)
        await asyncio.to_thread(self._thread.join)
        self.past.close()

    def _run(self) -> None:
        while True:
            try:
                job = self._jobs.get(block=self._background is None)
            except queue.Empty:
                self._step()
                continue
            if job is None:
                return
            if job.done.set_running_or_notify_cancel():
                _finish(job, self.past)

    def _step(self) -> None:
        assert self._background is not None
        try:
            next(self._background)
        except StopIteration:
            self._background = None
        except ContrailError as error:
            self._background, self.failure = None, str(error)
            _logger.warning("the recording could not be read to its end: %s", error)
        except Exception:  # whatever it was, the page says that it failed, and goes on
            self._background, self.failure = None, "reading the recording failed inside; this process's log says how"
            _logger.exception("reading the recording failed inside")


def _finish(job: _Job, past: Past) -> None:
    try:
        job.done.set_result(job.work(past))
    except Exception as error:  # noqa: BLE001 - it is the asker's
        job.done.set_exception(error)
