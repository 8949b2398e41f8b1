"""BlockOwners: of each block in a cache, the owner: the request that used it there last.

A request uses the blocks of its prompt on the worker that it is sent to. A block that stands in no prompt sent there
was made by an answer: its owner is that of the block before it. Other blocks have no owner: those of a snapshot, and
those of prefill workers, to which the routing stream sends nothing.

A removal ends the use of a block, unless its request still waits for its first token: then it may store it anew.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice, repeat

from core.ids import WorkerId
from replay.cache.copy_fold import ALL_TIERS, LOST, Copies
from replay.recording.request_history import RequestHistory

OWNED_MAX = 4_000_000
"""Blocks with an owner, of all workers; some 110 bytes each."""
FORGOTTEN_SHARE = 16
"""One of so many parts of a worker's blocks is forgotten at once."""
NO_OWNER = -1


class BlockOwners:
    """Owners are the numbers of decisions."""

    def __init__(self, requests: RequestHistory, owned_max: int = OWNED_MAX) -> None:
        self._requests = requests
        self._first_token_ms = requests.columns["prefilled_ms"]
        self.forgotten = 0
        """Blocks beyond the bound, those that were there first: they have no owner."""
        self._owned_max = owned_max
        self._owned: dict[WorkerId, dict[int, int]] = {}
        """By worker and block, in the order in which blocks got their first owner. Prompts that are not stored yet are
        here, too."""
        self._count = 0

    def __repr__(self) -> str:
        return f"<BlockOwners of {self._count} blocks>"

    def use(self, worker: WorkerId, owner: int, hashes: Sequence[int]) -> None:
        """The decision of this number sent this prompt to the worker. Some 0.1 us a block."""
        owned = self._owned.setdefault(worker, {})
        before = len(owned)
        owned.update(zip(hashes, repeat(owner)))
        self._count += len(owned) - before
        self._forget(owned)

    def store(self, copies: Copies) -> list[int]:
        """The owner of each block that is stored there, from now on."""
        owned = self._owned.setdefault(copies.worker, {})
        owners = list(map(owned.get, copies.blocks, repeat(NO_OWNER)))
        if NO_OWNER in owners and copies.tier != ALL_TIERS:
            before, last = len(owned), NO_OWNER if copies.parent is None else owned.get(copies.parent, NO_OWNER)
            for at, (block, owner) in enumerate(zip(copies.blocks, owners, strict=True)):
                if owner == NO_OWNER and last != NO_OWNER:
                    owners[at] = owned[block] = last
                last = owners[at]
            self._count += len(owned) - before
            self._forget(owned)
        return owners

    def take(self, copies: Copies, how: str, time_ms: int) -> list[int]:
        """The owner of each block that went at that time; these blocks have none any more, but for waiting requests."""
        owned = self._owned.get(copies.worker, {})
        before = len(owned)
        owners = list(map(owned.pop, copies.blocks, repeat(NO_OWNER)))
        for owner in set(owners):
            if owner != NO_OWNER and self._waits(owner, time_ms):
                owned.update((block, owner) for block, each in zip(copies.blocks, owners, strict=True) if each == owner)
        self._count -= before - len(owned)
        if how == LOST:
            self._count -= len(self._owned.pop(copies.worker, {}))
        return owners

    def _waits(self, owner: int, time_ms: int) -> bool:
        """True if the request of that decision had no first token before that time."""
        row = self._requests.row(owner)
        return row is not None and not 0 < self._first_token_ms[row] < time_ms

    def _forget(self, owned: dict[int, int]) -> None:
        """The table is within its bound: the blocks that have been there longest have no owner."""
        while self._count > self._owned_max:
            oldest = list(islice(owned, max(1, len(owned) // FORGOTTEN_SHARE)))
            for block in oldest:
                del owned[block]
            self._count -= len(oldest)
            self.forgotten += len(oldest)
