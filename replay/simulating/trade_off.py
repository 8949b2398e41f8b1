"""Trade-off: what the runs of a sweep win and lose against each other, as SVG."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from replay.simulating.report import Report
from replay.simulating.setup import label
from replay.simulating.svg import Dot, Line, Panel, drawing
from replay.simulating.sweep import Point

CACHED = "prompt tokens from caches, %"
FIRST = "mean time to first token, ms"
WHOLE = "p99 of the whole answer, ms"
FIGURES: Mapping[str, Callable[[Report], float]] = {
    CACHED: lambda report: 100 * report.hit_rate,
    FIRST: lambda report: report.ttft_ms.mean,
    WHOLE: lambda report: report.e2e_ms.p99,
}


def sweep_plot(points: Sequence[Point], note: str = "") -> str:
    """Hit rate against mean time to first token, and against the p99 of the whole answer, a dot for each run; then each
    of the three over the setting that changes fastest of those that are numbers. Runs that differ in that one alone
    are joined."""
    key = _numeric(points)
    panels = [_against(points, key, FIRST), _against(points, key, WHOLE)]
    return drawing([*panels, *(_over(points, key, figure) for figure in FIGURES if key)], note)


def _against(points: Sequence[Point], key: str, figure: str) -> Panel:
    def at(point: Point) -> tuple[float, float]:
        return FIGURES[figure](point.report), FIGURES[CACHED](point.report)

    return Panel(
        title="Hit rate against time",
        across=figure,
        up=CACHED,
        lines=[Line("", list(map(at, joined))) for joined in _joined(points, key).values() if key],
        dots=[Dot(label(point.given), *at(point)) for point in points],
        from_zero=False,
    )


def _over(points: Sequence[Point], key: str, figure: str) -> Panel:
    return Panel(
        title=f"Over {key}",
        across=key,
        up=figure,
        lines=[
            Line(name or "all runs", sorted((point.given[key], FIGURES[figure](point.report)) for point in joined))
            for name, joined in _joined(points, key).items()
        ],
        from_zero=False,
    )


def _numeric(points: Sequence[Point]) -> str:
    """The last setting that is a number in every run; empty if there is none."""
    names = reversed(list(points[0].given)) if points else ()
    return next((name for name in names if all(_is_number(point.given[name]) for point in points)), "")


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _joined(points: Sequence[Point], key: str) -> dict[str, list[Point]]:
    """By what they have in common."""
    found: dict[str, list[Point]] = {}
    for point in points:
        common: dict[str, Any] = {name: value for name, value in point.given.items() if name != key}
        found.setdefault(label(common), []).append(point)
    return found
