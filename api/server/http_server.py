"""An HTTP server inside a running loop: uvicorn's protocol, our own accepting and stopping.

The servers of asyncio are not used: they drop connections that were accepted at the moment of closing.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
import time
from collections.abc import Sequence
from email.utils import formatdate
from typing import cast

import uvicorn
from starlette.types import ASGIApp

from api.config.addresses import Address
from api.server.acceptor import Acceptor
from api.server.limits import HttpLimits, ListenerState
from api.server.protocol import HttpProtocol

log = logging.getLogger(__name__)

CANCEL_S = 5.0
"""Time for requests that were cancelled at the end of the grace time to finish."""
FLUSH_S = 2.0
"""Time for the last bytes of finished answers to be sent."""
TICK_S = 1.0
"""Interval between updates of the Date header and checks of the time limits."""
POLL_S = 0.02


class HttpServer:
    """One application on one socket, from `start` to `stop`."""

    def __init__(
        self,
        app: ASGIApp,
        listener: socket.socket,
        tls: ssl.SSLContext | None = None,
        *,
        neighbours: Sequence[socket.socket] = (),
        limits: HttpLimits | None = None,
    ) -> None:
        """With `tls` it speaks HTTPS, and nothing else. It serves what waits too long on `neighbours`."""
        self._state = ListenerState(limits or HttpLimits())
        self._config = uvicorn.Config(
            app,
            http=HttpProtocol,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
        )
        self._address = Address(*listener.getsockname()[:2])
        self._acceptor = Acceptor(listener, neighbours, self._protocol, tls, self._state)
        self._ticks: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<HttpServer {self.address}, {'serving' if self._ticks else 'not serving'}>"

    @property
    def address(self) -> Address:
        """The listening address, also after the end."""
        return self._address

    @property
    def connections(self) -> set[HttpProtocol]:
        """The open connections; those that have sent nothing yet are not among them."""
        return cast(set[HttpProtocol], self._state.connections)

    def _protocol(self) -> HttpProtocol:
        return HttpProtocol(self._config, self._state, {})

    async def start(self) -> Address:
        """Connections are accepted."""
        assert self._ticks is None
        self._config.load()
        self._date()
        self._acceptor.start()
        self._ticks = asyncio.create_task(self._tick())
        return self._address

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(TICK_S)
            self._date()
            now_s = asyncio.get_running_loop().time()
            self._acceptor.close_expired(now_s)
            for connection in list(self.connections):
                connection.check_deadlines(now_s)

    def _date(self) -> None:
        self._state.default_headers = [(b"date", formatdate(time.time(), usegmt=True).encode())]

    async def stop(self, grace_s: float) -> None:
        """Nothing is accepted any more; requests in flight had `grace_s` to finish, then they were cancelled.

        Answers from here on close their connections. Idle ones are kept for a moment: a request that is on its way
        over one is answered.
        """
        if self._ticks is None:
            await self._acceptor.stop()
            return
        ticks, self._ticks = self._ticks, None
        self._state.stopping = True
        await self._acceptor.stop()
        for connection in list(self.connections):
            connection.shutdown()
        await self._settle(grace_s)
        ticks.cancel()
        for task in list(self._state.tasks):
            task.cancel()
        await self._ended(CANCEL_S)
        await self._close_connections()

    async def _settle(self, grace_s: float) -> None:
        """Requests have finished, and connections are closed or were idle for long enough; or the time is up."""
        loop = asyncio.get_running_loop()
        linger_until_s = loop.time() + self._state.limits.idle_linger_s
        try:
            async with asyncio.timeout(grace_s):
                while self.connections or self._state.tasks:
                    if loop.time() >= linger_until_s:
                        for connection in list(self.connections):
                            connection.close_idle()
                    await asyncio.sleep(POLL_S)
        except TimeoutError:
            if self._state.tasks:
                log.warning("%d requests did not end within %g s: they are cut off", len(self._state.tasks), grace_s)

    async def _ended(self, within_s: float) -> None:
        if self._state.tasks:
            await asyncio.wait(list(self._state.tasks), timeout=within_s)

    async def _close_connections(self) -> None:
        for connection in list(self.connections):
            connection.transport.close()
        try:
            async with asyncio.timeout(FLUSH_S):
                while self.connections:  # noqa: ASYNC110 - connections have no event for their end
                    await asyncio.sleep(POLL_S)
        except TimeoutError:
            log.warning("%d clients did not read their answers to the end", len(self.connections))
        for connection in list(self.connections):
            connection.transport.abort()
