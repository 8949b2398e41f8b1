"""The speed of workers, learned from the ends of requests."""

from __future__ import annotations

import random

import pytest
from msgspec import UNSET
from msgspec.structs import replace

from core.events import RequestPrefilled
from core.events.request_stages import RequestStages
from core.events.routing import CACHED_UNKNOWN
from core.events.scale import LEARNED, CapacityLearned
from projections.scaling import speed_model
from projections.scaling.queue_model import DecodeSteps
from projections.scaling.speed_model import (
    OUTPUT_MIN,
    SAMPLES_MIN,
    TAKEOVER_SAMPLES,
    EngineBounds,
    Ratios,
    SpeedModel,
)
from tests.projections.facts import routed, worker_id
from tests.projections.scaling.demands import end
from tests.projections.scaling.profiles import PROFILE

BOUNDS = EngineBounds(room_tokens=100_000, slots=32, pass_tokens=8192)
BASE_US, TOKEN_US, STEP_US, HELD_US = 20_000, 30, 6_000, 0.2
"""A prefill takes BASE_US and TOKEN_US for each token; a step STEP_US and HELD_US for each token that is held."""


def serve(model: SpeedModel, number: int, tokens: int, beside: int = 0, *, slower: float = 1.0) -> None:
    """One request of the true speed, while others of the same worker hold `beside` tokens."""
    name, worker, output = f"r{number}", worker_id(1), 50
    held = f"held{number}"
    if beside:
        model.apply(replace(routed(held, worker, model="m"), prompt_tokens=beside))
    model.apply(replace(routed(name, worker, model="m"), prompt_tokens=tokens))
    prefill_us = (BASE_US + TOKEN_US * tokens) * slower
    step_us = STEP_US + HELD_US * (beside + tokens + output // 2)
    stages = RequestStages(prefill=round(prefill_us / 100), decode=round(step_us * (output - 1) / 100))
    model.apply(replace(end(name, stages=stages, output=output), prompt_tokens=tokens, cached_tokens=0))
    if beside:
        model.apply(end(held, "error"))


def learned(model: SpeedModel) -> CapacityLearned:
    found = model.learned(BOUNDS, 7)
    assert found is not None
    return found


def test_both_lines_are_found() -> None:
    """Also where one in ten prefills took five times as long."""
    model, random_ = SpeedModel("m"), random.Random(5)
    for number in range(400):
        slower = 5.0 if random_.random() < 0.1 else 1.0
        serve(model, number, random_.randrange(200, 8000), random_.randrange(1, 60_000), slower=slower)

    found = learned(model)

    assert (found.at_ms, found.origin, found.slots, found.room_tokens) == (7, LEARNED, 32, 100_000)
    assert found.prefill_tokens == (1, 8192)
    assert found.prefill_us[1] == pytest.approx(BASE_US + TOKEN_US * 8192, rel=0.1)
    assert found.decode_us[0] == pytest.approx(STEP_US, rel=0.15)
    assert found.decode_us[1] == pytest.approx(STEP_US + HELD_US * 100_000, rel=0.15)


def test_too_few_requests_teach_nothing() -> None:
    """One more than that teaches a speed."""
    model = SpeedModel("m")
    for number in range(SAMPLES_MIN - 1):
        serve(model, number, 1000)
    assert model.learned(BOUNDS, 0) is None
    serve(model, SAMPLES_MIN, 1000)
    assert learned(model).decode_us[0] > 0


def test_requests_without_a_known_count_or_of_others_teach_nothing() -> None:
    """A count of cached tokens that is unknown, another model, a failed request, a short answer, a prompt that was
    computed elsewhere."""
    model = SpeedModel("m")
    stages = RequestStages(prefill=500, decode=5_000)
    for number in range(10 * SAMPLES_MIN):
        name = str(number)
        unknown = replace(end(name, stages=stages), cached_tokens=CACHED_UNKNOWN, output_tokens=OUTPUT_MIN - 1)
        remote = end(name, stages=stages._replace(remote=20), output=OUTPUT_MIN - 1)
        failed = end(name, "error", stages=stages)
        model.apply(routed(name, worker_id(1), model="m" if number % 4 else "other"))
        model.apply([end(name, stages=stages), unknown, remote, failed][number % 4])

    assert model._prefill.through(1, 2) is None
    assert model._decode.through(1, 2) is None


def test_open_requests_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest makes room, and its tokens are held no more."""
    monkeypatch.setattr(speed_model, "OPEN_MAX", 3)
    model = SpeedModel("m")
    for number in range(10):
        model.apply(routed(str(number), worker_id(1), model="m"))
    assert repr(model) == "<SpeedModel of m, 3 requests open>"
    for number in range(10):
        model.apply(end(str(number)))
    assert not model._held


def serve_as(model: SpeedModel, count: int, prefill_us: int, step_us: int) -> None:
    """So many requests of 1 000 tokens, alone, with these durations."""
    for number in range(count):
        name = f"t{number}"
        model.apply(replace(routed(name, worker_id(1), model="m"), prompt_tokens=1_000))
        stages = RequestStages(prefill=prefill_us // 100, decode=step_us * 20 // 100)
        model.apply(replace(end(name, stages=stages), prompt_tokens=1_000, cached_tokens=0))


def test_a_measured_profile_stands_until_the_takeover() -> None:
    """Then prompts take half as long again as the profile says, and steps twice as long; both at all tokens, since one
    class was seen."""
    model, profile = SpeedModel("m", PROFILE.capacity()), PROFILE.capacity()
    step_us = DecodeSteps(profile, 1_010).us(1_010)
    serve_as(model, TAKEOVER_SAMPLES - 1, 42_000, 2 * step_us)
    assert model.learned(BOUNDS, 7) is None

    serve_as(model, 1, 42_000, 2 * step_us)
    found = learned(model)

    assert (found.origin, found.profile, found.at_ms) == (LEARNED, PROFILE.digest, 7)
    assert found.prefill_us == tuple(us * 3 // 2 for us in profile.prefill_us)
    assert found.decode_requests == profile.decode_requests
    assert found.decode_rows_us is not UNSET
    assert profile.decode_rows_us is not UNSET
    for row, before in zip(found.decode_rows_us, profile.decode_rows_us, strict=True):
        assert row == pytest.approx([2 * us for us in before], rel=0.002)
    assert found.decode_us == found.decode_rows_us[0]
    assert (found.room_tokens, found.slots) == (BOUNDS.room_tokens, BOUNDS.slots)


def test_one_line_is_taken_over_without_the_other() -> None:
    """Answers of one token teach no step."""
    model, profile = SpeedModel("m", PROFILE.capacity()), PROFILE.capacity()
    for number in range(TAKEOVER_SAMPLES):
        name = f"t{number}"
        model.apply(replace(routed(name, worker_id(1), model="m"), prompt_tokens=1_000))
        ended = replace(end(name, stages=RequestStages(prefill=560)), prompt_tokens=1_000, cached_tokens=0)
        model.apply(replace(ended, output_tokens=1))
    found = learned(model)

    assert found.prefill_us == tuple(2 * us for us in profile.prefill_us)
    assert found.decode_rows_us == profile.decode_rows_us


def test_ratios_lie_on_lines_between_the_classes() -> None:
    """And stay beyond the first and the last."""
    ratios = Ratios([100, 300], [10_000, 20_000])

    assert [ratios.over(tokens, 1_000) for tokens in (1, 100, 200, 300, 9_000)] == [1_000, 1_000, 1_500, 2_000, 2_000]


@pytest.mark.parametrize(("cached", "taken_us"), [(0, 2 * 28_000), (900, 2 * 10_000), (CACHED_UNKNOWN, 0)])
def test_prompts_of_others_are_taken_out_of_a_step(cached: int, taken_us: int) -> None:
    """Between the tokens of each answer its worker computes two prompts of 1 000 tokens, 28 ms each by the profile.
    Where their cached tokens are unknown, nothing is taken out."""
    model, profile = SpeedModel("m", PROFILE.capacity()), PROFILE.capacity()
    step_us = DecodeSteps(profile, 1_010).us(3_010)
    for number in range(TAKEOVER_SAMPLES):
        own, *others = (f"{kind}{number}" for kind in ("own", "a", "b"))
        for name in (own, *others):
            model.apply(replace(routed(name, worker_id(1), model="m"), prompt_tokens=1_000))
            model.apply(prefilled(name, cached))
        stages = RequestStages(prefill=280, decode=(20 * step_us + taken_us) // 100)
        model.apply(replace(end(own, stages=stages), prompt_tokens=1_000, cached_tokens=0))
        for name in others:
            model.apply(end(name, "error"))
    found = learned(model)

    assert found.prefill_us == profile.prefill_us
    assert found.decode_us == pytest.approx(profile.decode_us, rel=0.002)


def prefilled(name: str, cached: int) -> RequestPrefilled:
    return RequestPrefilled(request=name, attempt=0, cached_tokens=cached, ttft_ms=30)
