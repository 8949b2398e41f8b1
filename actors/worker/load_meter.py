"""LoadMeter: how long an engine loads a block from each slower tier, by its own sums.

A mean over the last minutes. Loads that run side by side count each with its whole time, since that is what a request
waits. What is on the disk comes through the host, so its time has that of the host in it.

A time stays for a while without loads: a tier from which nothing is loaded because it is slow is seldom tried again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping

from msgspec import UNSET, UnsetType

from actors.engines.engine import TierLoads
from core.settings import TIERS

WINDOW_MS = 300_000
"""Older loads do not count …"""
KEPT_MS_PER_BLOCK, KEPT_MAX_MS = 30_000, 1_800_000
"""… and a time is forgotten so long after the last load, for each block that it is the mean of; at most half an hour.
So a few slow blocks do not keep the disk from use for long."""
EVERY_MS = 2000
"""A known time changes this often at most, so that it makes no report of its own."""
NOTED_MAX = WINDOW_MS // EVERY_MS + 2
"""Sums that are kept."""
BLOCKS_MIN = 4
"""Fewer blocks in the window say nothing."""
HOST, SLOWER_TIERS = TIERS[1], TIERS[1:]
NO_LOADS = TierLoads(0, 0)
MILLI = 1000

LoadTimes = tuple[int, int, int]


class LoadMeter:
    """`sums` has the engine's loads since its start, by tier, those under way as far as they are. One of None has
    none."""

    def __init__(self, sums: Callable[[], Mapping[str, TierLoads]] | None) -> None:
        self._sums = sums
        self._noted: deque[tuple[int, Mapping[str, TierLoads]]] = deque(maxlen=NOTED_MAX)
        """When sums were noted, EVERY_MS apart at least; the first ones are those before the engine's start."""
        self._known: dict[str, tuple[int, int]] = {}
        """By tier: the time of a block from there to the next tier, and until when it holds."""
        self._times: LoadTimes | UnsetType = UNSET

    def __repr__(self) -> str:
        return f"<LoadMeter {self._times}>"

    def note(self, now_ms: int) -> LoadTimes | UnsetType:
        """The times of now, as `LoadReported` has them; UNSET without any. O(1)."""
        if self._sums is None:
            return UNSET
        noted = self._noted
        if not noted:
            noted.append((now_ms - EVERY_MS, {}))
        is_due = now_ms - noted[-1][0] >= EVERY_MS
        if is_due or len(self._known) < len(SLOWER_TIERS):  # the first time of a tier is news at once
            sums = dict(self._sums())
            self._times = self._find(sums, now_ms, only_new=not is_due)
            if is_due:
                noted.append((now_ms, sums))
                while len(noted) > 2 and now_ms - noted[1][0] >= WINDOW_MS:
                    noted.popleft()
        return self._times

    def _find(self, now: Mapping[str, TierLoads], now_ms: int, *, only_new: bool) -> LoadTimes | UnsetType:
        (_, before), (_, last) = self._noted[0], self._noted[-1]
        for tier in SLOWER_TIERS:
            if only_new and tier in self._known:
                continue
            sums, loads = now.get(tier, NO_LOADS), before.get(tier, NO_LOADS)
            blocks = sums.blocks - loads.blocks
            if blocks >= BLOCKS_MIN and sums != last.get(tier, NO_LOADS):
                kept_ms = min(KEPT_MAX_MS, blocks * KEPT_MS_PER_BLOCK)
                self._known[tier] = max(1, (sums.us - loads.us) * MILLI // blocks), now_ms + kept_ms
            elif tier in self._known and now_ms >= self._known[tier][1]:
                del self._known[tier]
        host, disk, remote = (self._known.get(tier, (0, 0))[0] for tier in SLOWER_TIERS)
        if not (host or disk or remote):
            return UNSET
        return host, disk and host + disk, remote and host + remote
