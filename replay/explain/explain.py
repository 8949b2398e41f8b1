"""Explains from the log alone why a request went to its worker, and how it ended."""

from __future__ import annotations

from typing import Any

from core.errors import CallerError
from core.event_json import time_text
from core.events import RequestFinished, RequestMigrated, RequestRejected, RequestRouted
from core.events.request_stages import RequestStages
from core.events.routing import CACHED_UNKNOWN
from core.ids import WorkerId, from_column
from core.settings import RoutingSettings
from core.subjects import ROUTING
from projections.policy.cost import MILLI, ScoredCandidate
from replay.explain.cache_prediction import check_cache_prediction
from replay.explain.cost_breakdown import (
    CostTerms,
    cost_terms,
    draw_position,
    drawn_pair,
    draws_by_cost,
    estimate_basis,
    session_order,
    time_estimate,
)
from replay.explain.course import course_parts, request_course
from replay.explain.decision_inputs import DecisionInputs, ExcludedWorkers, decision_inputs, routed_event
from replay.explain.explanation import (
    AttemptExplanation,
    CandidateRow,
    Explanation,
    Freshness,
    RejectionExplanation,
    TimeEstimate,
)
from replay.explain.freshness import decided_ms, measure_freshness
from replay.explain.prefill_trace import explain_fetch, prefill_hint, prefill_outcome, prefill_report, trace_prefill_job
from replay.explain.sentences import chances, decision_reason, runner_up
from replay.explain.stage_times import answer_delay, concurrent_prefills, recorded_stages
from replay.explain.summary import summarize
from replay.explain.waiting import NEAR_MS, arrival_ms, explain_hold, first_token_phases, queue_rejection, queue_wait
from replay.recording.participants import Participants
from replay.recording.recording import Recording
from replay.recording.request_history import RequestAttempt

EXCLUDED_NAMED_MAX = 64
"""Workers listed per reason of exclusion."""
REJECTIONS_MAX = 20
"""So many of the last are listed: clients try again under the same id."""
UNREAD = "unknown"
"""The reason of a refusal that a newer program recorded in a form of its own."""


def explain(recording: Recording, request: str, tenant: str | None = None, *, whole: bool | None = None) -> Explanation:
    """The explanation of the tenant's request from the log, which is named in a way that `RequestHistory.named` reads;
    CallerError if the log does not have it, or has some of several tenants and none is named.

    A decision is made again from the log if `whole`, or if that takes half a second and `whole` is None; else it is
    explained as it was recorded, with the candidates that the record holds.
    """
    text, request = request, recording.requests.named(request)
    uses = recording.requests.uses_of(request, tenant)
    if not uses:
        of = "" if tenant is None else f" of tenant {tenant!r}"
        raise CallerError(f"the log knows no request {text!r}{of}; `contrail events --stream routing` lists them")
    last = next((tries for tries in reversed(uses) if any(tried.worker for tried in tries)), [])
    attempts, unread = list[AttemptExplanation](), list[str]()
    recorded = list[RequestStages | None]()
    first_now_ms: int | None = None
    for tried in last:
        event = routed_event(recording, tried) if tried.worker else None
        if event is not None:
            first_now_ms = arrival_ms(recording, tried, event.now_ms) if first_now_ms is None else first_now_ms
            recorded.append(recorded_stages(recording, tried))
            attempts.append(_attempt(recording, tried, event, first_now_ms, recorded[-1], whole=whole))
            attempts[-1].compared = _compared(attempts)
        elif tried.worker:
            unread.append(_unread(recording, tried))
    parts = course_parts(attempts, recorded)
    refused = sorted((tried for tries in uses for tried in tries if not tried.worker), key=lambda tried: tried.at)
    rejections = [_rejection(recording, tried) for tried in refused[-REJECTIONS_MAX:]]
    return Explanation(
        request=request,
        model=uses[-1][0].model,
        summary=summarize(attempts, rejections, parts) if not unread else [],
        attempts=attempts,
        rejections=rejections,
        uses=len(uses),
        unread=unread,
        course=request_course(attempts, parts) if not unread else None,
    )


def _unread(recording: Recording, tried: RequestAttempt) -> str:
    went = f"attempt {tried.attempt} went to {recording.names.life(tried.worker)}"
    return f"{went}; why, {ROUTING}:{tried.seq} says in a form of a newer program, which this one cannot read"


def _attempt(
    recording: Recording,
    tried: RequestAttempt,
    event: RequestRouted,
    first_now_ms: int,
    stages: RequestStages | None,
    *,
    whole: bool | None,
) -> AttemptExplanation:
    on, names = decision_inputs(recording, tried, event, whole=whole), recording.names
    made_ms = decided_ms(recording, tried, event)
    known = measure_freshness(recording, event, made_ms, [scored.candidate.worker for scored in on.ranked])
    attempt = AttemptExplanation(
        attempt=event.attempt,
        seq=tried.seq,
        time=time_text(tried.time_ms),
        decided=time_text(made_ms),
        replica=tried.replica,
        replica_name=names.replica(tried.replica),
        policy=event.policy,
        settings_revision=event.settings_revision,
        settings=on.settings.to_mapping() if on.settings_known else None,
        settings_changed=changed_settings(on.settings) if on.settings_known else {},
        prompt_tokens=event.prompt_tokens,
        block_size=event.block_size,
        prompt_blocks=on.request.prompt.blocks_to_hold,
        worker=event.worker,
        worker_name=names.worker(event.worker),
        candidates=candidate_rows(on, known, names),
        candidates_total=event.candidates_total,
        excluded=excluded_named(on.excluded, names),
        local={names.life(worker): list(reasons) for worker, reasons in on.local.items()},
        cursor={stream: at for stream, (_, at) in event.cursor.items()},
        digest=event.digest,
        predicted_cached_tokens=event.predicted_cached_tokens,
        why=decision_reason(on, names.worker),
        runner_up=runner_up(on, names.worker),
        draw=draw_position(event.seed) if on.settings_known and draws_by_cost(on.settings) else None,
        again=on.again,
        estimates=estimate_basis(on),
        session=session_order(on, names.worker),
        session_key=event.session,
        session_parent=event.session_parent,
        adapter=event.adapter or "",
        loads_adapter=on.loads_adapter,
        drawn_two=[scored.candidate.worker for scored in drawn_pair(on)],
        hold=explain_hold(recording, tried, event),
        doubts=on.unverifiable,
        queued=queue_wait(recording, tried, event.now_ms),
        told_tokens=_earlier_tokens(recording, tried),
        decided_after_ms=max(0, event.now_ms - first_now_ms),
        phases=first_token_phases(recording, tried, first_now_ms, event.now_ms, made_ms),
        reuse=check_cache_prediction(recording, tried, on, made_ms) if tried.prefilled_seq or tried.ended_seq else None,
        hint=prefill_hint(event, on, names),
        fetch=explain_fetch(event, names),
    )
    report = prefill_report(recording, tried)
    attempt.prefill = None if report is None else prefill_outcome(report, event.worker, names)
    attempt.job = trace_prefill_job(recording, tried, report, made_ms)
    _ended(recording, tried, attempt)
    attempt.log_late_ms = max(0, tried.time_ms - made_ms)
    attempt.delay = answer_delay(recording, tried)
    if stages is not None:
        attempt.concurrent = concurrent_prefills(recording, tried, stages, NEAR_MS)
    return attempt


def candidate_rows(on: DecisionInputs, known: dict[WorkerId, Freshness], names: Participants) -> list[CandidateRow]:
    """The candidates with their costs taken apart, the chosen one first."""
    likely, weighed = chances(on), estimate_basis(on)
    found = []
    for place, scored in enumerate(on.ranked):
        worker = scored.candidate.worker
        estimated = None if weighed is None else time_estimate(on, scored, exact=weighed.exact)
        found.append(_row(on, scored, known[worker], names, likely.get(worker), estimated, chosen=not place))
    return found


def _row(
    on: DecisionInputs,
    scored: ScoredCandidate,
    known: Freshness,
    names: Participants,
    probability: float | None,
    estimated: TimeEstimate | None,
    *,
    chosen: bool,
) -> CandidateRow:
    candidate, costs = scored.candidate, cost_terms(on, scored) or CostTerms()
    return CandidateRow(
        worker=candidate.worker,
        name=names.worker(candidate.worker),
        chosen=chosen,
        cost=scored.cost / MILLI,
        prefill_cost=costs.prefill,
        decode_cost=costs.decode,
        request_cost=costs.request,
        wait_cost=costs.wait,
        reuse_cost=costs.reuse,
        delay_cost=costs.delays,
        load_cost=costs.load,
        turnover_cost=costs.turnover,
        timed=estimated,
        overlap=candidate.overlap[-1],
        pending=candidate.pending,
        to_prefill=scored.prefill_m / MILLI,
        active_blocks=candidate.active_blocks,
        active_requests=candidate.active_requests,
        waiting=candidate.waiting,
        cache_known=candidate.cache_known,
        overlap_device=candidate.overlap[0],
        probability=probability,
        in_flight=on.in_flight[candidate.worker],
        knowledge=known,
    )


def changed_settings(settings: RoutingSettings) -> dict[str, Any]:
    """The settings that differ from the defaults."""
    usual = RoutingSettings().to_mapping()
    return {name: value for name, value in settings.to_mapping().items() if value != usual[name]}


def excluded_named(excluded: ExcludedWorkers, names: Participants) -> dict[str, dict[str, Any]]:
    """Reason to how many, and the first of them by name and id."""
    return {
        reason: {"count": count, "first": [names.life(worker) for worker in workers[:EXCLUDED_NAMED_MAX]]}
        for reason, (count, workers) in excluded.items()
    }


def _earlier_tokens(recording: Recording, tried: RequestAttempt) -> int:
    """Tokens of the answer that the client had from an earlier attempt."""
    tokens = 0
    for _, message in (
        recording.messages(ROUTING, tried.migrated_seq, tried.migrated_seq + 1) if tried.migrated_seq else ()
    ):
        for event in message.events:
            if isinstance(event, RequestMigrated) and (event.request, event.attempt) == (tried.request, tried.attempt):
                tokens = event.told_tokens
    return tokens


def _compared(attempts: list[AttemptExplanation]) -> bool:
    """True if the newest attempt began the answer anew, though the client had some of it: its prompt is no longer."""
    first, last = attempts[0], attempts[-1]
    return bool(last.told_tokens) and first.attempt == 0 and last.prompt_tokens == first.prompt_tokens


def _ended(recording: Recording, tried: RequestAttempt, attempt: AttemptExplanation) -> None:
    """The outcome is written into the attempt."""
    if tried.prefilled_seq:
        attempt.ttft_ms = tried.ttft_ms
        if tried.cached_tokens != CACHED_UNKNOWN:
            attempt.real_cached_tokens = tried.cached_tokens
        attempt.first_token_ms = tried.first_token_ms
        attempt.pause_ms = tried.pause_ms if tried.pause_ms >= 0 else None
    if not tried.ended_seq:
        return
    attempt.outcome, attempt.output_tokens = tried.outcome, tried.output_tokens
    attempt.duration_ms = tried.duration_ms
    for _, event in recording.events([tried.ended_at]):
        if isinstance(event, RequestFinished):
            attempt.detail = event.detail


def _rejection(recording: Recording, tried: RequestAttempt) -> RejectionExplanation:
    if (away := queue_rejection(recording, tried)) is not None:
        return away
    event = next((it for _, it in recording.events([tried.at]) if isinstance(it, RequestRejected)), None)
    if event is None:
        return RejectionExplanation(
            attempt=tried.attempt,
            time=time_text(tried.time_ms),
            reason=UNREAD,
            status=tried.status,
            excluded={},
            queued=queue_wait(recording, tried, None),
        )
    excluded = {
        reason: (count, [WorkerId(worker) for worker in from_column(ids)])
        for reason, (count, ids) in event.excluded.items()
    }
    return RejectionExplanation(
        attempt=event.attempt,
        time=time_text(tried.time_ms),
        reason=event.reason,
        status=event.status,
        excluded=excluded_named(excluded, recording.names),
        queued=queue_wait(recording, tried, event.now_ms),
    )
