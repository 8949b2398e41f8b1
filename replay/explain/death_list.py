"""Deaths: the workers and replicas that others found gone, as the log has it, and the attempts that ended with them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import msgspec

from core.events import ReplicaJoined, ReplicaLost, WorkerJoined, WorkerLost
from core.ids import LOST_SUFFIX, StreamName
from core.subjects import ROUTING, is_kv, owner
from replay.recording.recording import Recording
from replay.recording.request_history import GONE, RequestHistory

WORKER, REPLICA = "worker", "replica"
BROKE_OFF = "worker_lost"
"""The outcome of an attempt whose worker broke off."""
MARKS = (b"WorkerLost", b"ReplicaLost", b"WorkerJoined", b"ReplicaJoined")
"""Each stands in every message with such an event, and in few others."""
JOINED_BEFORE_MS = 60_000
"""Joins are looked for from so long before: a worker that is restarted at once joins while its earlier life is not yet
found dead, which takes some ten seconds."""


class Death(msgspec.Struct, frozen=True, kw_only=True):
    """One worker or replica that another replica found gone."""

    kind: str
    """WORKER or REPLICA."""
    id: str
    name: str
    time_ms: int
    """When the log stored it."""
    by: str
    """The name of the replica that found it."""
    reason: str
    attempts: int
    """On this worker, those that ended as `worker_lost`; of this replica, those that ended with it."""
    back_ms: int | None = None
    """When another one of its name joined, later than this one did; None if none has. One that is restarted at once
    joins before its earlier life is found dead."""


def list_deaths(recording: Recording, from_ms: int) -> list[Death]:
    """Those that the log stored at or after that time, in the order of their times; of each worker and replica the
    first. Some 3 us for each message since then. Corrupt if the file is damaged."""
    found: dict[tuple[str, str], Death] = {}
    joined: dict[tuple[str, str], tuple[str, int]] = {}
    """By kind and id, the name and the first time of those that joined since then."""
    broken = _broken(recording.requests)
    names = recording.names
    for kind, about, time_ms, event in _lives(recording, from_ms - JOINED_BEFORE_MS):
        name = names.worker(about) if kind == WORKER else names.replica(about)
        if isinstance(event, WorkerJoined | ReplicaJoined):
            joined.setdefault((kind, about), (name, time_ms))
        elif time_ms >= from_ms and (kind, about) not in found:
            found[kind, about] = Death(
                kind=kind,
                id=about,
                name=name,
                time_ms=time_ms,
                by=names.replica(event.by),
                reason=event.reason,
                attempts=broken[kind, about],
            )
    ordered = sorted(found.values(), key=lambda death: (death.time_ms, death.kind, death.id))
    return [msgspec.structs.replace(death, back_ms=_back_ms(death, joined)) for death in ordered]


def complete_from_ms(recording: Recording) -> int:
    """From this time on, the recording has all messages of the kv streams and the routing stream; 0 if it has them from
    the log's start."""
    cut = [stream for stream, seq in recording.start.items() if seq and (is_kv(stream) or stream == ROUTING)]
    if not cut:
        return 0
    if snapshots := recording.archive.snapshots():
        return max(manifest.made_ms for manifest in snapshots)
    firsts: dict[StreamName, int] = {}
    for block in recording.archive.contents.blocks:
        firsts.setdefault(StreamName(block.stream), block.first_ms)
    return max(firsts.get(stream, recording.archive.contents.end_ms) for stream in cut)


_Life = WorkerLost | ReplicaLost | WorkerJoined | ReplicaJoined


def _lives(recording: Recording, from_ms: int) -> Iterator[tuple[str, str, int, _Life]]:
    """Ends that others found, and beginnings, each by the source that may tell it."""
    for stream in recording.streams:
        if not is_kv(stream) and stream != ROUTING:
            continue
        kind = REPLICA if stream == ROUTING else WORKER
        for record, message in recording.messages_with(stream, MARKS, recording.archive.seek(stream, from_ms)):
            about = owner(record.subject)
            for event in message.events:
                source = about + LOST_SUFFIX if isinstance(event, WorkerLost | ReplicaLost) else about
                if isinstance(event, _Life) and message.source == source and record.time_ms >= from_ms:
                    yield kind, about, record.time_ms, event


def _broken(history: RequestHistory) -> Counter[tuple[str, str]]:
    """Attempts by the worker that broke off, and by the replica that was gone."""
    found: Counter[tuple[str, str]] = Counter()
    broke_off, gone = (history.outcomes.get(outcome, -2) for outcome in (BROKE_OFF, GONE))
    for row, outcome in enumerate(history.columns["outcome"]):
        if outcome == broke_off:
            found[WORKER, history.workers.names[history.columns["worker"][row]]] += 1
        elif outcome == gone:
            found[REPLICA, history.replicas.names[history.columns["replica"][row]]] += 1
    return found


def _back_ms(death: Death, joined: dict[tuple[str, str], tuple[str, int]]) -> int | None:
    _, own_ms = joined.get((death.kind, death.id), ("", -1))
    others = {key: known for key, known in joined.items() if key != (death.kind, death.id)}
    later = (ms for (kind, _), (name, ms) in others.items() if (kind, name) == (death.kind, death.name) and ms > own_ms)
    return min(later, default=None)
