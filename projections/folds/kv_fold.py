"""KvFold: one kv stream folded into its workers and pools (members) and the blocks that each one holds (the index).

A worker is `known` while every message followed on the one before. After a gap it is `unknown`: its blocks are retired
at once, and stores and removals are skipped until it has restated its identity and its cache. After WorkerLeft or
WorkerLost a tombstone is left for good. Blocks on a tier that this program does not know count as absent.
A pool is folded as a worker is; it is no candidate. `State.pool_readers` says for which workers it counts.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar, assert_never

import msgspec
from msgspec import UNSET, UnsetType

from core.block_spans import Blocks
from core.codec import Message
from core.events import (
    Adapter,
    AdapterChange,
    AdapterEvicted,
    AdapterLoaded,
    AdapterUnloaded,
    BlocksRemoved,
    BlocksStored,
    CacheCleared,
    CacheRestated,
    KvEvent,
    PoolJoined,
    PoolLeft,
    PoolLost,
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
    """One worker's part, or a pool's."""

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
    pool: PoolJoined | UnsetType = UNSET
    """Of a pool, which is in no snapshot of a log without pools; `joined` is None then."""

    @property
    def alive(self) -> bool:
        """A worker that joined and has not ended, as far as the log knows."""
        return self.joined is not None and not self.ended

    @property
    def has_joined(self) -> bool:
        """A worker or pool that has said what it is."""
        return self.joined is not None or self.pool is not UNSET


class KvFold(SourceFold[WorkerId, Member]):
    """The fold of one kv stream. All kv streams of a namespace share one index."""

    lost: ClassVar = (WorkerLost, PoolLost)

    def __init__(self, index: PrefixIndex) -> None:
        super().__init__()
        self.index = index
        self.members = self.parts
        self.alive: dict[WorkerId, Member] = {}
        """Workers among them that joined: a decision must not pay for others."""
        self.pools: dict[WorkerId, Member] = {}
        """Pools among them, by their sources."""
        self.pools_read = False
        """True once any pool or any worker with pools has joined."""
        self.adapters_read = False
        """True once any worker has served an adapter."""
        self.fetches_read = False
        """True once any worker has joined that fetches blocks."""
        self.turnover = 0
        """Counts joins and ends, changes of a worker's adapters, and changes of a cache between known and unknown."""

    def __repr__(self) -> str:
        return f"<KvFold {len(self.alive)} of {len(self.members)} workers alive, digest {self.digest:016x}>"

    def restore(self, member: Member) -> None:
        """A part as a snapshot has it is there; the index holds its blocks already."""
        self.members[member.worker] = member
        if member.joined is not None:
            member.identity = _identity(member.joined)
            self.alive[member.worker] = member
            self.turnover += 1
        if member.pool is not UNSET:
            member.identity = _pool_identity(member.pool)
            self.pools[member.worker] = member
            self.turnover += 1
        self.pools_read |= names_pools(member)
        self.adapters_read |= bool(adapters_of(member))
        self.fetches_read |= member.joined is not None and member.joined.fetch is not UNSET
        self._account(member.worker, member)

    def _begin(self, source: WorkerId) -> Member:
        return self.members.setdefault(source, Member(source))

    def _void(self, part: Member) -> None:
        self._forget(part, known=False)

    def _fold(self, part: Member, message: Message) -> None:
        for event in message.events:
            if part.ended:
                return
            kind = type(event)
            if kind is BlocksStored or kind is BlocksRemoved:  # nearly all: a test for a union costs as much as a block
                self._blocks_changed(part, event)  # type: ignore[arg-type]  # of these two
            elif isinstance(event, KvEvent):
                self._event(part, event)
            else:
                self.unknown_events += 1

    def _weight(self, part: Member) -> int:
        if not part.has_joined:
            return 0
        return (stamp(part.chain, part.identity) + self.index.digest(part.worker) + part.cache_known) & MASK64

    def _is_known(self, part: Member) -> bool:
        return part.cache_known

    def _blocks_changed(self, member: Member, event: BlocksStored | BlocksRemoved) -> None:
        if member.cache_known and event.tier in TIERS:
            change = self.index.store if type(event) is BlocksStored else self.index.remove
            change(member.worker, event.tier, Blocks(event.hashes, event.pieces, event.heads))

    def _event(self, member: Member, event: KvEvent) -> None:
        match event:
            case BlocksStored() | BlocksRemoved():
                self._blocks_changed(member, event)
            case WorkerJoined() | PoolJoined() | AdapterLoaded() | AdapterEvicted() | AdapterUnloaded():
                self._described(member, event)
            case CacheCleared():
                self._forget(member, known=member.cache_known)
            case CacheRestated():
                self._restated(member, event)
            case WorkerLeft() | PoolLeft():
                self._end(member.worker, f"left: {event.reason}")
            case WorkerLost() | PoolLost():
                pass  # counts only from its own source
            case _:
                assert_never(event)

    def _joined(self, member: Member, event: WorkerJoined | PoolJoined) -> None:
        if isinstance(event, PoolJoined):
            self._pool_joined(member, event)
            return
        if member.joined != event:
            self.turnover += 1
        member.joined = event
        member.identity = _identity(event)
        self.pools_read |= event.pools is not UNSET
        self.adapters_read |= event.adapters is not UNSET
        self.fetches_read |= event.fetch is not UNSET
        self.alive[member.worker] = member

    def _described(self, member: Member, event: WorkerJoined | PoolJoined | AdapterChange) -> None:
        if isinstance(event, WorkerJoined | PoolJoined):
            self._joined(member, event)
        else:
            self._adapter_changed(member, event)

    def _adapter_changed(self, member: Member, event: AdapterChange) -> None:
        """`joined` says what the worker would restate now. Without it, the worker's next restatement has them all."""
        if member.joined is None:
            return
        others = {each.name: each for each in adapters_of(member)}
        if isinstance(event, AdapterLoaded):
            others[event.name] = Adapter(event.name, event.digest, event.rank, event.loaded_ms)
        elif event.name in others and others[event.name].digest == event.digest:
            if isinstance(event, AdapterEvicted):
                others[event.name] = msgspec.structs.replace(others[event.name], cold=True)
            else:
                del others[event.name]
        adapters = tuple(others[name] for name in sorted(others))
        self._joined(member, msgspec.structs.replace(member.joined, adapters=adapters or UNSET))

    def _pool_joined(self, member: Member, event: PoolJoined) -> None:
        if member.pool != event:
            self.turnover += 1
        member.pool = event
        self.pools_read = True
        member.identity = _pool_identity(event)
        self.pools[member.worker] = member

    def _restated(self, member: Member, event: CacheRestated) -> None:
        """The last part makes the cache known if the worker restated its identity before; an interrupted restatement is
        void."""
        if event.part != len(member.restated):
            member.restated = []
        if event.part == len(member.restated):
            member.restated.append(event)
        if member.restated and len(member.restated) == event.parts:
            parts, member.restated = member.restated, []
            if member.cache_known or member.has_joined:
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
            self.pools.pop(source, None)
            self.turnover += 1
        self._bury(source, member, reason)


def names_pools(member: Member) -> bool:
    """True for a pool, and for a worker that reads pools."""
    return member.pool is not UNSET or (member.joined is not None and member.joined.pools is not UNSET)


def adapters_of(member: Member) -> tuple[Adapter, ...]:
    """The adapters that a worker serves, by name."""
    found = UNSET if member.joined is None else member.joined.adapters
    return () if isinstance(found, UnsetType) else found


def is_cold(member: Member, adapter: str) -> bool:
    """True if the worker serves the adapter of this id and has to load it first."""
    return any(each.cold is True and each.id == adapter for each in adapters_of(member))


def serving_adapter(members: Iterable[Member], adapter: str) -> frozenset[WorkerId]:
    """Those of these workers that serve the adapter of this id (`core.events.kv.Adapter.id`). O(workers and their
    adapters)."""
    return frozenset(member.worker for member in members if any(each.id == adapter for each in adapters_of(member)))


def _identity(joined: WorkerJoined) -> int:
    # so logs of earlier programs, and those without pools, adapters and fetches, keep their digests; no fold and no
    # decision reads `assumed`, nor if an adapter is loaded: decisions record what loading costs
    found, served = joined.pools, joined.adapters
    pools = () if isinstance(found, UnsetType) else (*found.ids, found.kind, found.load_blocks)
    adapters: tuple[str | int, ...] = ()
    if not isinstance(served, UnsetType):
        adapters = ("adapters", *(value for each in served for value in (each.id, each.rank, each.loaded_ms)))
    fetch: tuple[str | int, ...] = ()
    if not isinstance(joined.fetch, UnsetType):
        fetch = ("fetch", *msgspec.structs.astuple(joined.fetch))
    return mix(
        joined.name, joined.model, joined.role, joined.engine, joined.block_size, joined.capacity_blocks,
        joined.context_max, joined.address, joined.partition, joined.group, *pools, *adapters, *fetch,
    )  # fmt: skip


def _pool_identity(pool: PoolJoined) -> int:
    fence = () if isinstance(pool.fence, UnsetType) else (pool.fence,)  # as above
    return mix(pool.pool, pool.keeper, pool.name, pool.model, pool.kind, pool.block_size, pool.partition, *fence)
