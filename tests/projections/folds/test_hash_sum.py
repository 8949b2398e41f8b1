"""Sums of columns: the same as adding one by one, for any length."""

from __future__ import annotations

from random import Random

import pytest

from core.prompt import hashes_from_bytes
from projections.digest import FEW_BYTES, MANY_BYTES, MASK64, hash_sum

BORDERS = (FEW_BYTES // 8, 128, MANY_BYTES // 8, 2 * MANY_BYTES // 8)
LENGTHS = sorted({*range(80), *(border + more for border in BORDERS for more in (-1, 0, 1))})


@pytest.mark.parametrize("length", LENGTHS)
def test_a_sum_is_that_of_the_numbers(length: int) -> None:
    """Modulo 2^64; the largest numbers carry into nobody else."""
    for column in (Random(length).randbytes(8 * length), b"\xff" * 8 * length):
        assert hash_sum(column) == sum(hashes_from_bytes(column)) & MASK64
