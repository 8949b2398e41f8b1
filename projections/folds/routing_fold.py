"""RoutingFold: the routing stream folded into requests in flight per replica, and expected against real reuse."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from functools import lru_cache
from typing import Any, assert_never

import msgspec

from core.codec import Message
from core.events import (
    AnswerDelayed,
    DecisionCounts,
    DivergenceFound,
    LocalChanged,
    PromptBase,
    ReplicaJoined,
    ReplicaLeft,
    ReplicaLost,
    ReplicaReported,
    ReplicaRestated,
    RequestFinished,
    RequestMigrated,
    RequestPrefilled,
    RequestRejected,
    RequestRouted,
    RoutingEvent,
    SettingsChanged,
)
from core.events.routing import CACHED_UNKNOWN, ROUTED_VERSION, RequestQueued, RequestTurnedAway
from core.ids import ReplicaId, RequestId, WorkerId, from_column
from projections.digest import MASK64, mix, mix_repr
from projections.folds.approximate_index import ApproximateIndex, CacheRetention
from projections.folds.in_flight import AttemptKey, InFlight, InFlightLoad
from projections.folds.source_fold import Chain, SourceFold, stamp

MILLI = 1000
NO_BASE = 0, b""
WORKERS_AT_ONCE = 16
"""Workers whose requests an audit adds up between two chances to do something else: 0.3 ms with 4 096 requests in
flight on 128 workers."""
DROPPED_KEPT = 64
"""Bound of the replicas of which dropped decisions are known, and of names of ended ones; the oldest goes first."""


class ReuseTotals(msgspec.Struct):
    """Predicted cache hits against the hits that engines reported."""

    requests: int = 0
    prompt_tokens: int = 0
    predicted_tokens: int = 0
    """Sum over requests with a first token."""
    cached_tokens: int = 0


class ReplicaPart(msgspec.Struct):
    """One router's part."""

    replica: ReplicaId
    joined: ReplicaJoined | None = None
    ended: str = ""
    known: bool = True
    """False after a gap, until the replica has restated its identity and its requests."""
    chain: Chain = msgspec.field(default_factory=Chain)
    in_flight: dict[AttemptKey, InFlight] = msgspec.field(default_factory=dict)
    predicted: dict[AttemptKey, tuple[int, int]] = msgspec.field(default_factory=dict)
    """Predicted cached tokens and prompt tokens of requests without a first token yet."""
    routed: dict[str, int] = msgspec.field(default_factory=dict)
    """Decisions since it joined or last restated itself, per model: what round-robin goes by."""
    reuse: ReuseTotals = msgspec.field(default_factory=ReuseTotals)
    local: dict[WorkerId, tuple[str, ...]] = msgspec.field(default_factory=dict)
    """Local reasons of workers, by LocalChanged."""
    settings: dict[str, Any] = msgspec.field(default_factory=dict)
    settings_revision: int = 0
    identity: int = 0
    """64 bits of what it said when it joined."""
    contents: int = 0
    """64 bits, a sum over what is in flight, what was routed and what only it knows."""
    digest: int = 0
    """This part's contribution to the projection's digest; 0 until the replica joined."""


class RoutingFold(SourceFold[ReplicaId, ReplicaPart]):
    """The fold of the routing stream."""

    lost = (ReplicaLost,)

    def __init__(self) -> None:
        super().__init__()
        self.replicas = self.parts
        self.in_flight_load = InFlightLoad()
        self.believed: dict[ReplicaId, ApproximateIndex] = {}
        """Approximate indexes of replicas; only of those with such a decision since their last restatement."""
        self.dropped: dict[ReplicaId, DecisionCounts] = {}
        """The last counts of replicas that dropped decisions, ended ones too; no part of any digest or snapshot."""
        self._ended_names: dict[ReplicaId, str] = {}
        """Names of the replicas that ended last."""
        self._version_read = 0
        """The result of `version_read`; 0 after a change of the replicas, until it is asked for."""

    def __repr__(self) -> str:
        flying = sum(len(part.in_flight) for part in self.replicas.values())
        return f"<RoutingFold {len(self.replicas)} replicas, {flying} in flight, digest {self.digest:016x}>"

    def restore(self, part: ReplicaPart, believed: ApproximateIndex | None = None) -> None:
        """A part as a snapshot has it is there, with what it has in flight and what it takes workers to hold."""
        self.replicas[part.replica], self._version_read = part, 0
        if believed is not None and believed.blocks:
            self.believed[part.replica] = believed
        if part.joined is not None:
            part.identity = _identity(part.joined)
        part.contents = contents(part)
        for key, entry in part.in_flight.items():
            self.in_flight_load.add(key, entry)
        self._account(part.replica, part)

    def load_of(self, workers: AbstractSet[WorkerId] | None = None) -> InFlightLoad:
        """The load of the requests in flight added up anew; that of these workers alone if they are given."""
        load = InFlightLoad()
        for part in self.replicas.values():
            for key, entry in part.in_flight.items():
                if workers is None or entry.worker in workers:
                    load.add(key, entry)
        return load

    def recount(self) -> None:
        """The load follows from the requests in flight."""
        self.in_flight_load = self.load_of()

    def audit_load(self) -> Iterator[list[str]]:
        """For some workers at a time: texts for those whose load does not follow from the requests in flight.

        Digests cover the requests, not the load that decisions read. The fold may change between two texts.
        """
        flying = {entry.worker for part in self.replicas.values() for entry in part.in_flight.values()}
        workers = sorted(self.in_flight_load.workers() | flying)
        for start in range(0, len(workers), WORKERS_AT_ONCE):
            some = frozenset(workers[start : start + WORKERS_AT_ONCE])
            yield self.in_flight_load.differences(self.load_of(some), some)

    def audit_requests(self) -> Iterator[list[str]]:
        """For one replica at a time: a text if its part of the fold is another than its digest says."""
        for replica in sorted(self.replicas):
            part = self.replicas.get(replica)
            differs = part is not None and (contents(part) - part.contents) & MASK64
            yield [f"replica {replica} has other requests in flight than the digest counts"] if differs else []

    def version_read(self, writer: ReplicaId) -> int:
        """The highest version of decisions that all live replicas read; 1 while the fold lacks the writer.
        O(replicas) after a change of them, else O(1)."""
        if writer not in self.replicas:
            return 1
        if not self._version_read:
            joined = [part.joined for part in self.replicas.values()]
            self._version_read = min(ROUTED_VERSION, *[1 if each is None else each.routed_version for each in joined])
        return self._version_read

    def _begin(self, source: ReplicaId) -> ReplicaPart:
        self._version_read = 0
        return self.replicas.setdefault(source, ReplicaPart(source))

    def _note_behind_end(self, owner: str, message: Message) -> None:
        for event in message.events:
            self._note_dropped(ReplicaId(owner), event)  # the recovery of its journal states them there

    def _note_dropped(self, replica: ReplicaId, event: object) -> None:
        if not isinstance(event, ReplicaReported | ReplicaRestated | ReplicaLeft):
            return
        if isinstance(event.counts, DecisionCounts) and event.counts.dropped:
            self.dropped[replica] = event.counts
            _trim(self.dropped)

    def name(self, replica: ReplicaId) -> str:
        """The replica's name, also if it ended lately; else its id."""
        part = self.replicas.get(replica)
        return self._ended_names.get(replica, replica) if part is None or part.joined is None else part.joined.name

    def _void(self, part: ReplicaPart) -> None:
        self._forget(part)
        part.known = False

    def _fold(self, part: ReplicaPart, message: Message) -> None:
        for event in message.events:
            if part.ended:
                return
            if self._request(part, event):
                continue
            if isinstance(event, RoutingEvent):
                self._event(part, event)
            else:
                self.unknown_events += 1

    def _weight(self, part: ReplicaPart) -> int:
        if part.joined is None:
            return 0
        whole = stamp(part.chain, part.identity) + part.contents + 2 * part.settings_revision + part.known
        if part.replica in self.believed:
            whole += self.believed[part.replica].digest
        return whole & MASK64

    def _is_known(self, part: ReplicaPart) -> bool:
        return part.known

    def _event(self, part: ReplicaPart, event: RoutingEvent) -> None:
        self._note_dropped(part.replica, event)
        match event:
            case RequestRouted() | RequestPrefilled() | RequestFinished():
                pass  # `_request`
            case ReplicaJoined():
                part.joined, part.identity, self._version_read = event, _identity(event), 0
            case ReplicaRestated():
                self._restated(part, event)
            case ReplicaLeft():
                self._end(part.replica, f"left: {event.reason}")
            case ReplicaLost():
                pass  # counts only from its own source
            case RequestMigrated() | RequestRejected() | RequestQueued() | RequestTurnedAway() | AnswerDelayed():
                pass  # these leave no state, nor do those
            case ReplicaReported() | DivergenceFound():
                pass
            case SettingsChanged():
                part.settings, part.settings_revision = event.settings, event.revision
            case LocalChanged():
                _local_changed(part, event)
            case _:
                assert_never(event)

    def _request(self, part: ReplicaPart, event: object) -> bool:
        """True if the event was one of a request. Nearly all are, and a look at the type costs less than trying
        each."""
        if type(event) is RequestRouted:
            self._routed(part, event)
        elif type(event) is RequestPrefilled:
            self._prefilled(part, event)
        elif type(event) is RequestFinished:
            self._finished(part, event)
        else:
            return False
        return True

    def _routed(self, part: ReplicaPart, event: RequestRouted) -> None:
        part.routed[event.model] = part.routed.get(event.model, 0) + 1
        part.contents += _of_model(event.model)
        if part.known:
            key = (RequestId(event.request), event.attempt)
            part.predicted[key] = (event.predicted_cached_tokens, event.prompt_tokens)
            self._put(part, key, in_flight(event))

    def _prefilled(self, part: ReplicaPart, event: RequestPrefilled) -> None:
        key = (RequestId(event.request), event.attempt)
        predicted = part.predicted.pop(key, None)
        if predicted is not None and event.cached_tokens != CACHED_UNKNOWN:
            part.reuse.requests += 1
            part.reuse.predicted_tokens += predicted[0]
            part.reuse.prompt_tokens += predicted[1]
            part.reuse.cached_tokens += event.cached_tokens
        entry = part.in_flight.pop(key, None)
        if entry is not None:
            after = part.in_flight[key] = entry.prefilled()
            part.contents += request_weight(key, after) - request_weight(key, entry)
            self.in_flight_load.computed(entry)
            if entry.believed is not None:
                self._believe(part.replica, entry, CacheRetention(*entry.believed))

    def _finished(self, part: ReplicaPart, event: RequestFinished) -> None:
        key = (RequestId(event.request), event.attempt)
        part.predicted.pop(key, None)
        self._take(part, key)

    def _believe(self, replica: ReplicaId, entry: InFlight, retention: CacheRetention) -> None:
        """The prompt was computed: its worker holds it from now on."""
        part = self.believed.get(replica)
        if part is None:
            part = self.believed[replica] = ApproximateIndex()
        part.take(entry.worker, entry.hashes, max(0, entry.begins_us // MILLI), retention)

    def _restated(self, part: ReplicaPart, event: ReplicaRestated) -> None:
        """The restatement replaces all requests before it. It makes the replica known if its identity was restated
        before."""
        self._forget(part)
        part.known = part.known or part.joined is not None
        part.routed.clear()
        part.contents = 0
        if part.known:
            for key, entry in restated_requests(event):
                self._put(part, key, entry)

    def _put(self, part: ReplicaPart, key: AttemptKey, entry: InFlight) -> None:
        self._take(part, key)
        part.in_flight[key] = entry
        part.contents += request_weight(key, entry)
        self.in_flight_load.add(key, entry)

    def _take(self, part: ReplicaPart, key: AttemptKey) -> InFlight | None:
        entry = part.in_flight.pop(key, None)
        if entry is not None:
            part.contents -= request_weight(key, entry)
            self.in_flight_load.subtract(entry)
        return entry

    def _forget(self, part: ReplicaPart) -> None:
        for key in list(part.in_flight):
            self._take(part, key)
        part.predicted.clear()
        self.believed.pop(part.replica, None)
        for worker, reasons in part.local.items():
            part.contents -= mix(worker, reasons)
        part.local.clear()

    def _end(self, source: ReplicaId, reason: str) -> None:
        part, self._version_read = self.replicas.pop(source, None), 0
        if part is not None:
            self._forget(part)
            part.ended = reason
            self._ended_names[source] = source if part.joined is None else part.joined.name
            _trim(self._ended_names)
        self._bury(source, part, reason)


def _trim(kept: dict[ReplicaId, Any]) -> None:
    """The oldest entry beyond the bound is gone."""
    if len(kept) > DROPPED_KEPT:
        del kept[next(iter(kept))]


def _local_changed(part: ReplicaPart, event: LocalChanged) -> None:
    worker = WorkerId(event.worker)
    before = part.local.pop(worker, ())
    if before:
        part.contents -= mix(worker, before)
    if event.reasons:
        part.local[worker] = event.reasons
        part.contents += mix(worker, event.reasons)


def in_flight(event: RequestRouted) -> InFlight:
    """The weight of a routed request until its end."""
    begins_us, base = event.now_ms * MILLI + event.wait_us, event.base
    shared = (base.blocks, base.hashes) if isinstance(base, PromptBase) else NO_BASE
    return InFlight(
        WorkerId(event.worker), event.blocks, event.prefill_tokens, event.hashes, begins_us, event.believed, *shared
    )


def restated_requests(event: ReplicaRestated) -> list[tuple[AttemptKey, InFlight]]:
    """The requests in flight that a restatement names."""
    keys = zip(map(RequestId, event.requests), event.attempts, strict=True)
    begins_us = event.begins_us or (0,) * len(event.requests)
    workers = map(WorkerId, from_column(event.workers))
    columns = zip(workers, event.blocks, event.prefill_tokens, begins_us, strict=True)
    return [
        (key, InFlight(worker, blocks, tokens, begins_us=begins))
        for key, (worker, blocks, tokens, begins) in zip(keys, columns, strict=True)
    ]


def request_weight(key: AttemptKey, entry: InFlight) -> int:
    """64 bits of a request in flight as restatements always named it: the hashes of its prompt and the time when its
    prefill begins have no part in it."""
    request, attempt = key
    return mix_repr(f"({request!r}, {attempt}, {entry.worker!r}, {entry.blocks}, {entry.prefill_tokens})")


def contents(part: ReplicaPart) -> int:
    """The sum that `ReplicaPart.contents` is kept at, made anew."""
    flying = sum(request_weight(key, entry) for key, entry in part.in_flight.items())
    routed = sum(count * _of_model(model) for model, count in part.routed.items())
    return flying + routed + sum(mix(worker, reasons) for worker, reasons in part.local.items())


_of_model = lru_cache(maxsize=1024)(mix)
"""Every decision adds it."""


def _identity(joined: ReplicaJoined) -> int:
    return mix(joined.name, joined.version, joined.address)
