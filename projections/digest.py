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

FOLD_VERSION = 7
"""Changed whenever the same log could give another digest; replicas compare only digests of equal versions."""
READ_FOLD_VERSIONS = range(2, FOLD_VERSION + 1)
"""Folds of these differ by `LoadReported.reuse_rate`, which 2 lacks, by pools, which 2 and 3 lack, by adapters, which 5
and later ones have, by fetches, which 6 and 7 have, and by turnovers, which 7 has: a recording goes on from their
snapshots and compares their digests while no worker reports such a number, reads a pool, serves an adapter or fetches
blocks."""
RATES_VERSION, POOLS_VERSION, ADAPTERS_VERSION, FETCHES_VERSION, TURNOVER_VERSION = 3, 4, 5, 6, 7
"""The first with reuse rates, with pools, with adapters, with fetches, and with turnovers."""


def mix(*values: object) -> int:
    """64 bits that depend on all the values; they are ints, strings and bytes."""
    return mix_repr(repr(values))


def mix_repr(values: str) -> int:
    """The same hash from the repr of the values as a tuple, for callers that have the repr already."""
    return xxhash.xxh3_64_intdigest(values.encode())


def hash_sum(column: bytes) -> int:
    """The sum of the numbers (little-endian uint64), modulo 2^64. About 25 ns each."""
    if len(column) == HASH_BYTES:
        return int.from_bytes(column, "little")
    return sum(array("Q", column)) & MASK64
