"""Digest: the hash functions of all folds, and the version by which their results are compared.

1. The digest of a fold is the sum over its parts (one per source), so the order of the sources does not matter.
2. `mix` hashes the `repr` of its arguments; `hash_sum` adds a column of block hashes.
3. Named fields of events are covered, never whole events: a later program may write a field that this one ignores.
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
    """The same hash from the repr of the values as a tuple, for callers that have the repr already."""
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
