"""The settings of a planner: the judge, which a file may write as a word or as a truth value."""

from __future__ import annotations

import pytest

from core.errors import CallerError
from projections.scaling.scale_settings import OFF, ON, ScaleSettings


@pytest.mark.parametrize(("given", "judge"), [("on", ON), (True, ON), ("off", OFF), (False, OFF)])
def test_a_judge_is_on_or_off(given: object, judge: str) -> None:
    """YAML takes `on` for true. Settings without a judge stand in the log as before there was one."""
    found = ScaleSettings.parse({"judge": given})
    assert found.judge == judge
    assert ScaleSettings.parse(found.to_mapping()) == found
    assert ("judge" in found.to_mapping()) == (judge == ON)


@pytest.mark.parametrize("given", ["yes", 1, "", None])
def test_another_judge_is_refused(given: object) -> None:
    """With the words that there are."""
    with pytest.raises(CallerError, match=r"planner\.judge: .* is neither on nor off"):
        ScaleSettings.parse({"judge": given})


def test_without_a_word_there_is_no_judge() -> None:
    """It costs a third of a core, and has not been shown to pay."""
    assert ScaleSettings().judge == OFF
