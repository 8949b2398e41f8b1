"""StoreReports: what an engine stored, used and lost in a store of objects, for its worker's process, in small files.

A file never changes: the engine's process writes it, the worker's process reads and removes it. Removal is the
acknowledgement. FILES_MAX files and NAMES_MAX names bound what waits; beyond them the engine forgets names, and the
pool's keeper finds their blocks when it lists the store.
"""

from __future__ import annotations

import re
import struct
import threading
from collections import OrderedDict
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import msgspec

from actors.kv_blocks.block_seal import DIGEST_BYTES
from actors.kv_blocks.pool_folder import replace_file

FILES_MAX = 8
"""Files that the worker's process has not read."""
NAMES_MAX = 32_768
"""Names of each sort that wait for a file, or stand in one."""
FLUSH_S = 0.5
"""After a change a file is written so much later, with all changes until then."""
_FILE = re.compile(r"store-report-[0-9a-f]{8}")
_STORED = struct.Struct(f"<{DIGEST_BYTES}sQ")


class StoreReport(msgspec.Struct, frozen=True, array_like=True):
    """Changes since the report before, and totals since the engine's start."""

    stored: bytes = b""
    """Names and sizes of blocks that this engine wrote."""
    seen: bytes = b""
    """Names of blocks that lay there before."""
    used: bytes = b""
    """Names of blocks that requests used, the first ones of a prompt last; not all lie there."""
    gone: bytes = b""
    """Names of blocks that were refused, or were not there when they were to be read."""
    finished_bytes: int = 0
    """Of all writes that ended, however they did."""
    unsure_bytes: int = 0
    """Of those that failed, and may lie there all the same, and of those whose names were forgotten."""


def pack_stored(sizes: Iterable[tuple[bytes, int]]) -> bytes:
    """As `StoreReport.stored` has it."""
    return b"".join(_STORED.pack(name, size) for name, size in sizes)


def unpack_stored(raw: bytes) -> list[tuple[bytes, int]]:
    """Names and sizes."""
    return [*_STORED.iter_unpack(raw)]


def unpack_names(raw: bytes) -> list[bytes]:
    """Names, in their order."""
    return [raw[at : at + DIGEST_BYTES] for at in range(0, len(raw), DIGEST_BYTES)]


class StoreReports:
    """Those of one engine, as it writes them. Thread-safe; its own thread writes the files."""

    def __init__(self, shared: Path) -> None:
        self._shared = shared
        self._lock = threading.Lock()
        self._changed = threading.Event()
        self._closed = threading.Event()
        self._next = 0
        self._totals = [0, 0]
        self._dirty = False
        """Something stands in no file yet."""
        self._clear()
        self._thread = threading.Thread(target=self._write, name="remote tier reports", daemon=True)
        self._thread.start()

    def __repr__(self) -> str:
        return f"<StoreReports {self._next} written>"

    def _clear(self) -> None:
        self._stored: dict[bytes, int] = {}
        self._seen: dict[bytes, None] = {}
        self._used: OrderedDict[bytes, None] = OrderedDict()
        self._gone: dict[bytes, None] = {}

    def stored(self, name: bytes, size: int) -> None:
        """The block was written."""
        with self._lock:
            self._dirty = True
            self._totals[0] += size
            if len(self._stored) < NAMES_MAX:
                self._stored[name] = size
            else:
                self._totals[1] += size
        self._changed.set()

    def failed(self, size: int) -> None:
        """A write of so many bytes failed; they may lie there."""
        with self._lock:
            self._dirty = True
            self._totals[0] += size
            self._totals[1] += size
        self._changed.set()

    def spared(self, size: int) -> None:
        """So many bytes were to be written, and another engine had written them."""
        with self._lock:
            self._dirty = True
            self._totals[0] += size
        self._changed.set()

    def seen(self, name: bytes) -> None:
        """The block lay there."""
        with self._lock:
            self._dirty = True
            if len(self._seen) < NAMES_MAX:
                self._seen[name] = None
        self._changed.set()

    def used(self, names: Iterable[bytes]) -> None:
        """These blocks were used now, the last of them last."""
        with self._lock:
            self._dirty = True
            for name in names:
                self._used[name] = None
                self._used.move_to_end(name)
            while len(self._used) > NAMES_MAX:
                self._used.popitem(last=False)
        self._changed.set()

    def gone(self, name: bytes) -> None:
        """The block does not lie there."""
        with self._lock:
            self._dirty = True
            self._stored.pop(name, None)
            self._seen.pop(name, None)
            if len(self._gone) < NAMES_MAX:
                self._gone[name] = None
        self._changed.set()

    def flush(self) -> bool:
        """All that was reported stands in files; False if it does not, as the worker's process has not read enough of
        those before, or the file cannot be written. Then it is kept, within NAMES_MAX."""
        with self._lock:
            if not self._dirty:
                return True
            if len(_files(self._shared)) >= FILES_MAX:
                return False
            report = StoreReport(
                pack_stored(self._stored.items()),
                b"".join(self._seen),
                b"".join(self._used),
                b"".join(self._gone),
                *self._totals,
            )
            try:
                replace_file(self._shared / f"store-report-{self._next:08x}", msgspec.msgpack.encode(report))
            except OSError:
                return False
            self._next += 1
            self._clear()
            self._dirty = False
        return True

    def close(self) -> None:
        """All that was reported stands in files, if that is possible; the thread ends."""
        self._closed.set()
        self._changed.set()
        self._thread.join()

    def _write(self) -> None:
        while True:
            self._changed.wait()
            ends = self._closed.wait(FLUSH_S)
            self._changed.clear()
            if not self.flush() and not ends:
                self._changed.set()
            if ends:
                return


def read_reports(shared: Path) -> list[tuple[Path, StoreReport]]:
    """The reports of the engine that are not removed yet, the oldest first, and their files. OSError if the folder
    cannot be read."""
    found = []
    for file in _files(shared):
        with suppress(msgspec.DecodeError):  # never: a file is renamed into place
            found.append((file, msgspec.msgpack.decode(file.read_bytes(), type=StoreReport)))
    return found


def _files(shared: Path) -> list[Path]:
    return sorted(file for file in shared.iterdir() if _FILE.fullmatch(file.name))
