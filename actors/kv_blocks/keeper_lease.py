"""KeeperLease: a file by which a pool's keeper tells the engine until when it announces what leaves the pool.

The file's time of change is the lease's end, by the monotonic clock of the machine, which all of its processes share.
Its time of access counts the keeper's removals of files: whole seconds those of files that go, nanoseconds those of
files that an operator erases. So reading each is one call of the system. Its folder lives as long as the engine: no
lease outlives either process.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from core.clock import Clock

LEASE_FILE = "pool-lease"
LEASE_S = 60.0
"""So long after its last renewal, which needs the log, a keeper counts as away."""


class KeeperLease:
    """The keeper renews and ends it, the engine reads it."""

    def __init__(self, shared: Path, clock: Clock) -> None:
        self._path = shared / LEASE_FILE
        self._clock = clock
        self._ends_ns = 0
        self._removals = self._erasures = 0

    def __repr__(self) -> str:
        return f"<KeeperLease {self._path}>"

    def renew(self, more_s: float = 0.0) -> None:
        """The lease ends LEASE_S and `more_s` seconds from now. OSError if the file cannot be written."""
        self._ends_ns = self._clock.monotonic_ns() + round((LEASE_S + more_s) * 1e9)
        try:
            self._write(self._path)
        except FileNotFoundError:
            draft = self._path.with_suffix(".new")  # a file that is made now has times of the wall clock
            draft.touch(0o600)
            self._write(draft)
            draft.rename(self._path)

    def count_removal(self) -> None:
        """The engine sees that files are gone, now or with the next renewal. OSError as for `renew`."""
        self._removals += 1
        self._write(self._path)

    def count_erasure(self) -> None:
        """The engine sees that files are gone which did not go, now or with the next renewal. OSError as for
        `renew`."""
        self._erasures += 1
        self._write(self._path)

    def end(self) -> None:
        """There is no keeper any more: nothing is announced of the pool."""
        with suppress(OSError):  # the engine's folder went with the engine
            self._path.unlink()

    def left_ns(self) -> int | None:
        """Nanoseconds until its end, negative after it; None if there is no keeper."""
        try:
            return self._path.stat().st_mtime_ns - self._clock.monotonic_ns()
        except OSError:
            return None

    def removals(self) -> int:
        """The number of times that the keeper removed files; 0 without a keeper."""
        try:
            return self._path.stat().st_atime_ns // 10**9
        except OSError:
            return 0

    def erasures(self) -> int:
        """The number of times that the keeper erased files; 0 without a keeper."""
        try:
            return self._path.stat().st_atime_ns % 10**9
        except OSError:
            return 0

    def _write(self, path: Path) -> None:
        os.utime(path, ns=(self._removals * 10**9 + self._erasures, self._ends_ns))
