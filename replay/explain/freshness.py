"""The age of the index's knowledge of each candidate at a decision, by the log's own clock."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from core.events import RequestRouted
from core.ids import SourceId, StreamName, WorkerId
from core.subjects import LOAD, ROUTING, is_kv, owner
from replay.explain.explanation import Freshness
from replay.recording.recording import SEARCH_MAX, LastMessage, Recording, last_messages
from replay.recording.request_history import RequestAttempt

NEAR = 200
"""Messages of the routing stream on each side that tell how a replica's clock stands to the log's."""


def decided_ms(recording: Recording, tried: RequestAttempt, event: RequestRouted) -> int:
    """When the decision was made, by the log's clock, to some milliseconds.

    By the replica's clock it was `now_ms`. The replica's messages near there were stored some time after they were
    sealed, and the least of these times is the lag of its clock behind the log's. The decision came after all messages
    up to its cursor were stored.
    """
    behind = [
        record.time_ms - message.sent_ms
        for record, message in recording.messages(ROUTING, max(1, tried.seq - NEAR), tried.seq + NEAR)
        if message.source == SourceId(tried.replica)
    ]
    read_ms = max((_time_ms(recording, stream, seq) for stream, (_, seq) in event.cursor.items()), default=0)
    return min(tried.time_ms, max(read_ms, event.now_ms + min(behind)))


def _time_ms(recording: Recording, stream: str, seq: int) -> int:
    found = recording.archive.at(StreamName(stream), seq) if stream in recording.streams else None
    return 0 if found is None else found.time_ms


class _UnreadMessages(NamedTuple):
    messages: int
    first_ms: int


def measure_freshness(
    recording: Recording, event: RequestRouted, decided_ms: int, workers: Iterable[WorkerId]
) -> dict[WorkerId, Freshness]:
    """Per worker; looks through a bounded number of messages on each side of the cursor."""
    by_stream: dict[StreamName, set[WorkerId]] = {}
    for worker in workers:
        for stream in _streams(recording, worker):
            by_stream.setdefault(stream, set()).add(worker)
    loads = _last(recording, event.cursor, LOAD, set().union(*by_stream.values()))
    found: dict[WorkerId, Freshness] = {}
    for stream, group in by_stream.items():
        last, unseen = _last(recording, event.cursor, stream, group), _unseen(recording, event, stream, decided_ms)
        for worker in group:
            if worker not in found or worker in last:
                found[worker] = _freshness(stream, last.get(worker), unseen.get(worker), loads.get(worker), decided_ms)
    return found


def _streams(recording: Recording, worker: WorkerId) -> list[StreamName]:
    """The kv stream of the worker's cache events; all kv streams if no message names it."""
    named = recording.names.streams.get(worker)
    return [stream for stream in recording.streams if is_kv(stream) and named in {None, stream}]


def _last(
    recording: Recording, cursor: Mapping[str, tuple[int, int]], stream: StreamName, workers: set[WorkerId]
) -> dict[str, LastMessage]:
    if stream not in recording.streams or stream not in cursor:
        return {}
    return last_messages(recording.archive, stream, cursor[stream][1], workers)


def _unseen(
    recording: Recording, event: RequestRouted, stream: StreamName, decided_ms: int
) -> dict[str, _UnreadMessages]:
    """Messages that stood in the log then and lie behind the cursor, per worker."""
    found: dict[str, _UnreadMessages] = {}
    start = event.cursor.get(stream, (0, 0))[1] + 1
    for record in recording.archive.read(stream, start, start + SEARCH_MAX):
        if record.time_ms > decided_ms:
            break
        who = owner(record.subject)
        before = found.get(who, _UnreadMessages(0, record.time_ms))
        found[who] = _UnreadMessages(before.messages + 1, before.first_ms)
    return found


def _freshness(
    stream: StreamName,
    last: LastMessage | None,
    unseen: _UnreadMessages | None,
    load: LastMessage | None,
    decided_ms: int,
) -> Freshness:
    return Freshness(
        stream=stream,
        seq=None if last is None else last.seq,
        age_ms=None if last is None else max(0, decided_ms - last.time_ms),
        unseen=0 if unseen is None else unseen.messages,
        unseen_ms=None if unseen is None else decided_ms - unseen.first_ms,
        load_age_ms=None if load is None else max(0, decided_ms - load.time_ms),
    )
