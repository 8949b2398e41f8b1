"""Archiving: the log, or a range of it, copied into an archive with the snapshot before it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import aclosing
from typing import NamedTuple

from core.errors import Corrupt
from core.ids import StreamName, StreamSeq
from core.manifest import Manifest
from core.subjects import SNAPSHOTS
from streams.archive_writer import ArchiveWriter
from streams.log import EventLog, StreamState
from streams.snapshots import SnapshotStore


class Range(NamedTuple):
    """What is wanted: per stream from a sequence on, up to one (not included); None is open."""

    start: Mapping[StreamName, StreamSeq] | None = None
    end: Mapping[StreamName, StreamSeq] | None = None


Progress = Callable[[int, int], None]
"""Told messages copied, and how many there are to copy."""


async def archive(
    log: EventLog,
    store: SnapshotStore,
    writer: ArchiveWriter,
    wanted: Range = Range(),  # noqa: B008 - immutable
    progress: Progress = lambda _done, _of: None,
) -> None:
    """The writer has every message in the range, those between the snapshot before it and its start, that snapshot,
    and those within the range. Unavailable if the log goes away."""
    streams = [stream for stream in await log.streams() if stream != SNAPSHOTS]
    states = {stream: await log.state(stream) for stream in streams}
    manifests = await _usable(store, states)
    base = _before(manifests, wanted.start, states)
    starts = {
        stream: StreamSeq(base.cursor[stream].seq + 1 if base is not None and stream in base.cursor else 1)
        for stream in streams
    }
    ends = {stream: _end(states[stream], wanted.end, stream) for stream in streams}
    total, done = sum(max(0, ends[s] - max(starts[s], states[s].first_seq)) for s in streams), 0
    for manifest in manifests:
        if all(starts[StreamName(s)] - 1 <= at.seq < ends[StreamName(s)] for s, at in manifest.cursor.items()):
            await _copy_snapshot(store, writer, manifest)
    for stream in streams:
        writer.open(stream, states[stream].epoch, starts[stream], states[stream].first_seq)
        async for _ in copied(log, writer, stream, starts[stream], ends[stream]):
            done += 1
            progress(done, total)
        writer.reached(stream, ends[stream] - 1)


async def copied(
    log: EventLog, writer: ArchiveWriter, stream: StreamName, start: int, end: int
) -> AsyncIterator[StreamSeq]:
    """Copies the stream's messages from `start` up to `end` (not included), and yields where each stood."""
    if start >= end:
        return
    async with aclosing(log.read(stream, StreamSeq(start))) as records:  # type: ignore[type-var]
        async for record in records:
            if record.seq >= end:
                return
            writer.add(record)
            yield record.seq


async def _usable(store: SnapshotStore, states: Mapping[StreamName, StreamState]) -> list[Manifest]:
    """The snapshots that fit what the log is now, oldest first."""
    found = []
    async for manifest in store.newest_first():
        fits = [
            stream in states
            and states[stream].epoch == at.epoch
            and states[stream].first_seq - 1 <= at.seq <= states[stream].last_seq
            for stream, at in ((StreamName(name), at) for name, at in manifest.cursor.items())
        ]
        if all(fits):
            found.append(manifest)
    return found[::-1]


def _before(
    manifests: list[Manifest], start: Mapping[StreamName, StreamSeq] | None, states: Mapping[StreamName, StreamState]
) -> Manifest | None:
    """The newest that lies before the start in every stream. For an open start none if the log has all of its
    history, else the oldest, behind which most can be replayed."""
    if start is None:
        whole = all(state.first_seq <= 1 for state in states.values())
        return manifests[0] if manifests and not whole else None
    fitting = [each for each in manifests if all(at.seq < start.get(StreamName(s), 0) for s, at in each.cursor.items())]
    return fitting[-1] if fitting else None


def _end(state: StreamState, end: Mapping[StreamName, StreamSeq] | None, stream: StreamName) -> int:
    last = state.last_seq + 1
    return last if end is None else min(last, end.get(stream, last))


async def _copy_snapshot(store: SnapshotStore, writer: ArchiveWriter, manifest: Manifest) -> None:
    try:
        content = await store.read(manifest)
    except Corrupt:
        return  # it is of no use to anybody; the one before it is there, or the log's start
    writer.add_snapshot(manifest, content)
