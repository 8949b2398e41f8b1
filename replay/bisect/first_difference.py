"""FirstDifference: the first decision that does not follow from the log, and what happened just before it."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import NamedTuple

import msgspec

from core.events import (
    AdapterEvicted,
    AdapterLoaded,
    AdapterUnloaded,
    BlocksRemoved,
    BlocksStored,
    CacheCleared,
    CacheRestated,
    Event,
    LoadReported,
    LocalChanged,
    PoolJoined,
    PoolLeft,
    PoolLost,
    ReplicaRestated,
    RequestFinished,
    RequestPrefilled,
    RequestRejected,
    RequestRouted,
    WorkerJoined,
    WorkerLeft,
    WorkerLost,
)
from core.ids import ReplicaId, StreamName, from_column
from core.prompt import hashes_from_bytes
from core.subjects import LOAD, ROUTING, is_kv
from replay.parallel import Progress
from replay.playback.playback import Playback
from replay.recording.gaps import Gaps
from replay.recording.recording import Recording
from replay.verify.chain_proof import gaps_of
from replay.verify.judge import DIFFERENT, DecisionDifference, verdicts
from replay.verify.verify import PROGRESS_EVERY

NEAR_MAX = 20
"""Events before a decision that are listed, at most."""
CACHE_TERMS = frozenset({"overlap", "overlap_all", "known"})
BUSY_TERMS = frozenset(
    {"pending", "active_blocks", "active_requests", "prefill", "wait_us", "wait", "blocks", "predicted"}
)


class NearbyEvent(msgspec.Struct, frozen=True, kw_only=True):
    """An event between two decisions of a replica that touches the term in which the second one differs."""

    stream: str
    seq: int
    time_ms: int
    source: str
    n: int
    event: str
    what: str


class FirstDifference(msgspec.Struct, frozen=True, kw_only=True):
    """The first decision that does not follow from the log."""

    difference: DecisionDifference
    followed: int
    """Decisions before it that do."""
    not_judged: int
    before: str | None
    """The replica's decision before it, as `routing:SEQ`; None if it is its first here."""
    near: list[NearbyEvent]
    """Events between the two decisions that touch the term; the last NEAR_MAX."""
    near_total: int
    inputs_equal: bool
    """All inputs of the decision are the same, so the rules differ."""


class _EventPlace(NamedTuple):
    seq: int
    number: int


def find_first_difference(
    recording: Recording,
    start: int = 1,
    end: int | None = None,
    *,
    replicas: Collection[ReplicaId] | None = None,
    gaps: Gaps | None = None,
    progress: Progress = lambda _done, _of: None,
) -> FirstDifference | None:
    """None if every decision in the range follows from the log, or cannot be judged."""
    last: dict[str, _EventPlace] = {}
    followed = not_judged = 0
    total = len(recording.requests.span(start, end))
    gaps = gaps_of(recording) if gaps is None else gaps
    for number, verdict in enumerate(verdicts(Playback(recording, start, end, replica=replicas, gaps=gaps))):
        if number % PROGRESS_EVERY == 0:
            progress(number, total)
        if verdict.verdict == DIFFERENT and verdict.difference is not None:
            progress(total, total)
            place, before = _EventPlace(verdict.seq, verdict.number), last.get(verdict.replica)
            near = list(_near(recording, verdict.difference, place, before))
            return FirstDifference(
                difference=verdict.difference,
                followed=followed,
                not_judged=not_judged,
                before=None if before is None else f"{ROUTING}:{before.seq}",
                near=near[-NEAR_MAX:],
                near_total=len(near),
                inputs_equal=verdict.difference.term in {"rules", "cost", "choice", "order", "failure"},
            )
        followed += not verdict.reason
        not_judged += bool(verdict.reason)
        last[verdict.replica] = _EventPlace(verdict.seq, verdict.number)
    progress(total, total)
    return None


def _near(
    recording: Recording, it: DecisionDifference, place: _EventPlace, before: _EventPlace | None
) -> Iterator[NearbyEvent]:
    event, earlier = _decision(recording, place), None if before is None else _decision(recording, before)
    streams = _streams(recording, it.term)
    for stream in streams:
        start = earlier.cursor.get(stream, (0, 0))[1] if earlier is not None else 0
        yield from _nearby_events(recording, stream, start, event.cursor.get(stream, (0, 0))[1], it, event)
    if ROUTING in streams:  # what it said itself counts at once, wherever it stands
        cursor = event.cursor.get(ROUTING, (0, 0))[1]
        yield from _nearby_events(recording, ROUTING, max(cursor, before.seq - 1 if before else 0), it.seq, it, event)


def _decision(recording: Recording, place: _EventPlace) -> RequestRouted | RequestRejected:
    record = recording.archive.at(ROUTING, place.seq)
    assert record is not None
    message = recording.frame(record).message
    assert message is not None
    event = recording.columns.whole(place.seq, place.number, message.events[place.number])
    assert isinstance(event, RequestRouted | RequestRejected)
    return event


def _streams(recording: Recording, term: str) -> list[StreamName]:
    """Streams with events that can change the term."""
    if term in CACHE_TERMS:
        return [stream for stream in recording.streams if is_kv(stream)]
    if term in BUSY_TERMS:
        return [ROUTING] if ROUTING in recording.streams else []
    if term == "waiting":
        return [LOAD] if LOAD in recording.streams else []
    return recording.streams if term in {"candidates", "excluded", "digest"} else []


def _nearby_events(
    recording: Recording,
    stream: StreamName,
    start: int,
    end: int,
    it: DecisionDifference,
    event: RequestRouted | RequestRejected,
) -> Iterator[NearbyEvent]:
    """Events after `start`, up to `end`, that touch the term; beyond the cursor only the replica's own."""
    cursor = event.cursor.get(stream, (0, 0))[1]
    for frame in recording.frames(stream, start + 1, end + 1):
        if frame.message is None or (frame.seq > cursor and frame.owner != it.replica):
            continue
        for change in frame.message.events:
            what = _touches(recording, frame.owner, change, it, event)  # type: ignore[arg-type]
            if what:
                yield NearbyEvent(
                    stream=stream,
                    seq=frame.seq,
                    time_ms=frame.time_ms,
                    source=frame.message.source,
                    n=frame.message.n,
                    event=type(change).__name__,
                    what=what,
                )


def _touches(
    recording: Recording, owner: str, change: Event, it: DecisionDifference, event: RequestRouted | RequestRejected
) -> str:
    """The effect of the event on the term, in a few words; empty if none."""
    if isinstance(change, RequestRouted | RequestPrefilled | RequestFinished | ReplicaRestated):
        return _busy(recording, change, it)
    name = recording.names.worker
    if isinstance(change, LocalChanged):
        about = owner == it.replica and it.term in {"excluded", "digest", "prefill", "candidates"}
        return (
            f"{name(change.worker)} is {', '.join(change.reasons) or 'well again'} to {it.replica_name}"
            if about
            else ""
        )
    return "" if it.term_worker and owner != it.term_worker else _of_worker(name(owner), change, event)


def _of_worker(worker: str, change: Event, event: RequestRouted | RequestRejected) -> str:
    match change:
        case WorkerJoined() | WorkerLeft() | WorkerLost() | PoolJoined() | PoolLeft() | PoolLost():
            return f"{worker}: {type(change).__name__}"
        case AdapterLoaded() | AdapterEvicted() | AdapterUnloaded():
            return f"{worker}: {type(change).__name__} {change.name}"
        case BlocksStored() | BlocksRemoved() | CacheRestated():
            return _blocks(change, worker, event)
        case CacheCleared():
            return f"{worker} cleared its cache"
        case LoadReported():
            return f"{worker}: {change.waiting} waiting{', draining' if change.draining else ''}"
        case _:
            return ""


def _blocks(change: BlocksStored | BlocksRemoved | CacheRestated, worker: str, event: Event) -> str:
    """Of the prompt alone: events of other blocks change no overlap."""
    if isinstance(change, CacheRestated):
        return f"{worker} restated its cache, part {change.part + 1} of {change.parts}"
    prompt = set(hashes_from_bytes(event.hashes)) if isinstance(event, RequestRouted) else set[int]()
    touched = len(prompt.intersection(hashes_from_bytes(change.hashes)))
    if not touched:
        return ""
    verb = "stored" if isinstance(change, BlocksStored) else "removed"
    return f"{worker} {verb} {touched} blocks of this prompt ({change.tier})"


def _busy(
    recording: Recording,
    change: RequestRouted | RequestPrefilled | RequestFinished | ReplicaRestated,
    it: DecisionDifference,
) -> str:
    if it.term not in BUSY_TERMS and it.term != "digest":
        return ""
    if isinstance(change, ReplicaRestated):
        count = sum(worker == it.term_worker for worker in from_column(change.workers))
        return f"restated {len(change.requests)} requests in flight, {count} of them there"
    workers = {tried.worker for tried in recording.requests.attempts(change.request) if tried.attempt == change.attempt}
    if it.term_worker and it.term_worker not in workers:
        return ""
    verb = {RequestRouted: "was routed there", RequestPrefilled: "had its first token", RequestFinished: "ended"}
    return f"{change.request} attempt {change.attempt} {verb[type(change)]}"
