"""StreamKeeper: the hand of the deployment that makes its streams, where the credentials of its processes may not."""

from __future__ import annotations

import asyncio
import logging
from contextlib import AsyncExitStack

from api.config.deployment_ref import DeploymentRef
from api.process.planes import ensure_streams, open_log
from core.errors import PeerError
from streams.jetstream.broker_accounts import ADMIN
from streams.jetstream.jetstream_log import JetStreamLog

CHECK_EVERY_S = 2.0
"""Period of the check that no stream is gone; one that is gone is made again, empty, in a new epoch."""

_logger = logging.getLogger(__name__)


class StreamKeeper:
    """Started once, stopped once."""

    def __init__(self, connection: DeploymentRef) -> None:
        self._connection = connection
        self._names = set(connection.topology.names())
        self._open = AsyncExitStack()
        self._checks: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<StreamKeeper of {self._connection.namespace}>"

    async def start(self) -> None:
        """The streams exist, and are made again when they are gone. Raises what `ensure_streams` does."""
        log = await self._open.enter_async_context(open_log(self._connection, ADMIN))
        await ensure_streams(log, self._connection, ADMIN)
        self._checks = asyncio.create_task(self._keep(log), name="streams")

    async def stop(self) -> None:
        """The streams are left as they are."""
        if self._checks is not None:
            self._checks.cancel()
            await asyncio.wait((self._checks,))
        await self._open.aclose()

    async def _keep(self, log: JetStreamLog) -> None:
        while True:
            await asyncio.sleep(CHECK_EVERY_S)
            try:
                missing = sorted(self._names - set(await log.streams()))
                if missing:
                    await log.ensure(missing)
            except PeerError as error:
                _logger.debug("the streams cannot be checked now: %s", error)
