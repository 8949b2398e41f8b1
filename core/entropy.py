"""Unpredictable random numbers, read from the system in large pieces: its call costs more than a request's id.

What is secret (keys, passwords) comes from `secrets`; this is for ids and seeds, of which every request takes some.
"""

from __future__ import annotations

import os

PIECE_BYTES = 4096


class Entropy:
    """Bytes of the system's generator, each handed out once. Of one thread."""

    def __init__(self) -> None:
        self._piece = b""
        self._at = 0

    def __repr__(self) -> str:
        return f"<Entropy {len(self._piece) - self._at} bytes left>"

    def take(self, count: int) -> bytes:
        """So many bytes, at most PIECE_BYTES."""
        end = self._at + count
        if end > len(self._piece):
            self._piece, end = os.urandom(PIECE_BYTES), count
        taken, self._at = self._piece[end - count : end], end
        return taken

    def clear(self) -> None:
        """Bytes read before are not handed out any more."""
        self._piece, self._at = b"", 0


_ours = Entropy()
# a forked process must not hand out what its parent does
os.register_at_fork(after_in_child=_ours.clear)


def random_hex(count: int) -> str:
    """So many random bytes as hex digits."""
    return _ours.take(count).hex()


def random_bits64() -> int:
    """A random number below 2^64."""
    return int.from_bytes(_ours.take(8), "little")
