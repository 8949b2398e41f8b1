"""Weighed: what spoke for the chosen worker under `time`, and what against it, term by term."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from projections.policy.cost import MILLI, ScoredCandidate, pending_beyond
from replay.explaining.estimated import taken_apart, tokens
from replay.explaining.ground import Ground


class _Point(NamedTuple):
    """One term in which two candidates differ."""

    gain_us: int
    """By how much it makes the first one cheaper; negative if dearer."""
    text: str


def weighed(on: Ground, ours: ScoredCandidate, theirs: ScoredCandidate) -> str:
    """What the first does better than the second, the weightiest first, and what worse: `computes 3,100 tokens more
    (190 ms), but waits 240 ms less`. Empty if the costs are not known by their terms."""
    points = list(_points(on, ours, theirs))
    better = sorted((point for point in points if point.gain_us > 0), key=lambda point: -point.gain_us)
    worse = sorted((point for point in points if point.gain_us < 0), key=lambda point: point.gain_us)
    if not better or not worse:
        return _joined(better or worse)
    return f"{_joined(worse)}, but {_joined(better)}"


def _points(on: Ground, ours: ScoredCandidate, theirs: ScoredCandidate) -> Iterator[_Point]:
    size = on.event.block_size
    mine, other = (taken_apart(each, on.settings, size, on.backlog) for each in (ours, theirs))
    if mine is None or other is None:
        return
    more = tokens(ours, size) - tokens(theirs, size)
    gain_us = other.own - mine.own
    yield _Point(gain_us, f"computes {_by(more)} ({ms_text(abs(gain_us))})" if more else "")
    gain_us = other.wait - mine.wait
    yield _Point(gain_us, f"waits {ms_text(abs(gain_us))} {'less' if gain_us > 0 else 'longer'}")
    gain_us = other.decode - mine.decode
    blocks = _active(ours) - _active(theirs)
    fewer = f"{abs(blocks):,} {'fewer' if blocks < 0 else 'more'} active blocks"
    yield _Point(gain_us, f"has {fewer} ({ms_text(abs(gain_us))})")
    yield _Point(other.requests - mine.requests, _holding_up(ours, theirs, other.requests - mine.requests))


def _by(more: int) -> str:
    return f"{abs(more):,} token{'' if abs(more) == 1 else 's'} {'fewer' if more < 0 else 'more'}"


def _active(scored: ScoredCandidate) -> int:
    return scored.candidate.active_blocks - pending_beyond(scored.candidate)


def _holding_up(ours: ScoredCandidate, theirs: ScoredCandidate, gain_us: int) -> str:
    mine, other = ours.candidate.active_requests, theirs.candidate.active_requests
    if mine == other:
        how = f"holds up {mine} requests for {'less' if gain_us > 0 else 'more'} time"
    else:
        how = f"holds up {mine} requests, not {other}"
    return f"{how} ({ms_text(abs(gain_us))})"


def ms_text(us: float) -> str:
    """`240 ms`, `13.7 ms`, `1.48 ms`: three digits that count."""
    ms = us / MILLI
    digits = 0 if ms >= 100 else 1 if ms >= 10 else 2 if ms >= 1 else 3
    text = f"{ms:,.{digits}f}"
    return f"{text.rstrip('0').rstrip('.') if digits else text} ms"


def _joined(points: list[_Point]) -> str:
    *before, last = [point.text for point in points] or [""]
    return f"{', '.join(before)} and {last}" if before else last
