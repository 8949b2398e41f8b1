"""Taking a snapshot under a claim, so that of two writers the later one counts."""

from __future__ import annotations

from contextlib import aclosing

from actors.consistency.snapshot_schedule import CLAIM
from core.clock import SystemClock
from core.errors import Unavailable
from core.snapshot_manifest import Manifest
from projections.runner.rebuild import take_snapshot
from streams.log import EventLog
from streams.registry import Registry
from streams.snapshot_store import SnapshotStore


async def take_fenced(log: EventLog, registry: Registry, store: SnapshotStore, chain_key: bytes, by: str) -> Manifest:
    """A snapshot of the log as it is now was taken, under a claim of our own, or of the elected writer's.

    A replica keeps its claim for as long as it lives. Then ours is made in its name: with its fence both may write,
    one at a time, and whoever is elected after it fences both. WrongSequence if that, or another snapshot, comes
    between; Unavailable if a plane is away.
    """
    claim = await registry.claim(CLAIM, b'{"by":"operator"}')
    try:
        fence = max(await _holder(registry) if claim is None else claim, await _newest_fence(store))
        return await take_snapshot(log, store, chain_key, by, fence, SystemClock().wall_ms())
    finally:
        if claim is not None:
            await registry.unregister(CLAIM)


async def _newest_fence(store: SnapshotStore) -> int:
    """Revisions start again in a registry that was wiped: a claim of now must not lose to one from before."""
    async with aclosing(store.newest_first()) as manifests:
        newest = await anext(manifests, None)
    return newest.fence if newest is not None else 0


async def _holder(registry: Registry) -> int:
    """The claim of whoever holds it."""
    for change in await registry.get(CLAIM):
        if change.key == CLAIM and change.value is not None:
            return change.revision
    raise Unavailable("another writer of snapshots has just gone: try again")
