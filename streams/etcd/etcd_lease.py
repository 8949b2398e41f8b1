"""The lease of this process: the keys that are there for as long as it lives.

1. `wanted` is what should be there, `unsettled` the keys for which etcd may still hold something else.
2. A call that fails leaves its wish standing: it is fulfilled when contact is back.
3. A lease that ran out is replaced, and every wanted key is put again under the new one.
4. A claim is no such wish: it goes with the lease that it was made under. To give it up deletes the key only if it is
   under our lease, for another may have claimed it since.
5. etcd may lose a write that it acknowledged (a crash of an unsound release, a restored backup). Each keep-alive
   therefore compares our keys with etcd's: a key that is missing is put again, a key that was released goes again.
6. The keep-alive is also the health probe: a probe without an answer makes the session take another connection, which
   ends the watches that hang on it. They find out for themselves how things stand.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from core.errors import PeerError
from streams.etcd.etcd_client import EtcdSession, LeaseGone
from streams.etcd.etcd_watch import pauses

_log = logging.getLogger(__name__)

PROBE_S_MAX = 3.0
"""Longest time between two keep-alives, so that a hung etcd is noticed soon under long leases too."""
REVOKE_S = 2.0
"""Longest wait for the end of the lease; it ends by itself if that does not succeed."""
TTL_S_MIN = 2
"""etcd grants no shorter leases."""

T = TypeVar("T")


class EtcdLease:
    """One lease, kept alive, with its keys."""

    def __init__(self, session: EtcdSession, ttl_s: int) -> None:
        assert ttl_s >= TTL_S_MIN
        self._session = session
        self._ttl_s = ttl_s
        self._lease: int | None = None
        self._keys: dict[str, bytes] = {}
        self._unsettled: set[str] = set()
        self._released: set[str] = set()
        """Keys that must not be there under our lease."""
        self._claimed: set[str] = set()
        """Keys that are given up only if they are ours."""
        self._lock = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        lease = "none" if self._lease is None else f"{self._lease:x}"
        return f"<EtcdLease {lease} of {self._ttl_s} s, {len(self._keys)} keys, {len(self._unsettled)} unsettled>"

    async def start(self) -> None:
        """The lease is granted and kept alive; PeerError if etcd cannot be reached or refuses us."""
        assert self._task is None
        await self._settle()
        self._task = asyncio.get_running_loop().create_task(self._keep(), name="etcd lease")

    async def hold(self, key: str, value: bytes) -> None:
        """The key is there; after an Unavailable it will be when contact is back."""
        self._keys[key] = value
        self._released.discard(key)
        self._unsettled.add(key)
        await self._settle()

    async def release(self, key: str) -> None:
        """The key is gone; after an Unavailable it will be when contact is back."""
        self._keys.pop(key, None)
        self._released.add(key)
        self._unsettled.add(key)
        await self._settle()

    async def claim(self, key: str, value: bytes) -> int | None:
        """The key is ours alone, at the revision returned, as long as this lease lasts; None if another has it."""
        assert key not in self._keys
        self._claimed.add(key)  # before the answer: it may be ours without our hearing of it
        self._released.discard(key)
        self._unsettled.discard(key)

        async def claim(lease: int) -> int | None:
            return await self._session.call(lambda connection: connection.claim(key, value, lease))

        return await self._under_lease(claim)

    async def end(self) -> None:
        """The lease and its keys are gone; if etcd does not answer, when the lease runs out."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        lease, self._lease = self._lease, None
        if lease is None:
            return
        try:
            async with asyncio.timeout(REVOKE_S):
                await self._session.call(lambda connection: connection.revoke(lease))
        except (PeerError, TimeoutError) as error:
            _log.warning("lease %x could not be given back (%r); it ends within %d s", lease, error, self._ttl_s)

    async def _keep(self) -> None:
        probe_s = min(self._ttl_s / 3, PROBE_S_MAX)
        pause = pauses()
        pause_s = probe_s
        while True:
            await asyncio.sleep(pause_s)
            try:
                await self._renew()
            except PeerError as error:
                _log.warning("lease not kept alive: %s", error)
                self._session.drop()
                pause_s = min(next(pause), probe_s)
            else:
                pause, pause_s = pauses(), probe_s

    async def _renew(self) -> None:
        """The lease has its full time again, or there is a new one; all wishes are fulfilled."""
        lease = self._lease
        if lease is not None:
            try:
                await self._session.call(lambda connection: connection.keep_alive(lease))
                await self._compare(lease)
            except LeaseGone as error:
                _log.warning("%s; a new one is granted", error)
                self._lease = None
        await self._settle()

    async def _compare(self, lease: int) -> None:
        """Keys are unsettled if etcd holds something else under the lease than we want."""
        for key in [*self._keys, *self._released]:
            value = self._keys.get(key)
            stored = await self._session.call(lambda connection: connection.get_leased(key, lease))  # noqa: B023
            known = key in self._keys or key in self._released  # else it was claimed in the meantime
            if known and stored != value and self._keys.get(key) is value and key not in self._unsettled:
                _log.warning("etcd lost the last write of %s: it is written again", key)
                self._unsettled.add(key)

    async def _settle(self) -> None:
        async def nothing(_: int) -> None:
            pass

        await self._under_lease(nothing)

    async def _under_lease(self, act: Callable[[int], Awaitable[T]]) -> T:
        """It was done under a lease that etcd knows, after all wishes were fulfilled."""
        async with self._lock:
            try:
                return await act(await self._write_unsettled())
            except LeaseGone:
                self._lease = None
                return await act(await self._write_unsettled())

    async def _write_unsettled(self) -> int:
        if self._lease is None:
            self._lease = await self._session.call(lambda connection: connection.grant(self._ttl_s))
            self._unsettled.update(self._keys)
            self._released.clear()  # what was under the former lease goes with it
        for key in sorted(self._unsettled):
            value = self._keys.get(key)
            await self._write(key, value, self._lease)
            if self._keys.get(key) is value:  # else wanted otherwise in the meantime
                self._unsettled.discard(key)
        return self._lease

    async def _write(self, key: str, value: bytes | None, lease: int) -> None:
        if value is not None:
            await self._session.call(lambda connection: connection.put(key, value, lease))
        elif key in self._claimed:
            await self._session.call(lambda connection: connection.surrender(key, lease))
        else:
            await self._session.call(lambda connection: connection.delete(key))
