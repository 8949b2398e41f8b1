"""FrameCache: the frames of one stream, decoded once for all readers that are at about the same place."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from itertools import chain

from core.ids import StreamName
from replay.recording.recording import RecordedFrame, Recording

KEPT_MAX = 16_384
"""Frames that are kept for readers who lag behind; who lags further reads again by himself."""
FORGOTTEN_MIN = 1024
"""Frames are given back so many at a time."""


class FrameCache:
    """A window on a stream, from the oldest frame kept to the newest read."""

    def __init__(self, recording: Recording, stream: StreamName, start: int) -> None:
        self.stream = stream
        self._recording = recording
        self._frames: list[RecordedFrame] = []
        self._seqs: list[int] = []
        self._kept_from = start
        """Every frame from this sequence on that was read is kept."""
        self._source = recording.frames(stream, start)

    def __repr__(self) -> str:
        return f"<FrameCache of {self.stream}: {len(self._frames)} frames from {self._kept_from} on>"

    def between(self, start: int, end: int) -> Iterable[RecordedFrame]:
        """The frames from `start` to `end` (included) that there are, in order."""
        if not self._seqs or self._seqs[-1] < end:
            self._read_to(end)
        kept = self._frames[bisect_left(self._seqs, start) : bisect_right(self._seqs, end)]
        if start >= self._kept_from:
            return kept
        return chain(self._recording.frames(self.stream, start, min(self._kept_from, end + 1)), kept)

    def forget(self, before: int) -> None:
        """Nobody needs frames before that sequence any more."""
        gone = max(bisect_left(self._seqs, before), len(self._seqs) - KEPT_MAX)
        if gone >= FORGOTTEN_MIN:
            self._kept_from = self._seqs[gone - 1] + 1
            del self._seqs[:gone], self._frames[:gone]

    def _read_to(self, end: int) -> None:
        for frame in self._source:
            self._frames.append(frame)
            self._seqs.append(frame.seq)
            if frame.seq >= end:
                return
