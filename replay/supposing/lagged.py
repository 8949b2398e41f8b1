"""Lagged: the cursor of a decision that saw only what stood in the log a while before it, by the log's clock."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from core.ids import StreamName
from replay.recording import Frame, Recording
from streams.log import Record


class Lagged:
    """A `Delay` for a playback that goes forward; it never goes back, never ahead of what was recorded, and never
    before what the recording begins with. Each stream is read once."""

    def __init__(self, recording: Recording, delay_ms: int) -> None:
        self._recording = recording
        self._delay_ms = delay_ms
        self._streams: dict[str, _Pointer] = {}

    def __call__(self, frame: Frame, recorded: Mapping[str, tuple[int, int]]) -> Mapping[str, tuple[int, int]]:
        """The recorded cursor, held back."""
        until_ms = frame.time_ms - self._delay_ms
        return {stream: (epoch, min(seq, self._reached(stream, until_ms))) for stream, (epoch, seq) in recorded.items()}

    def reached(self, stream: StreamName) -> int:
        """How far the stream was at most at the last decision; no later one sees less for that."""
        return self._streams[stream].seq if stream in self._streams else 0

    def _reached(self, stream: str, until_ms: int) -> int:
        pointer = self._streams.get(stream)
        if pointer is None:
            pointer = self._streams[stream] = _Pointer(self._recording, StreamName(stream))
        return pointer.move(until_ms)


class _Pointer:
    """The last message of a stream that stood in the log at a time."""

    def __init__(self, recording: Recording, stream: StreamName) -> None:
        there = stream in recording.archive.streams
        self.seq = recording.archive.span(stream).first_seq - 1 if there else 0
        self._records: Iterator[Record] = recording.archive.read(stream)
        self._next = next(self._records, None)

    def move(self, until_ms: int) -> int:
        while self._next is not None and self._next.time_ms <= until_ms:
            self.seq = self._next.seq
            self._next = next(self._records, None)
        return self.seq
