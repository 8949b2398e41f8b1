"""ArchiveWriter: makes an archive, message by message; what was written so far can be read at any time.

It holds one block per stream, and per block and source some hundred bytes of contents: the log may have any length.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec
import zstandard

from core.codec import digest
from core.errors import CallerError
from core.ids import Epoch, StreamName
from core.snapshot_manifest import Manifest
from core.subjects import owner
from streams.archive.archive_format import (
    ARCHIVE_VERSION_WITHOUT_COLUMNS,
    ARCHIVE_VERSION_WITHOUT_EXCERPTS,
    BLOCK_BYTES,
    END,
    FOOTER,
    MAGIC,
    ROW_BYTES,
    ZSTD_LEVEL,
    ArchiveBlock,
    Contents,
    FileExtent,
    Head,
    PromptColumn,
    Row,
    SavedSnapshot,
    Span,
    checksum,
    key_check,
)
from streams.archive.archive_reader import ArchiveReader
from streams.archive.message_envelope import envelope
from streams.log import Record


class _Open(NamedTuple):
    """A stream that is being written."""

    epoch: Epoch
    first_seq: int
    log_first_seq: int
    rows: list[Row]
    numbers: dict[str, int]
    """Of the last message of each source."""
    ends: dict[str, bytes]
    """Payloads of those of them that stand in no block yet."""


class ArchiveWriter:
    """See the module's text. Owned by one thread."""

    def __init__(
        self, path: Path, namespace: str, chain_key: bytes, program: str, made_ms: int, *, check: str | None = None
    ) -> None:
        """CallerError if the file cannot be made. It is made anew.

        `check` identifies the deployment's key if `chain_key` is another one, or empty because it is unknown: then
        nothing is digested, and the caller sets the heads.
        """
        self.path = path
        self.chain_key = chain_key
        self._namespace = namespace
        self._key_check = key_check(chain_key) if check is None else check
        self._program = program
        self._made_ms = made_ms
        self._streams: dict[StreamName, _Open] = {}
        self._waiting: dict[StreamName, int] = {}
        """Bytes per stream that stand in no block yet."""
        self._last: dict[StreamName, int] = {}
        self._blocks: list[ArchiveBlock] = []
        self._snapshots: list[SavedSnapshot] = []
        self._heads: dict[StreamName, dict[str, Head]] = {}
        self._columns: FileExtent | None = None
        self._packer = zstandard.ZstdCompressor(level=ZSTD_LEVEL)
        self._encoder = msgspec.msgpack.Encoder()
        try:
            self._file = path.open("wb")
        except OSError as error:
            raise CallerError(f"{path} cannot be written: {error.strerror}") from error
        self._offset = 0
        self._write(MAGIC)

    def __repr__(self) -> str:
        return f"<ArchiveWriter {self.path.name}: {self._offset} bytes>"

    def open(self, stream: StreamName, epoch: Epoch, first_seq: int, log_first_seq: int) -> None:
        """The archive has the stream, from `first_seq` on; the log itself retained it from `log_first_seq` on."""
        self._streams[stream] = _Open(epoch, first_seq, log_first_seq, [], {}, {})
        self._waiting[stream], self._last[stream] = 0, first_seq - 1
        self._heads[stream] = {}

    def add(self, record: Record) -> None:
        """The next message of its stream."""
        stream, seq, time_ms, subject, payload = record
        assert seq > self._last[stream]
        opened, whose = self._streams[stream], owner(subject)
        opened.rows.append(Row(seq, time_ms, whose, payload))
        self._last[stream] = seq
        head = envelope(payload)
        if head is not None and head.of(whose) and head.n > opened.numbers.get(head.source, -1):  # else: a repeat
            opened.numbers[head.source] = head.n
            opened.ends[head.source] = payload
        self._waiting[stream] += len(payload) + ROW_BYTES
        if self._waiting[stream] >= BLOCK_BYTES:
            self._close_block(stream)

    def retained(self, stream: StreamName, log_first_seq: int) -> None:
        """The log retains the stream from there on only, by now."""
        self._streams[stream] = self._streams[stream]._replace(log_first_seq=log_first_seq)

    def last_seq(self, stream: StreamName) -> int:
        """The last sequence of the stream that was written."""
        return self._last[stream]

    def numbers(self, stream: StreamName) -> dict[str, int]:
        """Every source with messages here, and the number of its last."""
        return dict(self._streams[stream].numbers)

    def set_head(self, stream: StreamName, source: str, digest: str) -> None:
        """Sets the digest of the source's last message here: for a writer without a key."""
        self._heads[stream][source] = Head(self._streams[stream].numbers[source], digest)

    def reached(self, stream: StreamName, seq: int) -> None:
        """The log had nothing more of the stream up to there."""
        self._last[stream] = max(self._last[stream], seq)

    def add_snapshot(self, manifest: Manifest, content: bytes) -> None:
        """Snapshots come oldest first."""
        self._snapshots.append(SavedSnapshot(manifest, self._put(self._packer.compress(content))))

    def add_columns(self, columns: Sequence[PromptColumn]) -> None:
        """The archive has the prompts of these decisions, which stand before its range."""
        if columns:
            self._columns = self._put(self._packer.compress(self._encoder.encode(columns)))

    def contents(self, from_ms: int, to_ms: int, *, redacted: bool = False) -> Contents:
        """Contents of all that was written so far; no block is open any more."""
        for stream in self._streams:
            self._close_block(stream)
        return Contents(
            v=ARCHIVE_VERSION_WITHOUT_COLUMNS if self._columns is None else ARCHIVE_VERSION_WITHOUT_EXCERPTS,
            namespace=self._namespace,
            program=self._program,
            made_ms=self._made_ms,
            from_ms=from_ms,
            to_ms=to_ms,
            key_check=self._key_check,
            redacted=redacted,
            chain_key=self.chain_key.hex() if redacted else "",
            streams={
                stream: Span(opened.epoch, opened.first_seq, self._last[stream], opened.log_first_seq)
                for stream, opened in sorted(self._streams.items())
            },
            blocks=list(self._blocks),
            snapshots=list(self._snapshots),
            heads={stream: dict(sorted(heads.items())) for stream, heads in sorted(self._heads.items())},
            columns=self._columns,
        )

    def so_far(self) -> ArchiveReader:
        """An archive of what was written so far; more may be written, which it will not show."""
        contents = self.contents(0, 0)
        self._flush()
        return ArchiveReader(self.path, self.path.open("rb"), contents)

    def finish(self, contents: Contents) -> None:
        """The file is whole and closed. CallerError if the disk does not take it."""
        data = contents.to_bytes()
        piece = self._put(data)
        self._write(FOOTER.pack(piece.offset, piece.size, checksum(data), END))
        self._flush()
        self._file.close()

    def abandon(self) -> None:
        """The file is gone."""
        with contextlib.suppress(OSError):  # what is not written yet need not be
            self._file.close()
        self.path.unlink(missing_ok=True)

    def _close_block(self, stream: StreamName) -> None:
        _, _, _, rows, numbers, ends = self._streams[stream]
        if not rows:
            return
        if self.chain_key:  # one digest per source and block: of every message it would cost as much as all the rest
            for source, payload in ends.items():
                self._heads[stream][source] = Head(numbers[source], digest(payload, self.chain_key).hex())
        piece = self._put(self._packer.compress(self._encoder.encode(rows)))
        first_ms, last_ms = min(row.time_ms for row in rows), max(row.time_ms for row in rows)
        self._blocks.append(ArchiveBlock(stream, rows[0].seq, rows[-1].seq, first_ms, last_ms, len(rows), piece))
        rows.clear()
        ends.clear()
        self._waiting[stream] = 0

    def _put(self, data: bytes) -> FileExtent:
        piece = FileExtent(self._offset, len(data), checksum(data).hex())
        self._write(data)
        return piece

    def _write(self, data: bytes) -> None:
        try:
            self._file.write(data)
        except OSError as error:
            raise self._unwritable(error) from error
        self._offset += len(data)

    def _flush(self) -> None:
        try:
            self._file.flush()
        except OSError as error:
            raise self._unwritable(error) from error

    def _unwritable(self, error: OSError) -> CallerError:
        return CallerError(f"{self.path} cannot be written: {error.strerror}; make room, or name another place")
