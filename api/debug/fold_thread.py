"""Fold thread: one thread that folds a recording in steps of a few milliseconds, and answers questions between them.

It owns a `RecordingState`: an archive that may grow, its timeline, and its states at any moment. Other threads
only read the timeline.
"""

from __future__ import annotations

import asyncio
import logging
import queue
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any, NamedTuple, TypeVar

from api.debug.keyframes import KeyframeBuilder
from api.debug.price_remarks import PriceRemarks
from api.debug.timeline.timeline import Timeline
from api.debug.timeline.timeline_scan import TimelineScan
from core.errors import ContrailError, Unavailable
from core.keys import DeploymentKey
from core.subjects import ROUTING
from projections.folds.frozen_state import FrozenState
from replay.parallel import collector_paused
from replay.recording.recording import Cursor, Recording
from streams.archive.archive_reader import ArchiveReader


class RecordingState:
    """An archive that may grow, its timeline, and its states at any moment."""

    def __init__(self, key: DeploymentKey | None, *, messages_expected: int = 0) -> None:
        self.scan = TimelineScan()
        self.folding = KeyframeBuilder(self._keep, messages_expected)
        self.prices = PriceRemarks()
        self._key = key
        self._newest: Recording | None = None
        self._settled: Recording | None = None
        """An older recording, kept while its messages suffice: a recording's index takes a second to make."""
        self._keyframes: list[tuple[Cursor, FrozenState]] = []

    def __repr__(self) -> str:
        return f"<RecordingState {self.scan!r}, {self.folding!r}>"

    @property
    def timeline(self) -> Timeline:
        """The timeline of all messages read so far."""
        return self.scan.timeline

    @property
    def proved(self) -> bool:
        """True if chains are checked with the deployment's key."""
        return self._newest is not None and self._newest.proved

    def show(self, archive: ArchiveReader) -> Iterator[None]:
        """The archive, the one before with more messages, replaces it; the steps given read and fold the new messages.

        Steps that are not finished may be dropped for those of the next archive.
        """
        before = self._newest
        if before is not None and before is not self._settled:
            before.close()
        try:
            self._newest = newest = Recording(archive, self._key)
        except BaseException:  # no other code would close the file
            archive.close()
            raise
        for keyframe in self._keyframes:
            newest.keep(*keyframe)
        if before is None:
            first = newest.state_before(newest.start)
            self.timeline.begin(first)
            self.folding.begin(first)
        return self._steps(newest)

    def _steps(self, recording: Recording) -> Iterator[None]:
        yield from self.scan.steps(recording.archive)
        if self._settled is None:
            _ = self.recording().names  # and the index with it
            yield
        yield from self.folding.steps(recording)
        yield from self.prices.steps(recording, self.scan.decisions.history)

    @property
    def newest(self) -> Recording:
        """The newest recording; its index and names are made at first use."""
        if self._newest is None:
            raise Unavailable("the log is still being copied: a moment")
        return self._newest

    def recording(self, routing_seq: int = 0) -> Recording:
        """A recording with this message of the routing stream, if there is one; one that has its index is preferred."""
        newest = self.newest
        settled = self._settled
        if settled is None or settled.end.get(ROUTING, 0) < routing_seq:
            if settled is not None and settled is not newest:
                settled.close()
            self._settled = settled = newest
        return settled

    def close(self) -> None:
        """All files are closed."""
        for recording in {self._newest, self._settled} - {None}:
            assert recording is not None
            recording.close()

    def _keep(self, cursor: Cursor, frozen: FrozenState) -> None:
        self._keyframes.append((cursor, frozen))
        for recording in {self._newest, self._settled} - {None}:
            assert recording is not None
            recording.keep(cursor, frozen)


SWITCH_S = 0.001
WAITING_MAX = 64
"""Most questions that wait for their turn."""

T = TypeVar("T")
_logger = logging.getLogger(__name__)


class _Job(NamedTuple):
    work: Callable[[RecordingState], Any]
    done: Future[Any]


class FoldThread:
    """See the module's text."""

    def __init__(self, recording_state: RecordingState) -> None:
        self.recording_state = recording_state
        self.failure = ""
        """Why the recording could not be read to its end."""
        self._jobs: queue.Queue[_Job | None] = queue.Queue(WAITING_MAX)
        self._background: Iterator[None] | None = None
        self._thread = threading.Thread(target=self._run, name="fold", daemon=True)

    def __repr__(self) -> str:
        return f"<FoldThread {self.recording_state!r}, {self._jobs.qsize()} waiting>"

    def start(self) -> None:
        """The thread runs; it releases the interpreter every SWITCH_S, so that the event loop does not wait for it."""
        sys.setswitchinterval(SWITCH_S)
        self._thread.start()

    async def show(self, archive: ArchiveReader) -> None:
        """The archive replaces the one before, and is read in the background."""

        def replace(recording_state: RecordingState) -> None:
            self._background = recording_state.show(archive)

        await self.ask(replace)

    async def ask(self, work: Callable[[RecordingState], T]) -> T:
        """The result of `work`, run on this thread before the next step of the background.

        Unavailable if WAITING_MAX questions wait already. A question cancelled before its turn is not run.
        """
        job = _Job(work, Future())
        try:
            self._jobs.put_nowait(job)
        except queue.Full:
            raise Unavailable("too many questions wait for an answer: try again in a moment") from None
        found: T = await asyncio.wrap_future(job.done)
        return found

    async def close(self) -> None:
        """The thread has ended; questions that waited are dropped."""
        while self._thread.is_alive():
            try:
                self._jobs.put_nowait(None)
                break
            except queue.Full:
                await asyncio.sleep(0.01)
        await asyncio.to_thread(self._thread.join)
        self.recording_state.close()

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
                with collector_paused():
                    _finish(job, self.recording_state)

    def _step(self) -> None:
        assert self._background is not None
        try:
            next(self._background)
        except StopIteration:
            self._background = None
        except ContrailError as error:
            self._background, self.failure = None, str(error)
            _logger.warning("the recording could not be read to its end: %s", error)
        except Exception:  # the page shows the failure and keeps answering
            self._background, self.failure = None, "reading the recording failed inside; this process's log says how"
            _logger.exception("reading the recording failed inside")


def _finish(job: _Job, recording_state: RecordingState) -> None:
    try:
        job.done.set_result(job.work(recording_state))
    except Exception as error:  # noqa: BLE001 - raised where the question was asked
        job.done.set_exception(error)
