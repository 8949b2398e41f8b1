"""RecordedFleet: the workers of a recording that answer requests for one model, with their lives."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import NamedTuple

import msgspec

from core.errors import CallerError
from core.events import Event, UnknownEvent, WorkerJoined, WorkerLeft, WorkerLost
from core.events.kv import DECODE
from core.ids import LOST_SUFFIX, WorkerId
from core.subjects import is_kv, owner
from replay.recording.recording import Recording
from replay.simulate.options import FOREVER, WORKERS_MAX, WorkerLife
from replay.simulate.recorded_requests import UNKNOWN_TIME, RecordedRequests

US_PER_MS = 1000
ALWAYS = -(1 << 53)
"""Start of a worker that was there when the record begins."""


class RecordedWorker(msgspec.Struct):
    """One worker, from its start to its end, in milliseconds of the log's clock."""

    worker: WorkerId
    joined: WorkerJoined
    from_ms: int
    until_ms: int = UNKNOWN_TIME
    """Time at which the log shows its end."""
    lost: bool = False
    """Another process reported its end."""


class RecordedFleet(NamedTuple):
    """The workers of a recording that answer requests for one model."""

    lives: list[RecordedWorker]
    """In the order in which they began."""
    names: list[str]
    """By place: lives of one name follow each other in one place."""
    warm: bool
    """Caches held blocks when the record begins."""

    @property
    def capacity_blocks(self) -> int:
        """Of most of them."""
        return Counter(life.joined.capacity_blocks for life in self.lives).most_common(1)[0][0]

    @property
    def context_max(self) -> int:
        """The longest of any."""
        return max(life.joined.context_max for life in self.lives)

    def place_of(self, worker: str) -> int:
        """Place of the worker; -1 for one that the record does not show."""
        for life in self.lives:
            if life.worker == worker:
                return self.names.index(_name(life))
        return -1

    def without(self, workers: Collection[WorkerId]) -> RecordedFleet:
        """The others. CallerError if there are none."""
        return _fleet([life for life in self.lives if life.worker not in workers], warm=self.warm)

    def worker_lives(self, past: RecordedRequests, *, as_engine: bool = False) -> tuple[WorkerLife, ...]:
        """Lives of all workers, for a run that begins with the first request. A lost worker ends when the first of its
        requests was cut off, not when its loss was written. Caches have their recorded size, or the engine's."""
        first_breaks = _first_breaks(past)
        found = (
            self._worker_life(life, past.start_ms, first_breaks.get(life.worker, life.until_ms)) for life in self.lives
        )
        return tuple(each._replace(capacity_blocks=0) if as_engine else each for each in found)

    def _worker_life(self, life: RecordedWorker, start_ms: int, broke_ms: int) -> WorkerLife:
        ended = life.until_ms != UNKNOWN_TIME
        until_ms = min(broke_ms, life.until_ms) if life.lost else life.until_ms
        return WorkerLife(
            place=self.names.index(_name(life)),
            from_us=max(0, life.from_ms - start_ms) * US_PER_MS,
            until_us=max(0, until_ms - start_ms) * US_PER_MS if ended else FOREVER,
            reported_us=(life.until_ms - start_ms) * US_PER_MS if life.lost else FOREVER,
            capacity_blocks=life.joined.capacity_blocks,
        )


def read_fleet(recording: Recording, past: RecordedRequests) -> RecordedFleet:
    """Those that served the model of these requests; some 10 us per kv message. CallerError if none joined."""
    reader = _WorkerReader(past.model)
    start = recording.start
    if any(start.values()):
        for member in recording.state_before(start).alive():
            if member.joined is not None:
                reader.read(member.worker, ALWAYS, (member.joined,))
    for stream in recording.streams:
        if is_kv(stream):
            for record, message in recording.messages(stream):
                if message.source in {who := owner(record.subject), who + LOST_SUFFIX}:
                    reader.read(WorkerId(who), record.time_ms, message.events)
    lives = [life for life in reader.lives.values() if life.until_ms == UNKNOWN_TIME or life.until_ms > past.start_ms]
    if not lives:
        raise CallerError("the record does not tell what its workers were like: take one that reaches back further")
    return _fleet(lives, warm=any(start.values()))


def _fleet(lives: list[RecordedWorker], *, warm: bool) -> RecordedFleet:
    if not lives:
        raise CallerError("no worker is left to run the requests on: name fewer with --without")
    names = sorted({_name(life) for life in lives})
    if len(names) > WORKERS_MAX:
        raise CallerError(f"{len(names)} workers are too many: {WORKERS_MAX} at most can be simulated")
    return RecordedFleet(sorted(lives, key=lambda life: (life.from_ms, _name(life), life.worker)), names, warm)


class _WorkerReader:
    def __init__(self, model: str) -> None:
        self.lives: dict[WorkerId, RecordedWorker] = {}
        self._model = model

    def read(self, worker: WorkerId, time_ms: int, events: tuple[Event | UnknownEvent, ...]) -> None:
        """Applies events of the worker or about it; a repeated join changes nothing."""
        for event in events:
            match event:
                case WorkerJoined() if event.model == self._model and event.role == DECODE:
                    self.lives.setdefault(worker, RecordedWorker(worker, event, time_ms))
                case WorkerLeft() | WorkerLost() if worker in self.lives:
                    life = self.lives[worker]
                    if life.until_ms == UNKNOWN_TIME:
                        life.until_ms, life.lost = time_ms, isinstance(event, WorkerLost)


def _name(life: RecordedWorker) -> str:
    return life.joined.name or life.worker


def _first_breaks(past: RecordedRequests) -> dict[str, int]:
    """By worker, the time at which it first broke off in the middle of a request."""
    found: dict[str, int] = {}
    for it in past.requests:
        for at, timing in enumerate(it.timings):
            broke = at + 1 < len(it.timings) or it.outcome == "worker_lost"
            if broke and timing.end_ms != UNKNOWN_TIME and not timing.declined:
                found[timing.worker] = min(found.get(timing.worker, timing.end_ms), timing.end_ms)
    return found
