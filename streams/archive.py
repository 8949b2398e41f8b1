"""Archive: an exported stretch of the log, read: streams, records and snapshots, from a file alone.

Nothing here waits: a read is a piece of the file, checked and unpacked. Every piece is checked against its checksum
when it is read, the contents when the archive is opened.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, Self

import msgspec
import zstandard

from core.errors import CallerError, Corrupt
from core.ids import StreamName, StreamSeq
from core.manifest import Manifest
from core.subjects import subject
from streams.archive_format import END, FOOTER, MAGIC, Block, Contents, Piece, Row, Span, checksum
from streams.log import Record

CACHED_BLOCKS = 8
"""Unpacked blocks that are kept for whoever jumps to and fro."""
UNPACKED_BYTES_MAX = 4 * 1024**3
"""A piece that says it unpacks to more is damaged, or meant to do harm."""

_rows = msgspec.msgpack.Decoder(list[Row])


class Archive:
    """See the module's text. Used by one thread at a time."""

    def __init__(self, path: Path, file: BinaryIO, contents: Contents) -> None:
        """`file` is open for reading; it is the archive's from now on."""
        self.path = path
        self.contents = contents
        self._file = file
        self._blocks: dict[StreamName, list[Block]] = {StreamName(name): [] for name in contents.streams}
        for block in contents.blocks:
            self._blocks[StreamName(block.stream)].append(block)
        self._ends = {stream: [block.last_seq for block in blocks] for stream, blocks in self._blocks.items()}
        self._unpacked: OrderedDict[int, list[Row]] = OrderedDict()

    def __repr__(self) -> str:
        return f"<Archive {self.path.name}: {self.messages} messages of {self.contents.namespace}>"

    @staticmethod
    def open(path: Path) -> Archive:
        """CallerError if there is no such file; Corrupt if it is no archive, or damaged."""
        try:
            file = path.open("rb")
        except OSError as error:
            raise CallerError(f"{path} cannot be read: {error.strerror}") from error
        try:
            return Archive(path, file, _contents(path, file))
        except BaseException:
            file.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Nothing is read any more."""
        self._file.close()

    @property
    def messages(self) -> int:
        """In all streams."""
        return sum(block.messages for block in self.contents.blocks)

    @property
    def streams(self) -> list[StreamName]:
        """Sorted."""
        return sorted(self._blocks)

    def span(self, stream: StreamName) -> Span:
        """What it holds of the stream, which is one of `streams`."""
        return self.contents.streams[stream]

    def read(self, stream: StreamName, start: int = 1, end: int | None = None) -> Iterator[Record]:
        """The stream's records from `start` up to `end` (not included, None for all), in order. Corrupt if a piece is
        damaged."""
        blocks = self._blocks.get(stream, [])
        for at in range(bisect_left(self._ends.get(stream, []), start), len(blocks)):
            if end is not None and blocks[at].first_seq >= end:
                return
            for row in self._rows(blocks[at]):
                if end is not None and row.seq >= end:
                    return
                if row.seq >= start:
                    yield self._record(stream, row)

    def at(self, stream: StreamName, seq: int) -> Record | None:
        """The message there; None if the archive does not hold it."""
        return next(self.read(stream, seq, seq + 1), None)

    def seek(self, stream: StreamName, time_ms: int) -> StreamSeq:
        """The first sequence stored at or after that time; last_seq + 1 if there is none."""
        for block in self._blocks.get(stream, []):
            if block.last_ms >= time_ms:
                return StreamSeq(next(row.seq for row in self._rows(block) if row.time_ms >= time_ms))
        return StreamSeq(self.span(stream).last_seq + 1)

    def snapshots(self) -> list[Manifest]:
        """Those that it holds, oldest first."""
        return [saved.manifest for saved in self.contents.snapshots]

    def snapshot(self, manifest: Manifest) -> bytes:
        """The content. Corrupt if it is damaged."""
        (saved,) = (saved for saved in self.contents.snapshots if saved.manifest.id == manifest.id)
        return self._unpack(saved.piece)

    def check(self) -> Iterator[int]:
        """Reads everything once; yields how many bytes of the file were read so far. Corrupt if any are damaged."""
        done = 0
        for piece in [block.piece for block in self.contents.blocks] + [s.piece for s in self.contents.snapshots]:
            self._raw(piece)
            done += piece.size
            yield done

    def _record(self, stream: StreamName, row: Row) -> Record:
        where = subject(self.contents.namespace, stream, row.owner)
        return Record(stream, StreamSeq(row.seq), row.time_ms, where, row.payload)

    def _rows(self, block: Block) -> list[Row]:
        at = block.piece.offset
        rows = self._unpacked.get(at)
        if rows is None:
            try:
                rows = _rows.decode(self._unpack(block.piece))
            except msgspec.DecodeError as error:
                raise Corrupt(f"{self.path}: a block of {block.stream} cannot be read: {error}") from error
            self._unpacked[at] = rows
            if len(self._unpacked) > CACHED_BLOCKS:
                self._unpacked.popitem(last=False)
        return rows

    def _unpack(self, piece: Piece) -> bytes:
        try:
            data: bytes = zstandard.ZstdDecompressor().decompress(
                self._raw(piece), max_output_size=UNPACKED_BYTES_MAX, allow_extra_data=False
            )
        except zstandard.ZstdError as error:
            raise Corrupt(f"{self.path}: the piece at {piece.offset} cannot be unpacked: {error}") from error
        return data

    def _raw(self, piece: Piece) -> bytes:
        data = os.pread(self._file.fileno(), piece.size, piece.offset)
        if len(data) != piece.size or checksum(data).hex() != piece.checksum:
            raise Corrupt(
                f"{self.path} is damaged at byte {piece.offset} or within {piece.size} bytes behind it: "
                "its checksum is another. Export again, or copy the file again"
            )
        return data


def _contents(path: Path, file: BinaryIO) -> Contents:
    size = os.fstat(file.fileno()).st_size
    start = os.pread(file.fileno(), len(MAGIC), 0)
    if start != MAGIC or size < len(MAGIC) + FOOTER.size:
        raise Corrupt(f"{path} is no export of a log; `contrail export FILE` makes one")
    offset, length, told, end = FOOTER.unpack(os.pread(file.fileno(), FOOTER.size, size - FOOTER.size))
    if end != END or offset + length + FOOTER.size != size:
        raise Corrupt(f"{path} is cut off: it was not written to its end, or not copied to its end")
    data = os.pread(file.fileno(), length, offset)
    if checksum(data) != told:
        raise Corrupt(f"{path} is damaged: the checksum of its contents is another. Export again, or copy it again")
    return Contents.parse(data)
