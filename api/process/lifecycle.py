"""The lifecycle of a process that serves: collector settings once it is set up, and the reasons to stop.

A process stops at SIGTERM and SIGINT, or at the end of the `contrail up` that supervises it.
"""

from __future__ import annotations

import asyncio
import gc
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

GC_THRESHOLDS = (5_000, 5, 5)
"""Objects before a collection of the youngest generation, and collections before one of the next generation."""


def tune_garbage_collection() -> None:
    """Live objects are never scanned again, new ones seldom; takes some 50 ms. Call it once the server is set up.

    Scanning them takes 5 to 8 % of a front end's time, and 40 ms at once. Reference counts free most objects.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLDS)


async def wait_until_orphaned() -> None:
    """Returns when `contrail up`, which started this part, is gone: the pipe on standard input has ended."""
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while await reader.read(1024):
        pass


def ignore_stop_signals() -> None:
    """SIGTERM and SIGINT change nothing any more: for the last moment of a process that has done what it had to do,
    when the loop that handled them is about to go."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.remove_signal_handler(number)
        signal.signal(number, signal.SIG_IGN)


def install_stop_handlers(home: Path | None, stop: Callable[[str], None]) -> list[asyncio.Task[None]]:
    """SIGTERM and SIGINT, or the end of the supervisor, call `stop` with the reason. Keep the returned tasks."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop, f"asked to end ({number.name})")

    async def orphaned() -> None:
        await wait_until_orphaned()
        stop("contrail up is gone")

    return [asyncio.create_task(orphaned())] if home is not None else []


@contextmanager
def stop_requested(home: Path | None) -> Iterator[asyncio.Future[str]]:
    """The future has the reason as soon as we are told to end; from here on no signal kills us."""
    ending: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def stop(reason: str) -> None:
        if not ending.done():
            ending.set_result(reason)

    watching = install_stop_handlers(home, stop)
    try:
        yield ending
    finally:
        for task in watching:
            task.cancel()
