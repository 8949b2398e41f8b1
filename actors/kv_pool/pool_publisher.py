"""PoolPublisher: the events of a pool under one id of its source."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence

from msgspec.structs import replace

from actors.kv_cache.cache_events import merge_events
from actors.kv_pool.pool_mirror import PoolMirror
from actors.membership.worker_publisher import LEAVE_TIMEOUT_S, RESTATED_PART_BYTES
from core.clock import Clock
from core.events import Event, PoolJoined, PoolLeft
from core.failure import log_failure
from core.ids import SourceId
from core.keys import DeploymentKey
from core.subjects import kv_stream, subject
from streams.log import EventLog, Record
from streams.outbox.outbox import Outbox

_logger = logging.getLogger(__name__)


class PoolPublisher:
    """Publishes under one id until another writes its end: `on_superseded`, called once."""

    def __init__(
        self,
        namespace: str,
        log: EventLog,
        clock: Clock,
        key: DeploymentKey,
        source: SourceId,
        joined: PoolJoined,
        mirror: PoolMirror,
        on_superseded: Callable[[], None],
    ) -> None:
        self.id = source
        self.joined = joined
        self._mirror = mirror
        self._on_superseded = on_superseded
        stream = kv_stream(joined.partition)
        self.outbox = Outbox(
            log,
            stream,
            subject(namespace, stream, source),
            source,
            key.chain_key,
            clock,
            on_overflow=self._restatement,
            on_superseded=self._superseded,
        )
        self._task: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<PoolPublisher {self.joined.pool} as {self.id}, {self.outbox.depth} events waiting>"

    @property
    def holds_all(self) -> bool:
        """True if the log has all that was published under this id."""
        return self.outbox.idle and not self.outbox.ended

    async def acknowledged(self, timeout_s: float) -> bool:
        """True once the log has all that was published; False if not in time, or never."""
        await self.outbox.drain(timeout_s)
        return self.holds_all

    def start(self) -> None:
        """PoolJoined is on its way to the log, with the content if there is any."""
        self.outbox.put(self.joined)
        if self._mirror.reported:
            self.publish(self._content())
        self._task = asyncio.create_task(self.outbox.run(), name=f"outbox {self.outbox!r}")
        self._task.add_done_callback(log_failure(_logger, "a pool's outbox stopped for good"))

    def publish(self, events: Iterable[Event]) -> None:
        """Changes of the content go to the log, in order, in as few events as can be."""
        for event in merge_events(events):
            self.outbox.put(event)

    def restate(self) -> None:
        """The pool and all its content go to the log again."""
        for event in self._restatement():
            self.outbox.put(event)

    async def leave(self, reason: str) -> None:
        """PoolLeft is in the log, if that was possible in time; nothing more is published. Of a pool that was never
        started nothing is said."""
        if self._task is None:
            return
        self.outbox.finish(PoolLeft(reason=reason))
        await self.outbox.drain(LEAVE_TIMEOUT_S)
        await self.end()

    async def end(self) -> None:
        """Nothing more is published under this id."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    def _restatement(self) -> Sequence[Event]:
        return [self.joined, *self._content()]

    def _content(self) -> list[Event]:
        first, *rest = self._mirror.restate(RESTATED_PART_BYTES)
        return [replace(first, dropped=self.outbox.counts.dropped_events), *rest]

    def _superseded(self, record: Record) -> None:
        _logger.warning("another wrote the end of the pool's source %s at %s:%d", self.id, record.stream, record.seq)
        self._on_superseded()
