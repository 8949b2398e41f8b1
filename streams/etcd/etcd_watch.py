"""EtcdWatch: one watch that goes on over outages.

1. The watch is either following (a stream of changes from the revision of the last full read on) or regaining.
2. A stream that ends for any reason (etcd gone, connection dropped, history compacted), is followed by a full
   read; differences from what was reported are reported, deletions included. So a lost stream cannot lose a change.
3. Nothing of an old stream is reported after the full read that replaced it: the stream's end is handled on the event
   loop after all its changes, by the order of `call_soon_threadsafe`.
"""

from __future__ import annotations

import asyncio
import logging
import random
import threading
from collections.abc import Callable, Iterator

from core.errors import PeerError
from streams.etcd.etcd_client import EtcdSession, WatchStream
from streams.registry import Change, KnownKeys

FIRST_S = 0.1
LONGEST_S = 2.0


def pauses() -> Iterator[float]:
    """Without end: from `FIRST_S` doubling up to `LONGEST_S`, each spread by a quarter so that many do not meet."""
    pause_s = FIRST_S
    while True:
        yield pause_s * random.uniform(0.75, 1.25)  # noqa: S311  no secret
        pause_s = min(2 * pause_s, LONGEST_S)


_log = logging.getLogger(__name__)

END_S = 2.0
"""Longest wait for the thread of a cancelled stream."""


class EtcdWatch:
    """Tells the keys below a prefix and their changes, in order, on the event loop it was started on."""

    def __init__(
        self,
        session: EtcdSession,
        prefix: str,
        on_change: Callable[[Change], None],
        on_health: Callable[[bool], None] | None,
    ) -> None:
        self._session = session
        self._prefix = prefix
        self._on_change = on_change
        self._on_health = on_health
        self._known = KnownKeys()
        self._revision = 0
        self._healthy = True
        self._loop = asyncio.get_running_loop()
        self._task: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<EtcdWatch {self._prefix} at {self._revision}{'' if self._healthy else ' cut off'}>"

    async def start(self) -> None:
        """The present keys were reported, changes follow; PeerError and no watch if they cannot be read."""
        assert self._task is None
        await self._read_all()
        await asyncio.sleep(0)  # lets the callbacks run that were scheduled
        self._task = self._loop.create_task(self._run(), name=f"etcd watch {self._prefix}")

    async def stop(self) -> None:
        """Nothing is told any more."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _run(self) -> None:
        pause = pauses()
        while True:
            if await self._follow():
                pause = pauses()
            await asyncio.sleep(next(pause))
            await self._regain()

    async def _follow(self) -> bool:
        """Returns when the stream has ended: whether it ever stood."""
        try:
            stream = await self._session.call(lambda connection: connection.watch(self._prefix, self._revision + 1))
        except PeerError as error:
            self._report_health(False, error)
            return False
        ended: asyncio.Future[PeerError | None] = self._loop.create_future()
        threading.Thread(target=self._pump, args=(stream, ended), name="etcd watch", daemon=True).start()
        try:
            lost = await asyncio.shield(ended)
        finally:
            stream.cancel()
            await asyncio.wait([ended], timeout=END_S)
        if lost is not None:
            self._report_health(False, lost)
        return stream.stood

    async def _regain(self) -> None:
        """Returns when everything that was missed has been told."""
        for pause_s in pauses():
            try:
                await self._read_all()
            except PeerError as error:
                self._report_health(False, error)
                await asyncio.sleep(pause_s)
            else:
                self._report_health(True)
                return

    async def _read_all(self) -> None:
        there = await self._session.call(lambda connection: connection.get(self._prefix))
        self._revision = there.revision
        for change in self._known.replace(there.keys, there.revision):
            self._report(change)

    def _pump(self, stream: WatchStream, ended: asyncio.Future[PeerError | None]) -> None:
        """The thread of one stream. Batches are few (the control plane) and small, so they are not held back."""
        end: PeerError | None = None
        try:
            for batch in stream:
                self._loop.call_soon_threadsafe(self._take, batch)
        except PeerError as error:
            end = error
        finally:
            self._loop.call_soon_threadsafe(ended.set_result, end)

    def _take(self, batch: list[Change]) -> None:
        for change in batch:
            for effect in self._known.apply(change):
                self._report(effect)

    def _report(self, change: Change) -> None:
        # scheduled one by one: the order stays, and a callback that raises is reported by the loop and harms no other
        self._loop.call_soon(self._on_change, change)

    def _report_health(self, healthy: bool, reason: PeerError | None = None) -> None:
        if healthy is self._healthy:
            return
        self._healthy = healthy
        _log.warning("registry watch of %s: %s", self._prefix, "contact is back" if healthy else reason)
        if self._on_health is not None:
            self._loop.call_soon(self._on_health, healthy)
