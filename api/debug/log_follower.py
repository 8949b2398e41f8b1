"""Log follower: copies the log of a running deployment into an archive that grows, and shows it every second.

The copy begins with about the last ROUTING_MESSAGES_SHOWN messages of the routing stream, and with the snapshot before
them, from which states are folded. It ends when it has reached its bounds, or when history was replaced; then the
caller begins a new copy.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version
from pathlib import Path

from api.config.deployment_ref import DeploymentRef
from api.debug.recording_view import RecordingView
from core.clock import Clock
from core.errors import CallerError, Unavailable
from core.ids import Epoch, StreamName, StreamSeq
from core.subjects import ROUTING, SNAPSHOTS
from streams.archive.archive_export import Range, archive, copied
from streams.archive.archive_writer import ArchiveWriter
from streams.jetstream.broker_accounts import READER
from streams.jetstream.jetstream_log import JetStreamLog
from streams.log import EventLog
from streams.snapshot_store import SnapshotStore

FOLLOW_EVERY_S = 1.0
ROUTING_MESSAGES_SHOWN = 300_000
"""Messages of the routing stream that a copy begins with at least, if there are so many: some 100 000 decisions."""
MESSAGES_MAX = 3_000_000
"""Messages of all streams at which a copy ends."""
BYTES_MAX = 2 * 1024**3
"""Size of the file at which a copy ends."""

_logger = logging.getLogger(__name__)


class CopyEnded(CallerError):
    """The copy cannot grow any more; a new one can begin."""


class LogFollower:
    """See the module's text. `run` until it is cancelled."""

    def __init__(self, connection: DeploymentRef, path: Path, view: RecordingView, clock: Clock) -> None:
        self._connection = connection
        self._path = path
        self._view = view
        self._clock = clock
        self._messages = 0
        self._ends: dict[StreamName, StreamSeq] = {}
        self._epochs: dict[StreamName, Epoch] = {}

    def __repr__(self) -> str:
        return f"<LogFollower of {self._connection.namespace}, {self._messages} messages copied>"

    async def run(self) -> None:
        """Copies and follows the log; CopyEnded at the bounds. While the log is away, it waits."""
        writer = ArchiveWriter(
            self._path,
            self._connection.namespace,
            self._connection.key.chain_key,
            f"contrail {version('contrail')}",
            self._clock.wall_ms(),
        )
        try:
            async with self._log() as log:
                await self._begin(log, writer)
                while True:
                    await self._follow(log, writer)
                    await asyncio.sleep(FOLLOW_EVERY_S)
        finally:
            writer.abandon()

    @asynccontextmanager
    async def _log(self) -> AsyncIterator[JetStreamLog]:
        connection = self._connection
        log = await JetStreamLog.connect(
            connection.nats, connection.namespace, connection.topology, connection.nats_credentials(READER)
        )
        try:
            yield log
        finally:
            await log.close()

    async def _begin(self, log: EventLog, writer: ArchiveWriter) -> None:
        """The copy has the history that is shown first."""
        store = SnapshotStore(log, self._connection.namespace, self._connection.key.chain_key)
        await archive(log, store, writer, Range(await _start(log)), self._on_copied)
        shown = writer.so_far()
        for stream in shown.streams:
            span = shown.span(stream)
            self._ends[stream], self._epochs[stream] = StreamSeq(span.last_seq), Epoch(span.epoch)
        self._messages = shown.messages
        self._view.copied = None
        await self._view.show(shown)

    async def _follow(self, log: EventLog, writer: ArchiveWriter) -> None:
        """The log's present messages are in the copy, and shown."""
        try:
            grown = await self._grow(log, writer)
        except Unavailable as error:
            self._view.away = f"the log cannot be read at the moment: {error}"
            return
        self._view.away = ""
        if grown:
            await self._view.show(writer.so_far())
        if self._messages > MESSAGES_MAX or self._path.stat().st_size > BYTES_MAX:
            raise CopyEnded("the copy of the log has grown to its bounds: a new one is begun, ask again")

    async def _grow(self, log: EventLog, writer: ArchiveWriter) -> int:
        """The count of new messages. The routing stream's end is read first: so the copy has all that a copied
        decision rests on."""
        states = {stream: await log.state(stream) for stream in sorted(self._ends, key=lambda it: it != ROUTING)}
        grown = 0
        for stream, state in states.items():
            if state.epoch != self._epochs[stream] or state.last_seq < self._ends[stream]:
                raise CopyEnded(f"the history of {stream} was replaced: a new copy of the log is begun, ask again")
            async for seq in copied(log, writer, stream, self._ends[stream] + 1, state.last_seq + 1):
                grown += 1
                self._ends[stream] = seq
        self._messages += grown
        return grown

    def _on_copied(self, done: int, of: int) -> None:
        self._view.copied = done, of


async def _start(log: EventLog) -> dict[StreamName, StreamSeq] | None:
    """The first sequence shown, by stream; None for all of the log."""
    state = await log.state(ROUTING)
    first = state.last_seq - ROUTING_MESSAGES_SHOWN
    record = await log.at(ROUTING, StreamSeq(first)) if first > state.first_seq else None
    if record is None:
        return None
    streams = [stream for stream in await log.streams() if stream != SNAPSHOTS]
    return {stream: await log.seek(stream, record.time_ms) for stream in streams}
