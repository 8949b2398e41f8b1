"""Timeline scan: a recording read once for the timeline, in small steps, and on from there when the recording grows.

Blocks are read in the order of their times over all streams, so that the timeline grows from left to right, with
names and load, while it is read. Within a stream they are read in its own order, even where the log's clock went back.

Messages are read as plain tuples, with all checks of a reading, at less than half the cost of records. The timeline
keeps text and numbers of them, never a payload.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import msgspec

from api.debug.timeline.decision_table import DecisionTable
from api.debug.timeline.timeline import Timeline
from core.errors import Corrupt
from core.ids import StreamName
from core.subjects import ROUTING
from projections.folds.state import is_folded
from replay.recording.messages import Row
from streams.archive.archive_format import ArchiveBlock, checksum
from streams.archive.archive_reader import ArchiveReader
from streams.archive.unpacking import Unpacker

_decoder = msgspec.msgpack.Decoder(list[Row])


class BlockReader:
    """Reads one archive's file, block by block."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.open("rb")
        self._unpacker = Unpacker(path, os.fstat(self._file.fileno()).st_size)

    def __repr__(self) -> str:
        return f"<BlockReader of {self._path.name}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def of(self, block: ArchiveBlock) -> list[Row]:
        """The block's messages, in order. Corrupt if it is damaged."""
        piece = block.piece
        data = os.pread(self._file.fileno(), piece.size, piece.offset)
        if checksum(data).hex() != piece.checksum:
            raise Corrupt(f"{self._path} is damaged in the {piece.size} bytes from {piece.offset} on: copy it again")
        try:
            return _decoder.decode(self._unpacker.block(block, data))
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise Corrupt(f"{self._path}: the block at {piece.offset} cannot be read: {error}") from error


def pieces(rows: list[Row], size: int) -> Iterator[list[Row]]:
    """The rows, at most so many at a time."""
    for start in range(0, len(rows), size):
        yield rows[start : start + size]


STEP_MESSAGES = 1000
"""A step takes some 4 ms."""
ROUTING_MESSAGES_MAX = 1_500_000
"""Messages of the routing stream that are shown, the newest: half a million decisions with their outcomes."""


class TimelineScan:
    """Reads a recording into one timeline."""

    def __init__(self) -> None:
        self.timeline = Timeline()
        self.messages = 0
        """Messages read so far."""
        self.total = 0
        """Messages in the recording as it is now."""
        self.skipped = 0
        """Messages of the routing stream that are left out, older than those shown."""
        self._read_to: dict[StreamName, int] = {}

    def __repr__(self) -> str:
        return f"<TimelineScan {self.messages} of {self.total} messages>"

    @property
    def done(self) -> bool:
        """True if all of the recording was read."""
        return self.messages >= self.total

    @property
    def decisions(self) -> DecisionTable:
        """The timeline's decisions."""
        return self.timeline.decisions

    def steps(self, archive: ArchiveReader) -> Iterator[None]:
        """All that is new in the archive is in the timeline at the end; each step takes a few milliseconds."""
        blocks = _by_time([block for block in self._shown(archive) if self._is_new(block)])
        self.total = self.messages + sum(block.messages for block in blocks)
        with BlockReader(archive.path) as reader:
            for block in blocks:
                stream = StreamName(block.stream)
                self.timeline.include_times(block.first_ms, block.last_ms)
                done = self._read_to.get(stream, 0)
                fresh = [row for row in reader.of(block) if row[0] > done]
                for rows in pieces(fresh, STEP_MESSAGES):
                    self.timeline.add(stream, rows)
                    self.messages += len(rows)
                    self._read_to[stream] = rows[-1][0]
                    yield
                self._read_to[stream] = block.last_seq
        self.total = self.messages
        if ROUTING in archive.streams:
            history = self.decisions.history
            history.read_to = max(history.read_to, archive.span(ROUTING).last_seq)

    def _is_new(self, block: ArchiveBlock) -> bool:
        return block.last_seq > self._read_to.get(StreamName(block.stream), 0)

    def _shown(self, archive: ArchiveReader) -> list[ArchiveBlock]:
        """The blocks of all streams, of the routing stream only the newest."""
        blocks = [block for block in archive.contents.blocks if is_folded(StreamName(block.stream))]
        left, shown = ROUTING_MESSAGES_MAX, []
        for block in reversed(blocks):
            if block.stream == ROUTING:
                left -= block.messages
                if left < 0 and block.last_seq > self._read_to.get(ROUTING, 0):
                    self.skipped += block.messages
                    continue
            shown.append(block)
        return shown[::-1]


def _by_time(blocks: list[ArchiveBlock]) -> list[ArchiveBlock]:
    """Blocks by time; a block with an earlier time than one before it in its stream counts as of that time."""
    latest, times = dict[str, int](), list[int]()
    for block in blocks:
        latest[block.stream] = max(latest.get(block.stream, 0), block.first_ms)
        times.append(latest[block.stream])
    return [blocks[at] for at in sorted(range(len(blocks)), key=times.__getitem__)]
