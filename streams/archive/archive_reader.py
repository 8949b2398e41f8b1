"""Archive: an exported stretch of the log, read: streams, records and snapshots, from a file alone.

Nothing here waits: a read is a piece of the file, checked and unpacked. Every piece is checked against its checksum
when it is first read, the contents when the archive is opened. Readers of one file do so several times, and nothing
writes an archive that has its name.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Iterator
from functools import cached_property
from itertools import accumulate, chain, pairwise
from operator import attrgetter
from pathlib import Path
from typing import BinaryIO, Self

import msgspec

from core.errors import CallerError, Corrupt
from core.ids import StreamName, StreamSeq
from core.snapshot_manifest import Manifest
from core.subjects import subject
from streams.archive.archive_format import (
    END,
    FOOTER,
    MAGIC,
    ArchiveBlock,
    Contents,
    FileExtent,
    PromptColumn,
    Row,
    Span,
    checksum,
    has_seal,
)
from streams.archive.unpacking import Unpacker
from streams.log import Record

CACHED_BLOCKS = 8
"""Unpacked blocks that are kept for jumps to and fro: those read last."""

_seq_of = attrgetter("seq")
_rows = msgspec.msgpack.Decoder(list[Row])
_columns = msgspec.msgpack.Decoder(list[PromptColumn])


class ArchiveReader:
    """See the module's text. Used by one thread at a time."""

    def __init__(self, path: Path, file: BinaryIO, contents: Contents, raw: bytes = b"") -> None:
        """`file` is open for reading; it is the archive's from now on. `raw`: the contents as they stand in it."""
        self.path = path
        self.contents = contents
        self._file = file
        self._raw_contents = raw
        self._blocks: dict[StreamName, list[ArchiveBlock]] = {StreamName(name): [] for name in contents.streams}
        for block in contents.blocks:
            self._blocks[StreamName(block.stream)].append(block)
        self._ends = {stream: [block.last_seq for block in blocks] for stream, blocks in self._blocks.items()}
        self._times = {
            stream: list(accumulate((block.last_ms for block in blocks), max))
            for stream, blocks in self._blocks.items()
        }
        """The latest time up to the end of each block: a log's clock may go back."""
        self._unpacker = Unpacker(path, os.fstat(file.fileno()).st_size)
        self._unpacked: OrderedDict[int, list[Row]] = OrderedDict()
        self._checked = set[int]()
        """Offsets of the pieces whose checksum was right."""

    def __repr__(self) -> str:
        return f"<ArchiveReader {self.path.name}: {self.messages} messages of {self.contents.namespace}>"

    @staticmethod
    def open(path: Path) -> ArchiveReader:
        """CallerError if there is no such file; Corrupt if it is no archive, or damaged."""
        try:
            file = path.open("rb")
        except OSError as error:
            raise CallerError(f"{path} cannot be read: {error.strerror}") from error
        try:
            return ArchiveReader(path, file, *_contents(path, file))
        except OSError as error:
            file.close()
            raise CallerError(f"{path} cannot be read: {error.strerror}") from error
        except BaseException:  # by any error: the file must be closed
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
        return self.contents.messages

    @property
    def streams(self) -> list[StreamName]:
        """Sorted."""
        return sorted(self._blocks)

    def span(self, stream: StreamName) -> Span:
        """The part of the stream that it holds; the stream is one of `streams`."""
        return self.contents.streams[stream]

    def read(self, stream: StreamName, start: int = 1, end: int | None = None) -> Iterator[Record]:
        """The stream's records from `start` up to `end` (not included, None for all), in order. Corrupt if a piece is
        damaged."""
        where = subject(self.contents.namespace, stream, "")
        for rows in self.row_lists(stream, start, end):
            for seq, time_ms, row_owner, payload in rows:
                yield Record(stream, seq, time_ms, where + row_owner, payload)

    def rows(self, stream: StreamName, start: int = 1, end: int | None = None) -> Iterator[Row]:
        """The same without subjects, for passes through whole streams: half the price of records."""
        return chain.from_iterable(self.row_lists(stream, start, end))

    def row_lists(self, stream: StreamName, start: int = 1, end: int | None = None) -> Iterator[list[Row]]:
        """The same, a block at a time. Not to be changed."""
        blocks = self._blocks.get(stream, [])
        for at in range(bisect_left(self._ends.get(stream, []), start), len(blocks)):
            block = blocks[at]
            if end is not None and block.first_seq >= end:
                return
            rows = self._rows(block)
            if block.first_seq < start or (end is not None and block.last_seq >= end):
                first = bisect_left(rows, start, key=_seq_of)
                rows = rows[first:] if end is None else rows[first : bisect_left(rows, end, key=_seq_of)]
            yield rows

    def at(self, stream: StreamName, seq: int) -> Record | None:
        """The message there; None if the archive does not hold it."""
        return next(self.read(stream, seq, seq + 1), None)

    def seek(self, stream: StreamName, time_ms: int) -> StreamSeq:
        """The first sequence stored at or after that time; last_seq + 1 if there is none. Reads one block."""
        if stream not in self._blocks:
            return StreamSeq(1)
        at = bisect_left(self._times[stream], time_ms)
        found = (row.seq for block in self._blocks[stream][at:] for row in self._rows(block) if row.time_ms >= time_ms)
        return StreamSeq(next(found, self.span(stream).last_seq + 1))

    def snapshots(self) -> list[Manifest]:
        """Those that it holds, oldest first."""
        return [saved.manifest for saved in self.contents.snapshots]

    def snapshot(self, manifest: Manifest) -> bytes:
        """The content. Corrupt if it is damaged."""
        for saved in self.contents.snapshots:
            if saved.manifest.id == manifest.id:
                content = self._unpacker.snapshot(saved.piece, self._raw(saved.piece))
                if len(content) != manifest.size_bytes:
                    raise Corrupt(f"{self.path}: snapshot {manifest.id!r} has another size than its manifest says")
                return content
        raise Corrupt(f"{self.path} holds no snapshot {manifest.id!r}")

    @cached_property
    def columns(self) -> dict[tuple[int, int], bytes]:
        """All block hashes of prompts of decisions before its range, by sequence and place. Nothing proves them but the
        digests in the decisions that continue these. Corrupt if they are damaged."""
        piece = self.contents.columns
        if piece is None:
            return {}
        try:
            found = _columns.decode(self._unpacker.snapshot(piece, self._raw(piece)))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise Corrupt(f"{self.path}: its columns of prompts cannot be read: {error}") from error
        return {(seq, place): hashes for seq, place, hashes in found}

    def has_seal_of(self, chain_key: bytes) -> bool:
        """True if it is an excerpt, and one of the key's generations sealed it."""
        excerpt = self.contents.excerpt
        return excerpt is not None and has_seal(self._raw_contents, excerpt.seal, chain_key)

    def check(self) -> Iterator[int]:
        """Reads everything once; yields how many bytes of the file were read so far. Corrupt if any are damaged."""
        done = 0
        self._checked.clear()
        for piece in self.contents.pieces():
            self._raw(piece)
            done += piece.size
            yield done

    def _rows(self, block: ArchiveBlock) -> list[Row]:
        at = block.piece.offset
        rows = self._unpacked.get(at)
        if rows is None:
            rows = self._unpacked[at] = self._read_rows(block)
            if len(self._unpacked) > CACHED_BLOCKS:
                self._unpacked.popitem(last=False)
        else:
            self._unpacked.move_to_end(at)
        return rows

    def _read_rows(self, block: ArchiveBlock) -> list[Row]:
        try:
            rows = _rows.decode(self._unpacker.block(block, self._raw(block.piece)))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise Corrupt(f"{self.path}: a block of {block.stream!r} cannot be read: {error}") from error
        claimed = (block.messages, block.first_seq, block.last_seq)
        in_order = all(one.seq < other.seq for one, other in pairwise(rows))
        if not rows or (len(rows), rows[0].seq, rows[-1].seq) != claimed or not in_order:
            raise Corrupt(f"{self.path}: a block of {block.stream!r} holds other messages than the contents say")
        return rows

    def _raw(self, piece: FileExtent) -> bytes:
        try:
            data = _read(self._file, piece.size, piece.offset)
        except OSError as error:
            raise Corrupt(f"{self.path} cannot be read at byte {piece.offset}: {error.strerror}") from error
        is_right = len(data) == piece.size and (piece.offset in self._checked or checksum(data).hex() == piece.checksum)
        if not is_right:
            raise Corrupt(
                f"{self.path} is damaged in the {piece.size:,} bytes from byte {piece.offset:,} on: their checksum is "
                "another. Copy the file again, or export again"
            )
        self._checked.add(piece.offset)
        return data


def _contents(path: Path, file: BinaryIO) -> tuple[Contents, bytes]:
    """The contents, and their bytes in the file."""
    size = os.fstat(file.fileno()).st_size
    if _read(file, len(MAGIC), 0) != MAGIC:
        raise Corrupt(f"{path} is no export of a log, or damaged at its start; `contrail export FILE` makes one")
    footer = _read(file, FOOTER.size, max(0, size - FOOTER.size)).rjust(FOOTER.size)
    offset, length, claimed, end = FOOTER.unpack(footer)
    if end != END or offset < len(MAGIC) or offset + length + FOOTER.size != size:
        raise Corrupt(
            f"{path} is cut off or damaged at its end: it was not written or not copied whole. Copy it again, or "
            "export again"
        )
    data = _read(file, length, offset)
    if checksum(data) != claimed:
        raise Corrupt(f"{path} is damaged: the checksum of its contents is another. Copy it again, or export again")
    try:
        contents = Contents.parse(data)
        contents.check(len(MAGIC), offset)
    except Corrupt as error:
        raise Corrupt(f"{path} cannot be used: {error}") from error
    return contents, data


def _read(file: BinaryIO, size: int, offset: int) -> bytes:
    """So many bytes from there, fewer at the file's end: one call of the system reads 2 GiB at most."""
    parts, left = list[bytes](), size
    while left and (part := os.pread(file.fileno(), left, offset + size - left)):
        parts.append(part)
        left -= len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)
