"""ArchiveLog: an archive behind the interface of the log that it was made from; nothing can be written to it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator

from core.ids import Epoch, StreamName, StreamSeq
from core.snapshot_manifest import Manifest
from streams.archive.archive_reader import ArchiveReader
from streams.log import NO_FINGERPRINTS, Fingerprints, Record, StreamState
from streams.read_only_log import ReadOnlyLog


class ArchiveLog(ReadOnlyLog):
    """See `streams.log.EventLog`. Calls do not wait: a read is a piece of the file. Corrupt if one is damaged."""

    def __init__(self, archive: ArchiveReader) -> None:
        """The caller keeps the archive and closes it."""
        self.archive = archive

    def __repr__(self) -> str:
        return f"<ArchiveLog of {self.archive!r}>"

    async def fingerprints(self, stream: StreamName) -> Fingerprints:
        """None: its key is proved by its chains."""
        del stream
        return NO_FINGERPRINTS

    async def at(self, stream: StreamName, seq: StreamSeq) -> Record | None:
        return self.archive.at(stream, seq)

    async def state(self, stream: StreamName) -> StreamState:
        """As if the log had been cut where the archive begins."""
        span = self.archive.span(stream)
        blocks = [block for block in self.archive.contents.blocks if block.stream == stream]
        first_seq = min(span.begin, span.last_seq + 1)
        return StreamState(
            Epoch(span.epoch),
            StreamSeq(first_seq),
            StreamSeq(span.last_seq),
            sum(block.messages for block in blocks),
            sum(block.piece.size for block in blocks),
        )

    async def seek(self, stream: StreamName, time_ms: int) -> StreamSeq:
        return self.archive.seek(stream, time_ms)

    async def read(self, stream: StreamName, start: StreamSeq) -> AsyncIterator[Record]:
        for record in self.archive.read(stream, start):
            yield record

    async def streams(self) -> list[StreamName]:
        return self.archive.streams

    async def close(self) -> None:
        pass  # the archive is not ours

    @property
    def refusal(self) -> str:
        return f"{self.archive.path} is an export: it is read, and never grows"


class ArchiveSnapshots:
    """The snapshots in an archive, as `streams.snapshot_store.SnapshotStore` has those of a log."""

    def __init__(self, archive: ArchiveReader) -> None:
        self._archive = archive

    def __repr__(self) -> str:
        return f"<ArchiveSnapshots of {self._archive!r}>"

    async def newest_first(self) -> AsyncGenerator[Manifest, None]:
        """All of them."""
        for manifest in reversed(self._archive.snapshots()):
            yield manifest

    async def read(self, manifest: Manifest) -> bytes:
        """The content. Corrupt if it is damaged."""
        return self._archive.snapshot(manifest)
