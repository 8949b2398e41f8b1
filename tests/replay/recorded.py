"""Recordings for tests: what a world in memory said, as an archive."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from actors.router.router import Router
from core.clock import SystemClock
from core.keys import DeploymentKey
from replay.recording.recording import Recording
from streams.archive.archive_export import Range, archive
from streams.archive.archive_writer import ArchiveWriter
from streams.log import EventLog
from streams.snapshot_store import SnapshotStore
from tests.actors.world import World, collect, request, world


@asynccontextmanager
async def pair() -> AsyncIterator[tuple[World, list[Router]]]:
    """A world of two workers, `a` and `b`, and two replicas that can use both."""
    async with world() as it:
        for name in "ab":
            await it.worker(name)
        routers = [await it.router(f"frontend-{number}") for number in range(2)]
        for router in routers:
            await it.ready(router, 2)
        yield it, routers


async def conversations(routers: list[Router], clients: int, turns: int, max_tokens: int = 3, tenant: str = "") -> None:
    """So many clients at once have asked so many times, each time with a longer prompt; every third begins alike."""

    async def client(number: int) -> None:
        for turn in range(turns):
            start = number % 3 * 1000
            asked = request(range(start, start + 60 + 16 * turn), max_tokens, tenant=tenant)
            await collect(routers[number % len(routers)], asked)

    await asyncio.gather(*map(client, range(clients)))


async def archived(
    log: EventLog,
    namespace: str,
    key: DeploymentKey,
    path: Path,
    wanted: Range = Range(),  # noqa: B008 - immutable
) -> Path:
    """The log's messages stand in the file."""
    writer = ArchiveWriter(path, namespace, key.chain_key, "contrail test", SystemClock().wall_ms())
    await archive(log, SnapshotStore(log, namespace, key.chain_key), writer, wanted)
    writer.finish(writer.contents(0, SystemClock().wall_ms()))
    return path


async def recorded(log: EventLog, namespace: str, key: DeploymentKey, path: Path) -> Recording:
    """The same, opened with the key."""
    return Recording.open(await archived(log, namespace, key, path), key)
