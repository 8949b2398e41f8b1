"""The events of the log: immutable facts in the past tense, one closed union.

An event says nothing about who wrote it or when: the message around it does (`core.codec`). Each has its own
version `v`. Numbers of many blocks or candidates are columns (little-endian binary), so that an event costs a
reader well under a microsecond per block. No event holds prompt text or token ids.
"""

from __future__ import annotations

from typing import Any, get_args

import msgspec

from core.event import EventBase, check_width
from core.generation import PrefillReport
from core.ids import COLUMN_WIDTH
from core.job_events import JobEvent, JobsRestated
from core.queue_events import RequestQueued, RequestTurnedAway
from core.spans import Blocks, check_pieces

# --- kv_{p}: what each worker's cache holds; the source is the worker ------------------------------------------


class WorkerJoined(EventBase, frozen=True):
    """A worker is there with an empty cache, or says again who it is when it restates itself."""

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
    """What ranks of one data-parallel engine share."""


class BlocksEvent(EventBase, frozen=True, kw_only=True, omit_defaults=True):
    """What all events about blocks say."""

    hashes: bytes
    """uint64, in prefix order as far as the pieces go."""
    tier: str = "device"
    pieces: bytes = b""
    """Where they lie in their prompts (`core.spans`); empty if the worker does not say, as older ones do not. A block
    is removed as it was stored: with pieces, or without."""
    heads: bytes = b""
    """uint64, of the pieces that begin inside a span."""

    @property
    def blocks(self) -> Blocks:
        """The blocks, and where they lie."""
        return Blocks(self.hashes, self.pieces, self.heads)

    def __post_init__(self) -> None:
        check_pieces(self.hashes, self.pieces, self.heads)


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


class WorkerLeft(EventBase, frozen=True):
    """The worker ended by itself; nothing follows. Said in the load stream too, where it also ends a part."""

    reason: str


class WorkerLost(EventBase, frozen=True):
    """A replica found the worker gone: no lease, no answer. Final; written on each subject of the worker."""

    by: str
    """The replica's id."""
    reason: str


# --- load: what each worker is busy with; the source is the worker ---------------------------------------------


class LoadReported(EventBase, frozen=True):
    """The engine's own numbers, on change (4 per second at most) and as a heartbeat (every 2 s at least)."""

    running: int
    waiting: int
    blocks_used: int
    blocks_total: int
    draining: bool = False
    kv_n: int = 0
    """How many messages this worker has had acknowledged in its kv stream."""
    kv_head: bytes = b""
    """Digest of the last of them."""
    prompt_tokens: int = 0
    """Prompt tokens since the worker joined …"""
    cached_tokens: int = 0
    """… and how many of them came from the cache, as the engine counts."""
    blocks_unindexed: int = 0
    """Blocks since the worker joined that are not in the index: images, embeddings, other groups or sizes."""


# --- routing: what each replica decided; the source is the replica ---------------------------------------------


class ReplicaJoined(EventBase, frozen=True):
    """A router is there, with nothing in flight."""

    name: str
    version: str
    address: str = ""
    """Where its API listens."""


class ReplicaRestated(EventBase, frozen=True):
    """All requests in flight on this replica said again, as columns; what was in flight before is void."""

    requests: tuple[str, ...]
    attempts: tuple[int, ...]
    models: tuple[str, ...]
    workers: bytes
    """Ids, 8 bytes each."""
    blocks: tuple[int, ...]
    prefill_tokens: tuple[int, ...]
    """0 where the prefill is done."""
    reason: str = ""
    begins_us: tuple[int, ...] = ()
    """When each prefill was expected to begin, by this replica's clock; 0 where it is done. Empty if nobody knows."""

    def __post_init__(self) -> None:
        check_width(self.workers)
        columns = (self.attempts, self.models, self.blocks, self.prefill_tokens)
        lengths = {len(self.workers) // COLUMN_WIDTH, *map(len, columns), len(self.begins_us or self.requests)}
        if lengths != {len(self.requests)}:
            raise ValueError(f"columns of different lengths for {len(self.requests)} requests")


class ReplicaLeft(EventBase, frozen=True):
    """The router ended by itself; nothing follows."""

    reason: str


class ReplicaLost(EventBase, frozen=True):
    """Another replica found this one gone. Final; its requests in flight end with it."""

    by: str
    reason: str


class SettingsChanged(EventBase, frozen=True):
    """From here on this replica decides under these settings."""

    revision: int
    settings: dict[str, Any]


class LocalChanged(EventBase, frozen=True):
    """What only this replica knows of a worker is this from here on; its decisions rest on it."""

    worker: str
    reasons: tuple[str, ...]
    """Of `core.decision.LOCAL_REASONS`, in their order; none when all is well again."""


class RequestRouted(EventBase, frozen=True):
    """One decision with everything that it rested on; one per attempt."""

    request: str
    attempt: int
    """From 0."""
    model: str
    prompt_tokens: int
    block_size: int
    hashes: bytes
    """All block hashes of the prompt."""
    policy: str
    settings_revision: int
    decide_version: int
    seed: int
    now_ms: int
    cursor: dict[str, tuple[int, int]]
    """Per stream: epoch and last sequence applied."""
    worker: str
    """The chosen one."""
    candidates: bytes
    """Ids of the best candidates, best first, 8 bytes each; the columns below follow this order."""
    columns: dict[str, tuple[int, ...]]
    """Cost terms by name (`core.decision.COLUMNS`)."""
    candidates_total: int
    excluded: dict[str, tuple[int, bytes]]
    """Reason to how many, and the first few of them by id."""
    blocks: int
    """Blocks that the prompt occupies there, less those that it shares with a prompt that is being computed there."""
    prefill_tokens: int
    """Tokens that the chosen worker was expected to compute."""
    predicted_cached_tokens: int
    digest: str
    """Of the whole decision with all candidates: 16 hex digits."""
    tenant: str = ""
    priority: int = 0
    prefer: str = ""
    """The prefill worker that holds most of the prompt; empty if none holds any of it."""
    prefer_tokens: int = 0
    """How much it holds."""
    session: str = ""
    """`core.session.session_key` of the session that the client named; empty if it named none."""
    wait_us: int = 0
    """How long outstanding prefills were expected to hold it up there; 0 under policies that do not ask."""
    prefill_time: tuple[int, ...] = ()
    """`projections.backlog.PrefillTime` as this replica had learned it, where the settings leave that to it."""
    held: dict[str, int] = msgspec.field(default_factory=dict)
    """How long requests that the replica held would have held it up, in microseconds, by worker."""
    believed: tuple[int, int] | None = None
    """`projections.believed.Keeps` under the policy `approximate`: what the worker is taken to keep, this included."""
    session_parent: str = ""
    """The key of the session that began `session`, as of a sub-agent; empty if the client named none. It informs: no
    decision rests on it."""


class RequestPrefilled(EventBase, frozen=True):
    """The first token came."""

    request: str
    attempt: int
    cached_tokens: int
    """What the engine really took from its cache."""
    ttft_ms: int
    """From the arrival at the front end to the first token there."""
    prefill: PrefillReport | None = None
    """Where the prompt was computed, as its worker says; None where nobody else could have done it."""


class RequestFinished(EventBase, frozen=True):
    """An attempt ended, well or not."""

    request: str
    attempt: int
    outcome: str
    """`stop`, `length`, `abort` (the client hung up), `error`, `worker_lost`, `declined` (the worker was to take it
    only if it fits into one pass with other replicas' prompts)."""
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int
    ttft_ms: int
    """-1 if no token came."""
    duration_ms: int
    detail: str = ""


class RequestMigrated(EventBase, frozen=True):
    """Its worker broke off in the middle of the answer; another goes on from the tokens that were told."""

    request: str
    attempt: int
    """The one that goes on."""
    worker: str
    """The one that broke off."""
    told_tokens: int
    """How many of the answer the client has."""
    reason: str


class RequestRejected(EventBase, frozen=True):
    """No worker could take the request; the inputs stand as in a decision."""

    request: str
    attempt: int
    model: str
    reason: str
    status: int
    """The HTTP status that the client got."""
    cursor: dict[str, tuple[int, int]]
    excluded: dict[str, tuple[int, bytes]]
    settings_revision: int
    now_ms: int
    tenant: str = ""


class Points(msgspec.Struct, frozen=True, array_like=True):
    """How one stream's fold stood at some cursors, as columns."""

    epoch: int
    seqs: tuple[int, ...]
    digests: bytes
    """uint64: the fold's digest at each of them."""
    heads: bytes
    """16 bytes each: the chain digest of the message at each of them, so that whoever keeps this can tell later
    whether the record was rewritten."""

    def __post_init__(self) -> None:
        if {len(self.digests), len(self.heads) // 2} != {COLUMN_WIDTH * len(self.seqs)} or len(self.heads) % 2:
            raise ValueError(f"columns of different lengths for {len(self.seqs)} points")


class ReplicaReported(EventBase, frozen=True):
    """What this replica's folds were at cursors where others can compare theirs; of complete folds only."""

    fold_version: int
    """Only folds of equal version are compared."""
    points: dict[str, Points]
    """By stream."""
    incomplete: tuple[str, ...] = ()
    """Streams of which a source is unknown until it restates itself: nothing is said of them."""


class DivergenceFound(EventBase, frozen=True):
    """This replica and another had different folds at one cursor; it folded the log again to know who was wrong."""

    stream: str
    epoch: int
    seq: int
    digest: int
    """What this replica had there."""
    refolded: int
    """What the log gives there, folded again."""
    other: str
    """The replica that had reported something else."""
    verdict: str
    """`replaced`: this one was wrong and goes on with the new fold; `confirmed`: it was right."""


class UnknownEvent(msgspec.Struct, frozen=True, kw_only=True):
    """An event of a type or version that this program does not know: kept, counted, shown, not folded."""

    name: str
    fields: dict[str, Any]


KvEvent = WorkerJoined | BlocksStored | BlocksRemoved | CacheCleared | CacheRestated | WorkerLeft | WorkerLost
LoadEvent = LoadReported | WorkerLeft | WorkerLost
RoutingEvent = (
    ReplicaJoined
    | ReplicaRestated
    | ReplicaLeft
    | ReplicaLost
    | SettingsChanged
    | LocalChanged
    | RequestRouted
    | RequestPrefilled
    | RequestFinished
    | RequestMigrated
    | RequestRejected
    | RequestQueued
    | RequestTurnedAway
    | ReplicaReported
    | DivergenceFound
)
Event = KvEvent | LoadEvent | RoutingEvent | JobEvent | JobsRestated

EVENT_TYPES: dict[str, type[Event]] = {kind.__name__: kind for kind in get_args(Event)}
"""The only table from a name on the wire to a class."""

EVENT_VERSION = 1
"""The highest version of any event type that this program reads."""
