"""EntryOutbox: hands the entries of a worker's blocks to the keeper of its shared pool, once their files lie there.

Entries wait in memory until their files are there (`WaitingEntries`), then in files or objects until the keeper has
read them (`WorkerBatches`). Both are bounded. The loop also shows that the worker lives.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import TypeVar

from actors.kv_blocks.entry_batches import BATCH_ENTRIES_MAX
from actors.kv_cache.cache_mirror import NamedBlock
from actors.kv_pool.pool_place import WorkerBatches
from actors.kv_pool.waiting_entries import WaitingEntries, entries_of
from actors.membership.worker_publisher import LEAVE_TIMEOUT_S
from core.clock import Clock

SEND_EVERY_S = 1.0
"""Between two looks at the files of the entries that wait …"""
SEND_SHARE = 20
"""… and at least so many times as long as the last look took."""

T = TypeVar("T")

_logger = logging.getLogger(__name__)


class EntryOutbox:
    """See the module's text."""

    def __init__(
        self,
        batches: WorkerBatches,
        name_of: Callable[[int], bytes],
        tenant_of: Callable[[str], bytes],
        clock: Clock,
    ) -> None:
        """`name_of` has the file's name of the block that the engine names so, `tenant_of` the digest of the tenant to
        which prompts with that salt belong."""
        self._batches = batches
        self._name_of = name_of
        self._tenant_of = tenant_of
        self._clock = clock
        self.waiting = WaitingEntries()
        self.failures = 0
        """Times that the folder could not be read or written; all that waits is tried again."""
        self._thread = ThreadPoolExecutor(1, "pool entries")
        """One, so that what a cancelled task began there ends before the next call."""

    def __repr__(self) -> str:
        return f"<EntryOutbox {self._batches!r}, {len(self.waiting)} entries wait>"

    def note(self, named: Iterable[NamedBlock]) -> None:
        """The engine has these blocks, and may write them. Some 2 us each; no I/O."""
        for file, entry in entries_of(named, self._name_of, self._tenant_of):
            self.waiting.wait(file, entry)

    async def run(self) -> None:
        """Entries leave for the keeper as their files come; ends by cancellation alone."""
        while True:
            before_ms = self._clock.monotonic_ms()
            await self.send()
            took_s = (self._clock.monotonic_ms() - before_ms) / 1000
            await asyncio.sleep(max(SEND_EVERY_S, SEND_SHARE * took_s))

    async def send(self) -> None:
        """The worker has beaten, and entries whose files lie there are on their way to the keeper, as far as it keeps
        up. A folder that cannot be read or written is tried again with the next call."""
        try:
            await self._send()
        except OSError as error:
            self.failures += 1
            _logger.warning("the pool's keeper cannot be told of blocks now: %s", error)

    async def _send(self) -> None:
        await self._in_thread(self._batches.beat)
        if self.waiting:
            await self._write()
        await self._in_thread(self._batches.flush)

    async def _write(self) -> None:
        room = await self._in_thread(self._batches.room)
        there = await self._in_thread(partial(self._batches.there, [*self.waiting]))
        ready = [(file, entry) for file, entry in self.waiting.items() if file in there][:room]
        for at in range(0, len(ready), BATCH_ENTRIES_MAX):
            part = dict(ready[at : at + BATCH_ENTRIES_MAX])
            await self._in_thread(partial(self._batches.write, part))
            for file in part:
                self.waiting.pop(file, None)

    async def leave(self) -> None:
        """Entries of files that lie there now are on their way to the keeper, if that was possible in time. Nothing
        more is written under this worker's name."""
        with suppress(TimeoutError):  # a disk that hangs
            async with asyncio.timeout(LEAVE_TIMEOUT_S):
                await self.send()
                await self._in_thread(self._batches.end)
        self._thread.shutdown(wait=False)

    async def _in_thread(self, call: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, call)
