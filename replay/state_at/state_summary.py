"""StateSummary: what a state holds, as values that people and programs read; the keys of `contrail replay at --json`.

Without a view it is the log's fold. With one it is what that replica believed: its own events that it had not read
back count, and what only it knew of workers. Digests are of the fold alone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import msgspec

from core.event_json import hash_text, time_text
from core.events import LoadReported
from core.ids import ReplicaId, WorkerId
from core.settings import TIERS, RoutingSettings
from projections.folds.in_flight import WorkerLoad
from projections.folds.kv_fold import Member
from projections.folds.routing_fold import ReplicaPart
from projections.folds.state import State
from projections.policy.view import View, local_by_worker


class LoadSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A worker's newest load report."""

    running: int
    waiting: int
    blocks_used: int
    blocks_total: int
    draining: bool
    age_ms: int | None
    """Age of the report; None if it is not known."""


class WorkerSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One worker that joined and has not ended."""

    worker: str
    name: str
    model: str
    role: str
    engine: str
    block_size: int
    capacity_blocks: int
    blocks: dict[str, int]
    """Per tier how many it holds; tiers without any are left out."""
    cache_known: bool
    """False after a gap in its messages, until it restates its cache."""
    cache_assumed: bool
    """True if its engine reports no cache, and it is assumed from the prompts that were sent to it."""
    active_requests: int
    active_blocks: int
    prefill_tokens: int
    """Queued there, or being computed."""
    load: LoadSummary | None
    local: dict[str, list[str]]
    """Exclusions of the worker by single replicas: replica to reasons."""


class ReuseSummary(msgspec.Struct, frozen=True, kw_only=True):
    """Cached tokens that a replica expected, beside those that engines reported."""

    requests: int
    prompt_tokens: int
    predicted_tokens: int
    cached_tokens: int


class ReplicaSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One replica that joined and has not ended."""

    replica: str
    name: str
    version: str
    known: bool
    """False after a gap in its messages, until it restates itself."""
    in_flight: int
    decisions: dict[str, int]
    """Per model, since it joined or restated itself."""
    settings_revision: int
    settings: dict[str, Any]
    reuse: ReuseSummary


class RequestSummary(msgspec.Struct, frozen=True, kw_only=True):
    """One attempt that is under way."""

    request: str
    attempt: int
    replica: str
    worker: str
    blocks: int
    prefill_tokens: int
    """Still to be computed; 0 once its first token came."""


class BeliefSummary(msgspec.Struct, frozen=True, kw_only=True):
    """The replica of a belief, and the decision at which the belief is known."""

    replica: str
    name: str
    request: str | None
    """The decision at which it is known: None if the replica had made none, and then it is the log's moment."""
    attempt: int | None
    seq: int | None
    time: str | None
    ahead_events: int
    """Its own events that it had not read back."""
    revision: int
    settings: dict[str, Any]
    doubts: list[str]
    """Why the recording may not show what it believed."""


class StateSummary(msgspec.Struct, frozen=True, kw_only=True):
    """See the module's text."""

    time: str
    time_ms: int
    cursor: dict[str, int]
    digests: dict[str, str]
    """Per stream."""
    digest: str
    """Of the whole."""
    incomplete: int
    """Sources that are unknown until they restate themselves."""
    cut: list[str]
    """Starts of streams without their head and without a snapshot since: sources that were silent from then on are not
    known."""
    seat: BeliefSummary | None
    settings: dict[str, Any]
    """Settings of the replica of the belief; without a belief, of the replica that changed them last."""
    settings_differ: bool
    """Replicas have different settings."""
    workers: list[WorkerSummary]
    replicas: list[ReplicaSummary]
    in_flight: list[RequestSummary]


def summarize(
    state: State,
    time_ms: int,
    *,
    cut: list[str],
    view: View | None = None,
    known_as: BeliefSummary | None = None,
    own: list[RequestSummary] | None = None,
    reported_ms: Mapping[str, int] | None = None,
) -> StateSummary:
    """The contents of the state. With a `view`, the belief of that replica: `known_as` names it, `own` are its requests
    under way, if the fold does not know them. `reported_ms` has the time of each worker's newest load report, `cut` the
    streams without their head."""
    parts = sorted(state.routing.replicas.items())
    settings = {replica: _settings(part) for replica, part in parts if part.joined is not None}
    newest = max((part for _, part in parts), key=lambda part: part.settings_revision, default=None)
    own_replica = view.replica if view is not None and own is not None else None
    in_flight = [each for replica, part in parts if replica != own_replica for each in requests_of(part)] + (own or [])
    counts = Counter(each.replica for each in in_flight)
    return StateSummary(
        time=time_text(time_ms),
        time_ms=time_ms,
        cursor={stream: at.seq for stream, at in state.cursor.items()},
        digests={stream: hash_text(state.digest_of(stream)) for stream in sorted(state.cursor)},
        digest=hash_text(state.digest),
        incomplete=state.incomplete,
        cut=cut,
        seat=known_as,
        settings=known_as.settings if known_as is not None else _settings(newest),
        settings_differ=any(each != next(iter(settings.values())) for each in settings.values()),
        workers=[_worker(state, member, view, time_ms, reported_ms or {}) for member in state.alive()],
        replicas=[
            _replica(part, settings[replica], counts[replica], view)
            for replica, part in parts
            if part.joined is not None
        ],
        in_flight=in_flight,
    )


def newest_settings(state: State) -> RoutingSettings:
    """Settings of the replica that changed them last; the defaults if none did. CallerError if this program cannot read
    them."""
    parts = state.routing.replicas.values()
    newest = max(parts, key=lambda part: part.settings_revision, default=None)
    return RoutingSettings.parse(newest.settings if newest is not None else {})


def _settings(part: ReplicaPart | None) -> dict[str, Any]:
    """All of them, with the defaults of what the replica did not say."""
    return RoutingSettings().to_mapping() | (part.settings if part is not None else {})


def _worker(
    state: State, member: Member, view: View | None, time_ms: int, reported_ms: Mapping[str, int]
) -> WorkerSummary:
    worker, joined = member.worker, member.joined
    assert joined is not None
    busy = [state.routing.in_flight_load.busy.get(worker, WorkerLoad())]
    if view is not None:
        busy.append(view.pending_events.in_flight_load.busy.get(worker, WorkerLoad()))
    return WorkerSummary(
        worker=worker,
        name=joined.name,
        model=joined.model,
        role=joined.role,
        engine=joined.engine,
        block_size=joined.block_size,
        capacity_blocks=joined.capacity_blocks,
        blocks=_blocks(state, worker),
        cache_known=member.cache_known,
        cache_assumed=joined.assumed is True,
        active_requests=sum(each.requests for each in busy),
        active_blocks=sum(each.blocks for each in busy),
        prefill_tokens=sum(each.prefill_tokens for each in busy),
        load=_load(state.loads.reports.get(worker), reported_ms.get(worker), time_ms),
        local=_local(state, worker, view),
    )


def _blocks(state: State, worker: WorkerId) -> dict[str, int]:
    """By tier, of each that has any; those of pools that the worker reads are on their tier."""
    holders = [worker, *(it.source for it in state.pool_readers() if it.worker == worker)]
    counts = {tier: sum(state.index.blocks(holder, tier) for holder in holders) for tier in TIERS}
    return {tier: count for tier, count in counts.items() if count}


def _local(state: State, worker: WorkerId, view: View | None) -> dict[str, list[str]]:
    if view is not None:
        reasons = local_by_worker(view.local).get(worker, ())
        return {view.replica: list(reasons)} if reasons else {}
    parts = sorted(state.routing.replicas.items())
    return {replica: list(part.local[worker]) for replica, part in parts if part.local.get(worker)}


def _load(report: LoadReported | None, reported_ms: int | None, time_ms: int) -> LoadSummary | None:
    if report is None:
        return None
    return LoadSummary(
        running=report.running,
        waiting=report.waiting,
        blocks_used=report.blocks_used,
        blocks_total=report.blocks_total,
        draining=report.draining,
        age_ms=None if reported_ms is None else max(0, time_ms - reported_ms),
    )


def _replica(part: ReplicaPart, settings: dict[str, Any], in_flight: int, view: View | None) -> ReplicaSummary:
    assert part.joined is not None
    routed = Counter(part.routed)
    if view is not None and view.replica == part.replica:
        routed.update(view.pending_events.routed)
    return ReplicaSummary(
        replica=part.replica,
        name=part.joined.name,
        version=part.joined.version,
        known=part.known,
        in_flight=in_flight,
        decisions=dict(sorted(routed.items())),
        settings_revision=part.settings_revision,
        settings=settings,
        reuse=ReuseSummary(**msgspec.structs.asdict(part.reuse)),
    )


def requests_of(part: ReplicaPart) -> list[RequestSummary]:
    """Requests of a replica under way by the fold."""
    return [
        RequestSummary(
            request=request,
            attempt=attempt,
            replica=ReplicaId(part.replica),
            worker=entry.worker,
            blocks=entry.blocks,
            prefill_tokens=entry.prefill_tokens,
        )
        for (request, attempt), entry in sorted(part.in_flight.items())
    ]
