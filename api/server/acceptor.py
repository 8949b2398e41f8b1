"""Acceptor: takes connections from the kernel, and hands each to a protocol once its client has spoken.

1. Each front end on a port has a socket of its own, and the kernel spreads connections over the sockets. The queue of a
   front end that is dead or hangs would keep its share of the clients waiting; so the other front ends look at that
   queue, and accept connections that they find there twice in a row.
2. A silent connection costs a file and nothing else: no protocol, no TLS, no place that a client needs. Where there are
   too many, the oldest ones of the busiest network are closed.
3. TLS handshakes have a bound and a time limit of their own, and the same rule.
"""

from __future__ import annotations

import asyncio
import select
import socket
import ssl
from collections.abc import Callable, Sequence
from typing import Any

from api.server.eviction import choose_evicted, client_network
from api.server.limits import ListenerState

BACKLOG = 2048
TAKEN_MAX = 64
"""So many connections are taken from one queue at a time: other front ends and our own requests get their turn."""
LEFT_MAX = 2 * BACKLOG
"""At the end, so many that wait in the queue are still taken."""
POLL_NEIGHBOURS_S = 0.05
"""Interval between polls of neighbours' queues: a connection that waits during two polls is accepted."""
SILENT_MAX = 1024
"""Connections that have sent nothing yet; a client sends its first bytes a moment after it has connected."""
SILENT_MIN = 32
"""So many may be silent although requests take all places: of a client with a request, too, the first bytes come."""
HANDSHAKES_MAX = 512
"""TLS handshakes at once."""
HANDSHAKE_TIMEOUT_S = 10.0
"""One of them may take so long."""
PAUSE_S = 0.1
"""Out of files, the next look at the queue comes so much later."""

Factory = Callable[[], asyncio.Protocol]


class PendingConnection:
    """An accepted connection that has no protocol yet."""

    __slots__ = ("handshake", "network", "since_s", "socket")

    def __init__(self, connection: socket.socket, network: bytes, since_s: float) -> None:
        self.socket = connection
        self.network = network
        self.since_s = since_s
        """When it was accepted."""
        self.handshake: asyncio.Task[None] | None = None
        """Its way to a protocol; None while it is silent."""

    def __repr__(self) -> str:
        return f"<PendingConnection {self.socket.fileno()}, {'handshake' if self.handshake else 'silent'}>"


class Acceptor:
    """Makes a protocol for each connection, from `start` to `stop`; the sockets are its own from the start on."""

    def __init__(
        self,
        own: socket.socket,
        neighbours: Sequence[socket.socket],
        factory: Factory,
        tls: ssl.SSLContext | None,
        state: ListenerState,
    ) -> None:
        self._own = own
        self._neighbours = {each.fileno(): each for each in neighbours}
        self._factory = factory
        self._tls = tls
        self._state = state
        self._loop: asyncio.AbstractEventLoop | None = None
        self._polling: asyncio.Task[None] | None = None
        # both in the order of their arrival
        self._silent: dict[PendingConnection, None] = {}
        self._greeted: dict[PendingConnection, None] = {}

    def __repr__(self) -> str:
        return f"<Acceptor, {len(self._silent)} silent, {len(self._greeted)} in their handshake>"

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
        therefore stay open in another process. Handshakes had as long to end as idle connections have.
        """
        if self._polling is not None:
            self._polling.cancel()
        for each in self._neighbours.values():
            each.close()
        if self._loop is not None and self._own.fileno() >= 0:
            self._loop.remove_reader(self._own.fileno())
            self._take(self._own, LEFT_MAX)
        self._own.close()
        for silent in list(self._silent):
            self._greet(silent)
        handshakes = [each.handshake for each in self._greeted if each.handshake is not None]
        if handshakes:
            _, late = await asyncio.wait(handshakes, timeout=self._state.limits.idle_linger_s)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)

    def close_expired(self, now_s: float) -> None:
        """Connections that have been silent for as long as idle ones may be are closed; called once a second."""
        for silent in list(self._silent):
            if now_s - silent.since_s <= self._state.limits.keep_alive_s:
                break
            self._drop(silent)

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
            try:
                connection, peer = listener.accept()
            except (BlockingIOError, ConnectionAbortedError):
                return True
            except OSError:  # no file is left, or no memory
                if not self._silent:
                    return False
                self._evict(self._silent)
                continue
            connection.setblocking(False)
            self._admit(connection, peer)
        return True

    def _admit(self, connection: socket.socket, peer: tuple[Any, ...] | str) -> None:
        """The connection waits for its first bytes, or has begun its handshake if they are there."""
        assert self._loop is not None
        pending = PendingConnection(connection, client_network(peer[0]) if peer else b"", self._loop.time())
        self._silent[pending] = None
        if _is_silent(connection):
            self._loop.add_reader(connection.fileno(), self._greet, pending)
            if len(self._silent) > self._places():
                self._evict(self._silent)
        else:
            self._greet(pending)

    def _places(self) -> int:
        """Number of connections that may be silent now."""
        open_ones = len(self._state.connections) + len(self._greeted)
        return max(min(SILENT_MAX, self._state.limits.connections_max - open_ones), SILENT_MIN)

    def _greet(self, pending: PendingConnection) -> None:
        """The client has spoken, or is not waited for: the connection is on its way to a protocol."""
        assert self._loop is not None
        del self._silent[pending]
        self._loop.remove_reader(pending.socket.fileno())
        self._greeted[pending] = None
        pending.handshake = self._loop.create_task(self._hand_over(pending))
        if self._tls is not None and len(self._greeted) > HANDSHAKES_MAX:
            self._evict(self._greeted)

    def _evict(self, among: dict[PendingConnection, None]) -> None:
        for pending in choose_evicted(among):
            self._drop(pending)

    def _drop(self, pending: PendingConnection) -> None:
        """The connection is closed; a handshake ends with the task's next turn."""
        assert self._loop is not None
        if pending.handshake is not None:
            self._greeted.pop(pending, None)
            pending.handshake.cancel()
            return
        del self._silent[pending]
        self._loop.remove_reader(pending.socket.fileno())
        pending.socket.close()

    async def _hand_over(self, pending: PendingConnection) -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                self._factory,
                pending.socket,
                ssl=self._tls,
                ssl_handshake_timeout=HANDSHAKE_TIMEOUT_S if self._tls else None,
            )
        except (OSError, asyncio.CancelledError):  # it hung up, spoke no TLS, or made room
            pending.socket.close()
        finally:
            self._greeted.pop(pending, None)


def _is_silent(connection: socket.socket) -> bool:
    """True if nothing came on the connection yet, not even its end."""
    try:
        connection.recv(1, socket.MSG_PEEK)
    except BlockingIOError:
        return True
    except OSError:  # it was reset: the protocol hears of that
        return False
    return False
