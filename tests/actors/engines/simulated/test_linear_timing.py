"""The linear engine with all four of its speeds."""

from __future__ import annotations

import pytest

from actors.engines.simulated.pass_timing import PassBatch, timing_of
from actors.engines.simulated.simulated_settings import SimulatedSettings
from core.errors import CallerError

SETTINGS = SimulatedSettings(
    prefill_us_per_token=20.5, prefill_us_per_pass=3000, decode_us_per_step=100, decode_us_per_context_token=0.25
)


def batch(after: int = 0, decoding: int = 0, context: int = 0) -> PassBatch:
    made = PassBatch()
    made.prompts, made.after = int(after > 0), after
    made.decoding, made.context = decoding, context
    return made


def test_a_pass_takes_all_of_them() -> None:
    """Each only if there is something of it."""
    timing = timing_of(SETTINGS)
    assert timing.pass_us(batch(after=10)) == 3205
    assert timing.pass_us(batch(decoding=2, context=40)) == 110
    assert timing.pass_us(batch(after=10, decoding=2, context=40)) == 3315


def test_steps_that_follow_each_other_are_longer_and_longer() -> None:
    """Each has a token more of everybody, and ends when the pass alone would."""
    timing = timing_of(SETTINGS)
    ends = timing.decode_ends(50, batch(decoding=4, context=40), 3)
    assert ends == [160, 271, 383]
    assert ends[0] - 50 == timing.pass_us(batch(decoding=4, context=40))


@pytest.mark.parametrize("name", ["prefill_us_per_token", "prefill_us_per_pass", "decode_us_per_context_token"])
@pytest.mark.parametrize("value", [-1, float("nan"), float("inf")])
def test_no_speed_is_below_zero(name: str, value: float) -> None:
    with pytest.raises(CallerError, match=f"{name}.*"):
        SimulatedSettings.parse({name: value})
