"""State: all folds of a namespace with the cursor that they stand at, as one value.

`DigestPoints` keeps each stream's digest after its last messages, so that replicas can compare their folds there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterable, Mapping, Sequence
from copy import copy
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from msgspec import UnsetType

from core.codec import CHAIN_START, Message, decode_message, digest, known_keys, newest_generation
from core.errors import Corrupt
from core.events.kv import PREFILL, PoolJoined
from core.ids import Epoch, StreamName, StreamSeq, WorkerId
from core.kv_transfer import FetchAddress
from core.prompt import Prompt
from core.settings import TIERS
from core.subjects import JOBS, LOAD, ROUTING, is_kv, owner
from projections.digest import MASK64, mix
from projections.folds.jobs_fold import JobsFold
from projections.folds.kv_fold import KvFold, Member
from projections.folds.load_fold import LoadFold
from projections.folds.routing_fold import RoutingFold
from projections.folds.source_fold import ChainGap, SourceFold
from projections.index.prefix_index import PrefixIndex

if TYPE_CHECKING:
    from projections.folds.worker_table import WorkerTable

POINTS_KEPT = 4096
"""Messages of one stream; a power of two, so that a place in the ring is a mask away."""

_RING_MASK = POINTS_KEPT - 1

_PointRow = tuple[Epoch, StreamSeq, int, bytes, bool]
"""A point before anybody asks for it: a plain tuple costs a third of a named one, and few are ever asked for."""


class DigestPoint(NamedTuple):
    """One stream's fold right after the message at `seq`."""

    epoch: Epoch
    seq: StreamSeq
    digest: int
    """Of the stream's projection."""
    head: bytes
    """Chain digest of the message at `seq`."""
    complete: bool
    """True if every source was known. Only complete folds of replicas must have equal digests."""


class DigestPoints:
    """A ring of the last POINTS_KEPT points of one stream."""

    def __init__(self) -> None:
        self._ring: list[_PointRow | None] = [None] * POINTS_KEPT

    def note(self, row: _PointRow) -> None:
        """The fold stands there now. O(1)."""
        self._ring[row[1] & _RING_MASK] = row

    def at(self, seq: StreamSeq) -> DigestPoint | None:
        """The point after that message; None if it is too long ago or was never folded here."""
        row = self._ring[seq & _RING_MASK]
        return DigestPoint(*row) if row is not None and row[1] == seq else None


GAPS_KEPT = 256
"""The last gaps found, for people; `State.gaps_found` counts all."""


class Position(NamedTuple):
    """Position of one stream's fold."""

    epoch: Epoch
    seq: StreamSeq


class Applied(msgspec.Struct, frozen=True):
    """Facts about one folded record, for the parts that react to it."""

    stream: StreamName
    seq: StreamSeq
    owner: str
    message: Message
    changed: bool


NO_OVERLAP = (0,) * len(TIERS)
DISK = TIERS.index("disk")


class PoolReader(NamedTuple):
    """A worker whose engine finds the blocks of a pool."""

    worker: WorkerId
    source: WorkerId
    """The source that announces the pool."""
    load_blocks: int
    """Blocks that one request takes from there at most."""


def is_folded(stream: StreamName) -> bool:
    """True if this program has a fold for the stream; newer programs may write other streams."""
    return is_kv(stream) or stream in (LOAD, ROUTING, JOBS)


class State:
    """The fold of the log up to `cursor`. Records go in by `apply`, in the order of each stream."""

    def __init__(self, chain_key: bytes) -> None:
        self.index = PrefixIndex()
        self.loads = LoadFold()
        self.routing = RoutingFold()
        self.jobs = JobsFold()
        self.kv: dict[StreamName, KvFold] = {}
        self.cursor: dict[StreamName, Position] = {}
        """Of each stream that is folded, in the order of their names."""
        self.begins: dict[StreamName, StreamSeq] = {}
        """The first message of each stream that is folded from the log's own start, and not from a snapshot."""
        self.corrupt = 0
        """Records that are no messages of ours: skipped and counted."""
        self.gaps: deque[ChainGap] = deque(maxlen=GAPS_KEPT)
        """Messages that chains lack, as they were noticed."""
        self.gaps_found = 0
        self.chain_key = chain_key
        self._points: dict[StreamName, DigestPoints] = {}
        self._alive: list[Member] = []
        self._workers: list[WorkerId] = []
        self._serving: list[Member] = []
        self._prefilling: list[Member] = []
        self._prefilled: frozenset[str] = frozenset()
        self._pool_readers: list[PoolReader] = []
        self._fetchers: dict[WorkerId, FetchAddress] = {}
        self._turnovers: dict[KvFold, int] = {}
        """When these lists were made."""
        self._worker_table: WorkerTable | None = None

    def __repr__(self) -> str:
        at = " ".join(f"{stream}:{position.seq}" for stream, position in self.cursor.items())
        return f"<State at {at or 'the start'}, digest {self.digest:016x}>"

    def open(self, stream: StreamName, epoch: Epoch) -> StreamSeq:
        """The stream is folded from here on; returns the last sequence applied (0 for none)."""
        if stream not in self.cursor:
            if is_kv(stream):
                self.kv[stream] = KvFold(self.index)
            self.resume(stream, Position(epoch, StreamSeq(0)), CHAIN_START)
        return self.cursor[stream].seq

    def resume(self, stream: StreamName, position: Position, head: bytes) -> None:
        """The stream's fold is at this position; `head` is the chain digest of the message there (empty if the log
        lacks it)."""
        is_new = stream not in self.cursor
        self.cursor[stream] = position
        if is_new:
            self.cursor = dict(sorted(self.cursor.items()))
        self.begins.pop(stream, None)
        self._points[stream] = points = DigestPoints()
        if head and position.seq:
            projection = self.projection(stream)
            points.note((*position, projection.digest, head, not projection.incomplete))

    def skip_to(self, stream: StreamName, seq: StreamSeq) -> None:
        """The log has nothing more of the stream up to there: what follows the cursor was taken by retention."""
        position = self.cursor[stream]
        assert seq >= position.seq
        if not position.seq:
            self.begins[stream] = StreamSeq(seq + 1)
        self.cursor[stream] = Position(position.epoch, seq)

    def reset(self, stream: StreamName, epoch: Epoch) -> None:
        """The stream's history was replaced: what was folded of it is void, it starts again."""
        if is_kv(stream):
            for worker in self.kv[stream].members:
                self.index.drop(worker)
            self.kv[stream] = KvFold(self.index)
        elif stream == LOAD:
            self.loads = LoadFold()
        elif stream == JOBS:
            self.jobs = JobsFold()
        else:
            self.routing = RoutingFold()
        self.resume(stream, Position(epoch, StreamSeq(0)), CHAIN_START)

    def with_routing(self, routing: RoutingFold) -> State:
        """A state with another fold of the routing stream. It shares the other folds with this one."""
        other = copy(self)
        other.routing = routing
        other._worker_table = None  # noqa: SLF001 - its own class
        return other

    def become(self, other: State) -> None:
        """This state has the folds, cursor and points of `other`, and `other` has those of this one. All holders of
        this object see the change."""
        assert other is not self
        assert other.chain_key == self.chain_key
        self.__dict__, other.__dict__ = other.__dict__, self.__dict__

    def apply(self, stream: StreamName, seq: StreamSeq, subject: str, payload: bytes) -> Applied | None:
        """Folds one record and moves the cursor; None if it was applied before or is no message of ours."""
        if seq <= self.cursor[stream].seq:
            return None
        source, head = owner(subject), digest(payload, self.chain_key)
        try:
            message = decode_message(payload)
        except Corrupt:
            message = None
        return self.fold(stream, seq, source, message, head)

    def fold(
        self, stream: StreamName, seq: StreamSeq, owner: str, message: Message | None, head: bytes
    ) -> Applied | None:
        """`apply` of a record that was decoded before: None for what is no message of ours; `head` is its digest."""
        epoch, last = self.cursor[stream]
        if seq <= last:
            return None
        if not last:
            self.begins[stream] = seq
        projection, applied = self.projection(stream), None
        if message is None:
            self.corrupt += 1
        else:
            applied = Applied(stream, seq, owner, message, projection.apply(owner, message, head))
        if projection.missing:
            self._note_gaps(projection, stream, seq)
        self.cursor[stream] = Position(epoch, seq)
        self._points[stream].note((epoch, seq, projection.digest, head, not projection.unknown))
        return applied

    def projection(self, stream: StreamName) -> SourceFold[Any, Any]:
        """The stream's own fold."""
        if stream == LOAD:
            return self.loads
        if stream == ROUTING:
            return self.routing
        if stream == JOBS:
            return self.jobs
        return self.kv[stream]

    @property
    def digest(self) -> int:
        """64 bits over all streams with their positions; equal for equal states at equal cursors."""
        parts = (mix(stream, at.seq, self.projection(stream).digest) for stream, at in self.cursor.items())
        return sum(parts) & MASK64

    def digest_of(self, stream: StreamName) -> int:
        """64 bits of what is folded of this stream alone; O(1)."""
        return self.projection(stream).digest

    def point(self, stream: StreamName, seq: StreamSeq) -> DigestPoint | None:
        """The stream's fold after that message; None if it is not among the last POINTS_KEPT."""
        points = self._points.get(stream)
        return points.at(seq) if points is not None else None

    @property
    def incomplete(self) -> int:
        """Sources that are unknown until they restate themselves."""
        return sum(self.projection(stream).incomplete for stream in self.cursor)

    @property
    def unknown_events(self) -> int:
        """Events of types that this program does not know."""
        return sum(self.projection(stream).unknown_events for stream in self.cursor)

    @property
    def foreign(self) -> frozenset[str]:
        """Sources with a chain that another key sealed. None if a generation was removed from the key: chains of that
        one fit no key, either."""
        if len(known_keys(self.chain_key)) <= newest_generation(self.chain_key):
            return frozenset()
        return frozenset().union(*(self.projection(stream).foreign for stream in self.cursor))

    def unknown(self) -> list[WorkerId]:
        """Workers with an unknown cache until they restate it, by id. Workers without a readable start of their chain
        are among them."""
        return sorted({worker for projection in self.kv.values() for worker in projection.unknown})

    def asked_for(self, source: WorkerId) -> WorkerId:
        """The worker that restates the source: itself, or the keeper of a pool."""
        for projection in self.kv.values():
            if (member := projection.members.get(source)) and member.pool:
                return WorkerId(member.pool.keeper)
        return source

    def member(self, worker: WorkerId) -> Member | None:
        """The worker's part, whichever kv stream it writes to; of one that ended, its id and why."""
        for projection in self.kv.values():
            if worker in projection.members:
                return projection.members[worker]
        for projection in self.kv.values():
            if worker in projection.ended:
                return Member(worker, ended=projection.ended[worker])
        return None

    def alive(self) -> list[Member]:
        """Workers that joined and have not ended, by id; O(1) while no worker joins or ends. Not to be changed."""
        self._sort_out()
        return self._alive

    def workers(self) -> list[WorkerId]:
        """Their ids; the same list object while no worker joins or ends."""
        self._sort_out()
        return self._workers

    def serving(self) -> list[Member]:
        """Those of them that answer requests: candidates of a decision; as cheap."""
        self._sort_out()
        return self._serving

    def prefilling(self) -> list[Member]:
        """Those of them that compute prompts for others; as cheap."""
        self._sort_out()
        return self._prefilling

    def has_prefill_workers(self, model: str) -> bool:
        """True if the model has prefill workers, which compute its prompts; as cheap."""
        self._sort_out()
        return model in self._prefilled

    def pools(self) -> list[Member]:
        """Pools that are announced, by their sources."""
        return sorted((pool for kv in self.kv.values() for pool in kv.pools.values()), key=lambda pool: pool.worker)

    def pool_readers(self) -> list[PoolReader]:
        """Workers that answer requests, each with every pool that it finds, by id; as cheap as `alive`.

        A pool counts for workers of its kind while its keeper lives. Of several sources of one pool those with the
        highest fence count alone, even if its keeper is dead; of these a worker's own, else the first by id.
        """
        self._sort_out()
        return self._pool_readers

    def fetchers(self) -> Mapping[WorkerId, FetchAddress]:
        """Workers that answer requests, fetch blocks and have them fetched, by id; as cheap as `alive`."""
        self._sort_out()
        return self._fetchers

    def reported(self, prompt: Prompt, *, pools: bool = True) -> Mapping[WorkerId, tuple[int, ...]]:
        """Cached blocks of the prompt per level, by worker, as `PrefixIndex.overlaps` has them; with `pools` also the
        blocks that workers find in pools. O(holder groups * log blocks + readers of pools).

        Of a pool a worker takes at most as many blocks at once as it says. They and those that it takes from its host
        fit into the host together, which holds twice as many: a lower bound.
        """
        found = self.index.overlaps(prompt)
        for worker, source, most in self.pool_readers() if pools else ():
            on_disk, anywhere = found.get(source, NO_OVERLAP)[DISK:]
            device, host, disk, remote = found.get(worker, NO_OVERLAP)
            at_once = min(host + most, device + 2 * most)
            near, far = max(disk, min(on_disk, at_once)), max(remote, min(anywhere, at_once))
            if near > disk or far > remote:
                found[worker] = (device, host, near, max(near, far))
        return found

    def worker_table(self) -> WorkerTable:
        """The numbers of the workers that answer requests, as they are now. O(workers with changes since)."""
        if self._worker_table is None:
            from projections.folds.worker_table import WorkerTable  # noqa: PLC0415 - numpy, only for many workers

            self._worker_table = WorkerTable()
        self._worker_table.refresh(self.serving(), self.loads, self.routing.in_flight_load)
        return self._worker_table

    def _sort_out(self) -> None:
        known = self._turnovers.get
        for projection in self.kv.values():
            if known(projection) != projection.turnover:
                break
        else:
            return  # a loop, because a decision asks seven times and any() costs four times as much
        self._turnovers = {projection: projection.turnover for projection in self.kv.values()}
        members = [member for projection in self.kv.values() for member in projection.alive.values()]
        self._alive = sorted(members, key=lambda member: member.worker)
        self._workers = [member.worker for member in self._alive]
        self._serving = [member for member in self._alive if not _is_prefill(member)]
        self._prefilling = [member for member in self._alive if _is_prefill(member)]
        self._prefilled = frozenset(member.joined.model for member in self._prefilling if member.joined is not None)
        self._pool_readers = _pool_readers(self._serving, self.pools(), set(self._workers))
        joined = [(member.worker, member.joined) for member in self._serving if member.joined is not None]
        self._fetchers = {worker: each.fetch for worker, each in joined if isinstance(each.fetch, FetchAddress)}

    def _note_gaps(self, projection: SourceFold[Any, Any], stream: StreamName, seq: StreamSeq) -> None:
        for found in projection.missing:
            self.gaps.append(ChainGap(stream, *found, seq))
            self.gaps_found += 1
        projection.missing.clear()


def _pool_readers(serving: Iterable[Member], pools: Sequence[Member], alive: Container[str]) -> list[PoolReader]:
    announced = [(pool, member.worker) for member in pools if (pool := member.pool)]
    fences: dict[str, int] = {}
    for pool, _ in announced:
        fences[pool.pool] = max(_fence(pool), fences.get(pool.pool, 0))
    sources: dict[tuple[str, str], list[tuple[str, WorkerId]]] = {}
    """By the pool's id and kind: the keeper and the source of each that counts."""
    for pool, source in announced:
        if pool.keeper in alive and _fence(pool) == fences[pool.pool]:
            sources.setdefault((pool.pool, pool.kind), []).append((pool.keeper, source))
    found = []
    for member in serving:
        access = None if member.joined is None else member.joined.pools
        if not sources or access is None or isinstance(access, UnsetType):
            continue
        for pool_id in access.ids:
            if kept := sources.get((pool_id, access.kind)):
                own = next((source for keeper, source in kept if keeper == member.worker), kept[0][1])
                found.append(PoolReader(member.worker, own, access.load_blocks))
    return found


def _fence(pool: PoolJoined) -> int:
    return 0 if isinstance(pool.fence, UnsetType) else pool.fence


def _is_prefill(member: Member) -> bool:
    return member.joined is not None and member.joined.role == PREFILL
