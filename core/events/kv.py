"""Events of workers and pools: what each one's cache holds (streams kv_{p}), and how busy a worker is (stream load).

The source of each is the worker or the pool itself, but for WorkerLost and PoolLost, which a replica writes.
"""

from __future__ import annotations

from msgspec import UNSET, Struct, UnsetType

from core.block_spans import Blocks, sizes_of
from core.events.base import EventBase
from core.ids import COLUMN_WIDTH
from core.kv_transfer import FetchAddress

DECODE = "decode"
"""It answers requests, and computes their prompts unless another does."""
PREFILL = "prefill"
"""Role of a worker that computes prompts for decode workers and answers no requests."""
ROLES = (DECODE, PREFILL)
"""Roles of a worker."""


class PoolAccess(Struct, frozen=True):
    """The pools whose blocks a worker's engine finds."""

    ids: tuple[str, ...]
    """The pools' own ids, as they lie in their directories."""
    kind: str
    """Digest of all that a block's bytes depend on, the weights' content included, keyed; 32 hex digits. Only pools of
    the same kind have blocks for the worker."""
    load_blocks: int
    """Blocks that one request can take from pools at most."""


class Adapter(Struct, frozen=True):
    """An adapter (LoRA) that a worker serves under a name, by the content of its files."""

    name: str
    """The name that clients ask for."""
    digest: str
    """Of its weights and configuration (`actors.kv_blocks.weights_digest`): 32 hex digits."""
    rank: int
    """As its configuration has it."""
    loaded_ms: int
    """The broker's time, as the worker knows it, when it began to serve it. Of two digests under one name the later one
    counts."""
    cold: bool | UnsetType = UNSET
    """True if the worker loads it at the next request for it; left out if it is loaded."""

    @property
    def id(self) -> str:
        """Names the adapter in requests to workers, in the scope of block hashes and in decisions."""
        return adapter_id(self.name, self.digest)


ADAPTER_SEPARATOR = "@"
"""Between an adapter's name, which has none, and its digest."""


def adapter_id(name: str, digest: str) -> str:
    """See `Adapter.id`."""
    return f"{name}{ADAPTER_SEPARATOR}{digest}"


class WorkerJoined(EventBase, frozen=True):
    """A worker joined with an empty cache, or restates its identity."""

    name: str
    """Stable human name, such as `decode-0`."""
    model: str
    role: str
    """`decode` or `prefill`."""
    engine: str
    """Engine and version: `vllm 0.32.0`, or `simulated`, which computes no language model at all."""
    block_size: int
    """Tokens per block."""
    capacity_blocks: int
    context_max: int
    """Longest prompt with answer, in tokens."""
    address: str
    """`host:port` of its TCP port, as others reach it."""
    partition: int = 0
    group: str = ""
    """Name that the ranks of one data-parallel engine share."""
    pools: PoolAccess | UnsetType = UNSET
    """Left out if it reads none."""
    assumed: bool | UnsetType = UNSET
    """True if its engine reports no cache, and its cache events are assumed from the prompts that were sent to it; else
    left out."""
    adapters: tuple[Adapter, ...] | UnsetType = UNSET
    """All that it serves now, by name; left out if there are none. AdapterLoaded, AdapterEvicted and
    AdapterUnloaded change them."""
    adapter_slots: int | UnsetType = UNSET
    """The number of these that it has loaded at a time, if it loads each at the first request for it; else left out."""
    fetch: FetchAddress | UnsetType = UNSET
    """Left out if it neither fetches blocks nor has them fetched."""


class AdapterLoaded(EventBase, frozen=True):
    """The worker serves this adapter from now on, and no other one of that name. The fields are those of `Adapter`."""

    name: str
    digest: str
    rank: int
    loaded_ms: int


class AdapterEvicted(EventBase, frozen=True):
    """The worker has let go this adapter, which it serves further: it is loaded at the next request for it."""

    name: str
    digest: str


class AdapterUnloaded(EventBase, frozen=True):
    """The worker serves this adapter no more."""

    name: str
    digest: str


AdapterChange = AdapterLoaded | AdapterEvicted | AdapterUnloaded


class PoolJoined(EventBase, frozen=True):
    """A pool of blocks is announced from now on, its content follows; or its keeper restates this."""

    pool: str
    """The pool's own id, which outlives its keepers: 16 hex digits."""
    keeper: str
    """The id of the worker that announces it."""
    name: str
    """The keeper's name."""
    model: str
    kind: str
    """See `PoolAccess`."""
    block_size: int
    partition: int = 0
    fence: int | UnsetType = UNSET
    """Of a pool that several workers share: of two keepers the one with the higher fence counts. Left out of a worker's
    own pool."""


class BlocksEvent(EventBase, frozen=True, kw_only=True, omit_defaults=True):
    """Fields of all events about blocks."""

    hashes: bytes
    """uint64, in prefix order as far as the pieces go."""
    tier: str = "device"
    pieces: bytes = b""
    """Positions of the blocks in their prompts (`core.block_spans`); empty if the worker does not report them, as older
    ones do not. A block is removed as it was stored: with pieces, or without."""
    heads: bytes = b""
    """uint64, of the pieces that begin inside a span."""

    @property
    def blocks(self) -> Blocks:
        """The blocks, and where they lie."""
        return Blocks(self.hashes, self.pieces, self.heads)

    def __post_init__(self) -> None:
        """ValueError, which a decoder makes a validation error, unless these are whole blocks, and pieces, if there are
        any, name them all and lie within spans."""
        hashes, pieces, heads = self.hashes, self.pieces, self.heads
        if len(hashes) % COLUMN_WIDTH:
            raise ValueError(f"a column of {len(hashes)} bytes holds no whole numbers of {COLUMN_WIDTH}")
        if (pieces or heads) and sizes_of(pieces) != (len(hashes), len(heads)):
            needed = sizes_of(pieces)
            raise ValueError(f"{len(hashes)} bytes of blocks, {len(heads)} of heads: the pieces need {needed}")


class BlocksStored(BlocksEvent, frozen=True):
    """These blocks are in the cache now, one behind the other; each one's whole prefix is too."""

    parent: int | None = None
    """Hash of the block before the first; None at the start of a prompt."""


class BlocksRemoved(BlocksEvent, frozen=True):
    """These blocks are gone, or cannot be reached any more because one before them is gone."""


class CacheCleared(EventBase, frozen=True):
    """The cache is empty, in all tiers."""

    reason: str = ""


class CacheRestated(BlocksEvent, frozen=True):
    """The whole cache said again, in `parts` messages; it takes effect with the last one."""

    part: int
    """From 0."""
    parts: int
    dropped: int = 0
    """Events of the worker since it joined, in all streams, that are in no log: they did not fit while the log was
    away. In part 0 alone; left out if there are none."""


class WorkerLeft(EventBase, frozen=True):
    """The worker ended by itself; nothing follows. Said in the load stream too, where it also ends a part."""

    reason: str


class WorkerLost(EventBase, frozen=True):
    """A replica found the worker gone: no lease, no answer. Final; written on each subject of the worker."""

    by: str
    """The replica's id."""
    reason: str


class PoolLeft(EventBase, frozen=True):
    """The pool's keeper ended by itself; the blocks stay, and its next keeper announces them as another source."""

    reason: str


class PoolLost(EventBase, frozen=True):
    """A replica found the pool's keeper gone. Final for this source, not for the pool."""

    by: str
    """The replica's id."""
    reason: str


class LoadReported(EventBase, frozen=True):
    """The engine's own numbers, on change (4 per second at most) and as a heartbeat (every 2 s at least)."""

    running: int
    waiting: int
    blocks_used: int
    blocks_total: int
    draining: bool = False
    kv_n: int = 0
    """Messages that the log has acknowledged to this worker in its kv stream."""
    kv_head: bytes = b""
    """Digest of the last of them."""
    prompt_tokens: int = 0
    """Prompt tokens since the worker joined …"""
    cached_tokens: int = 0
    """… and how many of them came from the cache, as the engine counts."""
    blocks_unindexed: int = 0
    """Blocks since the worker joined that are not in the index: images, embeddings, other groups or sizes."""
    clock_offset_ms: int | UnsetType = UNSET
    """The worker's wall clock less the broker's, as it corrects it; left out below `streams.broker_clock.NOTED_MS`."""
    reuse_rate: int = 0
    """Prompt tokens a second that the cache had, less twice those that it had not, and 0 at least: a mean over two
    minutes (`actors.worker.load_reporter`)."""
    load_times: tuple[int, int, int] | UnsetType = UNSET
    """Time that a block takes to the device from host, disk and remote, in thousandths of a microsecond: the mean of
    the last minutes' loads (`actors.worker.load_meter`), 0 for a tier without enough. Left out if none has any."""
    turnover: int = 0
    """The part of the device's blocks that prompts of the last 20 minutes filled, in 64ths, and 64 at most
    (`actors.worker.load_reporter`)."""


KvEvent = (
    WorkerJoined
    | AdapterLoaded
    | AdapterEvicted
    | AdapterUnloaded
    | PoolJoined
    | BlocksStored
    | BlocksRemoved
    | CacheCleared
    | CacheRestated
    | WorkerLeft
    | WorkerLost
    | PoolLeft
    | PoolLost
)
LoadEvent = LoadReported | WorkerLeft | WorkerLost
