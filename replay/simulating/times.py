"""Times: how long something took, over many requests."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

US_PER_MS = 1000
PERCENTILES = (50, 90, 99)


class Times(msgspec.Struct, frozen=True, kw_only=True):
    """In milliseconds; all 0 of nothing."""

    mean: float = 0.0
    p50: float = 0.0
    p90: float = 0.0
    p99: float = 0.0


def times(found_us: Sequence[int]) -> Times:
    """Of these, each counting once."""
    if not found_us:
        return Times()
    ordered = sorted(found_us)
    p50, p90, p99 = (ordered[_rank(len(ordered), percent) - 1] / US_PER_MS for percent in PERCENTILES)
    return Times(mean=sum(ordered) / (len(ordered) * US_PER_MS), p50=p50, p90=p90, p99=p99)


def token_times(found: Iterable[tuple[int, int]]) -> Times:
    """Of one token, from pairs of the microseconds and the number of tokens made in them; pairs without tokens count
    for nothing. A percentile counts each token with the mean of its pair."""
    pairs = sorted((took_us / tokens, tokens, took_us) for took_us, tokens in found if tokens > 0)
    total = sum(tokens for _, tokens, _ in pairs)
    if not total:
        return Times()
    p50, p90, p99 = (_weighed(pairs, _rank(total, percent)) / US_PER_MS for percent in PERCENTILES)
    return Times(mean=sum(took_us for *_, took_us in pairs) / (total * US_PER_MS), p50=p50, p90=p90, p99=p99)


def _weighed(pairs: Sequence[tuple[float, int, int]], rank: int) -> float:
    """The value of the token at this rank, from 1."""
    passed = 0
    for value, tokens, _ in pairs:
        passed += tokens
        if passed >= rank:
            return value
    raise AssertionError("the rank lies beyond the last token")


def _rank(count: int, percent: int) -> int:
    """The nearest rank, from 1."""
    return -(-count * percent // 100)
