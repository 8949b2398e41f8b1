"""BlockFiles: sealed files of KV blocks in a folder, one for each block, written whole and proved when read."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path

from actors.kv_blocks.block_seal import HEADER_BYTES, BlockSeal
from core.clock import Clock

SUFFIX, UNFINISHED = ".kv", ".new"
ALLOCATION_BYTES = 4096
"""A file takes a multiple of that on a disk."""
FAILURES_MAX = 8
"""Failed writes in a row, after which none is tried for PAUSE_S."""
PAUSE_S = 30


class BlockFiles:
    """A file has its block's keyed name as 32 hex digits, and mode 0600. Nothing is flushed (fsync): after a crash of
    the machine a file may be empty or have holes, which its checksum shows. All methods block."""

    def __init__(self, folder: Path, seal: BlockSeal) -> None:
        self.folder = folder
        self._seal = seal

    def __repr__(self) -> str:
        return f"<BlockFiles {self.folder}>"

    def path(self, name: bytes, suffix: str = SUFFIX) -> Path:
        """The file of the block of that name."""
        return self.folder / f"{name.hex()}{suffix}"

    def write(self, name: bytes, payload: memoryview, stamp: int, draft: Path) -> bool:
        """The block's file is complete, with that time of change in nanoseconds; it is written as `draft`, which must
        not exist, and renamed. False if that failed: then nothing is left of it."""
        try:
            file = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            try:
                header = self._seal.header(name, payload)
                if os.writev(file, (memoryview(header), payload)) != HEADER_BYTES + payload.nbytes:
                    raise OSError("the disk took only a part")
                os.utime(file, ns=(stamp, stamp))
            finally:
                os.close(file)
            draft.rename(self.path(name))
        except OSError:
            with suppress(OSError):
                draft.unlink()
            return False
        return True

    def read(self, name: bytes, into: memoryview, *suffixes: str) -> str | None:
        """None if the block's bytes stand in `into`, and are proved; else one of `block_seal.REASONS`, and `into` may
        hold anything. The file has the first of the suffixes under which it lies there, SUFFIX without any."""
        header = bytearray(HEADER_BYTES)
        try:
            file = self._open(name, suffixes or (SUFFIX,))
            try:
                size = os.fstat(file).st_size
                read = os.preadv(file, [header, into], 0)
            finally:
                os.close(file)
        except FileNotFoundError:
            return "missing"
        except OSError as error:  # ESTALE: another machine removed it
            return "missing" if error.errno == errno.ESTALE else "unreadable"
        reason = self._seal.refusal(name, header, into, size)
        return "short" if reason is None and read != size else reason

    def _open(self, name: bytes, suffixes: tuple[str, ...]) -> int:
        for suffix in suffixes:
            with suppress(FileNotFoundError):
                return self._open_as(name, suffix)
        return self._open_as(name, suffixes[0])  # it got its first name back between the two

    def _open_as(self, name: bytes, suffix: str) -> int:
        return os.open(self.path(name, suffix), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)


class WriteBackoff:
    """After FAILURES_MAX failed writes in a row, none is to be tried for PAUSE_S. Not thread-safe."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._failures = 0
        self._until_ms = 0

    def __repr__(self) -> str:
        return f"<WriteBackoff after {self._failures} failures>"

    @property
    def pausing(self) -> bool:
        """True while nothing is to be written."""
        return self._clock.monotonic_ms() < self._until_ms

    def note(self, *, written: bool) -> None:
        """A write succeeded, or failed."""
        self._failures = 0 if written else self._failures + 1
        if self._failures >= FAILURES_MAX:
            self._failures = 0
            self._until_ms = self._clock.monotonic_ms() + PAUSE_S * 1000


def allocated(size: int) -> int:
    """Bytes that a file of that size takes on a disk."""
    return -(-size // ALLOCATION_BYTES) * ALLOCATION_BYTES
