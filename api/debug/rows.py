"""Rows: the messages of an archive's blocks, read for what a timeline shows: as plain tuples, checked like any other
reading, at less than half the price of records. What is kept of them is text and numbers, never a payload.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import msgspec
import zstandard

from core.errors import Corrupt
from streams.archive.archive_format import Block, checksum
from streams.archive.archive_reader import BLOCK_BYTES_MAX

Row = tuple[int, int, str, bytes]
"""Sequence, time in ms, whose subject, payload: as the archive's own `Row`."""

_decoder = msgspec.msgpack.Decoder(list[Row])


class Rows:
    """Reads one archive's file, block by block."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.open("rb")

    def __repr__(self) -> str:
        return f"<Rows of {self._path.name}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def of(self, block: Block) -> list[Row]:
        """The block's messages, in order. Corrupt if it is damaged."""
        piece = block.piece
        data = os.pread(self._file.fileno(), piece.size, piece.offset)
        if checksum(data).hex() != piece.checksum:
            raise Corrupt(f"{self._path} is damaged in the {piece.size} bytes from {piece.offset} on: copy it again")
        try:
            if zstandard.frame_content_size(data) > BLOCK_BYTES_MAX:
                raise Corrupt(f"{self._path}: the block at {piece.offset} says that it unpacks to too many bytes")
            return _decoder.decode(zstandard.ZstdDecompressor().decompress(data, allow_extra_data=False))
        except (zstandard.ZstdError, msgspec.DecodeError, UnicodeDecodeError) as error:
            raise Corrupt(f"{self._path}: the block at {piece.offset} cannot be read: {error}") from error


def pieces(rows: list[Row], size: int) -> Iterator[list[Row]]:
    """The rows, at most so many at a time."""
    for start in range(0, len(rows), size):
        yield rows[start : start + size]
