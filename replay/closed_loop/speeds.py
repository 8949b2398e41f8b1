"""Speeds: how long the recorded engines took, as the two lines that a simulated engine goes by.

    a pass with prompts: base + so much per token computed;    a decode step: base + so much per token decoded so far

Prefills that had a worker to themselves tell the first line, if there are enough of them; else those that waited for
no other prompt, less the decode steps in them; else all, each from the first token of the one before. Answers tell the
second: what they took less others' prefills meanwhile, per step. The longer half of them counts: the record has whole
milliseconds. Either line needs the other, so both are fitted again and again.
"""

from __future__ import annotations

import msgspec

from replay.closed_loop.line import Line, Point, line, median
from replay.closed_loop.stretches import ALONE, QUEUED, UNQUEUED, Answer, Prefill, Stretches

SAMPLES_MIN = 16
"""With fewer nothing is fitted."""
ROUNDS = 8
"""Of fitting; each halves what is left at least."""
KINDS = {
    ALONE: "that had a worker to themselves",
    UNQUEUED: "that waited for no other prompt",
    QUEUED: "that waited for others, too",
}


class Speeds(msgspec.Struct, frozen=True, kw_only=True):
    """See the module's text."""

    prefill_us_per_pass: float = 0.0
    prefill_us_per_token: float = 0.0
    prefill_samples: int = 0
    """First tokens; 0 if there were too few."""
    prefill_of: str = ""
    """Which first tokens."""
    prefill_error_ms: float = 0.0
    """Half of them lie within so much of the line."""
    decode_us_per_step: float = 0.0
    decode_us_per_context_token: float = 0.0
    decode_samples: int = 0
    """Answers; 0 if there were too few."""


def speeds(found: Stretches, pass_tokens: int) -> Speeds:
    """What the stretches tell of engines that compute up to so many tokens in a pass; O(n log n)."""
    prefills, answers = _best(found.prefills), _longer(found.answers)
    prefill, decode = Line(), Line()
    for _ in range(ROUNDS):
        if prefills:
            prefill = _prefill_line(prefills, prefill, decode, pass_tokens)
        if answers:
            decode = line(Point(each.context, _step_us(each, prefill, pass_tokens)) for each in answers)
    errors = [
        abs(_alone_us(each, decode, pass_tokens) - prefill_us(prefill, each.tokens, pass_tokens)) for each in prefills
    ]
    return Speeds(
        prefill_us_per_pass=prefill.base_us,
        prefill_us_per_token=prefill.per_us,
        prefill_samples=len(prefills),
        prefill_of=KINDS[max(each.kind for each in prefills)] if prefills else "",
        prefill_error_ms=median(errors) / 1000 if errors else 0.0,
        decode_us_per_step=decode.base_us,
        decode_us_per_context_token=decode.per_us,
        decode_samples=len(answers),
    )


def prefill_us(prefill: Line, tokens: int, pass_tokens: int) -> float:
    """How long so many tokens take that nothing else is computed with."""
    return prefill.base_us * _passes(tokens, pass_tokens) + prefill.per_us * tokens


def _best(prefills: list[Prefill]) -> list[Prefill]:
    """The plainest kind of which there are enough, and all that are plainer."""
    for kind in sorted(KINDS):
        found = [each for each in prefills if each.kind <= kind]
        if len(found) >= SAMPLES_MIN:
            return found
    return []


def _longer(answers: list[Answer]) -> list[Answer]:
    if len(answers) < SAMPLES_MIN:
        return []
    least = median(each.steps for each in answers)
    return [each for each in answers if each.steps >= least]


def _prefill_line(prefills: list[Prefill], before: Line, decode: Line, pass_tokens: int) -> Line:
    """One more round: what further passes cost by the line before is taken off, so that the slope is of tokens."""
    points = [
        Point(
            each.tokens,
            _alone_us(each, decode, pass_tokens) - before.base_us * (_passes(each.tokens, pass_tokens) - 1),
        )
        for each in prefills
    ]
    found = line(points)
    if found.per_us:
        return found
    return Line(0.0, found.base_us / median(each.x for each in points))  # all alike: a token costs its share


def _alone_us(prefill: Prefill, decode: Line, pass_tokens: int) -> float:
    """Less the decode steps in it: one in each pass, and half of the one that was under way when it was sent."""
    if not prefill.context:
        return prefill.us
    under_way = 0.5 if prefill.kind < QUEUED else 0.0
    return prefill.us - decode.us(prefill.context) * (_passes(prefill.tokens, pass_tokens) + under_way)


def _step_us(answer: Answer, prefill: Line, pass_tokens: int) -> float:
    others_us = sum(min(prefill_us(prefill, tokens, pass_tokens), until_us) for tokens, until_us in answer.prefills)
    return max(0.0, answer.us - others_us) / answer.steps


def _passes(tokens: int, pass_tokens: int) -> int:
    return -(-tokens // pass_tokens)
