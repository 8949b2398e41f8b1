"""RecentSizes: sizes that vary and come back, sizes that change for good, and the bounds of both."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from core.events.scale import DemandCell
from projections.scaling.queue_model import ALL_BP
from projections.scaling.recent_sizes import ALIKE_BP, RecentSizes, SizesEvent
from projections.scaling.request_demand import size_classes
from tests.projections.scaling.demands import START_MS, cell

REQUESTS, HOUR_S = 2048, 3600
MINUTE_MS = 60_000


def sizes(minutes: Sequence[tuple[DemandCell, ...]], requests: int = REQUESTS, seconds: int = HOUR_S) -> RecentSizes:
    """One event a minute."""
    found = RecentSizes(requests, seconds)
    for number, cells in enumerate(minutes):
        found.add(minute(number, cells))
    return found


def minute(number: int, cells: tuple[DemandCell, ...]) -> SizesEvent:
    return SizesEvent.of(START_MS + number * MINUTE_MS, cells)


def requests(found: RecentSizes) -> int:
    return sum(each.count for each in found.cells)


def mean_uncached(found: RecentSizes) -> float:
    return sum(each.uncached_tokens for each in found.cells) / requests(found)


def test_sizes_that_come_back_to_their_mean_are_those_of_an_hour() -> None:
    """Five minutes of larger requests take turns with five of smaller ones."""
    waves = [(cell(700, uncached=1150 if number // 5 % 2 else 850),) for number in range(90)]

    found = sizes(waves)
    assert requests(found) == 60 * 700
    assert mean_uncached(found) == 1000
    assert mean_uncached(sizes(waves, seconds=0)) == 1150, "the last 2048 requests are three minutes"


@pytest.mark.parametrize(("before", "now"), [((1000, 100), (2000, 100)), ((2000, 100), (1000, 100))])
def test_a_change_counts_as_soon_as_enough_requests_show_it(before: tuple[int, int], now: tuple[int, int]) -> None:
    """Larger or smaller ones, the mean is within a quarter of theirs."""
    minutes = [(cell(700, *before),) for _ in range(60)]
    assert mean_uncached(sizes(minutes)) == before[0]
    changed = [(cell(700, *now),) for _ in range(3)]

    found = sizes(minutes + changed)
    factor = 1 + ALIKE_BP / ALL_BP
    assert now[0] / factor <= mean_uncached(found) <= now[0] * factor
    assert requests(sizes(minutes + changed * 20)) == 60 * 700, "an hour later all are alike again"
    assert mean_uncached(sizes(minutes + changed * 20)) == now[0]


def test_longer_answers_are_a_change_too() -> None:
    """Also where prompts stay as they are."""
    minutes = [(cell(700, output=100),) for _ in range(60)] + [(cell(2048, output=300),)]

    assert requests(sizes(minutes)) < 2048 + 3 * 700


def test_a_time_that_was_otherwise_ends_the_window() -> None:
    """What lies before it counts no more, even if it is like the last requests again."""
    minutes = [(cell(2048, uncached=tokens),) for tokens in (1000, 1000, 20_000, 1000, 1000)]

    assert requests(sizes(minutes)) == 2 * 2048


def test_without_a_time_the_last_requests_count() -> None:
    """With the others of their event; a single large event stays."""
    minutes = [(cell(256, uncached=100 + number),) for number in range(40)]
    assert requests(sizes(minutes, seconds=0)) == REQUESTS
    assert requests(sizes([*minutes, (cell(REQUESTS - 1),)], seconds=0)) == REQUESTS - 1 + 256
    assert requests(sizes([*minutes, (cell(3 * REQUESTS),)], seconds=0)) == 3 * REQUESTS


def test_few_requests_count_however_old_they_are() -> None:
    """There are none before them."""
    assert requests(sizes([(cell(3),) for _ in range(100)])) == 300
    assert sizes([]).cells == ()


def brute_force(minutes: Sequence[tuple[DemandCell, ...]]) -> list[DemandCell]:
    """The same, each mean by itself."""

    def sums(events: Sequence[tuple[DemandCell, ...]]) -> tuple[int, int, int]:
        flat = [each for event in events for each in event]
        return (
            sum(it.count for it in flat),
            sum(it.uncached_tokens for it in flat),
            sum(it.output_tokens for it in flat),
        )

    last = next((n for n in range(1, len(minutes) + 1) if sums(minutes[-n:])[0] >= REQUESTS), len(minutes))
    chosen = last
    count, *totals = sums(minutes[-last:])
    for number in range(last + 1, min(len(minutes), HOUR_S * 1000 // MINUTE_MS) + 1):
        more, *others = sums(minutes[-number:])
        pairs = [(other * count, total * more) for other, total in zip(others, totals, strict=True)]
        if any(max(pair) * ALL_BP > min(pair) * (ALL_BP + ALIKE_BP) for pair in pairs):
            break
        chosen = number
    found: dict[tuple[int, int], list[int]] = {}
    for each in (each for event in minutes[len(minutes) - chosen :] for each in event):
        key = size_classes(each.uncached_tokens // each.count, each.output_tokens // each.count)
        values = found.setdefault(key, [0, 0, 0, 0])
        for place, value in enumerate((each.count, each.uncached_tokens, each.output_tokens, each.prompt_tokens)):
            values[place] += value
    return [DemandCell(*values) for _, values in sorted(found.items())]


CELLS = st.builds(cell, st.integers(1, 2500), st.integers(0, 6000), st.integers(1, 400))


@given(st.lists(st.tuples(st.lists(CELLS, min_size=1, max_size=3).map(tuple), st.booleans()), max_size=75))
def test_sums_are_those_of_the_plain_form(given: Sequence[tuple[tuple[DemandCell, ...], bool]]) -> None:
    """Also where the result was asked for behind some of the events."""
    found, minutes = RecentSizes(REQUESTS, HOUR_S), [cells for cells, _ in given]
    for number, (cells, is_asked) in enumerate(given):
        found.add(minute(number, cells))
        if is_asked:
            assert found.cells == found.cells == sizes(minutes[: number + 1]).cells

    assert list(found.cells) == list(sizes(minutes).cells) == brute_force(minutes)
