"""SharedBlockStore: sealed files of KV blocks in a folder that several workers use, as one of them reads and writes it.

1. The folder itself says which blocks lie there: a worker finds a block of another one as soon as its file is complete.
2. Nothing is evicted here: the pool's keeper alone does that (`shared_pool_folder`), in one of the workers' processes.
   So without a keeper all goes on being read.
3. A block is written only within the keeper's grant (`write_grant`), which keeps the files of all workers within the
   pool's bytes. A block beyond it is not stored. Each of the threads that write may be at one block when a grant ends.
4. Two workers may write one block at once: each writes a draft of its own name, and the last rename stands. Both have
   the same content.
5. A file that does not prove its block is removed, as in `block_store`, and the block is a miss. One that cannot be
   removed is named to the worker's process (`stuck_files`), and counts as missing here from then on.
6. On a remote file system a file that cannot be read stays: the fault may be the network's.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import takewhile
from pathlib import Path
from threading import Lock

from actors.kv_blocks.block_file import UNFINISHED, BlockFiles, WriteBackoff, allocated
from actors.kv_blocks.block_seal import HEADER_BYTES, BlockSeal
from actors.kv_blocks.disk_counts import DiskCounts
from actors.kv_blocks.stuck_files import StuckFiles
from actors.kv_blocks.write_grant import newest_grant
from core.clock import Clock


class SharedBlockStore:
    """The blocks of one folder, for one of its workers. Thread-safe. Its memory does not grow with the blocks."""

    load_s = math.inf

    def __init__(
        self,
        folder: Path,
        writer: str,
        seal: BlockSeal,
        counts: DiskCounts,
        shared: Path,
        clock: Clock,
        *,
        remote: bool = False,
    ) -> None:
        """`writer` names the worker in grants; `shared` is a folder of the engine's, for small files. A `remote` folder
        lies on a network file system."""
        self._remote = remote
        self._files = BlockFiles(folder, seal)
        self._writer = writer
        self._counts = counts
        self._clock = clock
        self._lock = Lock()
        self._backoff = WriteBackoff(clock)
        self._stuck = StuckFiles(shared)
        self._unsaved: dict[bytes, int] = {}
        """Stamps that their files do not carry yet; those of requests since `save_stamps`."""
        self._grant = (0, 0)
        """Fence and number of the newest grant that was seen."""
        self._spent = 0
        """Bytes that were written by it."""

    def __repr__(self) -> str:
        return f"<SharedBlockStore {self._files.folder} as {self._writer}>"

    def stamp_now(self) -> int:
        """The stamp of a block that is used now, first in its prompt."""
        return self._clock.wall_ms() * 1_000_000

    def holds(self, name: bytes) -> bool:
        """True if a file of that name lies there now. One call of the system: some 20 us on a busy machine."""
        if self._stuck.has(name):
            return False
        try:
            self._files.path(name).stat()
        except OSError:
            return False
        return True

    def find_prefix(self, names: Iterable[bytes]) -> SharedBlockStore:  # noqa: ARG002 - each is asked for itself
        """A lookup that asks the file system for each block: some 20 us."""
        return self

    def find(self, names: Sequence[bytes], until_ms: int) -> list[bytes]:
        """Those that lie there, up to the first that does not, or as far as it gets until then. Blocks."""
        return [*takewhile(lambda name: self._clock.monotonic_ms() < until_ms and self.holds(name), names)]

    def may_store(self, name: bytes) -> bool:
        """True unless the block lies there. One call of the system."""
        return not self.holds(name)

    def touch(self, stamps: Iterable[tuple[bytes, int]]) -> None:
        """Blocks, of which not all need lie here, will have these stamps, or keep newer ones."""
        with self._lock:
            for name, stamp in stamps:
                self._unsaved[name] = max(stamp, self._unsaved.get(name, 0))

    def save_stamps(self) -> None:
        """Files carry the stamps of their blocks. Blocks: two calls of the system for each that was used."""
        with self._lock:
            unsaved, self._unsaved = self._unsaved, {}
        for name, stamp in unsaved.items():
            path = self._files.path(name)
            with suppress(OSError):  # it went, or may not be changed: then its place in the order is an older one
                if path.stat().st_mtime_ns < stamp:
                    os.utime(path, ns=(stamp, stamp))

    def put(self, name: bytes, payload: memoryview, stamp: int) -> bool:
        """The block lies on the disk, whether it did before or not. False if it cannot; that is counted. Blocks.

        Stamps are saved first: else a crash could leave it with a newer one than the block that it continues.
        """
        self.save_stamps()
        if self.holds(name):
            return True
        with self._lock:
            if self._backoff.pausing or not self._spend(allocated(HEADER_BYTES + payload.nbytes)):
                self._counts.add(stores_dropped=1)
                return False
        draft = self._files.folder / f"{name.hex()}-{self._writer}{UNFINISHED}"
        written = self._files.write(name, payload, stamp, draft)
        with self._lock:
            self._backoff.note(written=written)
            if written:
                self._stuck.pop(name)
            self._counts.add(**{"stores" if written else "write_failures": 1})
        return written

    def load(self, name: bytes, into: memoryview) -> bool:
        """The block's bytes stand in `into`, and are proved. False if not: then `into` may hold anything. A file that
        is not there is no fault: the keeper took it. Blocks."""
        reason = self._files.read(name, into)
        if reason is None:
            self._counts.add(loads=1)
            return True
        if reason != "missing":
            self._counts.add(**{f"refused_{reason}": 1})
            if self._remote and reason == "unreadable":
                return False
            self._unlink(name)
        return False

    def remove(self, names: Sequence[bytes]) -> Sequence[bytes]:
        """None of these blocks lies there, or is read here. A call of the system for each. The keeper announces that
        with its next listing."""
        for name in names:
            self._unlink(name)
        return ()

    def _unlink(self, name: bytes) -> None:
        try:
            self._files.path(name).unlink(missing_ok=True)
        except OSError:
            with self._lock:
                self._counts.add(stuck=1)
                self._stuck.add(name, 0)

    def close(self) -> None:
        """The store has no threads."""

    def _spend(self, size: int) -> bool:
        """So many bytes more may be written by the grant that counts now. The lock is held."""
        found = newest_grant(self._files.folder)
        if found is None or self._writer not in found[1].writers:
            return False
        fence, grant = found
        if (fence, grant.number) != self._grant:
            self._grant, self._spent = (fence, grant.number), 0
        if self._spent + size > grant.share_bytes:
            return False
        self._spent += size
        return True
