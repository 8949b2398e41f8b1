"""DecisionInputs: the inputs of one decision, made again from the log; or as recorded, where the log has gaps or the
fold would take long. The record is exact for the candidates that it holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from core.events import RequestRouted
from core.events.routing import LEVEL_COLUMNS, LOCAL_REASONS, TIMED_COLUMNS
from core.ids import ReplicaId, StreamName, WorkerId, from_column
from core.prompt import HashedPrompt
from core.settings import RoutingSettings
from projections.folds.in_flight import WorkerLoad
from projections.folds.kv_fold import is_cold
from projections.folds.state import PoolReader
from projections.policy.cost import ESTIMATING_POLICIES, MILLI, ScoredCandidate
from projections.policy.decide import Decision
from projections.policy.prefill_backlog import NO_BACKLOG, PrefillBacklog
from projections.policy.prefill_time import PrefillTime
from projections.policy.rules import FIRST_ACTIVE_VERSION, POOLS_VERSION
from projections.policy.view import Candidate, RouteRequest, View, local_by_worker
from replay.explain.explanation import WorkerInFlight
from replay.recording.recording import Recording
from replay.recording.request_history import RequestAttempt
from replay.verify.differing_terms import reuse_max
from replay.verify.judge import judge_decision

FOLD_MAX = 30_000
"""So many messages are folded without `whole`: about half a second."""
SAME, DIFFERS, NOT_MADE = "same", "differs", "not_made"

ExcludedWorkers = dict[str, tuple[int, list[WorkerId]]]
"""Reason to how many, and some of them or all."""


class DecisionInputs(NamedTuple):
    """The inputs of one decision: its request, its settings, all candidates and all exclusions."""

    event: RequestRouted
    request: RouteRequest
    settings: RoutingSettings
    settings_known: bool
    """False: the recording does not say what the revision means, and these are the defaults."""
    ranked: list[ScoredCandidate]
    """The chosen one first, then by cost."""
    excluded: ExcludedWorkers
    local: dict[WorkerId, tuple[str, ...]]
    turn: int | None
    """The number of the replica's earlier decisions for the model; None if the state was not folded."""
    in_flight: dict[WorkerId, WorkerInFlight]
    """Of the candidates."""
    again: str
    unverifiable: list[str]
    backlog: PrefillBacklog
    """Outstanding prefills, where the policy uses them."""
    pools: Sequence[PoolReader] = ()
    """Pools that counted for workers; none if the state was not folded."""
    loads_adapter: bool | None = None
    """True if the chosen worker had to load the request's adapter first; None if the state was not folded."""

    @property
    def stale(self) -> set[WorkerId]:
        """Workers without recent load reports."""
        return {worker for worker, reasons in self.local.items() if "stale" in reasons}


def recorded_event(recording: Recording, tried: RequestAttempt) -> RequestRouted | None:
    """The decision as it was recorded; None for a refusal."""
    return next((event for _, event in recording.events([tried.at]) if isinstance(event, RequestRouted)), None)


def routed_event(recording: Recording, tried: RequestAttempt) -> RequestRouted | None:
    """The decision as it was recorded, with all hashes of its prompt if they can be had; None for a refusal."""
    return next((event for _, event in recording.whole_events([tried.at]) if isinstance(event, RequestRouted)), None)


def decision_inputs(
    recording: Recording, tried: RequestAttempt, event: RequestRouted, *, whole: bool | None
) -> DecisionInputs:
    """The inputs of the decision. The log is folded for them if `whole`, or if `whole` is None and that is quick."""
    if whole is None:
        cursor = {StreamName(stream): seq for stream, (_, seq) in event.cursor.items() if stream in recording.streams}
        whole = recording.to_fold(cursor) <= FOLD_MAX
    judged = None
    if whole:
        judged = judge_decision(recording, tried.seq, ReplicaId(tried.replica), event.request, event.attempt)
    if judged is None:
        return _as_recorded(recording, tried, event, NOT_MADE, [])
    if isinstance(judged.decision, str) or not judged.same:
        return _as_recorded(recording, tried, event, DIFFERS, [judged.excuse.text] if judged.excuse else [])
    known = recording.replicas.settings(tried.replica, event.settings_revision, tried.seq) is not None
    at = judged.at
    made = inputs_of_decision(at.view, at.request, at.settings, event, judged.decision)
    return made._replace(settings_known=known)


def inputs_of_decision(
    view: View, request: RouteRequest, settings: RoutingSettings, event: RequestRouted, decision: Decision
) -> DecisionInputs:
    """The inputs of a decision that is made on this view."""
    return DecisionInputs(
        event,
        request,
        settings,
        settings_known=True,
        ranked=[*decision.ranked],
        excluded={reason: (len(ids), ids) for reason, ids in sorted(decision.excluded.items())},
        local=dict(sorted(local_by_worker(view.local).items())),
        turn=view.routed(event.model),
        in_flight={scored.candidate.worker: in_flight(view, scored.candidate) for scored in decision.ranked},
        again=SAME,
        unverifiable=[],
        backlog=decision.backlog,
        pools=view.state.pool_readers() if decision.version >= POOLS_VERSION else (),
        loads_adapter=_loads_adapter(view, request, decision),
    )


def _loads_adapter(view: View, request: RouteRequest, decision: Decision) -> bool:
    member = None if decision.worker is None else view.state.member(decision.worker)
    return bool(request.adapter) and member is not None and is_cold(member, request.adapter)


def in_flight(view: View, candidate: Candidate) -> WorkerInFlight:
    """The worker's load in flight, by this view."""
    own = view.pending_events.in_flight_load.busy.get(candidate.worker, WorkerLoad())
    return WorkerInFlight(
        requests=candidate.active_requests,
        blocks=candidate.active_blocks,
        prefill_tokens=candidate.prefill_tokens,
        ahead=own.requests,
    )


def _as_recorded(
    recording: Recording, tried: RequestAttempt, event: RequestRouted, again: str, unverifiable: list[str]
) -> DecisionInputs:
    settings = recording.replicas.settings(tried.replica, event.settings_revision, tried.seq)
    known = recording.replicas.local(tried.replica, tried.seq)
    local = {
        WorkerId(worker): tuple(reason for reason in LOCAL_REASONS if reason in reasons)
        for worker, reasons in sorted(known.items())
    }
    return recorded_inputs(event, settings, local)._replace(again=again, unverifiable=unverifiable)


def recorded_inputs(
    event: RequestRouted,
    settings: RoutingSettings | None,
    local: Mapping[WorkerId, tuple[str, ...]] = MappingProxyType({}),
) -> DecisionInputs:
    """The decision as its event holds it; without the settings, by the defaults of its policy."""
    known, settings = settings is not None, settings or RoutingSettings(policy=event.policy)
    request = RouteRequest.of(event, HashedPrompt(event.prompt_tokens, event.block_size, event.hashes))
    ranked = recorded_candidates(event, settings, local)
    return DecisionInputs(
        event,
        request,
        settings,
        settings_known=known,
        ranked=ranked,
        excluded={
            reason: (count, [WorkerId(worker) for worker in from_column(ids)])
            for reason, (count, ids) in event.excluded.items()
        },
        local=dict(local),
        turn=None,
        in_flight={scored.candidate.worker: _recorded_in_flight(scored.candidate) for scored in ranked},
        again=NOT_MADE,
        unverifiable=[],
        backlog=_recorded_backlog(event, request, settings),
    )


def _recorded_backlog(event: RequestRouted, request: RouteRequest, settings: RoutingSettings) -> PrefillBacklog:
    """Outstanding prefills of the event's candidates, where the policy uses them."""
    if settings.policy not in ESTIMATING_POLICIES:
        return NO_BACKLOG
    workers = [*map(WorkerId, from_column(event.candidates))]
    columns = (dict(zip(workers, event.columns.get(name, ()), strict=False)) for name in TIMED_COLUMNS)
    waits, reuse, turnover = columns
    return PrefillBacklog(
        PrefillTime.of(settings, request.time),
        waits,
        request.held,
        reuse,
        reuse_max(event),
        request.loading(settings),
        prices_first_active=event.decide_version >= FIRST_ACTIVE_VERSION,
        turnover=turnover,
    )


def _recorded_in_flight(candidate: Candidate) -> WorkerInFlight:
    return WorkerInFlight(
        requests=candidate.active_requests, blocks=candidate.active_blocks, prefill_tokens=None, ahead=None
    )


def recorded_candidates(
    event: RequestRouted, settings: RoutingSettings, local: Mapping[WorkerId, tuple[str, ...]]
) -> list[ScoredCandidate]:
    """The candidates that the event holds, as `score` would give them; what it leaves out is filled in so that they
    cost the same."""
    found = []
    for at, worker in enumerate(from_column(event.candidates)):
        row = {name: column[at] for name, column in event.columns.items()}
        deepest = row["overlap_all"]
        levels = (row["overlap"], *(row.get(name, deepest) for name in LEVEL_COLUMNS), deepest)
        candidate = Candidate(
            WorkerId(worker), event.model, event.block_size, 0, bool(row["known"]), levels, row["pending"],
            row["active_blocks"], row["active_requests"], 0, row["waiting"], draining=False,
        )  # fmt: skip
        tokens = _queued_tokens(
            event, settings, candidate, row["prefill"], stale="stale" in local.get(WorkerId(worker), ())
        )
        found.append(ScoredCandidate(candidate._replace(prefill_tokens=tokens), row["cost"], row["prefill"]))
    return found


def _queued_tokens(
    event: RequestRouted, settings: RoutingSettings, candidate: Candidate, prefill_m: int, *, stale: bool
) -> int:
    """Tokens queued there that give these blocks to prefill: the inverse of what `score` does."""
    if settings.policy in ESTIMATING_POLICIES:
        return 0  # they have no part in it
    credit, before = 0, 0
    for depth, credit_m in zip(candidate.overlap, settings.credits_m, strict=True):
        credit, before = credit + (depth - before) * credit_m, depth
    shared = max(0, candidate.pending - candidate.overlap[-1])
    credit += shared * settings.pending_credit_m
    if stale:
        credit = credit * settings.stale_credit_m // MILLI
    own_m = max(0, event.prompt_tokens * MILLI // event.block_size - credit)
    queued_m = max(0, prefill_m - own_m) + shared * MILLI
    return -(-queued_m * event.block_size // MILLI)
