"""Pieces of spans: what an event says of where blocks lie."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.block_spans import SPAN_BLOCKS, Blocks, Piece, chain_pieces, packed, single, stretch, unpacked
from core.events import BlocksRemoved
from core.prompt import hashes_to_bytes

CHAIN = hashes_to_bytes(range(1000, 1100))


def event_of(hashes: bytes, pieces: bytes = b"", heads: bytes = b"") -> BlocksRemoved:
    """An event checks its blocks when it is made."""
    return BlocksRemoved(hashes=hashes, pieces=pieces, heads=heads)


@given(st.integers(0, 99), st.integers(0, 99))
def test_a_stretch_is_cut_at_the_borders_of_spans(one: int, other: int) -> None:
    """Its pieces follow each other, each in one span, each with the head of that; together they are the stretch."""
    first, last = sorted((one, other))
    blocks = stretch(CHAIN, first, last)
    event_of(*blocks)
    depth = first
    for piece in unpacked(blocks):
        head = depth - depth % SPAN_BLOCKS
        assert piece.place == depth % SPAN_BLOCKS
        assert piece.head == CHAIN[8 * head : 8 * head + 8]
        assert 0 < piece.end <= SPAN_BLOCKS
        assert piece.hashes == CHAIN[8 * depth : 8 * depth + len(piece.hashes)]
        assert piece.end == SPAN_BLOCKS or depth + piece.end - piece.place == last
        depth += piece.end - piece.place
    assert depth == last
    assert packed(unpacked(blocks)) == blocks


def test_a_prompt_of_whole_spans_costs_a_byte_for_each() -> None:
    """Only a stretch that begins inside a span has a head."""
    assert stretch(CHAIN, 0, 64)[1:] == (bytes([15, 15, 15, 15]), b"")
    assert stretch(CHAIN, 5, 64)[1:] == (bytes([5 * 16 + 10, 15, 15, 15]), CHAIN[:8])
    assert stretch(CHAIN, 33, 34)[1:] == (bytes([16]), CHAIN[8 * 32 : 8 * 33])
    assert chain_pieces(3, 0) == b""


def test_single_blocks_lie_nowhere() -> None:
    """They have no pieces, and are valid."""
    assert single([1, 2]) == Blocks(hashes_to_bytes([1, 2]))
    event_of(*single([1, 2]))
    assert list(unpacked(single([1, 2]))) == []
    assert packed([]) == Blocks(b"")


@pytest.mark.parametrize(
    ("pieces", "heads", "wrong"),
    [
        ([Piece(bytes(8), 0, bytes(12))], b"", "no whole numbers"),
        ([Piece(bytes(8), 15, bytes(16))], b"", "outside its span"),
        ([Piece(bytes(8), 1, bytes(16))], bytes(8), "the pieces need"),
        ([Piece(bytes(8), 0, bytes(16))], bytes(8), "the pieces need"),
    ],
)
def test_what_does_not_fit_together_is_refused(pieces: list[Piece], heads: bytes, wrong: str) -> None:
    """Before anybody folds it."""
    blocks = packed(pieces)
    with pytest.raises(ValueError, match=wrong):
        event_of(blocks.hashes, blocks.pieces, blocks.heads + heads)


def test_pieces_name_every_block() -> None:
    """None more, none less, and none without its block."""
    for hashes, pieces, heads in ((bytes(24), bytes([1]), b""), (bytes(8), bytes([1]), b""), (b"", b"", bytes(8))):
        with pytest.raises(ValueError, match="the pieces need"):
            event_of(hashes, pieces, heads)
