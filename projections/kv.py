"""KvProjection: one kv stream folded into who is there (members) and which blocks each one holds (the index).

Per worker: `joining` before anything is known, `known` while every message followed on the one before, `unknown`
after a gap (its blocks are retired at once, stores and removals are skipped, until the last part of a restatement),
`ended` for good after WorkerLeft or WorkerLost. Blocks on a tier that this program does not know are as good as none.
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
from core.ids import SourceId, WorkerId
from core.prompt import hashes_from_bytes
from core.settings import TIERS
from projections.chain import Chain, Link
from projections.prefixes import PrefixIndex
from projections.projection import MASK64, mix

LOST_SUFFIX = "-lost"
"""A replica that finds a worker gone writes as the source `{worker}-lost`, whose one message is n = 0."""


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
    digest: int = 0
    """What this part adds to the projection's digest."""

    @property
    def alive(self) -> bool:
        """It joined and has not ended, as far as the log knows."""
        return self.joined is not None and not self.ended


class KvProjection:
    """The fold of one kv stream. All kv streams of a namespace share one index."""

    def __init__(self, index: PrefixIndex) -> None:
        self.index = index
        self.members: dict[WorkerId, Member] = {}
        self.alive: dict[WorkerId, Member] = {}
        """Those of them that joined and have not ended: a decision must not pay for the dead."""
        self.unknown_events = 0
        self._digest = 0

    def __repr__(self) -> str:
        return f"<KvProjection {len(self.alive)} of {len(self.members)} workers alive, digest {self._digest:016x}>"

    @property
    def digest(self) -> int:
        return self._digest

    @property
    def incomplete(self) -> int:
        return sum(not member.cache_known for member in self.members.values() if not member.ended)

    def apply(self, owner: str, message: Message, digest: bytes) -> bool:
        """Folds one message of the worker `owner`; False for a repeat or a message of nobody we know."""
        worker = WorkerId(owner)
        member = self.members.get(worker)
        if member is None:
            member = self.members[worker] = Member(worker)
        changed = self._fold(member, message, digest)
        if changed:
            before, member.digest = member.digest, self._part(member)
            self._digest = (self._digest - before + member.digest) & MASK64
            if member.alive:
                self.alive[worker] = member
            else:
                self.alive.pop(worker, None)
        return changed

    def _fold(self, member: Member, message: Message, digest: bytes) -> bool:
        if message.source == member.worker + LOST_SUFFIX:
            return self._lost(member, message)
        if message.source != SourceId(member.worker) or member.ended:
            return False
        link = member.chain.follow(message, digest)
        if link is Link.REPEAT:
            return False
        if link is Link.GAP:
            self._forget(member, known=False)
        for event in message.events:
            if member.ended:
                break  # nothing follows an end, in its own message neither
            if isinstance(event, KvEvent):
                self._event(member, event)
            else:
                self.unknown_events += 1
        return True

    def _lost(self, member: Member, message: Message) -> bool:
        for event in message.events:
            if isinstance(event, WorkerLost) and not member.ended:
                self._end(member, f"lost: {event.reason}")
                return True
        return False

    def _event(self, member: Member, event: KvEvent) -> None:
        match event:
            case WorkerJoined():
                member.joined = event
            case BlocksStored():
                if member.cache_known and event.tier in TIERS:
                    self.index.store(member.worker, event.tier, hashes_from_bytes(event.hashes))
            case BlocksRemoved():
                if member.cache_known and event.tier in TIERS:
                    self.index.remove(member.worker, event.tier, hashes_from_bytes(event.hashes))
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

    def _restated(self, member: Member, event: CacheRestated) -> None:
        """The last part makes the cache known; parts of an interrupted restatement are void."""
        if event.part != len(member.restated):
            member.restated = []
        if event.part == len(member.restated):
            member.restated.append(event)
        if member.restated and len(member.restated) == event.parts:
            parts, member.restated = member.restated, []
            self._forget(member, known=True)
            for part in parts:
                if part.tier in TIERS:
                    self.index.store(member.worker, part.tier, hashes_from_bytes(part.hashes))

    def _forget(self, member: Member, *, known: bool) -> None:
        self.index.drop(member.worker)
        member.cache_known = known
        member.restated = []

    def _end(self, member: Member, reason: str) -> None:
        self._forget(member, known=True)
        member.ended = reason

    def _part(self, member: Member) -> int:
        chain = member.chain
        state = (member.worker, chain.n_next, chain.head, member.cache_known, member.ended, len(member.restated))
        return (mix(*state) + self.index.digest(member.worker)) & MASK64
