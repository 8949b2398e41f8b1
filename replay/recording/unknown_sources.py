"""UnknownSources: the places at which a fold may lack a source, by the chains of the recording alone.

A fold does not know a source from a gap in its chain until the source has restated itself. A fold that lacks a source
elsewhere is wrong. The chains are walked once per stream, when a fold first lacks something, without any fold.
"""

from __future__ import annotations

from core.codec import Message
from core.events import (
    CacheCleared,
    CacheRestated,
    Event,
    PoolJoined,
    PoolLeft,
    PoolLost,
    ReplicaJoined,
    ReplicaLeft,
    ReplicaLost,
    ReplicaRestated,
    UnknownEvent,
    WorkerJoined,
    WorkerLeft,
    WorkerLost,
)
from core.events.jobs import JobsRestated
from core.ids import LOST_SUFFIX, StreamName
from core.subjects import JOBS
from projections.folds.source_fold import Chain, ChainVerdict
from replay.recording.recording import Recording

NEVER = 1 << 63
"""The end of a time for which a source is unknown still."""


class UnknownSources:
    """The times for which sources of a recording are unknown, each from a gap to the restatement behind it."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._times: dict[StreamName, dict[str, list[tuple[int, int]]]] = {}

    def __repr__(self) -> str:
        return f"<UnknownSources of {', '.join(self._times) or 'no stream yet'}>"

    def allow(self, stream: StreamName, seq: int, source: str = "") -> bool:
        """True if a fold of the stream up to that message may lack the source, or any source if none is named. The
        first question about a stream costs a pass through it."""
        if not source and self._recording.start[stream]:
            return True  # of sources that were silent since then nothing is known
        if stream not in self._times:
            walk = _StreamWalk(stream)
            for frame in self._recording.frames(stream):
                if frame.message is not None:
                    walk.take(frame.seq, frame.owner, frame.message, frame.head)
            self._times[stream] = walk.times()
        times = self._times[stream]
        listed = times.values() if not source else [times.get(source, [])]
        return any(first <= seq < end for each in listed for first, end in each)


class _SourceWalk:
    """The walk in the chain of one source."""

    def __init__(self) -> None:
        self.chain = Chain()
        self.joined = self.ended = False
        self.parts = 0
        """Parts of a restatement of its cache, in order and without an interruption."""
        self.unknown: list[tuple[int, int]] = []

    def open(self, seq: int) -> None:
        """The source is unknown from that message on."""
        self.close(seq)
        self.unknown.append((seq, NEVER))
        self.parts = 0

    def close(self, seq: int) -> None:
        """From that message on the source is known, or over."""
        if self.unknown and self.unknown[-1][1] == NEVER:
            self.unknown[-1] = self.unknown[-1][0], seq


class _StreamWalk:
    """Takes the readable messages of one stream in order."""

    def __init__(self, stream: StreamName) -> None:
        self._stream = stream
        self._sources: dict[str, _SourceWalk] = {}

    def times(self) -> dict[str, list[tuple[int, int]]]:
        """By source."""
        return {source: it.unknown for source, it in self._sources.items() if it.unknown}

    def take(self, seq: int, owner: str, message: Message, head: bytes) -> None:
        """One more message, on the subject of that owner."""
        it = self._sources.setdefault(owner, _SourceWalk())
        if it.ended:
            return
        if message.source == owner + LOST_SUFFIX:
            it.ended = any(isinstance(event, WorkerLost | PoolLost | ReplicaLost) for event in message.events)
        elif message.source == owner:
            verdict = it.chain.follow(message, head)
            if verdict is ChainVerdict.REPEAT:
                return
            if verdict is ChainVerdict.GAP:
                it.open(seq)
            for event in message.events:
                self._event(it, seq, event)
        if it.ended:
            it.close(seq)

    def _event(self, it: _SourceWalk, seq: int, event: Event | UnknownEvent) -> None:
        match event:
            case WorkerJoined() | PoolJoined() | ReplicaJoined():
                it.joined = True
            case WorkerLeft() | PoolLeft() | ReplicaLeft():
                it.ended = True
            case CacheCleared():
                it.parts = 0
            case CacheRestated():
                it.parts = it.parts + 1 if event.part == it.parts else int(not event.part)
                if it.parts == event.parts and it.joined:
                    it.close(seq)
            case ReplicaRestated() if it.joined:
                it.close(seq)
            case JobsRestated(open=0):
                it.close(seq)
            case UnknownEvent() if self._stream == JOBS:
                it.open(seq)  # it may end a job
            case _:
                pass
