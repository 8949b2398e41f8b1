"""Listed: a snapshot with whether the log can be folded on from it, without reading its content."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from core.codec import digest
from core.ids import StreamName, StreamSeq
from core.snapshot_manifest import Manifest
from core.subjects import SNAPSHOTS
from streams.log import EventLog, StreamState


class Listed(NamedTuple):
    """One snapshot that stands in the log."""

    manifest: Manifest
    why: str
    """Why it is of no use, as far as its manifest shows; empty if it is usable."""

    @property
    def usable(self) -> bool:
        """Whether a start may be made from it."""
        return not self.why


async def listed(log: EventLog, manifests: Sequence[Manifest], fold_version: int, chain_key: bytes) -> list[Listed]:
    """Each manifest, in the order given, judged by what the log holds now: one small read per stream of each."""
    streams = {name: await log.state(name) for name in await log.streams() if name != SNAPSHOTS}
    found = []
    for manifest in manifests:
        why = unusable(manifest, streams, fold_version)
        if not why:
            why = await _replaced(log, manifest, streams, chain_key)
        found.append(Listed(manifest, why))
    return found


def unusable(manifest: Manifest, streams: dict[StreamName, StreamState], fold_version: int) -> str:
    """Why the streams as they are cannot be folded on from it; empty if they can. Pure."""
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
    """Whether another message stands where the snapshot ends; one that retention took is not held against it."""
    for stream, at in manifest.cursor.items():
        if not at.seq or at.seq < streams[StreamName(stream)].first_seq:
            continue
        record = await log.at(StreamName(stream), StreamSeq(at.seq))
        if record is None or digest(record.payload, chain_key).hex() != at.head:
            return f"another message or none stands at {stream}:{at.seq}, where it ends"
    return ""
