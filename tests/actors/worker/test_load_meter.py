"""The time of a block from a slower tier, as load reports state it."""

from __future__ import annotations

from itertools import pairwise

from msgspec import UNSET

from actors.engines.engine import TierLoads
from actors.worker.load_meter import (
    BLOCKS_MIN,
    EVERY_MS,
    KEPT_MAX_MS,
    KEPT_MS_PER_BLOCK,
    NOTED_MAX,
    WINDOW_MS,
    LoadMeter,
)


class Loads:
    """Sums of an engine, and the meter over them."""

    def __init__(self) -> None:
        self.sums: dict[str, TierLoads] = {}
        self.meter = LoadMeter(lambda: self.sums)

    def load(self, tier: str, blocks: int, us: int) -> None:
        before = self.sums.get(tier, TierLoads(0, 0))
        self.sums[tier] = TierLoads(before.blocks + blocks, before.us + us)


def test_an_engine_without_slower_tiers_has_no_times() -> None:
    assert LoadMeter(None).note(0) is UNSET
    it = Loads()
    assert it.meter.note(5) is UNSET
    assert repr(it.meter) == "<LoadMeter UNSET>"


def test_a_time_is_that_of_the_sums_and_the_disk_comes_through_the_host() -> None:
    """Exactly, in thousandths of a microsecond; a tier without loads stays unknown."""
    it = Loads()
    it.load("host", 100, 13_150)
    assert it.meter.note(1) == (131_500, 0, 0)
    it.load("disk", 20, 30_000)
    assert it.meter.note(2) == (131_500, 131_500 + 1_500_000, 0)
    other = Loads()
    other.load("remote", 20, 30_000)
    assert other.meter.note(1) == (0, 0, 1_500_000)


def test_a_few_blocks_say_nothing() -> None:
    it = Loads()
    it.load("host", BLOCKS_MIN - 1, 10_000)
    assert it.meter.note(1) is UNSET
    it.load("host", 1, 600)
    assert it.meter.note(2) == (10_600_000 // BLOCKS_MIN, 0, 0)


def test_a_known_time_changes_at_steps_and_the_first_one_comes_at_once() -> None:
    it, found = Loads(), []
    for at_ms in range(0, 10 * EVERY_MS, 250):
        found.append(it.meter.note(at_ms))
        it.load("host", BLOCKS_MIN, BLOCKS_MIN * at_ms)
    assert found[:2] == [UNSET, (1, 0, 0)]
    assert sum(one != other for one, other in pairwise(found)) <= 11


def test_old_loads_leave_the_mean() -> None:
    """A disk that became slow has its new price once the window has only new loads."""
    it = Loads()
    for at_ms in range(0, 3 * WINDOW_MS, EVERY_MS):
        it.load("disk", 10, 1000 if at_ms < WINDOW_MS else 10_000)
        found = it.meter.note(at_ms)
        if at_ms == WINDOW_MS // 2:
            assert found == (0, 100_000, 0)
    assert found == (0, 1_000_000, 0)
    assert len(it.meter._noted) <= NOTED_MAX


def test_a_tier_from_which_nothing_comes_keeps_its_time_for_a_while() -> None:
    """The longer, the more blocks it is the mean of."""
    for blocks, kept_ms in ((10, 10 * KEPT_MS_PER_BLOCK), (10_000, KEPT_MAX_MS)):
        it = Loads()
        it.load("disk", blocks, blocks * 50_000)
        for at_ms in range(0, kept_ms, EVERY_MS):
            assert it.meter.note(at_ms) == (0, 50_000_000, 0)
        assert it.meter.note(kept_ms) is UNSET
    it.load("disk", 100, 100_000)
    assert it.meter.note(kept_ms + EVERY_MS) == (0, 1_000_000, 0)
