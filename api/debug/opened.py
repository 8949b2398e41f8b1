"""Opened: an export, or the log of a running deployment, on show."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

from starlette.types import ASGIApp

from api.config.deployment_ref import DeploymentRef
from api.debug.exhibit import Exhibit
from api.debug.follower import MESSAGES_MAX, Follower
from api.debug.questions import create_questions
from core.clock import SystemClock
from core.keys import DeploymentKey
from streams.archive.archive_reader import ArchiveReader


class Opened(NamedTuple):
    """What is on show."""

    exhibit: Exhibit
    questions: ASGIApp
    over: asyncio.Future[None]
    """Done when a running deployment cannot be followed any more, with the error."""


@asynccontextmanager
async def opened(
    file: Path | None, key: DeploymentKey | None, connection: DeploymentRef | None, folder: Path | None = None
) -> AsyncIterator[Opened]:
    """Questions are answered until the end; CallerError or Corrupt if the file is none. The copy of a running
    deployment's log lies in `folder`, in a temporary one if that is None, and is gone at the end."""
    if file is not None:
        async with _file_opened(file, key) as shown:
            yield shown
    else:
        assert connection is not None
        with tempfile.TemporaryDirectory(prefix="contrail-debug-", dir=folder) as copies:
            async with _log_opened(connection, Path(copies)) as shown:
                yield shown


@asynccontextmanager
async def _file_opened(file: Path, key: DeploymentKey | None) -> AsyncIterator[Opened]:
    exhibit = Exhibit(file.name, key, SystemClock())
    exhibit.start()
    try:
        await exhibit.show(ArchiveReader.open(file))
        yield Opened(exhibit, create_questions(exhibit), asyncio.get_running_loop().create_future())
    finally:
        await exhibit.close()


@asynccontextmanager
async def _log_opened(connection: DeploymentRef, folder: Path) -> AsyncIterator[Opened]:
    clock = SystemClock()
    exhibit = Exhibit(f"the log of {connection.namespace}", connection.key, clock, live_messages_max=MESSAGES_MAX)
    exhibit.start()
    follower = Follower(connection, folder / "log", exhibit, clock)
    following = asyncio.create_task(follower.run(), name="follow the log")
    try:
        yield Opened(exhibit, create_questions(exhibit), following)
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        await exhibit.close()
