"""TierStore: what an engine's tier asks of the blocks behind its host, wherever they lie.

`BlockStore` is a folder of one worker, `SharedBlockStore` one of several workers of a machine, `RemoteBlockStore` a
place that may hang: a folder on a network file system, or an object store.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol


class BlockLookup(Protocol):
    """The blocks of one request."""

    def holds(self, name: bytes) -> bool | None:
        """True if that block lies there, None while that is not known yet. No call waits."""


class TierStore(Protocol):
    """Thread-safe. Methods that block are called in the tier's threads alone."""

    load_s: float
    """So long after its begin a load of many blocks reads no further block; those are misses."""

    def stamp_now(self) -> int:
        """The stamp of a block that is used now, first in its prompt."""

    def find_prefix(self, names: Iterable[bytes]) -> BlockLookup:
        """An answer for a request's blocks, the first that is looked for first. No call waits."""

    def may_store(self, name: bytes) -> bool:
        """True if `put` is worth a thread: False of a block that is known to lie there. No call waits."""

    def touch(self, stamps: Iterable[tuple[bytes, int]]) -> None:
        """Blocks, of which not all need lie there, have these stamps, or keep newer ones. May block."""

    def save_stamps(self) -> None:
        """Stamps outlive this process. Blocks."""

    def put(self, name: bytes, payload: memoryview, stamp: int) -> bool:
        """The block lies there, whether it did before or not. False if it cannot; that is counted. Blocks."""

    def load(self, name: bytes, into: memoryview) -> bool:
        """The block's bytes stand in `into`, and are proved. False if not: then `into` may hold anything. Blocks."""

    def remove(self, names: Sequence[bytes]) -> Sequence[bytes]:
        """None of these blocks, which are not being written, is held or read here any more, but for those that are
        returned: their removal failed, and is to be tried again. Blocks where calls may hang."""

    def close(self) -> None:
        """Nothing begins in threads of the store any more."""
