"""Verification: a snapshot read back, and compared with the log folded without it.

1. Its content has the checksum and, decoded, the digests that its manifest names.
2. Folded on to the log's present end, it is what the log gives alone. Streams move meanwhile, so each is compared at
   the newest message that both folds have applied; both keep the digests of their last messages.
3. A log whose head was cut may not know a source without the snapshot: then nothing is said about that stream.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from core.errors import Corrupt
from core.ids import StreamName, StreamSeq
from core.snapshot_manifest import Manifest
from projections.folds.digest import FOLD_VERSION
from projections.folds.snapshot import cursor_of, decoding
from projections.folds.state import State
from projections.runner.rebuild import fold_on, in_slices, rebuild
from streams.log import EventLog
from streams.snapshot_store import SnapshotStore


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """Where the snapshot's fold and the log's differ."""

    stream: str
    seq: int
    snapshot: str
    log: str


class Verified(msgspec.Struct, frozen=True, kw_only=True):
    """What was found, as `contrail snapshots verify --json` shows it."""

    id: str
    whole: bool
    """Content, checksum and digests are those that the manifest names."""
    why: str = ""
    """Why it is not."""
    agree: bool | None = None
    """With the log folded without it; None if that could not be seen for any stream."""
    compared: dict[str, int] = {}
    """At which sequence of each stream."""
    not_compared: dict[str, str] = {}
    """Why, by stream."""
    differences: list[Difference] = []
    messages: int = 0
    blocks: int = 0

    @property
    def well(self) -> bool:
        """Whether a start may rest on it."""
        return self.whole and self.agree is not False


async def verify(log: EventLog, store: SnapshotStore, manifest: Manifest, chain_key: bytes) -> Verified:
    """The snapshot is read and compared; costs a fold of the whole log. Unavailable if the log cannot be read."""
    messages = sum(at.seq for at in manifest.cursor.values())
    try:
        state = await _restored(store, manifest, chain_key)
    except Corrupt as error:
        return Verified(id=manifest.id, whole=False, why=str(error), messages=messages)
    blocks = sum(state.index.blocks(member.worker) for member in state.alive())
    folded = (await rebuild(log, chain_key, None)).state
    try:
        await fold_on(log, state)
    except Corrupt as error:
        return Verified(id=manifest.id, whole=True, why=str(error), agree=False, messages=messages, blocks=blocks)
    compared, not_compared, differences = _compared(state, folded)
    return Verified(
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


def _compared(state: State, folded: State) -> tuple[dict[str, int], dict[str, str], list[Difference]]:
    compared: dict[str, int] = {}
    not_compared: dict[str, str] = {}
    differences: list[Difference] = []
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
                said = (f"{one.digest:016x}", f"{other.digest:016x}")
                differences.append(Difference(stream=stream, seq=seq, snapshot=said[0], log=said[1]))
    return compared, not_compared, differences


def _common(state: State, folded: State) -> Iterator[tuple[StreamName, StreamSeq]]:
    """The newest sequence of each stream that both have applied."""
    for stream in sorted(state.cursor.keys() & folded.cursor.keys()):
        yield stream, min(state.cursor[stream].seq, folded.cursor[stream].seq)
