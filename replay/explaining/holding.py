"""Holding: why a request was held in the router, and who was held beside it, by the log."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from itertools import islice

from core.events import RequestRouted
from core.events.routing import HELD, RequestQueued
from core.subjects import ROUTING
from replay.explaining.timed_form import HeldBeside, HeldBy, Hold
from replay.recording.recording import Recording
from replay.recording.request_history import RequestAttempt

SHOWN_MAX = 8
"""Of requests beside it, and of those that were computed meanwhile, so many are named."""
LOOK_MAX = 1024
"""Attempts looked through on each side of a decision."""


def hold(recording: Recording, tried: RequestAttempt, event: RequestRouted) -> Hold | None:
    """What holding had to do with this decision; None if neither the request was held, nor any beside it."""
    held_since = _held(recording, tried)
    beside = list(islice(_beside(recording, tried, event), SHOWN_MAX)) if event.held else []
    if held_since is None:
        return Hold(held_ms=None, by=[], beside=beside) if event.held else None
    stored_ms, queued = held_since
    by = sorted(_by(recording, tried, stored_ms), key=lambda each: each.after_ms)
    return Hold(held_ms=max(0, event.now_ms - queued.now_ms), by=by[-SHOWN_MAX:], beside=beside)


def _held(recording: Recording, tried: RequestAttempt) -> tuple[int, RequestQueued] | None:
    """When the log stored that it is held, and the word itself."""
    if not tried.held_seq:
        return None
    for record, message in recording.said(ROUTING, tried.held_seq, tried.held_seq + 1):
        for said in message.events:
            if isinstance(said, RequestQueued) and said.request == tried.request and said.why == HELD:
                return record.time_ms, said
    return None


def _by(recording: Recording, tried: RequestAttempt, since_ms: int) -> Iterator[HeldBy]:
    """Those before it on the same worker whose first tokens came between its being held and its being sent."""
    tries = recording.index.tries
    at = bisect_left(tries, tried.at, key=lambda each: each.at)
    for other in tries[max(0, at - LOOK_MAX) : at]:
        came = other.worker == tried.worker and 0 < other.prefilled_at < tried.at
        if came and other.prefilled_ms >= since_ms:
            after_ms = other.prefilled_ms - since_ms
            yield HeldBy(request=other.request, tokens=other.prefill_tokens, after_ms=after_ms)


def _beside(recording: Recording, tried: RequestAttempt, event: RequestRouted) -> Iterator[HeldBeside]:
    """Those that were held already when it was sent, and sent later by the same replica."""
    tries = recording.index.tries
    at = bisect_left(tries, tried.at, key=lambda each: each.at)
    for other in tries[at + 1 : at + 1 + LOOK_MAX]:
        if other.replica != tried.replica or not other.worker:
            continue
        held_since = _held(recording, other)
        if held_since is not None and held_since[1].now_ms <= event.now_ms:
            yield HeldBeside(
                request=other.request,
                tokens=other.prompt_tokens,
                worker=other.worker,
                name=recording.names.worker(other.worker),
                after_ms=max(0, other.time_ms - tried.time_ms),
            )
