"""CopyFold: the fold of one kv stream that reports every copy of a block that comes to a cache or goes.

It is the fold of the router, so a copy is there exactly while a replica at the same place would find it.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from typing import Protocol

from core.events import BlocksRemoved, BlocksStored, CacheCleared, CacheRestated, KvEvent, WorkerJoined
from core.ids import WorkerId
from core.settings import TIERS
from projections.folds.kv_fold import KvFold, Member
from projections.index.prefix_index import PrefixIndex

CLEARED, LOST, UNKNOWN = "cleared", "lost", "unknown"
"""Ways in which copies go: the worker removed them; the worker ended; messages of the worker are missing."""


CacheScope = tuple[str, int]
"""The model and the block size of a cache: blocks of equal hashes are not the same in two scopes."""


class CopyObserver(Protocol):
    """Gets all changes of copies, each with the model and the block size of the worker."""

    def on_joined(self, worker: WorkerId, scope: CacheScope) -> None:
        """The worker has a cache of this scope."""

    def on_stored(self, scope: CacheScope, blocks: Sequence[int]) -> None:
        """These blocks have one more copy."""

    def on_gone(self, scope: CacheScope, blocks: Iterable[int], how: str) -> None:
        """One copy of each of these blocks went: `CLEARED`, `LOST` or `UNKNOWN`."""


class CopyFold(KvFold):
    """Reports to an observer, after each event, the copies that came and went by it.

    A worker with an unknown cache may hold anything. Its stores are reported, and at once as gone by `UNKNOWN`; its
    removals are reported as such.
    """

    def __init__(self, index: PrefixIndex, observer: CopyObserver) -> None:
        super().__init__(index)
        self._observer = observer

    def __repr__(self) -> str:
        return f"<CopyFold of {len(self.alive)} workers>"

    def _event(self, member: Member, event: KvEvent) -> None:
        match event:
            case BlocksStored() if event.tier in TIERS:
                super()._event(member, event)
                self._report_stored(member, array("Q", event.hashes))
            case BlocksRemoved() if event.tier in TIERS:
                super()._event(member, event)
                self._report_gone(member, array("Q", event.hashes), CLEARED)
            case CacheCleared():
                copies = self._copies(member.worker)
                super()._event(member, event)
                self._report_gone(member, copies, CLEARED)
            case _:
                super()._event(member, event)

    def _joined(self, member: Member, event: WorkerJoined) -> None:
        super()._joined(member, event)
        self._observer.on_joined(member.worker, (event.model, event.block_size))

    def _void(self, part: Member) -> None:
        copies = self._copies(part.worker)
        super()._void(part)
        self._report_gone(part, copies, UNKNOWN)

    def _take_over(self, member: Member, parts: list[CacheRestated]) -> None:
        """Copies that the restatement names stay; others went without a message that says when."""
        before = self._copies(member.worker)
        super()._take_over(member, parts)
        after = self._copies(member.worker)
        kept = {*before} & {*after}
        self._report_gone(member, [block for block in before if block not in kept], CLEARED)
        self._report_stored(member, [block for block in after if block not in kept])

    def _end(self, source: WorkerId, reason: str) -> None:
        member = self.members.get(source)
        copies = self._copies(source) if member is not None else []
        super()._end(source, reason)
        if member is not None:
            self._report_gone(member, copies, LOST)

    def _copies(self, worker: WorkerId) -> list[int]:
        """The worker's blocks on all tiers, ascending. O(all blocks)."""
        return sorted(set[int]().union(*(self.index.held(worker, tier) for tier in TIERS)))

    def _report_stored(self, member: Member, blocks: Sequence[int]) -> None:
        if member.joined is None or not blocks:
            return  # the model is not known before the worker states it
        scope = member.joined.model, member.joined.block_size
        self._observer.on_stored(scope, blocks)
        if not member.cache_known:
            self._observer.on_gone(scope, blocks, UNKNOWN)

    def _report_gone(self, member: Member, blocks: Sequence[int], how: str) -> None:
        if member.joined is not None and blocks:
            self._observer.on_gone((member.joined.model, member.joined.block_size), blocks, how)
