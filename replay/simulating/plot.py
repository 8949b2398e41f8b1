"""Plot: one run of a simulation over time, as SVG."""

from __future__ import annotations

from collections.abc import Sequence

from replay.simulating.report import Report
from replay.simulating.served import Served
from replay.simulating.svg import Line, Panel, drawing
from replay.simulating.times import Times, times

BINS = 60
"""Of the time."""
WORKERS_MAX = 16
"""Lines in a panel: with more workers only the mean and the fullest are drawn."""
US_PER_S = 1_000_000


def run_plot(served: Sequence[Served], found: Report, note: str = "") -> str:
    """Time to first token, requests in flight on each worker, and what each worker had to do in all."""
    done = [each for each in served if each.first_us >= 0]
    end_us = max((each.end_us for each in done), default=0) + 1
    panels = [_first_tokens(done, end_us), _in_flight(done, len(found.load_spread.requests.per_worker), end_us)]
    return drawing([*panels, _work(found)], note)


def _first_tokens(done: Sequence[Served], end_us: int) -> Panel:
    bins: list[list[int]] = [[] for _ in range(BINS)]
    for each in done:
        bins[each.arrival_us * BINS // end_us].append(each.first_us - each.arrival_us)
    found = [(_middle_s(number, end_us), times(taken)) for number, taken in enumerate(bins) if taken]
    return Panel(
        title="Time to first token, by arrival",
        across="virtual time, s",
        up="ms",
        lines=[
            Line(name, [(at_s, _one(each, name)) for at_s, each in found]) for name in ("mean", "p50", "p90", "p99")
        ],
    )


def _one(found: Times, name: str) -> float:
    value: float = getattr(found, name)
    return value


def _in_flight(done: Sequence[Served], workers: int, end_us: int) -> Panel:
    """Means over each bin."""
    rows = [[0] * BINS for _ in range(workers)]
    for each in done:
        _add_time(rows[each.worker], each.routed_us, each.end_us, end_us)
    means = [[spent * BINS / end_us for spent in row] for row in rows]
    if workers > WORKERS_MAX:
        columns = list(zip(*means, strict=True))
        named = {"fullest": [max(column) for column in columns], "mean": [sum(column) / workers for column in columns]}
    else:
        named = {f"worker {number}": row for number, row in enumerate(means)}
    return Panel(
        title="Requests in flight on each worker",
        across="virtual time, s",
        up="requests",
        lines=[
            Line(name, [(_middle_s(number, end_us), value) for number, value in enumerate(row)])
            for name, row in named.items()
        ],
    )


def _add_time(row: list[int], start_us: int, stop_us: int, end_us: int) -> None:
    """The microseconds from start to stop, in the bins that they fall into."""
    for number in range(start_us * BINS // end_us, min(BINS - 1, stop_us * BINS // end_us) + 1):
        low, high = -(-number * end_us // BINS), -(-(number + 1) * end_us // BINS)
        row[number] += max(0, min(stop_us, high) - max(start_us, low))


def _middle_s(number: int, end_us: int) -> float:
    return (number + 0.5) * end_us / BINS / US_PER_S


def _work(found: Report) -> Panel:
    """As shares of the mean, so that both fit one axis."""
    spreads = {"requests": found.load_spread.requests, "computed tokens": found.load_spread.computed_tokens}
    workers = len(found.load_spread.requests.per_worker)
    return Panel(
        title="Load of each worker, all in all",
        across="worker",
        up="of the mean",
        lines=[
            Line(
                name,
                [
                    (place, value * workers / max(1, sum(each.per_worker)))
                    for place, value in enumerate(each.per_worker)
                ],
            )
            for name, each in spreads.items()
        ],
        bars=True,
    )
