"""Sums of columns: the same as adding one by one, for any length."""

from __future__ import annotations

from random import Random

import pytest

from core.prompt import hashes_from_bytes
from projections.digest import MASK64, hash_sum

LENGTHS = (0, 1, 2, 3, 16, 257, 4096)


@pytest.mark.parametrize("length", LENGTHS)
def test_a_sum_is_that_of_the_numbers(length: int) -> None:
    """Modulo 2^64; the largest numbers carry into nobody else."""
    for column in (Random(length).randbytes(8 * length), b"\xff" * 8 * length):
        assert hash_sum(column) == sum(hashes_from_bytes(column)) & MASK64
