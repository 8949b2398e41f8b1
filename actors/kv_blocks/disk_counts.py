"""DiskCounts: the numbers of a disk tier, written by the engine's process and read by its worker's.

They stand in a small file, which is written in place after each change: a reader sees them at any time, also while the
engine makes no step, and after its end.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping
from pathlib import Path
from threading import Lock

from actors.kv_blocks.block_seal import REASONS

COUNTS_FILE = "disk-counts"
NAMES = (
    "bytes",
    "blocks",
    "loads",
    "stores",
    "evictions",
    "evictions_unannounced",
    *(f"refused_{reason}" for reason in REASONS),
    "stuck",
    "write_failures",
    "stores_dropped",
    "loads_declined",
    "calls_overdue",
    "calls_denied",
    "calls_busy",
    "calls_failed",
    "load_blocks",
    "load_us",
)
"""In the order of the file; `bytes` and `blocks` are levels, the others count since the engine's start. `load_us` has
the time of each request's load from its begin to its newest block, and `load_blocks` the blocks of those."""
_FORM = struct.Struct(f"<{len(NAMES)}Q")


class DiskCounts:
    """Thread-safe. A file that cannot be written is given up: counting never ends an engine."""

    def __init__(self, path: Path) -> None:
        self._numbers = dict.fromkeys(NAMES, 0)
        self._lock = Lock()
        try:
            self._file: int | None = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        except OSError:
            self._file = None
        self.add()

    def __getitem__(self, name: str) -> int:
        return self._numbers[name]

    def add(self, **more: int) -> None:
        """The numbers have grown by these, or shrunk."""
        with self._lock:
            for name, number in more.items():
                self._numbers[name] += number
            if self._file is None:
                return
            try:
                os.pwrite(self._file, _FORM.pack(*self._numbers.values()), 0)
            except OSError:  # a full disk: the worker sees the numbers from before
                pass

    def close(self) -> None:
        """The file stands as it is."""
        with self._lock:
            if self._file is not None:
                os.close(self._file)
                self._file = None


def read_counts(path: Path) -> Mapping[str, int]:
    """The numbers in that file; empty if there is none, or none that is whole."""
    try:
        raw = path.read_bytes()
    except OSError:
        return {}
    return dict(zip(NAMES, _FORM.unpack(raw), strict=True)) if len(raw) == _FORM.size else {}
