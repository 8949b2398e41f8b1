"""Taking a snapshot under a claim, so that of two writers the later one counts."""

from __future__ import annotations

from core.clock import SystemClock
from core.errors import Unavailable
from core.manifest import Manifest
from projections.projection import FOLD_VERSION
from projections.rebuild import take_snapshot
from streams.log import EventLog
from streams.registry import Registry
from streams.snapshots import SnapshotStore

WRITER_KEY = f"snapshots/writer-{FOLD_VERSION}"
"""Who holds it writes the snapshots of this fold version."""


async def take_fenced(log: EventLog, registry: Registry, store: SnapshotStore, chain_key: bytes, by: str) -> Manifest:
    """A snapshot of the log as it is now was taken, under a claim of our own, or of the elected writer's.

    A replica keeps its claim for as long as it lives. Then ours is made in its name: with its fence both may write,
    one at a time, and whoever is elected after it fences both. WrongSequence if that, or another snapshot, comes
    between; Unavailable if a plane is away.
    """
    fence = await registry.claim(WRITER_KEY, b'{"by":"operator"}')
    if fence is not None:
        try:
            return await take_snapshot(log, store, chain_key, by, fence, SystemClock().wall_ms())
        finally:
            await registry.unregister(WRITER_KEY)
    return await take_snapshot(log, store, chain_key, by, await _holder(registry), SystemClock().wall_ms())


async def _holder(registry: Registry) -> int:
    """The claim of whoever holds it."""
    for change in await registry.get(WRITER_KEY):
        if change.key == WRITER_KEY and change.value is not None:
            return change.revision
    raise Unavailable("another writer of snapshots has just gone: try again")
