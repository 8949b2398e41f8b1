"""BlockStore: sealed files of KV blocks in one folder, within a number of bytes.

1. A file has its block's keyed name and 32 hex digits of it, mode 0600, and is complete: it is written under another
   name and renamed. Nothing is flushed (fsync): after a crash of the machine a file may be empty or have holes, which
   its checksum shows.
2. What is read is proved (`block_seal`). A file that is refused is removed and counted, and the block is a miss.
3. Room is made before a block is written: the least recently used blocks go. A block's stamp is the time of the
   request that used it last, less its depth in the prompt. So of one prompt's blocks the last go first, and no block
   goes after the one that it continues. The stamp is the file's time of change, and so outlives the engine.
4. A file that goes is first renamed (GOING). Without a keeper it is removed at once. While a keeper holds its lease,
   the keeper removes the file, once the log has the block's removal. Until then the block is read, and may stay after
   all: a request that uses it gives the file its name back. So a HEADROOM_SHARE-th of the bytes is left free.
   The bytes are never exceeded: a block that finds no room meanwhile is not stored. After the lease's end files are
   removed at once again, and counted (`evictions_unannounced`).
   At an operator's command the keeper erases files that do not go. The lease counts that, too; the store then reads
   the folder's names again.
5. A refused file that cannot be removed is named to the keeper (`stuck_files`). Its removal is tried again every
   RETRY_S, RETRIES_MAX times; it counts as used.
6. A block that cannot be written is not stored, and nothing else happens. After FAILURES_MAX failures in a row nothing
   is tried for PAUSE_S.
7. What lies there is read once, when the store is made: names, sizes and times. Unfinished and going files are removed.
   Files of other names are left alone, and count for nothing.

Thread-safe. Of other processes the keeper alone may remove files here, those that go: see `BlockFolderLock`.
"""

from __future__ import annotations

import fcntl
import heapq
import math
import os
import re
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from stat import S_ISREG
from threading import Lock

from actors.kv_blocks.block_file import SUFFIX, UNFINISHED, BlockFiles, WriteBackoff, allocated
from actors.kv_blocks.block_seal import HEADER_BYTES, BlockSeal
from actors.kv_blocks.disk_counts import DiskCounts
from actors.kv_blocks.keeper_lease import KeeperLease
from actors.kv_blocks.stuck_files import StuckFiles
from core.clock import Clock
from core.errors import CallerError

GOING = ".going"
HEADROOM_SHARE = 16
"""With a keeper so small a part of the bytes is left free, for what is written while files go."""
RETRY_S, RETRIES_MAX = 30, 10
"""The pause between two tries to remove files that could not be removed, and the number of tries."""
LOCK_FILE = "lock"
_NAMES = re.compile(rf"([0-9a-f]{{32}})({'|'.join(map(re.escape, (SUFFIX, UNFINISHED, GOING)))})")


def make_folder(folder: Path) -> None:
    """The folder is there, with mode 0700. CallerError if it cannot be."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        folder.chmod(0o700)
    except OSError as error:
        raise CallerError(f"the disk tier cannot use the folder {folder}: {error.strerror}") from error


class BlockFolderLock:
    """A folder of mode 0700 that is this process's alone, until `close` or its end; or that of all processes that have
    it `shared`. Processes of one machine alone see each other."""

    def __init__(self, folder: Path, *, shared: bool = False) -> None:
        """CallerError if the folder cannot be had."""
        make_folder(folder)
        try:
            self._file = os.open(folder / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise CallerError(f"the disk tier cannot use the folder {folder}: {error.strerror}") from error
        try:
            fcntl.flock(self._file, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._file)
            owner = "a worker that does not share it" if shared else "another worker of that name"
            raise CallerError(f"the disk tier's folder {folder} is in use by {owner}") from error

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
    """The blocks of one folder. Memory is some 300 bytes per block. To make it blocks: some 10 us for each file."""

    load_s = math.inf

    def __init__(
        self, folder: Path, size_max: int, seal: BlockSeal, counts: DiskCounts, shared: Path, clock: Clock
    ) -> None:
        """`shared` is a folder of the engine's, in which it and the keeper have small files."""
        self._folder = folder
        self._size_max = size_max
        self._files = BlockFiles(folder, seal)
        self._path = self._files.path
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
        self._going: dict[bytes, None] = {}
        """Blocks whose files have their other name, in the order in which they go."""
        self._going_bytes = 0
        self._lease = KeeperLease(shared, clock)
        self._removals_seen = self._erasures_seen = 0
        self._stuck = StuckFiles(shared)
        self._retries = 0
        self._retry_at_ms = 0
        self._backoff = WriteBackoff(clock)
        self._scan()

    def __repr__(self) -> str:
        return f"<BlockStore {len(self._blocks)} blocks, {self._used} of {self._size_max} bytes>"

    @property
    def used_bytes(self) -> int:
        """Bytes of all files, as a disk allocates them."""
        return self._used

    def stamp_now(self) -> int:
        """The stamp of a block that is used now, first in its prompt."""
        return self._clock.wall_ms() * 1_000_000

    def _scan(self) -> None:
        found, now = [], self.stamp_now()
        with suppress(OSError), os.scandir(self._folder) as entries:  # a folder that cannot be read has no blocks
            for entry in entries:
                named = _NAMES.fullmatch(entry.name)
                if named is None:
                    continue
                with suppress(OSError):  # it went meanwhile
                    status = entry.stat(follow_symlinks=False)
                    if named[2] != SUFFIX:
                        Path(entry.path).unlink()
                    elif S_ISREG(status.st_mode):
                        stamp = min(now, status.st_mtime_ns)
                        found.append((bytes.fromhex(named[1]), allocated(status.st_size), stamp))
        with self._lock:
            for name, size, stamp in found:
                self._blocks[name] = _Block(size, stamp)
                self._used += size
                heapq.heappush(self._oldest, (stamp, name))
            self._counts.add(bytes=self._used, blocks=len(found))
            self._make_room(0)

    def holds(self, name: bytes) -> bool:
        """True if a file of that name lies there, or is one that goes and was there at the last write. No I/O."""
        return name in self._blocks

    def find_prefix(self, names: Iterable[bytes]) -> BlockStore:  # noqa: ARG002 - each is known without I/O
        """A lookup that says at any time which blocks lie there then."""
        return self

    def may_store(self, name: bytes) -> bool:
        """True unless the block lies there. No I/O."""
        return not self.holds(name)

    def touch(self, stamps: Iterable[tuple[bytes, int]]) -> None:
        """Blocks, of which not all need lie here, have these stamps, or keep newer ones. Of those that go the files
        get their names back, if they still lie there."""
        with self._lock:
            self._forget_erased()
            for name, stamp in stamps:
                block = self._blocks.get(name)
                if block is not None and block.stamp < stamp and (name not in self._going or self._take_back(name)):
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
        size = allocated(HEADER_BYTES + payload.nbytes)
        with self._lock:
            self._forget_erased()
            self._retry()
            if name in self._going and self._take_back(name):
                heapq.heappush(self._oldest, (self._blocks[name].stamp, name))
            if name in self._blocks or name in self._writing:
                return True
            if self._backoff.pausing or not self._make_room(size):
                self._counts.add(stores_dropped=1)
                return False
            self._writing.add(name)
            self._used += size
            self._counts.add(bytes=size)
        written = self._files.write(name, payload, stamp, self._path(name, UNFINISHED))
        with self._lock:
            self._writing.discard(name)
            self._backoff.note(written=written)
            if written:
                self._free(self._stuck.pop(name))
                self._blocks[name] = _Block(size, stamp)
                heapq.heappush(self._oldest, (stamp, name))
                self._counts.add(stores=1, blocks=1)
            else:
                self._used -= size
                self._counts.add(bytes=-size, write_failures=1)
            return written

    def load(self, name: bytes, into: memoryview) -> bool:
        """The block's bytes stand in `into`, and are proved. False if not: then `into` may hold anything, and the
        block is not held any more. Blocks."""
        reason = self._files.read(name, into, SUFFIX, GOING)
        if reason is None:
            self._counts.add(loads=1)
            return True
        with self._lock:
            if reason == "missing":
                self._forget_erased()
                if name not in self._blocks:
                    return False
                if name in self._going:  # the keeper took it away
                    self._forget_evicted(name)
                    return False
            self._counts.add(**{f"refused_{reason}": 1})
            self._refuse(name)
        return False

    def remove(self, names: Sequence[bytes]) -> Sequence[bytes]:
        """None of these blocks is held. A few us for each. The keeper announces that with its next listing."""
        with self._lock:
            for name in names:
                self._refuse(name)
        return ()

    def close(self) -> None:
        """The store has no threads."""

    def _make_room(self, size: int) -> bool:
        """So many bytes more fit; False if they do not, now or ever. The lock is held, as in all methods below."""
        room = self._size_max - size
        if room < 0:
            return False
        self._forget_taken()
        headroom = self._size_max // HEADROOM_SHARE if _holds(self._lease.left_ns()) else 0
        while self._used - self._going_bytes > room - headroom and self._oldest:
            stamp, name = self._oldest[0]
            block = self._blocks.get(name)
            if block is not None and block.stamp == stamp and name not in self._going and not self._let_go(name):
                break
            heapq.heappop(self._oldest)
        if self._used > room:
            self._evict(room)
        return self._used <= room

    def _let_go(self, name: bytes) -> bool:
        """The block's file has the name of one that goes; False if it cannot be renamed: then the block stays."""
        try:
            self._path(name).rename(self._path(name, GOING))
        except FileNotFoundError:  # somebody removed it
            self._forget(name)
            return True
        except OSError:
            return False
        self._going[name] = None
        self._going_bytes += self._blocks[name].size
        return True

    def _take_back(self, name: bytes) -> bool:
        """The block stays; False if it does not, as its file is gone, or cannot be renamed."""
        try:
            self._path(name, GOING).rename(self._path(name))
        except FileNotFoundError:
            self._forget_evicted(name)
            return False
        except OSError:
            return False
        del self._going[name]
        self._going_bytes -= self._blocks[name].size
        return True

    def _forget_taken(self) -> None:
        """Files that the keeper removed since the last call count no more. Some 10 us for each that goes, if there are
        any."""
        removals = self._lease.removals()
        if removals == self._removals_seen:
            return
        self._removals_seen = removals
        for name in [*self._going]:
            try:
                self._path(name, GOING).stat()
            except FileNotFoundError:
                self._forget_evicted(name)
            except OSError:  # it may lie there, and counts
                pass

    def _forget_erased(self) -> None:
        """Files that the keeper erased since the last call are held no more. About 2 us for each file of the folder, if
        there are any."""
        erasures = self._lease.erasures()
        if erasures == self._erasures_seen:
            return
        try:
            with os.scandir(self._folder) as entries:
                there = {entry.name.partition(".")[0] for entry in entries}
        except OSError:  # tried again before the next write
            return
        self._erasures_seen = erasures
        # a file that got another name meanwhile may not have been seen; its engine would do that, which has the lock
        for name in [name for name in self._blocks if name.hex() not in there]:
            self._forget(name)

    def _evict(self, room: int) -> None:
        """Files that go are removed until no more than so many bytes are used, if no keeper will remove them.

        The lease is read after the files had their new names. A keeper takes it before it lists the folder. So either
        it lists no such file as one that stays, or its lease is seen here.
        """
        left_ns = self._lease.left_ns()
        if _holds(left_ns):
            return
        for name in [*self._going]:
            if self._used <= room:
                return
            try:
                self._path(name, GOING).unlink(missing_ok=True)
            except OSError:
                return
            self._forget_evicted(name)
            if left_ns is not None:
                self._counts.add(evictions_unannounced=1)

    def _forget_evicted(self, name: bytes) -> None:
        self._forget(name)
        self._counts.add(evictions=1)

    def _forget(self, name: bytes) -> int:
        """The block is not held, its bytes are free; returns their number, 0 if it was not held."""
        block = self._blocks.pop(name, None)
        if block is None:
            return 0
        if name in self._going:
            del self._going[name]
            self._going_bytes -= block.size
        self._counts.add(blocks=-1)
        self._free(block.size)
        return block.size

    def _free(self, size: int) -> None:
        self._used -= size
        self._counts.add(bytes=-size)

    def _refuse(self, name: bytes) -> None:
        """The block is not held, and its file is gone or stuck."""
        size = self._forget(name)
        if not size or self._unlink(name):
            return
        self._free(-size)
        self._counts.add(stuck=1)
        self._stuck.add(name, size)
        self._retries, self._retry_at_ms = 0, self._clock.monotonic_ms() + RETRY_S * 1000

    def _retry(self) -> None:
        """Stuck files are tried again, if it is time."""
        names, now_ms = self._stuck.names(), self._clock.monotonic_ms()
        if not names or self._retries >= RETRIES_MAX or now_ms < self._retry_at_ms:
            return
        self._retries, self._retry_at_ms = self._retries + 1, now_ms + RETRY_S * 1000
        for name in names:
            if self._unlink(name):
                self._free(self._stuck.pop(name))

    def _unlink(self, name: bytes) -> bool:
        try:
            for suffix in (SUFFIX, GOING):
                self._path(name, suffix).unlink(missing_ok=True)
        except OSError:
            return False
        return True


def _holds(left_ns: int | None) -> bool:
    return left_ns is not None and left_ns > 0
