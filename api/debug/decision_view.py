"""One decision as its own record tells it: candidates with their cost taken apart, and nothing that takes a fold."""

from __future__ import annotations

from typing import Any

from api.debug.timeline.timeline import Timeline
from core.codec import decode_message
from core.errors import CallerError
from core.events import RequestRouted
from core.ids import from_column
from core.prompt import HashedPrompt
from core.settings import RoutingSettings
from core.subjects import ROUTING
from projections.policy.cost import BLOCK_COST_POLICIES, ESTIMATING_POLICIES, MILLI, ScoredCandidate
from projections.policy.prefill_backlog import PrefillBacklog
from projections.policy.prefill_time import PrefillTime
from projections.policy.view import RouteRequest
from replay.explain.cost_breakdown import computed_tokens, estimate_source, split_estimate
from replay.explain.decision_inputs import recorded_backlog, recorded_candidates
from replay.recording.request_history import PLACES
from streams.archive.archive_reader import ArchiveReader

UNITS = {"kv": "blocks", "approximate": "blocks", "least-loaded": "requests", "power-of-two": "requests"}
"""Of costs, by policy; others have none, or milliseconds."""


def decision(archive: ArchiveReader, timeline: Timeline, n: int) -> dict[str, Any]:
    """The decision of that number; CallerError if it is none. One block of the archive is read."""
    event = routed(archive, n)
    index = timeline.decisions.history.row(n)
    number = -1 if index is None else timeline.decisions.column("replica")[index]
    given = timeline.settings.get((number, event.settings_revision))
    settings = _settings(given, event)
    return {
        "n": n,
        "at": f"{ROUTING}:{n // PLACES}",
        "request": event.request,
        "model": event.model,
        "attempt": event.attempt,
        "worker": event.worker,
        "replica": number,
        "policy": event.policy,
        "revision": event.settings_revision,
        "settings": settings.to_mapping(),
        "settings_known": given is not None,
        "prompt_tokens": event.prompt_tokens,
        "block_size": event.block_size,
        "blocks": event.blocks,
        "predicted_cached_tokens": event.predicted_cached_tokens,
        "prefill_tokens": event.prefill_tokens,
        "prefer": event.prefer,
        "prefer_tokens": event.prefer_tokens,
        "unit": "ms" if event.policy in ESTIMATING_POLICIES else UNITS.get(event.policy, ""),
        "prefill_time": _prefill_time(event, settings),
        "candidates": _rows(event, settings, known=given is not None),
        "candidates_total": event.candidates_total,
        "excluded": [
            {"reason": reason, "count": count, "workers": from_column(ids)}
            for reason, (count, ids) in event.excluded.items()
        ],
        "cursor": {stream: seq for stream, (_, seq) in event.cursor.items()},
        "digest": event.digest,
    }


def routed(archive: ArchiveReader, n: int) -> RequestRouted:
    """The event of that number."""
    seq, place = divmod(n, PLACES)
    record = archive.at(ROUTING, seq) if ROUTING in archive.streams else None
    events = decode_message(record.payload).events if record is not None else ()
    event = events[place] if place < len(events) else None
    if not isinstance(event, RequestRouted):
        raise CallerError(f"there is no decision {ROUTING}:{seq}+{place} in this recording")
    return event


def _settings(given: dict[str, Any] | None, event: RequestRouted) -> RoutingSettings:
    try:
        return RoutingSettings.parse(given or {"policy": event.policy})
    except CallerError:
        return RoutingSettings(policy=event.policy)  # of another version of the program


def _prefill_time(event: RequestRouted, settings: RoutingSettings) -> dict[str, Any] | None:
    """How long a prefill was taken to last, and where that was known from; None where nobody asked."""
    if event.policy not in ESTIMATING_POLICIES:
        return None
    learned = PrefillTime(*event.prefill_time) if event.prefill_time else None
    base_us, per_token_m = PrefillTime.of(settings, learned)
    return {"base_ms": base_us / MILLI, "per_token_us": per_token_m / MILLI, "source": estimate_source(event, settings)}


def _rows(event: RequestRouted, settings: RoutingSettings, *, known: bool) -> list[dict[str, Any]]:
    """Costs in their unit. There are terms where they add up to the cost: not without the settings, and not for
    policies whose cost is no sum."""
    request = RouteRequest.of(event, HashedPrompt(event.prompt_tokens, event.block_size, event.hashes))
    backlog = recorded_backlog(event, request, settings)
    rows = []
    for scored in recorded_candidates(event, settings, {}):
        candidate, cost = scored.candidate, scored.cost / MILLI
        row: dict[str, Any] = {
            "worker": candidate.worker,
            "chosen": candidate.worker == event.worker,
            "cost": cost,
            "overlap": candidate.overlap[-1],
            "overlap_device": candidate.overlap[0],
            "pending": candidate.pending,
            "to_prefill": scored.prefill_m / MILLI,
            "active_blocks": candidate.active_blocks,
            "active_requests": candidate.active_requests,
            "waiting": candidate.waiting,
            "cache_known": candidate.cache_known,
        }
        if known and event.policy in BLOCK_COST_POLICIES:
            row["prefill_cost"] = settings.prefill_weight_m * scored.prefill_m / MILLI**2
            row["request_cost"] = settings.request_weight_m * candidate.active_requests / MILLI
            row["decode_cost"] = max(0.0, cost - row["prefill_cost"] - row["request_cost"])
        elif event.policy in ESTIMATING_POLICIES:
            row |= _estimated(scored, settings, event.block_size, backlog)
        rows.append(row)
    return rows


def _estimated(
    scored: ScoredCandidate, settings: RoutingSettings, size: int, backlog: PrefillBacklog
) -> dict[str, Any]:
    """What one candidate was estimated to take, in milliseconds; under `time` with the terms of its cost."""
    worker = scored.candidate.worker
    found: dict[str, Any] = {
        "tokens": computed_tokens(scored, size),
        "outstanding_ms": backlog.outstanding_us(worker) / MILLI,
        "held_ms": backlog.held_us.get(worker, 0) / MILLI,
    }
    terms = split_estimate(scored, settings, size, backlog) if settings.policy == "time" else None
    if terms is not None:
        found["prefill_cost"], found["decode_cost"] = terms.own / MILLI, terms.decode / MILLI
        found["request_cost"], found["wait_cost"] = terms.requests / MILLI, terms.wait / MILLI
    return found
