"""Ahead: a replica's own events that it has not read back yet, as sums and sets keyed by request.

A replica must not wait for the log to see its own decisions. What it emits counts here at once; when the log gives
it back, it is folded there and leaves here, in the same order, so that the sum of both never jumps.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from core.events import (
    Event,
    ReplicaRestated,
    RequestFinished,
    RequestPrefilled,
    RequestRouted,
)
from core.ids import RequestId
from projections.requests import Replica, in_flight
from projections.tally import InFlight, Key, Tally


class _Effect(NamedTuple):
    key: Key | None
    added: InFlight | None
    taken: InFlight | None
    model: str


class Ahead:
    """What to add to the fold of this replica's own part to have it as it is now."""

    def __init__(self) -> None:
        self.tally = Tally()
        self.routed: dict[str, int] = {}
        self.computed: dict[Key, int] = {}
        """Requests whose prefill is over here, though the fold may still show them as pending; with a count of
        the events that say so."""
        self._entries: dict[Key, InFlight] = {}
        self._effects: deque[_Effect] = deque()

    def __repr__(self) -> str:
        return f"<Ahead {len(self._effects)} events>"

    def __len__(self) -> int:
        return len(self._effects)

    def emit(self, event: Event, folded: Replica | None) -> None:
        """The event counts from now on. `folded` is this replica's own part of the fold."""
        effect = self._effect(event, folded)
        if effect is None:
            return
        self._effects.append(effect)
        if effect.key is None:
            return
        if effect.taken:
            self.tally.subtract(effect.key, effect.taken)
            self.computed[effect.key] = self.computed.get(effect.key, 0) + 1
            self._entries.pop(effect.key, None)
        if effect.added:
            self.tally.add(effect.key, effect.added)
            self._entries[effect.key] = effect.added
        if effect.model:
            self.routed[effect.model] = self.routed.get(effect.model, 0) + 1

    def read_back(self, event: Event) -> None:
        """The log gave this event back: the fold has it now. Events come in the order they were emitted in."""
        if isinstance(event, ReplicaRestated):
            self._restated()
        elif isinstance(event, RequestRouted | RequestPrefilled | RequestFinished) and self._effects:
            self._undo(self._effects.popleft())

    def _undo(self, effect: _Effect) -> None:
        if effect.key is None:
            return
        if effect.added:
            self.tally.subtract(effect.key, effect.added)
            if self._entries.get(effect.key) == effect.added:
                del self._entries[effect.key]
        if effect.taken:
            self.tally.add(effect.key, effect.taken)
            left = self.computed[effect.key] - 1
            if left:
                self.computed[effect.key] = left
            else:
                del self.computed[effect.key]
        if effect.model:
            self.routed[effect.model] -= 1

    def _restated(self) -> None:
        """Everything emitted before the restatement is in it or was lost with it."""
        while self._effects:
            effect = self._effects.popleft()
            self._undo(effect)
            if effect.key is None:
                return

    def _effect(self, event: Event, folded: Replica | None) -> _Effect | None:
        match event:
            case RequestRouted():
                return _Effect((RequestId(event.request), event.attempt), in_flight(event), None, event.model)
            case RequestPrefilled():
                key = (RequestId(event.request), event.attempt)
                entry = self._entry(key, folded)
                return _Effect(key, entry.prefilled() if entry else None, entry, "")
            case RequestFinished():
                key = (RequestId(event.request), event.attempt)
                return _Effect(key, None, self._entry(key, folded), "")
            case ReplicaRestated():
                return _Effect(None, None, None, "")
            case _:
                return None

    def _entry(self, key: Key, folded: Replica | None) -> InFlight | None:
        found = self._entries.get(key)
        if found is None and folded is not None and not self.computed.get(key):
            found = folded.in_flight.get(key)
        return found
