"""StuckFiles: refused files that the engine's process could not remove, for the pool's keeper, in a small file.

The keeper lists such a file like any other, and would go on announcing its block.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from actors.kv_blocks.block_seal import DIGEST_BYTES

STUCK_FILE = "pool-stuck"
STUCK_MAX = 4096
"""Files of which the names are kept. With more, a keeper announces none at all."""
_ALL = b"*"


class StuckFiles:
    """Not thread-safe. Where the small file cannot be written, a keeper knows what it knew before."""

    def __init__(self, shared: Path) -> None:
        self._path = shared / STUCK_FILE
        self._sizes: dict[bytes, int] = {}
        self._too_many = False

    def __repr__(self) -> str:
        return f"<StuckFiles {len(self._sizes)}{' and more' if self._too_many else ''}>"

    def names(self) -> list[bytes]:
        """Those that are kept."""
        return [*self._sizes]

    def has(self, name: bytes) -> bool:
        """True if that file is one of those that are kept."""
        return name in self._sizes

    def add(self, name: bytes, size: int) -> None:
        """The file of that name, with so many bytes, cannot be removed."""
        if len(self._sizes) < STUCK_MAX:
            self._sizes[name] = size
        else:
            self._too_many = True
        self._save()

    def pop(self, name: bytes) -> int:
        """The file is gone or written anew; returns its bytes, 0 if it was not stuck."""
        size = self._sizes.pop(name, None)
        if size is None:
            return 0
        self._save()
        return size

    def _save(self) -> None:
        draft = self._path.with_suffix(".new")
        with suppress(OSError):
            draft.write_bytes(_ALL if self._too_many else b"".join(self._sizes))
            draft.replace(self._path)


def read_stuck(shared: Path) -> set[bytes] | None:
    """Names of the files that cannot be removed; None if they are too many to be named."""
    try:
        raw = (shared / STUCK_FILE).read_bytes()
    except OSError:
        return set()
    if raw == _ALL:
        return None
    return {raw[at : at + DIGEST_BYTES] for at in range(0, len(raw), DIGEST_BYTES)}
