"""Events without names: what of each event stays in a redacted log."""

from __future__ import annotations

from typing import assert_never

from msgspec.structs import replace

from core.events import (
    BlocksRemoved,
    BlocksStored,
    CacheCleared,
    CacheRestated,
    DivergenceFound,
    Event,
    LoadReported,
    LocalChanged,
    ReplicaJoined,
    ReplicaLeft,
    ReplicaLost,
    ReplicaReported,
    ReplicaRestated,
    RequestFinished,
    RequestMigrated,
    RequestPrefilled,
    RequestRejected,
    RequestRouted,
    SettingsChanged,
    UnknownEvent,
    WorkerJoined,
    WorkerLeft,
    WorkerLost,
)
from core.events.jobs import (
    JobsRestated,
    PrefillCancelled,
    PrefillCompleted,
    PrefillFailed,
    PrefillPulled,
    PrefillRequested,
    PrefillStarted,
)
from core.events.routing import QueueEvent, RequestQueued, RequestTurnedAway
from replay.redacting.jobs import of_job, verdict
from replay.redacting.names import OUTCOMES, TEXT, Names


def redacted(event: Event | UnknownEvent, names: Names) -> Event | None:
    """The event without names; None for one of which nothing can stay: it is about digests of folds that are other
    ones now, or of a kind that this program does not know."""
    match event:
        case BlocksStored() | BlocksRemoved() | CacheRestated() | LocalChanged() | JobsRestated():
            return event
        case ReplicaReported() | DivergenceFound() | UnknownEvent():
            return None
        case WorkerJoined() | LoadReported() | ReplicaJoined() | SettingsChanged():
            return _about_itself(event, names)
        case (
            RequestQueued()
            | RequestTurnedAway()
            | RequestRouted()
            | RequestPrefilled()
            | RequestFinished()
            | RequestMigrated()
            | RequestRejected()
        ):
            return _of_request(event, names)
        case CacheCleared() | WorkerLeft() | WorkerLost() | ReplicaLeft() | ReplicaLost() | ReplicaRestated():
            return _with_reason(event, names)
        case (
            PrefillRequested()
            | PrefillPulled()
            | PrefillCancelled()
            | PrefillStarted()
            | PrefillCompleted()
            | PrefillFailed()
        ):
            return of_job(event, names)
        case _:
            assert_never(event)


def _about_itself(
    event: WorkerJoined | LoadReported | ReplicaJoined | SettingsChanged, names: Names
) -> WorkerJoined | LoadReported | ReplicaJoined | SettingsChanged:
    match event:
        case WorkerJoined():
            return joined(event, names)
        case LoadReported():
            return reported(event)
        case ReplicaJoined():
            return seated(event, names)
        case SettingsChanged():
            return replace(event, settings=names.settings(event.settings))
        case _:
            assert_never(event)


def _of_request(
    event: QueueEvent | RequestRouted | RequestPrefilled | RequestFinished | RequestMigrated | RequestRejected,
    names: Names,
) -> Event:
    names.note((event.request,))
    match event:
        case RequestRouted():
            return replace(event, tenant=names.of("tenant", event.tenant), prefer=names.id(event.prefer))
        case RequestPrefilled():
            return event if event.prefill is None else replace(event, prefill=verdict(event.prefill, names))
        case RequestFinished():
            outcome = event.outcome if event.outcome in OUTCOMES else TEXT
            return replace(event, outcome=outcome, detail=names.text(event.detail))
        case RequestQueued():
            return replace(event, tenant=names.of("tenant", event.tenant), why=names.text(event.why))
        case RequestTurnedAway() | RequestRejected():
            detail = {"detail": names.text(event.detail)} if isinstance(event, RequestTurnedAway) else {}
            return replace(event, tenant=names.of("tenant", event.tenant), reason=names.text(event.reason), **detail)
        case RequestMigrated():
            return replace(event, reason=names.text(event.reason))
        case _:
            assert_never(event)


def _with_reason(
    event: CacheCleared | WorkerLeft | WorkerLost | ReplicaLeft | ReplicaLost | ReplicaRestated, names: Names
) -> Event:
    if isinstance(event, ReplicaRestated):
        names.note(event.requests)
    if isinstance(event, WorkerLost | ReplicaLost):
        return replace(event, by=names.id(event.by), reason=names.text(event.reason))
    return replace(event, reason=names.text(event.reason))


def joined(event: WorkerJoined, names: Names) -> WorkerJoined:
    """A worker, as it says who it is."""
    return replace(event, name=names.of("worker", event.name), address="", group=names.of("group", event.group))


def seated(event: ReplicaJoined, names: Names) -> ReplicaJoined:
    """A replica, as it says who it is."""
    return replace(event, name=names.of("replica", event.name), address="")


def reported(event: LoadReported) -> LoadReported:
    """A load report; the digest in it is of a message that is another one now."""
    return replace(event, kv_head=b"")
