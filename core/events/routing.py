"""Events of replicas (stream routing): their lives and settings, and the requests that they queue, route and end.

RequestQueued, RequestTurnedAway and AnswerDelayed inform: no fold keeps anything of them, and no decision rests on
them. A request that finds a free place when it arrives has neither of the first two, and one with a client that reads
has not the third.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType
from msgspec.structs import astuple

from core.events.base import EventBase, check_width
from core.generation import PrefillReport
from core.ids import COLUMN_WIDTH
from core.prompt import known_depths

CONTINUED_VERSION = 2
"""The version of `RequestRouted` that continues another decision."""
COMPACT_VERSION = 3
"""The version that is an array on the wire (`core.events.compact_decision`), and continues another decision or not."""
SHORT_VERSION = 4
"""The version that leaves out of that array what a reader knows (`core.events.compact_decision`). Programs that read it
read PROGRESS_VERSION, too."""
ROUTED_VERSION = SHORT_VERSION
"""The highest version that this program reads. A replica writes a version only while all live ones read it: an earlier
program could not count such a request in flight."""
PROGRAM_VERSION = "0.8.0"
"""Of this program, as `ReplicaJoined` names it. Raised with DECIDE_VERSION: a decision by rules that a program does not
have is excused only if a newer program made it."""
DECIDE_VERSION = 8
"""Version of the rules by which this program decides. Raised whenever the same view and settings could give another
choice or digest; `projections.policy.rules` keeps the earlier ones."""


class Columns(msgspec.Struct, frozen=True, array_like=True, eq=False):
    """Cost terms of the recorded candidates, read like a dictionary of columns by their names. The order is that of
    version 3 on the wire."""

    cost: tuple[int, ...]
    """Thousandths of a weighted block; microseconds under a policy that estimates times."""
    overlap: tuple[int, ...]
    """Blocks of the prompt cached on the device …"""
    overlap_all: tuple[int, ...]
    """… and in any tier."""
    pending: tuple[int, ...]
    """Blocks being computed there for another request."""
    prefill: tuple[int, ...]
    """Blocks to prefill there in thousandths, credit taken off; queued ones are included, but not under a policy that
    estimates times."""
    active_blocks: tuple[int, ...]
    """Blocks in flight …"""
    active_requests: tuple[int, ...]
    """… and requests."""
    waiting: tuple[int, ...]
    """Requests waiting by the worker's last report."""
    known: tuple[int, ...]
    """1 if the worker's cache is known, 0 after a gap in its chain."""
    wait_us: tuple[int, ...] | None = None
    """The wait of a new prefill behind outstanding ones there; None under a policy that does not estimate times."""
    reuse: tuple[int, ...] | None = None
    """Reuse of the talks that live there (`projections.folds.load_fold.reuse_of`); None where the decision read none
    but 0. Behind those of the recorded candidates stands the greatest one of all, if it is greater."""
    overlap_host: tuple[int, ...] | None = None
    """Blocks of the prompt cached on the device or on the host; None where `overlap_all` says it, and where the
    decision read no load times …"""
    overlap_disk: tuple[int, ...] | None = None
    """… and the same with those on the disk."""
    turnover: tuple[int, ...] | None = None
    """The turnover of each beyond that of others, in 64ths (`projections.policy.cost.excess_turnover`); None where the
    decision read none but 0."""

    def __getitem__(self, name: str) -> tuple[int, ...]:
        found: tuple[int, ...] | None = self.get(name)
        if found is None:
            raise KeyError(name)
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys())

    def __contains__(self, name: object) -> bool:
        return name in self.keys()

    def __len__(self) -> int:
        return len(self.keys())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, dict | Columns) and dict(self.items()) == dict(other.items())

    def __hash__(self) -> int:
        return hash(astuple(self))

    def get(self, name: str, default: tuple[int, ...] | None = None) -> Any:
        """The column of that name, or the default."""
        found = getattr(self, name) if name in _COLUMN_NAMES else None
        return default if found is None else found

    def keys(self) -> tuple[str, ...]:
        """The names of the columns that there are."""
        if self.wait_us is None:
            return COLUMNS
        optional = [name for name in _OPTIONAL if getattr(self, name) is not None]
        if len(optional) == 1:
            return _WITH_WAITS
        return (*COLUMNS, *optional)

    def items(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """The columns with their names."""
        return zip(self.keys(), [each for each in astuple(self) if each is not None], strict=False)

    def values(self) -> Iterator[tuple[int, ...]]:
        """The columns that there are."""
        return (column for _, column in self.items())


_COLUMN_NAMES = Columns.__struct_fields__
WAIT, REUSE, TURNOVER = "wait_us", "reuse", "turnover"
COLUMNS, TIMED_COLUMNS, LEVEL_COLUMNS = _COLUMN_NAMES[:-5], (WAIT, REUSE, TURNOVER), _COLUMN_NAMES[-3:-1]
"""Names of the columns of every decision, of those under policies that estimate times, and of those with load times.
`reuse` and `turnover` stand only where workers report such numbers; columns of levels only where levels differ."""
_OPTIONAL, _WITH_WAITS = _COLUMN_NAMES[-5:], _COLUMN_NAMES[:-4]

EXCLUDED_SHOWN_MAX = 4
"""Ids shown per exclusion reason; the count is always whole."""

LOCAL_REASONS = ("not_connected", "suspected", "failed", "stale", "cut_off")
"""Facts about a worker that only one replica knows: it has no connection to it, its lease vanished, it just failed a
request, its load reports stopped. `cut_off`: the reports of most workers stopped, so the replica doubts its own
connection to the log. Each change is an event of its own (`LocalChanged`), so that no decision grows with the number of
workers."""

WAITS_FOR = ("full", "overloaded", "behind")
"""Why a request waits: workers have all that they may have; too much waits in their engines; others came first."""
NO_WORKER = "no_worker"
"""The same where no worker is there: a planner starts the first one for those that wait."""
HELD = "prefill"
"""The same of a request that has a place: the worker that is best for it still computes other prompts."""
INTERNAL = "internal"
TURNED_AWAY = {
    "queue_full": 503,
    "tenant_share": 429,
    "queue_wait": 503,
    "stopping": 503,
    "deadline": 504,
    "client_gone": 499,
    INTERNAL: 500,
}
"""Reason for which a request ended without a decision, with the HTTP status for its client. In order: the queue is
full; the queue is full, and most of it is this tenant's; the wait was too long, or would have been; the replica stops;
the client's deadline passed; the client hung up, and got no status; the request failed inside the replica's process."""


class RequestQueued(EventBase, frozen=True):
    """No worker had a place for the request when it came, or the right one no time, so it waits in its replica. A
    RequestRouted or RequestRejected of it, or a RequestTurnedAway, ends that."""

    request: str
    model: str
    priority: int
    """Lower is served first."""
    tenant: str
    prompt_tokens: int
    why: str
    """Of WAITS_FOR, NO_WORKER or HELD."""
    depth: int
    """Requests that waited already, later arrivals included."""
    now_ms: int
    """The broker's clock, as the replica estimates it (`streams.broker_clock`)."""


class RequestTurnedAway(EventBase, frozen=True):
    """The request ended without a decision: refused when it came, or while it waited."""

    request: str
    model: str
    reason: str
    """Of TURNED_AWAY …"""
    status: int
    """… and its status."""
    waited_ms: int
    """-1 if it was refused when it came."""
    tenant: str = ""
    detail: str = ""
    """Of `internal`: what failed, and where (`core.failure.detail_of`)."""


QueueEvent = RequestQueued | RequestTurnedAway


class DecisionCounts(msgspec.Struct, frozen=True, omit_defaults=True):
    """Counts of a replica since it joined under its id, up to the event that holds them. The log has `made` less
    `dropped` decisions of the replica before that event, or it lost some."""

    made: int
    """Decisions: each attempt that was routed, and each request that was rejected."""
    dropped: int = 0
    """Decisions among them that are in no log: they passed the bound of the journal, or the journal lost them."""
    dropped_others: int = 0
    """Other events that were dropped likewise."""


LOST_HISTORY = "lost history"
"""Stands in the reason of a restatement that follows a loss of the log: `STREAM lost history: …`."""
MADE_ANEW = "the stream was made anew"
"""Begins the text behind that where the stream has another epoch now …"""
ROLLED_BACK_TEXT = "the stream was rolled back"
"""… and where its store went back."""


class ReplicaJoined(EventBase, frozen=True):
    """A router is there, with nothing in flight."""

    name: str
    version: str
    address: str = ""
    """The address of its API."""
    reads: int | UnsetType = UNSET
    """The highest version of `RequestRouted` that it reads; left out by earlier programs, which read version 1."""

    @property
    def routed_version(self) -> int:
        """The highest version of `RequestRouted` that it reads."""
        return self.reads if isinstance(self.reads, int) else 1


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
    """Expected start of each prefill, by the clock of decisions; 0 where it is done. Empty if unknown."""
    counts: DecisionCounts | UnsetType = UNSET
    """Left out while the replica has decided and dropped nothing, and by earlier versions."""

    def __post_init__(self) -> None:
        check_width(self.workers)
        columns = (self.attempts, self.models, self.blocks, self.prefill_tokens)
        lengths = {len(self.workers) // COLUMN_WIDTH, *map(len, columns), len(self.begins_us or self.requests)}
        if lengths != {len(self.requests)}:
            raise ValueError(f"columns of different lengths for {len(self.requests)} requests")


class ReplicaLeft(EventBase, frozen=True):
    """The router ended by itself; nothing follows."""

    reason: str
    counts: DecisionCounts | UnsetType = UNSET
    """As in ReplicaRestated; appended by a successor, they are the counts that the journal holds."""


class ReplicaLost(EventBase, frozen=True):
    """Another replica found this one gone. Final; its requests in flight end with it."""

    by: str
    reason: str


class SettingsChanged(EventBase, frozen=True):
    """From here on this replica decides under these settings."""

    revision: int
    settings: dict[str, Any]


class LocalChanged(EventBase, frozen=True):
    """The local reasons of a worker from here on; this replica's decisions rest on them."""

    worker: str
    reasons: tuple[str, ...]
    """Of `core.events.routing.LOCAL_REASONS`, in their order; none when all is well again."""


class PromptBase(msgspec.Struct, frozen=True, array_like=True):
    """The decision that another one continues, and what folds need of its prompt. It stands in the routing stream, in
    the epoch and before the place that the cursor of the other one names."""

    seq: int
    """Of its message …"""
    place: int
    """… and its place among the events there."""
    blocks: int
    """Leading blocks of its prompt that the two share."""
    root: int
    """Sequence of the decision at the start of the chain, which has all hashes of its prompt …"""
    age_ms: int
    """… and how much earlier that one was made."""
    hashes: bytes
    """Those of the shared blocks at `core.prompt.known_depths`."""
    column: bytes
    """`core.prompt.column_digest` of all hashes of the prompt that continues it."""

    def __post_init__(self) -> None:
        if self.blocks < 1 or len(self.hashes) != COLUMN_WIDTH * len(known_depths(self.blocks)):
            raise ValueError(f"{len(self.hashes)} bytes of hashes for {self.blocks} blocks")

    @property
    def decision(self) -> tuple[int, int]:
        """The sequence of its message, and its place among the events there."""
        return self.seq, self.place

    def extended(self, hashes: bytes, news: bytes) -> bytes:
        """All hashes of the prompt that continues one with `hashes` and has `news` behind the blocks they share."""
        return hashes[: COLUMN_WIDTH * self.blocks] + news


class PrefixFetch(msgspec.Struct, frozen=True, array_like=True):
    """The knowledge of a decision of fetches, and the fetch that it chose, if any."""

    busy: dict[str, int]
    """Fetches under way from a source that this replica had sent, by source; as many as there may be at most, if the
    last one failed. An input of the decision."""
    source: str = ""
    """The worker from whose host the start of the prompt is fetched; empty if nothing is."""
    tokens: int = 0
    """Tokens that come from there: those behind what the chosen worker has."""
    us: int = 0
    """The time that this was expected to take."""


class RequestRouted(EventBase, frozen=True):
    """One decision with everything that it rested on; one per attempt. Version 2 continues another decision, later ones
    may."""

    request: str
    attempt: int
    """From 0."""
    model: str
    prompt_tokens: int
    block_size: int
    hashes: bytes
    """All block hashes of the prompt; those behind `base` if there is one."""
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
    columns: Columns | dict[str, tuple[int, ...]]
    """Cost terms by name; a dictionary as earlier versions have them on the wire."""
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
    """Tokens of the prompt that it holds."""
    session: str = ""
    """`core.keys.session_key` of the session that the client named; empty if it named none."""
    wait_us: int = 0
    """Expected wait there behind outstanding prefills; 0 under policies that do not estimate it."""
    prefill_time: tuple[int, ...] = ()
    """`projections.policy.prefill_time.PrefillTime` as this replica had learned it, where the settings leave that to
    it."""
    held: dict[str, int] = msgspec.field(default_factory=dict)
    """Expected wait there behind requests that the replica held, and for room, in microseconds, by worker."""
    believed: tuple[int, int] | None = None
    """`projections.folds.approximate_index.CacheRetention` under the policy `approximate`: what the worker is taken to
    keep, this included."""
    session_parent: str = ""
    """The key of the session that began `session`, as of a sub-agent; empty if the client named none. It informs: no
    decision rests on it."""
    base: PromptBase | UnsetType = UNSET
    """Stands in version 2, and in later ones if the decision continues another."""
    adapter: str | UnsetType = UNSET
    """`core.events.kv.Adapter.id` of the adapter that the request is for; left out if it is for the model itself."""
    fetch: PrefixFetch | UnsetType = UNSET
    """Left out if no worker fetched then, and by earlier programs."""
    load_time: tuple[int, ...] | UnsetType = UNSET
    """`projections.policy.load_time.LoadTime` as this replica had learned it; left out where the decision read none."""

    @property
    def expects_load(self) -> bool:
        """True if its worker was expected to take blocks of the prompt from a slower tier than the device, or from
        another worker."""
        if isinstance(self.fetch, PrefixFetch) and self.fetch.source:
            return True
        return self.columns["overlap"][:1] < self.columns["overlap_all"][:1]

    def __post_init__(self) -> None:
        if self.v <= CONTINUED_VERSION and (self.v == CONTINUED_VERSION) == (self.base is UNSET):
            raise ValueError(f"version {self.v} of a decision, with the base {self.base!r}")


DELAYED_MS = 5
"""An answer that its client takes within this time needs no AnswerDelayed."""
PROGRESS_VERSION = 2
"""The version of `RequestPrefilled` and `RequestFinished` that is an array (`core.events.compact_progress`)."""


CACHED_UNKNOWN = -1
"""An attached server says only at the end how many tokens it took from its cache, or not at all."""
EXPIRED = "expired"
"""The outcome of a reservation of which no end was reported in time."""
RESERVED = "reserved"
"""The detail of each end of a reservation: a proxy sent the request to the worker, and its reports are the times and
counts."""


class RequestPrefilled(EventBase, frozen=True, array_like=True, tag=False):
    """The first token came."""

    request: str
    attempt: int
    cached_tokens: int
    """Prompt tokens that the engine took from its cache; CACHED_UNKNOWN if it had not said so by then."""
    ttft_ms: int
    """From the arrival at the front end to the first token there."""
    prefill: PrefillReport | None = None
    """Report of the worker on where the prompt was computed; None without prefill workers."""


class _FinishedValues(EventBase, frozen=True, array_like=True, tag=False):
    """The values of an end up to its version, which programs without `stages` read."""

    request: str
    attempt: int
    outcome: str
    """`stop`, `length`, `abort` (the client hung up), `error`, `worker_lost`, `declined` (the worker was to take it
    only if it fits into one pass with other replicas' prompts), `expired` (the end of a reservation was not
    reported)."""
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int
    """As in `RequestPrefilled`; 0 if no token came."""
    ttft_ms: int
    """-1 if no token came."""
    duration_ms: int
    detail: str = ""


class RequestFinished(_FinishedValues, frozen=True, kw_only=True, array_like=True, tag=False):
    """An attempt ended, well or not."""

    stages: tuple[int, ...] = ()
    """`core.events.request_stages.RequestStages`; empty from earlier programs, and in version 1. It informs: no fold
    and no decision rests on it. It stands behind the version, where earlier programs pass over it."""


class AnswerDelayed(EventBase, frozen=True):
    """The client took its answer late: more than DELAYED_MS behind the last token, or with such a break before."""

    request: str
    written_ms: int
    """From the last token until the client's system had the whole answer, or its connection ended."""
    stalled_ms: int
    """The time in all for which the client's system took nothing, since the client did not read."""
    unsent_bytes: int
    """Bytes that waited when the last token came."""


class RequestMigrated(EventBase, frozen=True):
    """Its worker broke off in the middle of the answer; another goes on from the tokens that were told."""

    request: str
    attempt: int
    """The one that goes on."""
    worker: str
    """The one that broke off."""
    told_tokens: int
    """Tokens of the answer that the client has."""
    reason: str


class RequestRejected(EventBase, frozen=True, omit_defaults=True):
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
    decide_version: int = 1
    adapter: str | UnsetType = UNSET
    """As in RequestRouted."""


class Points(msgspec.Struct, frozen=True, array_like=True):
    """The state of one stream's fold at some cursors, as columns."""

    epoch: int
    seqs: tuple[int, ...]
    digests: bytes
    """uint64: the fold's digest at each of them."""
    heads: bytes
    """16 bytes each: the chain digest of the message at each cursor. A later reader sees by it whether the log was
    rewritten."""

    def __post_init__(self) -> None:
        if {len(self.digests), len(self.heads) // 2} != {COLUMN_WIDTH * len(self.seqs)} or len(self.heads) % 2:
            raise ValueError(f"columns of different lengths for {len(self.seqs)} points")


class ReplicaReported(EventBase, frozen=True):
    """Digests of this replica's complete folds at cursors that all replicas share."""

    fold_version: int
    """Only folds of equal version are compared."""
    points: dict[str, Points]
    """By stream."""
    incomplete: tuple[str, ...] = ()
    """Streams of which a source is unknown until it restates itself: nothing is said of them."""
    begins: dict[str, tuple[int, int]] | UnsetType = UNSET
    """By stream, of which the first messages had been cut off when it was folded: its epoch and the first one folded.
    Left out where there is no such stream, and by earlier versions."""
    counts: DecisionCounts | UnsetType = UNSET
    """As in ReplicaRestated."""
    clock_offset_ms: int | UnsetType = UNSET
    """The replica's wall clock less the broker's, as it corrects it; left out below `streams.broker_clock.NOTED_MS`."""


class DivergenceFound(EventBase, frozen=True):
    """This replica and another had different folds at one cursor; this one folded the log again to find the wrong
    one."""

    stream: str
    epoch: int
    seq: int
    digest: int
    """Digest of this replica's fold there."""
    refolded: int
    """Digest of the log folded again up to there."""
    other: str
    """The replica that had reported something else."""
    verdict: str
    """`replaced`: this one was wrong and goes on with the new fold; `confirmed`: it was right."""


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
    | AnswerDelayed
    | RequestMigrated
    | RequestRejected
    | RequestQueued
    | RequestTurnedAway
    | ReplicaReported
    | DivergenceFound
)
