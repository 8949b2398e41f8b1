"""The rate of prompts that load reports state."""

from __future__ import annotations

from itertools import pairwise

from actors.worker.load_reporter import RATE_EVERY_MS, RATE_WINDOW_MS, REPORT_EVERY_MS, ReuseRate


def test_a_steady_load_gives_its_rate_after_a_window() -> None:
    """Before, as much as a share of the window; it changes every RATE_EVERY_MS at most."""
    rate = ReuseRate()
    found = [
        rate.note(at_ms, 50 * at_ms // 1000, 50 * at_ms // 1000)
        for at_ms in range(0, 2 * RATE_WINDOW_MS, REPORT_EVERY_MS)
    ]
    per_window = RATE_WINDOW_MS // REPORT_EVERY_MS
    assert (found[0], found[per_window // 2], found[-1]) == (0, 25, 50)
    changes = sum(one != other for one, other in pairwise(found))
    assert 0 < changes <= RATE_WINDOW_MS // RATE_EVERY_MS
    assert repr(rate) == "<ReuseRate 50/s>"


def test_a_burst_counts_for_one_window() -> None:
    """Equally from its first report to its last; then nothing is left of it. Memory is bounded."""
    rate = ReuseRate()
    found = [rate.note(at_ms, *[60_000 if at_ms >= 10_000 else 0] * 2) for at_ms in range(0, 200_000, REPORT_EVERY_MS)]
    assert {*found} == {0, 60_000 * 1000 // RATE_WINDOW_MS}
    lasts_ms = sum(1 for each in found if each) * REPORT_EVERY_MS
    assert RATE_WINDOW_MS - RATE_EVERY_MS <= lasts_ms <= RATE_WINDOW_MS + RATE_EVERY_MS
    assert len(rate._sums) <= RATE_WINDOW_MS // RATE_EVERY_MS + 1


def test_reports_that_come_late_keep_the_window() -> None:
    """A worker that stood still for long has no rate of before."""
    rate = ReuseRate()
    rate.note(0, 0, 0)
    rate.note(1000 * RATE_WINDOW_MS, 10**9, 10**9)
    assert rate.note(1000 * RATE_WINDOW_MS + RATE_EVERY_MS, *[10**9 + 240] * 2) == 240 * 1000 // RATE_WINDOW_MS


def test_prompts_that_only_begin_alike_count_little() -> None:
    """What was computed counts twice against what the cache had; up to two thirds in the cache are nothing."""
    for cached, counts in ((400, 400), (300, 100), (266, 0), (100, 0)):
        rate = ReuseRate()
        rate.note(0, 0, 0)
        assert rate.note(RATE_WINDOW_MS, 400 * RATE_WINDOW_MS // 1000, cached * RATE_WINDOW_MS // 1000) == counts
