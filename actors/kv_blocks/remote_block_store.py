"""RemoteBlockStore: blocks on a network file system or in an object store, as one of the workers reads and writes them.

It is a `SharedBlockStore` whose file system may be slow, hang, and show changes of other machines late, or an
`ObjectBlockStore` (`actors/kv_objects`), which may do the same:

1. No call waits for the file system for longer than `bounded_calls.CALL_S`. After one that did, nothing is stored or
   read for HANG_PAUSE_S. Blocks go through memory of the call's own: a call that ends late touches none of the host's.
2. The scheduler never asks the file system. A request's blocks are looked up in a thread (`PrefixLookup`), and the
   request waits for the answer at most CALL_S.
3. A block that the file system does not show yet is a miss. One that it still shows, though it is gone, is a miss once
   it is read.
4. A file that cannot be read stays: the fault may be the network's. A file that was read and proves no block goes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from threading import Lock
from typing import Protocol

from actors.kv_blocks.bounded_calls import CALL_S, BoundedCalls, FileSystemUnavailable
from actors.kv_blocks.disk_counts import DiskCounts
from core.clock import Clock

LOOKUP_THREADS = 2
LOOKUPS_MAX = 64
"""Requests whose blocks are looked up, or wait for that; a further one finds nothing."""
STAMPS_PER_CALL = 256
"""Blocks that one call marks as used: some 0.3 s where a call of the system takes 0.5 ms."""
REMOVED_PER_CALL = 256
"""Blocks that one call removes."""
LOAD_S = 10.0
"""So long after its begin a load reads no further block."""


class SlowStore(Protocol):
    """A store that may hang: its methods block, all but `stamp_now`."""

    def stamp_now(self) -> int:
        """The stamp of a block that is used now, first in its prompt."""

    def find(self, names: Sequence[bytes], until_ms: int) -> list[bytes]:
        """Those that lie there, up to the first that does not, or as far as it gets until then."""

    def touch(self, stamps: Iterable[tuple[bytes, int]]) -> None:
        """Blocks, of which not all need lie there, will have these stamps, or keep newer ones."""

    def save_stamps(self) -> None:
        """Stamps of `touch` outlive this process."""

    def put(self, name: bytes, payload: memoryview, stamp: int) -> bool:
        """The block lies there. False if it cannot; that is counted."""

    def load(self, name: bytes, into: memoryview) -> bool:
        """The block's bytes stand in `into`, and are proved."""

    def remove(self, names: Sequence[bytes]) -> Sequence[bytes]:
        """None of these blocks lies there, or is read here, but for those that are returned."""

    def close(self) -> None:
        """Nothing begins in threads of the store any more."""


class PrefixLookup:
    """The blocks of one request, from the first that is looked for on, as far as they lie there without a gap."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._until_ms = clock.monotonic_ms() + int(CALL_S * 1000)
        self._found: frozenset[bytes] | None = None

    def __repr__(self) -> str:
        return f"<PrefixLookup {'under way' if self._found is None else f'{len(self._found)} found'}>"

    def holds(self, name: bytes) -> bool | None:
        """True if that block lay there, False if not or not known after CALL_S, None if not known yet. No I/O."""
        if self._found is None and self._clock.monotonic_ms() >= self._until_ms:
            self.end(())
        return None if self._found is None else name in self._found

    def end(self, found: Iterable[bytes]) -> None:
        """These lie there, if no call said so before."""
        if self._found is None:
            self._found = frozenset(found)


class RemoteBlockStore:
    """See the module's text. Thread-safe. Its memory is that of CALLS_MAX blocks at most."""

    load_s = LOAD_S

    def __init__(self, store: SlowStore, counts: DiskCounts, clock: Clock, calls: BoundedCalls) -> None:
        self._store = store
        self._counts = counts
        self._clock = clock
        self._calls = calls
        self._lookers = ThreadPoolExecutor(LOOKUP_THREADS, "remote tier lookups")
        self._lock = Lock()
        self._looking = 0
        """Lookups that have not ended."""

    def __repr__(self) -> str:
        return f"<RemoteBlockStore {self._store!r}, {self._calls!r}>"

    def stamp_now(self) -> int:
        """The stamp of a block that is used now, first in its prompt."""
        return self._store.stamp_now()

    def find_prefix(self, names: Iterable[bytes]) -> PrefixLookup:
        """A lookup of these blocks has begun. It finds nothing, and that is counted, if LOOKUPS_MAX are under way, or
        while calls pause. No I/O."""
        lookup = PrefixLookup(self._clock)
        with self._lock:
            if self._calls.pausing or self._looking >= LOOKUPS_MAX:
                self._counts.add(loads_declined=1)
                lookup.end(())
                return lookup
            self._looking += 1
        self._lookers.submit(self._find_prefix, lookup, [*names])
        return lookup

    def may_store(self, name: bytes) -> bool:  # noqa: ARG002 - `put` asks, in a thread
        """True: that a block lies there is not known without a call."""
        return True

    def touch(self, stamps: Iterable[tuple[bytes, int]]) -> None:
        """Files of these blocks, as far as they lie there, carry these stamps, or keep newer ones; while calls pause,
        theirs of before. Blocks: for CALL_S at most for each STAMPS_PER_CALL of them."""
        left = [*stamps]
        with suppress(FileSystemUnavailable):
            while left:
                part, left = left[:STAMPS_PER_CALL], left[STAMPS_PER_CALL:]
                self._calls.make(partial(self._stamp, part))

    def save_stamps(self) -> None:
        """Files carry the stamps of their blocks: `touch` did that."""

    def put(self, name: bytes, payload: memoryview, stamp: int) -> bool:
        """The block lies there, whether it did before or not. False if it cannot, or if that is not known in time; that
        is counted. Blocks for CALL_S at most; the payload is not read after that."""
        if self._calls.pausing:
            self._counts.add(stores_dropped=1)
            return False
        try:
            return self._calls.make(partial(self._store.put, name, memoryview(bytes(payload)), stamp))
        except FileSystemUnavailable:
            self._counts.add(write_failures=1)
            return False

    def load(self, name: bytes, into: memoryview) -> bool:
        """The block's bytes stand in `into`, and are proved. False if not, or not in time: then `into` is as before.
        Blocks for CALL_S at most; nothing is written after that."""
        if self._calls.pausing:
            return False
        read = bytearray(into.nbytes)
        try:
            loaded = self._calls.make(partial(self._store.load, name, memoryview(read)))
        except FileSystemUnavailable:
            return False
        if loaded:
            into[:] = read
        return loaded

    def remove(self, names: Sequence[bytes]) -> Sequence[bytes]:
        """None of these blocks lies there, but for those that are returned: calls for them failed, or did not end in
        time. Blocks: for CALL_S at most for each REMOVED_PER_CALL of them."""
        left = list[bytes]()
        for first in range(0, len(names), REMOVED_PER_CALL):
            part = names[first : first + REMOVED_PER_CALL]
            try:
                left += self._calls.make(partial(self._store.remove, part))
            except FileSystemUnavailable:
                return [*left, *names[first:]]
        return left

    def close(self) -> None:
        """No lookup begins any more."""
        self._lookers.shutdown(wait=False, cancel_futures=True)
        self._store.close()

    def _find_prefix(self, lookup: PrefixLookup, names: Sequence[bytes]) -> None:
        found: list[bytes] = []
        try:
            until_ms = self._clock.monotonic_ms() + int(CALL_S * 500)
            found = self._calls.make(partial(self._store.find, names, until_ms))
        except FileSystemUnavailable:
            pass  # counted: the request computes its prompt
        finally:
            lookup.end(found)
            with self._lock:
                self._looking -= 1

    def _stamp(self, stamps: Sequence[tuple[bytes, int]]) -> None:
        self._store.touch(stamps)
        self._store.save_stamps()
