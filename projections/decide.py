"""The decision: a pure function of view, request, settings, now and seed. No clock, no I/O, integer costs."""

from __future__ import annotations

from typing import NamedTuple

import msgspec
import xxhash

from core.decision import COLUMNS, DECIDE_VERSION, EXCLUDED_SHOWN_MAX
from core.events import RequestRouted
from core.ids import WorkerId, to_column
from core.settings import RoutingSettings
from projections.policies import Scored, choose, pending_beyond, score, tie_break
from projections.view import Candidate, RouteRequest, View, recorded

_canonical = msgspec.msgpack.Encoder()


DOUBTS = ("suspected", "failed")
"""Reasons to leave a worker out only for as long as another one is left."""


class Decision(NamedTuple):
    """What was decided, with everything that the record needs."""

    worker: WorkerId | None
    """None if every worker was left out."""
    ranked: list[Scored]
    """All candidates, the chosen one first, then by cost."""
    excluded: dict[str, list[WorkerId]]
    local: dict[str, list[WorkerId]]
    cursor: dict[str, tuple[int, int]]
    now_ms: int
    seed: int
    prefill_tokens: int
    """Tokens that the chosen worker is expected to compute."""
    predicted_cached_tokens: int
    digest: str
    """Of all of this with every candidate: 16 hex digits; equal digests mean equal decisions."""


def decide(view: View, request: RouteRequest, settings: RoutingSettings, now_ms: int, seed: int) -> Decision:
    """Chooses a worker for the request; the same arguments give the same bytes. O(workers).

    A worker in doubt (DOUBTS) still serves when nobody else can: a try costs less than a refusal.
    """
    local = recorded(view.local)
    stale = view.local.get("stale", frozenset[WorkerId]())
    scored: list[Scored] = []
    doubtful: list[tuple[str, Scored]] = []
    excluded: dict[str, list[WorkerId]] = {}
    for candidate in view.candidates(request.prompt):
        reason = _exclusion(candidate, request, settings, view)
        if reason and reason not in DOUBTS:
            excluded.setdefault(reason, []).append(candidate.worker)
            continue
        each = score(candidate, request, settings, stale=candidate.worker in stale)
        if reason:
            doubtful.append((reason, each))
        else:
            scored.append(each)
    if scored:
        for reason, each in doubtful:
            excluded.setdefault(reason, []).append(each.candidate.worker)
    else:
        scored = [each for _, each in doubtful]
    if not scored:
        return _decision(None, [], excluded, local, view, request, now_ms, seed)
    chosen = choose(scored, request, settings, view.routed(request.model), seed)
    scored.sort(key=lambda each: (each is not chosen, each.cost, tie_break(request, each.candidate)))
    return _decision(chosen, scored, excluded, local, view, request, now_ms, seed)


def _exclusion(candidate: Candidate, request: RouteRequest, settings: RoutingSettings, view: View) -> str:
    """Why the worker cannot be chosen; empty if it can."""
    if candidate.model != request.model:
        return "other_model"
    if candidate.block_size != request.prompt.block_size:
        return "other_block_size"
    for reason in ("not_connected", "suspected", "failed"):
        if candidate.worker in view.local.get(reason, ()):
            return reason
    if candidate.draining:
        return "draining"
    if candidate.waiting >= settings.waiting_max:
        return "overloaded"
    return ""


def _decision(
    chosen: Scored | None,
    ranked: list[Scored],
    excluded: dict[str, list[WorkerId]],
    local: dict[str, list[WorkerId]],
    view: View,
    request: RouteRequest,
    now_ms: int,
    seed: int,
) -> Decision:
    prompt = request.prompt
    predicted = 0
    if chosen is not None:
        predicted = max(chosen.candidate.overlap[-1], chosen.candidate.pending) * prompt.block_size
    cursor = view.cursor
    everything = (
        DECIDE_VERSION, request.id, request.attempt, request.model, prompt.tokens, now_ms, seed, cursor, local,
        sorted(excluded.items()), [(each.candidate, each.cost, each.prefill_m) for each in ranked],
    )  # fmt: skip
    return Decision(
        worker=chosen.candidate.worker if chosen else None,
        ranked=ranked,
        excluded=excluded,
        local=local,
        cursor=cursor,
        now_ms=now_ms,
        seed=seed,
        prefill_tokens=prompt.tokens - predicted,
        predicted_cached_tokens=predicted,
        digest=xxhash.xxh3_64_hexdigest(_canonical.encode(everything)),
    )


def record(decision: Decision, request: RouteRequest, settings: RoutingSettings, revision: int) -> RequestRouted:
    """The event of a decision that chose a worker. Computes all block hashes of the prompt: off the hot path."""
    assert decision.worker is not None
    best = decision.ranked[: settings.candidates_recorded_max]
    rows = [_row(each) for each in best]
    return RequestRouted(
        request=request.id,
        attempt=request.attempt,
        model=request.model,
        prompt_tokens=request.prompt.tokens,
        block_size=request.prompt.block_size,
        hashes=request.prompt.hashes(),
        policy=settings.policy,
        settings_revision=revision,
        decide_version=DECIDE_VERSION,
        seed=decision.seed,
        now_ms=decision.now_ms,
        cursor=decision.cursor,
        worker=decision.worker,
        candidates=to_column([each.candidate.worker for each in best]),
        columns={name: tuple(row[i] for row in rows) for i, name in enumerate(COLUMNS)},
        candidates_total=len(decision.ranked),
        excluded=shown(decision.excluded),
        blocks=request.prompt.blocks_to_hold - pending_beyond(decision.ranked[0].candidate),
        prefill_tokens=decision.prefill_tokens,
        predicted_cached_tokens=decision.predicted_cached_tokens,
        digest=decision.digest,
        tenant=request.tenant,
        priority=request.priority,
    )


def shown(excluded: dict[str, list[WorkerId]]) -> dict[str, tuple[int, bytes]]:
    """Exclusions as a record holds them: the whole count, the first few ids."""
    return {reason: (len(ids), to_column(list(ids[:EXCLUDED_SHOWN_MAX]))) for reason, ids in sorted(excluded.items())}


def _row(each: Scored) -> tuple[int, ...]:
    """In the order of core.decision.COLUMNS."""
    candidate = each.candidate
    return (
        each.cost,
        candidate.overlap[0],
        candidate.overlap[-1],
        candidate.pending,
        each.prefill_m,
        candidate.active_blocks,
        candidate.active_requests,
        candidate.waiting,
        int(candidate.cache_known),
    )
