"""Pauses between attempts that go on for as long as it takes."""

from __future__ import annotations

import random
from collections.abc import Iterator

FIRST_S = 0.1
LONGEST_S = 2.0


def pauses() -> Iterator[float]:
    """Without end: from `FIRST_S` doubling up to `LONGEST_S`, each spread by a quarter so that many do not meet."""
    pause_s = FIRST_S
    while True:
        yield pause_s * random.uniform(0.75, 1.25)  # noqa: S311  no secret
        pause_s = min(2 * pause_s, LONGEST_S)
