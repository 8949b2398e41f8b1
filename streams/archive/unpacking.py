"""Unpacker: pieces of an archive unpacked within bounds, since a checksum without a key proves nothing of their maker.

1. What a piece says of its size and its number of messages is tested before memory is taken for it; zstd then writes
   no byte more.
2. Messages of a log hold digests and hashes, which do not shrink: real blocks unfold to some 7 times their size, and
   real snapshots to less.
"""

from __future__ import annotations

from pathlib import Path

import zstandard

from core.errors import Corrupt
from streams.archive.archive_format import BLOCK_BYTES, ROW_BYTES, ArchiveBlock, FileExtent

BLOCK_BYTES_MAX = 65 * 1024**2
"""Of a block's messages: a block is closed at BLOCK_BYTES, and NATS takes no message longer than 64 MiB."""
BLOCK_MESSAGES_MAX = BLOCK_BYTES // ROW_BYTES
"""A block is closed with this number of messages, though they be empty."""
SNAPSHOT_BYTES_MAX = 4 * 1024**3
UNPACK_RATIO_MAX = 64
"""A snapshot, and a file as a whole, unfold to at most so many times their bytes, or to …"""
SNAPSHOT_BYTES_FREE = 16 * 1024**2
"""… this, which every snapshot may have …"""
FILE_BYTES_FREE = 256 * 1024**2
"""… and this, which the pieces of every file may have together."""


class Unpacker:
    """Unpacks the pieces of one file. A piece counts once, however often it is read."""

    def __init__(self, path: Path, file_bytes: int) -> None:
        self._path = path
        self._bytes_max = max(FILE_BYTES_FREE, UNPACK_RATIO_MAX * file_bytes)
        self._bytes = 0
        self._counted = set[int]()
        """Offsets of the pieces in `_bytes`."""

    def __repr__(self) -> str:
        return f"<Unpacker of {self._path.name}: {self._bytes} of {self._bytes_max} bytes>"

    def block(self, block: ArchiveBlock, data: bytes) -> bytes:
        """The msgpack list of the block's messages: as many as the contents say. Corrupt beyond a bound."""
        at = block.piece.offset
        if block.messages > BLOCK_MESSAGES_MAX:
            raise Corrupt(
                f"{self._path}: the block at {at} has {block.messages:,} messages; a block of an export has at most "
                f"{BLOCK_MESSAGES_MAX}"
            )
        unpacked = self._unpack(block.piece, data, BLOCK_BYTES_MAX)
        if _list_length(unpacked) != block.messages:
            raise Corrupt(f"{self._path}: a block of {block.stream!r} holds other messages than the contents say")
        return unpacked

    def snapshot(self, piece: FileExtent, data: bytes) -> bytes:
        """The snapshot's content. Corrupt beyond a bound."""
        grown = max(SNAPSHOT_BYTES_FREE, UNPACK_RATIO_MAX * piece.size)
        return self._unpack(piece, data, min(SNAPSHOT_BYTES_MAX, grown))

    def _unpack(self, piece: FileExtent, data: bytes, size_max: int) -> bytes:
        where = f"{self._path}: the piece at {piece.offset}"
        try:
            size = zstandard.frame_content_size(data)
            if not 0 <= size <= size_max:
                raise Corrupt(f"{where} says that it unpacks to {size} bytes; it may have at most {size_max}")
            self._count(piece, size)
            unpacked: bytes = zstandard.ZstdDecompressor().decompress(data, allow_extra_data=False)
        except zstandard.ZstdError as error:
            raise Corrupt(f"{where} cannot be unpacked: {error}") from error
        return unpacked

    def _count(self, piece: FileExtent, size: int) -> None:
        if piece.offset in self._counted:
            return
        if self._bytes + size > self._bytes_max:
            raise Corrupt(f"{self._path} unfolds to more than {self._bytes_max:,} bytes: it is no export of a log")
        self._counted.add(piece.offset)
        self._bytes += size


def _list_length(data: bytes) -> int:
    """The length that a msgpack list states; -1 if the bytes begin as none."""
    first = data[0] if data else 0
    if first & 0xF0 == 0x90:
        return first & 0x0F
    width = {0xDC: 2, 0xDD: 4}.get(first)
    return -1 if width is None else int.from_bytes(data[1 : 1 + width])
