"""GracefulDrain: how a worker's requests end when it leaves: by themselves, or on another worker.

A request that another worker goes on with loses nothing: the replica is told behind the tokens that the engine has
made by then, and the other worker goes on behind these.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine

from actors.transport.worker_server import WorkerServer

DRAIN_TIMEOUT_S = 30.0
"""Bound on requests in flight when the worker leaves; then other workers continue them."""
HAND_ON_TIMEOUT_S = 1.0
"""Bound on the sending of the last tokens."""

_logger = logging.getLogger(__name__)


class GracefulDrain:
    """Ends the open streams of one worker."""

    def __init__(self, server: WorkerServer, timeout_s: float) -> None:
        self._server = server
        self._timeout_s = timeout_s
        self._hurried = asyncio.Event()

    def __repr__(self) -> str:
        return f"<GracefulDrain {self._server.streams} requests{', at once' if self._hurried.is_set() else ''}>"

    def stop_waiting(self) -> None:
        """Nothing that is in flight is waited for any more."""
        self._hurried.set()

    async def finish(self, quiet: Coroutine[None, None, None]) -> None:
        """`quiet` has returned, the time is over, or `stop_waiting` was called."""
        finished = asyncio.create_task(quiet)
        hurried = asyncio.create_task(self._hurried.wait())
        try:
            both = (finished, hurried)
            await asyncio.wait(both, timeout=self._timeout_s, return_when=asyncio.FIRST_COMPLETED)
            if finished.done():
                finished.result()
        finally:
            finished.cancel()
            hurried.cancel()
            await asyncio.wait((finished, hurried))

    async def end_streams(self, fault: str, why: str) -> None:
        """No stream is open; replicas have all tokens up to now, if the network took them, and continue elsewhere."""
        if not self._server.streams:
            return
        _logger.warning("%d requests go on elsewhere: %s", self._server.streams, why)
        self._server.end_streams(fault, why)
        try:
            async with asyncio.timeout(HAND_ON_TIMEOUT_S):
                await self._server.quiet()
        except TimeoutError:
            _logger.warning("%d requests do not end", self._server.streams)
