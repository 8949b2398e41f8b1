"""The process behind a front end's page: it follows the log, folds it, and answers questions on an inherited socket.

`open_page_backend` serves any process, over an export or over the log of a running deployment.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import socket
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import click
from starlette.types import ASGIApp, Receive, Scope, Send

from api.config.deployment_ref import DeploymentRef, deployment_options
from api.debug.log_follower import MESSAGES_MAX, LogFollower
from api.debug.page_api import create_page_api
from api.debug.recording_view import RecordingView
from api.process.lifecycle import stop_requested
from api.process.logging_setup import configure_logging
from api.server.http_server import HttpServer
from core.clock import Clock, SystemClock
from core.errors import CallerError, ContrailError
from core.keys import DeploymentKey
from streams.archive.archive_reader import ArchiveReader


class PageBackend(NamedTuple):
    """The view of a recording, and the application that answers from it."""

    view: RecordingView
    questions: ASGIApp
    over: asyncio.Future[None]
    """Done when a running deployment cannot be followed any more, with the error."""


@asynccontextmanager
async def open_page_backend(
    file: Path | None, key: DeploymentKey | None, connection: DeploymentRef | None, folder: Path | None = None
) -> AsyncIterator[PageBackend]:
    """Questions are answered inside the context; CallerError or Corrupt if the file is no recording.

    The copy of a running deployment's log lies in `folder` (None: a temporary one), and is removed at the end.
    """
    if file is not None:
        async with _file_opened(file, key) as shown:
            yield shown
    else:
        assert connection is not None
        with tempfile.TemporaryDirectory(prefix="contrail-debug-", dir=folder) as copies:
            async with _log_opened(connection, Path(copies)) as shown:
                yield shown


@asynccontextmanager
async def _file_opened(file: Path, key: DeploymentKey | None) -> AsyncIterator[PageBackend]:
    view = RecordingView(file.name, key, SystemClock())
    view.start()
    try:
        await view.show(ArchiveReader.open(file))
        yield PageBackend(view, create_page_api(view), asyncio.get_running_loop().create_future())
    finally:
        await view.close()


@asynccontextmanager
async def _log_opened(connection: DeploymentRef, folder: Path) -> AsyncIterator[PageBackend]:
    clock = SystemClock()
    view = RecordingView(f"the log of {connection.namespace}", connection.key, clock, live_messages_max=MESSAGES_MAX)
    view.start()
    follower = LogFollower(connection, folder / "log", view, clock)
    following = asyncio.create_task(follower.run(), name="follow the log")
    try:
        yield PageBackend(view, create_page_api(view), following)
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        await view.close()


IDLE_MS = 10 * 60 * 1000
"""Time without a question after which the process ends. The next question starts it again."""
IDLE_CHECK_S = 5.0
GRACE_S = 1.0
NICE = 10
"""Serving processes have priority over this one."""
COPIES = "copy"

_logger = logging.getLogger(__name__)


class IdleTimer:
    """ASGI middleware that knows the time of the last request."""

    def __init__(self, app: ASGIApp, clock: Clock) -> None:
        self._app = app
        self._clock = clock
        self._last_ms = clock.monotonic_ms()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._last_ms = self._clock.monotonic_ms()
        await self._app(scope, receive, send)

    @property
    def idle_ms(self) -> int:
        """Time since the last request."""
        return self._clock.monotonic_ms() - self._last_ms


@click.command()
@deployment_options
@click.option("--listener", type=int, required=True, help="Number of an open socket that listens.")
@click.option("--folder", type=click.Path(path_type=Path), required=True, help="Where the copy of the log may lie.")
def page_process(connection: DeploymentRef, listener: int, folder: Path) -> None:
    """Answer the questions of one front end's page; started by the front end itself."""
    configure_logging()
    os.nice(NICE)
    try:
        asyncio.run(_serve(connection, socket.socket(fileno=listener), folder / COPIES))
    except ContrailError as error:
        _logger.error("the page's process ends: %s", error)  # noqa: TRY400 - a sentence, not a traceback
        raise SystemExit(1) from error


async def _serve(connection: DeploymentRef, listener: socket.socket, copies: Path) -> None:
    _clear(copies)  # a killed process may have left its copy; the lock beside it is ours
    listener.setblocking(False)
    with stop_requested(copies) as ending:
        async with open_page_backend(None, None, connection, copies) as shown:
            timed = IdleTimer(shown.questions, SystemClock())
            server = HttpServer(timed, listener)
            await server.start()
            idle = asyncio.create_task(_until_idle(timed))
            both: list[asyncio.Future[Any]] = [ending, shown.over, idle]
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            idle.cancel()
            await server.stop(GRACE_S)
            if shown.over.done():
                shown.over.result()


def _clear(folder: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(mode=0o700)


async def _until_idle(timer: IdleTimer) -> None:
    while timer.idle_ms < IDLE_MS:  # noqa: ASYNC110 - what is waited for is that nothing happens
        await asyncio.sleep(IDLE_CHECK_S)
    _logger.info("no question from the page for %d minutes: its process ends", IDLE_MS // 60_000)


if __name__ == "__main__":
    try:
        page_process()
    except CallerError as error:
        raise SystemExit(f"contrail: {error}") from error
