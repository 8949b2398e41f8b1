"""How long passes take: by two speeds, and by the polynomials of Dynamo's mock engine."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from actors.engines.simulated.pass_timing import MeasuredSettings, PassBatch, timing_of
from actors.engines.simulated.simulated_settings import SimulatedSettings, mocker_settings
from tests.projections.scaling.demands import CAPACITY

MOCKER = timing_of(mocker_settings())


def batch(prompts: int = 0, before: int = 0, after: int = 0, decoding: int = 0, context: int = 0) -> PassBatch:
    made = PassBatch()
    made.prompts, made.before, made.after = prompts, before, after
    made.decoding, made.context = decoding, context
    return made


def test_linear() -> None:
    """So much for each prompt token, so much for a decode step, whoever is in it."""
    timing = timing_of(SimulatedSettings(prefill_us_per_token=7, decode_us_per_step=100))
    assert timing.pass_us(batch(prompts=2, before=10, after=40)) == 210
    assert timing.pass_us(batch(prompts=1, before=0, after=5, decoding=3, context=999)) == 135
    assert timing.decode_ends(50, batch(decoding=3, context=999), 3) == [150, 250, 350]
    assert timing_of(SimulatedSettings(prefill_us_per_token=0)).pass_us(batch(prompts=1, after=100)) == 0


@pytest.mark.parametrize(("tokens", "wanted_us"), [(64, 17_475), (512, 24_386), (2048, 49_363), (8192, 169_137)])
def test_a_prompt_takes_what_dynamo_says(tokens: int, wanted_us: int) -> None:
    """These are the times to the first token that ai-dynamo 1.6.1 gives in its replay of one request."""
    assert MOCKER.pass_us(batch(prompts=1, after=tokens)) == wanted_us


@pytest.mark.parametrize(
    ("context", "wanted_ms"), [(65, 5.7437), (513, 5.7668), (8193, 6.1608), (32769, 7.4031), (262145, 17.6341)]
)
def test_a_decode_step_takes_what_dynamo_says(context: int, wanted_ms: float) -> None:
    """These are the means over a few tokens that ai-dynamo 1.6.1 gives in its replay of one request."""
    assert MOCKER.pass_us(batch(decoding=1, context=context)) == pytest.approx(wanted_ms * 1000, abs=2)


def test_in_series() -> None:
    """A pass takes its prompts' time and then its decode step's."""
    whole = MOCKER.pass_us(batch(prompts=1, after=500, decoding=1, context=1012))
    assert whole == pytest.approx(24_198.39 + 5_792.1, abs=1)


def test_means_are_whole_tokens() -> None:
    """Dynamo multiplies the prompts' number by the mean of what is new in them, without its fraction."""
    assert MOCKER.pass_us(batch(prompts=2, before=64, after=1001)) == MOCKER.pass_us(batch(prompts=1, after=936))
    assert MOCKER.pass_us(batch(prompts=3, after=2)) == 0


def test_a_full_cache_is_the_slowest() -> None:
    """Requests that share blocks may have more tokens together than the cache: it counts as full then."""
    full = 64 * 16384
    assert MOCKER.pass_us(batch(decoding=9, context=3 * full)) == MOCKER.pass_us(batch(decoding=9, context=full))
    assert MOCKER.pass_us(batch(decoding=9, context=full)) == 34_010


def test_passes_that_follow_each_other() -> None:
    """They end when they would have ended one by one."""
    for timing in (MOCKER, timing_of(SimulatedSettings())):
        at_us, ends = 1000, []
        for done in range(40):
            at_us += timing.pass_us(batch(decoding=3, context=50_000 + 3 * done))
            ends.append(at_us)
        assert timing.decode_ends(1000, batch(decoding=3, context=50_000), 40) == ends


def test_measured_passes_lie_on_lines() -> None:
    """Prompts by all their tokens in the pass, decode steps by those of all requests."""
    timing = timing_of(MeasuredSettings(capacity=CAPACITY))
    assert timing.pass_us(batch(prompts=1, after=8192)) == 180_000
    assert timing.pass_us(batch(prompts=2, before=1, after=8193)) == 180_000
    assert timing.pass_us(batch(decoding=10, context=10 * 6_400)) == 6_000 + 64_000 * 30_000 // 1_000_000 - 1
    step_us = timing.pass_us(batch(decoding=2, context=1_000))
    assert timing.pass_us(batch(prompts=1, after=8192, decoding=2, context=1_000)) == 180_000 + step_us
    assert timing.decode_ends(7, batch(decoding=2, context=1_000), 3) == [7 + step_us * count for count in (1, 2, 3)]
    assert timing.pass_us(batch(decoding=1, context=2_000_000)) == 36_000, "no cache holds more than its room"


def test_a_measured_table_has_steps_by_requests() -> None:
    """Those of a row between two lie on their line; a step of more requests takes no less."""
    table = replace(
        CAPACITY, decode_tokens=(1, 1001), decode_requests=(1, 11), decode_rows_us=((5_000, 6_000), (10_000, 16_000))
    )
    timing = timing_of(MeasuredSettings(capacity=table))
    assert timing.pass_us(batch(decoding=1, context=1)) == 5_000
    assert timing.pass_us(batch(decoding=11, context=11)) == 10_000
    assert timing.pass_us(batch(decoding=6, context=6)) == 7_500
    assert timing.pass_us(batch(decoding=11, context=11 * 640)) == 10_000 + 6 * 639
