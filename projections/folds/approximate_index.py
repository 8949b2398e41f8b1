"""ApproximateIndex: the blocks that a replica assumes its workers hold, from its own decisions alone.

Under the policy `approximate`, a block counts as cached on the worker that a request was sent to. It counts from the
request's first token on; until then it is pending there, as under any policy. It counts for as long as the decision's
record says (`CacheRetention`), or until other blocks push it out: the least recently used prompt first, its last block
first. So engines need report no cache events.

Each replica's part rests on its own chain alone. It is void when the replica restates itself or ends, and whole
wherever the rest of its part is. No clock is read here: a decision asks for uses since a time, and expiry goes by the
time in the folded record. A use has the time of the newest decision with a first token by then, so times never fall
from use to use. A use covers all blocks of a prompt, so no block is dated later than one before it, and a lookup is a
binary search.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice, takewhile
from typing import NamedTuple

import msgspec

from core.events.base import check_width
from core.ids import WorkerId
from core.prompt import Prompt, hashes_from_bytes, hashes_to_bytes
from projections.digest import MASK64, mix

APPROXIMATE_BLOCKS_MAX = 1 << 20
"""Blocks that a replica's part holds, of all workers together, at about 150 bytes each; beyond, the worker that it
chose longest ago loses its oldest first."""
NEVER = -1
"""Before every time."""


class CacheRetention(NamedTuple):
    """The retention that one decision records: the blocks that its worker is taken to keep of this replica's
    prompts."""

    blocks: int
    """So many at most, this prompt's included."""
    ms: int
    """Each for so long after its last use; 0 for as long as no other pushes it out."""


class WorkerBlocks(msgspec.Struct, array_like=True):
    """One worker's blocks, as a snapshot has them: two columns, the least recently used first."""

    worker: WorkerId
    hashes: bytes
    used_ms: bytes

    def __post_init__(self) -> None:
        check_width(self.hashes)
        if not self.hashes or len(self.hashes) != len(self.used_ms):
            raise ValueError(f"{len(self.hashes)} bytes of hashes, {len(self.used_ms)} of times")


class ApproximateIndex:
    """One replica's part. Equal chains give equal parts, their order included."""

    def __init__(self) -> None:
        self.digest = 0
        """64 bits, a sum over all that is believed; O(1)."""
        self.blocks = 0
        """Of all workers together."""
        self._workers: dict[WorkerId, dict[int, int]] = {}
        """Block to its last use. The worker chosen last and the block used last come last."""
        self._newest_ms = NEVER

    def __repr__(self) -> str:
        return f"<ApproximateIndex {self.blocks} blocks of {len(self._workers)} workers>"

    def take(self, worker: WorkerId, hashes: bytes, routed_ms: int, retention: CacheRetention) -> None:
        """The worker has these blocks, the whole prompt; what they push out, and what is too old by then, is gone.

        O(blocks), about 0.2 us each, and amortized as much for each that goes.
        """
        if retention.blocks <= 0 or not hashes:
            return
        table = self._workers[worker] = self._workers.pop(worker, {})  # it moves to the end
        self._newest_ms = used_ms = max(self._newest_ms, routed_ms)
        before, changed = len(table), 0
        for block in reversed(hashes_from_bytes(hashes)):
            changed += block * (used_ms - table.pop(block, NEVER))
            table[block] = used_ms
        self._count(worker, len(table) - before, changed)
        self._drop(worker, list(islice(table, max(0, len(table) - retention.blocks))))
        if retention.ms > 0:
            self._expire(worker, used_ms - retention.ms)
        self._fit()

    def reach(self, prompt: Prompt, since_ms: int) -> Iterator[tuple[WorkerId, int]]:
        """Workers with leading blocks of the prompt that were used after `since_ms`, each with their number.

        At most those that an engine can reuse. One probe per worker, and O(log blocks) more where the first block is.
        """
        limit = prompt.blocks_reusable
        first = prompt.key(1) if limit else None
        for worker, table in self._workers.items():
            if first is not None and table.get(first, NEVER) > since_ms:
                yield worker, _depth(table, prompt, since_ms, limit)

    def kept(self) -> list[WorkerBlocks]:
        """All of it, for a snapshot."""
        return [
            WorkerBlocks(worker, hashes_to_bytes(table), hashes_to_bytes(table.values()))
            for worker, table in self._workers.items()
        ]

    @staticmethod
    def of(kept: list[WorkerBlocks]) -> ApproximateIndex:
        """The inverse of `kept`."""
        found = ApproximateIndex()
        for each in kept:
            blocks, times = hashes_from_bytes(each.hashes), hashes_from_bytes(each.used_ms)
            table = found._workers[each.worker] = dict(zip(blocks, times, strict=True))
            weight = sum(block * (used_ms - NEVER) for block, used_ms in table.items())
            found._count(each.worker, len(table), weight)
            found._newest_ms = max(found._newest_ms, *times)
        return found

    def _expire(self, worker: WorkerId, until_ms: int) -> None:
        """Of this worker and of those that were chosen longest ago, what is so old is gone, in the order of its use."""
        table = self._workers[worker]
        self._drop(worker, list(takewhile(lambda block: table[block] <= until_ms, table)))
        while (other := next(iter(self._workers), worker)) != worker:
            table = self._workers[other]
            if table[next(reversed(table))] > until_ms:
                return
            self._drop(other, list(table))

    def _fit(self) -> None:
        """No more than APPROXIMATE_BLOCKS_MAX are left."""
        while self.blocks > APPROXIMATE_BLOCKS_MAX:
            worker, table = next(iter(self._workers.items()))
            self._drop(worker, list(islice(table, self.blocks - APPROXIMATE_BLOCKS_MAX)))

    def _drop(self, worker: WorkerId, blocks: list[int]) -> None:
        """The worker has none of these any more, all of which it had."""
        table = self._workers[worker]
        self._count(worker, -len(blocks), -sum(block * (table.pop(block) - NEVER) for block in blocks))
        if not table:
            del self._workers[worker]

    def _count(self, worker: WorkerId, blocks: int, weight: int) -> None:
        """The sums have so many blocks more, which weigh so much together: each its hash times its time."""
        self.blocks += blocks
        self.digest = (self.digest + (mix(worker) | 1) * weight) & MASK64


def _depth(table: dict[int, int], prompt: Prompt, since_ms: int, limit: int) -> int:
    """Number of leading blocks of the prompt in the table that were used since then; the first one is in it."""
    low, high = 1, limit
    while low < high:
        middle = (low + high + 1) // 2
        if table.get(prompt.key(middle), NEVER) > since_ms:
            low = middle
        else:
            high = middle - 1
    return low
