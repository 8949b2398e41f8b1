"""What every projection is: a pure fold of one stream, in parts, one per source, with a digest of all of them.

An event changes only the part of its own source, so the order between sources cannot matter; what needs two
streams is joined in `projections.view`. There is no clock, no randomness and no I/O in a fold: live tail, rebuild
and replay run the same code.
"""

from __future__ import annotations

from typing import Protocol

import xxhash

from core.codec import Message

MASK64 = (1 << 64) - 1

FOLD_VERSION = 1
"""Changed whenever the same log could give another digest; only digests of equal versions are compared."""


class Projection(Protocol):
    """State folded from one stream."""

    unknown_events: int
    """Events of types that this program does not know: kept in the log, not folded."""

    def apply(self, owner: str, message: Message, digest: bytes) -> bool:
        """Folds one message of the subject that `owner` owns; False if it was a repeat and changed nothing."""

    @property
    def digest(self) -> int:
        """64 bits, equal for equal states; kept up to date by every apply."""

    @property
    def incomplete(self) -> int:
        """Sources whose chain has a gap and that have not restated themselves since."""


def mix(*values: object) -> int:
    """64 bits that depend on all the values; they are ints, strings and bytes."""
    return xxhash.xxh3_64_intdigest(repr(values).encode())
