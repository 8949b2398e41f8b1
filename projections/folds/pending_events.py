"""PendingEvents: a replica's own events that it has not read back yet, as sums and sets keyed by request.

A replica must not wait for the log to see its own decisions. What it emits counts here at once; when the log gives
it back, it is folded there and leaves here, in the same order, so that the sum of both never jumps.

An event dropped before it was sealed never comes back. A restatement follows it, which replaces everything before
it, here as in the fold; so what is ahead of a cursor after a restatement depends on the log alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeVar

import msgspec

from core.events import (
    Event,
    ReplicaRestated,
    RequestFinished,
    RequestPrefilled,
    RequestRouted,
)
from core.ids import WorkerId
from projections.folds.in_flight import AttemptKey, InFlight, InFlightLoad
from projections.folds.routing_fold import ReplicaPart, in_flight, restated_requests

PENDING_PROMPTS_MAX = 64
"""Prompts that count as held by their workers before the log gives their first tokens back; more, and the oldest do not
until it does."""
EventKey = tuple[type, Any]
"""Key of an event among this replica's events with an effect here."""
T = TypeVar("T")
_UNCHANGED: Mapping[str, int] = MappingProxyType({})


InFlightEntry = tuple[AttemptKey, InFlight]


class _Effect(msgspec.Struct, frozen=True):
    event: Event
    name: EventKey
    taken: tuple[InFlightEntry, ...]
    added: tuple[InFlightEntry, ...]
    routed: Mapping[str, int]
    computed: tuple[AttemptKey, InFlight, InFlight] | None = None
    """The request of a first token, as it counted before that token and as it counts after it."""


_TABLES = {
    "_entries": "requests in flight",
    "computed": "first tokens",
    "computed_on": "workers with first tokens",
    "_names": "kinds of events",
    "believed": "prompts held by workers",
}
"""Tables of PendingEvents that follow from its effects, with their names for people."""


class PendingEvents:
    """Events of this replica that the fold lacks, as additions to its own part of the fold."""

    def __init__(self) -> None:
        self.in_flight_load = InFlightLoad()
        self.routed: dict[str, int] = {}
        self.computed: dict[AttemptKey, int] = {}
        """Requests that the fold may still show as being prefilled though they are not, here; with a count of the
        events that say so."""
        self.computed_on: dict[WorkerId, int] = {}
        """The workers of these, counted alike."""
        self.believed: deque[InFlight] = deque(maxlen=PENDING_PROMPTS_MAX)
        """Prompts that workers are believed to hold (`projections.folds.approximate_index`), in the order of their
        first tokens."""
        self._entries: dict[AttemptKey, InFlight] = {}
        self._effects: deque[_Effect] = deque()
        self._names: dict[EventKey, int] = {}
        """Number of effects by their key."""

    def __repr__(self) -> str:
        return f"<PendingEvents {len(self._effects)} events>"

    def __len__(self) -> int:
        return len(self._effects)

    def emit(self, event: Event, folded: ReplicaPart | None) -> None:
        """The event counts from now on. `folded` is this replica's own part of the fold."""
        effect = self._effect(event, folded)
        if effect is not None:
            self._apply(effect)

    def differences(self) -> list[str]:
        """Texts for sums and sets that are others than the events give that wait. O(events)."""
        anew = self._counted_anew()
        workers = self.in_flight_load.workers() | anew.in_flight_load.workers()
        found = [f"own events: {text}" for text in self.in_flight_load.differences(anew.in_flight_load, workers)]
        mine, given = vars(self), vars(anew)
        differ = [text for name, text in _TABLES.items() if mine[name] != given[name]]
        if _without_zeros(self.routed) != _without_zeros(anew.routed):
            differ.append("decisions per model")
        return found + [f"own events: {text} are others than they give" for text in differ]

    def recount(self) -> None:
        """All sums and sets follow from the events that wait."""
        vars(self).update(vars(self._counted_anew()))

    def forget(self) -> None:
        """No event waits."""
        vars(self).update(vars(PendingEvents()))

    def refold(self, lacking: Sequence[Event], folded: ReplicaPart | None) -> None:
        """The fold has become another, with `folded` as this replica's part: the events `lacking`, which were read back
        and are not in it, count here again, and those that wait count on that part. O(events)."""
        events = [*lacking, *(effect.event for effect in self._effects)]
        self.forget()
        for event in events:
            self.emit(event, folded)

    def _counted_anew(self) -> PendingEvents:
        anew = PendingEvents()
        for effect in self._effects:
            anew._apply(effect)
        return anew

    def _apply(self, effect: _Effect) -> None:
        name = effect.name
        self._effects.append(effect)
        self._names[name] = self._names.get(name, 0) + 1
        if name[0] is ReplicaRestated:
            self.believed.clear()  # some of it may rest on events that were dropped
        for key, entry in effect.taken:
            self.in_flight_load.subtract(entry)
            self._count_computed(key, entry)
            self._entries.pop(key, None)
        for key, entry in effect.added:
            self.in_flight_load.add(key, entry)
            self._entries[key] = entry
        if effect.computed is not None:
            key, before, after = effect.computed
            self.in_flight_load.computed(before)
            self._count_computed(key, before)
            self._entries[key] = after
            if before.believed is not None:
                self.believed.append(before)
        if effect.routed:
            self._count(effect.routed, 1)

    def read_back(self, event: Event) -> None:
        """The log gave this event back: the fold has it now, and what was emitted before it will not come any more.

        An event that was not emitted here changes nothing. Of two restatements that say the same, the earlier may be
        taken for the later; what is left then adds up to nothing, and goes with the next event. O(1) for each event
        that leaves, and for one that was not emitted: after an outage many of those come while very much is ahead.
        """
        name = _event_key(event)
        if name is None or name not in self._names:
            return
        read = None
        while read != name:
            effect = self._effects.popleft()
            self._undo(effect)
            read = effect.name
            _less(self._names, read)

    def _undo(self, effect: _Effect) -> None:
        for key, entry in effect.added:
            self.in_flight_load.subtract(entry)
            if self._entries.get(key) is entry:
                del self._entries[key]
        for key, entry in effect.taken:
            self.in_flight_load.weigh(entry, 1)  # the sums alone: what is being prefilled is the fold's to say
            _less(self.computed, key)
            _less(self.computed_on, entry.worker)
        if effect.computed is not None:
            key, before, after = effect.computed
            self.in_flight_load.weigh_prefill(before, 1)
            _less(self.computed, key)
            _less(self.computed_on, before.worker)
            if self._entries.get(key) is after:
                del self._entries[key]
            if self.believed and self.believed[0] is before:
                self.believed.popleft()
        if effect.routed:
            self._count(effect.routed, -1)

    def _count_computed(self, key: AttemptKey, entry: InFlight) -> None:
        self.computed[key] = self.computed.get(key, 0) + 1
        self.computed_on[entry.worker] = self.computed_on.get(entry.worker, 0) + 1

    def _count(self, routed: Mapping[str, int], sign: int) -> None:
        for model, count in routed.items():
            self.routed[model] = self.routed.get(model, 0) + sign * count

    def _effect(self, event: Event, folded: ReplicaPart | None) -> _Effect | None:
        name = _event_key(event)
        if name is None:
            return None
        if isinstance(event, ReplicaRestated):
            taken = tuple(self._all(folded).items())
            return _Effect(event, name, taken, tuple(dict(restated_requests(event)).items()), self._uncounted(folded))
        key: AttemptKey = name[1]
        entry = self._entries.get(key)
        if entry is None and folded is not None and key not in self.computed:
            entry = folded.in_flight.get(key)
        gone = () if entry is None else ((key, entry),)
        if type(event) is RequestRouted:
            return _Effect(event, name, gone, ((key, in_flight(event)),), {event.model: 1})
        if type(event) is RequestFinished or entry is None:
            return _Effect(event, name, gone, (), _UNCHANGED)
        return _Effect(event, name, (), (), _UNCHANGED, (key, entry, entry.prefilled()))

    def _all(self, folded: ReplicaPart | None) -> dict[AttemptKey, InFlight]:
        """Everything in flight on this replica now."""
        known = folded.in_flight if folded is not None else {}
        return {key: entry for key, entry in known.items() if key not in self.computed} | self._entries

    def _uncounted(self, folded: ReplicaPart | None) -> dict[str, int]:
        """Differences that take the counts of decisions back to 0."""
        known = folded.routed if folded is not None else {}
        return {model: -known.get(model, 0) - self.routed.get(model, 0) for model in known.keys() | self.routed.keys()}


def _without_zeros(counts: Mapping[str, int]) -> dict[str, int]:
    return {name: count for name, count in counts.items() if count}


def _less(counts: dict[T, int], what: T) -> None:
    """It counts once less; at 0 it is not there."""
    left = counts[what] - 1
    if left:
        counts[what] = left
    else:
        del counts[what]


def _event_key(event: Event) -> EventKey | None:
    kind = type(event)
    if kind in _OF_REQUESTS:
        return kind, (event.request, event.attempt)  # type: ignore[union-attr]  # these have both: their key
    if isinstance(event, ReplicaRestated):
        return kind, msgspec.structs.astuple(event)
    return None


_OF_REQUESTS = frozenset({RequestRouted, RequestPrefilled, RequestFinished})
