"""The rate of prompts and the turnover of the cache that load reports state."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace
from typing import cast

import pytest

from actors.engines.engine import Engine, EngineLoad
from actors.membership.worker_publisher import WorkerPublisher
from actors.worker.load_reporter import (
    RATE_EVERY_MS,
    RATE_WINDOW_MS,
    REPORT_EVERY_MS,
    TURNOVER_EVERY_MS,
    TURNOVER_WINDOW_MS,
    LoadReporter,
    ReuseRate,
    Turnover,
)
from core.events import LoadReported
from streams.broker_clock import BrokerClock


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


CACHE_TOKENS = 64_000
"""So a step of the turnover is a thousand tokens."""


@pytest.mark.parametrize("start_ms", [0, 1_764_000_000_000])
def test_turnover_by_hand(start_ms: int) -> None:
    """The part of the cache that the computed tokens of the last 20 minutes fill, also with a clock that starts late.
    Tokens count no longer TURNOVER_WINDOW_MS after the last sum before them."""
    turnover = Turnover()
    sums = (
        (0, 0, 0),
        (20_000, 999, 0),
        (40_000, 1000, 1),
        (60_000, 10_500, 10),
        (80_000, 63_999, 63),
        (100_000, 64_000, 64),
        (120_000, 500_000, 64),
        (TURNOVER_WINDOW_MS + 60_000, 500_000, 64),
        (TURNOVER_WINDOW_MS + 100_000, 500_000, 64),
        (TURNOVER_WINDOW_MS + 120_000, 500_000, 0),
        (TURNOVER_WINDOW_MS + 140_000, 502_000, 2),
        (2 * TURNOVER_WINDOW_MS + 120_000, 503_000, 3),
        (2 * TURNOVER_WINDOW_MS + 140_000, 503_000, 1),
        (2 * TURNOVER_WINDOW_MS + 160_000, 503_000, 1),
        (3 * TURNOVER_WINDOW_MS + 140_000, 503_000, 0),
    )
    for at_ms, computed_tokens, steps in sums:
        found = turnover.note(start_ms + at_ms, computed_tokens, CACHE_TOKENS)
        assert found == steps, at_ms
    assert repr(turnover).startswith("<Turnover of ")


def test_tokens_of_a_cache_of_unknown_size_are_no_turnover() -> None:
    """Its sums are noted: they count once the size is known."""
    turnover = Turnover()
    assert [turnover.note(at_ms, at_ms, 0) for at_ms in range(0, 60_000, 1000)] == [0] * 60
    assert turnover.note(60_000, 60_000, CACHE_TOKENS) == 60


def test_the_sums_of_a_turnover_are_bounded() -> None:
    """They are 20 s apart at least, with a report every REPORT_EVERY_MS. The turnover of a steady load is steady."""
    turnover = Turnover()
    found = [turnover.note(at_ms, at_ms // 100, CACHE_TOKENS) for at_ms in range(0, 4_800_000, REPORT_EVERY_MS)]
    assert len(turnover._sums) <= TURNOVER_WINDOW_MS // TURNOVER_EVERY_MS + 2 == 62
    assert all(after[0] - before[0] >= TURNOVER_EVERY_MS for before, after in pairwise(turnover._sums))
    window = TURNOVER_WINDOW_MS // REPORT_EVERY_MS
    assert {*found[window:]} == {12}
    assert found[: window + 1] == sorted(found[: window + 1])


def test_cached_tokens_fill_nothing() -> None:
    """A load report has the turnover of the computed tokens alone: 1000 blocks of 16 tokens are a cache."""
    reported: list[LoadReported] = []
    totals = {"prompt_tokens": 0, "cached_tokens": 0}
    kv = SimpleNamespace(n_acked=0, head=b"")

    def on_report(report: LoadReported) -> bool:
        reported.append(report)
        return True

    publisher = SimpleNamespace(kv=kv, report=on_report)
    engine = SimpleNamespace(
        info=SimpleNamespace(block_size=16, tier_loads=None),
        load=lambda: EngineLoad(running=0, waiting=0, blocks_used=0, blocks_total=1000),
    )
    reporter = LoadReporter(
        cast("Engine", engine),
        cast("BrokerClock", SimpleNamespace(monotonic_ms=lambda: 5, noted_offset_ms=0)),
        publisher=lambda: cast("WorkerPublisher", publisher),
        draining=lambda: False,
        totals=lambda: totals,
    )
    for prompt_tokens, cached_tokens, steps in ((4000, 0, 16), (12_000, 8000, 16), (14_000, 8000, 24)):
        totals |= {"prompt_tokens": prompt_tokens, "cached_tokens": cached_tokens}
        reporter.report()
        assert reported[-1].turnover == steps
