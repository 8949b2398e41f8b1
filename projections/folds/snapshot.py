"""Snapshot: a State as bytes and back. fold(snapshot + tail) is fold(all), in all that later events depend on.

1. The content is a magic number, the length of a msgpack head, the head, and the index's columns of block hashes one
   behind the other, in the order of the head. Columns are sorted: reading and writing a state gives the same bytes.
2. Derived values (digests, sums per worker) are not stored; points and gaps are not either.
3. Form 2 has the jobs stream, form 3 the approximate indexes of replicas, form 4 runs of blocks, form 5 prompts in
   flight that continue a decision, form 6 pools, form 7 adapters. A state without one of these is written in the
   earlier form, byte for byte.
4. A head of another form or fold version is refused: its reader folds from an older snapshot or from the log.
"""

from __future__ import annotations

import struct
from collections.abc import Generator
from typing import TypeVar

import msgspec

from core.block_spans import SPAN_BLOCKS
from core.errors import Corrupt
from core.events import LoadReported
from core.ids import Epoch, ReplicaId, StreamName, StreamSeq, WorkerId
from core.settings import TIERS
from core.snapshot_manifest import At
from core.subjects import JOBS
from projections.digest import FOLD_VERSION, READ_FOLD_VERSIONS
from projections.folds.approximate_index import ApproximateIndex, WorkerBlocks
from projections.folds.jobs_fold import JobsFold, JobsPart
from projections.folds.kv_fold import KvFold, Member, adapters_of, names_pools
from projections.folds.routing_fold import ReplicaPart
from projections.folds.source_fold import Chain
from projections.folds.state import Position, State
from projections.index.index_dump import HolderGroup, split_group

SNAPSHOT_VERSION = 7
"""Changed whenever a reader of the one before could not read this one."""
SNAPSHOT_VERSION_WITHOUT_ADAPTERS = 6
SNAPSHOT_VERSION_WITHOUT_POOLS = 5
SNAPSHOT_VERSION_WITHOUT_BASES = 4
SNAPSHOT_VERSION_WITHOUT_RUNS = 3
SNAPSHOT_VERSION_WITHOUT_BELIEFS = 2
SNAPSHOT_VERSION_WITHOUT_JOBS = 1
"""The version for programs that know neither jobs nor runs; this program reads it, too."""
HASH_BYTES = 8
LOAD_BLOCKS_MAX = 8192
"""Taken into the index at once."""

_MAGIC = b"CTRLSNAP"
_LENGTH = struct.Struct("<Q")
_RUN_LENGTHS = bytes(range(2, SPAN_BLOCKS + 1))

T = TypeVar("T")


class _Stream(msgspec.Struct, array_like=True):
    epoch: int
    seq: int
    head: bytes
    unknown_events: int
    ended: list[tuple[str, str]]
    """Tombstones, oldest first."""


class _Load(msgspec.Struct, array_like=True):
    worker: str
    chain: Chain
    report: LoadReported | None


class _Group(msgspec.Struct, array_like=True):
    tier: str
    workers: tuple[WorkerId, ...]
    blocks: int
    """Each of which stands alone."""


class _Runs(msgspec.Struct, array_like=True):
    tier: str
    workers: tuple[WorkerId, ...]
    lengths: bytes
    """Blocks of each run."""


class _Jobs(msgspec.Struct):
    parts: list[JobsPart]
    answered: list[str]
    """Of jobs that are open, in the order of their ids."""
    dead_letters: int


class _Head(msgspec.Struct, omit_defaults=True):
    v: int
    fold_version: int
    corrupt: int
    streams: dict[str, _Stream]
    members: dict[str, list[Member]]
    loads: list[_Load]
    replicas: list[ReplicaPart]
    groups: list[_Group]
    jobs: _Jobs | None = None
    believed: dict[ReplicaId, list[WorkerBlocks]] = {}
    """Of replicas that believe anything."""
    runs: list[_Runs] = []
    """Their columns follow those of the groups."""


class _Positions(msgspec.Struct):
    streams: dict[str, _Stream]


class _Version(msgspec.Struct):
    v: int
    fold_version: int


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_Head)
_positions = msgspec.msgpack.Decoder(_Positions)
_version = msgspec.msgpack.Decoder(_Version)


def encode(state: State) -> list[bytes]:
    """The state's bytes in pieces, to be joined; equal for equal states with equal runs. O(blocks * log blocks)."""
    return run_through(encoding(state))


def encoding(state: State) -> Generator[None, None, list[bytes]]:
    """`encode`, stopping for a moment every few milliseconds; nothing may change in between."""
    dump = yield from state.index.dumping()
    single = [(tier, it) for tier, held in dump.items() for it in held if not it.runs]
    joined = [(tier, it) for tier, held in dump.items() for it in held if it.runs]
    groups = [_Group(tier, it.workers, len(it.hashes) // HASH_BYTES) for tier, it in single]
    runs = [_Runs(tier, it.workers, it.runs) for tier, it in joined]
    head = _encoder.encode(_head(state, groups, runs))
    return [_MAGIC, _LENGTH.pack(len(head)), head, *(it.hashes for _, it in single + joined)]


def decode(chain_key: bytes, content: bytes) -> State:
    """The state that was encoded. Corrupt if the bytes are none of ours, or of a version that this program does not
    go on from. Under half a second per million blocks."""
    return run_through(decoding(chain_key, content))


def decoding(chain_key: bytes, content: bytes) -> Generator[None, None, State]:
    """`decode`, stopping for a moment every few milliseconds."""
    start = len(_MAGIC) + _LENGTH.size
    if content[: len(_MAGIC)] != _MAGIC or len(content) < start:
        raise Corrupt("no snapshot: it does not begin as one")
    end = start + _LENGTH.unpack_from(content, len(_MAGIC))[0]
    try:
        _check_versions(_version.decode(content[start:end]))
        head = _decoder.decode(content[start:end])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Corrupt(f"the head of the snapshot cannot be read: {error}") from error
    blocks = sum(group.blocks for group in head.groups) + sum(sum(group.lengths) for group in head.runs)
    if end + HASH_BYTES * blocks != len(content):
        raise Corrupt(f"the snapshot has {len(content)} bytes, which is not what its head lists")
    if b"".join([group.lengths for group in head.runs]).translate(None, _RUN_LENGTHS):
        raise Corrupt("the snapshot has a run that is no part of a span")
    if unknown := ({group.tier for group in head.groups} | {group.tier for group in head.runs}) - set(TIERS):
        raise Corrupt(f"the snapshot has tiers that this program does not know: {', '.join(sorted(unknown))}")
    state = State(chain_key)
    yield from _load(state, head, content, end)
    _restore(state, head)
    return state


def encode_folds(state: State) -> bytes:
    """All of the state but the blocks of its index."""
    return _encoder.encode(_head(state, [], []))


def restore_folds(state: State, content: bytes) -> None:
    """A state of which the index holds its blocks already has all else that was encoded."""
    _restore(state, _decoder.decode(content))


def positions(content: bytes) -> dict[StreamName, Position]:
    """The positions of the folds in the content, by its own head. Corrupt if the bytes are none of ours."""
    start = len(_MAGIC) + _LENGTH.size
    if content[: len(_MAGIC)] != _MAGIC or len(content) < start:
        raise Corrupt("no snapshot: it does not begin as one")
    end = start + _LENGTH.unpack_from(content, len(_MAGIC))[0]
    try:
        streams = _positions.decode(content[start:end]).streams
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise Corrupt(f"the head of the snapshot cannot be read: {error}") from error
    return {StreamName(name): Position(Epoch(it.epoch), StreamSeq(it.seq)) for name, it in streams.items()}


def run_through(step: Generator[None, None, T]) -> T:
    """The return value of the generator, run without a pause."""
    while True:
        try:
            next(step)
        except StopIteration as end:
            found: T = end.value
            return found


def cursor_of(state: State) -> dict[str, At]:
    """The position of each stream's fold, in the form of a manifest."""
    return {stream: _at(state, stream, position) for stream, position in state.cursor.items()}


def _at(state: State, stream: StreamName, position: Position) -> At:
    head = _head_at(state, stream, position).hex() if position.seq else ""
    return At(epoch=position.epoch, seq=position.seq, head=head, digest=f"{state.digest_of(stream):016x}")


def _head_at(state: State, stream: StreamName, position: Position) -> bytes:
    point = state.point(stream, position.seq)
    return point.head if point is not None else b""


def _check_versions(found: _Version) -> None:
    if not SNAPSHOT_VERSION_WITHOUT_JOBS <= found.v <= SNAPSHOT_VERSION:
        raise Corrupt(f"a snapshot of form {found.v}; this program reads none beyond {SNAPSHOT_VERSION}")
    if found.fold_version not in READ_FOLD_VERSIONS:
        raise Corrupt(f"a snapshot of fold version {found.fold_version}; this program folds by {FOLD_VERSION}")


def _head(state: State, groups: list[_Group], runs: list[_Runs]) -> _Head:
    loads, with_jobs, believed = state.loads, JOBS in state.cursor, _approximate_indexes(state)
    without = SNAPSHOT_VERSION_WITHOUT_BELIEFS if with_jobs else SNAPSHOT_VERSION_WITHOUT_JOBS
    without = SNAPSHOT_VERSION_WITHOUT_RUNS if believed else without
    without = SNAPSHOT_VERSION_WITHOUT_BASES if runs else without
    without = SNAPSHOT_VERSION_WITHOUT_POOLS if _has_bases(state) else without
    without = SNAPSHOT_VERSION_WITHOUT_ADAPTERS if _has_pools(state) else without
    return _Head(
        v=SNAPSHOT_VERSION if _has_adapters(state) else without,
        fold_version=FOLD_VERSION,
        corrupt=state.corrupt,
        streams={stream: _stream(state, stream, at) for stream, at in state.cursor.items()},
        members={stream: _members(kv) for stream, kv in sorted(state.kv.items())},
        loads=[_Load(worker, loads.parts[worker].chain, loads.reports.get(worker)) for worker in sorted(loads.parts)],
        replicas=[_bare_replica(part) for _, part in sorted(state.routing.replicas.items())],
        groups=groups,
        jobs=_jobs(state.jobs) if with_jobs else None,
        believed=believed,
        runs=runs,
    )


def _has_bases(state: State) -> bool:
    """True if a prompt in flight shows only a few of its hashes."""
    return any(entry.base_blocks for part in state.routing.replicas.values() for entry in part.in_flight.values())


def _has_pools(state: State) -> bool:
    """True if a pool is announced, or a worker reads one."""
    return any(names_pools(member) for kv in state.kv.values() for member in kv.members.values())


def _has_adapters(state: State) -> bool:
    """True if a worker serves an adapter."""
    return any(adapters_of(member) for kv in state.kv.values() for member in kv.members.values())


def _approximate_indexes(state: State) -> dict[ReplicaId, list[WorkerBlocks]]:
    """Of those replicas that are in the snapshot."""
    believed, replicas = state.routing.believed, state.routing.replicas
    return {replica: part.kept() for replica, part in sorted(believed.items()) if part.blocks and replica in replicas}


def _stream(state: State, stream: StreamName, at: Position) -> _Stream:
    projection = state.projection(stream)
    return _Stream(
        at.epoch, at.seq, _head_at(state, stream, at), projection.unknown_events, [*projection.ended.items()]
    )


def _members(kv: KvFold) -> list[Member]:
    """The parts without their sums."""
    return [msgspec.structs.replace(member, identity=0, digest=0) for _, member in sorted(kv.members.items())]


def _bare_replica(part: ReplicaPart) -> ReplicaPart:
    """The part without its sums, its tables in one order."""
    return msgspec.structs.replace(
        part,
        in_flight=dict(sorted(part.in_flight.items(), key=lambda item: item[0])),
        predicted=dict(sorted(part.predicted.items())),
        routed=dict(sorted(part.routed.items())),
        local=dict(sorted(part.local.items())),
        identity=0,
        contents=0,
        digest=0,
    )


def _jobs(jobs: JobsFold) -> _Jobs:
    parts = [msgspec.structs.replace(part, digest=0) for _, part in sorted(jobs.parts.items())]
    for part in parts:
        part.asked, part.taken = dict(sorted(part.asked.items())), dict(sorted(part.taken.items()))
    open_ = {job for part in parts for job in part.asked}
    return _Jobs(parts, sorted(open_ & jobs.answered.keys()), jobs.dead_letters)


def _load(state: State, head: _Head, content: bytes, start: int) -> Generator[None, None, None]:
    """The index holds what the columns from `start` on say."""
    groups = [(group.tier, group.workers, group.blocks, b"") for group in head.groups]
    groups += [(group.tier, group.workers, sum(group.lengths), group.lengths) for group in head.runs]
    for tier, workers, blocks, runs in groups:
        end = start + blocks * HASH_BYTES
        for part in split_group(HolderGroup(workers, content[start:end], runs), LOAD_BLOCKS_MAX):
            state.index.load(tier, part)
            yield
        start = end


def _restore(state: State, head: _Head) -> None:
    state.corrupt = head.corrupt
    for name, members in head.members.items():
        kv = state.kv[StreamName(name)] = KvFold(state.index)
        for member in members:
            kv.restore(member)
    for load in head.loads:
        state.loads.restore(WorkerId(load.worker), load.chain, load.report)
    for part in head.replicas:
        state.routing.restore(part, ApproximateIndex.of(head.believed.get(part.replica, [])))
    if head.jobs is not None:
        _restore_jobs(state.jobs, head.jobs)
    for name, kept in head.streams.items():
        projection = state.projection(StreamName(name))
        projection.unknown_events = kept.unknown_events
        projection.ended.update(kept.ended)
        state.resume(StreamName(name), Position(Epoch(kept.epoch), StreamSeq(kept.seq)), kept.head)


def _restore_jobs(jobs: JobsFold, kept: _Jobs) -> None:
    for part in kept.parts:
        jobs.restore(part)
    jobs.answered.update(dict.fromkeys(kept.answered))
    jobs.dead_letters = kept.dead_letters
