"""A measured profile that tests make up."""

from __future__ import annotations

from msgspec.structs import replace

from projections.scaling.measured_profile import DecodePoint, MeasuredProfile, PrefillPoint


def prefill(tokens: int, us: int) -> PrefillPoint:
    """One prompt."""
    return PrefillPoint(tokens=tokens, us=us, repeats=5)


def decode(requests: int, tokens: int, us: int) -> DecodePoint:
    """One kind of step."""
    return DecodePoint(requests=requests, tokens=tokens, us=us, repeats=16)


PROFILE = MeasuredProfile(
    engine="tested",
    model="m",
    block_size=16,
    measured="2026-11-29T20:00:00.000Z",
    seconds=12.5,
    room_tokens=100_000,
    slots=64,
    prefill=(prefill(100, 10_000), prefill(1_000, 28_000), prefill(8_000, 168_000)),
    decode=(
        decode(1, 100, 5_000),
        decode(1, 1_000, 5_900),
        decode(4, 100, 5_300),
        decode(4, 1_000, 8_900),
        decode(16, 100, 6_500),
    ),
)
"""A prompt takes 8 ms and 20 us for each token; a step 4.8 ms, 0.1 ms for each request and 1 us for each token. The
step of 16 requests with 1 000 tokens each was not measured."""


def noisy(*prefill_us: int) -> MeasuredProfile:
    """Prompts of 100, 200, … tokens with these durations."""
    points = tuple(prefill(100 * number, us) for number, us in enumerate(prefill_us, 1))
    return replace(PROFILE, prefill=points)
