"""View: the inputs of one decision, joined from all projections, this replica's pending events, and `local`."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from core.events import LoadReported, RequestRouted
from core.events.routing import LOCAL_REASONS, PrefixFetch
from core.ids import ReplicaId, RequestId, WorkerId
from core.prompt import Prompt
from core.settings import APPROXIMATE, TIERS, RoutingSettings
from projections.folds.approximate_index import NEVER
from projections.folds.in_flight import (
    ANY_HASH,
    NO_HASH,
    NO_LOAD,
    HashAt,
    InFlight,
    OutstandingPrefill,
    hash_beyond,
    known_depth,
    shared_depth,
)
from projections.folds.pending_events import PendingEvents
from projections.folds.state import NO_OVERLAP, State
from projections.policy.load_time import LoadPrices, LoadTime
from projections.policy.prefill_time import PrefillTime

NO_REPORT = LoadReported(running=0, waiting=0, blocks_used=0, blocks_total=0)
"""Said for a worker that has not reported yet."""
HASHED_AT_ONCE_MAX = 256
"""Blocks of a prompt of which all hashes are made, some 40 us, before it is compared with those being computed."""


class RouteRequest(NamedTuple):
    """The request as a decision reads it."""

    id: RequestId
    attempt: int
    model: str
    prompt: Prompt
    tenant: str = ""
    priority: int = 0
    session: str = ""
    """`core.keys.session_key` of what the client named; empty if it named none."""
    time: PrefillTime | None = None
    """Learned duration of the model's prefills; None if none was learned."""
    held: Mapping[WorkerId, int] = MappingProxyType({})
    """Expected wait behind other requests that this replica holds, and for room (`projections.policy.binding_plan`), in
    microseconds, by worker; with the prefills of workers that declined a request, and with the loading of the adapter
    where it is cold."""
    session_parent: str = ""
    """The key of the session that began `session`: recorded, and nothing is decided by it."""
    adapter: str = ""
    """`core.events.kv.Adapter.id` of the adapter that it is for: only workers that serve it are candidates. Empty if it
    is for the model itself."""
    fetching: Mapping[WorkerId, int] | None = None
    """Fetches under way by source (`core.events.routing.PrefixFetch.busy`); None if nothing may be fetched for it."""
    load_time: LoadTime | None = None
    """Learned times to load a block of the model; None if none was learned."""

    def loading(self, settings: RoutingSettings) -> LoadPrices | None:
        """Prices of blocks of slower tiers for the request; None without learned load times."""
        if self.load_time is None:
            return None
        return LoadPrices.of(settings, self.load_time, self.time, self.prompt.block_size)

    @staticmethod
    def of(event: RequestRouted, prompt: Prompt) -> RouteRequest:
        """The request of the recorded decision."""
        time = PrefillTime(*event.prefill_time) if event.prefill_time else None
        request = RequestId(event.request)
        held = {WorkerId(worker): held_us for worker, held_us in event.held.items()}
        fetching = None
        if isinstance(event.fetch, PrefixFetch):
            fetching = {WorkerId(source): count for source, count in event.fetch.busy.items()}
        return RouteRequest(
            request, event.attempt, event.model, prompt, event.tenant, event.priority, event.session, time, held,
            event.session_parent, event.adapter or "", fetching,
            LoadTime(*event.load_time) if event.load_time else None,
        )  # fmt: skip


class Candidate(NamedTuple):
    """One worker as the decision sees it."""

    worker: WorkerId
    model: str
    block_size: int
    capacity_blocks: int
    cache_known: bool
    overlap: tuple[int, ...]
    """Cached blocks of the prompt per level: on the device, on device or host, …"""
    pending: int
    """Blocks of the prompt that are being computed there for another request."""
    active_blocks: int
    active_requests: int
    prefill_tokens: int
    """Queued or being computed there."""
    waiting: int
    draining: bool


EXCLUSION_REASONS = ("not_connected", "suspected", "failed")
"""Local reasons for which a worker is left out; the first that holds is recorded."""
Local = Mapping[str, frozenset[WorkerId]]
"""Local knowledge of a replica: reason (core.events.routing.LOCAL_REASONS) to workers."""


class View(NamedTuple):
    """Everything that `decide` may depend on beside request, settings, now and seed."""

    state: State
    replica: ReplicaId
    pending_events: PendingEvents
    local: Local

    @property
    def cursor(self) -> dict[str, tuple[int, int]]:
        """Per stream: epoch and last sequence applied, in one order."""
        return dict(self.state.cursor.items())

    @property
    def version_read(self) -> int:
        """The highest version of decisions that all live replicas read: this replica may write it."""
        return self.state.routing.version_read(self.replica)

    def routed(self, model: str) -> int:
        """Decisions that this replica made for the model."""
        part = self.state.routing.replicas.get(self.replica)
        return (part.routed.get(model, 0) if part else 0) + self.pending_events.routed.get(model, 0)

    def cached(
        self, prompt: Prompt, settings: RoutingSettings, now_ms: int, *, pools: bool = True
    ) -> Mapping[WorkerId, tuple[int, ...]]:
        """Cached blocks of the prompt per level, by worker: as the state has them, or under `approximate` by where
        requests were sent, all on the device, in O(replicas * workers * log blocks)."""
        if settings.policy != APPROXIMATE:
            return self.state.reported(prompt, pools=pools)
        ttl_ms = settings.approximate_ttl_s * 1000
        since_ms = max(NEVER, now_ms - ttl_ms) if ttl_ms else NEVER
        found: dict[WorkerId, int] = {}
        for part in self.state.routing.believed.values():
            for worker, depth in part.reach(prompt, since_ms):
                found[worker] = max(depth, found.get(worker, 0))
        for entry in self.pending_events.believed:
            if entry.begins_us // 1000 > since_ms:
                found[entry.worker] = max(shared_depth(entry.hashes, prompt), found.get(entry.worker, 0))
        return {worker: (depth,) * len(TIERS) for worker, depth in found.items()}

    def candidates(self, prompt: Prompt, cached: Mapping[WorkerId, tuple[int, ...]] | None = None) -> list[Candidate]:
        """Every worker that is alive by the log and answers requests, by id; what is cached there is what
        the log has, unless that is given.

        O(workers + holder groups * log blocks).
        """
        overlap = (self.state.reported(prompt) if cached is None else cached).get
        pending = self.pending(prompt).get
        folded, own = self.state.routing.in_flight_load.busy.get, self.pending_events.in_flight_load.busy.get
        report = self.state.loads.reports.get
        found = []
        new = tuple.__new__  # a third of the price of Candidate(…), and this runs for every worker
        for member in self.state.serving():
            worker, joined = member.worker, member.joined
            assert joined is not None  # serving() gives only those that joined
            known, busy, load = folded(worker, NO_LOAD), own(worker, NO_LOAD), report(worker, NO_REPORT)
            row = (
                worker, joined.model, joined.block_size, joined.capacity_blocks, member.cache_known,
                overlap(worker, NO_OVERLAP), pending(worker, 0),
                known.blocks + busy.blocks, known.requests + busy.requests,
                known.prefill_tokens + busy.prefill_tokens, load.waiting, load.draining,
            )  # fmt: skip
            found.append(new(Candidate, row))
        return found

    def outstanding(self) -> dict[WorkerId, list[OutstandingPrefill]]:
        """Per worker: the prefills that were not done when this replica last heard of them, in no order.

        O(all of them): most workers have none to two.
        """
        found: dict[WorkerId, list[OutstandingPrefill]] = {}
        computed = self.pending_events.computed
        for worker, known in self.state.routing.in_flight_load.prefills.items():
            rows = [*known.values()]
            if computed:
                rows = [row for row in rows if row[1:3] not in computed]
            if rows:
                found[worker] = rows
        for worker, own in self.pending_events.in_flight_load.prefills.items():
            found.setdefault(worker, []).extend(own.values())
        return found

    def reuse(self) -> dict[WorkerId, int]:
        """Reuse of the talks that live on a worker, of those where it is above 0. O(workers)."""
        return self.state.loads.reuse.copy()

    def computing(self, prompt: Prompt) -> list[InFlight]:
        """Requests in prefill that share the prompt's first block: the blocks that they compute can be reused."""
        known = self.pending_events.computed
        folded = [entry for key, entry in self.state.routing.in_flight_load.pending(prompt) if key not in known]
        return folded + [entry for _, entry in self.pending_events.in_flight_load.pending(prompt)]

    def pending(self, prompt: Prompt) -> dict[WorkerId, int]:
        """Per worker: the longest start of the prompt that is being computed there.

        One comparison for each request that shares its first block; O(log blocks) more, mostly two, for each different
        one that shares more of it than those before it on its worker.
        """
        found: dict[WorkerId, int] = {}
        deeper: dict[tuple[int, int], HashAt] = {(0, 0): ANY_HASH}
        """By the base of an entry and a depth: what it shows if it shares more."""
        depth, (at, here), (beyond_it, there) = (
            0,
            NO_HASH,
            ANY_HASH,
        )  # how deep the one before went, and what tells that
        for load in (self.state.routing.in_flight_load, self.pending_events.in_flight_load):
            known = () if load is self.pending_events.in_flight_load else self.pending_events.computed
            same_start = load.pending(prompt)
            if same_start and prompt.blocks <= HASHED_AT_ONCE_MAX:
                prompt.hashes()  # they are to be recorded anyway, and probes cost a fifth then
            for key, entry in same_start:
                if key in known:
                    continue
                worker, hashes, base = entry.worker, entry.hashes, entry.base_blocks
                least = found.setdefault(worker, 1) if base else found.get(worker, 0)
                place, block = deeper.get((base, least)) or deeper.setdefault(
                    (base, least), hash_beyond(prompt, least, base)
                )
                if (entry.base_hashes if least < base else hashes)[place] != block:
                    continue
                if base:
                    found[worker] = known_depth(entry, prompt, least)
                    continue
                if hashes[at] != here or hashes[beyond_it] == there:  # most share a system prompt and no more
                    depth = shared_depth(hashes, prompt, depth)
                    (at, here), (beyond_it, there) = hash_beyond(prompt, depth - 1), hash_beyond(prompt, depth)
                found[worker] = depth
        return found


def recorded_local(local: Local) -> dict[str, list[WorkerId]]:
    """`local` in its one recorded order: reasons as listed in core.events.routing, ids sorted, empty ones left out."""
    return {reason: sorted(local[reason]) for reason in LOCAL_REASONS if local.get(reason)}


def local_by_worker(local: Local) -> dict[WorkerId, tuple[str, ...]]:
    """`local` as LocalChanged says it: worker to reasons, in the order of core.events.routing."""
    found: dict[WorkerId, tuple[str, ...]] = {}
    for reason in LOCAL_REASONS:
        for worker in local.get(reason, ()):
            found[worker] = (*found.get(worker, ()), reason)
    return found
