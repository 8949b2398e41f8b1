"""One decision as its own record tells it: candidates with their cost taken apart, and nothing that takes a fold."""

from __future__ import annotations

from typing import Any

from api.debug.decisions import PLACES
from api.debug.timeline import Timeline
from core.codec import decode_message
from core.errors import CallerError
from core.events import RequestRouted
from core.ids import from_column
from core.settings import RoutingSettings
from core.subjects import ROUTING
from streams.archive import Archive

MILLI = 1000


def decision(archive: Archive, timeline: Timeline, n: int) -> dict[str, Any]:
    """The decision of that number; CallerError if it is none. One block of the archive is read."""
    event = routed(archive, n)
    index = timeline.decisions.at(n)
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
        "candidates": _rows(event, settings, terms=given is not None),
        "candidates_total": event.candidates_total,
        "excluded": [
            {"reason": reason, "count": count, "workers": from_column(ids)}
            for reason, (count, ids) in event.excluded.items()
        ],
        "cursor": {stream: seq for stream, (_, seq) in event.cursor.items()},
        "digest": event.digest,
    }


def routed(archive: Archive, n: int) -> RequestRouted:
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


def _rows(event: RequestRouted, settings: RoutingSettings, *, terms: bool) -> list[dict[str, Any]]:
    """Costs in blocks. Without settings, and for policies that look at no cost, there are no terms."""
    rows = []
    for place, worker in enumerate(from_column(event.candidates)):
        at = {name: column[place] for name, column in event.columns.items()}
        cost = at["cost"] / MILLI
        row: dict[str, Any] = {
            "worker": worker,
            "chosen": worker == event.worker,
            "cost": cost,
            "overlap": at["overlap_all"],
            "overlap_device": at["overlap"],
            "pending": at["pending"],
            "to_prefill": at["prefill"] / MILLI,
            "active_blocks": at["active_blocks"],
            "active_requests": at["active_requests"],
            "waiting": at["waiting"],
            "cache_known": bool(at["known"]),
        }
        if terms and event.policy == "kv":
            row["prefill_cost"] = settings.prefill_weight_m * at["prefill"] / MILLI**2
            row["request_cost"] = settings.request_weight_m * at["active_requests"] / MILLI
            row["decode_cost"] = max(0.0, cost - row["prefill_cost"] - row["request_cost"])
        rows.append(row)
    return rows
