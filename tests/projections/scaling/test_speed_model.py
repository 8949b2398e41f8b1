"""The speed of workers, learned from the ends of requests."""

from __future__ import annotations

import random

import pytest
from msgspec.structs import replace

from core.events.request_stages import RequestStages
from core.events.routing import CACHED_UNKNOWN
from core.events.scale import LEARNED, CapacityLearned
from projections.scaling import speed_model
from projections.scaling.speed_model import OUTPUT_MIN, SAMPLES_MIN, EngineBounds, SpeedModel
from tests.projections.facts import routed, worker_id
from tests.projections.scaling.demands import end

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
