"""What any placement could make of a trace, on traces made by hand."""

from __future__ import annotations

from array import array

from bench.bounds import Turn, apart, by_odds, pooled, talks
from core.ids import RequestId
from replay.simulate.workload import Trace, TraceRequest


def turn(at_s: float, talk: int, *blocks: int) -> Turn:
    return Turn(at_s, blocks, talk)


ONCE = [turn(second, 100 + second, *range(1000 * second, 1000 * second + 10)) for second in range(1, 40)]
"""They never come back."""
TWICE = [turn(second + 0.5, second % 8, *range(second % 8 * 10, second % 8 * 10 + 10)) for second in range(40)]
"""Eight, each again after eight seconds."""
BOTH = sorted(ONCE + TWICE)


def test_a_pool_evicts_what_was_used_least_recently() -> None:
    turns = [turn(1, 1, 1, 2), turn(2, 2, 3), turn(3, 1, 1, 2), turn(4, 2, 3)]
    assert [pooled(turns, room) for room in (1, 2, 3)] == [0, 1, 3]
    assert pooled([turn(1, 1, 1, 2, 3), turn(2, 1, 1, 2, 3)], 2) == 2  # the last ones go first


def test_whoever_returns_is_better_off_alone() -> None:
    """Eight conversations of ten blocks fit into 80, if those that never come back are elsewhere."""
    assert pooled(BOTH, 90) == 0
    kinds = {turn.talk: int(turn.talk < 8) for turn in BOTH}
    assert apart(BOTH, 96, kinds) == 32 * 10
    assert apart(BOTH, 96, dict.fromkeys(kinds, 0)) == pooled(BOTH, 96)


def test_odds_tell_them_apart_after_a_while() -> None:
    """A conversation that came back once will again."""
    assert pooled(BOTH, 140) < by_odds(BOTH, 140) <= pooled(BOTH, 10_000) == 32 * 10
    assert by_odds(BOTH, 10_000) == 32 * 10


def test_conversations_of_a_trace() -> None:
    """By their longest known start; what all begin with tells nothing."""
    prompts = [(0, 1, 2), (0, 3), (0, 1, 2, 4), (0,), (0, 3, 5)]
    asked = [
        TraceRequest(RequestId(str(place)), place * 1_000_000, 0, 0, array("Q", blocks).tobytes())
        for place, blocks in enumerate(prompts)
    ]
    found = talks(Trace(asked, lambda _asked, _size: b""))
    assert [turn.talk for turn in found] == [0, 1, 0, 3, 1]
    assert [turn.at_s for turn in found] == [0, 1, 2, 3, 4]
