"""Shelf: what one worker holds on one tier, in numbers: the blocks themselves stand in the tier's table."""

from __future__ import annotations

import xxhash

from core.ids import WorkerId
from projections.block_table import BlockTable


class Shelf:
    """How many blocks, and what their hashes add up to."""

    __slots__ = ("bit", "count", "factor", "table", "total", "worker")

    def __init__(self, worker: WorkerId, tier: str, bit: int, table: BlockTable) -> None:
        self.worker = worker
        self.bit = bit
        self.table = table
        self.count = 0
        self.total = 0
        self.factor = xxhash.xxh3_64_intdigest(f"{worker}/{tier}".encode()) | 1
        """An odd number per worker and tier: sums of hashes times it tell whose they are."""

    def __repr__(self) -> str:
        return f"<Shelf of {self.worker}, {self.count} blocks>"
