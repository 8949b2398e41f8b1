"""AttemptRecords: the outcome of every attempt in the routing stream, and how long first tokens took."""

from __future__ import annotations

from collections import Counter
from typing import NewType

import msgspec

from core.events import (
    Event,
    ReplicaLeft,
    ReplicaLost,
    ReplicaRestated,
    RequestFinished,
    RequestPrefilled,
    RequestRejected,
    RequestRouted,
    UnknownEvent,
)
from core.events.routing import RequestQueued, RequestTurnedAway
from core.ids import LOST_SUFFIX, RequestId
from core.subjects import ROUTING
from projections.folds.in_flight import AttemptKey
from replay.recording.recording import RecordedFrame, Recording
from replay.whatif.first_token_fit import FirstTokenFit, FirstTokenSample, fit_first_tokens

NEVER = 1 << 38
"""A sequence that no stream reaches."""


RoutingPlace = NewType("RoutingPlace", int)
"""An event's place in the routing stream, as a number: places compare as events follow each other."""
NTH_BITS = 24


def place(seq: int, nth: int = -1) -> RoutingPlace:
    """Of the message's event of that number, from 0; without one, before all of them."""
    return RoutingPlace((seq << NTH_BITS) + nth + 1)


def seq_of(at: RoutingPlace) -> int:
    """Where its message stands."""
    return at >> NTH_BITS


ENDLESS = place(NEVER)


class AttemptRecord(msgspec.Struct):
    """One attempt, from its decision on."""

    replica: str
    at: RoutingPlace
    worker: str
    model: str
    prompt_tokens: int
    prefill_tokens: int
    queued: int
    """Prefill tokens in flight on the worker when this was routed, by the order of the log."""
    lowest: int
    """The lowest position in the routing stream that this decision or a later one was made at."""
    waited_ms: int = 0
    """In the router, before this decision; what it was held included."""
    prefilled: RoutingPlace = ENDLESS
    ended: RoutingPlace = ENDLESS
    cached_tokens: int = 0
    """What the engine took from its cache, if a first token came."""
    ttft_ms: int = -1
    """-1 if no first token came."""
    declined: bool = False
    """The worker did not take it, since it computed prompts of other replicas."""


class AttemptRecords:
    """See the module's text."""

    def __init__(self) -> None:
        self.rejected: list[int] = []
        """Where requests were refused, ascending."""
        self.fitted: dict[str, FirstTokenFit] = {}
        """By model: engines of two models take different times."""
        self._samples: dict[str, list[FirstTokenSample]] = {}
        self._lives: dict[tuple[int, str, int], AttemptRecord] = {}
        self._open: dict[str, dict[AttemptKey, AttemptRecord]] = {}
        self._came_ms: dict[tuple[str, str], int] = {}
        """When those came that wait in a router, by replica and request."""
        self._queued: Counter[str] = Counter()
        self._next: dict[str, int] = {}
        self._unknown: set[str] = set()
        """Replicas of which a message is missing: no fold counts their requests until they restate themselves."""

    def __repr__(self) -> str:
        return f"<AttemptRecords of {len(self._lives)} attempts>"

    @staticmethod
    def of(recording: Recording) -> AttemptRecords:
        """All that the recording has; some 20 us per message of the routing stream."""
        lives = AttemptRecords()
        if ROUTING in recording.streams:
            for frame in recording.frames(ROUTING):
                lives._take(frame)
        lowest = NEVER
        for record in reversed(lives._lives.values()):
            record.lowest = lowest = min(lowest, record.lowest)
        lives.fitted = {model: fit_first_tokens(samples) for model, samples in sorted(lives._samples.items())}
        return lives

    def of_attempt(self, seq: int, event: RequestRouted) -> AttemptRecord | None:
        """What came of the decision in the message there; None if that message repeats an earlier one."""
        return self._lives.get((seq, event.request, event.attempt))

    def between(self, start: int, end: int | None) -> int:
        """How many decisions stand from `start` up to `end` (not included)."""
        return sum(start <= seq and (end is None or seq < end) for seq, _, _ in self._lives)

    def rejected_between(self, start: int, end: int | None) -> int:
        """How many requests were refused there."""
        return sum(start <= seq and (end is None or seq < end) for seq in self.rejected)

    def _take(self, frame: RecordedFrame) -> None:
        if frame.message is None:
            return
        replica, source, n = frame.owner, frame.message.source, frame.message.n
        known = self._next.get(replica, n)
        if source == replica + LOST_SUFFIX:
            self._end_all(replica, place(frame.seq))
            return
        if source != replica or n < known:
            return  # somebody else's, or the same message once more
        if n > known:
            self._end_all(replica, place(frame.seq))
            self._unknown.add(replica)
        self._next[replica] = n + 1
        for nth, event in enumerate(frame.message.events):
            self._event(replica, place(frame.seq, nth), event)

    def _event(self, replica: str, at: RoutingPlace, event: Event | UnknownEvent) -> None:
        match event:
            case RequestRouted():
                self._routed(replica, at, event)
            case RequestPrefilled():
                self._prefilled(replica, at, event)
            case RequestFinished():
                key = RequestId(event.request), event.attempt
                self._end(replica, key, at, declined=event.outcome == "declined")
            case RequestRejected():
                self._came_ms.pop((replica, event.request), None)
                self.rejected.append(seq_of(at))
            case RequestQueued():
                self._came_ms.setdefault((replica, event.request), event.now_ms)
            case RequestTurnedAway():
                self._came_ms.pop((replica, event.request), None)
            case ReplicaRestated():
                self._unknown.discard(replica)
                kept = set(zip(event.requests, event.attempts, strict=True))
                for key in [key for key in self._open.get(replica, {}) if key not in kept]:
                    self._end(replica, key, at)
            case ReplicaLeft() | ReplicaLost():
                self._end_all(replica, at)
            case _:
                pass  # says nothing of requests

    def _routed(self, replica: str, at: RoutingPlace, event: RequestRouted) -> None:
        key = (RequestId(event.request), event.attempt)
        self._end(replica, key, at)
        record = self._lives[seq_of(at), event.request, event.attempt] = AttemptRecord(
            replica=replica,
            at=at,
            worker=event.worker,
            model=event.model,
            prompt_tokens=event.prompt_tokens,
            prefill_tokens=event.prefill_tokens,
            queued=self._queued[event.worker],
            lowest=event.cursor[ROUTING][1] if ROUTING in event.cursor else 0,
            waited_ms=max(0, event.now_ms - self._came_ms.pop((replica, event.request), event.now_ms)),
        )
        self._queued[event.worker] += event.prefill_tokens
        self._open.setdefault(replica, {})[key] = record
        if replica in self._unknown:
            self._end(replica, key, at)

    def _prefilled(self, replica: str, at: RoutingPlace, event: RequestPrefilled) -> None:
        record = self._open.get(replica, {}).get((RequestId(event.request), event.attempt))
        if record is None or record.prefilled != ENDLESS:
            return
        self._queued[record.worker] -= record.prefill_tokens
        record.prefilled, record.cached_tokens, record.ttft_ms = at, event.cached_tokens, event.ttft_ms
        if event.attempt == 0:  # a later one's time has in it what came before
            sent_ms = max(0, event.ttft_ms - record.waited_ms)
            sample = FirstTokenSample(record.prompt_tokens - event.cached_tokens, record.queued, sent_ms)
            self._samples.setdefault(record.model, []).append(sample)

    def _end(self, replica: str, key: AttemptKey, at: RoutingPlace, *, declined: bool = False) -> None:
        record = self._open.get(replica, {}).pop(key, None)
        if record is not None:
            record.ended, record.declined = at, declined
            if record.prefilled == ENDLESS:
                self._queued[record.worker] -= record.prefill_tokens

    def _end_all(self, replica: str, at: RoutingPlace) -> None:
        for key in list(self._open.get(replica, {})):
            self._end(replica, key, at)
