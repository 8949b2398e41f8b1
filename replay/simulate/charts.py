"""Charts of a simulation as SVG: one run over time, and the runs of a sweep against each other.

A small SVG writer draws panels with two axes, lines, bars and dots, one panel below the other. Equal data give equal
bytes: all coordinates are rounded to a tenth of a pixel.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple
from xml.sax.saxutils import escape

from replay.simulate.report import LatencySummary, ServedRequest, SimulationReport, latency_summary
from replay.simulate.setup import SweepPoint, label
from replay.whatif.scale_figures import ScaleFigures, ScaleWhatIf

WIDTH, HEIGHT = 880, 300
"""Of a panel, in pixels."""
LEFT, TOP, BOTTOM = 70, 40, 46
RIGHT, RIGHT_OF_LONG = 150, 400
"""Around the part with data; the legend stands at the right, where long names need more room."""
LONG = 18
"""Letters of a name that is."""
NAMED_MAX = 14
"""Dots in the legend; further ones tell their name when a pointer rests on them."""
TICKS = 5
"""About so many on an axis."""
COLOURS = (
    "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f", "#000000",
)  # fmt: skip
"""The palette of Okabe and Ito, which readers with a colour deficiency can tell apart; repeated after the last."""
UNNAMED = "#ccc"
STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#333}.title{font-weight:600;font-size:14px}"
    ".grid{stroke:#ddd}.axis{stroke:#888}.line{fill:none;stroke-width:1.5}"
)


class LineSeries(NamedTuple):
    """Points joined in their order."""

    name: str
    """In the legend; without one it is thin and grey."""
    points: Sequence[tuple[float, float]]


class ScatterPoint(NamedTuple):
    """One point, which gets its number, from 1."""

    name: str
    x: float
    y: float


@dataclass(frozen=True, slots=True)
class ChartPanel:
    """One chart; `lines` or `dots`, or both."""

    title: str
    across: str
    """Label of the horizontal axis, with its unit."""
    up: str
    lines: Sequence[LineSeries] = ()
    dots: Sequence[ScatterPoint] = ()
    from_zero: bool = True
    """The vertical axis begins at 0."""
    bars: bool = False
    """Each line is drawn as bars beside those of the others, at whole numbers."""


def render_svg(panels: Sequence[ChartPanel], note: str = "") -> str:
    """The text of an SVG file."""
    height = HEIGHT * len(panels) + (24 if note else 0)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}">',
        f"<style>{STYLE}</style>",
        f'<rect width="{WIDTH}" height="{height}" fill="#fff"/>',
    ]
    for number, panel in enumerate(panels):
        parts += [f'<g transform="translate(0 {number * HEIGHT})">', *_PanelDrawing(panel).parts(), "</g>"]
    if note:
        parts.append(_text(LEFT, height - 10, note))
    return "\n".join([*parts, "</svg>", ""])


class _Axis(NamedTuple):
    """From values to pixels."""

    low: float
    high: float
    start_px: float
    end_px: float

    def px(self, value: float) -> float:
        share = (value - self.low) / (self.high - self.low)
        return round(self.start_px + share * (self.end_px - self.start_px), 1)

    @property
    def ticks(self) -> list[float]:
        """Round numbers between its ends."""
        step = _step((self.high - self.low) / TICKS)
        first = math.ceil(self.low / step - 1e-9)
        return [number * step for number in range(first, math.floor(self.high / step + 1e-9) + 1)]

    @staticmethod
    def over(values: Sequence[float], start_px: float, end_px: float, *, from_zero: bool) -> _Axis:
        low, high = min(values, default=0.0), max(values, default=1.0)
        low = min(0.0, low) if from_zero else low
        if high <= low:
            high = low + 1
        slack = (high - low) * 0.05
        return _Axis(low if from_zero else low - slack, high + slack, start_px, end_px)


class _PanelDrawing:
    """A panel on its axes."""

    def __init__(self, panel: ChartPanel) -> None:
        xs = [x for line in panel.lines for x, _ in line.points] + [dot.x for dot in panel.dots]
        ys = [y for line in panel.lines for _, y in line.points] + [dot.y for dot in panel.dots]
        if panel.bars:
            xs = [-0.5, max(xs, default=0) + 0.5]
        self.panel = panel
        names = [line.name for line in panel.lines] + [dot.name for dot in panel.dots]
        self.right = WIDTH - (RIGHT_OF_LONG if any(len(name) > LONG for name in names) else RIGHT)
        self.across = _Axis.over(xs, LEFT, self.right, from_zero=False)
        self.up = _Axis.over(ys, HEIGHT - BOTTOM, TOP, from_zero=panel.from_zero)

    def parts(self) -> list[str]:
        """Its elements, those behind first."""
        panel, middle = self.panel, (LEFT + self.right) / 2
        found = [
            _text(LEFT, 20, panel.title, "title"),
            _text(middle, HEIGHT - 8, panel.across, anchor="middle"),
            f'<g transform="translate(14 {HEIGHT / 2:g}) rotate(-90)">{_text(0, 0, panel.up, anchor="middle")}</g>',
            *self._grid(),
        ]
        for number, line in enumerate(panel.lines):
            colour = COLOURS[number % len(COLOURS)] if line.name else UNNAMED
            found += self._bars(number, line, colour) if panel.bars else [self._line(line, colour)]
            found += self._legend(number, line.name, colour) if line.name else []
        return [*found, *self._dots()]

    def _grid(self) -> list[str]:
        low_px, right = HEIGHT - BOTTOM, self.right
        found = []
        for value in self.up.ticks:
            y = self.up.px(value)
            found += [_stroke(LEFT, y, right, y, "grid"), _text(LEFT - 6, y + 4, _number(value), anchor="end")]
        for value in self.across.ticks:
            x = self.across.px(value)
            found += [_stroke(x, low_px, x, low_px + 4, "axis"), _text(x, low_px + 18, _number(value), anchor="middle")]
        return [*found, _stroke(LEFT, low_px, right, low_px, "axis"), _stroke(LEFT, TOP, LEFT, low_px, "axis")]

    def _line(self, line: LineSeries, colour: str) -> str:
        points = " ".join(f"{self.across.px(x)},{self.up.px(y)}" for x, y in line.points)
        return f'<polyline class="line" stroke="{colour}" points="{points}"/>'

    def _bars(self, number: int, line: LineSeries, colour: str) -> list[str]:
        wide = (self.across.px(1) - self.across.px(0)) * 0.8 / len(self.panel.lines)
        found = []
        for x, y in line.points:
            left = self.across.px(x) + (number - len(self.panel.lines) / 2) * wide
            top, low = self.up.px(y), self.up.px(0)
            found.append(
                f'<rect x="{left:.1f}" y="{top}" width="{wide:.1f}" height="{low - top:.1f}" fill="{colour}"/>'
            )
        return found

    def _dots(self) -> list[str]:
        found = []
        for number, dot in enumerate(self.panel.dots):
            x, y = self.across.px(dot.x), self.up.px(dot.y)
            colour = COLOURS[number % len(COLOURS)]
            mark = f'<circle cx="{x}" cy="{y}" r="4" fill="{colour}"><title>{escape(dot.name)}</title></circle>'
            found += [mark, _text(x + 6, y - 4, str(number + 1))]
            if number < NAMED_MAX:
                found += self._legend(number, f"{number + 1}: {dot.name}", colour)
        return found

    def _legend(self, number: int, name: str, colour: str) -> list[str]:
        y, x = TOP + 8 + 16 * number, self.right + 14
        return [f'<rect x="{x}" y="{y - 8}" width="10" height="10" fill="{colour}"/>', _text(x + 16, y + 1, name)]


def _text(x: float, y: float, text: str, kind: str = "", anchor: str = "") -> str:
    attributes = (f' class="{kind}"' if kind else "") + (f' text-anchor="{anchor}"' if anchor else "")
    return f'<text x="{x:g}" y="{y:g}"{attributes}>{escape(text)}</text>'


def _stroke(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    return f'<line class="{kind}" x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}"/>'


def _step(about: float) -> float:
    """1, 2 or 5 times a power of ten, not below it."""
    power = 10.0 ** math.floor(math.log10(about))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= about * (1 - 1e-9))


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.6g}"


BINS = 60
"""Of the time."""
WORKERS_MAX = 16
"""Lines in a panel: with more workers only the mean and the fullest are drawn."""
US_PER_S = 1_000_000
HOUR_MS = 3_600_000


def run_plot(served: Sequence[ServedRequest], found: SimulationReport, note: str = "") -> str:
    """Time to first token, requests in flight on each worker, and what each worker had to do in all."""
    done = [each for each in served if each.first_us >= 0]
    end_us = max((each.end_us for each in done), default=0) + 1
    panels = [_first_tokens(done, end_us), _in_flight(done, len(found.load_spread.requests.per_worker), end_us)]
    return render_svg([*panels, _work(found)], note)


def _first_tokens(done: Sequence[ServedRequest], end_us: int) -> ChartPanel:
    bins: list[list[int]] = [[] for _ in range(BINS)]
    for each in done:
        bins[each.arrival_us * BINS // end_us].append(each.first_us - each.arrival_us)
    found = [(_middle_s(number, end_us), latency_summary(taken)) for number, taken in enumerate(bins) if taken]
    return ChartPanel(
        title="Time to first token, by arrival",
        across="virtual time, s",
        up="ms",
        lines=[
            LineSeries(name, [(at_s, _one(each, name)) for at_s, each in found])
            for name in ("mean", "p50", "p90", "p99")
        ],
    )


def _one(found: LatencySummary, name: str) -> float:
    value: float = getattr(found, name)
    return value


def _in_flight(done: Sequence[ServedRequest], workers: int, end_us: int) -> ChartPanel:
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
    return ChartPanel(
        title="Requests in flight on each worker",
        across="virtual time, s",
        up="requests",
        lines=[
            LineSeries(name, [(_middle_s(number, end_us), value) for number, value in enumerate(row)])
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


def _work(found: SimulationReport) -> ChartPanel:
    """As shares of the mean, so that both fit one axis."""
    spreads = {"requests": found.load_spread.requests, "computed tokens": found.load_spread.computed_tokens}
    workers = len(found.load_spread.requests.per_worker)
    return ChartPanel(
        title="Load of each worker, all in all",
        across="worker",
        up="of the mean",
        lines=[
            LineSeries(
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


CACHED = "prompt tokens from caches, %"
FIRST = "mean time to first token, ms"
WHOLE = "p99 of the whole answer, ms"
FIGURES: Mapping[str, Callable[[SimulationReport], float]] = {
    CACHED: lambda report: 100 * report.hit_rate,
    FIRST: lambda report: report.ttft_ms.mean,
    WHOLE: lambda report: report.e2e_ms.p99,
}


def sweep_plot(points: Sequence[SweepPoint], note: str = "") -> str:
    """Hit rate against mean time to first token, and against the p99 of the whole answer, a dot for each run; then each
    of the three over the setting that changes fastest of those that are numbers. Runs that differ in that one alone
    are joined."""
    key = _numeric(points)
    panels = [_against(points, key, FIRST), _against(points, key, WHOLE)]
    return render_svg([*panels, *(_over(points, key, figure) for figure in FIGURES if key)], note)


def _against(points: Sequence[SweepPoint], key: str, figure: str) -> ChartPanel:
    def at(point: SweepPoint) -> tuple[float, float]:
        return FIGURES[figure](point.report), FIGURES[CACHED](point.report)

    return ChartPanel(
        title="Hit rate against time",
        across=figure,
        up=CACHED,
        lines=[LineSeries("", list(map(at, joined))) for joined in _joined(points, key).values() if key],
        dots=[ScatterPoint(label(point.given), *at(point)) for point in points],
        from_zero=False,
    )


def _over(points: Sequence[SweepPoint], key: str, figure: str) -> ChartPanel:
    return ChartPanel(
        title=f"Over {key}",
        across=key,
        up=figure,
        lines=[
            LineSeries(
                name or "all runs", sorted((point.given[key], FIGURES[figure](point.report)) for point in joined)
            )
            for name, joined in _joined(points, key).items()
        ],
        from_zero=False,
    )


def _numeric(points: Sequence[SweepPoint]) -> str:
    """The last setting that is a number in every run; empty if there is none."""
    names = reversed(list(points[0].given)) if points else ()
    return next((name for name in names if all(_is_number(point.given[name]) for point in points)), "")


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _joined(points: Sequence[SweepPoint], key: str) -> dict[str, list[SweepPoint]]:
    """By what they have in common."""
    found: dict[str, list[SweepPoint]] = {}
    for point in points:
        common: dict[str, Any] = {name: value for name, value in point.given.items() if name != key}
        found.setdefault(label(common), []).append(point)
    return found


def sizes_plot(found: ScaleWhatIf) -> str:
    """Sizes of the fleet over time, a line for each row of the answer; worker-hours against predicted attainment."""
    every = (found.recorded, *found.scenarios)
    dots = [
        ScatterPoint(each.label, each.worker_hours, 100 * each.attainment)
        for each in every
        if each.attainment is not None
    ]
    over_time = ChartPanel(
        title="Size of the fleet",
        across="hours",
        up="workers",
        lines=[LineSeries(each.label, _size_steps(each, found.first_ms, found.last_ms)) for each in every],
    )
    against = ChartPanel(
        title="Service against cost", across="worker-hours", up="attained, predicted, %", dots=dots, from_zero=False
    )
    return render_svg([over_time, against])


def _size_steps(figures: ScaleFigures, first_ms: int, last_ms: int) -> list[tuple[float, float]]:
    """Each size from its decision until the next one."""
    ends_ms = [*(size.at_ms for size in figures.sizes[1:]), last_ms]
    return [
        ((at_ms - first_ms) / HOUR_MS, float(size.target))
        for size, end_ms in zip(figures.sizes, ends_ms, strict=True)
        for at_ms in (size.at_ms, end_ms)
    ]
