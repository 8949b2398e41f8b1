"""CopyFold: the fold of one kv stream that reports every copy of a block that comes to a cache or goes.

It is the fold of the router, so a copy is there exactly while a replica at the same place would find it. Only the
blocks stand elsewhere: in plain sets (`WorkerCaches`), some 70 bytes a copy. They answer fewer questions than a
`PrefixIndex`, and change in a fifth of its time. No digest is kept.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

from core.events import BlocksRemoved, BlocksStored, CacheCleared, CacheRestated, KvEvent, PoolJoined, WorkerJoined
from core.ids import WorkerId
from core.settings import TIERS
from projections.folds.kv_fold import KvFold, Member
from projections.index.prefix_index import PrefixIndex

REMOVED, CLEARED, LOST, UNKNOWN = "removed", "cleared", "lost", "unknown"
"""Ways in which copies go: the worker removed them; its whole cache was emptied or restated without them; the worker
ended; messages of the worker are missing."""
ALL_TIERS = ""
"""Stands for the tier where a whole cache changed at once."""

CacheScope = tuple[str, int]
"""The model and the block size of a cache: blocks of equal hashes are not the same in two scopes."""


class Copies(NamedTuple):
    """One copy of each of these blocks, in one worker's cache."""

    worker: WorkerId
    scope: CacheScope
    tier: str
    """`ALL_TIERS` for a whole cache at once."""
    blocks: Sequence[int]
    """Of one tier, each one behind the one before if they were stored."""
    parent: int | None = None
    """The block before the first, if they were stored on one tier; None at the start of a prompt."""


class CopyObserver(Protocol):
    """Gets all changes of copies, in their order."""

    def enter(self, stream: int, seq: int, time_ms: int) -> None:
        """Changes from now on stand in this message of a kv stream, which the log stored at that time."""

    def on_joined(self, worker: WorkerId, scope: CacheScope) -> None:
        """The worker has a cache of this scope."""

    def on_stored(self, copies: Copies) -> None:
        """These copies are there."""

    def on_gone(self, copies: Copies, how: str) -> None:
        """These copies went: `REMOVED`, `CLEARED`, `LOST` or `UNKNOWN`."""


class CopyObservers:
    """Several observers as one; each change reaches them in their order."""

    def __init__(self, observers: Sequence[CopyObserver]) -> None:
        self._observers = observers

    def __repr__(self) -> str:
        return f"<CopyObservers: {len(self._observers)}>"

    def enter(self, stream: int, seq: int, time_ms: int) -> None:
        """All have the place."""
        for each in self._observers:
            each.enter(stream, seq, time_ms)

    def on_joined(self, worker: WorkerId, scope: CacheScope) -> None:
        """All know the worker."""
        for each in self._observers:
            each.on_joined(worker, scope)

    def on_stored(self, copies: Copies) -> None:
        """All have the copies."""
        for each in self._observers:
            each.on_stored(copies)

    def on_gone(self, copies: Copies, how: str) -> None:
        """All have the end of the copies."""
        for each in self._observers:
            each.on_gone(copies, how)


class WorkerCaches:
    """The blocks of all workers, of all kv streams."""

    def __init__(self) -> None:
        self._tiers: dict[WorkerId, dict[str, set[int]]] = {}

    def __repr__(self) -> str:
        return f"<WorkerCaches of {len(self._tiers)} workers>"

    def of(self, worker: WorkerId, tier: str) -> set[int]:
        """The worker's blocks on the tier, to be changed in place."""
        tiers = self._tiers.get(worker)
        if tiers is None:
            tiers = self._tiers[worker] = {}
        blocks = tiers.get(tier)
        if blocks is None:
            blocks = tiers[tier] = set()
        return blocks

    def copies(self, worker: WorkerId) -> list[int]:
        """The worker's blocks on all tiers, ascending."""
        return sorted(set[int]().union(*self._tiers.get(worker, {}).values()))

    def held(self, worker: WorkerId, blocks: Sequence[int]) -> set[int]:
        """Those of the blocks that the worker has on any tier."""
        return set[int]().union(*(cache.intersection(blocks) for cache in self._tiers.get(worker, {}).values()))

    def drop(self, worker: WorkerId) -> None:
        """The worker holds nothing."""
        self._tiers.pop(worker, None)

    def depth(self, workers: Iterable[WorkerId], blocks: Sequence[int]) -> int:
        """Leading blocks of a prompt that some of these workers hold. O(workers * log blocks): who holds a block holds
        all before it."""
        caches = [cache for worker in workers for cache in self._tiers.get(worker, {}).values() if cache]

        def is_absent(block: int) -> bool:
            return not any(block in cache for cache in caches)

        return bisect_left(blocks, True, key=is_absent)

    def load(self, index: PrefixIndex) -> None:
        """The blocks of an index are here too."""
        for tier, groups in index.contents().items():
            for group in groups:
                blocks = array("Q", group.hashes)
                for worker in group.workers:
                    self.of(worker, tier).update(blocks)


class CopyFold(KvFold):
    """Reports to an observer, after each event, the copies that came and went by it.

    A worker with an unknown cache may hold anything. Its stores are reported, and at once as gone by `UNKNOWN`; its
    removals are reported as such.
    """

    def __init__(self, caches: WorkerCaches, observer: CopyObserver) -> None:
        super().__init__(PrefixIndex())  # stays empty
        self._caches = caches
        self._observer = observer

    def __repr__(self) -> str:
        return f"<CopyFold of {len(self.alive)} workers>"

    def _blocks_changed(self, member: Member, event: BlocksStored | BlocksRemoved) -> None:
        if event.tier not in TIERS:
            return
        blocks = array("Q", event.hashes).tolist()
        if isinstance(event, BlocksStored):
            if member.cache_known:
                self._caches.of(member.worker, event.tier).update(blocks)
            self._report_stored(member, event.tier, blocks, event.parent)
        else:
            if member.cache_known:
                self._caches.of(member.worker, event.tier).difference_update(blocks)
            self._report_gone(member, event.tier, blocks, REMOVED)

    def _event(self, member: Member, event: KvEvent) -> None:
        copies = self._caches.copies(member.worker) if isinstance(event, CacheCleared) else []
        super()._event(member, event)
        self._report_gone(member, ALL_TIERS, copies, CLEARED)

    def _account(self, source: WorkerId, part: Member) -> None:
        """No digest is asked for."""

    def _joined(self, member: Member, event: WorkerJoined | PoolJoined) -> None:
        super()._joined(member, event)
        if isinstance(event, WorkerJoined):
            self._observer.on_joined(member.worker, (event.model, event.block_size))

    def _void(self, part: Member) -> None:
        copies = self._caches.copies(part.worker)
        super()._void(part)
        self._report_gone(part, ALL_TIERS, copies, UNKNOWN)

    def _take_over(self, member: Member, parts: list[CacheRestated]) -> None:
        """Copies that the restatement names stay; others went without a message that says when."""
        before = self._caches.copies(member.worker)
        self._forget(member, known=True)
        for part in parts:
            if part.tier in TIERS:
                self._caches.of(member.worker, part.tier).update(array("Q", part.hashes))
        after = self._caches.copies(member.worker)
        kept = {*before} & {*after}
        self._report_gone(member, ALL_TIERS, [block for block in before if block not in kept], CLEARED)
        self._report_stored(member, ALL_TIERS, [block for block in after if block not in kept], None)

    def _forget(self, member: Member, *, known: bool) -> None:
        super()._forget(member, known=known)
        self._caches.drop(member.worker)

    def _end(self, source: WorkerId, reason: str) -> None:
        member = self.members.get(source)
        copies = self._caches.copies(source) if member is not None else []
        super()._end(source, reason)
        if member is not None:
            self._report_gone(member, ALL_TIERS, copies, LOST)

    def _report_stored(self, member: Member, tier: str, blocks: Sequence[int], parent: int | None) -> None:
        if member.joined is None or not blocks:
            return  # the model is not known before the worker states it
        copies = Copies(member.worker, (member.joined.model, member.joined.block_size), tier, blocks, parent)
        self._observer.on_stored(copies)
        if not member.cache_known:
            self._observer.on_gone(copies, UNKNOWN)

    def _report_gone(self, member: Member, tier: str, blocks: Sequence[int], how: str) -> None:
        if member.joined is not None and blocks:
            scope = member.joined.model, member.joined.block_size
            self._observer.on_gone(Copies(member.worker, scope, tier, blocks), how)
