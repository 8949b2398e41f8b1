"""ArchiveWriter: makes an archive, message by message; what was written so far can be read at any time."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import msgspec
import zstandard

from core.codec import decode_message, digest
from core.errors import CallerError, Corrupt
from core.ids import Epoch, StreamName
from core.manifest import Manifest
from core.subjects import owner
from streams.archive import Archive
from streams.archive_format import (
    BLOCK_BYTES,
    END,
    FOOTER,
    MAGIC,
    ZSTD_LEVEL,
    Block,
    Contents,
    Head,
    Piece,
    Row,
    Saved,
    Span,
    checksum,
    key_check,
)
from streams.log import Record


class _Open(NamedTuple):
    """A stream that is being written."""

    epoch: Epoch
    first_seq: int
    log_first_seq: int
    rows: list[Row]


class ArchiveWriter:
    """See the module's text. Owned by one thread."""

    def __init__(self, path: Path, namespace: str, chain_key: bytes, program: str, made_ms: int) -> None:
        """CallerError if the file cannot be made. It is made anew."""
        self.path = path
        self._namespace = namespace
        self._chain_key = chain_key
        self._program = program
        self._made_ms = made_ms
        self._streams: dict[StreamName, _Open] = {}
        self._waiting: dict[StreamName, int] = {}
        """Bytes of payload per stream that stand in no block yet."""
        self._last: dict[StreamName, int] = {}
        self._blocks: list[Block] = []
        self._snapshots: list[Saved] = []
        self._heads: dict[StreamName, dict[str, tuple[int, bytes]]] = {}
        self._packer = zstandard.ZstdCompressor(level=ZSTD_LEVEL)
        self._encoder = msgspec.msgpack.Encoder()
        try:
            self._file = path.open("wb")
        except OSError as error:
            raise CallerError(f"{path} cannot be written: {error.strerror}") from error
        self._file.write(MAGIC)
        self._offset = len(MAGIC)

    def __repr__(self) -> str:
        return f"<ArchiveWriter {self.path.name}: {self._offset} bytes>"

    def open(self, stream: StreamName, epoch: Epoch, first_seq: int, log_first_seq: int) -> None:
        """The archive has the stream, from `first_seq` on; the log itself retained it from `log_first_seq` on."""
        self._streams[stream] = _Open(epoch, first_seq, log_first_seq, [])
        self._waiting[stream], self._last[stream] = 0, first_seq - 1
        self._heads[stream] = {}

    def add(self, record: Record) -> None:
        """The next message of its stream."""
        assert record.seq > self._last[record.stream]
        opened = self._streams[record.stream]
        opened.rows.append(Row(record.seq, record.time_ms, owner(record.subject), record.payload))
        self._last[record.stream] = record.seq
        self._waiting[record.stream] += len(record.payload)
        self._note_head(record)
        if self._waiting[record.stream] >= BLOCK_BYTES:
            self._close_block(record.stream)

    def reached(self, stream: StreamName, seq: int) -> None:
        """The log had nothing more of the stream up to there."""
        self._last[stream] = max(self._last[stream], seq)

    def add_snapshot(self, manifest: Manifest, content: bytes) -> None:
        """Snapshots come oldest first."""
        self._snapshots.append(Saved(manifest, self._put(self._packer.compress(content))))

    def contents(self, from_ms: int, to_ms: int, *, redacted: bool = False) -> Contents:
        """What was written so far, all of it in blocks now."""
        for stream in self._streams:
            self._close_block(stream)
        return Contents(
            namespace=self._namespace,
            program=self._program,
            made_ms=self._made_ms,
            from_ms=from_ms,
            to_ms=to_ms,
            key_check=key_check(self._chain_key),
            redacted=redacted,
            chain_key=self._chain_key.hex() if redacted else "",
            streams={
                stream: Span(opened.epoch, opened.first_seq, self._last[stream], opened.log_first_seq)
                for stream, opened in sorted(self._streams.items())
            },
            blocks=list(self._blocks),
            snapshots=list(self._snapshots),
            heads={
                stream: {source: Head(n, head.hex()) for source, (n, head) in sorted(heads.items())}
                for stream, heads in sorted(self._heads.items())
            },
        )

    def so_far(self) -> Archive:
        """An archive of what was written so far; more may be written, which it will not show."""
        contents = self.contents(0, 0)
        self._file.flush()
        return Archive(self.path, self.path.open("rb"), contents)

    def finish(self, contents: Contents) -> None:
        """The file is whole and closed."""
        data = contents.to_bytes()
        piece = self._put(data)
        self._file.write(FOOTER.pack(piece.offset, piece.size, checksum(data), END))
        self._file.close()

    def abandon(self) -> None:
        """The file is gone."""
        self._file.close()
        self.path.unlink(missing_ok=True)

    def _note_head(self, record: Record) -> None:
        try:
            message = decode_message(record.payload)
        except Corrupt:
            return  # it is kept as it is; it belongs to nobody's chain
        self._heads[record.stream][message.source] = message.n, digest(record.payload, self._chain_key)

    def _close_block(self, stream: StreamName) -> None:
        rows = self._streams[stream].rows
        if not rows:
            return
        piece = self._put(self._packer.compress(self._encoder.encode(rows)))
        first, last = rows[0], rows[-1]
        self._blocks.append(Block(stream, first.seq, last.seq, first.time_ms, last.time_ms, len(rows), piece))
        rows.clear()
        self._waiting[stream] = 0

    def _put(self, data: bytes) -> Piece:
        piece = Piece(self._offset, len(data), checksum(data).hex())
        self._file.write(data)
        self._offset += len(data)
        return piece
