"""An HTTP server inside a running loop: uvicorn's protocol, our own accepting and stopping.

Each front end on a port has a socket of its own, and the kernel spreads connections over the sockets. The queue of a
front end that is dead or hangs would keep its share of the clients waiting; so the other front ends look at that queue,
and accept connections that they find there twice in a row.

The servers of asyncio are not used: they drop connections that were accepted at the moment of closing.
"""

from __future__ import annotations

import asyncio
import logging
import select
import socket
import ssl
import time
from collections.abc import Callable, Sequence
from email.utils import formatdate
from typing import cast

import uvicorn
from starlette.types import ASGIApp

from api.config.addresses import Address
from api.server.limits import HttpLimits, ListenerState
from api.server.protocol import HttpProtocol

BACKLOG = 2048
TAKEN_MAX = 64
"""So many connections are taken from one queue at a time: other front ends and our own requests get their turn."""
LEFT_MAX = 2 * BACKLOG
"""At the end, so many that wait in the queue are still taken."""
POLL_NEIGHBOURS_S = 0.05
"""Interval between polls of neighbours' queues: a connection that waits during two polls is accepted."""
GREETING_MAX = 512
"""TLS handshakes at once; further clients wait in the kernel's queue."""
HANDSHAKE_TIMEOUT_S = 10.0
"""One of them may take so long."""
PAUSE_S = 0.1
"""Out of files or of handshakes, the next look at the queue comes so much later."""

Factory = Callable[[], asyncio.Protocol]


class Acceptor:
    """Makes a protocol for each connection, from `start` to `stop`; the sockets are its own from the start on."""

    def __init__(
        self, own: socket.socket, neighbours: Sequence[socket.socket], factory: Factory, tls: ssl.SSLContext | None
    ) -> None:
        self._own = own
        self._neighbours = {each.fileno(): each for each in neighbours}
        self._factory = factory
        self._tls = tls
        self._loop: asyncio.AbstractEventLoop | None = None
        self._polling: asyncio.Task[None] | None = None
        self._greeting: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Connections are accepted; the socket listens from here on if it did not before."""
        self._own.listen(BACKLOG)
        # connections inherit it, and keep no later run from the port; before `listen` it would let other users bind
        self._own.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._own.fileno(), self._accept)
        if self._neighbours:
            self._polling = asyncio.create_task(self._poll_neighbours(), name="neighbours")

    async def stop(self) -> None:
        """Nothing is accepted any more. Connections in the queue were accepted, so that closing the socket resets none.

        A connection made between the last poll and the end would be reset. A socket that passes to a successor must
        therefore stay open in another process.
        """
        if self._polling is not None:
            self._polling.cancel()
        for each in self._neighbours.values():
            each.close()
        if self._loop is not None and self._own.fileno() >= 0:
            self._loop.remove_reader(self._own.fileno())
            self._take(self._own, LEFT_MAX)
        self._own.close()
        if self._greeting:
            await asyncio.wait(self._greeting)

    def _accept(self) -> None:
        if not self._take(self._own, TAKEN_MAX):
            assert self._loop is not None
            self._loop.remove_reader(self._own.fileno())
            self._loop.call_later(PAUSE_S, self._go_on)

    def _go_on(self) -> None:
        if self._loop is not None and self._own.fileno() >= 0:
            self._loop.add_reader(self._own.fileno(), self._accept)

    async def _poll_neighbours(self) -> None:
        waiting = select.poll()
        for number in self._neighbours:
            waiting.register(number, select.POLLIN)
        before: set[int] = set()
        while True:
            await asyncio.sleep(POLL_NEIGHBOURS_S)
            # one that does not listen yet is a hang-up to the kernel, and nothing to us
            now = {number for number, event in waiting.poll(0) if event & select.POLLIN}
            for number in now & before:
                self._take(self._neighbours[number], TAKEN_MAX)
            before = now

    def _take(self, listener: socket.socket, at_most: int) -> bool:
        """Waiting connections are accepted; False if no more can be accepted now, and the kernel keeps them."""
        for _ in range(at_most):
            if self._tls is not None and len(self._greeting) >= GREETING_MAX:
                return False
            try:
                connection, _ = listener.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return True
            except OSError:  # no file is left, or no memory
                return False
            connection.setblocking(False)
            greeting = asyncio.create_task(self._greet(connection))
            self._greeting.add(greeting)
            greeting.add_done_callback(self._greeting.discard)
        return True

    async def _greet(self, connection: socket.socket) -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                self._factory,
                connection,
                ssl=self._tls,
                ssl_handshake_timeout=HANDSHAKE_TIMEOUT_S if self._tls else None,
            )
        except (OSError, asyncio.CancelledError):  # it hung up, or spoke no TLS
            connection.close()


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
        self._acceptor = Acceptor(listener, neighbours, self._protocol, tls)
        self._ticks: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<HttpServer {self.address}, {'serving' if self._ticks else 'not serving'}>"

    @property
    def address(self) -> Address:
        """The listening address, also after the end."""
        return self._address

    @property
    def connections(self) -> set[HttpProtocol]:
        """The open connections."""
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
