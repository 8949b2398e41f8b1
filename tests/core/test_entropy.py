"""Random numbers from a pool: each used once, in this process and in its children."""

from __future__ import annotations

import os

import pytest

from core.entropy import PIECE_BYTES, Entropy, random_bits64, random_hex


@pytest.fixture(autouse=True)
def chance() -> None:
    """The system's: instead of what other tests draw."""


def test_nothing_is_handed_out_twice() -> None:
    """Over many pieces, in any sizes."""
    pool = Entropy()
    taken = [pool.take(8) for _ in range(PIECE_BYTES)] + [pool.take(24) for _ in range(PIECE_BYTES)]
    assert {len(each) for each in taken} == {8, 24}
    assert len({each[:8] for each in taken}) == len(taken)


def test_a_whole_piece_can_be_taken() -> None:
    """That is the bound."""
    pool = Entropy()
    pool.take(1)
    assert len(pool.take(PIECE_BYTES)) == PIECE_BYTES


def test_a_forked_child_has_numbers_of_its_own() -> None:
    """It would take its parent's next ones otherwise."""
    random_bits64()
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.write(writing, random_hex(8).encode())
        os._exit(0)
    os.waitpid(child, 0)
    theirs = os.read(reading, 16).decode()
    assert len(theirs) == 16
    assert theirs not in {random_hex(8) for _ in range(PIECE_BYTES // 8)}


def test_numbers_have_their_range() -> None:
    """All 64 bits are used."""
    numbers = [random_bits64() for _ in range(1000)]
    assert all(0 <= number < 2**64 for number in numbers)
    assert max(numbers) > 2**63
