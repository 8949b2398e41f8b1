"""Rebuild: a State folded anew from the log, from the newest snapshot that is good for it, beside the live one.

1. A snapshot is good if the log still says what it rests on: per stream the same epoch, the same message at the
   cursor, nothing cut behind it; if its content has the checksum and the digests that its manifest names; and if all
   sources were complete when it was taken.
   Any other is refused with a warning that says why, and the one before it is looked at.
2. With none, the log is folded from what it still has. Sources without their first messages are unknown until they
   restate themselves.
3. The event loop goes on: nothing here takes it for longer than a slice.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import aclosing
from datetime import UTC, datetime
from typing import NamedTuple, TypeVar

from core.codec import digest
from core.errors import ContrailError, Corrupt, Unavailable
from core.ids import StreamName, StreamSeq
from core.snapshot_manifest import At, Manifest
from projections.digest import FOLD_VERSION
from projections.folds.snapshot import cursor_of, decoding, encoding
from projections.folds.state import Applied, State, is_folded
from streams.log import EventLog, Record
from streams.snapshot_store import SnapshotStore

BUFFERED_RECORDS_MAX = 65_536
"""Records held at most …"""
BUFFERED_BYTES_MAX = 64 * 1024 * 1024
"""… and their bytes; beyond either, what was held is let go and read again from the log."""


class RecordBuffer:
    """Records that tails deliver while a fold is made beside the live one, in their order, until it can take them."""

    def __init__(self) -> None:
        self.overflowed = False
        """True if records were dropped since the last `restart`: then the held ones do not follow on those that were
        read."""
        self._records: deque[Record] = deque()
        self._bytes = 0

    def __repr__(self) -> str:
        return f"<RecordBuffer {len(self._records)} records, {self._bytes} bytes{', overflowed' * self.overflowed}>"

    def __len__(self) -> int:
        return len(self._records)

    def add(self, record: Record) -> None:
        """The record is held, unless there are too many: then none is."""
        if self.overflowed:
            return
        self._records.append(record)
        self._bytes += len(record.payload)
        if len(self._records) > BUFFERED_RECORDS_MAX or self._bytes > BUFFERED_BYTES_MAX:
            self._let_go()
            self.overflowed = True

    def restart(self) -> None:
        """Records from now on are held; all before them are to be read from the log."""
        self._let_go()
        self.overflowed = False

    def forget(self, stream: StreamName) -> None:
        """The stream's history was replaced: what came of the one before is void."""
        self._records = deque(record for record in self._records if record.stream != stream)
        self._bytes = sum(len(record.payload) for record in self._records)

    def take(self) -> Record | None:
        """The oldest that is held, no longer held; None if there is none."""
        if not self._records:
            return None
        record = self._records.popleft()
        self._bytes -= len(record.payload)
        return record

    def _let_go(self) -> None:
        self._records.clear()
        self._bytes = 0


SLICE_S = 0.002
"""Others have their turn after so long …"""
SLICE_RECORDS_MAX = 256
"""… and after so many records, also where time stands still."""

T = TypeVar("T")
OnApplied = Callable[[Applied], None]
_logger = logging.getLogger(__name__)


class RebuildResult(NamedTuple):
    """A fold and where it came from."""

    state: State
    manifest: Manifest | None
    """The snapshot that it began with; None if it is folded from the log alone."""
    refused: list[str]
    """Why newer snapshots were not used."""


class Slices:
    """Counts the work that was done since others had their turn."""

    def __init__(self) -> None:
        self._clock = asyncio.get_running_loop().time
        self._end_s = self._clock() + SLICE_S
        self._left = SLICE_RECORDS_MAX

    def over(self) -> bool:
        """One more piece of work was done: whether it is time for others."""
        self._left -= 1
        return not self._left or self._clock() >= self._end_s

    async def give_way(self) -> None:
        """Others had their turn; a new slice begins."""
        await asyncio.sleep(0)
        self._end_s = self._clock() + SLICE_S
        self._left = SLICE_RECORDS_MAX


async def rebuild(
    log: EventLog, chain_key: bytes, store: SnapshotStore | None, on_applied: OnApplied | None = None
) -> RebuildResult:
    """A state folded up to what was each stream's end when it was read. Unavailable if the log cannot be read.

    `on_applied` hears of every record that is folded behind the snapshot.
    """
    found = (
        await _newest_usable(log, chain_key, store) if store is not None else RebuildResult(State(chain_key), None, [])
    )
    await fold_on(log, found.state, on_applied)
    return found


async def fold_on(log: EventLog, state: State, on_applied: OnApplied | None = None) -> None:
    """The state is folded up to the present end of every stream. Unavailable if the log cannot be read."""
    for stream in await log.streams():
        if is_folded(stream):
            await _fold_stream(log, state, stream, on_applied)


async def take_snapshot(
    log: EventLog, store: SnapshotStore, chain_key: bytes, by: str, fence: int, now_ms: int
) -> Manifest:
    """A snapshot of the log as it is now stands in the log; folded from the log, never copied from a live fold, so no
    error in a replica's memory becomes history. WrongSequence if a writer with a newer claim took over."""
    rebuilt = await rebuild(log, chain_key, store)
    state = rebuilt.state
    content = await in_slices(encoding(state))
    draft = Manifest(
        id=_new_id(now_ms, fence),
        fold_version=FOLD_VERSION,
        made_ms=now_ms,
        by=by,
        fence=fence,
        cursor=cursor_of(state),
        digest=f"{state.digest:016x}",
        incomplete=state.incomplete,
        chunks=0,
        first_seq=0,
        size_bytes=0,
        checksum="",
    )
    return await store.write(content, draft)


async def in_slices(step: Generator[None, None, T]) -> T:
    """The return value of the generator; the event loop has a turn after each slice."""
    slices = Slices()
    while True:
        try:
            next(step)
        except StopIteration as end:
            found: T = end.value
            return found
        if slices.over():
            await slices.give_way()


async def _fold_stream(log: EventLog, state: State, stream: StreamName, on_applied: OnApplied | None) -> None:
    held = await log.state(stream)
    start = state.open(stream, held.epoch) + 1
    if state.cursor[stream].epoch != held.epoch:
        raise Unavailable(f"stream {stream} was made anew while it was folded")
    records, slices = log.read(stream, StreamSeq(start)), Slices()
    try:
        async for record in records:
            applied = state.apply(stream, record.seq, record.subject, record.payload)
            if on_applied is not None and applied is not None:
                on_applied(applied)
            if slices.over():
                await slices.give_way()
    finally:
        if isinstance(records, AsyncGenerator):
            await records.aclose()
    if state.cursor[stream].seq < held.first_seq - 1:  # retention took all there was
        state.skip_to(stream, StreamSeq(held.first_seq - 1))


async def _newest_usable(log: EventLog, chain_key: bytes, store: SnapshotStore) -> RebuildResult:
    """The state of the newest snapshot that the log bears out; an empty one if there is none."""
    refused: list[str] = []
    try:
        async with aclosing(store.newest_first()) as manifests:
            async for manifest in manifests:
                try:
                    await _check(log, chain_key, manifest)
                    return RebuildResult(await _restored(store, chain_key, manifest), manifest, refused)
                except Corrupt as error:
                    refused.append(f"snapshot {manifest.id}: {error}")
                    _logger.warning("%s; the one before it is tried", refused[-1])
    except Unavailable:
        raise
    except ContrailError as error:
        refused.append(f"snapshots cannot be read: {error}")
        _logger.warning("%s; the log is folded from its start", refused[-1])
    return RebuildResult(State(chain_key), None, refused)


async def _check(log: EventLog, chain_key: bytes, manifest: Manifest) -> None:
    """Corrupt, saying why, if the log does not bear the snapshot out."""
    if manifest.fold_version != FOLD_VERSION:
        raise Corrupt(f"it is of fold version {manifest.fold_version}; this program folds by {FOLD_VERSION}")
    if manifest.why_no_start:
        raise Corrupt(manifest.why_no_start)
    streams = await log.streams()
    for name, at in manifest.cursor.items():
        stream = StreamName(name)
        if stream not in streams:
            raise Corrupt(f"stream {stream} is gone")
        await _check_stream(log, chain_key, stream, at)


async def _check_stream(log: EventLog, chain_key: bytes, stream: StreamName, at: At) -> None:
    held = await log.state(stream)
    if held.epoch != at.epoch:
        raise Corrupt(f"stream {stream} was made anew since")
    if held.last_seq < at.seq:
        raise Corrupt(f"stream {stream} ends at {held.last_seq}, before its cursor {at.seq}: history was replaced")
    if held.first_seq > at.seq + 1:
        raise Corrupt(f"stream {stream} begins at {held.first_seq}: what follows its cursor {at.seq} is gone")
    if held.first_seq <= at.seq and at.head:
        record = await log.at(stream, StreamSeq(at.seq))
        if record is None or digest(record.payload, chain_key).hex() != at.head:
            raise Corrupt(f"another message or none stands at its cursor {stream}:{at.seq}: history was replaced")


async def _restored(store: SnapshotStore, chain_key: bytes, manifest: Manifest) -> State:
    state = await in_slices(decoding(chain_key, await store.read(manifest)))
    if cursor_of(state) != manifest.cursor or f"{state.digest:016x}" != manifest.digest:
        raise Corrupt("its content has other digests than its manifest names")
    if state.incomplete:
        raise Corrupt(f"its manifest hides that {state.incomplete} of its sources are incomplete")
    return state


def _new_id(now_ms: int, fence: int) -> str:
    """Sorts by time; no two of one claim are alike."""
    made = datetime.fromtimestamp(now_ms / 1000, UTC)
    return f"{made:%Y%m%dt%H%M%S}-{now_ms % 1000:03}-{fence}"
