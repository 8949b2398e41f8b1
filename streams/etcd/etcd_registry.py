"""The registry on etcd.

Blocking calls run on threads of the session's own, each bounded; everything else happens on the event loop. grpc does
not survive a fork: start processes with spawn or subprocess, never with `os.fork`, once a registry was connected.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Self, TypeVar

from core.errors import Unavailable
from core.subjects import check_namespace
from streams.etcd.etcd_client import BOUND_S, EtcdSession, KeySnapshot
from streams.etcd.etcd_credentials import EtcdCredentials
from streams.etcd.etcd_lease import EtcdLease
from streams.etcd.etcd_watch import EtcdWatch
from streams.registry import Change

LEASE_S = 10
"""Shorter leases are lost on a busy machine."""

T = TypeVar("T")


class EtcdRegistry:
    """A namespace's keys in etcd, below `/contrail/{namespace}/`; made by `connect`."""

    def __init__(self, session: EtcdSession, lease: EtcdLease, root: str) -> None:
        assert root.endswith("/")
        self._session = session
        self._lease = lease
        self._root = root
        self._watches: list[EtcdWatch] = []

    def __repr__(self) -> str:
        return f"<EtcdRegistry {self._session.endpoint} {self._root} {len(self._watches)} watches>"

    @classmethod
    async def connect(
        cls, endpoint: str, namespace: str, credentials: EtcdCredentials | None = None, lease_s: int = LEASE_S
    ) -> Self:
        """Etcd answered and a lease is held; Unavailable if it does not answer, Refused if it does not let us in."""
        root = f"/contrail/{check_namespace(namespace)}/"
        session = EtcdSession(endpoint, credentials)
        lease = EtcdLease(session, lease_s)
        try:
            # etcd grants leases to anybody: only a read shows whether it lets us in
            await session.call(lambda connection: connection.get(root))
            await lease.start()
        except BaseException:  # by any error: the session must be closed
            await session.close()
            raise
        return cls(session, lease, root)

    async def register(self, key: str, value: bytes) -> None:
        """The key is there for as long as this process lives; after an Unavailable, from when contact is back."""
        await self._bounded(self._lease.hold(self._path(key), value))

    async def unregister(self, key: str) -> None:
        """The key is gone; after an Unavailable, from when contact is back."""
        await self._bounded(self._lease.release(self._path(key)))

    async def claim(self, key: str, value: bytes) -> int | None:
        """The key is ours alone until `unregister` or the end of the lease, at the revision returned; None if another
        has it. After an Unavailable it may be ours all the same: claim again to know, or `unregister`.
        """
        return await self._bounded(self._lease.claim(self._path(key), value))

    async def put(self, key: str, value: bytes) -> int:
        """The key is there for good; returns the revision."""
        path = self._path(key)
        return await self._session.call(lambda connection: connection.put(path, value))

    async def get(self, prefix: str) -> list[Change]:
        """All keys below the prefix now, sorted by key."""
        path = self._root + prefix
        there: KeySnapshot = await self._session.call(lambda connection: connection.get(path))
        return [self._relative(change) for change in there.keys]

    async def watch(
        self, prefix: str, on_change: Callable[[Change], None], on_health: Callable[[bool], None] | None = None
    ) -> None:
        """The present keys were reported; changes are reported as they come, over outages too, until `close`.

        The callbacks run on the event loop and must not raise. Unavailable, and no watch, if etcd is away now.
        """
        watch = EtcdWatch(
            self._session, self._root + prefix, lambda change: on_change(self._relative(change)), on_health
        )
        await watch.start()
        self._watches.append(watch)

    async def close(self) -> None:
        """The lease is given back, watches and threads have ended; bounded even if etcd hangs."""
        await asyncio.gather(*(watch.stop() for watch in self._watches))
        await self._lease.end()
        await self._session.close()

    async def _bounded(self, wish: Coroutine[Any, Any, T]) -> T:
        """A wish may wait for others and for a new lease; together they get no more time than one call."""
        try:
            async with asyncio.timeout(BOUND_S):
                return await wish
        except TimeoutError as error:
            raise Unavailable(f"etcd at {self._session.endpoint}: no answer within {BOUND_S:g} s") from error

    def _path(self, key: str) -> str:
        assert key
        assert not key.startswith("/")
        return self._root + key

    def _relative(self, change: Change) -> Change:
        assert change.key.startswith(self._root)
        return change._replace(key=change.key.removeprefix(self._root))
