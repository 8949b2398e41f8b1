"""BlockStore: sealed files of KV blocks in one folder, within a number of bytes.

1. A file has its block's keyed name and 32 hex digits of it, mode 0600, and is complete: it is written under another
   name and renamed. Nothing is flushed (fsync): after a crash of the machine a file may be empty or have holes, which
   its checksum shows.
2. What is read is proved (`block_seal`). A file that is refused is removed and counted, and the block is a miss.
3. Room is made before a block is written: the least recently used blocks go. A block's stamp is the time of the
   request that used it last, less its depth in the prompt. So of one prompt's blocks the last go first, and no block
   goes after the one that it continues. The stamp is the file's time of change, and so outlives the engine.
4. A block that cannot be written is not stored, and nothing else happens. After FAILURES_MAX failures in a row nothing
   is tried for PAUSE_S.
5. `scan` reads names, sizes and times of what lies there; before it has ended there is no block, and none is stored.
   It removes unfinished files. Files of other names are left alone, and count for nothing.

Thread-safe. No other process may write here: see `BlockFolderLock`.
"""

from __future__ import annotations

import fcntl
import heapq
import os
import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from stat import S_ISREG
from threading import Lock

from actors.kv_blocks.block_seal import HEADER_BYTES, BlockSeal
from actors.kv_blocks.disk_counts import DiskCounts
from core.clock import Clock
from core.errors import CallerError

SUFFIX, UNFINISHED = ".kv", ".new"
ALLOCATION_BYTES = 4096
"""A file takes a multiple of that on a disk."""
FAILURES_MAX = 8
"""Failed writes in a row, after which none is tried for PAUSE_S."""
PAUSE_S = 30
LOCK_FILE = "lock"
_NAMES = re.compile(rf"([0-9a-f]{{32}})({re.escape(SUFFIX)}|{re.escape(UNFINISHED)})")


class BlockFolderLock:
    """A folder of mode 0700 that is this process's alone, until `close` or its end."""

    def __init__(self, folder: Path) -> None:
        """CallerError if the folder cannot be had."""
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            folder.chmod(0o700)
            self._file = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise CallerError(f"the disk tier cannot use the folder {folder}: {error.strerror}") from error
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._file)
            raise CallerError(f"the disk tier's folder {folder} is in use by another worker of that name") from error

    def close(self) -> None:
        """Others may have it."""
        os.close(self._file)


class _Block:
    """Size and stamp of a file."""

    __slots__ = ("size", "stamp")

    def __init__(self, size: int, stamp: int) -> None:
        self.size = size
        self.stamp = stamp


class BlockStore:
    """The blocks of one folder. Memory is some 300 bytes per block."""

    def __init__(self, folder: Path, size_max: int, seal: BlockSeal, counts: DiskCounts, clock: Clock) -> None:
        self._folder = folder
        self._size_max = size_max
        self._seal = seal
        self._counts = counts
        self._clock = clock
        self._lock = Lock()
        self._blocks: dict[bytes, _Block] = {}
        self._writing: set[bytes] = set()
        self._oldest: list[tuple[int, bytes]] = []
        """A heap of stamps; those that are no block's stamp any more are passed over."""
        self._unsaved: dict[bytes, int] = {}
        """Stamps that their files do not carry yet."""
        self._used = 0
        """Bytes on the disk, also those of files that are being written."""
        self._failures = 0
        self._paused_until_ms = 0
        self._scanned = False

    def __repr__(self) -> str:
        return f"<BlockStore {len(self._blocks)} blocks, {self._used} of {self._size_max} bytes>"

    @property
    def used_bytes(self) -> int:
        """Bytes of all files, as a disk allocates them."""
        return self._used

    def stamp_now(self) -> int:
        """The stamp of a block that is used now, first in its prompt."""
        return self._clock.wall_ms() * 1_000_000

    def scan(self) -> None:
        """The blocks that lie in the folder are known. Blocks: about 10 us for each file."""
        found, now = [], self.stamp_now()
        with suppress(OSError), os.scandir(self._folder) as entries:  # a folder that cannot be read has no blocks
            for entry in entries:
                named = _NAMES.fullmatch(entry.name)
                if named is None:
                    continue
                with suppress(OSError):  # it went meanwhile
                    status = entry.stat(follow_symlinks=False)
                    if named[2] == UNFINISHED:
                        Path(entry.path).unlink()
                    elif S_ISREG(status.st_mode):
                        stamp = min(now, status.st_mtime_ns)
                        found.append((bytes.fromhex(named[1]), _allocated(status.st_size), stamp))
        with self._lock:
            for name, size, stamp in found:
                self._blocks[name] = _Block(size, stamp)
                self._used += size
                heapq.heappush(self._oldest, (stamp, name))
            self._counts.add(bytes=self._used, blocks=len(found))
            self._make_room(0)
            self._scanned = True

    def holds(self, name: bytes) -> bool:
        """True if a file of that name lies there. No I/O."""
        return name in self._blocks if self._scanned else False

    def touch(self, stamps: Iterable[tuple[bytes, int]]) -> None:
        """Blocks, of which not all need lie here, have these stamps, or keep newer ones."""
        with self._lock:
            for name, stamp in stamps:
                block = self._blocks.get(name)
                if block is not None and block.stamp < stamp:
                    block.stamp = self._unsaved[name] = stamp
                    heapq.heappush(self._oldest, (stamp, name))
            if len(self._oldest) > 2 * len(self._blocks) + 1024:
                self._oldest = [(block.stamp, name) for name, block in self._blocks.items()]
                heapq.heapify(self._oldest)

    def save_stamps(self) -> None:
        """Files carry the stamps of their blocks. Blocks: a call of the system for each that was used."""
        with self._lock:
            unsaved, self._unsaved = self._unsaved, {}
        for name, stamp in unsaved.items():
            with suppress(OSError):  # it went, or may not be changed: then its place in the order is an older one
                os.utime(self._path(name), ns=(stamp, stamp))

    def put(self, name: bytes, payload: memoryview, stamp: int) -> bool:
        """The block lies on the disk, whether it did before or not. False if it cannot; that is counted. Blocks.

        Stamps are saved first: else a crash could leave it with a newer one than the block that it continues.
        """
        self.save_stamps()
        size = _allocated(HEADER_BYTES + payload.nbytes)
        with self._lock:
            if name in self._blocks or name in self._writing:
                return True
            if not self._scanned or self._clock.monotonic_ms() < self._paused_until_ms or not self._make_room(size):
                self._counts.add(stores_dropped=1)
                return False
            self._writing.add(name)
            self._used += size
            self._counts.add(bytes=size)
        written = self._write(name, payload, stamp)
        with self._lock:
            self._writing.discard(name)
            if written:
                self._failures = 0
                self._blocks[name] = _Block(size, stamp)
                heapq.heappush(self._oldest, (stamp, name))
                self._counts.add(stores=1, blocks=1)
                return True
            self._used -= size
            self._counts.add(bytes=-size, write_failures=1)
            self._failures += 1
            if self._failures >= FAILURES_MAX:
                self._failures = 0
                self._paused_until_ms = self._clock.monotonic_ms() + PAUSE_S * 1000
            return False

    def load(self, name: bytes, into: memoryview) -> bool:
        """The block's bytes stand in `into`, and are proved. False if not: then `into` may hold anything, and no file
        of that name lies there any more. Blocks."""
        header = bytearray(HEADER_BYTES)
        try:
            file = os.open(self._path(name), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                size = os.fstat(file).st_size
                read = os.preadv(file, [header, into], 0)
            finally:
                os.close(file)
        except FileNotFoundError:
            reason: str | None = "missing"
        except OSError:
            reason = "unreadable"
        else:
            reason = self._seal.refusal(name, header, into, size)
            if reason is None and read != size:
                reason = "short"
        if reason is None:
            self._counts.add(loads=1)
            return True
        self._counts.add(**{f"refused_{reason}": 1})
        with self._lock:
            self._remove(name)
        return False

    def _path(self, name: bytes) -> Path:
        return self._folder / f"{name.hex()}{SUFFIX}"

    def _write(self, name: bytes, payload: memoryview, stamp: int) -> bool:
        draft = self._folder / f"{name.hex()}{UNFINISHED}"
        try:
            file = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            try:
                header = self._seal.header(name, payload)
                if os.writev(file, (memoryview(header), payload)) != HEADER_BYTES + payload.nbytes:
                    raise OSError("the disk took only a part")
                os.utime(file, ns=(stamp, stamp))
            finally:
                os.close(file)
            draft.rename(self._path(name))
        except OSError:
            with suppress(OSError):
                draft.unlink()
            return False
        return True

    def _make_room(self, size: int) -> bool:
        """So many bytes more fit; the blocks used least recently are gone for it. The lock is held."""
        while self._used + size > self._size_max and self._oldest:
            stamp, name = heapq.heappop(self._oldest)
            block = self._blocks.get(name)
            if block is None or block.stamp != stamp:
                continue
            if not self._remove(name):
                return False
            self._counts.add(evictions=1)
        return self._used + size <= self._size_max

    def _remove(self, name: bytes) -> bool:
        """The block is not known any more; False if its file could not be removed, which then goes on counting as
        used. The lock is held."""
        block = self._blocks.pop(name, None)
        if block is None:
            return True
        self._counts.add(blocks=-1)
        try:
            self._path(name).unlink(missing_ok=True)
        except OSError:
            return False
        self._used -= block.size
        self._counts.add(bytes=-block.size)
        return True


def _allocated(size: int) -> int:
    return -(-size // ALLOCATION_BYTES) * ALLOCATION_BYTES
