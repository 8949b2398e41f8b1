"""Policies as the command lines of measurements name them."""

from __future__ import annotations

import pytest

from bench.policies import policies


def test_a_policy_may_have_settings() -> None:
    assert policies(["kv", "time,own_weight=3,hold_max_ms=5000"]) == {
        "kv": {"policy": "kv"},
        "time,own_weight=3,hold_max_ms=5000": {"policy": "time", "own_weight": 3, "hold_max_ms": 5000},
    }


@pytest.mark.parametrize("named", ["nearest", "kv,own_wight=3", "kv,own_weight", "time,own_weight=heavy"])
def test_what_is_no_policy_or_setting_ends_the_program_with_a_sentence(named: str) -> None:
    with pytest.raises(SystemExit, match="--policies: "):
        policies([named])
