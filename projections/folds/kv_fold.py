"""KvFold: one kv stream folded into its workers (members) and the blocks that each one holds (the index).

Per worker: `known` while every message followed on the one before, `unknown` after a gap (its blocks are retired at
once, stores and removals are skipped, until it has said who it is and the last part of a restatement), a tombstone
for good after WorkerLeft or WorkerLost. Blocks on a tier that this program does not know are as good as none.
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
from core.ids import LOST_SUFFIX, SourceId, WorkerId
from core.settings import TIERS
from projections.digest import MASK64, mix
from projections.folds.source_fold import Chain, ChainVerdict, MissingMessages, Tombstones, missing_before, stamp
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
    """What this part adds to the projection's digest; 0 until it joined."""

    @property
    def alive(self) -> bool:
        """It joined and has not ended, as far as the log knows."""
        return self.joined is not None and not self.ended


class KvFold:
    """The fold of one kv stream. All kv streams of a namespace share one index."""

    def __init__(self, index: PrefixIndex) -> None:
        self.index = index
        self.members: dict[WorkerId, Member] = {}
        """Those that have not ended."""
        self.alive: dict[WorkerId, Member] = {}
        """Those of them that joined: a decision must not pay for others."""
        self.ended = Tombstones()
        self.unknown: set[WorkerId] = set()
        """Those of whose cache nothing is known until they restate it."""
        self.turnover = 0
        """How often somebody joined or ended here."""
        self.unknown_events = 0
        self.missing: list[MissingMessages] = []
        self._digest = 0

    def __repr__(self) -> str:
        return f"<KvFold {len(self.alive)} of {len(self.members)} workers alive, digest {self._digest:016x}>"

    @property
    def digest(self) -> int:
        return self._digest

    @property
    def incomplete(self) -> int:
        return len(self.unknown)

    def apply(self, owner: str, message: Message, digest: bytes) -> bool:
        """Folds one message of the worker `owner`; False for a repeat or a message of nobody we know."""
        worker = WorkerId(owner)
        if worker in self.ended:
            return False
        if message.source == SourceId(worker):
            return self._apply_own(worker, message, digest)
        if message.source == worker + LOST_SUFFIX:
            return self._apply_lost(worker, message)
        return False

    def restore(self, member: Member) -> None:
        """A part as a snapshot has it is there; the index holds its blocks already."""
        self.members[member.worker] = member
        if member.joined is not None:
            member.identity = _identity(member.joined)
            self.alive[member.worker] = member
            self.turnover += 1
        self._account(member)

    def _apply_own(self, worker: WorkerId, message: Message, digest: bytes) -> bool:
        member = self.members.get(worker)
        if member is None:
            member = self.members[worker] = Member(worker)
        n_next = member.chain.n_next
        verdict = member.chain.follow(message, digest)
        if verdict is ChainVerdict.REPEAT:
            return False
        if verdict is ChainVerdict.GAP:
            self.missing.append(missing_before(n_next, message))
            self._forget(member, known=False)
        for event in message.events:
            if member.ended:
                return True  # nothing follows an end, in its own message neither
            if isinstance(event, KvEvent):
                self._event(member, event)
            else:
                self.unknown_events += 1
        if not member.ended:
            self._account(member)
        return True

    def _account(self, member: Member) -> None:
        """The sums have the part as it is now."""
        worker, before = member.worker, member.digest
        if member.joined is not None:
            member.digest = self._part(member)
            self._digest = (self._digest - before + member.digest) & MASK64
        if member.cache_known:
            self.unknown.discard(worker)
        else:
            self.unknown.add(worker)

    def _part(self, member: Member) -> int:
        part = stamp(member.chain, member.identity) + self.index.digest(member.worker) + member.cache_known
        return part & MASK64

    def _apply_lost(self, worker: WorkerId, message: Message) -> bool:
        for event in message.events:
            if isinstance(event, WorkerLost):
                self._bury(worker, f"lost: {event.reason}")
                return True
        return False

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
                self._end(member, f"left: {event.reason}")
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
        """The last part makes the cache known if the worker said who it is; an interrupted restatement is void."""
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
        member.cache_known = known
        member.restated = []

    def _bury(self, worker: WorkerId, reason: str) -> None:
        """It is over, whether it has a part here or not; one in another stream is not ours to touch."""
        member = self.members.get(worker)
        if member is None:
            self.ended.add(worker, reason)
        else:
            self._end(member, reason)

    def _end(self, member: Member, reason: str) -> None:
        """Nothing is left of the part but its tombstone."""
        worker = member.worker
        self._forget(member, known=True)
        member.ended = reason
        self._digest = (self._digest - member.digest) & MASK64
        self.members.pop(worker, None)
        self.alive.pop(worker, None)
        self.unknown.discard(worker)
        self.ended.add(worker, reason)
        self.turnover += 1


def _identity(joined: WorkerJoined) -> int:
    return mix(
        joined.name, joined.model, joined.role, joined.engine, joined.block_size, joined.capacity_blocks,
        joined.context_max, joined.address, joined.partition, joined.group,
    )  # fmt: skip
