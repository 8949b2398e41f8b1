"""WorkerSets: sets of workers as bit masks, one int object per distinct set.

A worker has a bit from its first block on. When it leaves, its bit is retired: it stands for no worker, and another
worker gets it only when the index has swept it out of all tables.
"""

from __future__ import annotations

from collections.abc import Mapping

from core.ids import WorkerId

MASKS_MAX = 1 << 16
"""Distinct masks remembered to be shared; beyond, all are forgotten, and equal ones are objects of their own again."""
ALL_LIVE = -1
"""The mask without retired bits."""
MEMBERS_MAX = 1 << 12
"""Bound of masks with remembered members; beyond it, all are forgotten and computed again."""


class WorkerSets:
    """Which bit stands for which worker. A mask may hold retired bits; `live` tells them apart."""

    def __init__(self) -> None:
        self.live = ALL_LIVE
        """All bits but the retired ones."""
        self.bits: dict[WorkerId, int] = {}
        self.changes = 0
        """Counts changes of `bits`."""
        self._workers: dict[int, WorkerId] = {}
        self._masks: dict[int, int] = {}
        self._members: dict[int, tuple[WorkerId, ...]] = {}

    def __repr__(self) -> str:
        return f"<WorkerSets of {len(self.bits)} workers, {self.retired.bit_count()} bits to be swept>"

    @property
    def retired(self) -> int:
        """Bits of workers that are gone, which may still stand in masks."""
        return ~self.live

    def join(self, worker: WorkerId) -> int:
        """The worker's bit: the lowest that is free, if it had none."""
        bit = self.bits.get(worker)
        if bit is None:
            taken = self.retired
            for used in self._workers:
                taken |= used
            bit = self.shared(~taken & (taken + 1))
            self.bits[worker] = bit
            self.changes += 1
            self._workers[bit] = worker
        return bit

    def resume(self, live: int, bits: Mapping[WorkerId, int]) -> None:
        """Sets without a worker so far have these bits."""
        assert not self.bits
        self.live, self.bits, self.changes = live, dict(bits), self.changes + 1
        self._workers = {bit: worker for worker, bit in bits.items()}

    def retire(self, worker: WorkerId) -> bool:
        """The worker's bit stands for no worker from now on; False if it had none."""
        bit = self.bits.pop(worker, 0)
        if bit:
            del self._workers[bit]
            self.changes += 1
            self.live &= ~bit
            self._members.clear()  # it may stand for another one some day
        return bool(bit)

    def free(self, swept: int) -> None:
        """These retired bits stand in no mask any more and may be given out again."""
        assert not swept & self.live
        self.live |= swept

    def shared(self, mask: int) -> int:
        """An equal mask, the same object each time: a million blocks with one set of holders cost one int."""
        found = self._masks.setdefault(mask, mask)
        if len(self._masks) > MASKS_MAX:
            self._masks.clear()
        return found

    def members(self, mask: int) -> tuple[WorkerId, ...]:
        """The workers of a mask without retired bits, by id; O(1) when it was asked before."""
        found = self._members.get(mask)
        if found is None:
            if len(self._members) >= MEMBERS_MAX:
                self._members.clear()
            found = self._members[mask] = tuple(sorted(self._spelled(mask)))
        return found

    def mask(self, workers: tuple[WorkerId, ...]) -> int:
        """The inverse of `members`; each of them has a bit from now on."""
        mask = 0
        for worker in workers:
            mask |= self.join(worker)
        return self.shared(mask)

    def _spelled(self, mask: int) -> list[WorkerId]:
        found = []
        while mask:
            bit = mask & -mask
            found.append(self._workers[bit])
            mask ^= bit
        return found
