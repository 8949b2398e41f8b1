"""RoutingProjection: the routing stream folded into requests in flight per replica, and expected against real reuse."""

from __future__ import annotations

from typing import Any, assert_never

import msgspec

from core.codec import Message
from core.events import (
    DivergenceFound,
    LocalChanged,
    ReplicaJoined,
    ReplicaLeft,
    ReplicaLost,
    ReplicaReported,
    ReplicaRestated,
    RequestFinished,
    RequestPrefilled,
    RequestRejected,
    RequestRouted,
    RoutingEvent,
    SettingsChanged,
)
from core.ids import ReplicaId, RequestId, SourceId, WorkerId, from_column
from projections.chain import Chain, Link
from projections.kv import LOST_SUFFIX
from projections.projection import MASK64, mix
from projections.tally import InFlight, Key, Tally


class Reuse(msgspec.Struct):
    """What was expected of caches against what engines said."""

    requests: int = 0
    prompt_tokens: int = 0
    predicted_tokens: int = 0
    """Of requests whose first token came."""
    cached_tokens: int = 0


class Replica(msgspec.Struct):
    """One router's part."""

    replica: ReplicaId
    joined: ReplicaJoined | None = None
    ended: str = ""
    known: bool = True
    """False after a gap, until it restates itself."""
    chain: Chain = msgspec.field(default_factory=Chain)
    in_flight: dict[Key, InFlight] = msgspec.field(default_factory=dict)
    predicted: dict[Key, tuple[int, int]] = msgspec.field(default_factory=dict)
    """Predicted cached tokens and prompt tokens of requests whose first token has not come."""
    routed: dict[str, int] = msgspec.field(default_factory=dict)
    """Decisions since it joined or last restated itself, per model: what round-robin goes by."""
    reuse: Reuse = msgspec.field(default_factory=Reuse)
    local: dict[WorkerId, tuple[str, ...]] = msgspec.field(default_factory=dict)
    """What only it knows of workers: the reasons of LocalChanged."""
    settings: dict[str, Any] = msgspec.field(default_factory=dict)
    settings_revision: int = 0
    digest: int = 0
    """What this part adds to the projection's digest."""


class RoutingProjection:
    """The fold of the routing stream."""

    def __init__(self) -> None:
        self.replicas: dict[ReplicaId, Replica] = {}
        self.tally = Tally()
        self.unknown_events = 0
        self._digest = 0

    def __repr__(self) -> str:
        flying = sum(len(part.in_flight) for part in self.replicas.values())
        return f"<RoutingProjection {len(self.replicas)} replicas, {flying} in flight, digest {self._digest:016x}>"

    @property
    def digest(self) -> int:
        return self._digest

    @property
    def incomplete(self) -> int:
        return sum(not part.known for part in self.replicas.values() if not part.ended)

    def apply(self, owner: str, message: Message, digest: bytes) -> bool:
        """Folds one message of the replica `owner`."""
        replica = ReplicaId(owner)
        part = self.replicas.get(replica)
        if part is None:
            part = self.replicas[replica] = Replica(replica)
        changed = self._fold(part, message, digest)
        if changed:
            before, part.digest = part.digest, _part(part)
            self._digest = (self._digest - before + part.digest) & MASK64
        return changed

    def _fold(self, part: Replica, message: Message, digest: bytes) -> bool:
        if message.source == part.replica + LOST_SUFFIX:
            return self._lost(part, message)
        if message.source != SourceId(part.replica) or part.ended:
            return False
        link = part.chain.follow(message, digest)
        if link is Link.REPEAT:
            return False
        if link is Link.GAP:
            self._forget(part)
            part.known = False
        for event in message.events:
            if part.ended:
                break  # nothing follows an end, in its own message neither
            if isinstance(event, RoutingEvent):
                self._event(part, event)
            else:
                self.unknown_events += 1
        return True

    def _lost(self, part: Replica, message: Message) -> bool:
        for event in message.events:
            if isinstance(event, ReplicaLost) and not part.ended:
                self._end(part, f"lost: {event.reason}")
                return True
        return False

    def _event(self, part: Replica, event: RoutingEvent) -> None:
        match event:
            case ReplicaJoined():
                part.joined = event
            case ReplicaRestated():
                self._restated(part, event)
            case ReplicaLeft():
                self._end(part, f"left: {event.reason}")
            case ReplicaLost():
                pass  # counts only from its own source
            case RequestRejected() | ReplicaReported() | DivergenceFound():
                pass  # these leave no state
            case SettingsChanged():
                part.settings, part.settings_revision = event.settings, event.revision
            case LocalChanged():
                _local_changed(part, event)
            case RequestRouted() | RequestPrefilled() | RequestFinished():
                self._request(part, event)
            case _:
                assert_never(event)

    def _request(self, part: Replica, event: RequestRouted | RequestPrefilled | RequestFinished) -> None:
        match event:
            case RequestRouted():
                self._routed(part, event)
            case RequestPrefilled():
                self._prefilled(part, event)
            case RequestFinished():
                key = (RequestId(event.request), event.attempt)
                part.predicted.pop(key, None)
                self._take(part, key)
            case _:
                assert_never(event)

    def _routed(self, part: Replica, event: RequestRouted) -> None:
        part.routed[event.model] = part.routed.get(event.model, 0) + 1
        if part.known:
            key = (RequestId(event.request), event.attempt)
            part.predicted[key] = (event.predicted_cached_tokens, event.prompt_tokens)
            self._put(part, key, in_flight(event))

    def _prefilled(self, part: Replica, event: RequestPrefilled) -> None:
        key = (RequestId(event.request), event.attempt)
        predicted = part.predicted.pop(key, None)
        if predicted is not None:
            part.reuse.requests += 1
            part.reuse.predicted_tokens += predicted[0]
            part.reuse.prompt_tokens += predicted[1]
            part.reuse.cached_tokens += event.cached_tokens
        entry = self._take(part, key)
        if entry is not None:
            self._put(part, key, entry.prefilled())

    def _restated(self, part: Replica, event: ReplicaRestated) -> None:
        self._forget(part)
        part.known = True
        part.routed.clear()
        for key, entry in restated(event):
            self._put(part, key, entry)

    def _put(self, part: Replica, key: Key, entry: InFlight) -> None:
        self._take(part, key)
        part.in_flight[key] = entry
        self.tally.add(key, entry)

    def _take(self, part: Replica, key: Key) -> InFlight | None:
        entry = part.in_flight.pop(key, None)
        if entry is not None:
            self.tally.subtract(key, entry)
        return entry

    def _forget(self, part: Replica) -> None:
        for key in list(part.in_flight):
            self._take(part, key)
        part.predicted.clear()
        part.local.clear()

    def _end(self, part: Replica, reason: str) -> None:
        self._forget(part)
        part.known = True
        part.ended = reason


def _local_changed(part: Replica, event: LocalChanged) -> None:
    if event.reasons:
        part.local[WorkerId(event.worker)] = event.reasons
    else:
        part.local.pop(WorkerId(event.worker), None)


def in_flight(event: RequestRouted) -> InFlight:
    """What a routed request weighs until its end."""
    return InFlight(WorkerId(event.worker), event.blocks, event.prefill_tokens, event.hashes)


def restated(event: ReplicaRestated) -> list[tuple[Key, InFlight]]:
    """The requests in flight that a restatement names."""
    keys = zip(map(RequestId, event.requests), event.attempts, strict=True)
    columns = zip(map(WorkerId, from_column(event.workers)), event.blocks, event.prefill_tokens, strict=True)
    return [(key, InFlight(*values)) for key, values in zip(keys, columns, strict=True)]


def _part(part: Replica) -> int:
    # the head covers every byte that was folded; the counts show a fold that went wrong all the same
    chain = part.chain
    return mix(
        part.replica, chain.n_next, chain.head, part.known, part.ended, len(part.in_flight), part.reuse.cached_tokens
    )
