"""A uvicorn server inside a loop that is already running, without its signal handlers."""

from __future__ import annotations

import asyncio
import logging
import socket

import uvicorn
from starlette.types import ASGIApp

from api.addresses import Address
from api.http_protocol import BoundedHttp
from core.errors import CallerError

log = logging.getLogger(__name__)

BACKLOG = 2048
KEEP_ALIVE_S = 75
"""Idle connections are kept so long: longer than common load balancers do, so that they never meet a closed one."""
CANCEL_S = 5.0
"""How long requests that were cancelled at the end of the grace time may take to notice."""
FLUSH_S = 2.0
"""How long the last bytes of finished answers may take to leave."""
TICK_S = 1.0
"""How often the server's Date header moves on."""


def bind(host: str, port: int, *, reuse_port: bool = False) -> socket.socket:
    """A bound socket (port 0: any free one); with `reuse_port` several processes may bind the same.

    CallerError says what to do if that is not possible.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if reuse_port:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        raise CallerError(f"cannot listen on {host}:{port} ({error.strerror or error}): choose another port") from error
    listener.setblocking(False)
    return listener


class Server:
    """One application on one socket, from `start` to `stop`."""

    def __init__(self, app: ASGIApp, listener: socket.socket) -> None:
        self._listener = listener
        config = uvicorn.Config(
            app,
            http=BoundedHttp,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            backlog=BACKLOG,
            timeout_keep_alive=KEEP_ALIVE_S,
        )
        self._server = uvicorn.Server(config)
        self._ticks: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<Server {self.address}, {'serving' if self._ticks else 'not serving'}>"

    @property
    def address(self) -> Address:
        """Where it listens, or listened."""
        return self._address if self._listener.fileno() < 0 else Address(*self._listener.getsockname()[:2])

    async def start(self) -> Address:
        """Connections are accepted."""
        assert self._ticks is None
        self._address = self.address
        self._server.config.load()
        self._server.lifespan = self._server.config.lifespan_class(self._server.config)
        await self._server.startup(sockets=[self._listener])
        self._ticks = asyncio.create_task(self._tick())
        return self._address

    async def _tick(self) -> None:
        while True:
            await self._server.on_tick(0)
            await asyncio.sleep(TICK_S)

    async def stop(self, grace_s: float) -> None:
        """Nothing listens any more; requests in flight had `grace_s` to finish, then they were cancelled."""
        if self._ticks is None:
            self._listener.close()
            return
        self._ticks.cancel()
        self._ticks = None
        for server in self._server.servers:
            server.close()
        self._listener.close()
        state = self._server.server_state
        for connection in list(state.connections):
            connection.shutdown()  # idle ones close at once, others with their answer
        await _ended(state.tasks, grace_s)
        for task in list(state.tasks):
            task.cancel()
        await _ended(state.tasks, CANCEL_S)
        await self._close_connections()

    async def _close_connections(self) -> None:
        connections = self._server.server_state.connections
        for connection in list(connections):
            connection.transport.close()
        try:
            async with asyncio.timeout(FLUSH_S):
                while connections:  # noqa: ASYNC110 - uvicorn keeps a plain set and tells nobody
                    await asyncio.sleep(FLUSH_S / 200)
        except TimeoutError:
            log.warning("%d clients did not read their answers to the end", len(connections))
        for connection in list(connections):
            connection.transport.abort()


async def _ended(tasks: set[asyncio.Task[None]], within_s: float) -> None:
    if tasks:
        await asyncio.wait(list(tasks), timeout=within_s)
