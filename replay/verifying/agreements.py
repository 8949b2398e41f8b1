"""Agreements: where replicas said that their folds were what the log gives, and where not.

What a recording lacks can matter to a decision only if it mattered to its replica's fold. So where a replica had told
the digest of its fold, and it is ours, nothing that is missing before that place made a difference to it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from core.codec import decode_message
from core.errors import Corrupt
from core.events import ReplicaReported
from core.ids import Epoch, ReplicaId, StreamName, StreamSeq
from core.subjects import ROUTING, owner
from projections.folds.state import DigestPoint
from replay.recording import Recording
from replay.reported import Reported, places

REPORTED = ReplicaReported.__name__.encode()
"""Stands in every message that has such an event, and in few others."""


def reported(recording: Recording) -> Iterator[Reported]:
    """All that replicas said of folds of this version, in the order of the log."""
    for record in recording.archive.read(ROUTING) if ROUTING in recording.streams else ():
        if REPORTED not in record.payload:
            continue
        try:
            message = decode_message(record.payload)
        except Corrupt:
            continue
        if message.source == owner(record.subject):
            for event in message.events:
                if isinstance(event, ReplicaReported):
                    yield from places(ReplicaId(message.source), record.seq, record.time_ms, event)


class LogFolds:
    """What the log gives, at places that are asked for in any order; each stream is folded once, alone."""

    def __init__(self, recording: Recording, wanted: Mapping[StreamName, set[StreamSeq]]) -> None:
        """O(all messages up to the last place that is wanted)."""
        self._points: dict[tuple[StreamName, StreamSeq], DigestPoint] = {}
        for stream, seqs in sorted(wanted.items()):
            if stream in recording.streams:
                self._fold(recording, stream, sorted(seqs))

    def __repr__(self) -> str:
        return f"<LogFolds at {len(self._points)} places>"

    def at(self, stream: StreamName, seq: StreamSeq) -> DigestPoint | None:
        """The fold after that message; None if the recording does not hold it."""
        return self._points.get((stream, seq))

    def _fold(self, recording: Recording, stream: StreamName, seqs: list[StreamSeq]) -> None:
        span = recording.archive.span(stream)
        start = {other: recording.archive.span(other).first_seq - 1 for other in recording.streams}
        state = recording.state_before(start)
        for seq in seqs:
            if span.first_seq <= seq <= span.last_seq and seq > state.open(stream, Epoch(span.epoch)):
                recording.advance(state, stream, seq)
                point = state.point(stream, seq)
                if point is not None:
                    self._points[stream, seq] = point


class Agreements:
    """Of every replica, up to where it is known to have had our folds."""

    def __init__(self, recording: Recording) -> None:
        """Folds the recording once."""
        said = [each for each in reported(recording) if _here(recording, each)]
        wanted: dict[StreamName, set[StreamSeq]] = {}
        for each in said:
            wanted.setdefault(each.stream, set()).add(each.seq)
        folds = LogFolds(recording, wanted)
        self._agreed: dict[ReplicaId, list[Reported]] = {}
        for each in said:
            point = folds.at(each.stream, each.seq)
            if point is not None and point.complete and (point.digest, point.head) == (each.digest, each.head):
                self._agreed.setdefault(each.replica, []).append(each)

    def __repr__(self) -> str:
        return f"<Agreements of {len(self._agreed)} replicas>"

    def before(self, replica: ReplicaId, seq: int) -> dict[StreamName, StreamSeq]:
        """Per stream the last place at which the replica agreed, of those that it had told before that message."""
        found: dict[StreamName, StreamSeq] = {}
        for each in self._agreed.get(replica, ()):
            if each.at < seq:
                found[each.stream] = max(each.seq, found.get(each.stream, StreamSeq(0)))
        return found


def _here(recording: Recording, each: Reported) -> bool:
    return each.stream in recording.streams and recording.archive.span(each.stream).epoch == each.epoch
