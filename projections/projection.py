"""What every projection is: a pure fold of one stream, in parts, one per source, with a digest of all of them.

1. An event changes only the part of its own source, so the order between sources cannot matter; what needs two
   streams is joined in `projections.view`. There is no clock, no randomness and no I/O in a fold: live tail, rebuild
   and replay run the same code.
2. The digest is the sum over the parts that are alive, and covers only what a restatement makes whole. So a fold from
   the log's start, one from a snapshot and one of a log whose head was cut have equal digests at an equal cursor as
   soon as no source is unknown.
3. A part that ended leaves a tombstone (`projections.ended`) and nothing else.
4. Named fields of events are covered, never whole events: a later program may write a field that this one ignores.
"""

from __future__ import annotations

from typing import Protocol

import xxhash

from core.codec import Message
from projections.chain import Chain, Missing
from projections.ended import Ended

MASK64 = (1 << 64) - 1

FOLD_VERSION = 2
"""Changed whenever the same log could give another digest; only digests of equal versions are compared."""


class Projection(Protocol):
    """State folded from one stream."""

    unknown_events: int
    """Events of types that this program does not know: kept in the log, not folded."""
    ended: Ended
    missing: list[Missing]
    """What the chains lacked since somebody emptied this."""

    def apply(self, owner: str, message: Message, digest: bytes) -> bool:
        """Folds one message of the subject that `owner` owns; False if it was a repeat and changed nothing."""

    @property
    def digest(self) -> int:
        """64 bits, equal for equal states; kept up to date by every apply."""

    @property
    def incomplete(self) -> int:
        """Sources whose chain has a gap and that have not restated themselves since. O(1)."""


def mix(*values: object) -> int:
    """64 bits that depend on all the values; they are ints, strings and bytes."""
    return mixed(repr(values))


def mixed(values: str) -> int:
    """The same of their repr as a tuple, for who can make that for less."""
    return xxhash.xxh3_64_intdigest(values.encode())


def stamp(chain: Chain, identity: int) -> int:
    """64 bits that depend on how far the source was read and on who it is. 0.2 us: it is made for every message."""
    return xxhash.xxh3_64_intdigest(chain.head, (identity + chain.n_next) & MASK64)
