"""Decision view: one decision from its own record, each candidate's cost by its terms; no fold is needed."""

from __future__ import annotations

from typing import Any

import msgspec

from api.debug.timeline.timeline import Timeline
from core.codec import decode_message
from core.errors import CallerError
from core.events import RequestRouted
from core.ids import from_column
from core.settings import RoutingSettings
from core.subjects import ROUTING
from projections.policy.cost import ESTIMATING_POLICIES, MILLI, ScoredCandidate
from replay.explain.cost_breakdown import cost_terms, estimate_basis, time_estimate
from replay.explain.decision_inputs import DecisionInputs, recorded_inputs
from replay.recording.request_history import PLACES
from streams.archive.archive_reader import ArchiveReader

UNITS = {"kv": "blocks", "approximate": "blocks", "least-loaded": "requests", "power-of-two": "requests"}
"""Units of costs, by policy; others have none, or milliseconds."""
EVENT_FIELDS = (
    "request", "model", "attempt", "worker", "policy", "prompt_tokens", "block_size", "blocks",
    "predicted_cached_tokens", "prefill_tokens", "prefer", "prefer_tokens", "candidates_total", "digest",
)  # fmt: skip
"""Fields of the event that the page shows as they are."""
CANDIDATE_FIELDS = ("worker", "pending", "active_blocks", "active_requests", "waiting", "cache_known")


def decision(archive: ArchiveReader, timeline: Timeline, n: int) -> dict[str, Any]:
    """The decision of this number as JSON values; CallerError if there is none. One block of the archive is read."""
    event = routed_event(archive, n)
    index = timeline.decisions.history.row(n)
    number = -1 if index is None else timeline.decisions.column("replica")[index]
    given = timeline.settings.get((number, event.settings_revision))
    settings = _settings(given, event)
    on = recorded_inputs(event, settings)._replace(settings_known=given is not None)
    return {
        "n": n,
        "at": f"{ROUTING}:{n // PLACES}",
        **{name: getattr(event, name) for name in EVENT_FIELDS},
        "replica": number,
        "revision": event.settings_revision,
        "settings": settings.to_mapping(),
        "settings_known": given is not None,
        "unit": "ms" if event.policy in ESTIMATING_POLICIES else UNITS.get(event.policy, ""),
        "prefill_time": _prefill_time(on),
        "candidates": [_row(on, scored) for scored in on.ranked],
        "excluded": [
            {"reason": reason, "count": count, "workers": from_column(ids)}
            for reason, (count, ids) in event.excluded.items()
        ],
        "cursor": {stream: seq for stream, (_, seq) in event.cursor.items()},
    }


def routed_event(archive: ArchiveReader, n: int) -> RequestRouted:
    """The decision's event; CallerError if there is no decision of this number. One block of the archive is read."""
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


def _prefill_time(on: DecisionInputs) -> dict[str, Any] | None:
    """The estimate of a prefill's time, with its source; None under a policy that does not estimate."""
    basis = estimate_basis(on)
    if basis is None:
        return None
    loading = [msgspec.structs.asdict(tier) for tier in basis.loading]
    return {
        "base_ms": basis.base_ms,
        "per_token_us": basis.per_token_us,
        "source": basis.source,
        "first_active_times": basis.first_active_times,
        "first_active_tokens": basis.first_active_tokens,
        "turnover_times": basis.turnover_times,
        "loading": loading,
    }


def _row(on: DecisionInputs, scored: ScoredCandidate) -> dict[str, Any]:
    """One candidate, costs in their unit; terms only where they add up to the cost.

    They do not add up if the settings are unknown, or if the policy's cost is no sum.
    """
    candidate, policy, terms = scored.candidate, on.event.policy, cost_terms(on, scored)
    row: dict[str, Any] = {
        **{name: getattr(candidate, name) for name in CANDIDATE_FIELDS},
        "chosen": candidate.worker == on.event.worker,
        "cost": scored.cost / MILLI,
        "overlap": candidate.overlap[-1],
        "overlap_device": candidate.overlap[0],
        "to_prefill": scored.prefill_m / MILLI,
    }
    if policy in ESTIMATING_POLICIES:
        timed = time_estimate(on, scored, exact=False)
        row |= {"tokens": timed.tokens, "outstanding_ms": timed.outstanding_ms, "held_ms": timed.held_ms}
    if terms is not None:
        row |= {"prefill_cost": terms.prefill, "decode_cost": terms.decode, "request_cost": terms.request}
        if policy in ESTIMATING_POLICIES:
            row |= {"wait_cost": terms.wait, "reuse_cost": terms.reuse, "delay_cost": terms.delays}
            row |= {"load_cost": terms.load, "turnover_cost": terms.turnover}
    return row
