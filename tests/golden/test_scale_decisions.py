"""Old decisions of a planner: every one of each version of the rules comes out as it was.

`make_scale_decisions` has written the files. A change of the rules without a new version fails here.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import pytest
from msgspec.structs import replace

from core.events import ScaleDecided
from core.events.scale import ScaleEvent
from projections.scaling.scale_decision import ScaleInputs, decide_scale
from projections.scaling.scale_fold import ScaleFold
from projections.scaling.scale_rules import RULES
from replay.verify.scale_checks import recorded_inputs
from tests.golden.make_scale_decisions import path_of

DECISIONS_MIN = 100
"""In each file."""


def decisions(version: int, by: int) -> Iterator[tuple[ScaleDecided, ScaleInputs]]:
    """Each recorded one of that version of the rules, with its inputs for version `by`."""
    fold = ScaleFold()
    for line in path_of(version).read_bytes().splitlines():
        event = msgspec.json.decode(line, type=ScaleEvent)
        if isinstance(event, ScaleDecided):
            inputs = recorded_inputs(fold, replace(event, version=by))
            assert inputs is not None
            yield event, inputs
        fold.apply(event)


@pytest.mark.parametrize("version", RULES)
def test_decisions_come_out_as_they_were(version: int) -> None:
    """By the version that they record."""
    found = 0
    for event, inputs in decisions(version, version):
        assert event.version == version
        assert decide_scale(inputs) == event
        found += 1

    assert found >= DECISIONS_MIN


@pytest.mark.parametrize("version", sorted(RULES)[1:])
def test_the_version_before_decides_otherwise(version: int) -> None:
    """So the file of each version distinguishes the two."""
    differ = (decide_scale(inputs).candidates != event.candidates for event, inputs in decisions(version, version - 1))

    assert any(differ)
