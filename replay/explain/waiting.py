"""The waits of a request: in its replica's queue for a slot, held for its worker, and until its first token."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import msgspec

from core.event_json import time_text
from core.events import RequestRouted
from core.events.routing import HELD, RequestQueued, RequestTurnedAway
from core.subjects import ROUTING
from replay.explain.explanation import (
    ConcurrentHold,
    FirstTokenPhases,
    HoldExplanation,
    PrefillWhileHeld,
    QueueWait,
    RejectionExplanation,
)
from replay.recording.recording import Recording
from replay.recording.request_history import RequestAttempt


def queue_wait(recording: Recording, tried: RequestAttempt, until_ms: int | None) -> QueueWait | None:
    """Its wait, up to that time by the replica's clock; None if it had a place at once."""
    found = _queued(recording, tried, tried.queued_seq)
    if found is None:
        return None
    time_ms, event = found
    return QueueWait(
        time=time_text(time_ms),
        why=event.why,
        priority=event.priority,
        tenant=event.tenant,
        depth=event.depth,
        waited_ms=None if until_ms is None else max(0, until_ms - event.now_ms),
    )


def _queued(
    recording: Recording, tried: RequestAttempt, seq: int, why: str | None = None
) -> tuple[int, RequestQueued] | None:
    """When the log stored that it is queued, and that event of the message; None without a message (0)."""
    for record, message in recording.messages(ROUTING, seq, seq + 1) if seq else ():
        for event in message.events:
            if isinstance(event, RequestQueued) and event.request == tried.request and why in {None, event.why}:
                return record.time_ms, event
    return None


def arrival_ms(recording: Recording, tried: RequestAttempt, decided_ms: int) -> int:
    """When it came, by the clock of its replica, which decided about it then."""
    waited = queue_wait(recording, tried, decided_ms)
    return decided_ms if waited is None or waited.waited_ms is None else decided_ms - waited.waited_ms


def queue_rejection(recording: Recording, tried: RequestAttempt) -> RejectionExplanation | None:
    """Its end without a decision; None if it ended by one."""
    for _, event in recording.events([tried.at]):
        if isinstance(event, RequestTurnedAway):
            waited = queue_wait(recording, tried, None)
            if waited is not None:
                waited = msgspec.structs.replace(waited, waited_ms=event.waited_ms)
            return RejectionExplanation(
                attempt=tried.attempt,
                time=time_text(tried.time_ms),
                reason=event.reason,
                status=event.status,
                excluded={},
                queued=waited,
                detail=event.detail,
            )
    return None


SHOWN_MAX = 8
"""Of requests beside it, and of those that were computed meanwhile, so many are named."""
SEARCH_MAX = 1024
"""Attempts read on each side of a decision."""


NEAR_MS = 20
"""Requests that were sent to one worker within this time may have come in another order than the log has them: they
take different ways, and clocks differ."""


def explain_hold(recording: Recording, tried: RequestAttempt, event: RequestRouted) -> HoldExplanation | None:
    """The effect of holding on this decision; None if neither this request was held nor any beside it."""
    held_since = _queued(recording, tried, tried.held_seq, HELD)
    beside = list(islice(_beside(recording, tried, event), SHOWN_MAX)) if event.held else []
    if held_since is None:
        return HoldExplanation(held_ms=None, by=[], beside=beside) if event.held else None
    stored_ms, queued_event = held_since
    by = sorted(_by(recording, tried, stored_ms), key=lambda each: each.after_ms)
    return HoldExplanation(held_ms=max(0, event.now_ms - queued_event.now_ms), by=by[-SHOWN_MAX:], beside=beside)


def _by(recording: Recording, tried: RequestAttempt, since_ms: int) -> Iterator[PrefillWhileHeld]:
    """Requests before it on the same worker with a first token between its holding and its sending."""
    for other in recording.requests.neighbours(tried.at, SEARCH_MAX, 0):
        is_before = other.worker == tried.worker and 0 < other.prefilled_at < tried.at
        if is_before and other.prefilled_ms >= since_ms:
            after_ms = other.prefilled_ms - since_ms
            yield PrefillWhileHeld(request=other.request, tokens=other.prefill_tokens, after_ms=after_ms)


def _beside(recording: Recording, tried: RequestAttempt, event: RequestRouted) -> Iterator[ConcurrentHold]:
    """Those that were held already when it was sent, and sent later by the same replica."""
    for other in recording.requests.neighbours(tried.at, 0, SEARCH_MAX):
        if other.replica != tried.replica:
            continue
        held_since = _queued(recording, other, other.held_seq, HELD)
        if held_since is not None and held_since[1].now_ms <= event.now_ms:
            yield ConcurrentHold(
                request=other.request,
                tokens=other.prompt_tokens,
                worker=other.worker,
                name=recording.names.worker(other.worker),
                after_ms=max(0, other.time_ms - tried.time_ms),
            )


def first_token_phases(
    recording: Recording, tried: RequestAttempt, first_now_ms: int, now_ms: int, decided_ms: int
) -> FirstTokenPhases | None:
    """None if no token came. `first_now_ms` and `now_ms` are the replica's clock when the request came (its first
    attempt is decided at once, unless it waits) and at this decision; `decided_ms` is the log's clock at that."""
    if not tried.prefilled_seq:
        return None
    pauses = tried.pause_ms >= 0
    took_ms = tried.pause_ms if pauses else tried.ttft_ms
    before_ms = max(0, now_ms - first_now_ms - tried.broke_ms) if pauses else now_ms - first_now_ms
    left_ms = max(0, took_ms - before_ms)
    there = [each for each in recording.requests.before(tried) if not 0 < each.prefilled_at < tried.at]
    near = recording.requests.soon_after(tried, NEAR_MS)
    earlier = [each for each in there if 0 < each.prefilled_at < tried.prefilled_at]
    behind_ms = max((each.prefilled_ms for each in earlier), default=decided_ms) - decided_ms
    behind_ms = min(left_ms, max(0, behind_ms))
    return FirstTokenPhases(
        ttft_ms=took_ms,
        before_ms=before_ms,
        behind_ms=behind_ms,
        behind_requests=len(there),
        behind_tokens=sum(each.prefill_tokens for each in there),
        rest_ms=left_ms - behind_ms,
        overlapped=len(earlier) < len(there),
        near_requests=len(near),
        near_tokens=sum(each.prefill_tokens for each in near),
        near_ms=NEAR_MS,
    )
