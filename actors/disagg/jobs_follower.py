"""JobsFollower: the jobs stream as a decode worker follows it: how many jobs wait, and answers to its own."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from core.clock import Clock
from core.codec import decode_message, digest
from core.errors import ContrailError, Corrupt
from core.failure import log_failure
from core.ids import StreamSeq
from core.subjects import JOBS, owner
from projections.folds.jobs_fold import JobsFold
from streams.log import EventLog, Record, StreamState, Tail

HISTORY_MS = 600_000
"""Reading starts so far back: an older job has been over for long."""
RETRY_S = 0.5
"""Between tries while the log is away."""

_logger = logging.getLogger(__name__)


class JobsFollower:
    """`jobs` is the fold of what was read; `on_event` is called with each event that follows and its source."""

    def __init__(self, log: EventLog, clock: Clock, chain_key: bytes, on_event: Callable[[str, object], None]) -> None:
        self.jobs = JobsFold()
        self._log = log
        self._clock = clock
        self._chain_key = chain_key
        self._on_event = on_event
        self._tail: Tail | None = None
        self._task: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<JobsFollower {self.jobs!r}>"

    def start(self) -> None:
        """It follows the log from now on, and waits for it if it is away."""
        self._task = asyncio.create_task(self._open(), name="jobs tail")
        self._task.add_done_callback(log_failure(_logger, "the prefill queue is not followed any more, by a defect"))

    async def stop(self) -> None:
        """Nothing is heard of any more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        if self._tail is not None:
            await self._tail.stop()

    async def _open(self) -> None:
        while self._tail is None:
            try:
                start = await self._log.seek(JOBS, self._clock.wall_ms() - HISTORY_MS)
                self._tail = await self._log.tail(
                    JOBS, StreamSeq(max(1, start)), self._on_record, on_reset=self._on_reset
                )
            except ContrailError as error:
                _logger.warning("the prefill queue cannot be followed now, trying again: %s", error)
                await asyncio.sleep(RETRY_S)

    def _on_record(self, record: Record) -> None:
        try:
            message = decode_message(record.payload)
        except Corrupt as error:
            _logger.warning("%s:%d cannot be read: %s", record.stream, record.seq, error)
            return
        source = owner(record.subject)
        if self.jobs.apply(source, message, digest(record.payload, self._chain_key)):
            for event in message.events:
                self._on_event(source, event)

    def _on_reset(self, _now: StreamState) -> None:
        self.jobs = JobsFold()
