"""`contrail scale`: decisions as a table."""

from __future__ import annotations

from api.cli.inspect.scale import PlannedPeriod, scale_text
from api.cli.renderer import Table
from projections.scaling.scale_settings import ScaleSettings
from tests.projections.scaling.demands import decided, rolled


def test_the_newest_decision_has_its_candidates() -> None:
    """Each with the terms that its attainment rests on."""
    demand = [rolled(number, 40) for number in range(60)]
    found = [PlannedPeriod(decided(demand, ScaleSettings(), 8_000), demand[-1])]

    rows, blank, sought, candidates = scale_text(found)

    assert isinstance(rows, Table)
    assert isinstance(candidates, Table)
    assert rows.rows[0][1:5] == ("8.00", "8.00", "0", "4")
    assert (blank, sought) == ("", "The last one sought 95.00 % of requests within the bounds:")
    assert [row[0] for row in candidates.rows] == [str(each.workers) for each in found[0].decided.candidates]


def test_before_the_first_decision() -> None:
    """The text says what is missing."""
    (line,) = scale_text([])

    assert str(line).startswith("no decision yet")
