"""Offsets of the clocks of sources, bounded by the stored times of their own messages alone."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from core.ids import StreamSeq
from core.subjects import ROUTING
from replay.verify.clock_offsets import OFFSETS_KEPT, WINDOW, ClockOffset, ClockOffsetWalk, furthest
from streams.archive.archive_format import Row
from streams.archive.message_envelope import Envelope


def offsets(times: Iterable[tuple[int, int]], source: str = "a") -> list[ClockOffset]:
    """Of one source with messages that were sent and stored at these times."""
    walk = ClockOffsetWalk(ROUTING)
    for n, (sent_ms, stored_ms) in enumerate(times):
        message = Envelope(1, source, n, b"", sent_ms, [])
        walk.take(Row(StreamSeq(n + 1), stored_ms, "", b""), message)
    return list(walk.offsets())


def steady(behind_ms: int, messages: int = 200, every_ms: int = 50, delay_ms: int = 3) -> list[tuple[int, int]]:
    """A source whose clock is behind, and whose messages take `delay_ms` to the log."""
    return [(at_ms - behind_ms, at_ms + delay_ms) for at_ms in range(0, messages * every_ms, every_ms)]


@pytest.mark.parametrize("behind_ms", [0, 100, -100, 1000, -1000, 60_000, -60_000, 3_600_000])
def test_the_bounds_hold_the_offset(behind_ms: int) -> None:
    [found] = offsets(steady(behind_ms))
    assert found.least_ms <= behind_ms <= found.most_ms
    assert found.most_ms - found.least_ms == 50
    assert found.sure_ms >= max(0, abs(behind_ms) - 50)
    assert found.steps == 0


def test_a_slow_way_to_the_log_is_no_offset() -> None:
    [found] = offsets(steady(0, every_ms=4000, delay_ms=3000))
    assert found.sure_ms == 0


def test_one_message_bounds_nothing() -> None:
    assert offsets([(0, 5000)]) == []
    [found] = offsets([(0, 5000), (10_000, 10_001)])
    assert (found.least_ms, found.most_ms) == (-5000, 1)


def test_drift_is_no_step_and_the_furthest_window_is_reported() -> None:
    drifting = [(at_ms - at_ms // 1000, at_ms + 3) for at_ms in range(0, 400_000, 50)]
    [found] = offsets(drifting)
    assert found.sure_ms > 300
    assert found.seq > WINDOW
    assert found.steps == 0


def test_a_step_is_counted_and_bounded_on_both_sides() -> None:
    before, after = steady(0), [(sent_ms + 10_000, stored_ms + 10_000) for sent_ms, stored_ms in steady(1000)]
    [found] = offsets([*before, *after])
    assert found.steps == 1
    assert found.least_ms <= 1000 <= found.most_ms


@pytest.mark.parametrize(("early_ms", "steps"), [(0, 0), (1, 0), (2, 1)])
def test_bounds_that_contradict_by_the_resolution_of_times_are_no_step(early_ms: int, steps: int) -> None:
    """A message that was sealed before the one before it was stored, by times that are cut off to milliseconds."""
    [found] = offsets([(0, 0), (100, 100), (100 - early_ms, 101)])
    assert found.steps == steps
    assert (found.most_ms == 0) is not bool(steps), "the bounds of one window count together"


def test_the_sources_that_are_furthest_off_are_kept() -> None:
    every = [each for ms in range(150) for each in offsets(steady(ms * 1000), f"{ms:03}")]
    kept = furthest(every)
    assert len(kept) == OFFSETS_KEPT
    assert kept[0].source == "149"
    assert kept == furthest(reversed(every))
