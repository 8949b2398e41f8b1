"""Export: the log, or a range of it, copied into an archive with the snapshot before it; and a range of an archive.

1. A range holds the inputs of its decisions: it begins with a snapshot behind which every decision in it can be folded,
   however old the cursor that it was made at, and ends no sooner than the newest of these cursors. DecisionReach finds
   both: a decision is written a while after it was made, at a cursor that lags behind the log, so its inputs may lie
   before the range and, by the clocks of several servers, behind it.
2. The routing stream's end is read first: all inputs of a decision stood in the log before it.
3. Without a snapshot before it a range begins where the log does; removals by retention are reported.
4. A decision may continue one before the range: the archive then has the hashes of that one's prompt.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Container, Mapping
from contextlib import aclosing
from typing import NamedTuple, Protocol

import msgspec

from core.codec import DIGEST_BYTES, digest
from core.errors import Corrupt, Unavailable
from core.events.compact_decision import cursor_of, partial_values
from core.ids import Epoch, StreamName, StreamSeq
from core.snapshot_manifest import At, Manifest
from core.subjects import JOBS, LOAD, ROUTING, SNAPSHOTS, is_kv, owner
from streams.archive.archive_log import ArchiveLog, ArchiveSnapshots
from streams.archive.archive_reader import ArchiveReader
from streams.archive.archive_writer import ArchiveWriter
from streams.archive.message_envelope import envelope
from streams.archive.prompt_bases import PromptBases
from streams.log import EventLog, Record, StreamState


class DecisionReach:
    """See the module's text; of nothing read yet."""

    def __init__(self, epochs: Mapping[StreamName, Epoch]) -> None:
        """Cursors in other epochs of a stream do not count."""
        self.lows: dict[StreamName, int] = {}
        self.highs: dict[StreamName, int] = {}
        self._epochs = epochs

    def __repr__(self) -> str:
        return f"<DecisionReach from {self.lows} to {self.highs}>"

    async def read(self, log: EventLog, start: StreamSeq, end: int) -> None:
        """Those of the routing stream from `start` up to `end` (not included) count too; a microsecond or two each."""
        if start >= end:
            return
        async with aclosing(log.read(ROUTING, start)) as records:  # type: ignore[type-var]
            async for record in records:
                if record.seq >= end:
                    return
                self._note(record.payload)

    def _note(self, payload: bytes) -> None:
        try:
            message = _message.decode(payload)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return  # JSON, or no message of ours: neither holds a decision
        for event in message.events:
            cursor = event.cursor if event.d is None else cursor_of(event.d.cursor)
            for stream, (epoch, seq) in cursor.items():
                if self._epochs.get(stream) == epoch:
                    self.lows[stream] = min(self.lows.get(stream, seq), seq)
                    self.highs[stream] = max(self.highs.get(stream, seq), seq)


_Values = partial_values("cursor")


class _Event(msgspec.Struct):
    """Of a decision, or a refusal, the cursor that it was made at; other events have none."""

    cursor: dict[StreamName, tuple[int, int]] = {}
    d: _Values | None = None  # type: ignore[valid-type]
    """Of a compact decision."""


class _Message(msgspec.Struct):
    events: list[_Event]


_message: msgspec.msgpack.Decoder[_Message] = msgspec.msgpack.Decoder(_Message)


class Range(NamedTuple):
    """The range to copy: per stream from a sequence on, up to one (not included); None is open."""

    start: Mapping[StreamName, StreamSeq] | None = None
    end: Mapping[StreamName, StreamSeq] | None = None


class ExportedRange(NamedTuple):
    """The range that was copied."""

    base: Manifest | None
    """The snapshot that the range begins with; None if it begins where the log does."""
    cut: dict[StreamName, StreamSeq]
    """Streams that lost their head to retention with no snapshot in its place, and their first sequence. Decisions
    before the next snapshot can be shown, and not be made again."""


class SnapshotReader(Protocol):
    """Reads snapshots of a log, or of an archive."""

    def newest_first(self) -> AsyncGenerator[Manifest, None]:
        """All manifests."""

    async def read(self, manifest: Manifest) -> bytes:
        """The content. Corrupt if it is not whole."""


Progress = Callable[[int, int], None]
"""Told messages copied, and how many there are to copy; the last time that all are."""
States = Mapping[StreamName, StreamState]


async def archive(
    log: EventLog,
    store: SnapshotReader,
    writer: ArchiveWriter,
    requested: Range = Range(),  # noqa: B008 - immutable
    progress: Progress = lambda _done, _of: None,
    *,
    fold_versions: Container[int] | None = None,
) -> ExportedRange:
    """The writer has every message in the range, the snapshot before it with the messages between, and the snapshots
    within. Of `fold_versions` only, if they are given. Unavailable if the log goes away or is made anew meanwhile."""
    states = await _states(log)
    reach = await _reach(log, states, requested)
    usable = await _usable(log, store, states, writer.chain_key, fold_versions)
    base = await _first_whole(store, _before(usable, requested.start, reach))
    starts = {stream: _start(base, stream) for stream in states}
    ends = {stream: _end(state, requested.end, stream, reach) for stream, state in states.items()}
    saved = []
    for manifest in usable:
        if all(starts[s] - 1 <= at.seq < ends[s] for s, at in _cursor(manifest)):
            try:
                writer.add_snapshot(manifest, await store.read(manifest))
            except Corrupt:
                continue  # it is of no use to anybody; the one before it is there, or the log's start
            saved.append(manifest)
    bases = PromptBases(starts.get(ROUTING, 0))
    await _copy_streams(log, writer, states, {s: (starts[s], ends[s]) for s in states}, progress, bases)
    writer.add_columns(await bases.columns(log, log.archive.columns if isinstance(log, ArchiveLog) else {}))
    return ExportedRange(base, _cut(states, starts, saved))


async def copied(
    log: EventLog,
    writer: ArchiveWriter,
    stream: StreamName,
    start: int,
    end: int,
    on_record: Callable[[Record], None] = lambda _: None,
) -> AsyncIterator[StreamSeq]:
    """Copies the stream's messages from `start` up to `end` (not included), and yields where each stood."""
    if start >= end:
        return
    async with aclosing(log.read(stream, StreamSeq(start))) as records:  # type: ignore[type-var]
        async for record in records:
            if record.seq >= end:
                return
            writer.add(record)
            on_record(record)
            yield record.seq


async def _copy_streams(
    log: EventLog,
    writer: ArchiveWriter,
    states: States,
    bounds: Mapping[StreamName, tuple[int, int]],
    progress: Progress,
    bases: PromptBases,
) -> None:
    total = sum(max(0, end - max(start, states[s].first_seq)) for s, (start, end) in bounds.items())
    done = 0
    for stream, (start, end) in sorted(bounds.items()):
        writer.open(stream, states[stream].epoch, start, states[stream].first_seq)
        first = None
        note = _noting(bases) if stream == ROUTING and start > 1 else _ignore
        async for seq in copied(log, writer, stream, start, end, note):
            first = seq if first is None else first
            done += 1
            progress(min(done, total - 1), total)
        if first is not None and first > max(start, states[stream].first_seq):
            writer.retained(stream, first)  # retention was faster than we
        writer.reached(stream, end - 1)
        if (await log.state(stream)).epoch != states[stream].epoch:
            raise Unavailable(f"stream {stream} was made anew while it was copied: try again")
    progress(total, total)


def _noting(bases: PromptBases) -> Callable[[Record], None]:
    return lambda record: bases.note(record.payload)


def _ignore(_record: Record) -> None:
    """Nothing stands before the start of the stream."""


# --- what to copy ----------------------------------------------------------------------------------------------


async def _states(log: EventLog) -> dict[StreamName, StreamState]:
    streams = [stream for stream in await log.streams() if stream != SNAPSHOTS]
    streams.sort(key=lambda stream: stream != ROUTING)
    return {stream: await log.state(stream) for stream in streams}


async def _reach(log: EventLog, states: States, requested: Range) -> DecisionReach:
    epochs = {stream: state.epoch for stream, state in states.items()}
    reach = DecisionReach(epochs)
    if ROUTING in states and (requested.start is not None or requested.end is not None):
        start = _start(None, ROUTING) if requested.start is None else requested.start.get(ROUTING, StreamSeq(1))
        await reach.read(log, StreamSeq(start), _end(states[ROUTING], requested.end, ROUTING, reach))
    return reach


async def _usable(
    log: EventLog, store: SnapshotReader, states: States, chain_key: bytes, fold_versions: Container[int] | None
) -> list[Manifest]:
    """The snapshots that the log bears out, oldest first."""
    newest_first = [
        manifest
        async for manifest in store.newest_first()
        if (fold_versions is None or manifest.fold_version in fold_versions)
        and await _is_borne_out(log, states, chain_key, manifest)
    ]
    return newest_first[::-1]


async def _is_borne_out(log: EventLog, states: States, chain_key: bytes, manifest: Manifest) -> bool:
    """Nothing behind its cursor is gone, and the message there is the one that was folded; without a key that is
    believed."""
    for stream, at in _cursor(manifest):
        state = states.get(stream)
        if state is None or state.epoch != at.epoch or not state.first_seq - 1 <= at.seq <= state.last_seq:
            return False
        if chain_key and at.head and at.seq >= state.first_seq:
            record = await log.at(stream, StreamSeq(at.seq))
            if record is None or digest(record.payload, chain_key).hex() != at.head:
                return False
    return True


def _before(
    usable: list[Manifest], start: Mapping[StreamName, StreamSeq] | None, reach: DecisionReach
) -> list[Manifest]:
    """Those that a fold may start from, before the start and before all that the decisions behind it had read, in
    every stream; oldest first."""
    if start is None:
        return []

    def is_before(stream: StreamName, at: At) -> bool:
        return at.seq <= min(start.get(stream, StreamSeq(1)) - 1, reach.lows.get(stream, at.seq))

    starts = (manifest for manifest in usable if not manifest.why_no_start)
    return [manifest for manifest in starts if all(is_before(stream, at) for stream, at in _cursor(manifest))]


async def _first_whole(store: SnapshotReader, manifests: list[Manifest]) -> Manifest | None:
    """The newest of them with readable content."""
    for manifest in reversed(manifests):
        try:
            await store.read(manifest)
        except Corrupt:
            continue
        return manifest
    return None


def _start(base: Manifest | None, stream: StreamName) -> int:
    return 1 if base is None or stream not in base.cursor else base.cursor[stream].seq + 1


def _end(
    state: StreamState, end: Mapping[StreamName, StreamSeq] | None, stream: StreamName, reach: DecisionReach
) -> int:
    last = state.last_seq + 1
    return last if end is None else min(last, max(end.get(stream, StreamSeq(last)), reach.highs.get(stream, 0) + 1))


def _cut(states: States, starts: Mapping[StreamName, int], saved: list[Manifest]) -> dict[StreamName, StreamSeq]:
    cut = {s: state.first_seq for s, state in states.items() if state.first_seq > starts[s] and _is_folded(s)}
    for manifest in saved:
        if not manifest.why_no_start and all(
            s in manifest.cursor and manifest.cursor[s].seq == first - 1 for s, first in cut.items()
        ):
            return {}
    return cut


def _is_folded(stream: StreamName) -> bool:
    return is_kv(stream) or stream in {LOAD, ROUTING, JOBS}


def _cursor(manifest: Manifest) -> list[tuple[StreamName, At]]:
    return [(StreamName(stream), at) for stream, at in manifest.cursor.items()]


async def cut(
    source: ArchiveReader,
    writer: ArchiveWriter,
    requested: Range = Range(),  # noqa: B008 - immutable
    progress: Progress = lambda _done, _of: None,
    *,
    fold_versions: Container[int] | None = None,
) -> ExportedRange:
    """As `streams.archive.archive_export.archive`, from an archive. A writer without a key gets the heads of chains
    from what follows the range in the source; of a chain that goes on there with a gap it gets none. Corrupt if the
    source is damaged anywhere."""
    for _ in source.check():  # a snapshot that cannot be read is passed over below: here it is damage
        pass
    archived = await archive(
        ArchiveLog(source), ArchiveSnapshots(source), writer, requested, progress, fold_versions=fold_versions
    )
    if not writer.chain_key:
        _set_heads(source, writer)
    return archived


def _set_heads(source: ArchiveReader, writer: ArchiveWriter) -> None:
    for stream in source.streams:
        missing = writer.numbers(stream)
        for name, head in source.contents.heads.get(stream, {}).items():
            if missing.get(name) == head.n:
                writer.set_head(stream, name, head.digest)
                del missing[name]
        for record in source.read(stream, writer.last_seq(stream) + 1) if missing else ():
            message = envelope(record.payload)
            if message is None or not message.of(owner(record.subject)) or len(message.prev) != DIGEST_BYTES:
                continue
            if missing.get(message.source) == message.n - 1:
                writer.set_head(stream, message.source, message.prev.hex())
                del missing[message.source]
                if not missing:
                    break
