"""Queued: a request's wait in its replica, and its end there if it got no place."""

from __future__ import annotations

import msgspec

from core.event_json import time_text
from core.events.routing import RequestQueued, RequestTurnedAway
from core.subjects import ROUTING
from replay.explaining.form import Rejection
from replay.explaining.queue_form import Queued
from replay.recording.recording import Recording
from replay.recording.request_history import RequestAttempt


def queued(recording: Recording, tried: RequestAttempt, until_ms: int | None) -> Queued | None:
    """Its wait, up to that time by the replica's clock; None if it had a place at once."""
    if not tried.queued_seq:
        return None
    for record, message in recording.said(ROUTING, tried.queued_seq, tried.queued_seq + 1):
        for event in message.events:
            if isinstance(event, RequestQueued) and event.request == tried.request:
                return Queued(
                    time=time_text(record.time_ms),
                    why=event.why,
                    priority=event.priority,
                    tenant=event.tenant,
                    depth=event.depth,
                    waited_ms=None if until_ms is None else max(0, until_ms - event.now_ms),
                )
    return None


def came_ms(recording: Recording, tried: RequestAttempt, decided_ms: int) -> int:
    """When it came, by the clock of its replica, which decided about it then."""
    waited = queued(recording, tried, decided_ms)
    return decided_ms if waited is None or waited.waited_ms is None else decided_ms - waited.waited_ms


def turned_away(recording: Recording, tried: RequestAttempt) -> Rejection | None:
    """Its end without a decision; None if it ended by one."""
    for record, message in recording.said(ROUTING, tried.seq, tried.seq + 1):
        for event in message.events:
            if isinstance(event, RequestTurnedAway) and event.request == tried.request:
                waited = queued(recording, tried, None)
                if waited is not None:
                    waited = msgspec.structs.replace(waited, waited_ms=event.waited_ms)
                return Rejection(
                    attempt=tried.attempt,
                    time=time_text(record.time_ms),
                    reason=event.reason,
                    status=event.status,
                    excluded={},
                    queued=waited,
                    detail=event.detail,
                )
    return None
