"""Excerpt messages: the messages of a recording that an excerpt of one request has.

Its own messages are all taken: those that name the request, each with the next one of its replica, which proves it;
those of its replica between a decision's cursor and the decision, which count in it; and the message at each place of
the cursor. The others show what went on beside it, and are taken in the order below as long as they fit: messages that
stood in the log and were not read, cache events behind the cursor that touch its blocks, the last word of each
candidate and the next one, jobs, other requests on its worker, and earlier cache events that touch its blocks.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import NamedTuple

from core.codec import decode_message
from core.errors import Corrupt
from core.events import (
    BlocksRemoved,
    BlocksStored,
    CacheRestated,
    Event,
    KvEvent,
    RequestRejected,
    RequestRouted,
    UnknownEvent,
)
from core.ids import SourceId, StreamName, from_column
from core.prompt import hashes_from_bytes
from core.subjects import JOBS, LOAD, ROUTING, is_kv, owner
from replay.explain.cache_prediction import LATE_MS
from replay.explain.freshness import NEAR
from replay.explain.waiting import NEAR_MS
from replay.recording.recording import Recording, last_messages
from replay.recording.request_history import PLACES, RequestAttempt
from streams.log import Record

BESIDE_BYTES = 640 * 1024
"""Payloads of messages beside the request's own, before they are packed: with its own and the states a file has under
1 MB."""
SEARCH_MAX = 65_536
"""Messages of one stream read on each side of a decision."""

Place = tuple[StreamName, int]
"""A stream, and the sequence of a message in it."""


class ExcerptRequest(NamedTuple):
    """The request of an excerpt, by the recording."""

    tries: list[RequestAttempt]
    """All attempts under its id, in all of its uses, and refusals."""
    decisions: list[tuple[RequestAttempt, RequestRouted | RequestRejected]]
    """Those of its last use, each with its event, prompts whole."""
    named: Collection[str]
    """Ids of other requests that have a part in its explanation."""


class ExcerptMessages:
    """The places of the messages; payloads are read again when they are written."""

    def __init__(self, recording: Recording, request: ExcerptRequest) -> None:
        self.places: set[Place] = set()
        self.left_out = 0
        """Messages that did not fit."""
        self._recording = recording
        self._request = request
        self._bytes = 0
        """Of the payloads of messages beside its own."""
        self._ids = {tried.request for tried in request.tries}
        self._workers = {tried.worker for tried, _ in request.decisions if tried.worker}
        self._end = max(self._last_seq(tried) for tried in request.tries)
        """Behind this message of the routing stream nothing is about the request."""
        self.places.update(self._with_courses(self._own()))
        for group in self._beside():
            self._fit(group)

    def __repr__(self) -> str:
        return f"<ExcerptMessages: {len(self.places)} of {self._recording!r}>"

    def _fit(self, group: Collection[Place]) -> None:
        """All of these are taken, or none: each shows something only with the others."""
        new = set(group) - self.places
        size = sum(len(record.payload) for record in map(self._record, new) if record is not None)
        if self._bytes + size > BESIDE_BYTES:
            self.left_out += len(new)
            return
        self._bytes += size
        self.places |= new

    def _record(self, place: Place) -> Record | None:
        return self._recording.archive.at(*place)

    # --- its own -------------------------------------------------------------------------------------------------

    def _own(self) -> Iterator[Place]:
        for record in self._recording.archive.read(ROUTING, self._first_seq(), self._end + 1):
            if self._names(record):
                yield ROUTING, record.seq
                yield from self._next(ROUTING, record.seq, owner(record.subject))
        for tried, event in self._request.decisions:
            yield from self._cursor(event)
            for record in self._recording.archive.read(ROUTING, self._read_up_to(event) + 1, tried.seq):
                if owner(record.subject) == tried.replica:
                    yield ROUTING, record.seq

    def _last_seq(self, tried: RequestAttempt) -> int:
        return max(tried.at, tried.prefilled_at, tried.ended_at, *self._recording.requests.delays_of(tried)) // PLACES

    def _first_seq(self) -> int:
        known = (seq for tried in self._request.tries for seq in (tried.seq, tried.queued_seq, tried.migrated_seq))
        return min(seq for seq in known if seq)

    def _names(self, record: Record) -> bool:
        if not any(each.encode() in record.payload for each in self._ids):
            return False
        return any(getattr(event, "request", None) in self._ids for event in _events(record))

    def _next(self, stream: StreamName, seq: int, source: str) -> Iterator[Place]:
        """The next message on the source's subject, if there is one near."""
        for record in self._recording.archive.read(stream, seq + 1, seq + SEARCH_MAX):
            if owner(record.subject) == source:
                yield stream, record.seq
                return

    def _cursor(self, event: RequestRouted | RequestRejected) -> list[Place]:
        """The places of the decision's cursor that the recording has."""
        streams = self._recording.streams
        named = [(StreamName(name), epoch, seq) for name, (epoch, seq) in event.cursor.items()]
        span = self._recording.archive.span
        return [(name, seq) for name, epoch, seq in named if name in streams and span(name).epoch == epoch]

    def _read_up_to(self, event: RequestRouted | RequestRejected) -> int:
        return next((seq for stream, seq in self._cursor(event) if stream == ROUTING), self._recording.start[ROUTING])

    def _with_courses(self, places: Iterable[Place]) -> set[Place]:
        """These messages, and where they decide about others on the request's workers, the first tokens and the ends
        of those: without them these others would seem to be under way."""
        found, left = set[Place](), list(places)
        while left:
            place = left.pop()
            if place in found:
                continue
            found.add(place)
            if place[0] == ROUTING:
                for row in self._recording.requests.span(place[1], place[1] + 1):
                    left += self._course(self._recording.requests.attempt(row))
        return found

    def _course(self, other: RequestAttempt) -> Iterator[Place]:
        if other.worker in self._workers:
            for number in (other.at, other.prefilled_at, other.ended_at):
                if 0 < number // PLACES <= self._end:
                    yield ROUTING, number // PLACES

    # --- beside it -----------------------------------------------------------------------------------------------

    def _beside(self) -> Iterator[Collection[Place]]:
        """Messages that belong together, the most telling first."""
        decisions = self._request.decisions
        for tried, event in decisions:
            yield from self._clock(tried)
            yield from ([place] for place in self._unread(tried, event))
        for tried, event in decisions:
            if isinstance(event, RequestRouted):
                yield from ([place] for place in self._touching(tried, event))
                yield from ([place] for place in self._words(event))
        yield from ([place] for place in self._jobs())
        for tried, _ in decisions:
            yield from map(self._with_courses, self._others(tried))
        for _, event in decisions:
            if isinstance(event, RequestRouted):
                yield from ([place] for place in self._touched_before(event))

    def _clock(self, tried: RequestAttempt) -> Iterator[Collection[Place]]:
        """The replica's message near the decision that reached the log soonest: by it its clock is compared."""
        near = self._recording.messages(ROUTING, max(1, tried.seq - NEAR), tried.seq + NEAR)
        own = [(record.time_ms - message.sent_ms, record.seq) for record, message in near if _is_of(message, tried)]
        if own:
            yield self._with_courses([(ROUTING, min(own)[1])])

    def _unread(self, tried: RequestAttempt, event: RequestRouted | RequestRejected) -> Iterator[Place]:
        """Messages of workers that stood in the log when the decision was stored, and were not read."""
        for stream, seq in self._cursor(event):
            if is_kv(stream):
                for record in self._recording.archive.read(stream, seq + 1, seq + SEARCH_MAX):
                    if record.time_ms > tried.time_ms:
                        break
                    yield stream, record.seq

    def _touching(self, tried: RequestAttempt, event: RequestRouted) -> Iterator[Place]:
        """Cache events behind the cursor that touch the prompt's blocks, and all others of its worker that are no
        stores and removals, until the engine had begun with it."""
        prompt, until_ms = frozenset(hashes_from_bytes(event.hashes)), max(tried.prefilled_ms, tried.time_ms) + LATE_MS
        for stream, seq in self._cursor(event):
            if is_kv(stream):
                for record in self._recording.archive.read(stream, seq + 1, seq + SEARCH_MAX):
                    if record.time_ms > until_ms:
                        break
                    if _touches(record, prompt, owner(record.subject) == tried.worker):
                        yield stream, record.seq

    def _words(self, event: RequestRouted) -> Iterator[Place]:
        """The last message of each candidate before the cursor, and the next one, which proves its place there."""
        workers = set(from_column(event.candidates))
        for stream, seq in self._cursor(event):
            if is_kv(stream) or stream == LOAD:
                last = last_messages(self._recording.archive, stream, seq, workers)
                yield from ((stream, at.seq) for at in last.values())
                for worker in sorted(last):
                    yield from self._next(stream, seq, worker)

    def _jobs(self) -> Iterator[Place]:
        """Messages of the prefill jobs of the request."""
        if JOBS not in self._recording.streams:
            return
        first_ms = min(tried.time_ms for tried, _ in self._request.decisions)
        needles = {each.encode() for each in self._ids}
        start = self._recording.archive.seek(JOBS, first_ms - LATE_MS)
        for record in self._recording.archive.read(JOBS, start, start + SEARCH_MAX):
            if any(needle in record.payload for needle in needles):
                yield JOBS, record.seq
                needles |= {job.encode() for job in _jobs_of(record, self._ids)}

    def _others(self, tried: RequestAttempt) -> Iterator[Collection[Place]]:
        """Requests that have a part in the explanation, and those on the same worker when it was routed or soon after,
        the latest first; each with its course."""
        requests = self._recording.requests
        named = [each for request in self._request.named for each in requests.attempts(request)]
        near = [*reversed(requests.before(tried)), *requests.soon_after(tried, NEAR_MS)] if tried.worker else []
        for other in [*named, *near]:
            numbers = [number // PLACES for number in (other.at, other.prefilled_at, other.ended_at)]
            seqs = (*numbers, other.queued_seq, other.held_seq)
            yield [(ROUTING, seq) for seq in seqs if 0 < seq <= self._end]

    def _touched_before(self, event: RequestRouted) -> Iterator[Place]:
        """Cache events up to the cursor that touch the prompt's blocks, the newest first."""
        prompt = frozenset(hashes_from_bytes(event.hashes))
        for stream, seq in self._cursor(event):
            if is_kv(stream):
                records = self._recording.archive.read(stream, max(1, seq - SEARCH_MAX), seq + 1)
                touching = [record.seq for record in records if _touches(record, prompt, is_its_worker=False)]
                yield from ((stream, at) for at in reversed(touching))


def _is_of(message: object, tried: RequestAttempt) -> bool:
    return getattr(message, "source", None) == SourceId(tried.replica)


def _events(record: Record) -> list[Event | UnknownEvent]:
    try:
        return list(decode_message(record.payload).events)
    except Corrupt:
        return []


def _touches(record: Record, prompt: frozenset[int], is_its_worker: bool) -> bool:
    """True if an event of the message is about blocks of the prompt, or changes the worker's cache otherwise."""
    for event in _events(record):
        if isinstance(event, BlocksStored | BlocksRemoved | CacheRestated):
            if not prompt.isdisjoint(hashes_from_bytes(event.hashes)):
                return True
        elif is_its_worker and isinstance(event, KvEvent):
            return True
    return False


def _jobs_of(record: Record, requests: Collection[str]) -> Iterator[str]:
    for event in _events(record):
        if getattr(event, "request", None) in requests and (job := getattr(event, "job", "")):
            yield job
