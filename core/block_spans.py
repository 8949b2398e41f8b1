"""Spans: where blocks lie in their prompts, so that a reader can keep sixteen neighbours as one.

A prompt's blocks fall into spans of SPAN_BLOCKS: blocks 0 to 15, 16 to 31, and so on. An event names its blocks piece
by piece. A piece is blocks at places of one span that follow each other; a byte says at which place it begins, and
how many they are. Where it does not begin with the span's first block (the head), the head's hash is given too.

An event without pieces says only which blocks it means; readers keep each of them alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import NamedTuple

from core.ids import COLUMN_WIDTH
from core.prompt import hashes_to_bytes

SPAN_BLOCKS = 16
INSIDE = SPAN_BLOCKS
"""A piece's byte is `place * 16 + blocks - 1`: from this value on it begins inside its span, and its head is given."""
PIECE_BYTES = bytes((piece % SPAN_BLOCKS + 1) * COLUMN_WIDTH for piece in range(256))
"""Bytes of hashes that a piece has, indexed by the piece's byte."""

START_BYTES = bytes(piece // SPAN_BLOCKS * COLUMN_WIDTH for piece in range(256))
"""Bytes of hashes before the piece in its span, indexed by the piece's byte."""
SIZES_KEPT = 4096
"""Most events look like one seen before."""

_PLACES = bytes(piece // SPAN_BLOCKS for piece in range(256))
_AT_HEADS = bytes(range(INSIDE))
_VALID = bytes(piece for piece in range(256) if piece // SPAN_BLOCKS + piece % SPAN_BLOCKS < SPAN_BLOCKS)


class Piece(NamedTuple):
    """Blocks of one span, at places that follow each other."""

    head: bytes
    """The hash of the span's first block, little-endian uint64."""
    place: int
    """Of the first of them in the span, from 0."""
    hashes: bytes
    """Little-endian uint64, by their places."""

    @property
    def end(self) -> int:
        """The place behind the last one."""
        return self.place + len(self.hashes) // COLUMN_WIDTH


class Blocks(NamedTuple):
    """The blocks of one event: hashes, and their positions in prompts."""

    hashes: bytes
    """Little-endian uint64."""
    pieces: bytes = b""
    """One byte per piece; empty if the positions are unknown."""
    heads: bytes = b""
    """Little-endian uint64, of each piece that begins inside its span."""


def single(hashes: Iterable[int]) -> Blocks:
    """The blocks without their positions."""
    return Blocks(hashes_to_bytes(hashes))


def stretch(chain: bytes, first: int, last: int) -> Blocks:
    """The blocks [first, last) of a prompt; `chain` has the hashes of all its blocks."""
    place = first % SPAN_BLOCKS
    start, head = first * COLUMN_WIDTH, (first - place) * COLUMN_WIDTH
    return Blocks(
        chain[start : last * COLUMN_WIDTH],
        chain_pieces(place, last - first),
        chain[head : head + COLUMN_WIDTH] if place and last > first else b"",
    )


@lru_cache(SIZES_KEPT)
def sizes_of(pieces: bytes) -> tuple[int, int]:
    """Bytes of blocks and of heads that the pieces need; ValueError if one ends outside its span."""
    if pieces.translate(None, _VALID):
        raise ValueError("a piece ends outside its span")
    return sum(pieces.translate(PIECE_BYTES)), len(pieces.translate(None, _AT_HEADS)) * COLUMN_WIDTH


def chain_pieces(place: int, blocks: int) -> bytes:
    """The pieces of so many blocks, one behind the other, of which the first lies at that place of its span."""
    first = min(SPAN_BLOCKS - place, blocks)
    whole, rest = divmod(blocks - first, SPAN_BLOCKS)
    tail = bytes([rest - 1]) if rest else b""
    return bytes([place * SPAN_BLOCKS + first - 1]) + bytes([SPAN_BLOCKS - 1]) * whole + tail if blocks else b""


def packed(pieces: Iterable[Piece]) -> Blocks:
    """These pieces as an event has them."""
    found = list(pieces)
    return Blocks(
        b"".join([piece.hashes for piece in found]),
        bytes([piece.place * SPAN_BLOCKS + len(piece.hashes) // COLUMN_WIDTH - 1 for piece in found]),
        b"".join([piece.head for piece in found if piece.place]),
    )


def places(pieces: bytes) -> list[tuple[int, int]]:
    """Of each piece the place where it begins, and how many blocks it has."""
    return [(piece // SPAN_BLOCKS, piece % SPAN_BLOCKS + 1) for piece in pieces]


def unpacked(blocks: Blocks) -> Iterator[Piece]:
    """The pieces that an event has; nothing if it has none."""
    start = passed = 0
    for piece in blocks.pieces:
        hashes = blocks.hashes[start : start + PIECE_BYTES[piece]]
        start += len(hashes)
        if piece < INSIDE:
            head = hashes[:COLUMN_WIDTH]
        else:
            head = blocks.heads[passed : passed + COLUMN_WIDTH]
            passed += COLUMN_WIDTH
        yield Piece(head, _PLACES[piece], hashes)
