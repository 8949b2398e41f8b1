"""What streams were told, in figures, and what of it should not have been."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from typing import Any

from actors.worker.engine_watchdog import ENGINE_STALL_S
from core.events import RequestMigrated
from tests.chaos.complaints import SHOWN_MAX
from tests.chaos.streams_load import StreamTally

PAUSE_MAX_S = 15.0
"""Longest pause of a stream that goes on behind its tokens: a stopped worker is found out, and then another …"""
PAUSE_HUNG_MAX_S = 2 * ENGINE_STALL_S
"""… and of one whose engine hangs."""


def summary(
    tally: StreamTally, violations: list[str], pause_max_s: float = PAUSE_MAX_S, *, whole: bool = True
) -> dict[str, Any]:
    """What all streams were told; `whole` if none may have got an error."""
    violations += [f"wrong text: {sentence}" for sentence in tally.wrong]
    violations += [f"no clear answer: {sentence}" for sentence in tally.broken]
    if whole:
        violations += [f"an error: {sentence}" for sentence in tally.errors]
        pause_s = max(tally.pauses_s, default=0.0)
        if pause_s > pause_max_s:
            violations.append(f"a stream paused for {pause_s:.1f} s")
    return {
        "whole": tally.whole,
        "errors": len(tally.errors),
        "kinds_of_errors": sorted(set(tally.errors))[:SHOWN_MAX],
        "wrong": len(tally.wrong),
        "broken": len(tally.broken),
        "ties": len(tally.ties),
        "longest_pause_s": _longest(tally.pauses_s),
        "longest_pause_again_s": _longest(tally.pauses_again_s),
        "median_longest_pause_s": _median(tally.pauses_s),
        "longest_first_s": _longest(tally.firsts_s),
    }


def moved(events: Sequence[RequestMigrated], tally: StreamTally) -> dict[str, Any]:
    """Of those streams that went on with another worker; pauses are of plain ones, the longest of each."""
    times = Counter(event.request for event in events)
    pauses_s = [tally.pause_of[request] for request in times if request in tally.pause_of]
    return {
        "streams": len(times),
        "most_of_one_stream": max(times.values(), default=0),
        "ties": len(tally.ties & times.keys()),
        "median_pause_s": _median(pauses_s),
        "longest_pause_s": _longest(pauses_s),
    }


def _longest(times_s: Sequence[float]) -> float:
    return round(max(times_s, default=0.0), 2)


def _median(times_s: Sequence[float]) -> float:
    return round(statistics.median(times_s), 3) if times_s else 0.0
