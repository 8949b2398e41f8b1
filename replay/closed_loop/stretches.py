"""Stretches: what of the recorded times tells how fast engines are: prefills and answers, each with what else the
worker was busy with meanwhile."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from replay.closed_loop.past import UNTOLD, Stint

US_PER_MS = 1000
HALF_MS_US = 500
"""The record has whole milliseconds, the rest cut off: that is what it lacks in the mean."""
ALONE, UNQUEUED, QUEUED = range(3)
ENDLESS_MS = 1 << 53


class Prefill(NamedTuple):
    """From when its worker could begin with a prompt to the first token."""

    kind: int
    """ALONE: the worker had nothing else. UNQUEUED: it had answers to go on with, but no other prompt. QUEUED: it had
    other prompts; then the time runs from the first token of the one before."""
    tokens: int
    """That were computed."""
    us: int
    context: int
    """Tokens of prompts and answers that were decoded meanwhile."""


class Answer(NamedTuple):
    """From the first token to the last."""

    steps: int
    us: int
    context: float
    """Tokens of prompts and answers that were decoded there at once, in the mean."""
    prefills: tuple[tuple[int, int], ...]
    """Others' prompts that were computed meanwhile: tokens, and the microseconds from the start of this stretch to
    their first token."""


class Stretches(NamedTuple):
    """Of all workers."""

    prefills: list[Prefill]
    answers: list[Answer]


def stretches(stints: Iterable[Stint]) -> Stretches:
    """Those of first attempts and of later ones alike; O(stints x those that overlap)."""
    by_worker: dict[str, list[Stint]] = {}
    for stint in stints:
        by_worker.setdefault(stint.worker, []).append(stint)
    found = Stretches([], [])
    for _, each in sorted(by_worker.items()):
        each.sort(key=lambda stint: stint.sent_ms)
        for stint, others in _with_others(each):
            if stint.first_ms != UNTOLD:
                found.prefills.extend(_prefill(stint, others))
                found.answers.extend(_answer(stint, others))
    return found


def _with_others(stints: list[Stint]) -> Iterator[tuple[Stint, list[Stint]]]:
    """Each with those that were there at the same time, by when they were sent."""
    earlier: list[Stint] = []
    for place, stint in enumerate(stints):
        earlier = [each for each in earlier if _end_ms(each) > stint.sent_ms]
        later = []
        for each in stints[place + 1 :]:
            if each.sent_ms >= _end_ms(stint):
                break
            later.append(each)
        yield stint, earlier + later
        earlier.append(stint)


def _prefill(stint: Stint, others: list[Stint]) -> Iterator[Prefill]:
    there = [each for each in others if each.sent_ms < stint.first_ms]
    prompts = [each for each in there if _computed_ms(each) > stint.sent_ms]
    context = sum(_context(each) for each in there if _computed_ms(each) <= stint.sent_ms)
    before = [each.first_ms for each in prompts if each.first_ms != UNTOLD and each.first_ms <= stint.first_ms]
    begin_ms = max([stint.sent_ms, *before])
    kind = QUEUED if prompts else UNQUEUED if there else ALONE
    us = (stint.first_ms - begin_ms) * US_PER_MS + (HALF_MS_US if begin_ms == stint.sent_ms else 0)
    if us > 0 and stint.computed_tokens > 0:  # else it was computed together with the one before
        yield Prefill(kind, stint.computed_tokens, us, context)


def _answer(stint: Stint, others: list[Stint]) -> Iterator[Answer]:
    took_ms, steps = stint.end_ms - stint.first_ms, stint.output_tokens - 1
    if stint.end_ms == UNTOLD or took_ms <= 0 or steps < 1:
        return
    together = float(_context(stint))
    prefills = []
    for each in others:
        if each.first_ms == UNTOLD:
            continue
        shared_ms = min(_end_ms(each), stint.end_ms) - max(each.first_ms, stint.first_ms)
        together += _context(each) * max(0, shared_ms) / took_ms
        if stint.first_ms < each.first_ms <= stint.end_ms:
            prefills.append((each.computed_tokens, (each.first_ms - stint.first_ms) * US_PER_MS))
    yield Answer(steps, took_ms * US_PER_MS, together, tuple(prefills))


def _context(stint: Stint) -> int:
    """Its tokens half way through its answer."""
    return stint.prompt_tokens + stint.output_tokens // 2


def _computed_ms(stint: Stint) -> int:
    """Until when its prompt occupied the worker."""
    return stint.first_ms if stint.first_ms != UNTOLD else _end_ms(stint)


def _end_ms(stint: Stint) -> int:
    return stint.end_ms if stint.end_ms != UNTOLD else ENDLESS_MS
