"""route_prompt: the decision about a prompt on a past state, as it would have been made then."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from types import MappingProxyType
from typing import Any, NamedTuple

import msgspec

from core.errors import CallerError
from core.events.kv import ADAPTER_SEPARATOR
from core.ids import ReplicaId, RequestId
from core.prompt import Prompt
from core.subjects import ROUTING
from projections.folds.pending_events import PendingEvents
from projections.policy.decide import decide, record
from projections.policy.load_time import LoadTime
from projections.policy.prefill_time import PrefillTime
from projections.policy.view import RouteRequest, View
from replay.explain.cost_breakdown import estimate_basis
from replay.explain.decision_inputs import inputs_of_decision, recorded_event
from replay.explain.explain import candidate_rows, excluded_named
from replay.explain.explanation import CandidateRow, EstimateBasis, RunnerUp
from replay.explain.freshness import measure_freshness
from replay.explain.sentences import chances, decision_reason, runner_up
from replay.recording.request_history import PLACES, RequestAttempt
from replay.state_at.state_at import StateAt
from replay.state_at.state_summary import newest_settings

ASKED = RequestId("asked")
DECISIONS_READ_MAX = 256
"""Decisions that are read in search of a learned prefill time."""
NO_REPLICA = ReplicaId("")
"""A replica that knows the log alone: it has no events of its own."""


class PromptQuery(NamedTuple):
    """A prompt, in tokens, as a request for it would bring it."""

    tokens: bytes
    """Little-endian uint32 each."""
    model: str
    scope: bytes = b""
    adapter: str = ""
    """`core.events.kv.Adapter.id`; in recordings of before, a name, by which no worker is left out."""


class PromptRoute(msgspec.Struct, frozen=True, kw_only=True):
    """The decision; the keys of `contrail replay at --prompt … --json`."""

    model: str
    prompt_tokens: int
    block_size: int
    prompt_blocks: int
    policy: str
    settings: dict[str, Any]
    worker: str | None
    """None: no worker could have taken it."""
    worker_name: str | None
    drawn: bool
    """A draw decides: the worker is one of several, by their probabilities."""
    estimates: EstimateBasis | None
    """Basis of the estimated times of candidates, under policies that estimate."""
    predicted_cached_tokens: int
    why: str
    runner_up: RunnerUp | None
    candidates: list[CandidateRow]
    excluded: dict[str, dict[str, Any]]


def route_prompt(state_at: StateAt, query: PromptQuery, hash_seed: int) -> PromptRoute:
    """The decision of the replica of the belief, or of one that knows the log alone; the seed of a draw is 0.
    CallerError if no worker served the model."""
    recording, names = state_at.recording, state_at.recording.names
    prompt = Prompt(query.tokens, _block_size(state_at, query.model), hash_seed, query.scope)
    adapter = query.adapter if ADAPTER_SEPARATOR in query.adapter else ""
    time, load_time = _learned_times(state_at, query.model)
    request = RouteRequest(ASKED, 0, query.model, prompt, time=time, adapter=adapter, load_time=load_time)
    view = state_at.belief.view if state_at.belief is not None else _by_log(state_at)
    settings = state_at.belief.settings if state_at.belief is not None else newest_settings(state_at.state)
    decision = decide(view, request, settings, state_at.time_ms, seed=0)
    left_out = {reason: (len(ids), ids) for reason, ids in sorted(decision.excluded.items())}
    if decision.worker is None:
        on, known = None, {}
    else:
        event = record(decision, request, settings, 0)
        on = inputs_of_decision(view, request, settings, event, decision)
        known = measure_freshness(recording, event, state_at.time_ms, [scored.candidate.worker for scored in on.ranked])
    return PromptRoute(
        model=query.model,
        prompt_tokens=prompt.tokens,
        block_size=prompt.block_size,
        prompt_blocks=prompt.blocks_to_hold,
        policy=settings.policy,
        settings=settings.to_mapping(),
        worker=decision.worker,
        worker_name=None if decision.worker is None else names.worker(decision.worker),
        drawn=on is not None and len(on.ranked) > 1 and bool(chances(on)),
        estimates=None if on is None else estimate_basis(on),
        predicted_cached_tokens=decision.predicted_cached_tokens,
        why="no worker could have taken it" if on is None else decision_reason(on, names.worker),
        runner_up=None if on is None else runner_up(on, names.worker),
        candidates=[] if on is None else candidate_rows(on, known, names),
        excluded=excluded_named(left_out, names),
    )


def models(state_at: StateAt) -> list[str]:
    """Those that some worker served, sorted."""
    return sorted({member.joined.model for member in state_at.state.alive() if member.joined is not None})


def _learned_times(state_at: StateAt, model: str) -> tuple[PrefillTime | None, LoadTime | None]:
    """Prefill and load time of the model by the newest decision up to the moment that names one of them: of the
    replica, or without a belief of any. None if none of the last DECISIONS_READ_MAX does."""
    decisions = (attempt for attempt in _by_then(state_at) if attempt.model == model)
    for attempt in islice(decisions, DECISIONS_READ_MAX):
        event = recorded_event(state_at.recording, attempt)
        if event is not None and (event.prefill_time or event.load_time):
            time = PrefillTime(*event.prefill_time) if event.prefill_time else None
            return time, LoadTime(*event.load_time) if event.load_time else None
    return None, None


def _by_then(state_at: StateAt) -> Iterator[RequestAttempt]:
    """The attempts up to the moment, that at which a belief is known included; the newest first."""
    requests, belief = state_at.recording.requests, state_at.belief
    if belief is None:
        at = state_at.state.cursor.get(ROUTING)
        return requests.until((at.seq + 1) * PLACES - 1 if at is not None else 0)
    if (last := belief.decision) is None:
        return iter(())
    return requests.until(last.at, last.replica)


def _by_log(state_at: StateAt) -> View:
    return View(state_at.state, NO_REPLICA, PendingEvents(), MappingProxyType({}))


def _block_size(state_at: StateAt, model: str) -> int:
    joined = (member.joined for member in state_at.state.alive())
    sizes = [each.block_size for each in joined if each is not None and each.model == model]
    if not sizes:
        there = ", ".join(models(state_at)) or "none"
        raise CallerError(f"no worker served the model {model!r} then; served were {there}")
    return max(set(sizes), key=sizes.count)
