"""What every projection is: a pure fold of one stream, in parts, one per source, with a digest of all of them.

1. An event changes only the part of its own source, so the order between sources cannot matter; what needs two
   streams is joined in `projections.policy.view`. There is no clock, no randomness and no I/O in a fold: live tail,
   rebuild and replay run the same code.
2. The digest is the sum over the parts that are alive, and covers only what a restatement makes whole. So a fold from
   the log's start, one from a snapshot and one of a log whose head was cut have equal digests at an equal cursor as
   soon as no source is unknown.
3. A part that ended leaves a tombstone (`projections.folds.source_fold`) and nothing else.
4. Named fields of events are covered, never whole events: a later program may write a field that this one ignores.

The sum of a column of hashes, which says of a set of blocks what it is, whatever the order they came in.
"""

from __future__ import annotations

from array import array

import xxhash

from core.prompt import HASH_BYTES

MASK64 = (1 << 64) - 1

FOLD_VERSION = 2
"""Changed whenever the same log could give another digest; only digests of equal versions are compared."""


def mix(*values: object) -> int:
    """64 bits that depend on all the values; they are ints, strings and bytes."""
    return mix_repr(repr(values))


def mix_repr(values: str) -> int:
    """The same of their repr as a tuple, for who can make that for less."""
    return xxhash.xxh3_64_intdigest(values.encode())


FEW_BYTES = 12 * HASH_BYTES
"""Up to here adding one by one is cheaper."""
MANY_BYTES = 256 * HASH_BYTES
"""As much as becomes one integer: a larger one costs more per number."""


def hash_sum(column: bytes) -> int:
    """The sum of the numbers (little-endian uint64), modulo 2^64. About 20 ns each of many, 40 of a few."""
    if len(column) <= FEW_BYTES:
        return sum(array("Q", column)) & MASK64
    if len(column) <= MANY_BYTES:
        return _folded(column)
    parts = [hash_sum(column[start : start + MANY_BYTES]) for start in range(0, len(column), MANY_BYTES)]
    return sum(parts) & MASK64


def _folded(column: bytes) -> int:
    """One large integer, every second number first, so that each has 64 bits to grow into; then the halves of what is
    left are added again and again."""
    size = 1 << (len(column) // HASH_BYTES - 1).bit_length()
    every_second = _EVERY_SECOND[size]
    whole = int.from_bytes(column, "little")
    whole = (whole & every_second) + (whole >> 64 & every_second)
    for width, low in _HALVES[size]:
        whole = (whole >> width) + (whole & low)
    return whole & MASK64


_SIZES = [1 << power for power in range(1, (MANY_BYTES // HASH_BYTES).bit_length())]
"""Powers of two."""
_EVERY_SECOND = {size: sum(MASK64 << 128 * place for place in range(size // 2)) for size in _SIZES}
_HALVES = {size: [(64 * half, (1 << 64 * half) - 1) for half in reversed(_SIZES) if half < size] for size in _SIZES}
"""Per size the widths in bits of its half, that one's half, and so on, and the bits below."""
