"""Speeds by hand: which of the recorded times tell what, and what engines they are found in."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from replay.closed_loop.engine_fit import (
    ALONE,
    HALF_MS_US,
    QUEUED,
    SAMPLES_MIN,
    UNQUEUED,
    DecodeSample,
    EngineSamples,
    PrefillSample,
    engine_samples,
    fit_speeds,
)
from replay.simulate.recorded_requests import AttemptTiming

PASS_TOKENS = 8192


def stint(
    sent_ms: int, first_ms: int, end_ms: int, tokens: int = 100, worker: str = "a", output: int = 1
) -> AttemptTiming:
    return AttemptTiming(worker, sent_ms, tokens, output_tokens=output, first_ms=first_ms, end_ms=end_ms)


def kinds(*timings: AttemptTiming) -> list[PrefillSample]:
    return engine_samples(timings).prefills


def test_a_worker_to_itself() -> None:
    """Those before, behind and on another worker do not count."""
    assert kinds(
        stint(0, 10, 20), stint(20, 35, 40), stint(40, 41, 50), stint(20, 30, 60, worker="b")
    ) == [
        PrefillSample(ALONE, 100, 10_000 + HALF_MS_US, 0),
        PrefillSample(ALONE, 100, 15_000 + HALF_MS_US, 0),
        PrefillSample(ALONE, 100, 1_000 + HALF_MS_US, 0),
        PrefillSample(ALONE, 100, 10_000 + HALF_MS_US, 0),
    ]  # fmt: skip


def test_beside_answers() -> None:
    """The second came while the first was answered: its tokens half way through were decoded meanwhile."""
    first, second = kinds(stint(0, 10, 100, tokens=70, output=20), stint(30, 45, 60))
    assert first == PrefillSample(ALONE, 70, 10_000 + HALF_MS_US, 0)
    assert second == PrefillSample(UNQUEUED, 100, 15_000 + HALF_MS_US, 80)


def test_behind_another_prompt() -> None:
    """Time runs from the first token of the one before. The first is one of them, too: who came before it was done
    may have been computed with it."""
    first, second = kinds(stint(0, 30, 30), stint(5, 50, 50))
    assert first == PrefillSample(QUEUED, 100, 30_000 + HALF_MS_US, 0)
    assert second == PrefillSample(QUEUED, 100, 20_000, 0)


def test_prompts_that_are_done_together_tell_nothing() -> None:
    """Nobody knows which of them took how long."""
    assert kinds(stint(0, 50, 50), stint(6, 50, 50)) == []


def test_a_backlog_is_gone_through_once() -> None:
    """Each beside those that were there: times are compared, and no stint with another."""
    found = kinds(*(Alike("a", 0, 100, output_tokens=20, first_ms=10 * number, end_ms=900) for number in range(1, 9)))
    assert [each.kind for each in found] == [QUEUED] * 8
    assert {each.us for each in found[1:]} == {10_000}


class Alike(AttemptTiming):
    """One that is never to be compared as a whole."""

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        raise AssertionError


def test_what_was_cached_is_not_computed() -> None:
    it = stint(0, 10, 20, tokens=100)
    it.cached_tokens = 64
    assert [each.tokens for each in kinds(it)] == [36]


def test_an_answer_and_what_held_it_up() -> None:
    """Ten further tokens in 100 ms, of which another's prompt of 60 tokens took a part; that one's answer of 8 tokens
    shared 40 of the 100 ms."""
    found = engine_samples([stint(0, 20, 120, tokens=100, output=11), stint(50, 80, 200, tokens=60, output=8)])
    assert found.answers[0] == DecodeSample(10, 100_000, 100 + 11 // 2 + 64 * 40 / 100, ((60, 60_000),))


def test_no_answer_of_one_token() -> None:
    assert engine_samples([stint(0, 20, 20)]).answers == []


def alone(us: Callable[[int], float], count: int = 200) -> EngineSamples:
    """Prompts of growing length on an idle engine."""
    sizes = [50 * number for number in range(1, count + 1)]
    return EngineSamples([PrefillSample(ALONE, size, round(us(size)), 0) for size in sizes], [])


def test_passes_cost_their_share() -> None:
    """Prompts longer than a pass: what each pass costs is told from what tokens cost."""
    found = fit_speeds(alone(lambda size: 16_000 * -(-size // 2048) + 20 * size), 2048)
    assert found.prefill_us_per_pass == pytest.approx(16_000, rel=0.05)
    assert found.prefill_us_per_token == pytest.approx(20, rel=0.05)
    assert found.prefill_error_ms < 1
    assert found.prefill_samples == 200
    assert found.prefill_of == "that had a worker to themselves"


def test_prompts_of_one_length() -> None:
    """All that a prompt takes is its tokens' share."""
    found = fit_speeds(EngineSamples([PrefillSample(ALONE, 100, 5_000, 0)] * SAMPLES_MIN, []), PASS_TOKENS)
    assert (found.prefill_us_per_pass, found.prefill_us_per_token) == (0.0, 50.0)


def test_too_few() -> None:
    """One more would do."""
    few = EngineSamples([PrefillSample(ALONE, 100, 5_000, 0)] * (SAMPLES_MIN - 1), [DecodeSample(9, 9_000, 50.0, ())])
    found = fit_speeds(few, PASS_TOKENS)
    assert (found.prefill_samples, found.decode_samples, found.prefill_of) == (0, 0, "")


def test_both_lines_need_each_other() -> None:
    """Every prompt is computed beside an answer, and every answer is held up by prompts: 10 ms and 30 us per token; 4
    ms and 0.05 us per token of context."""
    prefills, answers = [], []
    for number in range(1, 101):
        tokens, context, steps = 40 * number, 300 * number, 20 + number
        step_us = 4_000 + 0.05 * context
        prefills.append(PrefillSample(UNQUEUED, tokens, round(10_000 + 30 * tokens + 1.5 * step_us), context))
        others = round(10_000 + 30 * tokens)
        answers.append(DecodeSample(steps, round(steps * step_us) + others, float(context), ((tokens, 10**9),)))

    found = fit_speeds(EngineSamples(prefills, answers), PASS_TOKENS)

    assert found.prefill_us_per_pass == pytest.approx(10_000, rel=0.05)
    assert found.prefill_us_per_token == pytest.approx(30, rel=0.02)
    assert found.decode_us_per_step == pytest.approx(4_000, rel=0.05)
    assert found.decode_us_per_context_token == pytest.approx(0.05, rel=0.1)
    assert found.prefill_of == "that waited for no other prompt"
