"""Accepting connections on a socket that may outlive this process, and on neighbours' that nobody tends.

Of several front ends on one port each has a socket of its own, and the kernel spreads connections over these. A queue
whose front end is dead or hangs would keep its share of the clients waiting; so the others look at it, and take what
they find there twice in a row.

The loop's own servers are not used: asyncio's drops what it accepted in the very moment when it is closed.
"""

from __future__ import annotations

import asyncio
import select
import socket
import ssl
from collections.abc import Callable, Sequence

BACKLOG = 2048
TAKEN_MAX = 64
"""So many connections are taken from one queue at a time: other front ends and our own requests get their turn."""
LEFT_MAX = 2 * BACKLOG
"""At the end, so many that wait in the queue are still taken."""
LOOK_S = 0.05
"""How often neighbours' queues are looked at: what waits in one for two looks is taken."""
GREETING_MAX = 512
"""TLS handshakes at once; whoever comes then waits in the kernel's queue."""
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
        self._looking: asyncio.Task[None] | None = None
        self._greeting: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        """Connections are accepted; the socket listens from here on if it did not before."""
        self._own.listen(BACKLOG)
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self._own.fileno(), self._accept)
        if self._neighbours:
            self._looking = asyncio.create_task(self._look(), name="neighbours")

    async def stop(self) -> None:
        """Nothing is accepted any more. What waited in the queue was, so that nobody is reset if the socket ends here.

        A client whose connection is made just between the last look and the end would be, so a socket that is to be
        taken over must be held by somebody else as well.
        """
        if self._looking is not None:
            self._looking.cancel()
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

    async def _look(self) -> None:
        waiting = select.poll()
        for number in self._neighbours:
            waiting.register(number, select.POLLIN)
        before: set[int] = set()
        while True:
            await asyncio.sleep(LOOK_S)
            # one that does not listen yet is a hang-up to the kernel, and nothing to us
            now = {number for number, event in waiting.poll(0) if event & select.POLLIN}
            for number in now & before:
                self._take(self._neighbours[number], TAKEN_MAX)
            before = now

    def _take(self, listener: socket.socket, at_most: int) -> bool:
        """What waits there is ours; False if more cannot be taken now, and the kernel keeps it."""
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
