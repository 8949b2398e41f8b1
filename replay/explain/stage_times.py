"""The recorded stages of an attempt, the prefills beside it, and a client that took the answer late."""

from __future__ import annotations

from typing import NamedTuple

from core.events import AnswerDelayed, RequestFinished
from core.events.request_stages import PER_MS, RequestStages
from replay.explain.explanation import AnswerDelay, ConcurrentPrefill
from replay.recording.recording import Recording
from replay.recording.request_history import RequestAttempt

ROUNDING_MS = 2
"""Bound of what two times of one clock in whole milliseconds can be apart."""


class _Window(NamedTuple):
    """The time in which an engine certainly computed a prompt, by the clock of the replica."""

    start_ms: float
    end_ms: float


def recorded_stages(recording: Recording, tried: RequestAttempt) -> RequestStages | None:
    """Those in the record of the attempt's end; None without an end, and from earlier programs."""
    if not tried.ended_seq:
        return None
    for _, event in recording.events([tried.ended_at]):
        if isinstance(event, RequestFinished):
            return RequestStages.of(event.stages)
    return None


def concurrent_prefills(
    recording: Recording, tried: RequestAttempt, stages: RequestStages, near_ms: int
) -> list[ConcurrentPrefill]:
    """Prompts that the worker had to compute when it computed this one. `certain` where the engine certainly computed
    both at once: the two windows meet, by the clock of one replica, or by clocks of two that are `near_ms` apart at
    most. Each costs a read of its record."""
    own, there = _window(tried, stages), recording.requests
    others = (*there.before(tried), *there.soon_after(tried, near_ms))
    found = []
    for other in others:
        if 0 < other.prefilled_at < tried.at:
            continue  # its prefill was over, as the log has it
        theirs = recorded_stages(recording, other)
        certain = False
        if theirs is not None and other.prefilled_seq:
            apart_ms = ROUNDING_MS if other.replica == tried.replica else ROUNDING_MS + near_ms
            certain = _meet(own, _window(other, theirs), apart_ms)
        found.append(ConcurrentPrefill(request=other.request, tokens=other.prefill_tokens, certain=certain))
    return found


def _window(tried: RequestAttempt, stages: RequestStages) -> _Window:
    """The way to the worker is a part of `link` that is not known: the window is without it on both sides."""
    queued = max(0, stages.remote) + max(0, stages.behind)
    start = tried.now_ms + (stages.link + queued) / PER_MS
    return _Window(start, tried.now_ms + (queued + stages.prefill) / PER_MS)


def _meet(one: _Window, other: _Window, apart_ms: int) -> bool:
    return min(one.end_ms, other.end_ms) - max(one.start_ms, other.start_ms) > apart_ms


def answer_delay(recording: Recording, tried: RequestAttempt) -> AnswerDelay | None:
    """The delay of a client that took the answer late; None where the log has none."""
    for _, event in recording.events(recording.requests.delays_of(tried)):
        if isinstance(event, AnswerDelayed) and event.request == tried.request:
            return AnswerDelay(
                written_ms=event.written_ms, stalled_ms=event.stalled_ms, unsent_bytes=event.unsent_bytes
            )
    return None
