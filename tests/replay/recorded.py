"""Recordings for tests: what a world in memory said, as an archive."""

from __future__ import annotations

from pathlib import Path

from core.clock import SystemClock
from core.keys import DeploymentKey
from replay.recording import Recording
from streams.archive_writer import ArchiveWriter
from streams.archiving import Range, archive
from streams.log import EventLog
from streams.snapshots import SnapshotStore


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
