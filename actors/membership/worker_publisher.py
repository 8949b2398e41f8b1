"""WorkerPublisher: a worker's events under one id: its cache, its load and its jobs, each in a stream."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence

from msgspec.structs import replace

from actors.kv_cache.cache_events import merge_events
from actors.kv_cache.cache_mirror import CacheMirror
from core.clock import Clock
from core.events import AdapterChange, Event, LoadReported, WorkerJoined, WorkerLeft
from core.events.jobs import JobsRestated
from core.events.kv import PREFILL
from core.failure import log_failure
from core.ids import SourceId, WorkerId
from core.keys import DeploymentKey
from core.subjects import JOBS, LOAD, answered_token, asked_token, job_kind, kv_stream, subject
from streams.log import EventLog, Record
from streams.outbox.backlog import OutboxLimits
from streams.outbox.outbox import Outbox

LEAVE_TIMEOUT_S = 5.0
"""Time that the last events of a leaving worker have to reach the log."""
JOB_LIMITS = OutboxLimits(events_max=1, pending_events_max=4096, pace_s=0.0)
"""The queue hands out messages, so each job is one."""
RESTATED_PART_BYTES = 128 * 1024
"""Of one event of a restated cache."""

_logger = logging.getLogger(__name__)


class WorkerPublisher:
    """Publishes under one id until another writes its end: `on_superseded`, called once."""

    def __init__(
        self,
        namespace: str,
        log: EventLog,
        clock: Clock,
        key: DeploymentKey,
        worker: WorkerId,
        joined: WorkerJoined,
        mirror: CacheMirror,
        *,
        jobs_open: Callable[[], int],
        on_superseded: Callable[[], None],
    ) -> None:
        self.id = worker
        self.joined = joined
        self._mirror = mirror
        self._on_superseded = on_superseded
        self._superseded_by: Record | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._unpublished: list[Event] = []
        """Changes of this turn of the loop."""
        kv, source = kv_stream(joined.partition), SourceId(self.id)
        self.kv = Outbox(
            log,
            kv,
            subject(namespace, kv, self.id),
            source,
            key.chain_key,
            clock,
            on_overflow=self._restatement,
            on_superseded=self._superseded,
        )
        self.load = Outbox(
            log,
            LOAD,
            subject(namespace, LOAD, self.id),
            source,
            key.chain_key,
            clock,
            on_overflow=list,  # the next report says it all
            on_superseded=self._superseded,
        )

        kind = job_kind(joined.model, joined.block_size)
        token = answered_token(self.id) if joined.role == PREFILL else asked_token(self.id, kind)
        self.jobs = Outbox(
            log,
            JOBS,
            subject(namespace, JOBS, token),
            source,
            key.chain_key,
            clock,
            on_overflow=lambda: [JobsRestated(open=jobs_open())],
            on_superseded=self._superseded,
            limits=JOB_LIMITS,
        )
        self._jobs_started = False
        self._ended = False

    def __repr__(self) -> str:
        return f"<WorkerPublisher {self.joined.name} {self.id}, {self.kv.depth} events waiting>"

    def start(self) -> None:
        """WorkerJoined is on its way to the log, with the cache if it is not empty."""
        self.kv.put(self.joined)
        if self._mirror.reported:
            self.publish(self._cache())
        for outbox in (self.kv, self.load):
            self._run(outbox)

    def publish(self, events: Sequence[Event]) -> None:
        """Changes of the cache go to the log, in order; those of one turn of the loop in as few events as can be."""
        if events and not self._unpublished:
            asyncio.get_running_loop().call_soon(self._publish_changes)
        self._unpublished += events

    def restate(self) -> None:
        """The whole cache goes to the log again."""
        self._publish_changes()
        for event in self._restatement():
            self.kv.put(event)

    def adapters_changed(self, event: AdapterChange, joined: WorkerJoined) -> None:
        """The event goes to the log; restatements say `joined` from now on, which has all adapters."""
        self._publish_changes()
        self.joined = joined
        self.kv.put(event)

    def report(self, report: LoadReported) -> bool:
        """The report goes to the log, unless the one before is still waiting: then only the newest is worth it."""
        if self.load.depth:
            return False
        self.load.put(report)
        return True

    def publish_job(self, event: Event) -> None:
        """The event goes to the jobs stream, in order. Workers that never speak there have no part in it."""
        if not self._jobs_started:
            if self._ended:
                return
            self._jobs_started = True
            self._run(self.jobs)
        self.jobs.put(event)

    @property
    def dropped(self) -> int:
        """Events of this worker that are in no log; their outbox restated the state that they had led to."""
        return sum(outbox.counts.dropped_events for outbox in (self.kv, self.load, self.jobs))

    @property
    def jobs_away_s(self) -> float:
        """Seconds since the log last acknowledged an event that waits, in any stream of this worker."""
        return max(self.jobs.away_s, self.kv.away_s, self.load.away_s)

    def _run(self, outbox: Outbox) -> None:
        task = asyncio.create_task(outbox.run(), name=f"outbox {outbox!r}")
        task.add_done_callback(log_failure(_logger, "an outbox stopped for good"))
        self._tasks.append(task)

    def _publish_changes(self) -> None:
        events, self._unpublished = self._unpublished, []
        for event in merge_events(events) if len(events) > 1 else events:
            self.kv.put(event)

    def _restatement(self) -> list[Event]:
        return [self.joined, *self._cache()]

    def _cache(self) -> list[Event]:
        first, *rest = self._mirror.restate(RESTATED_PART_BYTES)
        return [replace(first, dropped=self.dropped), *rest]

    async def leave(self, reason: str) -> None:
        """WorkerLeft is in every stream that it wrote to, if that was possible in time."""
        self._publish_changes()
        if not await self._publish_left(reason, self._outboxes()):
            _logger.warning("the log was away when the worker left; replicas will find out by its lease")
        await self.end()

    async def retire(self) -> None:
        """This id has its end in every stream, if that was possible in time.

        Another wrote its end in one stream only, and a stream that was restored may lack it.
        """
        others = [outbox for outbox in self._outboxes() if outbox.superseded is None]
        await self._publish_left("goes on under another id", others)
        await self.end()

    def _outboxes(self) -> list[Outbox]:
        return [self.kv, self.load, *([self.jobs] if self._jobs_started else [])]

    async def _publish_left(self, reason: str, outboxes: list[Outbox]) -> bool:
        for outbox in outboxes:
            outbox.finish(WorkerLeft(reason=reason))
        return all(await asyncio.gather(*(outbox.drain(LEAVE_TIMEOUT_S) for outbox in outboxes)))

    async def end(self) -> None:
        """Nothing more is published under this id."""
        self._ended = True
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def _superseded(self, record: Record) -> None:
        if self._superseded_by is not None:
            return  # both outboxes may find it
        self._superseded_by = record
        _logger.warning("another wrote the end of worker %s at %s:%d", self.id, record.stream, record.seq)
        self._on_superseded()
