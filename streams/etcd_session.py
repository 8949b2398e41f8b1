"""The way to etcd that outlives its connections.

There is one cure for whatever went wrong with a connection (dead, hung, token void): take another. etcd's simple
tokens do not survive its restart, and a channel whose other end hangs looks alive for a long time.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from core.errors import Refused, Unavailable
from streams.etcd_connection import CALL_S, EtcdConnection, TokenVoid
from streams.etcd_credentials import EtcdCredentials

CALLS_AT_ONCE = 4
"""Threads for blocking calls; further calls wait, within their bound."""
BOUND_S = 2 * CALL_S
"""Longest that a caller waits: for a thread, a new connection, and the answer."""
CLOSE_S = CALL_S + 1.0
"""Longest wait for the last threads, whose calls are bounded themselves."""

T = TypeVar("T")


class EtcdSession:
    """Runs blocking calls on threads of its own, over a connection that is made again when needed."""

    def __init__(self, endpoint: str, credentials: EtcdCredentials | None) -> None:
        self.endpoint = endpoint
        self._credentials = credentials
        self._pool = ThreadPoolExecutor(CALLS_AT_ONCE, thread_name_prefix="etcd")
        self._lock = threading.Lock()
        self._connection: EtcdConnection | None = None
        self._closed = False
        self._let_in = False
        """Whether etcd ever accepted our credentials."""

    def __repr__(self) -> str:
        return f"<EtcdSession {self.endpoint} {'closed' if self._closed else 'open'}>"

    async def call(self, verb: Callable[[EtcdConnection], T]) -> T:
        """What the verb returns; Unavailable after `BOUND_S` at the latest (it may have been done all the same)."""
        if self._closed:
            raise Unavailable(f"etcd at {self.endpoint}: closed here")
        try:
            async with asyncio.timeout(BOUND_S):
                return await asyncio.get_running_loop().run_in_executor(self._pool, self._call, verb)
        except TimeoutError as error:
            raise Unavailable(f"etcd at {self.endpoint}: no answer within {BOUND_S:g} s") from error

    def drop(self) -> None:
        """The connection is given up with all that runs on it; the next call makes another."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    async def close(self) -> None:
        """No connection and no thread is left; a thread that hangs ends by itself within its bound."""
        self._closed = True
        self.drop()
        await asyncio.wait([asyncio.ensure_future(asyncio.to_thread(self._pool.shutdown))], timeout=CLOSE_S)
        self.drop()  # what a thread connected in that moment

    def _call(self, verb: Callable[[EtcdConnection], T]) -> T:
        if self._closed:
            raise Unavailable(f"etcd at {self.endpoint}: closed here")
        connection = self._current()
        try:
            return verb(connection)
        except TokenVoid:
            return verb(self._after(connection))

    def _after(self, connection: EtcdConnection) -> EtcdConnection:
        """Another connection than this one, which may be closed already."""
        with self._lock:
            if self._connection is connection:
                self.drop()
        return self._current()

    def _current(self) -> EtcdConnection:
        """The connection, made if there is none; one thread makes it, the others wait for that."""
        with self._lock:
            if self._connection is None:
                self._connection = self._connect()
            return self._connection

    def _connect(self) -> EtcdConnection:
        connection = EtcdConnection(self.endpoint, self._credentials)
        try:
            connection.log_in()
        except Refused as error:
            connection.close()
            if not self._let_in:
                raise
            # it lost its data, and with them its users: once these are made again, all is well
            raise Unavailable(f"{error}; it let us in before: make its users again") from error
        except BaseException:  # whatever it was, nobody would close it
            connection.close()
            raise
        self._let_in = True
        return connection
