"""The speed of prefill workers, learned from the reports on their prompts."""

from __future__ import annotations

import random

import pytest
from msgspec.structs import replace

from core.events.kv import PREFILL
from core.events.request_stages import RequestStages
from core.events.scale import LEARNED
from core.generation import PrefillReport
from projections.scaling import prefill_speed_model
from projections.scaling.prefill_speed_model import PrefillSpeedModel
from projections.scaling.speed_model import SAMPLES_MIN, TAKEOVER_SAMPLES, EngineBounds, SpeedModel
from tests.projections.facts import prefilled, routed, worker_id
from tests.projections.scaling.demands import end
from tests.projections.scaling.profiles import PROFILE

BOUNDS = EngineBounds(room_tokens=50_000, slots=1, pass_tokens=8192, devices=2)
BASE_MS, TOKENS_PER_MS = 20, 40
"""A prompt takes BASE_MS, and a millisecond more for each TOKENS_PER_MS."""
CACHED = 400
"""Tokens of each prompt that its prefill worker had."""


def report(compute_ms: int, cached: int = CACHED, outcome: str = "pulled") -> PrefillReport:
    return PrefillReport(
        remote=True,
        reason="long",
        uncached_tokens=1,
        queued=0,
        workers=1,
        min_tokens=64,
        queue_max=4,
        outcome=outcome,
        compute_ms=compute_ms,
        remote_cached_tokens=cached,
    )


def pull(model: PrefillSpeedModel | SpeedModel, number: int, tokens: int, *, slower: int = 1, of: str = "m") -> None:
    """A prompt of so many tokens is computed by a prefill worker of the true speed."""
    name = f"r{number}"
    model.apply(replace(routed(name, worker_id(1), model=of), prompt_tokens=tokens))
    took_ms = (BASE_MS + (tokens - CACHED) // TOKENS_PER_MS) * slower
    model.apply(replace(prefilled(name), prefill=report(took_ms)))


def test_the_line_of_prompts_is_found() -> None:
    """Over the tokens that a prefill worker computed, also where one in ten took five times as long."""
    model, random_ = PrefillSpeedModel("m"), random.Random(3)
    for number in range(300):
        pull(model, number, random_.randrange(1_000, 9_000), slower=5 if random_.random() < 0.1 else 1)

    found = model.learned(BOUNDS, 7)

    assert found is not None
    assert (found.at_ms, found.origin, found.role, found.slots, found.devices) == (7, LEARNED, PREFILL, 1, 2)
    assert found.prefill_tokens == (1, 8192)
    assert found.prefill_us[0] == pytest.approx(BASE_MS * 1000, rel=0.3)
    assert found.prefill_us[1] == pytest.approx(1000 * (BASE_MS + 8192 // TOKENS_PER_MS), rel=0.1)


def test_other_prompts_teach_nothing() -> None:
    """Those of another model, those that a decode worker computed, and those of earlier programs, which say no time."""
    model = PrefillSpeedModel("m")
    for number in range(4 * SAMPLES_MIN):
        name = f"r{number}"
        model.apply(routed(name, worker_id(1), model="m" if number % 4 else "other"))
        of = [report(9), report(9, outcome="timeout"), report(0), None][number % 4]
        model.apply(replace(prefilled(name), prefill=of))
    assert model.learned(BOUNDS, 0) is None

    for number in range(SAMPLES_MIN):
        pull(model, number, 1_000)
    assert model.learned(BOUNDS, 0) is not None


def test_a_measured_profile_stands_until_the_takeover() -> None:
    """Then its durations are multiplied by the ratio that was seen."""
    start = PROFILE.capacity()
    model = PrefillSpeedModel("m", start)
    for number in range(TAKEOVER_SAMPLES - 1):
        pull(model, number, 1_000 + CACHED)
    assert model.learned(BOUNDS, 0) is None

    pull(model, TAKEOVER_SAMPLES, 1_000 + CACHED)
    found = model.learned(BOUNDS, 7)

    assert found is not None
    assert (found.origin, found.profile, found.role) == (LEARNED, PROFILE.digest, PREFILL)
    ratios = [us / before for us, before in zip(found.prefill_us, start.prefill_us, strict=True)]
    assert ratios == pytest.approx([ratios[0]] * len(ratios), rel=0.01)
    assert ratios[0] != pytest.approx(1, rel=0.01)


def test_open_requests_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest makes room, and those that have ended are gone."""
    monkeypatch.setattr(prefill_speed_model, "OPEN_MAX", 3)
    model = PrefillSpeedModel("m")
    for number in range(10):
        model.apply(routed(str(number), worker_id(1), model="m"))
    assert repr(model) == "<PrefillSpeedModel of m, 3 requests open>"
    for number in range(10):
        model.apply(end(str(number)))
    assert repr(model) == "<PrefillSpeedModel of m, 0 requests open>"


def test_prompts_of_prefill_workers_do_not_slow_the_steps_of_others() -> None:
    """A decode worker computed none of them, so nothing is taken out of the time of an answer beside them."""
    stages = RequestStages(prefill=200, decode=2_000)
    found = []
    for remote in (False, True):
        model = SpeedModel("m")
        for number in range(4 * SAMPLES_MIN):
            name = f"a{number}"
            model.apply(replace(routed(name, worker_id(1), model="m"), prompt_tokens=500))
            model.apply(prefilled(name))
            if remote:
                pull(model, number, 1_000)
                model.apply(end(f"r{number}", "error"))
            model.apply(replace(end(name, stages=stages), prompt_tokens=500, cached_tokens=0))
        found.append(model.learned(BOUNDS, 0))

    alone, beside = found
    assert alone is not None
    assert beside is not None
    assert beside.decode_us == alone.decode_us


def test_decode_workers_without_prompts_have_the_speed_of_prefill_workers() -> None:
    """All prompts are pulled: then decode workers are sized by what is known of others, not left without a decision."""
    model = SpeedModel("m")
    stages = RequestStages(remote=300, prefill=20, decode=2_000)
    for number in range(SAMPLES_MIN):
        pull(model, number, 1_000 + 40 * number)
        model.apply(replace(end(f"r{number}", stages=stages), prompt_tokens=1_000, cached_tokens=0))

    found = model.learned(BOUNDS, 0)

    assert found is not None
    assert found.prefill_us[1] == pytest.approx(1000 * (BASE_MS + 8192 // TOKENS_PER_MS), rel=0.3)
