"""LoadMeter: how long an engine loads a block from each slower tier, by its own sums.

A mean over the last minutes: blocks of the window by the time of their loads. Loads that run side by side count each
with its whole time, since that is what a request waits. What is on the disk comes through the host, so its time has
that of the host in it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping

from msgspec import UNSET, UnsetType

from actors.engines.engine import TierLoads
from core.settings import TIERS

WINDOW_MS = 300_000
"""Older loads do not count: a tier from which nothing is loaded is tried again after this."""
EVERY_MS = 2000
"""The sums are looked at this often at most, so that they make no report of their own."""
BLOCKS_MIN = 16
"""Fewer blocks in the window say nothing."""
HOST, SLOWER_TIERS = TIERS[1], TIERS[1:]
NO_LOADS = TierLoads(0, 0)
MILLI = 1000

LoadTimes = tuple[int, int, int]


class LoadMeter:
    """`sums` has the engine's loads since its start, by tier. One of None has none."""

    def __init__(self, sums: Callable[[], Mapping[str, TierLoads]] | None) -> None:
        self._sums = sums
        self._noted: deque[tuple[int, Mapping[str, TierLoads]]] = deque([(-WINDOW_MS, {})], maxlen=WINDOW_MS // EVERY_MS + 2)
        """When sums were noted, EVERY_MS apart at least; they count as 0 before their start."""
        self._times: LoadTimes | UnsetType = UNSET

    def __repr__(self) -> str:
        return f"<LoadMeter {self._times}>"

    def note(self, now_ms: int) -> LoadTimes | UnsetType:
        """The times of now, as `LoadReported` has them; UNSET without any. O(1)."""
        if self._sums is None:
            return UNSET
        noted = self._noted
        if len(noted) > 1 and now_ms - noted[-1][0] < EVERY_MS:
            return self._times
        noted.append((now_ms, dict(self._sums())))
        while len(noted) > 2 and now_ms - noted[1][0] >= WINDOW_MS:
            noted.popleft()
        (_, before), (_, now) = noted[0], noted[-1]
        own = {tier: _time_m(before.get(tier, NO_LOADS), now.get(tier, NO_LOADS)) for tier in SLOWER_TIERS}
        behind = own[HOST]
        host, disk, remote = (time_m + behind * (tier != HOST) if time_m else 0 for tier, time_m in own.items())
        self._times = (host, disk, remote) if host or disk or remote else UNSET
        return self._times


def _time_m(before: TierLoads, now: TierLoads) -> int:
    """Of a block between these sums; 0 if they are too few."""
    blocks, us = now.blocks - before.blocks, now.us - before.us
    return us * MILLI // blocks if blocks >= BLOCKS_MIN else 0
