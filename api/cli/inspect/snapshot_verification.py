"""Snapshots: their usability, taking one under a claim, and their verification against the log.

The claim orders two writers: the later one counts. Verification:

1. Its content has the checksum and, decoded, the digests that its manifest names.
2. Folded on to the log's present end, it is what the log gives alone. Streams move meanwhile, so each is compared at
   the newest message that both folds have applied; both keep the digests of their last messages.
3. Without the snapshot, a log with its head cut may not know a source: then that stream is not compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import aclosing
from typing import NamedTuple

import msgspec

from actors.consistency.snapshot_schedule import CLAIM
from core.clock import SystemClock
from core.codec import digest
from core.errors import Corrupt, Unavailable
from core.ids import StreamName, StreamSeq
from core.snapshot_manifest import Manifest
from core.subjects import SNAPSHOTS
from projections.digest import FOLD_VERSION
from projections.folds.snapshot import cursor_of, decoding
from projections.folds.state import State
from projections.runner.rebuild import fold_on, in_slices, rebuild, take_snapshot
from streams.log import EventLog, StreamState
from streams.registry import Registry
from streams.snapshot_store import SnapshotStore


class SnapshotStatus(NamedTuple):
    """One snapshot in the log, and whether it is usable."""

    manifest: Manifest
    why: str
    """The reason why it is unusable, as far as its manifest shows; empty if it is usable."""
    is_content_read: bool = False
    """True if its content was read, too, and is what the manifest names."""

    @property
    def usable(self) -> bool:
        """True if a replica may start from it."""
        return not self.why


async def snapshot_statuses(
    log: EventLog, manifests: Sequence[Manifest], fold_version: int, chain_key: bytes
) -> list[SnapshotStatus]:
    """Each manifest, in the order given, judged by what the log holds now: one small read per stream of each."""
    streams = {name: await log.state(name) for name in await log.streams() if name != SNAPSHOTS}
    found = []
    for manifest in manifests:
        why = manifest.why_no_start or unusable(manifest, streams, fold_version)
        if not why:
            why = await _replaced(log, manifest, streams, chain_key)
        found.append(SnapshotStatus(manifest, why))
    return found


def unusable(manifest: Manifest, streams: dict[StreamName, StreamState], fold_version: int) -> str:
    """The reason why the present streams cannot be folded on from the snapshot; empty if they can. Pure."""
    if manifest.fold_version != fold_version:
        return f"made by fold version {manifest.fold_version}, and this program folds by {fold_version}"
    for name, at in manifest.cursor.items():
        stream = streams.get(StreamName(name))
        if stream is None:
            return f"{name} is gone"
        if at.epoch != stream.epoch:
            return f"{name} was made anew since"
        if at.seq > stream.last_seq:
            return f"{name} ends before it"
        if at.seq + 1 < stream.first_seq:
            return f"what follows it in {name} was cut"
    return ""


async def _replaced(log: EventLog, manifest: Manifest, streams: dict[StreamName, StreamState], chain_key: bytes) -> str:
    """A reason if the message at the snapshot's end was replaced, not if retention removed it; else empty."""
    for stream, at in manifest.cursor.items():
        if not at.seq or at.seq < streams[StreamName(stream)].first_seq:
            continue
        record = await log.at(StreamName(stream), StreamSeq(at.seq))
        if record is None or digest(record.payload, chain_key).hex() != at.head:
            return f"another message or none stands at {stream}:{at.seq}, where it ends"
    return ""


CONTENT_BYTES_MAX = 64 << 20
"""Larger snapshots are not read by `content_checked`: some seconds."""


async def content_checked(
    store: SnapshotStore, statuses: Sequence[SnapshotStatus], chain_key: bytes
) -> list[SnapshotStatus]:
    """The same, in their order, newest first: the content of the usable ones was read down to the first that has the
    checksum and the digests of its manifest. Larger ones than CONTENT_BYTES_MAX are not read, and end the reading."""
    checked = list(statuses)
    for place, status in enumerate(statuses):
        if not status.usable:
            continue
        if status.manifest.size_bytes > CONTENT_BYTES_MAX:
            break
        try:
            await _restored(store, status.manifest, chain_key)
        except Corrupt as error:
            checked[place] = status._replace(why=str(error))
        else:
            checked[place] = status._replace(is_content_read=True)
            break
    return checked


async def take_fenced(log: EventLog, registry: Registry, store: SnapshotStore, chain_key: bytes, by: str) -> Manifest:
    """A snapshot of the present log, taken under an own claim, or under that of the elected writer.

    A replica keeps its claim while it lives. Then the snapshot is written with the replica's fence: both may write,
    one at a time, and a newly elected writer fences both. WrongSequence if that, or another snapshot, comes between;
    Unavailable if a plane is away.
    """
    claim = await registry.claim(CLAIM, b'{"by":"operator"}')
    try:
        fence = max(await _holder(registry) if claim is None else claim, await _newest_fence(store))
        return await take_snapshot(log, store, chain_key, by, fence, SystemClock().wall_ms())
    finally:
        if claim is not None:
            await registry.unregister(CLAIM)


async def _newest_fence(store: SnapshotStore) -> int:
    """The fence of the newest snapshot: in a wiped registry, revisions start again below it."""
    async with aclosing(store.newest_first()) as manifests:
        newest = await anext(manifests, None)
    return newest.fence if newest is not None else 0


async def _holder(registry: Registry) -> int:
    """The revision of the present claim; Unavailable if its holder has just gone."""
    for change in await registry.get(CLAIM):
        if change.key == CLAIM and change.value is not None:
            return change.revision
    raise Unavailable("another writer of snapshots has just gone: try again")


class SnapshotDifference(msgspec.Struct, frozen=True, kw_only=True):
    """A point at which the snapshot's fold and the log's differ."""

    stream: str
    seq: int
    snapshot: str
    log: str


class SnapshotVerification(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a verification, as `contrail snapshots verify --json` shows it."""

    id: str
    whole: bool
    """Content, checksum and digests are those that the manifest names."""
    why: str = ""
    """The reason why it is not."""
    agree: bool | None = None
    """With the log folded without it; None if that could not be seen for any stream."""
    compared: dict[str, int] = {}
    """The compared sequence of each stream."""
    not_compared: dict[str, str] = {}
    """The reason, by stream."""
    differences: list[SnapshotDifference] = []
    messages: int = 0
    blocks: int = 0

    @property
    def well(self) -> bool:
        """True if a replica may start from it."""
        return self.whole and self.agree is not False


async def verify(log: EventLog, store: SnapshotStore, manifest: Manifest, chain_key: bytes) -> SnapshotVerification:
    """The snapshot is read and compared; costs a fold of the whole log. Unavailable if the log cannot be read."""
    messages = sum(at.seq for at in manifest.cursor.values())
    try:
        state = await _restored(store, manifest, chain_key)
    except Corrupt as error:
        return SnapshotVerification(id=manifest.id, whole=False, why=str(error), messages=messages)
    blocks = sum(state.index.blocks(member.worker) for member in state.alive())
    folded = (await rebuild(log, chain_key, None)).state
    try:
        await fold_on(log, state)
    except Corrupt as error:
        return SnapshotVerification(
            id=manifest.id, whole=True, why=str(error), agree=False, messages=messages, blocks=blocks
        )
    compared, not_compared, differences = _compared(state, folded)
    return SnapshotVerification(
        id=manifest.id,
        whole=True,
        agree=not differences if compared else None,
        compared=compared,
        not_compared=not_compared,
        differences=differences,
        messages=messages,
        blocks=blocks,
    )


async def _restored(store: SnapshotStore, manifest: Manifest, chain_key: bytes) -> State:
    if manifest.fold_version != FOLD_VERSION:
        raise Corrupt(f"it is of fold version {manifest.fold_version}; this program folds by {FOLD_VERSION}")
    state = await in_slices(decoding(chain_key, await store.read(manifest)))
    if cursor_of(state) != manifest.cursor or f"{state.digest:016x}" != manifest.digest:
        raise Corrupt("its content has other digests than its manifest names")
    return state


def _compared(state: State, folded: State) -> tuple[dict[str, int], dict[str, str], list[SnapshotDifference]]:
    compared: dict[str, int] = {}
    not_compared: dict[str, str] = {}
    differences: list[SnapshotDifference] = []
    for stream, seq in _common(state, folded):
        one, other = state.point(stream, seq), folded.point(stream, seq)
        if seq == 0:
            continue
        if one is None or other is None:
            not_compared[stream] = "the log went on faster than it was folded: try again"
        elif not (one.complete and other.complete):
            not_compared[stream] = "a source is unknown until it restates itself"
        else:
            compared[stream] = seq
            if one.digest != other.digest:
                digests = {"snapshot": f"{one.digest:016x}", "log": f"{other.digest:016x}"}
                differences.append(SnapshotDifference(stream=stream, seq=seq, **digests))
    return compared, not_compared, differences


def _common(state: State, folded: State) -> Iterator[tuple[StreamName, StreamSeq]]:
    """The newest sequence of each stream that both have applied."""
    for stream in sorted(state.cursor.keys() & folded.cursor.keys()):
        yield stream, min(state.cursor[stream].seq, folded.cursor[stream].seq)
