"""ObjectBlockStore: the blocks of a pool in a store of objects, as one of its workers reads and writes them.

It stands behind a `RemoteBlockStore`, which bounds the time of each call.

1. One object is one block. So a block is read, refused and evicted by itself, as a file is.
2. A prompt's blocks are found by halving: blocks go from a prompt's end, so where one lies, those before it lie, too. A
   gap is found when its block is read: it is a miss, with those behind it.
3. A block is written only within the keeper's credit (`write_credit`), and if it does not lie there.
4. Nothing is evicted here: the pool's keeper does that, and learns of stores, uses and losses by reports
   (`store_report`).
5. An object that does not prove its block is removed, and the block is a miss.
6. A call that fails is counted by its reason, and is a miss. After FAILURES_MAX in a row, none is made for PAUSE_S.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from threading import Lock
from typing import TypeVar

from actors.kv_blocks.block_file import WriteBackoff
from actors.kv_blocks.block_seal import HEADER_BYTES, BlockSeal
from actors.kv_blocks.disk_counts import DiskCounts
from actors.kv_objects.object_store import TIMEOUT, ObjectStore, ObjectStoreFailed
from actors.kv_objects.pool_objects import block_key
from actors.kv_objects.store_report import StoreReports
from actors.kv_objects.write_credit import read_local
from core.clock import Clock

REFUSED_MAX = 4096
"""Objects that were refused and cannot be removed; they are known as misses."""

T = TypeVar("T")


class ObjectBlockStore:
    """See the module's text. Thread-safe."""

    def __init__(self, objects: ObjectStore, seal: BlockSeal, counts: DiskCounts, shared: Path, clock: Clock) -> None:
        """`shared` is a folder of the engine's, for small files."""
        self._objects = objects
        self._seal = seal
        self._counts = counts
        self._shared = shared
        self._clock = clock
        self._lock = Lock()
        self._backoff = WriteBackoff(clock)
        self._reports = StoreReports(shared)
        self._refused: set[bytes] = set()
        self._begun = 0
        """Bytes of all writes that began."""

    def __repr__(self) -> str:
        return f"<ObjectBlockStore {self._objects!r}>"

    def stamp_now(self) -> int:
        """The stamp of a block that is used now, first in its prompt. It counts in this process alone."""
        return self._clock.wall_ms() * 1_000_000

    def holds(self, name: bytes) -> bool:
        """True if that block lies there; False also if that cannot be known now."""
        try:
            return name not in self._refused and self._ask(lambda: self._objects.has(block_key(name)))
        except OSError:
            return False

    def find(self, names: Sequence[bytes], until_ms: int) -> list[bytes]:
        """Those up to the last that was found: the first, the last, then by halving, or as far as it gets until
        then."""
        if not names or not self.holds(names[0]):
            return []
        if len(names) > 1 and self.holds(names[-1]):
            return [*names]
        lies, missing = 0, len(names) - 1
        while missing - lies > 1 and self._clock.monotonic_ms() < until_ms:
            middle = (lies + missing) // 2
            lies, missing = (middle, missing) if self.holds(names[middle]) else (lies, middle)
        return [*names[: lies + 1]]

    def touch(self, stamps: Iterable[tuple[bytes, int]]) -> None:
        """The keeper will hear that these blocks were used, those of later stamps later. No I/O."""
        self._reports.used(name for name, _ in sorted(stamps, key=lambda each: each[1]))

    def save_stamps(self) -> None:
        """The reports do that."""

    def put(self, name: bytes, payload: memoryview, stamp: int) -> bool:  # noqa: ARG002 - `touch` says its use
        """The block lies there, whether it did before or not. False if it cannot, or if that is not known; that is
        counted."""
        size = HEADER_BYTES + payload.nbytes
        if self._backoff.pausing:
            self._counts.add(stores_dropped=1)
            return False
        if self.holds(name):
            self._reports.seen(name)
            return True
        if not self._spend(size):
            self._counts.add(stores_dropped=1)
            return False
        content = self._seal.header(name, payload) + payload
        try:
            made = self._ask(lambda: self._write(name, content))
        except OSError:
            self._reports.failed(size)
            self._counts.add(write_failures=1)
            return False
        if made:
            self._reports.stored(name, size)
            self._counts.add(stores=1)
        else:
            self._reports.spared(size)
            self._reports.seen(name)
        return True

    def load(self, name: bytes, into: memoryview) -> bool:
        """The block's bytes stand in `into`, and are proved. False if not: then `into` may hold anything. A block that
        is not there is no fault: the keeper took it."""
        try:
            content = memoryview(self._ask(lambda: self._objects.get(block_key(name))))
        except FileNotFoundError:
            self._reports.gone(name)
            return False
        except OSError:
            return False
        payload = content[HEADER_BYTES:]
        reason = self._seal.refusal(name, bytes(content[:HEADER_BYTES]), payload, content.nbytes)
        if reason is None and payload.nbytes != into.nbytes:
            reason = "short"
        if reason is not None:
            self._counts.add(**{f"refused_{reason}": 1})
            self._refuse(name)
            return False
        into[:] = payload
        self._counts.add(loads=1)
        self._reports.seen(name)
        return True

    def remove(self, names: Sequence[bytes]) -> Sequence[bytes]:
        """None of these blocks lies there, or all are returned: the store did not remove them. The keeper hears of
        them. One call for all, if they are not very many."""
        left: Sequence[bytes] = ()
        try:
            self._ask(lambda: self._objects.delete([block_key(name) for name in names]))
        except OSError:
            self._counts.add(stuck=len(names))
            left = names
        for name in names:
            self._reports.gone(name)
        return left

    def close(self) -> None:
        """All reports to the keeper stand in files of the engine's folder."""
        self._reports.close()

    def _refuse(self, name: bytes) -> None:
        try:
            self._ask(lambda: self._objects.delete([block_key(name)]))
        except OSError:
            self._counts.add(stuck=1)
            with self._lock:
                if len(self._refused) < REFUSED_MAX:
                    self._refused.add(name)
        self._reports.gone(name)

    def _write(self, name: bytes, content: bytes) -> bool:
        with self._lock:
            refused = name in self._refused
        if not refused:
            return self._objects.create(block_key(name), content)
        self._objects.put(block_key(name), content)
        with self._lock:
            self._refused.discard(name)
        return True

    def _spend(self, size: int) -> bool:
        """So many bytes more may be written."""
        may_write = read_local(self._shared)
        with self._lock:
            if self._begun + size > may_write:
                return False
            self._begun += size
        return True

    def _ask(self, call: Callable[[], T]) -> T:
        """The call's result. FileNotFoundError; OSError if it failed, which is counted, and at once during a pause."""
        if self._backoff.pausing:
            raise OSError("the object store failed lately")
        try:
            answer = call()
        except FileNotFoundError:
            self._note(succeeded=True)
            raise
        except ObjectStoreFailed as error:
            self._note(succeeded=False)
            if error.reason != TIMEOUT:  # its caller left at the deadline, and counted it
                self._counts.add(**{f"calls_{error.reason}": 1})
            raise
        self._note(succeeded=True)
        return answer

    def _note(self, *, succeeded: bool) -> None:
        with self._lock:
            self._backoff.note(written=succeeded)
