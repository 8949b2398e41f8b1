"""KvFold: one kv stream folded into its workers (members) and the blocks that each one holds (the index).

A worker is `known` while every message followed on the one before. After a gap it is `unknown`: its blocks are retired
at once, and stores and removals are skipped until it has restated its identity and its cache. After WorkerLeft or
WorkerLost a tombstone is left for good. Blocks on a tier that this program does not know count as absent.
"""

from __future__ import annotations

from typing import assert_never

import msgspec

from core.codec import Message
from core.events import (
    BlocksRemoved,
    BlocksStored,
    CacheCleared,
    CacheRestated,
    KvEvent,
    WorkerJoined,
    WorkerLeft,
    WorkerLost,
)
from core.ids import WorkerId
from core.settings import TIERS
from projections.digest import MASK64, mix
from projections.folds.source_fold import Chain, SourceFold, stamp
from projections.index.prefix_index import PrefixIndex


class Member(msgspec.Struct):
    """One worker's part."""

    worker: WorkerId
    joined: WorkerJoined | None = None
    ended: str = ""
    """Why it is over; empty while it lives."""
    cache_known: bool = True
    chain: Chain = msgspec.field(default_factory=Chain)
    restated: list[CacheRestated] = msgspec.field(default_factory=list)
    """Parts of a restatement that is not complete yet."""
    identity: int = 0
    """64 bits of what it said when it joined."""
    digest: int = 0
    """This part's contribution to the projection's digest; 0 until the worker joined."""

    @property
    def alive(self) -> bool:
        """It joined and has not ended, as far as the log knows."""
        return self.joined is not None and not self.ended


class KvFold(SourceFold[WorkerId, Member]):
    """The fold of one kv stream. All kv streams of a namespace share one index."""

    def __init__(self, index: PrefixIndex) -> None:
        super().__init__()
        self.index = index
        self.members: dict[WorkerId, Member] = {}
        """Those that have not ended."""
        self.alive: dict[WorkerId, Member] = {}
        """Those of them that joined: a decision must not pay for others."""
        self.turnover = 0
        """Counts joins and ends, and changes of a worker's cache between known and unknown."""

    def __repr__(self) -> str:
        return f"<KvFold {len(self.alive)} of {len(self.members)} workers alive, digest {self._digest:016x}>"

    def restore(self, member: Member) -> None:
        """A part as a snapshot has it is there; the index holds its blocks already."""
        self.members[member.worker] = member
        if member.joined is not None:
            member.identity = _identity(member.joined)
            self.alive[member.worker] = member
            self.turnover += 1
        self._account(member.worker, member)

    def _part(self, source: WorkerId) -> Member:
        return self.members.get(source) or self.members.setdefault(source, Member(source))

    def _void(self, part: Member) -> None:
        self._forget(part, known=False)

    def _fold(self, part: Member, message: Message) -> None:
        for event in message.events:
            if part.ended:
                return
            if isinstance(event, KvEvent):
                self._event(part, event)
            else:
                self.unknown_events += 1

    def _weight(self, part: Member) -> int:
        if part.joined is None:
            return 0
        return (stamp(part.chain, part.identity) + self.index.digest(part.worker) + part.cache_known) & MASK64

    def _is_known(self, part: Member) -> bool:
        return part.cache_known

    def _event(self, member: Member, event: KvEvent) -> None:
        match event:
            case BlocksStored():
                if member.cache_known and event.tier in TIERS:
                    self.index.store(member.worker, event.tier, event.blocks)
            case BlocksRemoved():
                if member.cache_known and event.tier in TIERS:
                    self.index.remove(member.worker, event.tier, event.blocks)
            case WorkerJoined():
                self._joined(member, event)
            case CacheCleared():
                self._forget(member, known=member.cache_known)
            case CacheRestated():
                self._restated(member, event)
            case WorkerLeft():
                self._end(member.worker, f"left: {event.reason}")
            case WorkerLost():
                pass  # counts only from its own source
            case _:
                assert_never(event)

    def _joined(self, member: Member, event: WorkerJoined) -> None:
        if member.joined != event:
            self.turnover += 1
        member.joined = event
        member.identity = _identity(event)
        self.alive[member.worker] = member

    def _restated(self, member: Member, event: CacheRestated) -> None:
        """The last part makes the cache known if the worker restated its identity before; an interrupted restatement is
        void."""
        if event.part != len(member.restated):
            member.restated = []
        if event.part == len(member.restated):
            member.restated.append(event)
        if member.restated and len(member.restated) == event.parts:
            parts, member.restated = member.restated, []
            if member.cache_known or member.joined is not None:
                self._take_over(member, parts)

    def _take_over(self, member: Member, parts: list[CacheRestated]) -> None:
        self._forget(member, known=True)
        for part in parts:
            if part.tier in TIERS:
                self.index.store(member.worker, part.tier, part.blocks)

    def _forget(self, member: Member, *, known: bool) -> None:
        self.index.drop(member.worker)
        if member.cache_known != known:
            self.turnover += 1
        member.cache_known = known
        member.restated = []

    def _end(self, source: WorkerId, reason: str) -> None:
        """One that has no part here has one in another stream, which is not ours to touch."""
        member = self.members.pop(source, None)
        if member is not None:
            self._forget(member, known=True)
            member.ended = reason
            self.alive.pop(source, None)
            self.turnover += 1
        self._bury(source, member, reason)


def _identity(joined: WorkerJoined) -> int:
    return mix(
        joined.name, joined.model, joined.role, joined.engine, joined.block_size, joined.capacity_blocks,
        joined.context_max, joined.address, joined.partition, joined.group,
    )  # fmt: skip
