"""Patience: for how long a client waits for its answer."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine
from typing import Any

from tests.simulation.witness import Witness

HANGS_UP_WITHIN_S = 0.5
"""A client that does not wait for an answer is gone within this time, whether or not anything came."""


def drawn_s(random_: random.Random, *, hangs_up: bool) -> float | None:
    """Of those that hang up at all, half wait for a first token, and others only so long; None for all the time."""
    return random_.random() * HANGS_UP_WITHIN_S if hangs_up and random_.random() < 0.5 else None


async def until_gone(served: Coroutine[Any, Any, bool], patience_s: float | None, witness: Witness) -> bool:
    """The result of `served`; a client that has left by then was served as long as it was there."""
    try:
        async with asyncio.timeout(patience_s):
            return await served
    except TimeoutError:
        witness.saw("hung up")
        return True
