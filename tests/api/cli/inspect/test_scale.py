"""`contrail scale`: decisions as a table."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from api.cli.inspect.scale import PlannedPeriod, hold, scale_text
from api.cli.options import pairs_of
from api.cli.renderer import Table
from api.cli.replay.text.scale_text import percent_of
from core.errors import CallerError
from projections.scaling.scale_settings import ScaleSettings
from tests.api.config.test_deployment_ref import running
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


def test_bounds_out_of_reach_are_told() -> None:
    """With the predictions by eased bounds, and what to set."""
    demand = [rolled(number, 100) for number in range(60)]
    found = [PlannedPeriod(decided(demand, ScaleSettings(ttft_ms=90), 20_000, ready=1), demand[-1])]

    _, _, told, _, candidates = scale_text(found)

    assert str(told).startswith("An idle worker keeps 0.00 % of requests within the bounds. Wider ones can be met: ")
    assert isinstance(candidates, Table)
    assert candidates.heads[-1] == "eased"
    assert [row[-1] for row in candidates.rows] == [
        percent_of(each.eased_bp or 0) for each in found[0].decided.candidates
    ]


def test_before_the_first_decision() -> None:
    """The text says what is missing."""
    (line,) = scale_text([])

    assert str(line).startswith("no decision yet")


def test_a_setting_without_a_value_names_its_own_command() -> None:
    """Not that of routing's settings."""
    with pytest.raises(CallerError, match="contrail scale set KEY VALUE"):
        pairs_of(("max",), "contrail scale set")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--model", "wrong"), "--model wrong: it sizes one model, and the option is of several"),
        (("--role", "prefill"), "the planner sizes no prefill workers: leave --role out"),
    ],
)
def test_to_hold_a_fleet_that_is_not_sized(tmp_path: Path, words: tuple[str, ...], said: str) -> None:
    """The wrong name is the fault, and not that no decision is known of it."""
    result = CliRunner().invoke(hold, ["--data", str(running(tmp_path).path), *words])

    assert said in str(result.exception)
