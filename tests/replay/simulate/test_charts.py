"""Plots: whole SVG files that show what was found."""

from __future__ import annotations

from xml.etree import ElementTree as ET

import msgspec
import pytest

from replay.simulate.charts import (
    BINS,
    NAMED_MAX,
    WORKERS_MAX,
    ChartPanel,
    LineSeries,
    ScatterPoint,
    _in_flight,
    render_svg,
    run_plot,
    sweep_plot,
)
from replay.simulate.report import ServedRequest, SimulationReport, report
from replay.simulate.setup import SweepPoint
from tests.replay.simulate.test_report import failed, served

SVG = "{http://www.w3.org/2000/svg}"


def run(workers: int) -> tuple[list[ServedRequest], SimulationReport]:
    rows = [
        served(
            n, arrival_us=n * 10_000, routed_us=n * 10_000, first_us=n * 20_000, end_us=n * 30_000, worker=n % workers
        )
        for n in range(1, 100)
    ]
    return rows, report([*rows, failed(0)], workers)


def elements(text: str, kind: str) -> list[ET.Element]:
    return list(ET.fromstring(text).iter(SVG + kind))


def words(text: str) -> list[str]:
    return [each.text or "" for each in elements(text, "text")]


def test_a_run_over_time() -> None:
    """A line for each number and each worker, bars for what each had; what failed is not drawn."""
    rows, found = run(3)
    text = run_plot([*rows, failed(0)], found, "a < b & c")

    assert len(elements(text, "polyline")) == 4 + 3
    assert {"mean", "p99", "worker 0", "worker 2", "a < b & c"} <= set(words(text))
    assert text == run_plot([*rows, failed(0)], found, "a < b & c")


def test_time_in_flight_is_all_of_it() -> None:
    """All bins of all workers together are the time that requests spent there."""
    rows, _ = run(3)
    end_us = max(each.end_us for each in rows) + 1

    panel = _in_flight(rows, 3, end_us)

    for worker, line in enumerate(panel.lines):
        drawn_us = sum(mean for _, mean in line.points) * end_us / BINS
        spent_us = sum(each.end_us - each.routed_us for each in rows if each.worker == worker)
        assert drawn_us == pytest.approx(spent_us)


def test_many_workers_are_two_lines() -> None:
    """More could not be told apart."""
    rows, found = run(WORKERS_MAX + 1)

    assert len(elements(run_plot(rows, found), "polyline")) == 4 + 2


@pytest.mark.parametrize("rows", [[], [failed(0)]])
def test_nothing_served_is_an_empty_plot(rows: list[ServedRequest]) -> None:
    """And no failure."""
    assert words(run_plot(rows, report(rows, 2)))


def test_a_sweep_is_a_dot_per_run() -> None:
    """Twice, each against its time; runs that differ in the last number alone are joined, there and over it."""
    _, found = run(2)
    points = [
        SweepPoint({"workers": workers, "prefill_weight": weight}, msgspec.structs.replace(found, hit_rate=weight / 10))
        for workers in (2, 4)
        for weight in (0.5, 1, 2)
    ]
    policies = [SweepPoint({**point.given, "policy": "kv"}, point.report) for point in points]
    text = sweep_plot(points)

    assert len(elements(text, "circle")) == 2 * 6
    assert len(elements(text, "polyline")) == 2 * 2 + 3 * 2
    assert words(text).count("workers 4") == 3
    assert len(elements(sweep_plot(policies), "polyline")) == 2 * 2 + 3 * 2
    assert words(text).count("1: workers 2, prefill_weight 0.5") == 2
    many = sweep_plot([SweepPoint({"seed": seed}, found) for seed in range(NAMED_MAX + 1)])
    assert f"{NAMED_MAX}: seed {NAMED_MAX - 1}" in words(many)
    assert f"{NAMED_MAX + 1}: seed {NAMED_MAX}" not in words(many)
    assert [each.text for each in elements(many, "title")].count(f"seed {NAMED_MAX}") == 2


def test_names_are_not_on_a_scale() -> None:
    """Policies are dots, and nothing joins them."""
    _, found = run(2)

    text = sweep_plot([SweepPoint({"policy": policy}, found) for policy in ("kv", "random")])

    assert len(elements(text, "circle")) == 2 * 2
    assert not elements(text, "polyline")
    assert sweep_plot([])


@pytest.mark.parametrize("high", [1e-6, 0.3, 7, 12_345, 1e9])
def test_axes_have_a_few_round_numbers(high: float) -> None:
    """Whatever the size, and none outside."""
    text = render_svg([ChartPanel(title="t", across="x", up="y", lines=[LineSeries("l", [(0, 0), (high, high)])])])

    numbers = {word for word in words(text) if word.replace(",", "").replace(".", "").replace("e-", "").isdigit()}
    assert 3 <= len(numbers) <= 8
    assert max(float(number.replace(",", "")) for number in numbers) <= high * 1.06
    assert "nan" not in text


def test_equal_values_have_an_axis() -> None:
    """A single dot stands somewhere."""
    (circle,) = elements(
        render_svg([ChartPanel(title="", across="", up="", dots=[ScatterPoint("d", 5, 5)], from_zero=False)]), "circle"
    )

    assert 0 < float(circle.get("cx") or 0) < 880
    assert 0 < float(circle.get("cy") or 0) < 300
