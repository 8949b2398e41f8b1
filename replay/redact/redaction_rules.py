"""Redaction rules: what stays of each event in a redacted log.

Ids of jobs and of workers are random and stay. Digests of prompts go: a guessed prompt could be proved by them.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any, assert_never

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from core.events import (
    AdapterEvicted,
    AdapterLoaded,
    AdapterUnloaded,
    AnswerDelayed,
    BlocksRemoved,
    BlocksStored,
    CacheCleared,
    CacheRestated,
    CapacityLearned,
    DemandRolled,
    DivergenceFound,
    Event,
    LoadReported,
    LocalChanged,
    PoolJoined,
    PoolLeft,
    PoolLost,
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
    ScaleApplied,
    ScaleDecided,
    ScaleFailed,
    ScaleSettingsChanged,
    SettingsChanged,
    UnknownEvent,
    WorkerJoined,
    WorkerLeft,
    WorkerLost,
    WorkerStarting,
)
from core.events.jobs import (
    JobEvent,
    JobsRestated,
    PrefillCancelled,
    PrefillCompleted,
    PrefillFailed,
    PrefillPulled,
    PrefillRequested,
    PrefillStarted,
)
from core.events.routing import QueueEvent, RequestQueued, RequestTurnedAway
from core.events.scale import ABSENCES, ORIGINS, ScaleEvent
from core.generation import PrefillReport
from core.kv_transfer import TRANSPORTS
from projections.policy.prefill_choice import PREFILL_OUTCOMES, PREFILL_REASONS
from projections.scaling.scale_decision import BOUNDS
from projections.scaling.scale_settings import OFF, ON, PREDICTORS
from replay.redact.pseudonyms import REQUEST_OUTCOMES, TEXT, Pseudonyms


def redact_job_event(event: JobEvent, names: Pseudonyms) -> JobEvent:
    """The event without names."""
    event = replace(event, job=names.id(event.job))
    match event:
        case PrefillRequested():
            names.note((event.request,))
            return replace(event, digest=names.text(event.digest), prefer=names.id(event.prefer))
        case PrefillPulled():
            return replace(event, worker=names.id(event.worker), transport=_known(event.transport, TRANSPORTS))
        case PrefillCancelled():
            return replace(event, reason=_known(event.reason, PREFILL_OUTCOMES), detail=names.text(event.detail))
        case PrefillStarted():
            return replace(event, requester=names.id(event.requester))
        case PrefillCompleted():
            return replace(
                event,
                requester=names.id(event.requester),
                layout=names.of("layout", event.layout),
                digest=names.text(event.digest),
                blocks=replace(event.blocks, request=names.text(event.blocks.request)),
            )
        case PrefillFailed():
            return replace(event, requester=names.id(event.requester), reason=names.text(event.reason))
        case _:
            assert_never(event)


def redact_prefill_report(report: PrefillReport, names: Pseudonyms) -> PrefillReport:
    """A decode worker's verdict without names."""
    return replace(
        report,
        reason=_known(report.reason, PREFILL_REASONS),
        job=names.id(report.job),
        worker=names.id(report.worker),
        outcome=_known(report.outcome, PREFILL_OUTCOMES),
        detail=names.text(report.detail),
    )


def _known(word: str, words: Container[str]) -> str:
    return word if word in words else TEXT


def redact_event(event: Event | UnknownEvent, names: Pseudonyms) -> Event | None:
    """The event without names; None for one of which nothing can stay: it is about digests of folds that are other
    ones now, or of a kind that this program does not know."""
    match event:
        case (
            BlocksStored()
            | BlocksRemoved()
            | CacheRestated()
            | LocalChanged()
            | JobsRestated()
            | AdapterLoaded()
            | AdapterEvicted()
            | AdapterUnloaded()  # with their names, as models: digests of decisions rest on them
        ):
            return event
        case ReplicaReported() | DivergenceFound() | UnknownEvent():
            return _without_digests(event)
        case (
            WorkerJoined()
            | PoolJoined()
            | LoadReported()
            | ReplicaJoined()
            | SettingsChanged()
            | DemandRolled()
            | CapacityLearned()
            | WorkerStarting()
            | ScaleDecided()
            | ScaleApplied()
            | ScaleFailed()
            | ScaleSettingsChanged()
        ):
            return _about_itself(event, names)
        case (
            RequestQueued()
            | RequestTurnedAway()
            | RequestRouted()
            | RequestPrefilled()
            | RequestFinished()
            | AnswerDelayed()
            | RequestMigrated()
            | RequestRejected()
        ):
            return _of_request(event, names)
        case (
            CacheCleared()
            | WorkerLeft()
            | WorkerLost()
            | PoolLeft()
            | PoolLost()
            | ReplicaLeft()
            | ReplicaLost()
            | ReplicaRestated()
        ):
            return _with_reason(event, names)
        case (
            PrefillRequested()
            | PrefillPulled()
            | PrefillCancelled()
            | PrefillStarted()
            | PrefillCompleted()
            | PrefillFailed()
        ):
            return redact_job_event(event, names)
        case _:
            assert_never(event)


def _of_planner(event: ScaleEvent, names: Pseudonyms) -> Event:
    """Counts and sums stay: they name neither requests nor parts."""
    match event:
        case ScaleDecided():
            predictor = _known(event.forecast.predictor, PREDICTORS)
            judged = event.judged
            if not isinstance(judged, UnsetType):
                judged = replace(judged, absent=_known(judged.absent, ("", *ABSENCES)))
            return replace(
                event,
                forecast=replace(event.forecast, predictor=predictor),
                bound=_known(event.bound, BOUNDS),
                judged=judged,
            )
        case CapacityLearned():
            profile = UNSET if event.profile is UNSET else names.text(event.profile)
            return replace(event, origin=_known(event.origin, ORIGINS), profile=profile)
        case ScaleFailed():
            return replace(event, reason=names.text(event.reason))
        case ScaleSettingsChanged():
            return replace(event, settings=_numbers(event.settings))
        case _:
            return event


def _without_digests(event: ReplicaReported | DivergenceFound | UnknownEvent) -> Event | None:
    """The counts of decisions stay."""
    if not isinstance(event, ReplicaReported) or event.counts is UNSET:
        return None
    return replace(event, points={}, incomplete=())


def _numbers(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a planner, of which only the predictor and the judge are texts."""
    return {
        key: _numbers(value)
        if isinstance(value, Mapping)
        else _known(value, (*PREDICTORS, ON, OFF))
        if isinstance(value, str)
        else value
        for key, value in settings.items()
    }


def _about_itself(
    event: WorkerJoined | PoolJoined | LoadReported | ReplicaJoined | SettingsChanged | ScaleEvent, names: Pseudonyms
) -> Event:
    match event:
        case WorkerJoined():
            return redact_worker_joined(event, names)
        case PoolJoined():
            return redact_pool_joined(event, names)
        case LoadReported():
            return redact_load_report(event)
        case ReplicaJoined():
            return redact_replica_joined(event, names)
        case SettingsChanged():
            return replace(event, settings=names.settings(event.settings))
        case _:
            return _of_planner(event, names)


def _of_request(
    event: QueueEvent
    | RequestRouted
    | RequestPrefilled
    | RequestFinished
    | AnswerDelayed
    | RequestMigrated
    | RequestRejected,
    names: Pseudonyms,
) -> Event:
    names.note((event.request,))
    match event:
        case RequestRouted():
            fetch = event.fetch
            if fetch is not UNSET:
                busy = {names.id(source): count for source, count in fetch.busy.items()}
                fetch = replace(fetch, busy=busy, source=names.id(fetch.source))
            return replace(event, tenant=names.of("tenant", event.tenant), prefer=names.id(event.prefer), fetch=fetch)
        case RequestPrefilled() | AnswerDelayed():
            report = event.prefill if isinstance(event, RequestPrefilled) else None
            return event if report is None else replace(event, prefill=redact_prefill_report(report, names))
        case RequestFinished():
            outcome = event.outcome if event.outcome in REQUEST_OUTCOMES else TEXT
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
    event: CacheCleared | WorkerLeft | WorkerLost | PoolLeft | PoolLost | ReplicaLeft | ReplicaLost | ReplicaRestated,
    names: Pseudonyms,
) -> Event:
    if isinstance(event, ReplicaRestated):
        names.note(event.requests)
    if isinstance(event, WorkerLost | PoolLost | ReplicaLost):
        return replace(event, by=names.id(event.by), reason=names.text(event.reason))
    return replace(event, reason=names.text(event.reason))


def redact_worker_joined(event: WorkerJoined, names: Pseudonyms) -> WorkerJoined:
    """A worker's own description."""
    pools = event.pools
    if pools is not UNSET:
        pools = replace(pools, ids=tuple(map(names.id, pools.ids)), kind=names.of("kind", pools.kind))
    fetch = event.fetch
    if fetch is not UNSET:
        fetch = replace(fetch, host="", port=0, kind=names.of("kind", fetch.kind))
    return replace(
        event,
        name=names.of("worker", event.name),
        address="",
        group=names.of("group", event.group),
        pools=pools,
        fetch=fetch,
    )


def redact_pool_joined(event: PoolJoined, names: Pseudonyms) -> PoolJoined:
    """A pool's own description; its kind is named as that of its workers."""
    return replace(
        event,
        pool=names.id(event.pool),
        keeper=names.id(event.keeper),
        name=names.of("worker", event.name),
        kind=names.of("kind", event.kind),
    )


def redact_replica_joined(event: ReplicaJoined, names: Pseudonyms) -> ReplicaJoined:
    """A replica's own description."""
    return replace(event, name=names.of("replica", event.name), address="")


def redact_load_report(event: LoadReported) -> LoadReported:
    """A load report; the digest in it is of a message that is another one now."""
    return replace(event, kv_head=b"")
